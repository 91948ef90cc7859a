"""Clients: programs on machines of their own, which connect, are killed and come back.

A *writer* begins dialogs from the shop, sends, waits for the answers and ends; a *worker* reads a
queue where no activation does; the *sweeper* reads and ends at the end of a run what others left.
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
from brokerd.testing.simulation import objects, workers
from brokerd.testing.simulation.nodes import UTC_START, Node, Surround, new_rng
from brokerd.testing.simulation.plan import chance
from brokerd.testing.simulation.recording import INITIATOR, Label, make_body, name_of

T = TypeVar("T")
RETRY: Final = 100_000.0
"""Seconds for which a lost connection is tried again: in a run each commit is learned."""
HEARS_NOTHING: Final = 0.8
"""How often nobody says that a machine is off: then the attempt hangs, and costs a run nothing."""
Program = Callable[["Client", Session], Coroutine[object, object, None]]


class Client:
    """One program and the machine it runs on; killed and started again like a node."""

    def __init__(
        self, name: str, node: Node, program: Program, shared: Surround, enter: Callable[[], None]
    ) -> None:
        self.name = name
        self.server = node.name
        self._node = node
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
        self._shared.recording.homes[name] = self.server

        async def connector(
            factory: Callable[[], asyncio.Protocol],
        ) -> tuple[asyncio.Transport, asyncio.Protocol]:
            if not self._node.up and chance(self.rng, HEARS_NOTHING):
                await self._node.answers.wait()
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

    async def rest(self, seconds: float) -> None:
        """Do nothing for a while."""
        await self.clock.sleep_until(self.clock.monotonic() + seconds)


def worker(service: str) -> Program:
    """A program that serves a queue for ever."""

    async def program(_client: Client, session: Session) -> None:
        await workers.work(session, service)

    return program


class Writer:
    """What a writer does; `hurry` asks it to come to an end."""

    def __init__(self, shared: Surround, loose: set[str]) -> None:
        self._shared = shared
        self._loose = loose
        self.hurry = False
        self.morning: asyncio.Event | None = None
        """It is night until this is set."""

    async def program(self, client: Client, session: Session) -> None:
        """Dialog after dialog."""
        plan, rng = self._shared.plan, client.rng
        for number in range(plan.dialogs):
            if self.hurry and number:
                return
            name = f"{client.scope}-{number}"
            far = rng.choice(("warehouse", "warehouse", "depot", "audit"))
            handle = await self._begin(client, session, name, far)
            await self._converse(client, session, name, handle)

    async def _begin(self, client: Client, session: Session, name: str, far: str) -> bytes:
        rng = client.rng
        lifetime = float(rng.randint(2, 40)) if chance(rng, 0.06) else None
        if lifetime is not None:
            self._loose.add(name)

        async def begin() -> bytes:
            return await session.begin_dialog("shop", far, objects.CONTRACT, lifetime=lifetime)

        return await repeated(client, begin)

    async def _converse(self, client: Client, session: Session, name: str, handle: bytes) -> None:
        plan, rng = self._shared.plan, client.rng
        sent, left = 0, rng.randint(1, plan.messages)
        how = rng.choice(("clean", "clean", "clean", "clean", "early", "error", "left"))
        while left > 0:
            many = min(left, rng.choice((1, 1, 2, 5)))
            left -= many
            try:
                sent += await self._send(client, session, name, handle, many)
            except BrokerError as error:
                if name in self._loose:
                    break
                client.problems.append(f"{name}: a send was refused with {error.code}")
                return
            await self._pause(client)
        if how in ("clean", "left") and name not in self._loose:
            answered = await self._read_replies(client, session, name, handle, sent)
            if not answered or how == "left":
                return  # the sweeper ends it
        else:
            self._loose |= {name, f"{name}+"}
        await self._end(client, session, handle, failing=how == "error")

    async def _pause(self, client: Client) -> None:
        if not self.hurry:
            await client.rest(client.rng.uniform(0.0, self._shared.plan.pause))
        if self.morning is not None:
            await self.morning.wait()

    async def _send(
        self, client: Client, session: Session, name: str, handle: bytes, many: int
    ) -> int:
        """Send so many orders in one transaction, or each in its own; how many were committed."""
        rng = client.rng
        if chance(rng, 0.4):
            return await self._send_pipelined(client, session, name, handle, many)

        async def send() -> int:
            async with session.transaction() as tx:
                for _ in range(many):
                    if chance(rng, 0.1):
                        await tx.send(handle, b"", "Nudge")
                    await tx.send(handle, self._body(client, name), "Order")
                workers.change_mind(workers.CREW.get())
                self._break_commit(client)
            return many

        return await repeated(client, send)

    async def _send_pipelined(
        self, client: Client, session: Session, name: str, handle: bytes, many: int
    ) -> int:
        await session.room()
        asked = [
            session.submit_send(handle, self._body(client, name), "Order") for _ in range(many)
        ]
        self._break_commit(client)
        told = await asyncio.gather(*asked, return_exceptions=True)
        for error in told:
            if isinstance(error, BaseException) and not getattr(error, "retryable", False):
                raise error
        return sum(error is None for error in told)

    def _break_commit(self, client: Client) -> None:
        """Sometimes the connection breaks while the commit is on its way (REL-2)."""
        if self.hurry or client.rng.random() >= self._shared.plan.commits_cut:
            return
        loop, network = self._shared.loop, self._shared.network
        delay = client.rng.choice((0.0002, 0.001, 0.004, 0.02))
        loop.call_later(delay, network.reset, client.name, client.server)

    def _body(self, client: Client, name: str) -> bytes:
        crew = workers.CREW.get()
        uid = crew.fresh_uid(client.scope)
        return make_body(Label(uid, name, INITIATOR), crew.body_size())

    async def _read_replies(
        self, client: Client, session: Session, name: str, handle: bytes, expected: int
    ) -> bool:
        """Read until as many answers as orders are there; False if that takes too long."""
        got = 0
        deadline = client.clock.monotonic() + 200.0
        while got < expected and client.clock.monotonic() < deadline:
            if self.morning is not None:
                await self.morning.wait()
                deadline = client.clock.monotonic() + 200.0
            try:
                async with session.transaction() as tx:
                    messages = await tx.receive("shop_q", conversation=handle, wait=5.0)
                    if any(one.is_end or one.is_error for one in messages):
                        client.problems.append(f"{name} was ended by the other side")
                        await tx.end(handle)
                        return True
                    workers.change_mind(workers.CREW.get())
                    self._break_commit(client)
                got += sum(one.message_type == "Reply" for one in messages)
            except workers.OnPurpose:
                continue
            except BrokerError as error:
                if not error.retryable and error.code != "queue_disabled":
                    client.problems.append(f"{name}: a receive failed with {error.code}")
                    return False
                await client.rest(0.2)
        return got >= expected

    async def _end(self, client: Client, session: Session, handle: bytes, *, failing: bool) -> None:
        why = (42, "not wanted any more") if failing else (None, None)
        with suppress(BrokerError):  # it may be over already
            await repeated(client, lambda: session.end(handle, *why))


async def repeated(client: Client, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until it works; raises what trying again does not help against."""
    while True:
        try:
            return await attempt()
        except workers.OnPurpose:
            continue
        except BrokerError as error:
            if not error.retryable:
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
