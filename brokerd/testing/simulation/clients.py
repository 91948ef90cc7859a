"""Clients: programs on machines of their own, which connect, are killed and come back.

A *writer* begins dialogs (`writers`), a *worker* reads a queue where no activation does, and the
*sweeper* reads and ends at the end of a run what others left.
Reads:  answers.      Calls: the SDK, over the simulated network.
Never:  sends a uid twice, whatever became of the first transaction with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final, TypeVar

from brokerd.client.session import Session, connect
from brokerd.errors import BrokerError
from brokerd.ids import SeededIds
from brokerd.testing.clock import SimClock
from brokerd.testing.rng import chance
from brokerd.testing.simulation import objects, workers
from brokerd.testing.simulation.nodes import UTC_START, Node, new_rng
from brokerd.testing.simulation.recording import name_of
from brokerd.testing.simulation.surround import Surround

T = TypeVar("T")
RETRY: Final = 100_000.0
"""Seconds for which a lost connection is tried again: in a run each commit is learned."""
HEARS_NOTHING: Final = 0.8
"""How often nobody says that a machine is off: then the attempt hangs, and costs a run nothing."""
Program = Callable[["Client", Session], Coroutine[object, object, None]]


class Client:
    """One program and the machine it runs on; killed and started again like a node."""

    def __init__(
        self,
        name: str,
        home: str,
        program: Program,
        shared: Surround,
        *,
        enter: Callable[[], None],
        holder: Callable[[str], Node],
    ) -> None:
        """`home`: the instance whose broker it serves; `holder`: who has that open now."""
        self.name = name
        self.home = self.server = home
        self._holder = holder
        self.clock = SimClock(shared.loop, utc_start=UTC_START)
        self._program = program
        self._shared = shared
        self._enter = enter
        self._streams = shared.streams.child(name)
        self._ids = SeededIds(self._streams.of("ids"))
        self.rng: Random = self._streams.of("rng")
        self.boots = 0
        self.scope = ""
        self.running = False
        self.client_id = b""
        self.problems: list[str] = []

    def start(self) -> None:
        """Run the program; a killed one begins anew, as a new client."""
        loop = self._shared.loop
        self.boots += 1
        self.scope = f"{self.name}/{self.boots}"
        self.running = True
        context = loop.scope(self.scope)
        context.run(self._enter)
        loop.create_task(self._run(), context=context)

    def crash(self) -> None:
        """Kill it."""
        if not self.running:
            return
        self._shared.counts["client crashes"] += 1
        self._shared.trace.note(self.name, "killed")
        self.running = False
        self._shared.loop.kill(self.scope)
        self._shared.network.crash(self.name)

    async def _run(self) -> None:
        self.client_id = self._ids.fresh()
        network = self._shared.network.for_node(self.name)
        connections, name = self._shared.recording.connections, name_of(self.client_id)
        self._shared.recording.homes[name] = self.home

        async def connector(
            factory: Callable[[], asyncio.Protocol],
        ) -> tuple[asyncio.Transport, asyncio.Protocol]:
            node = self._holder(self.home)
            if not node.up and chance(self.rng, HEARS_NOTHING):
                await node.answers.wait()
            self.server = node.name
            made = await network.connect(factory, f"unix:{self.server}.sock")
            connections[name] += 1
            return made

        session = await connect(
            broker=objects.BROKER,
            client_id=self.client_id,
            connector=connector,
            clock=self.clock,
            ids=self._ids,
            rng=new_rng(self._streams, "link"),
            retry=RETRY,
            wait=RETRY,
            pid=self.boots,
            recorder=self._shared.recording,
        )
        try:
            await self._program(self, session)
        except BrokerError as error:
            self.problems.append(f"{self.name} stopped with {error.code}: {error.message}")
        self.running = False
        await session.close()

    def fresh_id(self) -> bytes:
        """An id that was never used."""
        return self._ids.fresh()

    async def rest(self, seconds: float) -> None:
        """Do nothing for a while."""
        await self.clock.sleep_until(self.clock.monotonic() + seconds)


def worker(service: str) -> Program:
    """A program that serves a queue for ever."""

    async def program(_client: Client, session: Session) -> None:
        await workers.work(session, service)

    return program


def is_passing(error: BaseException) -> bool:
    """Whether trying again helps; a queue that keeps what was sent may be switched off (SND-17)."""
    code = getattr(error, "code", "")
    return bool(getattr(error, "retryable", False)) or code == "queue_disabled"


async def repeated(client: Client, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until it works; raises what trying again does not help against."""
    while True:
        try:
            return await attempt()
        except workers.OnPurpose:
            continue
        except BrokerError as error:
            if not is_passing(error):
                raise
            await client.rest(0.2)


async def sweep(client: Client, session: Session) -> None:
    """Read what is left for the shop, and end what its peers have ended, for ever."""
    while not session.closed:
        try:
            async with session.transaction() as tx:
                for message in await tx.receive("shop_q", wait=5.0):
                    if message.is_end or message.is_error:
                        await tx.end(message.handle)
        except BrokerError:
            await client.rest(0.2)


def ender(handles: list[bytes]) -> Program:
    """A program that ends these dialogs where they are still open."""

    async def program(client: Client, session: Session) -> None:
        for handle in handles:
            with suppress(BrokerError):  # most are over, or of another broker
                await repeated(client, partial(session.end, handle))

    return program
