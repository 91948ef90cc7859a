"""Arbitration in every order in which two instances' bytes can cross (TRN-22 to TRN-27).

No socket: pipes whose deliveries the test orders, one by one, so that every order is walked.
"""

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest

from brokerd.clock import SystemClock
from brokerd.ids import BootId, InstanceId
from brokerd.protocol.connection_effects import Outcome
from brokerd.protocol.neighbour import Hello
from brokerd.telemetry.log import NullLog
from brokerd.transport.connection import PeerConnection
from brokerd.transport.options import TransportOptions
from brokerd.transport.peers import Peers


class Pipe(asyncio.Transport):
    """One end of a stream; what is written waits until the test delivers it."""

    def __init__(self, protocol: PeerConnection) -> None:
        super().__init__()
        self.protocol = protocol
        self.other: Pipe
        self.inbox: deque[bytes | None] = deque()
        self.closed = False

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def write(self, data):
        if not self.closed:
            self.other.inbox.append(bytes(data))

    def is_closing(self):
        return self.closed

    def close(self):
        if not self.closed:
            self.closed = True
            self.other.inbox.append(None)

    abort = close

    def deliver(self) -> None:
        data = self.inbox.popleft()
        if self.closed:
            return
        if data is None:
            self.protocol.eof_received()
            self.close()
        else:
            self.protocol.data_received(data)


class Side(NullLog):
    """One instance; keeps what its peers object says."""

    def __init__(self, number: int) -> None:
        self.ends: list[Outcome] = []
        self.switched = 0
        self.peers = Peers(
            hello=Hello(InstanceId(bytes([number]) * 16), BootId(bytes(16)), port=number),
            clock=SystemClock(),
            options=TransportOptions(),
            authorise=lambda one, peer: None,
            sink=self,
            log=self,
        )

    def debug(self, event, **fields):
        pass

    info = warning = debug

    def on_online(self, connection):
        pass

    def on_received(self, connection, boxcar):
        pass

    def on_noticed(self, connection, notice):
        pass

    def on_writable(self, connection):
        pass

    def on_switched(self, old, new):
        self.switched += 1

    def on_ended(self, connection, end):
        self.ends.append(end.outcome)


class World:
    """Two sides and the streams between them."""

    def __init__(self, first: int, second: int) -> None:
        self.sides = [Side(first), Side(second)]
        self.pipes: list[Pipe] = []

    def open(self, opener: int) -> None:
        caller, accepter = self.sides[opener], self.sides[1 - opener]
        here = Pipe(caller.peers.make(f"tcp://{opener}/{len(self.pipes)}"))
        there = Pipe(accepter.peers.make(None))
        here.other, there.other = there, here
        self.pipes += [here, there]
        there.protocol.connection_made(there)
        here.protocol.connection_made(here)

    def ready(self) -> list[Pipe]:
        return [pipe for pipe in self.pipes if pipe.inbox]

    def online_streams(self) -> list[set[int]]:
        """For each side, which streams it holds ONLINE."""
        found = []
        for side in self.sides:
            online = set(map(id, side.peers.online.values()))
            held = {n // 2 for n, pipe in enumerate(self.pipes) if id(pipe.protocol) in online}
            found.append(held)
        return found


def every_order(first: int, second: int, openers: tuple[int, ...]) -> Iterator[World]:
    """All worlds that some order of deliveries leads to, each run to its end."""
    choices: list[int] = []
    while True:
        world = World(first, second)
        widths: list[int] = []
        for opener in openers:
            world.open(opener)
        while ready := world.ready():
            step = len(widths)
            if step == len(choices):
                choices.append(0)
            widths.append(len(ready))
            ready[choices[step]].deliver()
        yield world
        while choices and choices[-1] == widths[len(choices) - 1] - 1:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


@pytest.mark.rule("TRN-4", "TRN-24", "TRN-27")
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
async def test_both_sides_keep_the_same_one(first: int, second: int) -> None:
    runs = crossed = 0
    for world in every_order(first, second, (0, 1)):
        runs += 1
        crossed += any(side.switched for side in world.sides)
        here, there = world.online_streams()
        assert here == there
        assert len(here) == 1
        for side in world.sides:
            assert len(side.peers.connections) == 1
            assert set(side.ends) == {Outcome.ARBITRATION}
    assert runs > 100
    assert 0 < crossed < runs


@pytest.mark.rule("TRN-4", "TRN-23")
async def test_two_of_one_caller_leave_one() -> None:
    for world in every_order(1, 2, (0, 0)):
        here, there = world.online_streams()
        assert here == there
        assert len(here) == 1
        assert {*world.sides[0].ends, *world.sides[1].ends} == {Outcome.ARBITRATION}


@pytest.mark.rule("TRN-23")
@pytest.mark.parametrize("opener", [0, 1])
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
async def test_an_online_one_wins_over_any_new_one(first: int, second: int, opener: int) -> None:
    world = World(first, second)
    world.open(0)
    _run(world)
    world.open(opener)
    _run(world)
    assert world.online_streams() == [{0}, {0}]
    assert world.sides[0].ends == world.sides[1].ends == [Outcome.ARBITRATION]


@pytest.mark.rule("TRN-25")
@pytest.mark.parametrize("opener", [0, 1])
@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
async def test_a_stale_one_loses_after_its_ping(first: int, second: int, opener: int) -> None:
    world = World(first, second)
    world.open(0)
    _run(world)
    dead = world.pipes[:2]
    world.open(opener)
    while ready := [pipe for pipe in world.ready() if pipe not in dead]:
        ready[0].deliver()
    accepter = world.sides[1 - opener]
    old = dead[1 - opener].protocol
    assert world.online_streams() == [{0}, {0}]  # it waits for the ping to be answered
    deadline = old.machine.next_deadline()
    assert deadline is not None
    assert old.machine.timer_due(deadline - 0.01) == []
    old._do(old.machine.timer_due(deadline))
    assert accepter.ends == [Outcome.LOST]
    while ready := [pipe for pipe in world.ready() if pipe not in dead]:
        ready[0].deliver()
    assert world.online_streams() == [{1}, {1}]


@pytest.mark.rule("TRN-26")
async def test_reaching_oneself_closes() -> None:
    for world in every_order(1, 1, (0,)):
        assert world.online_streams() == [set(), set()]
        assert {*world.sides[0].ends} == {Outcome.SELF}


def _run(world: World) -> None:
    while ready := world.ready():
        ready[0].deliver()
