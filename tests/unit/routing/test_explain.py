"""The classification comes to what the rules say, and notes every step for its explanation."""

from random import Random

import pytest

from brokerd.clock import Instant
from brokerd.ids import BrokerId
from brokerd.model import AUTO_CREATED_LOCAL, CONFIGURATION_SERVICE, Route
from brokerd.routing.choice import Balancer, Picks, choice_of
from brokerd.routing.classify import (
    ArrivalKey,
    DialogKey,
    InstanceFacts,
    LocalBroker,
    Tables,
    classify_arriving,
    classify_outgoing,
)
from brokerd.routing.duplicates import Barred, nobody_barred
from brokerd.routing.explain import Explanation, explain
from brokerd.routing.mirror import nobody_known
from brokerd.routing.notes import Notes
from brokerd.routing.table import RoutingTable
from tests.unit.routing.rules import Rules

NOW = Instant(1_000_000_000)
IDS = [BrokerId(bytes([letter]) * 16) for letter in b"abcd"]
NAMES = ["S", "T", "tcp://far:4022/T", "s"]
ADDRESSES = ["LOCAL", "local", "TRANSPORT", "TCP://X", "tcp://x:4022", "tcp://y:1", "tcp://own"]
ADDRESSES += ["tcp://z:70000", "nonsense"]


def table(rng: Random) -> list[Route]:
    """Routes as an operator may have them, some of them such as are refused at the door."""
    made = []
    for number in range(rng.randrange(7)):
        service = rng.choice([None, *NAMES, CONFIGURATION_SERVICE])
        broker_id = rng.choice([None, *IDS]) if service is not None else None
        expires = rng.choice([None, None, Instant(NOW - 1), NOW, Instant(NOW + 1)])
        name = f"r{rng.randrange(10)}{number}"
        address = rng.choice(ADDRESSES)
        mirror = rng.choice(["", "tcp://m:1"]) if broker_id and "://" in address else ""
        made.append(Route(name, address, service, broker_id, expires, mirror))
    return made


def surroundings(rng: Random) -> InstanceFacts:
    return InstanceFacts(
        [
            LocalBroker(
                broker_id,
                name,
                frozenset(one for one in NAMES if rng.random() < 0.5),
                enabled=rng.random() < 0.7,
            )
            for broker_id, name in zip(IDS, "wx", strict=False)
        ],
        own_addresses=["tcp://own:4022"],
        forwarding=rng.random() < 0.5,
        exempt_local=rng.random() < 0.5,
    )


def some_barred(rng: Random) -> Barred:
    """Two addresses to which nothing for two of the brokers is sent."""
    places, ids = rng.sample([*ADDRESSES[4:7], "tcp://far:4022"], 2), rng.sample(IDS, 2)
    return lambda named, place: "why" if place in places and named in (None, *ids) else ""


def decided(one: Explanation) -> tuple[str, str, str, str]:
    return one.outcome, one.where, one.reason, one.route


def explain_outgoing(
    key: DialogKey, own: list[Route], here: InstanceFacts, picks: Picks | None = None
) -> Explanation:
    notes = Notes()
    tables = Tables(RoutingTable(own), RoutingTable([]))
    balancer = picks or Balancer(rng=Random(1))
    sent = classify_outgoing(key, tables, here, now=NOW, balancer=balancer, notes=notes)
    return explain(key, sent, notes.all, here, begins=key.from_initiator)


@pytest.mark.rule("RTE-3", "RTE-4", "RTE-19", "RTE-27", "RTE-30", "NBT-13", "RTE-72")
def test_the_index_gives_what_the_rules_give_one_by_one() -> None:
    for seed in range(10_000):
        rng = Random(seed)
        own, instance, here = table(rng), table(rng), surroundings(rng)
        name, broker_id = rng.choice(NAMES), rng.choice([None, *IDS])
        balancer, from_initiator = Balancer(rng=Random(7)), rng.random() < 0.5
        before = rng.choice([None, *own])
        previous = choice_of(before) if before else None
        key = DialogKey(name, broker_id, IDS[0], from_initiator)
        principal = rng.choice([nobody_known, lambda pair: pair.mirror, lambda pair: pair.address])
        avoid = rng.choice([None, rng.sample(ADDRESSES[4:7], 2).__contains__])
        barred = rng.choice([nobody_barred, some_barred(rng)])
        rules = Rules(
            key,
            here,
            now=NOW,
            picks=balancer.preview(),
            avoid=avoid,
            principal=principal,
            barred=barred,
        ).outgoing(key, own, instance, previous)
        notes = Notes()
        sent = classify_outgoing(
            key,
            Tables(RoutingTable(own), RoutingTable(instance)),
            here,
            now=NOW,
            balancer=balancer,
            previous=previous,
            avoid=avoid,
            principal=principal,
            barred=barred,
            notes=rng.choice([None, notes]),
        )
        arrival = ArrivalKey(name, broker_id, from_initiator, hops=rng.randrange(4))
        arriving = Rules(
            arrival, here, now=NOW, picks=balancer.preview(), principal=principal, barred=barred
        )
        expected = arriving.arriving(arrival, instance)
        arrived = classify_arriving(
            arrival,
            RoutingTable(instance),
            here,
            now=NOW,
            balancer=balancer,
            principal=principal,
            barred=barred,
            notes=rng.choice([None, notes]),
        )

        explained = explain(key, sent, notes.all, here, begins=False)
        there = explain(arrival, arrived, notes.all, here, begins=False)
        assert decided(explained) == rules, f"seed {seed}"
        assert decided(there) == expected, f"seed {seed}"
        assert there.hops_used == arriving.hops_used, f"seed {seed}"


@pytest.mark.rule("RTE-25")
def test_a_preview_takes_no_turn() -> None:
    balancer = Balancer(rng=Random(1))
    ahead = balancer.preview()
    seen = [ahead.pick((b"", "S", "route"), 3) for _ in range(4)]
    taken = [balancer.pick((b"", "S", "route"), 3) for _ in range(4)]

    assert seen == taken
    assert sorted(taken[:3]) == [0, 1, 2]
    assert taken[3] == taken[0]


@pytest.mark.rule("CLP-98", "RTE-3", "RTE-10")
def test_every_step_is_noted_with_the_routes_it_looked_at() -> None:
    routes = [
        AUTO_CREATED_LOCAL,
        Route("old", "TCP://x", "S", expires_at=NOW),
        Route("there", "TCP://y", "S", IDS[3]),
    ]
    here = InstanceFacts([LocalBroker(IDS[0], "main", frozenset(["S"]))])
    one = explain_outgoing(DialogKey("S", None, IDS[0], from_initiator=True), routes, here)

    assert [(step.table, step.step, step.finding, step.routes) for step in one.steps] == [
        ("own", "expired", "route 'old' has expired (RTE-3)", ()),
        ("own", "2", "routes with name 'S' and no broker: none", ()),
        ("own", "3", "routes with name 'S' and some broker: 1", ("there",)),
        ("own", "C", "a network address", ("there",)),
    ]
    assert decided(one) == ("remote", "tcp://y:4022", "", "there")


@pytest.mark.rule("CLP-98", "RTE-41")
def test_what_turns_round_is_explained_by_the_routes_of_the_instance() -> None:
    own = [Route("home", "TCP://own", "S")]
    here = InstanceFacts(
        [LocalBroker(IDS[0], "main", frozenset())], own_addresses=["tcp://own:4022"]
    )
    one = explain_outgoing(DialogKey("S", None, IDS[0], from_initiator=True), own, here)
    assert [(step.table, step.step) for step in one.steps] == [
        ("own", "2"),
        ("own", "C"),
        ("", "self"),
        ("instance", "2"),
        ("instance", "3"),
        ("instance", "5"),
        ("instance", "7"),
    ]
    assert decided(one) == ("delayed", "", "no_route", "")


@pytest.mark.rule("CLP-98", "RTE-31")
@pytest.mark.parametrize("begins", [True, False])
def test_a_named_broker_without_the_service_refuses_only_the_beginning(begins: bool) -> None:
    brokers = [LocalBroker(IDS[0], "main", frozenset(["S"])), LocalBroker(IDS[1], "b", frozenset())]
    here = InstanceFacts(brokers)
    key = DialogKey("S", IDS[1], IDS[0], from_initiator=begins)
    one = explain_outgoing(key, [AUTO_CREATED_LOCAL], here)
    assert one.outcome == ("refused" if begins else "local")
    assert ("refuses" in one.steps[-1].finding) is begins
    assert one.steps[-1].step == "locate"
