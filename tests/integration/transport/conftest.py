"""Two or more instances' transports in one process, over real TCP on this machine."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
import uvloop

from brokerd.clock import Clock, Instant, SystemClock
from brokerd.ids import BootId, BrokerId, ConversationId, Incarnation, InstanceId, MessageId
from brokerd.protocol.frames import Fragment, Hop, encode_item
from brokerd.protocol.neighbour import Advice, Hello
from brokerd.telemetry.log import NullLog
from brokerd.transport.destinations import Destinations
from brokerd.transport.login_guard import LoginGuard
from brokerd.transport.meeting import Arrival
from brokerd.transport.network import Network, SystemNetwork
from brokerd.transport.options import TransportOptions

QUICK = TransportOptions(drain=timedelta(seconds=1))


def pytest_asyncio_loop_factories(config, item):
    """Every test runs on both event loops; production uses uvloop."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class SkippingClock(SystemClock):
    """The machine's clock, but a test may skip seconds of it."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


class Events(NullLog):
    """A log that keeps what it is told."""

    def __init__(self, moved: asyncio.Event) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self._moved = moved

    def debug(self, event, **fields):
        self.lines.append((event, fields))
        self._moved.set()

    info = warning = debug

    def subclasses(self) -> list[str]:
        return [fields["subclass"] for _, fields in self.lines if "subclass" in fields]


class Node:
    """One instance: what it wants to send, what came, what changed."""

    def __init__(
        self,
        number: int,
        *,
        options: TransportOptions = QUICK,
        listen: str = "TCP://127.0.0.1:0",
        network: Network | None = None,
        clock: Clock | None = None,
        guard: LoginGuard | None = None,
        instance_id: InstanceId | None = None,
    ) -> None:
        self.instance_id = instance_id or InstanceId(bytes([number]) * 16)
        self.waiting: dict[str, deque[bytes]] = defaultdict(deque)
        self.came: list[Arrival] = []
        self.changes: list[tuple[str, bool]] = []
        self.notices: list[Advice] = []
        self.moved = asyncio.Event()
        self.log = Events(self.moved)
        self.clock = clock or SkippingClock()
        self._address = listen
        self.transport = Destinations(
            network=network or SystemNetwork(),
            clock=self.clock,
            rng=Random(number),
            hello=Hello(instance_id=self.instance_id, boot_id=BootId(bytes(16))),
            options=options,
            events=self,
            log=self.log,
            listen=[listen],
            guard=guard,
        )

    @property
    def address(self) -> str:
        self._address = self.transport.listeners[0].address or self._address
        return self._address.lower()

    def fill(self, address: str, room_bytes: int, room_items: int) -> list[bytes]:
        self.moved.set()
        taken: list[bytes] = []
        queue = self.waiting[address]
        while queue and len(taken) < room_items and len(queue[0]) <= room_bytes:
            room_bytes -= len(queue[0])
            taken.append(queue.popleft())
        return taken

    def boxcar_arrived(self, arrival: Arrival) -> None:
        self.came.append(arrival)
        self.moved.set()

    def address_changed(self, address: str, online: bool) -> None:
        self.changes.append((address, online))
        self.moved.set()

    def notice_arrived(self, peer: InstanceId, notice: Advice) -> None:
        self.notices.append(notice)
        self.moved.set()

    def reached_self(self, address: str) -> None: ...

    def neighbour_met(self, peer: InstanceId) -> None: ...

    def neighbour_left(self, peer: InstanceId) -> None: ...

    def before_closing(self) -> None: ...

    def send(self, to: str, *bodies: bytes) -> None:
        for sequence, body in enumerate(bodies):
            self.waiting[to].append(encode_item(fragment(sequence, body)))
        self.transport.notify(to)

    def bodies(self) -> list[bytes]:
        return [
            item.body
            for arrival in self.came
            for item in arrival.items
            if isinstance(item, Fragment)
        ]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that a callback of this node brings about."""
        async with asyncio.timeout(10):
            while not true():
                self.moved.clear()
                await self.moved.wait()


def fragment(sequence: int, body: bytes) -> Fragment:
    return Fragment(
        conversation_id=ConversationId(b"c" * 16),
        from_initiator=True,
        message_id=MessageId(b"m" * 16),
        sequence=sequence,
        fragment=0,
        fragments=1,
        flags=0,
        from_service="//here/Client",
        to_service="//there/Target",
        from_broker=BrokerId(b"b" * 16),
        contract="DEFAULT",
        message_type="DEFAULT",
        expires_at=Instant(2 * 10**15),
        incarnation=Incarnation(b"i" * 16),
        ack=None,
        hop=Hop(b"", 10, 60_000, 0),
        body=body,
    )


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Any]]:
    """Start nodes; all are stopped at the end."""
    nodes: list[Node] = []

    async def started(number: int, **how) -> Node:
        node = Node(number, **how)
        await node.transport.start(must_listen=True)
        nodes.append(node)
        return node

    yield started
    await asyncio.gather(*(node.transport.stop() for node in nodes))
