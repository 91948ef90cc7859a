"""The test vectors of the routing chapter, and what its rules say beside them."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import msgspec
import pytest

from brokerd.clock import Instant
from brokerd.ids import BrokerId
from brokerd.model import AUTO_CREATED_LOCAL, Route
from brokerd.routing.choice import Balancer, Choice
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
from brokerd.routing.mirror import Principal, nobody_known
from brokerd.routing.reasons import DropReason, Reason
from brokerd.routing.table import RoutingTable

NOW = Instant(1_000_000_000)
HOME = BrokerId(b"h" * 16)
OTHER = BrokerId(b"o" * 16)
FAR1 = BrokerId(b"1" * 16)
FAR2 = BrokerId(b"2" * 16)
X, Y, Z, OWN = (f"tcp://{name}:4022" for name in ("x", "y", "z", "own"))

AL = AUTO_CREATED_LOCAL
SX = Route("sx", "TCP://X:4022", "S")
WILD_X = Route("wild-x", X)
WILD_Y = Route("wild-y", Y)
S1X = Route("s1x", X, "S", FAR1)
S2Y = Route("s2y", Y, "S", FAR2)
S1Y = Route("s1y", Y, "S", FAR1)
S1X_OR_Y = Route("mirrored", X, "S", FAR1, mirror=Y)
EXPIRED = Route("sx", X, "S", expires_at=NOW)
S_OWN = Route("s-own", OWN, "S")
SZ = Route("sz", Z, "S")
TRANSPORT = Route("t", "transport")


def facts(*services: str, forwarding: bool = False, enabled: bool = True) -> InstanceFacts:
    """HOME holds the dialogs; OTHER has the services given."""
    return InstanceFacts(
        [
            LocalBroker(HOME, "home", frozenset()),
            LocalBroker(OTHER, "other", frozenset(services), enabled=enabled),
        ],
        own_addresses=[OWN],
        forwarding=forwarding,
    )


def own(
    *routes: Route,
    to: str = "S",
    broker_id: BrokerId | None = None,
    here: InstanceFacts | None = None,
    instance: tuple[Route, ...] = (AL,),
    previous: Choice | None = None,
    balancer: Balancer | None = None,
    principal: Principal = nobody_known,
) -> OutgoingDecision:
    return classify_outgoing(
        DialogKey(to, broker_id, HOME, from_initiator=True),
        Tables(RoutingTable(routes), RoutingTable(instance)),
        here or facts(),
        now=NOW,
        balancer=balancer or Balancer(rng=Random(1)),
        previous=previous,
        principal=principal,
    )


def arrival(
    *routes: Route,
    to: str = "S",
    broker_id: BrokerId | None = None,
    here: InstanceFacts | None = None,
    reply: bool = False,
    hops: int = 10,
    principal: Principal = nobody_known,
) -> Arriving:
    return classify_arriving(
        ArrivalKey(to, broker_id, from_initiator=not reply, hops=hops),
        RoutingTable(routes),
        here or facts(),
        now=NOW,
        balancer=Balancer(rng=Random(1)),
        principal=principal,
    )


def where(result: OutgoingDecision | Arriving) -> tuple[str, object]:
    """The kind of a result and its one figure, for the tables below."""
    match result:
        case Local(broker_id=broker_id):
            return "local", broker_id
        case Remote(address=address):
            return "remote", address
        case Delayed(reason=reason):
            return "delayed", reason
        case Dropped(reason=reason):
            return "dropped", reason


S_HERE = facts("S")
T_HERE = facts("T")
FORWARDING = facts(forwarding=True)
NO_SERVICE = Reason.LOCAL_SERVICE_MISSING


@pytest.mark.parametrize(
    ("classify", "expected"),
    [
        pytest.param(
            lambda: own(AL, here=S_HERE), ("local", OTHER), marks=pytest.mark.rule("RTE-V1")
        ),
        pytest.param(lambda: own(AL), ("delayed", NO_SERVICE), marks=pytest.mark.rule("RTE-V1")),
        pytest.param(
            lambda: arrival(AL), ("dropped", NO_SERVICE), marks=pytest.mark.rule("RTE-V1")
        ),
        pytest.param(
            lambda: own(AL, SX, here=S_HERE), ("remote", X), marks=pytest.mark.rule("RTE-V2")
        ),
        pytest.param(
            lambda: own(AL, SX, to="T", here=T_HERE),
            ("local", OTHER),
            marks=pytest.mark.rule("RTE-V2"),
        ),
        pytest.param(
            lambda: own(AL, WILD_X, here=S_HERE), ("local", OTHER), marks=pytest.mark.rule("RTE-V4")
        ),
        pytest.param(lambda: own(AL, WILD_X), ("remote", X), marks=pytest.mark.rule("RTE-V4")),
        pytest.param(
            lambda: own(AL, S1X, S2Y, broker_id=FAR2),
            ("remote", Y),
            marks=pytest.mark.rule("RTE-V5"),
        ),
        pytest.param(
            lambda: own(AL, instance=(AL, SX), here=FORWARDING),
            ("delayed", NO_SERVICE),
            marks=pytest.mark.rule("RTE-V6"),
        ),
        pytest.param(
            lambda: arrival(AL, SX, here=facts("S", forwarding=True)),
            ("remote", X),
            marks=pytest.mark.rule("RTE-V6"),
        ),
        pytest.param(
            lambda: arrival(AL, SX, here=S_HERE),
            ("dropped", Reason.FORWARDING_DISABLED),
            marks=[pytest.mark.rule("RTE-V6"), pytest.mark.rule("RTE-24")],
        ),
        pytest.param(
            lambda: arrival(AL, WILD_X, here=S_HERE),
            ("local", OTHER),
            marks=pytest.mark.rule("RTE-V7"),
        ),
        pytest.param(
            lambda: arrival(AL, WILD_X, here=FORWARDING),
            ("remote", X),
            marks=pytest.mark.rule("RTE-V7"),
        ),
        pytest.param(
            lambda: arrival(AL, WILD_X),
            ("dropped", Reason.FORWARDING_DISABLED),
            marks=pytest.mark.rule("RTE-V7"),
        ),
        pytest.param(
            lambda: own(S1X, broker_id=FAR2),
            ("delayed", Reason.NO_ROUTE),
            marks=[pytest.mark.rule("RTE-V8"), pytest.mark.rule("RTE-15")],
        ),
        pytest.param(
            lambda: own(SX, S1Y, broker_id=FAR1), ("remote", Y), marks=pytest.mark.rule("RTE-V9")
        ),
        pytest.param(lambda: own(SX, S1Y), ("remote", X), marks=pytest.mark.rule("RTE-V9")),
        pytest.param(
            lambda: arrival(broker_id=OTHER, reply=True),
            ("local", OTHER),
            marks=[pytest.mark.rule("RTE-V11"), pytest.mark.rule("RTE-7")],
        ),
        pytest.param(
            lambda: own(AL, EXPIRED, here=S_HERE),
            ("local", OTHER),
            marks=[pytest.mark.rule("RTE-V12"), pytest.mark.rule("RTE-3")],
        ),
        pytest.param(
            lambda: own(S_OWN, instance=(SZ,), here=FORWARDING),
            ("remote", Z),
            marks=[pytest.mark.rule("RTE-V13"), pytest.mark.rule("RTE-41")],
        ),
        pytest.param(
            lambda: own(S_OWN, instance=(SZ,)),
            ("delayed", Reason.FORWARDING_DISABLED),
            marks=pytest.mark.rule("RTE-V13"),
        ),
        pytest.param(lambda: own(SX, WILD_Y), ("remote", X), marks=pytest.mark.rule("RTE-V15")),
        pytest.param(
            lambda: own(AL, S1X_OR_Y, broker_id=FAR1),
            ("delayed", Reason.MIRROR_INITIALISING),
            marks=[pytest.mark.rule("RTE-V3"), pytest.mark.rule("RTE-51")],
        ),
        pytest.param(
            lambda: own(AL, S1X_OR_Y, broker_id=FAR1, principal=lambda pair: pair.mirror),
            ("remote", Y),
            marks=[pytest.mark.rule("RTE-V3"), pytest.mark.rule("RTE-52")],
        ),
        pytest.param(
            lambda: own(
                S1X_OR_Y,
                Route("here", "LOCAL", "S", FAR1),
                S1X,
                broker_id=FAR1,
                here=facts("S"),
                principal=lambda pair: pair.mirror,
            ),
            ("remote", Y),
            marks=[pytest.mark.rule("RTE-V14"), pytest.mark.rule("RTE-19")],
        ),
    ],
)
def test_vectors(
    classify: Callable[[], OutgoingDecision | Arriving], expected: tuple[str, object]
) -> None:
    assert where(classify()) == expected


@pytest.mark.rule("RTE-V5")
@pytest.mark.rule("RTE-10")
@pytest.mark.rule("RTE-25")
def test_ids_are_picked_in_turn_from_a_random_start() -> None:
    starts = set()
    for seed in range(8):
        balancer = Balancer(rng=Random(seed))
        results = [where(own(AL, S1X, S2Y, balancer=balancer))[1] for _ in range(4)]
        assert results in ([X, Y, X, Y], [Y, X, Y, X])
        starts.add(results[0])
    assert starts == {X, Y}


@pytest.mark.rule("RTE-25")
def test_each_broker_and_each_service_has_turns_of_its_own() -> None:
    balancer = Balancer(rng=Random(2))
    routes = [Route(f"{name}{host}", host, name) for name in ("S", "T") for host in (X, Y)]
    here = InstanceFacts([LocalBroker(one, str(one), frozenset()) for one in (HOME, OTHER)])
    seen: dict[tuple[bytes, str], list[object]] = {}
    for _ in range(4):
        for home in (HOME, OTHER):
            for name in ("S", "T"):
                key = DialogKey(name, None, home, from_initiator=True)
                tables = Tables(RoutingTable(routes), None)
                sent = classify_outgoing(key, tables, here, now=NOW, balancer=balancer)
                seen.setdefault((home, name), []).append(where(sent)[1])
    assert all(one in ([X, Y, X, Y], [Y, X, Y, X]) for one in seen.values()), seen


@pytest.mark.rule("RTE-25")
def test_two_ids_with_two_routes_each_use_all_four() -> None:
    balancer = Balancer(rng=Random(3))
    routes = [
        Route(f"{host}{n}", f"tcp://{host}:{n}", "S", broker_id)
        for host, broker_id in (("a", FAR1), ("b", FAR2))
        for n in (1, 2)
    ]
    seen = [where(own(*routes, balancer=balancer))[1] for _ in range(8)]
    assert {seen.count(address) for address in set(seen)} == {2}
    assert len(set(seen)) == 4


@pytest.mark.rule("RTE-25")
def test_at_random_draws_each_time() -> None:
    balancer = Balancer(rng=Random(5), at_random=True)
    seen = [where(own(S1X, S2Y, balancer=balancer))[1] for _ in range(40)]
    assert set(seen) == {X, Y}
    assert any(one == two for one, two in pairwise(seen))


@pytest.mark.rule("RTE-26")
@pytest.mark.rule("RTE-29")
def test_a_dialog_keeps_its_choice_while_the_route_matches() -> None:
    balancer = Balancer(rng=Random(1))
    first = own(S1X, S2Y, balancer=balancer)
    assert isinstance(first, Remote)
    assert first.ambiguous
    for _ in range(5):
        assert own(S1X, S2Y, balancer=balancer, previous=first.choice) == first
    only_other = S2Y if first.address == X else S1X
    moved = own(only_other, balancer=balancer, previous=first.choice)
    assert where(moved)[1] != first.address


@pytest.mark.rule("RTE-29")
def test_a_choice_follows_its_route_to_a_new_address() -> None:
    chosen = Choice("s1x", X, FAR1)
    moved = Route("s1x", "tcp://x2:4022", "S", FAR1)
    for seed in range(4):
        result = own(moved, S2Y, previous=chosen, balancer=Balancer(rng=Random(seed)))
        assert where(result) == ("remote", "tcp://x2:4022")


@pytest.mark.rule("RTE-29")
def test_a_better_matching_route_ends_an_earlier_choice() -> None:
    chosen = own(WILD_X)
    assert isinstance(chosen, Remote)
    assert where(own(WILD_X, S2Y, previous=chosen.choice)) == ("remote", Y)


@pytest.mark.rule("RTE-29")
@pytest.mark.parametrize("start", range(4))
def test_a_choice_ends_when_its_route_expires(start: int) -> None:
    ends = Route("s1x", X, "S", FAR1, expires_at=NOW)
    balancer = Balancer(rng=Random(start))
    chosen = Choice("s1x", X, FAR1)
    assert where(own(ends, S2Y, previous=chosen, balancer=balancer)) == ("remote", Y)


@pytest.mark.rule("RTE-29")
@pytest.mark.parametrize("start", range(4))
def test_a_bound_dialog_keeps_its_choice_among_routes_without_an_id(start: int) -> None:
    for chosen in (Choice("sx", X), Choice("sz", Z)):
        for _ in range(3):
            balancer = Balancer(rng=Random(start))
            kept = own(SX, SZ, broker_id=FAR1, previous=chosen, balancer=balancer)
            assert where(kept) == ("remote", chosen.address)


@pytest.mark.rule("RTE-29")
def test_a_kept_local_choice_waits_for_its_service() -> None:
    chosen = own(AL, WILD_X, here=S_HERE)
    assert isinstance(chosen, Local)
    assert where(own(AL, WILD_X, previous=chosen.choice)) == ("delayed", NO_SERVICE)


@pytest.mark.rule("RTE-18")
def test_identical_routes_count_as_one() -> None:
    twin = Route("sx-again", "tcp://x:4022/", "S")
    result = own(SX, twin)
    assert isinstance(result, Remote)
    assert not result.ambiguous
    assert result.route == "sx"
    assert where(own(Route("sx", X, "S", expires_at=NOW), twin)) == ("remote", X)


@pytest.mark.rule("RTE-14")
def test_step_6_finds_a_service_here_when_an_id_is_given() -> None:
    result = own(broker_id=OTHER, here=S_HERE)
    assert where(result) == ("local", OTHER)
    assert isinstance(result, Local)
    assert result.step == 6
    assert where(own(here=S_HERE)) == ("delayed", Reason.NO_ROUTE)


@pytest.mark.rule("RTE-31")
def test_a_given_id_admits_that_broker_only() -> None:
    assert where(own(AL, broker_id=HOME, here=S_HERE)) == ("local", HOME)
    assert where(own(AL, broker_id=FAR1, here=S_HERE)) == ("delayed", Reason.BROKER_NOT_HERE)
    assert where(own(AL, WILD_X, broker_id=FAR1, here=S_HERE)) == ("remote", X)
    by_route = Route("s-other", "LOCAL", "S", OTHER)
    assert where(own(by_route, here=S_HERE)) == ("local", OTHER)


@pytest.mark.rule("RTE-32")
def test_the_order_in_which_brokers_are_searched() -> None:
    brokers = [LocalBroker(BrokerId(name.encode() * 16), name, frozenset({"S"})) for name in "cab"]
    here = InstanceFacts(brokers)
    a, b, c = (BrokerId(name * 16) for name in (b"a", b"b", b"c"))
    assert here.locate("S", None) == a
    assert here.locate("S", None, first=(c,)) == c
    assert here.locate("S", None, first=(b, c)) == b
    assert here.locate("S", None, first=(FAR1,)) == a
    tables = Tables(RoutingTable([AL]), None)
    balancer = Balancer(rng=Random(1))
    home = DialogKey("S", None, c, from_initiator=True)
    assert where(classify_outgoing(home, tables, here, now=NOW, balancer=balancer))[1] == c
    held = DialogKey("S", None, c, from_initiator=True, holder=b)
    assert where(classify_outgoing(held, tables, here, now=NOW, balancer=balancer))[1] == b


@pytest.mark.rule("RTE-33")
def test_disabled_brokers_are_not_searched() -> None:
    off = facts("S", enabled=False)
    assert where(own(AL, here=off)) == ("delayed", NO_SERVICE)
    assert where(own(broker_id=OTHER, here=off)) == ("delayed", Reason.NO_ROUTE)
    reply = arrival(AL, WILD_X, broker_id=OTHER, reply=True, here=off)
    assert where(reply) == ("dropped", DropReason.BROKER_DISABLED)


@pytest.mark.rule("RTE-34")
def test_an_enabled_broker_hides_a_disabled_one_of_the_same_id() -> None:
    here = InstanceFacts(
        [
            LocalBroker(OTHER, "original", frozenset({"S"})),
            LocalBroker(OTHER, "copy", frozenset({"S"}), enabled=False),
        ]
    )
    assert where(arrival(broker_id=OTHER, reply=True, here=here)) == ("local", OTHER)
    assert not here.disabled(OTHER)


@pytest.mark.rule("MAN-6")
def test_a_broker_answers_for_the_identifiers_it_had() -> None:
    old = BrokerId(b"p" * 16)
    here = InstanceFacts(
        [
            LocalBroker(HOME, "home", frozenset()),
            LocalBroker(OTHER, "other", frozenset({"S"}), former=frozenset({old})),
        ]
    )
    assert where(arrival(broker_id=old, reply=True, here=here)) == ("local", OTHER)
    assert where(arrival(AL, broker_id=old, here=here)) == ("local", OTHER)
    assert where(own(AL, broker_id=old, here=here)) == ("local", OTHER)
    assert not here.enabled(old)


@pytest.mark.rule("RTE-7")
def test_only_a_reply_goes_past_the_table() -> None:
    first_message = arrival(broker_id=OTHER, here=facts("T"))
    assert where(first_message) == ("dropped", Reason.NO_ROUTE)
    elsewhere = arrival(SX, broker_id=FAR1, reply=True, here=FORWARDING)
    assert where(elsewhere) == ("remote", X)


@pytest.mark.rule("RTE-7")
def test_a_reply_that_names_no_broker_is_matched_like_anything_else() -> None:
    assert where(arrival(reply=True, here=S_HERE)) == ("dropped", Reason.NO_ROUTE)
    assert where(arrival(AL, reply=True, here=S_HERE)) == ("local", OTHER)


@pytest.mark.rule("RTE-1")
@pytest.mark.rule("RTE-2")
def test_neither_table_stands_in_for_the_other() -> None:
    assert where(own(instance=(AL, SX), here=S_HERE)) == ("delayed", Reason.NO_ROUTE)


@pytest.mark.rule("RTE-22")
@pytest.mark.rule("RTE-62")
def test_transport_ranks_lowest_and_reads_the_name() -> None:
    name = "TCP://Far:5000/Orders"
    assert where(own(TRANSPORT, to=name)) == ("remote", "tcp://far:5000")
    assert where(own(TRANSPORT, WILD_X, to=name)) == ("remote", X)
    assert where(own(TRANSPORT, to="Orders")) == ("delayed", Reason.INVALID_ADDRESS)


@pytest.mark.rule("XMT-19")
def test_a_route_without_a_usable_address_delays() -> None:
    broken = Route("broken", "TCP://x:99999", "S")
    result = own(broken)
    assert where(result) == ("delayed", Reason.INVALID_ADDRESS)
    assert isinstance(result, Delayed)
    assert "broken" in result.detail


@pytest.mark.rule("FWD-1", "RTE-52", "RTE-54", "RTE-62")
def test_what_arrives_leaves_by_mirrored_and_transport_routes_too() -> None:
    mirrored = arrival(S1X_OR_Y, AL, here=FORWARDING, principal=lambda pair: pair.mirror)
    assert where(mirrored) == ("remote", Y)
    waits = arrival(S1X_OR_Y, AL, here=FORWARDING)
    assert where(waits) == ("dropped", Reason.MIRROR_INITIALISING)
    named = arrival(TRANSPORT, to="TCP://Far:5000/Orders", here=FORWARDING)
    assert where(named) == ("remote", "tcp://far:5000")
    unnamed = arrival(TRANSPORT, to="Orders", here=FORWARDING)
    assert where(unnamed) == ("dropped", Reason.INVALID_ADDRESS)


@pytest.mark.rule("RTE-24")
@pytest.mark.parametrize("route", [SX, S1X_OR_Y, TRANSPORT])
def test_nothing_leaves_again_where_forwarding_is_off(route: Route) -> None:
    name = "tcp://far:5000" if route is TRANSPORT else "S"
    result = arrival(route, to=name, principal=lambda pair: pair.address)
    assert where(result) == ("dropped", Reason.FORWARDING_DISABLED)


@pytest.mark.rule("FWD-6")
@pytest.mark.parametrize(
    ("hops", "expected"),
    [(0, ("dropped", DropReason.HOPS_EXHAUSTED)), (1, ("remote", X)), (10, ("remote", X))],
)
def test_forwarding_needs_a_hop(hops: int, expected: tuple[str, object]) -> None:
    result = arrival(SX, here=FORWARDING, hops=hops)
    assert where(result) == expected
    assert not isinstance(result, Remote) or result.hops_used == 1


@pytest.mark.rule("RTE-43")
def test_a_table_that_points_at_itself_ends_in_a_hop_drop() -> None:
    for hops in (10, 2**31):
        result = arrival(S_OWN, here=FORWARDING, hops=hops)
        assert where(result) == ("dropped", DropReason.HOPS_EXHAUSTED)
    looped = own(S_OWN, instance=(S_OWN,), here=FORWARDING)
    assert where(looped) == ("delayed", DropReason.HOPS_EXHAUSTED)


@pytest.mark.rule("RTE-43")
def test_turning_round_costs_a_hop_and_entering_costs_none() -> None:
    own_then_z = own(S_OWN, instance=(SZ,), here=FORWARDING)
    assert isinstance(own_then_z, Remote)
    assert own_then_z.hops_used == 1
    here = facts("S", forwarding=False)
    assert where(own(S_OWN, instance=(AL,), here=here)) == ("local", OTHER)
    balancer = Balancer(rng=Random(1))
    spins = {
        result.hops_used
        for _ in range(4)
        if isinstance(
            result := classify_arriving(
                ArrivalKey("S", None, from_initiator=True),
                RoutingTable([S_OWN, SZ]),
                FORWARDING,
                now=NOW,
                balancer=balancer,
            ),
            Remote,
        )
    }
    assert 2 in spins


@pytest.mark.rule("XMT-13")
@pytest.mark.rule("XMT-14")
def test_what_cannot_be_routed_now() -> None:
    key = DialogKey("S", None, HOME, from_initiator=True)
    balancer = Balancer(rng=Random(1))
    replaced = Tables(None, RoutingTable([AL]))
    result = classify_outgoing(key, replaced, S_HERE, now=NOW, balancer=balancer)
    assert where(result) == ("delayed", Reason.ROUTING_UPDATING)
    off = DialogKey("S", None, FAR1, from_initiator=True)
    result = classify_outgoing(off, replaced, S_HERE, now=NOW, balancer=balancer)
    assert where(result) == ("delayed", Reason.SENDER_DISABLED)
    arriving = classify_arriving(
        ArrivalKey("S", None, from_initiator=True), None, S_HERE, now=NOW, balancer=balancer
    )
    assert where(arriving) == ("dropped", Reason.INSTANCE_ROUTES_UNAVAILABLE)


@pytest.mark.rule("NBT-19")
@pytest.mark.parametrize("routes", [(), (AL,)])
def test_a_name_that_differs_by_case_or_blanks_is_told(routes: tuple[Route, ...]) -> None:
    near = Route("near", X, "svc/a")
    result = own(*routes, near, to="Svc/ a")
    assert isinstance(result, Delayed)
    assert result.detail == "there is a route to 'svc/a', which differs by case or blanks only"
    other = own(*routes, near, to="svc/b")
    assert isinstance(other, Delayed)
    assert other.detail == ""
    expired = own(*routes, msgspec.structs.replace(near, expires_at=NOW), to="Svc/ a")
    assert isinstance(expired, Delayed)
    assert expired.detail == ""
