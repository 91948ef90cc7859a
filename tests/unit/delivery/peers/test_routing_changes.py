"""Which dialogs a change of routing concerns (XMT-11)."""

from typing import Any

import pytest

from brokerd.clock import Instant
from brokerd.delivery.peers.routing_changes import Snapshot, affected, expired
from brokerd.ids import BrokerId
from brokerd.model import CONFIGURATION_SERVICE, Route
from brokerd.routing.classify import LocalBroker

MSDB, ONE, TWO = (BrokerId(bytes([n]) * 16) for n in (9, 1, 2))


def route(service: str | None = "urn:s", name: str = "r", **fields: Any) -> Route:
    given: dict[str, Any] = {"name": name, "service_name": service, "address": "tcp://a:1"}
    return Route(**(given | fields))


def snapshot(**changed: Any) -> Snapshot:
    given: dict[str, Any] = {
        "routes": {MSDB: frozenset(), ONE: frozenset(), TWO: frozenset()},
        "instance": MSDB,
        "hosts": {one: LocalBroker(one, str(one), frozenset({"urn:here"})) for one in (ONE, TWO)},
    }
    return Snapshot(**(given | changed))


def with_routes(holder: BrokerId, *routes: Route) -> Snapshot:
    before = snapshot()
    return snapshot(routes={**before.routes, holder: frozenset(routes)})


def concerned(after: Snapshot, before: Snapshot | None = None) -> set[tuple[int, str]]:
    found = affected(before or snapshot(), after)
    return {
        (one[0], service)
        for one in (ONE, TWO)
        for service in ("urn:s", "urn:t")
        if found.concerns(one, service)
    }


@pytest.mark.rule("XMT-11", "NBT-10")
def test_a_route_concerns_the_dialogs_of_its_broker_to_its_service() -> None:
    assert concerned(with_routes(ONE, route())) == {(1, "urn:s")}
    assert concerned(snapshot(), with_routes(ONE, route())) == {(1, "urn:s")}
    altered = with_routes(ONE, route(address="tcp://b:1"))
    assert concerned(altered, with_routes(ONE, route())) == {(1, "urn:s")}
    assert not affected(with_routes(ONE, route()), with_routes(ONE, route()))


@pytest.mark.rule("XMT-11")
def test_a_route_without_a_service_name_concerns_the_whole_broker() -> None:
    assert concerned(with_routes(TWO, route(None))) == {(2, "urn:s"), (2, "urn:t")}


@pytest.mark.rule("XMT-11", "RTE-11")
def test_the_route_to_the_dynamic_routing_service_concerns_the_whole_broker() -> None:
    """It comes before all routes without a name, and before local services."""
    asks = route(CONFIGURATION_SERVICE)
    assert concerned(with_routes(TWO, asks)) == {(2, "urn:s"), (2, "urn:t")}
    assert concerned(snapshot(), with_routes(TWO, asks)) == {(2, "urn:s"), (2, "urn:t")}
    assert len(concerned(with_routes(MSDB, asks))) == 4


@pytest.mark.rule("XMT-11", "RTE-41")
def test_a_route_of_the_instance_concerns_all_brokers() -> None:
    assert concerned(with_routes(MSDB, route())) == {(1, "urn:s"), (2, "urn:s")}
    assert len(concerned(with_routes(MSDB, route(None)))) == 4


@pytest.mark.rule("XMT-9")
def test_services_brokers_and_addresses() -> None:
    hosts = dict(snapshot().hosts)
    hosts[ONE] = LocalBroker(ONE, "1", frozenset({"urn:here", "urn:t"}))
    assert concerned(snapshot(hosts=hosts)) == {(1, "urn:t"), (2, "urn:t")}
    hosts[ONE] = LocalBroker(ONE, "1", frozenset({"urn:here"}), enabled=False)
    assert len(concerned(snapshot(hosts=hosts))) == 4


@pytest.mark.rule("XMT-11", "RTE-41", "RTE-42")
def test_own_addresses_and_forwarding_concern_what_is_routed_to_this_instance() -> None:
    """Only there the instance table, and whether forwarding is on, decides for own dialogs."""
    me = frozenset({"tcp://me:1"})
    routes = with_routes(ONE, route(address="TCP://me:1"), route("urn:t", "t")).routes
    before, after = snapshot(routes=routes), snapshot(routes=routes, own_addresses=me)
    assert concerned(after, before) == {(1, "urn:s")}
    assert concerned(before, after) == {(1, "urn:s")}
    assert concerned(snapshot(routes=routes, own_addresses=me, forwarding=True), after) == {
        (1, "urn:s")
    }
    assert concerned(snapshot(routes=routes, forwarding=True), before) == set()
    assert concerned(snapshot(own_addresses=me)) == set()

    mirrored = with_routes(TWO, route(broker_id=ONE, mirror="tcp://me:1")).routes
    after = snapshot(routes=mirrored, own_addresses=me)
    assert concerned(after, snapshot(routes=mirrored)) == {(2, "urn:s")}
    named = with_routes(ONE, route(None, address="transport")).routes
    after = snapshot(routes=named, own_addresses=me)
    assert concerned(after, snapshot(routes=named)) == {(1, "urn:s"), (1, "urn:t")}


@pytest.mark.rule("XMT-9")
def test_routes_that_expire() -> None:
    routing = with_routes(ONE, route(expires_at=Instant(100)), route("urn:t", "q"))
    assert not expired(routing, Instant(50), Instant(99))
    assert expired(routing, Instant(99), Instant(100)).concerns(ONE, "urn:s")
    assert not expired(routing, Instant(99), Instant(100)).concerns(ONE, "urn:t")
    assert not expired(routing, Instant(100), Instant(200))
