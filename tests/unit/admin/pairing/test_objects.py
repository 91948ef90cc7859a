"""Routes and bindings that a pairing makes, and those that it leaves alone."""

import pytest

from brokerd.admin.pairing.objects import PeerServices, restored, with_peer
from brokerd.ids import BrokerId, QueueKey, ServiceKey
from brokerd.model import AUTO_CREATED_LOCAL, Queue, Route, Service
from brokerd.objects.declared import Declared
from brokerd.security.bindings import Binding

WEST = PeerServices(
    principal="peer:west",
    address="tcp://10.0.0.8:4022",
    services=("orders", "invoices"),
    is_secured=True,
)
HAVE = Declared(
    queues={"q": Queue(key=QueueKey(1), name="q")},
    services={"shop": Service(ServiceKey(1), "shop", "q")},
    routes={AUTO_CREATED_LOCAL.name: AUTO_CREATED_LOCAL},
)


def peer(**changed: object) -> PeerServices:
    fields = {name: getattr(WEST, name) for name in WEST.__struct_fields__}
    return PeerServices(**{**fields, **changed})


@pytest.mark.rule("SEC-61")
def test_each_service_of_the_other_gets_a_route_and_a_binding() -> None:
    made, left_out = with_peer(HAVE, WEST)
    assert left_out == {}
    assert list(made.routes.values()) == [
        AUTO_CREATED_LOCAL,
        Route("west/orders", "tcp://10.0.0.8:4022", "orders"),
        Route("west/invoices", "tcp://10.0.0.8:4022", "invoices"),
    ]
    assert list(made.remote_service_bindings.values()) == [
        Binding("west/orders", "orders", "peer:west"),
        Binding("west/invoices", "invoices", "peer:west"),
    ]
    assert with_peer(made, WEST) == (made, {})


@pytest.mark.rule("SEC-61")
def test_without_a_dialog_certificate_there_is_no_binding() -> None:
    made, left_out = with_peer(HAVE, peer(is_secured=False))
    assert (len(made.routes), made.remote_service_bindings, left_out) == (3, {}, {})


ELSEWHERE = Route("mine", "tcp://10.0.0.9:4022", "orders")
PINNED = Route("mine", WEST.address, "orders", BrokerId(b"b" * 16))


@pytest.mark.rule("SEC-61")
@pytest.mark.parametrize(
    ("have", "why"),
    [
        ({"services": {"orders": Service(ServiceKey(2), "orders", "q")}}, "dialogs stay here"),
        ({"routes": {"mine": ELSEWHERE}}, "route 'mine' leads to tcp://10.0.0.9:4022"),
        ({"routes": {"mine": PINNED}}, "route 'mine'"),
        (
            {"remote_service_bindings": {"mine": Binding("mine", "orders", "peer:north")}},
            "binding 'mine' is for peer:north",
        ),
        ({"routes": {"west/orders": Route("west/orders", "LOCAL", "x")}}, "is called"),
        (
            {"remote_service_bindings": {"west/orders": Binding("west/orders", "x", "peer:west")}},
            "is called",
        ),
    ],
    ids=["service", "route", "pinned", "binding", "route name", "binding name"],
)
def test_what_was_here_is_left_alone_and_named(have: dict[str, object], why: str) -> None:
    before = Declared(**{"services": HAVE.services, **have})  # type: ignore[arg-type]
    made, left_out = with_peer(before, WEST)
    assert list(left_out) == ["orders"]
    assert why in left_out["orders"]
    assert "west/invoices" in made.routes
    for kind in ("services", "routes", "remote_service_bindings"):
        kept = getattr(before, kind)
        assert {name: getattr(made, kind)[name] for name in kept} == kept


@pytest.mark.rule("SEC-61")
def test_a_route_that_leads_there_already_is_used() -> None:
    there = {"mine": Route("mine", WEST.address, "orders")}
    made, left_out = with_peer(Declared(routes=there), WEST)
    assert left_out == {}
    assert set(made.routes) == {"mine", "west/invoices"}
    assert set(made.remote_service_bindings) == {"west/orders", "west/invoices"}


@pytest.mark.rule("SEC-61")
def test_pairing_again_moves_routes_and_drops_those_of_services_that_are_gone() -> None:
    first, _ = with_peer(HAVE, WEST)
    moved = peer(address="tcp://10.0.0.88:4022", services=("orders",))
    made, left_out = with_peer(first, moved)
    assert left_out == {}
    assert made.routes["west/orders"].address == "tcp://10.0.0.88:4022"
    assert set(made.routes) == {AUTO_CREATED_LOCAL.name, "west/orders"}
    assert set(made.remote_service_bindings) == {"west/orders"}


@pytest.mark.rule("SEC-62")
def test_what_a_pairing_made_is_undone_and_nothing_else() -> None:
    first, _ = with_peer(HAVE, WEST)
    again, _ = with_peer(first, peer(address="tcp://10.0.0.88:4022", services=("orders",)))
    other = {"n": Route("n", "tcp://n:1", "n")}
    now = Declared(routes={**again.routes, **other}, services=HAVE.services)
    undone = restored(first, now, WEST)
    assert undone.routes == {**first.routes, **other}
    assert undone.remote_service_bindings == first.remote_service_bindings
    assert restored(HAVE, first, WEST) == HAVE
