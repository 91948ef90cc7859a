"""Matching and choosing against a naive transcription of the rules."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import BrokerId
from brokerd.model import Route
from brokerd.routing.choice import Balancer
from brokerd.routing.classify import (
    Delayed,
    DialogKey,
    InstanceFacts,
    Local,
    LocalBroker,
    OutgoingDecision,
    Remote,
    Tables,
    classify_outgoing,
)
from brokerd.routing.table import RoutingTable, problems

HOME, OTHER, FAR = (BrokerId(letter * 16) for letter in (b"h", b"o", b"f"))
NAMES = ("S", "T")
ADDRESSES = ("LOCAL", "tcp://x:1", "tcp://y:1", "tcp://z:1")


def naive(
    routes: list[Route], name: str, broker_id: BrokerId | None, services: set[str], now: int
) -> set[tuple[str, object]]:
    """Every outcome the rules admit, read off them one sentence at a time."""
    live = [route for route in routes if route.expires_at is None or route.expires_at > now]
    named = [route for route in live if route.service_name == name]
    alternatives: list[list[Route]] = []
    if broker_id is not None and any(route.broker_id == broker_id for route in named):
        alternatives = [[route for route in named if route.broker_id == broker_id]]
    elif any(route.broker_id is None for route in named):
        alternatives = [[route for route in named if route.broker_id is None]]
    elif broker_id is None and named:
        ids = {route.broker_id for route in named}
        alternatives = [[route for route in named if route.broker_id == one] for one in ids]
    elif any(route.service_name is None for route in live):
        alternatives = [[route for route in live if route.service_name is None]]
    elif broker_id is not None and name in services:
        alternatives = [[Route("here", "LOCAL", name)]]
    if not alternatives:
        return {("delayed", "no_route")}
    return {
        outcome
        for candidates in alternatives
        for outcome in naive_choice(candidates, name, broker_id, services)
    }


def naive_choice(
    candidates: list[Route], name: str, broker_id: BrokerId | None, services: set[str]
) -> Iterable[tuple[str, object]]:
    wanted = broker_id or candidates[0].broker_id
    if any(route.address == "LOCAL" for route in candidates) and name in services:
        if wanted is None:
            return {("local", OTHER)}
        if wanted in (HOME, OTHER):
            return {("local", wanted)}
    network = {("remote", route.address) for route in candidates if route.address != "LOCAL"}
    if network:
        return network
    missing = wanted is not None and wanted not in (HOME, OTHER)
    return {("delayed", "broker_not_here" if missing else "local_service_missing")}


def outcome(result: OutgoingDecision) -> tuple[str, object]:
    match result:
        case Local(broker_id=broker_id):
            return "local", broker_id
        case Remote(address=address):
            return "remote", address
        case Delayed(reason=reason):
            return "delayed", str(reason)


@st.composite
def tables(draw: st.DrawFn) -> list[Route]:
    routes = []
    for number in range(draw(st.integers(0, 7))):
        service = draw(st.sampled_from([*NAMES, None]))
        broker_id = draw(st.sampled_from([None, HOME, OTHER, FAR])) if service else None
        expires = draw(st.sampled_from([None, None, Instant(5), Instant(6)]))
        address = draw(st.sampled_from(ADDRESSES))
        routes.append(Route(f"r{number}", address, service, broker_id, expires))
    return routes


@pytest.mark.rule("RTE-8")
@pytest.mark.rule("RTE-9")
@pytest.mark.rule("RTE-10")
@pytest.mark.rule("RTE-13")
@pytest.mark.rule("RTE-20")
@pytest.mark.rule("RTE-21")
@pytest.mark.rule("RTE-28")
@given(
    routes=tables(),
    name=st.sampled_from(NAMES),
    broker_id=st.sampled_from([None, HOME, OTHER, FAR]),
    services=st.sets(st.sampled_from(NAMES)),
    seed=st.integers(0, 3),
)
def test_every_admitted_outcome_and_no_other(
    routes: list[Route],
    name: str,
    broker_id: BrokerId | None,
    services: set[str],
    seed: int,
) -> None:
    table, balancer = RoutingTable(routes), Balancer(rng=Random(seed))
    facts = InstanceFacts(
        [
            LocalBroker(HOME, "home", frozenset()),
            LocalBroker(OTHER, "other", frozenset(services)),
        ]
    )
    key = DialogKey(name, broker_id, HOME, from_initiator=True)
    seen = {
        outcome(
            classify_outgoing(key, Tables(table, None), facts, now=Instant(5), balancer=balancer)
        )
        for _ in range(3 * 3)
    }
    assert seen == naive(routes, name, broker_id, services, 5)


@pytest.mark.rule("RTE-29")
@given(routes=tables(), name=st.sampled_from(NAMES), seed=st.integers(0, 3))
def test_a_kept_choice_never_changes(routes: list[Route], name: str, seed: int) -> None:
    table, balancer = RoutingTable(routes), Balancer(rng=Random(seed))
    facts = InstanceFacts([LocalBroker(HOME, "home", frozenset({"S"}))])
    key = DialogKey(name, None, HOME, from_initiator=True)
    first = classify_outgoing(key, Tables(table, None), facts, now=Instant(5), balancer=balancer)
    if isinstance(first, Delayed):
        return
    again = RoutingTable(reversed(routes))
    for _ in range(3):
        kept = classify_outgoing(
            key,
            Tables(again, None),
            facts,
            now=Instant(5),
            balancer=balancer,
            previous=first.choice,
        )
        assert outcome(kept) == outcome(first)


@pytest.mark.rule("RTE-5")
def test_names_are_compared_byte_by_byte() -> None:
    table = RoutingTable([Route("r", "tcp://x:1", "S\u00e9")])
    for other in ("s\u00e9", "Se\u0301", "S\u00e9 "):
        assert table.find(other, None, now=Instant(0), service_here=False).step == 7
    assert table.find("S\u00e9", None, now=Instant(0), service_here=False).step == 2


@pytest.mark.rule("RTE-61")
def test_an_id_needs_a_name() -> None:
    with pytest.raises(InvalidArgument):
        RoutingTable([Route("r", "LOCAL", None, FAR)])


@pytest.mark.rule("RTE-61")
@pytest.mark.rule("RTE-62")
@pytest.mark.rule("RTE-63")
@pytest.mark.parametrize(
    ("route", "words"),
    [
        (Route("r", "LOCAL"), []),
        (Route("r", "tcp://x:1", "S", FAR), []),
        (Route("r", "TRANSPORT"), []),
        (Route("r", "LOCAL", None, FAR), ["needs a service name"]),
        (Route("r", "TRANSPORT", "S"), ["TRANSPORT"]),
        (Route("r", "nowhere"), ["no network address"]),
        (Route("r", "LOCAL", "SQL/ServiceBroker/BrokerConfiguration", FAR), ["broker id"]),
    ],
)
def test_problems_of_a_declared_route(route: Route, words: list[str]) -> None:
    found = problems(route)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))
