"""Faults: what the schedule says is done to processes, to ways between them and to objects.

One thing at a time befalls one process or one way, and then it has some rest; different ones suffer
beside one another. What is to befall somebody who suffers or rests is left out.

Reads:  the schedule.      Calls: places, sessions, `brokerd store verify`.
Never:  leaves a fault behind: each is undone before `run` returns.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final

from brokerd.client.session import Session, connect
from brokerd.errors import BrokerError, ConnectionLost, ObjectExists, ObjectNotFound
from tests.chaos.commands import verify
from tests.chaos.credentials import Credentials
from tests.chaos.places import Places
from tests.chaos.processes import Daemon, Program
from tests.chaos.schedule import EAST, READER, Fault, Kind, way
from tests.chaos.stores import FileStore, Store
from tests.relay import Relay

PATIENCE: Final = 120.0
"""Seconds within which an administrator's request has to be granted, whatever goes on."""
AGAIN: Final = 0.5
REST: Final = 2.0
"""How many times as long as a fault took its victim is left alone, so that all get on however slow
the machine is."""
Say = Callable[[str], object]


class Faults:
    """Does what a schedule says, until it is told that it is enough."""

    def __init__(self, places: Places, schedule: Iterator[Fault], say: Say) -> None:
        self._places = places
        self._schedule = schedule
        self._say = say
        self._busy: set[str] = set()
        """Who suffers, or rests: nothing more befalls them meanwhile."""
        self._down: set[str] = set()
        """Whose process does not run, on purpose."""
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.credentials = Credentials(places, self._problem)

    async def run(self, enough: asyncio.Event) -> None:
        """Let faults come until `enough`; all have been undone when this returns."""
        async with asyncio.TaskGroup() as tasks:
            for fault in self._schedule:
                with suppress(TimeoutError):
                    await asyncio.wait_for(enough.wait(), fault.at)
                if enough.is_set():
                    return
                tasks.create_task(self._befall(fault, enough))

    async def watch(self) -> None:
        """Start again what has ended by itself, which nothing may do."""
        while True:
            for one in self._places.all:
                if one.status is not None and one.name not in self._down and not one.is_done:
                    self._problem(f"{one.name} {one.ended_how} by itself:\n{one.tail()}")
                    await self._start(one)
                one.sample()
            await asyncio.sleep(AGAIN)

    async def _befall(self, fault: Fault, enough: asyncio.Event) -> None:
        victims = self._victims(fault)
        apart = fault.kind in {Kind.QUEUE, Kind.ROUTE, Kind.BACKUP}  # others may befall it, too
        busy = {f"{fault.kind} {name}" if apart else name for name in victims}
        if busy & self._busy:
            return
        self._busy |= busy
        began = time.monotonic()
        try:
            self._say(fault.show())
            self.counts[fault.kind.value] += 1
            await self._do(fault, victims)
            with suppress(TimeoutError):
                await asyncio.wait_for(enough.wait(), REST * (time.monotonic() - began))
        finally:
            self._busy -= busy

    def _victims(self, fault: Fault) -> list[str]:
        if fault.kind is Kind.KILL_ALL:
            return list(self._places.daemons)
        if fault.kind is Kind.REVOKE:
            there = self._places.neighbour(fault.victim)
            return [fault.victim, there, way(fault.victim, there)]
        return [fault.victim]

    async def _do(self, fault: Fault, victims: list[str]) -> None:
        match fault.kind:
            case Kind.KILL if fault.victim == READER:
                self._kill_reader()
            case Kind.KILL | Kind.KILL_ALL:
                places = [self._places[name] for name in victims]
                await asyncio.gather(*(self._kill(one, fault.seconds) for one in places))
            case Kind.PAUSE:
                await self._pause(self._places[fault.victim], fault.seconds)
            case Kind.RESTART:
                await self._restart(self._places.daemons[fault.victim], fault)
            case Kind.QUEUE:
                await self._switch_queue(fault)
            case Kind.ROUTE:
                await self._drop_route(fault)
            case Kind.ROTATE:
                await self.credentials.rotate(fault)
            case Kind.REVOKE:
                await self.credentials.revoke(fault)
            case Kind.EXPIRE:
                await self.credentials.expire(fault)
            case Kind.BACKUP:
                await self._back_up(self._places.daemons[fault.victim])
            case _:
                await self._disturb(self._places.between(fault.victim), fault)

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        self._say(f"PROBLEM: {text}")

    # Processes.

    async def _kill(self, victim: Program, seconds: float) -> None:
        if victim.is_done:
            return
        self._down.add(victim.name)
        await victim.kill()
        if isinstance(victim, Daemon):
            await self._verify(victim.store, f"the store of {victim.name} after kill -9")
        await asyncio.sleep(seconds)
        await self._start(victim)
        self._down.discard(victim.name)

    def _kill_reader(self) -> None:
        for pid in self._places.readers()[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def _pause(self, victim: Program, seconds: float) -> None:
        victim.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            victim.signal(signal.SIGCONT)

    async def _restart(self, victim: Daemon, fault: Fault) -> None:
        self._down.add(victim.name)
        status = await victim.stop()
        if status:
            self._problem(f"{victim.name} ended with status {status} when it was to stop")
        await self._verify(victim.store, f"the store of {victim.name} after a stop")
        victim.settings, victim.compiled = fault.settings, fault.compiled
        await self._start(victim)
        self._down.discard(victim.name)

    async def _start(self, victim: Program) -> None:
        try:
            await victim.start()
        except BrokerError as error:
            raise RuntimeError(f"{victim.name} does not start: {error}\n{victim.tail()}") from error

    # Objects and stores.

    async def _switch_queue(self, fault: Fault) -> None:
        queue = "client_q" if fault.victim == EAST else "ledger_q"
        await self._granted(
            fault.victim, lambda session: session.alter("queue", queue, status="off")
        )
        await asyncio.sleep(fault.seconds)
        await self._granted(
            fault.victim, lambda session: session.alter("queue", queue, status="on")
        )

    async def _drop_route(self, fault: Fault) -> None:
        kind, name, declared = self._places.route(fault.victim)
        await self._granted(fault.victim, lambda session: session.drop(kind, name))
        await asyncio.sleep(fault.seconds)
        await self._granted(fault.victim, lambda session: session.create(kind, name, **declared))

    async def _granted(self, daemon: str, ask: Callable[[Session], Awaitable[object]]) -> None:
        """Ask for a change until it is made, also if the daemon is killed meanwhile."""
        address = self._places.daemons[daemon].address
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(
                    ObjectExists, ObjectNotFound
                ):  # a start has done it, or an ask before
                    try:
                        async with connect(address, broker="main", wait=PATIENCE) as session:
                            await ask(session)
                    except BrokerError as error:
                        if isinstance(error, ObjectExists | ObjectNotFound):
                            raise
                        await asyncio.sleep(AGAIN)
                        continue
                return

    async def _back_up(self, daemon: Daemon) -> None:
        if not daemon.store.backs_up:
            return  # the server's own tools do it
        daemon.backups.mkdir(mode=0o700, exist_ok=True)
        copy = daemon.backups / f"{self.counts[Kind.BACKUP.value]}.db"
        try:
            async with connect(daemon.address, broker="main", wait=PATIENCE) as session:
                await session.admin.backup(copy)
        except ConnectionLost:
            return  # it was ended over it
        except BrokerError as error:
            self._problem(f"a backup of {daemon.name} was refused: {error.code}: {error}")
            return
        if await self._verify(FileStore(copy), f"backup {copy.name} of {daemon.name}"):
            copy.unlink()

    async def _verify(self, store: Store, what: str) -> bool:
        """Whether nothing is wrong with a store; else it is a problem."""
        found = await verify(store) if store.exists() else ""
        if found:
            self._problem(f"{what} is not whole: {found}")
        return not found

    # Ways.

    async def _disturb(self, relays: list[Relay], fault: Fault) -> None:
        for relay in relays:
            _break(relay, fault)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            for relay in relays:
                relay.heal()


def _break(relay: Relay, fault: Fault) -> None:
    match fault.kind:
        case Kind.RESET:
            relay.reset()
        case Kind.CUT:
            relay.cut()
        case Kind.REFUSE:
            relay.refuses = True
            relay.reset()
        case Kind.DELAY:
            relay.latency = fault.value
        case Kind.TEAR:
            relay.tears_after = int(fault.value)
        case _:
            raise ValueError(f"{fault.kind} does not befall a way")
