"""Whose turn it is on the wire: levels, round robin, stalled peers (TRN-36 to TRN-41)."""

from random import Random

import pytest

from brokerd.client.session import Session, connect
from brokerd.ids import SeededIds
from brokerd.protocol.frames import Fragment
from brokerd.testing.rig import Rig, RigClock, RigInstance
from brokerd.transport.options import TransportOptions
from tests.integration.network.conftest import (
    Arrivals,
    Pair,
    address_of,
    only,
    open_to,
    ready,
    talk,
)

LEVELS = {"slow": 1, "usual": 5, "fast": 10}


async def with_levels(one: RigInstance, *, honored: bool) -> None:
    """Services of one whose dialogs have these levels."""
    for name, level in LEVELS.items():
        await one.session.create("service", name, queue="one_q")
        await one.session.create("priority", name, local_service=name, level=level)
    if honored:
        await one.session.alter("broker", "main", honor_priority="on")


@pytest.mark.rule("TRN-37", "TRN-38", "TRN-39", "MON-12")
@pytest.mark.parametrize("honored", [True, False])
async def test_the_highest_level_leaves_first_where_it_is_honored(
    brokerd_pair: Pair, brokerd_clock: RigClock, honored: bool
) -> None:
    one, two = brokerd_pair
    await with_levels(one, honored=honored)
    names = ["slow", "fast", "usual"]
    handles = {name: await open_to(one, two, name) for name in names}
    await one.session.admin.alter_endpoint(state="stopped")
    for name in names:
        await one.session.send(handles[name], name.encode())
        await one.session.send(handles[name], name.encode() + b" again")
    shown = {row["from_service_name"]: row["priority"] for row in await queued(one)}
    assert shown == LEVELS  # honoured or not (TRN-38)
    came = Arrivals(two)
    await one.session.admin.alter_endpoint(state="started")
    await brokerd_clock.advance(1)
    order = [b"fast", b"usual", b"slow"] if honored else [b"slow", b"fast", b"usual"]
    assert came.bodies() == [body for one in order for body in (one, one + b" again")]
    counters = await only(one, "transport_counters")
    at_level = [counters[f"fragment_p{level}_sends_total"] for level in (1, 5, 10)]
    assert at_level == ([2, 2, 2] if honored else [0, 6, 0])
    # The level is each side's own, and not on the wire.
    theirs = await two.session.view("conversation_endpoints")
    assert {row["priority"] for row in theirs} == {5}
    assert "priority" not in Fragment.__struct_fields__


async def session_of(one: RigInstance, broker: str) -> Session:
    """A session in another broker of the instance."""
    clock, rng = one.instance.surroundings.clock, Random(1)
    return await connect(
        broker=broker, connector=one._connector, clock=clock, ids=SeededIds(rng), rng=rng
    )


@pytest.mark.rule("TRN-38", "TRN-39", "OBJ-59")
async def test_levels_are_compared_over_all_brokers_of_an_instance(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    """Each broker's own option says whether its levels count."""
    one, two = brokerd_pair
    await with_levels(one, honored=True)
    to_two = {"name": "two", "service": "two", "address": "TCP://two:4022"}
    for name, honored in (("east", "on"), ("west", "off")):
        broker = {
            "name": name,
            "honor_priority": honored,
            "queue": [{"name": "q"}],
            "service": [{"name": f"{name}_{level}", "queue": "q"} for level in LEVELS],
            "priority": [
                {"name": word, "local_service": f"{name}_{word}", "level": level}
                for word, level in LEVELS.items()
            ],
            "route": [to_two],
        }
        await one.session.apply({"broker": [broker]})
    await two.session.alter("service", "two", contracts=["DEFAULT"])
    await one.session.admin.alter_endpoint(state="stopped")
    for name in ("west", "main", "east"):
        session = one.session if name == "main" else await session_of(one, name)
        for level in LEVELS:
            service = level if name == "main" else f"{name}_{level}"
            handle = await session.begin_dialog(service, "two", encryption=False)
            await session.send(handle, f"{name} {level}".encode())
        if name != "main":
            await session.close()
    came = Arrivals(two)
    await one.session.admin.alter_endpoint(state="started")
    await brokerd_clock.advance(1)
    bodies = [body.decode() for body in came.bodies()]
    assert set(bodies[:2]) == {"main fast", "east fast"}
    assert set(bodies[2:7]) == {
        "main usual", "east usual", "west slow", "west usual", "west fast"
    }  # fmt: skip
    assert set(bodies[7:]) == {"main slow", "east slow"}


async def queued(one: RigInstance) -> list[dict[str, object]]:
    return [dict(row) for row in await one.session.view("transmission_queue")]


@pytest.mark.rule("TRN-40", "TRN-31")
async def test_a_small_message_passes_between_the_fragments_of_a_large_one(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    large, small = await open_to(one, two), await open_to(one, two)
    await one.session.admin.alter_endpoint(state="stopped")
    await one.session.send(large, b"L" * (5 * 32 * 1024))
    for n in range(3):
        await one.session.send(small, b"%d" % n)
    came = Arrivals(two)
    await one.session.admin.alter_endpoint(state="started")
    await brokerd_clock.advance(1)
    turns = [b"L" if body[:1] == b"L" else body for body in came.bodies()]
    assert turns == [b"L", b"0", b"1", b"2", b"L", b"L", b"L", b"L"]


@pytest.mark.rule("TRN-40")
async def test_a_turn_of_small_messages_is_bounded_too(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    first, second = await open_to(one, two), await open_to(one, two)
    await one.session.admin.alter_endpoint(state="stopped")
    for handle, name in ((first, b"a"), (second, b"b")):
        for _ in range(40):
            await one.session.send(handle, name * 4096)
    came = Arrivals(two)
    await one.session.admin.alter_endpoint(state="started")
    await brokerd_clock.advance(1)
    names = b"".join(body[:1] for body in came.bodies())
    assert len(names) == 80
    shared = names[: names.rindex(b"a") + 1]  # then the other one has the rest for itself
    turns = shared.replace(b"ab", b"a b").replace(b"ba", b"b a").split()
    assert max(map(len, turns)) * 4096 == 32 * 1024


@pytest.mark.rule("TRN-41", "TRN-36")
async def test_what_waits_for_another_peer_holds_nobody_up(
    brokerd_rig: Rig, brokerd_clock: RigClock
) -> None:
    one, two, three = await brokerd_rig.add("one", "two", "three")
    await with_levels(one, honored=True)
    brokerd_rig.network.cut("one", "two")
    await one.session.send(await open_to(one, two, "fast"), b"high")
    await one.session.send(await open_to(one, three, "slow"), b"low")
    await brokerd_clock.advance(1)
    assert ready(three) == 1
    assert ready(two) == 0


@pytest.mark.rule("TRN-36", "TRN-34", "TRN-35", "MON-1")
async def test_a_peer_that_does_not_read_costs_little_memory_and_nobody_else(
    brokerd_rig: Rig, brokerd_clock: RigClock
) -> None:
    one, two, three = await brokerd_rig.add("one", "two", "three")
    blocked, other = await talk(one, two, b"hello"), await talk(one, three, b"hello")
    await brokerd_clock.advance(1)
    two.instance.parts.destinations.pause_receiving()
    for _ in range(16):
        await one.session.send(blocked, bytes(1024 * 1024))
    await brokerd_clock.advance(5)
    rows = {row["destinations"][0]: row for row in await one.session.view("connections")}
    stalled = rows[address_of("two")]
    assert (stalled["is_send_flow_controlled"], stalled["sends_posted"]) == (True, 1)
    assert rows[address_of("three")]["is_send_flow_controlled"] is False
    assert (await only(two, "connections"))["is_receive_flow_controlled"] is True
    options = TransportOptions()
    held = (await only(one, "transport_counters"))["current_bytes_for_send"]
    assert held <= options.send_mark + options.boxcar_bytes < options.destination_memory
    for n in range(100):
        await one.session.send(other, b"%d" % n)
    await brokerd_clock.advance(1)
    assert ready(three) == 101
    assert ready(two) == 1
    two.instance.parts.destinations.resume_receiving()
    await brokerd_clock.advance(30)
    assert ready(two) == 17
    assert (await only(two, "connections"))["is_receive_flow_controlled"] is False
