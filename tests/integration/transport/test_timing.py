"""Every figure of the transport, on virtual time, over a network that can be cut."""

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

import msgspec
import pytest

from brokerd.clock import Instant
from brokerd.protocol.backoff import SuppressMode
from brokerd.protocol.connection_effects import Refusal
from brokerd.protocol.frames import encode_item
from brokerd.protocol.neighbour import RejectReason
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop, run
from brokerd.testing.network import SimNetwork
from brokerd.transport.destination import DestinationState
from brokerd.transport.options import MOST_AT_ONCE, TransportOptions

from .conftest import Node, fragment

SPEC = TransportOptions(allow_plaintext=True)
WEST, EAST = "tcp://west:4022", "tcp://east:4022"
TICK = 10.0


class World:
    """Two nodes; the connect pass of both runs every ten seconds, from second 10 on."""

    def __init__(self, loop: VirtualLoop, options: TransportOptions) -> None:
        self.loop = loop
        self.net = SimNetwork(loop, Random(1))
        self.clock = SimClock(loop, utc_start=Instant(10**15))
        self.west = self.node(1, "west", options)
        self.east = self.node(2, "east", options)
        self.passes = True

    def node(self, number: int, name: str, options: TransportOptions) -> Node:
        return Node(
            number,
            options=options,
            listen=f"TCP://{name}:4022",
            network=self.net.for_node(name),
            clock=self.clock,
        )

    async def until(self, second: float) -> None:
        """Let time pass, with its ticks."""
        while (tick := (self.loop.time() // TICK + 1) * TICK) <= second:
            await self.clock.sleep_until(tick)
            self.west.transport.connect_pass()
            self.east.transport.connect_pass()
        await self.clock.sleep_until(second)


def play(script: Callable[[World], Awaitable[None]], options: TransportOptions = SPEC) -> None:
    async def main(loop: VirtualLoop, streams: object) -> None:
        world = World(loop, options)
        await world.west.transport.start()
        await script(world)
        await world.west.transport.stop()
        await world.east.transport.stop()

    run(main, seed=1, limit=10_000)


def reason(node: Node, address: str) -> str:
    return node.transport.status(address).reason


@pytest.mark.rule("TRN-16", "TRN-14", "CLK-5", "PER-9", "PER-11")
def test_a_failed_attempt_suppresses_for_a_minute() -> None:
    async def script(world: World) -> None:
        world.west.send(EAST, b"x")
        await world.until(9)
        (there,) = world.west.transport.known()
        assert (there.failures, reason(world.west, EAST)) == (1, "connect_failed")
        await world.east.transport.start()
        await world.until(59)
        assert there.attempts == 1
        await world.until(71)
        assert there.attempts == 2
        assert world.east.bodies() == [b"x"]

    play(script)


@pytest.mark.rule("TRN-19")
def test_an_accepted_connection_ends_suppression() -> None:
    async def script(world: World) -> None:
        world.west.send(EAST, b"x")
        await world.until(1)
        assert world.west.transport.status(EAST).state is DestinationState.SUPPRESSED
        await world.east.transport.start()
        world.east.send(WEST, b"y")
        await world.until(2)
        assert world.west.transport.status(EAST).state is DestinationState.ONLINE
        assert world.west.bodies() == [b"y"]
        assert world.east.bodies() == [b"x"]

    play(script)


@pytest.mark.rule("TRN-15", "CLK-5", "XMT-19", "PER-9", "PER-10")
def test_a_loss_suppresses_for_fifteen_seconds() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.west.send(EAST, b"1")
        await world.until(1)
        world.net.reset("west", "east")
        await world.until(2)
        assert reason(world.west, EAST) == "connection_lost"
        world.west.send(EAST, b"2")
        await world.until(19)
        (there,) = world.west.transport.known()
        assert there.attempts == 1
        await world.until(26)
        assert there.attempts == 2
        assert world.east.bodies() == [b"1", b"2"]

    play(script)


@pytest.mark.rule("TRN-14", "TRN-11")
@pytest.mark.parametrize("end", ["loss", "goodbye"])
def test_nobody_is_called_for_whom_nothing_waits(end: str) -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.west.send(EAST, b"1")
        await world.until(1)
        if end == "loss":
            world.net.reset("west", "east")
        else:
            await world.east.transport.stop()
            await world.east.transport.start()
        await world.until(200)
        (there,) = world.west.transport.known()
        assert (there.attempts, there.state) == (1, DestinationState.IDLE)

    play(script)


@pytest.mark.rule("TRN-30")
def test_a_silent_cut_is_noticed_thirty_seconds_after_sending() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.west.send(EAST, b"1")
        await world.until(1)
        world.east.send(WEST, b"answer")
        await world.until(100)
        assert world.west.changes == [(EAST, True)]
        world.net.cut("west", "east")
        world.west.send(EAST, b"2")
        await world.until(129.9)
        assert world.west.changes == [(EAST, True)]
        await world.until(130.1)
        assert world.west.changes == [(EAST, True), (EAST, False)]
        assert reason(world.west, EAST) == "connection_lost"

    play(script)


@pytest.mark.rule("TRN-9", "TRN-17")
def test_an_address_that_does_not_answer_fails_after_ten_seconds() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.net.cut("west", "east")
        world.west.send(EAST, b"1")
        await world.until(9.9)
        assert world.west.transport.status(EAST).state is DestinationState.CONNECTING
        await world.until(10.1)
        assert reason(world.west, EAST) == "connect_failed"

    play(script)


@pytest.mark.rule("TRN-9", "TRN-17", "XMT-19")
def test_a_login_that_stops_fails_after_ten_seconds() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        link = world.net.link("west", "east")
        link.conditions = msgspec.structs.replace(link.conditions, silent=1.0)
        world.west.send(EAST, b"1")
        await world.until(9)
        assert world.west.transport.status(EAST).state is DestinationState.CONNECTING
        await world.until(11)
        assert reason(world.west, EAST) == "handshake_failed"

    play(script)


@pytest.mark.rule("TRN-25")
def test_a_half_dead_connection_gives_way_after_five_seconds() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.west.send(EAST, b"1")
        await world.until(1)
        world.net.half_open("west", "east")  # east is not told
        await world.until(2)
        assert (EAST, False) in world.west.changes
        world.west.transport.retry(EAST)
        await world.until(6)
        assert world.west.transport.status(EAST).state is DestinationState.CONNECTING
        assert world.east.changes == []  # nobody there has named west yet
        await world.until(8)
        assert world.west.transport.status(EAST).state is DestinationState.ONLINE
        world.west.send(EAST, b"2")
        await world.until(9)
        assert world.east.bodies() == [b"1", b"2"]
        assert "closed" in world.east.log.subclasses()

    play(script)


@pytest.mark.rule("TRN-27", "TRN-24")
@pytest.mark.parametrize("later", [0.0, 0.001])
def test_what_waits_for_a_connection_that_loses_goes_over_the_other_in_order(later: float) -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        switched: list[str] = []
        for node in (world.west, world.east):
            transport = node.transport
            noting = partial(_note, switched, transport.on_switched)
            transport.on_switched = noting  # type: ignore[method-assign]
        there, back = ([b"%03d" % n + bytes(2000) for n in range(400)] for _ in range(2))
        world.west.send(EAST, *there[:200])
        await world.clock.sleep_until(world.loop.time() + later)
        world.east.send(WEST, *back[:200])
        await world.until(world.loop.time() + 1)
        assert (len(world.east.bodies()), len(world.west.bodies())) == (200, 200)
        world.west.send(EAST, *there[200:])
        world.east.send(WEST, *back[200:])
        await world.until(world.loop.time() + 1)
        assert (world.east.bodies(), world.west.bodies()) == (there, back)
        assert bool(switched) == (later == 0.0)
        for node in (world.west, world.east):
            assert len(node.transport.peers.connections) == 1

    play(script)


def _note(seen: list[str], go_on: Callable[..., None], *connections: object) -> None:
    seen.append("switched")
    go_on(*connections)


@pytest.mark.rule("TRN-13")
def test_one_attempt_at_a_time_whoever_asks_for_another() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.net.cut("west", "east")  # nobody answers
        for body in (b"1", b"2"):
            world.west.send(EAST, body)
        await world.until(1)
        world.west.transport.retry(EAST)
        world.west.transport.release([EAST])
        assert world.west.transport.connect_pass() == 0
        await world.until(9)
        (there,) = world.west.transport.known()
        assert there.attempts == len(world.west.transport.peers.connections) == 1

    play(script)


@pytest.mark.rule("TRN-21")
@pytest.mark.parametrize(("count", "spread"), [(10, False), (11, True), (30, True)])
def test_many_destinations_are_tried_over_two_seconds(count: int, spread: bool) -> None:
    async def script(world: World) -> None:
        names = [f"tcp://host{n}:4022" for n in range(count)]
        for name in names:
            world.west.send(name, b"x")
        await world.until(1)
        known = world.west.transport.known()
        assert [d.attempts for d in known] == [1] * count
        await world.until(60)
        tried = sum(d.attempts - 1 for d in known)
        assert tried == (0 if spread else count)
        await world.until(61)
        tried = sum(d.attempts - 1 for d in known)
        assert (0 < tried < count) == spread
        await world.until(62)
        assert [d.attempts for d in known] == [2] * count

    play(script)


@pytest.mark.rule("SEC-89", "TRN-21")
@pytest.mark.parametrize("count", [3, 30])
def test_connections_that_are_made_anew_do_not_wait_for_the_pass_and_are_spread(count: int) -> None:
    async def script(world: World) -> None:
        names = [f"tcp://host{n}:4022" for n in range(count)]
        transport = world.west.transport
        for name in names:
            world.west.send(name, b"x")
        await world.until(1)  # nobody is there
        known = transport.known()
        for one in known:
            one.release()
            transport._dialer.connect_again([one])  # as if each connection had ended for that
        assert sum(d.attempts for d in known) == count + min(count, MOST_AT_ONCE)
        await world.until(3.1)
        assert [d.attempts for d in known] == [2] * count

    play(script)


@pytest.mark.rule("TRN-28", "TRN-18", "TRN-12", "PER-15")
def test_an_idle_connection_closes_and_opens_again_at_once() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.west.send(EAST, b"1")
        await world.until(80)
        assert world.west.transport.close_idle() == 0
        await world.until(91)
        assert world.west.transport.close_idle() == 1
        await world.until(92)
        assert world.west.transport.status(EAST).state is DestinationState.IDLE
        world.west.send(EAST, b"2")
        await world.until(93)
        assert world.east.bodies() == [b"1", b"2"]

    play(script)


@pytest.mark.rule("TRN-34")
def test_one_that_logs_in_while_nothing_is_read_waits_too() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.east.transport.pause_receiving()
        world.west.send(EAST, b"1")
        await world.until(50)
        (connection,) = world.east.transport.peers.connections.values()
        assert connection.machine.is_online
        shown = [connection.is_receive_flow_controlled]
        assert world.east.bodies() == []
        world.east.transport.resume_receiving()
        await world.until(51)
        shown.append(connection.is_receive_flow_controlled)
        assert shown == [True, False]
        assert world.east.bodies() == [b"1"]

    play(script)


@pytest.mark.rule("TRN-1")
def test_the_transport_knows_neither_order_nor_acknowledgement() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        for sequence in (5, 3, 3, 2**40, 0):
            one = encode_item(fragment(sequence, b"%d" % sequence))
            world.west.waiting[EAST].append(one)
        world.west.transport.notify(EAST)
        await world.until(200)
        assert world.east.bodies() == [b"5", b"3", b"3", b"%d" % 2**40, b"0"]
        assert world.west.came == []  # nothing is acknowledged down here
        (there,) = world.west.transport.known()
        assert there.fragments_sent == 5  # nor sent again

    play(script)


@pytest.mark.rule("TRN-18")
def test_an_orderly_close_suppresses_where_that_is_asked_for() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.west.send(EAST, b"1")
        await world.until(1)
        await world.east.transport.stop()
        await world.east.transport.start()
        world.west.send(EAST, b"2")
        await world.until(15)
        assert world.east.bodies() == [b"1"]
        await world.until(25)
        assert world.east.bodies() == [b"1", b"2"]

    play(script, msgspec.structs.replace(SPEC, suppress_after_goodbye=True))


@pytest.mark.rule("NBT-9", "TRN-14")
def test_suppression_that_grows_is_short_after_a_blip() -> None:
    async def script(world: World) -> None:
        world.passes = False
        world.west.send(EAST, b"1")
        waits: list[float] = []
        (there,) = world.west.transport.known()
        for _ in range(8):
            before = there.attempts
            begun = world.loop.time()
            while there.attempts == before or there.failures < there.attempts:
                await world.clock.sleep_until(world.loop.time() + 0.25)
                world.west.transport.connect_pass()
            waits.append(world.loop.time() - begun)
        assert waits[:7] == pytest.approx([1, 2, 4, 8, 16, 32, 60], abs=0.6)

    play(script, msgspec.structs.replace(SPEC, suppress_mode=SuppressMode.BACKOFF))


@pytest.mark.rule("NBT-20", "END-4", "TRN-17")
@pytest.mark.parametrize("reason", [one.value for one in RejectReason])
def test_every_reason_of_a_refusal_is_shown_to_the_caller(reason: str) -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        transport = world.east.transport
        transport.peers._authorise = lambda _one, _peer: Refusal(RejectReason(reason))
        world.west.send(EAST, b"1")
        await world.until(1)
        status = world.west.transport.status(EAST)
        assert f"{reason} in phase wait_validation" in status.detail
        keys = {"not_authenticated": "auth_failed", "not_authorised": "refused"}
        assert status.reason == keys.get(reason, "handshake_failed")
        assert (status.state, status.failures) == (DestinationState.SUPPRESSED, 1)
        await world.until(59)
        assert world.west.transport.status(EAST).failures == 1
        assert world.east.bodies() == []

    play(script)


@pytest.mark.rule("SEC-10", "XMT-19")
def test_plain_text_to_another_machine_must_be_allowed() -> None:
    async def script(world: World) -> None:
        await world.east.transport.start()
        world.west.send(EAST, b"1")
        await world.until(1)
        assert reason(world.west, EAST) == "auth_failed"
        assert world.east.bodies() == []

    play(script, TransportOptions())
