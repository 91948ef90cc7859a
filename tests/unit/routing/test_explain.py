"""The explanation of a route says what the classification does, step by step."""

from random import Random

import pytest

from brokerd.clock import Instant
from brokerd.ids import BrokerId
from brokerd.model import AUTO_CREATED_LOCAL, CONFIGURATION_SERVICE, Route
from brokerd.routing.choice import Balancer, Foreseen, choice_of
from brokerd.routing.classify import (
    ArrivalKey,
    Arriving,
    Delayed,
    DialogKey,
    Dropped,
    InstanceFacts,
    Local,
    LocalBroker,
    OutgoingDecision,
    Remote,
    Tables,
    classify_arriving,
    classify_outgoing,
)
from brokerd.routing.duplicates import Barred, nobody_barred
from brokerd.routing.explain import Explanation, explain_arriving, explain_outgoing
from brokerd.routing.mirror import nobody_known
from brokerd.routing.reasons import DropReason
from brokerd.routing.table import RoutingTable

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


def told(
    result: OutgoingDecision | Arriving, here: InstanceFacts, opens: str = ""
) -> tuple[str, str, str, str]:
    """What a decision comes to. `opens`: the service that it begins a dialog with."""
    match result:
        case Local(broker_id=broker_id, route=route) if opens and not here.serves(broker_id, opens):
            reason = DropReason.SERVICE_NOT_IN_BROKER
            return "refused", here.name_of(broker_id), reason, route
        case Local(broker_id=broker_id, route=route):
            return "local", here.name_of(broker_id), "", route
        case Remote(address=address, route=route):
            return "remote", address, "", route
        case Delayed(reason=reason):
            return "delayed", "", reason, ""
        case Dropped(reason=reason):
            return "dropped", "", reason, ""


def said(one: Explanation) -> tuple[str, str, str, str]:
    return one.outcome, one.where, one.reason, one.route


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
        explained = explain_outgoing(
            key,
            own,
            instance,
            here,
            now=NOW,
            pick=balancer.preview(),
            previous=previous,
            avoid=avoid,
            principal=principal,
            barred=barred,
        )
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
        )
        arrival = ArrivalKey(name, broker_id, from_initiator, hops=rng.randrange(4))
        there = explain_arriving(
            arrival,
            instance,
            here,
            now=NOW,
            pick=balancer.preview(),
            principal=principal,
            barred=barred,
        )
        arrived = classify_arriving(
            arrival,
            RoutingTable(instance),
            here,
            now=NOW,
            balancer=balancer,
            principal=principal,
            barred=barred,
        )

        opens = name if from_initiator else ""
        assert said(explained) == told(sent, here, opens), f"seed {seed}"
        assert said(there) == told(arrived, here, opens), f"seed {seed}"
        assert there.hops_used == getattr(arrived, "hops_used", 0), f"seed {seed}"


@pytest.mark.rule("RTE-25", "CLP-98")
@pytest.mark.parametrize("at_random", [False, True])
def test_what_is_foreseen_takes_no_turn_and_is_said_again_as_it_was(at_random: bool) -> None:
    keys = [(b"", "S", "id"), (b"", "S", "route"), (b"", "S", "id"), (b"", "T", "id")] * 5
    balancer = Balancer(rng=Random(3), at_random=at_random)
    foreseen = Foreseen(balancer.preview())
    picked = [foreseen.pick(key, 3) for key in keys]
    again = foreseen.again()
    assert [again(key, 3) for key in keys] == picked
    if not at_random:
        assert [balancer.pick(key, 3) for key in keys] == picked


@pytest.mark.rule("RTE-25")
def test_looking_at_whose_turn_it_is_takes_no_turn() -> None:
    balancer = Balancer(rng=Random(1))
    ahead = balancer.preview()
    seen = [ahead((b"", "S", "route"), 3) for _ in range(4)]
    taken = [balancer.pick((b"", "S", "route"), 3) for _ in range(4)]

    assert seen == taken
    assert sorted(taken[:3]) == [0, 1, 2]
    assert taken[3] == taken[0]


def test_every_step_is_said_with_the_routes_it_looked_at() -> None:
    routes = [
        AUTO_CREATED_LOCAL,
        Route("old", "TCP://x", "S", expires_at=NOW),
        Route("there", "TCP://y", "S", IDS[3]),
    ]
    here = InstanceFacts([LocalBroker(IDS[0], "main", frozenset(["S"]))])
    one = explain_outgoing(
        DialogKey("S", None, IDS[0], from_initiator=True),
        routes,
        [],
        here,
        now=NOW,
        pick=Balancer(rng=Random(1)).preview(),
    )

    assert [(step.step, step.routes) for step in one.steps] == [
        ("expired", ()),
        ("2", ()),
        ("3", ("there",)),
        ("C", ("there",)),
    ]
    assert said(one) == ("remote", "tcp://y:4022", "", "there")
