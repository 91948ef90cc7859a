"""Clients: programs on machines of their own, which connect, are killed and restarted.

A *writer* begins dialogs (`writers`), a *worker* reads a queue without activation, and the
*sweeper*, at the end of a run, reads the messages and ends the dialogs that others left.
Reads:  answers.      Calls: the SDK, over the simulated network.
Never:  sends a uid twice, whatever the outcome of the first transaction with it.
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
from tests.engine.simulation import objects, workers
from tests.engine.simulation.nodes import UTC_START, Node, new_rng
from tests.engine.simulation.recording import name_of
from tests.engine.simulation.surround import Surround

T = TypeVar("T")
RETRY: Final = 100_000.0
"""Seconds for which a lost connection is retried: long enough to learn every commit's outcome."""
HEARS_NOTHING: Final = 0.8
"""Probability that a connect to a machine that is off gets no answer and hangs until it runs.

A hanging attempt costs a run less than repeated refusals."""
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
        """Make a client that is not running.

        `home`: the instance whose broker it uses; `holder`: returns the node that has that broker
        open now.
        """
        self.name = name
        self.home = self.server = home
        self._holder = holder
        self.clock = SimClock(shared.loop, utc_start=UTC_START)
        self._program = program
        self._shared = shared
        self._enter = enter
        self._streams = shared.streams.child(name)
        self._ids = SeededIds(self._streams.stream("ids"))
        self.rng: Random = self._streams.stream("rng")
        self.boots = 0
        self.scope = ""
        self.running = False
        self.client_id = b""
        self.problems: list[str] = []

    def start(self) -> None:
        """Run the program from its beginning, as a new client."""
        loop = self._shared.loop
        self.boots += 1
        self.scope = f"{self.name}/{self.boots}"
        self.running = True
        context = loop.scope(self.scope)
        context.run(self._enter)
        loop.create_task(self._run(), context=context)

    def crash(self) -> None:
        """Kill the program, if it runs."""
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
        """Return an id that was never used."""
        return self._ids.fresh()

    async def rest(self, seconds: float) -> None:
        """Wait for virtual seconds, by the client's clock."""
        await self.clock.sleep_until(self.clock.monotonic() + seconds)


def worker(service: str) -> Program:
    """Return a program that serves a queue for ever."""

    async def program(_client: Client, session: Session) -> None:
        await workers.work(session, service)

    return program


def is_passing(error: BaseException) -> bool:
    """Return whether a retry may help: a disabled queue, too, may be switched on again (SND-17)."""
    code = getattr(error, "code", "")
    return bool(getattr(error, "retryable", False)) or code == "queue_disabled"


async def repeated(client: Client, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat an attempt until it succeeds; raise errors that a retry does not cure."""
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
    """Read the messages left for the shop, and end the dialogs its peers have ended, for ever."""
    while not session.closed:
        try:
            async with session.transaction() as tx:
                for message in await tx.receive("shop_q", wait=5.0):
                    if message.is_end or message.is_error:
                        await tx.end(message.handle)
        except BrokerError:
            await client.rest(0.2)


def ender(handles: list[bytes]) -> Program:
    """Return a program that ends these dialogs if they are still open."""

    async def program(client: Client, session: Session) -> None:
        for handle in handles:
            with suppress(BrokerError):  # most are over, or belong to another broker
                await repeated(client, partial(session.end, handle))

    return program
