"""The explanation of a route has every step that its classification noted."""

from random import Random

import pytest

from brokerd.clock import Instant
from brokerd.ids import BrokerId
from brokerd.model import AUTO_CREATED_LOCAL, Route
from brokerd.routing.choice import Balancer
from brokerd.routing.classify import (
    DialogKey,
    InstanceFacts,
    LocalBroker,
    Tables,
    classify_outgoing,
)
from brokerd.routing.explain import Explanation, explain
from brokerd.routing.notes import Notes
from brokerd.routing.table import RoutingTable

NOW = Instant(1_000_000_000)
IDS = [BrokerId(bytes([letter]) * 16) for letter in b"abcd"]


def decided(one: Explanation) -> tuple[str, str, str, str]:
    return one.outcome, one.where, one.reason, one.route


def explain_outgoing(key: DialogKey, own: list[Route], here: InstanceFacts) -> Explanation:
    notes = Notes()
    tables = Tables(RoutingTable(own), RoutingTable([]))
    balancer = Balancer(rng=Random(1))
    sent = classify_outgoing(key, tables, here, now=NOW, balancer=balancer, notes=notes)
    return explain(key, sent, notes.all, here, begins=key.from_initiator)


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
