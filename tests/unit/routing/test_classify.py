"""The classification comes to what the rules say one by one, with notes or without."""

from random import Random

import pytest

from brokerd.clock import Instant
from brokerd.ids import BrokerId
from brokerd.model import CONFIGURATION_SERVICE, Route
from brokerd.routing.choice import Balancer, choice_of
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
from brokerd.routing.notes import Finding, Notes
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


@pytest.mark.rule("RTE-3", "RTE-4", "RTE-19", "RTE-27", "RTE-30", "NBT-13", "RTE-72")
def test_the_index_gives_what_the_rules_give_one_by_one() -> None:
    noted: set[Finding] = set()
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
        noted |= {one.finding for one in notes.all}
    assert set(Finding) - noted == set()
