"""Failovers under load: two daemons on two PostgreSQL servers; what is committed is then judged.

The judge is that of `readers`: every order has one answer, in the order of its dialog, with the
running hash of its group. Orders are confirmed only if two servers have them, except while the
harness makes a new standby, during which no fault comes.

Where there is room the servers are in memory: whole processes are killed, never the machine.
"""

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import uvloop

from brokerd.client.session import Session, connect
from brokerd.errors import BrokerError
from tests.acceptance.on_server import ServerPlace
from tests.kills.handlers import work
from tests.kills.readers import SETTLE, Say, Workload
from tests.postgresql.cut import ServerRelay
from tests.postgresql.servers import Server, Servers

WORKERS: Final = 3
BACKLOG: Final = 5000
WITHIN: Final = 90.0
"""Seconds in which everything has to be as it was after a failover."""
OBJECTS: Final = """
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Order"
[[message_type]]
name = "Answer"
[[contract]]
name = "orders"
types = { Order = "initiator", Answer = "target" }
[[queue]]
name = "shop_q"
[[queue]]
name = "work_q"
poison_handling = "off"
[[service]]
name = "shop"
queue = "shop_q"
[[service]]
name = "work"
queue = "work_q"
contracts = ["orders"]
"""
STORE: Final = 'takeover_after = "3s"\n'
_OWNER: Final = (
    "SELECT count(*) FILTER (WHERE granted), count(*) FILTER (WHERE NOT granted)"
    " FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND a.application_name = 'brokerd (instance)'"
)


class Timed:
    """A session that notes when its sends are confirmed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.begin_dialog = session.begin_dialog
        self.transaction = session.transaction
        self.confirmed = 0
        self._last = time.monotonic()
        self.longest = 0.0
        """Seconds between two confirmations, at most, since this was set to 0."""

    async def send(self, handle: bytes, body: bytes, message_type: str) -> None:
        await self._session.send(handle, body, message_type)
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        self.confirmed += 1

    async def until(self, more: int) -> None:
        """Return once so many more are confirmed.

        Raises:
            TimeoutError: that takes too long.
        """
        wanted = self.confirmed + more
        async with asyncio.timeout(WITHIN):
            while self.confirmed < wanted:  # noqa: ASYNC110  # others count
                await asyncio.sleep(0.02)


class Pair:
    """Two servers, one of which follows the other, and two daemons, one of which waits."""

    def __init__(
        self, folder: Path, servers: Servers, stack: AsyncExitStack, *, synchronous: bool = True
    ) -> None:
        self.folder = folder
        self._synchronous = synchronous
        self._servers = servers
        self._stack = stack
        self._numbers = count(2)
        self.slots: list[Server] = []
        """The servers; each daemon reaches each by a relay, which stays when a server goes."""
        self.primary = 0
        self.relays: list[list[ServerRelay]] = []
        self.places: list[ServerPlace] = []
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.timed: Timed
        """The sends of the load, once there is one."""

    async def start(self) -> None:
        server = self._servers.started("s1", fsync=True, settings={"autovacuum": True})
        server.create_database("stores")
        server.query("GRANT pg_read_all_stats TO brokerd")
        self.slots = [server, await asyncio.to_thread(self._standby_of, server)]
        for _ in range(2):
            relays = [await self._stack.enter_async_context(ServerRelay(one)) for one in self.slots]
            self.relays.append(relays)
            hosts = ",".join(f"127.0.0.1:{one.port}" for one in relays)
            await self.start_daemon(
                f"postgresql://brokerd@{hosts}/stores?target_session_attrs=primary"
            )
        await self.settled()

    async def start_daemon(self, url: str) -> None:
        """Start a further daemon; the first one has made the master key when this returns."""
        place = ServerPlace(self.folder / f"d{len(self.places)}", url, store=STORE)
        place.objects.write_text(OBJECTS)
        self.places.append(place)
        if len(self.places) > 1:
            place.copy_key(self.places[0])
        self.daemons.append(self._stack.enter_context(place.running()))
        if len(self.places) == 1:
            await asyncio.to_thread(place.answers)

    @property
    def addresses(self) -> str:
        return ",".join(place.address for place in self.places)

    def _standby_of(self, primary: Server) -> Server:
        name = f"s{next(self._numbers)}"
        return self._servers.standby_of(primary, name, synchronous=self._synchronous)

    async def fail_over(self) -> None:
        """Make the standby the primary, after the primary has been killed or is about to be."""
        other = 1 - self.primary
        await asyncio.to_thread(self.slots[other].promote)
        self.slots[self.primary].kill()  # fenced, however it was
        self.primary = other

    async def restore(self) -> None:
        """Make a standby where none is."""
        slot = 1 - self.primary
        if self.slots[slot].is_running:
            return
        self._servers.remove(self.slots[slot])
        self.slots[slot] = await asyncio.to_thread(self._standby_of, self.slots[self.primary])
        for relays in self.relays:
            relays[slot].lead_to(self.slots[slot])

    def start_again(self, number: int) -> None:
        self.daemons[number] = self._stack.enter_context(self.places[number].running())

    async def settled(self) -> None:
        """Return once one daemon has the stores and the other waits.

        Raises:
            TimeoutError: that takes too long.
        """
        async with asyncio.timeout(WITHIN):
            while not await self._is_settled():  # noqa: ASYNC110  # other processes change it
                await asyncio.sleep(0.05)

    async def until_alone(self) -> None:
        """Return once no standby follows the primary.

        Raises:
            TimeoutError: that takes too long.
        """
        primary = self.slots[self.primary]
        async with asyncio.timeout(WITHIN):
            while primary.query("SELECT FROM pg_stat_replication"):  # noqa: ASYNC110  # likewise
                await asyncio.sleep(0.05)

    async def _is_settled(self) -> bool:
        with suppress(OSError, RuntimeError):
            rows = await asyncio.to_thread(self._ask, _OWNER)
            return rows == [("1", "1")] and await self.active() is not None
        return False

    def _ask(self, sql: str) -> list[tuple[str | None, ...]]:
        """Return what the primary answers; `OSError`: there is none."""
        return self.slots[self.primary].query(sql)

    async def active(self) -> int | None:
        """Return which daemon lets clients in; None = neither does."""
        for number, place in enumerate(self.places):
            with suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(1), await connect(place.address, broker="main"):
                    return number
        return None


# The faults: each returns once it has been done, and ends what would last for ever.

Fault = Callable[[Pair, Random], Awaitable[None]]


async def _active(pair: Pair) -> int:
    number = await pair.active()
    assert number is not None, "the pair has settled"
    return number


async def kill_daemon(pair: Pair, _rng: Random) -> None:
    number = await _active(pair)
    pair.daemons[number].kill()
    pair.daemons[number].wait(60)
    pair.start_again(number)


async def stop_daemon(pair: Pair, rng: Random) -> None:
    """Stop it for longer than the other waits; it wakes while the other works."""
    number = await _active(pair)
    pair.daemons[number].send_signal(signal.SIGSTOP)
    await asyncio.sleep(rng.uniform(4.0, 5.0))
    pair.daemons[number].send_signal(signal.SIGCONT)


async def blink_daemon(pair: Pair, rng: Random) -> None:
    """Stop it for less."""
    number = await _active(pair)
    pair.daemons[number].send_signal(signal.SIGSTOP)
    await asyncio.sleep(rng.uniform(0.1, 2.0))
    pair.daemons[number].send_signal(signal.SIGCONT)


async def kill_primary(pair: Pair, _rng: Random) -> None:
    pair.slots[pair.primary].kill()
    await pair.fail_over()
    await pair.restore()


async def stop_primary(pair: Pair, rng: Random) -> None:
    """It stands still, then the standby is promoted, then it is fenced off."""
    pair.slots[pair.primary].pause()
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    await pair.fail_over()
    await pair.restore()


async def restart_primary(pair: Pair, rng: Random) -> None:
    mode = rng.choice(("fast", "immediate"))
    await asyncio.to_thread(pair.slots[pair.primary].restart, mode)


async def reset_way(pair: Pair, _rng: Random) -> None:
    """The connections of the active daemon to its server are reset."""
    for relay in pair.relays[await _active(pair)]:
        relay.reset()


async def cut_way(pair: Pair, rng: Random) -> None:
    """Nothing passes between the active daemon and the servers, and nobody is told."""
    relays = pair.relays[await _active(pair)]
    for relay in relays:
        relay.cut()
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    for relay in relays:
        relay.heal()
        relay.reset()


async def hand_over(pair: Pair, _rng: Random) -> None:
    place = pair.places[await _active(pair)]
    async with await connect(place.address, broker="main") as session:
        await session.admin.hand_over()


FAULTS: Final[tuple[Fault, ...]] = (
    kill_daemon, stop_daemon, blink_daemon, kill_primary, stop_primary, restart_primary,
    reset_way, cut_way, hand_over,
)  # fmt: skip


async def answer(addresses: str) -> None:
    """Answer orders, whichever daemon has them."""
    async with await connect(addresses, broker="main", retry=120) as session:
        while True:
            with suppress(BrokerError):
                await work(session, "work_q")


class Found:
    """What a run has shown."""

    def __init__(self) -> None:
        self.gaps: dict[str, list[float]] = {}
        self.problems: list[str] = []
        self.orders = 0

    def table(self) -> list[str]:
        lines = [f"{'fault':<16} {'times':>5} {'median s':>9} {'longest s':>9}"]
        rows = [*sorted(self.gaps.items())]
        rows.append(("all", [gap for gaps in self.gaps.values() for gap in gaps]))
        for name, gaps in rows:
            middle = statistics.median(gaps)
            lines.append(f"{name:<16} {len(gaps):>5} {middle:>9.2f} {max(gaps):>9.2f}")
        return lines


async def survive(
    pair: Pair, *, seed: int, failovers: int, say: Say, faults: tuple[Fault, ...] = FAULTS
) -> Found:
    """Let so many faults happen under load, each kind as often; judge what was committed."""
    rng, found = Random(seed), Found()
    async with await connect(pair.addresses, broker="main", retry=120) as session:
        timed: Any = Timed(session)
        pair.timed = timed
        load = Workload(timed, rng, services=("work",), backlog=BACKLOG)
        readers = [load.read(), *(answer(pair.addresses) for _ in range(WORKERS))]
        tasks = [asyncio.ensure_future(one) for one in (load.write(), *readers)]
        failing = asyncio.ensure_future(
            _fail(pair, load, found, rng, failovers=failovers, faults=faults, say=say)
        )
        await asyncio.wait({failing, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        ended = [one.exception() for one in tasks if one.done()]
        found.problems = [f"the load ended: {error!r}" for error in ended]
        if ended:
            failing.cancel()
        else:
            failing.result()
        load.stopping = True
        await asyncio.wait(tasks[:1])
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE if not ended else 5):
                while load.missing:  # noqa: ASYNC110  # what comes in is counted elsewhere
                    await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(failing, *tasks, return_exceptions=True)
        found.orders = timed.confirmed
        found.problems += load.problems()
    return found


async def _fail(
    pair: Pair,
    load: Workload,
    found: Found,
    rng: Random,
    *,
    failovers: int,
    faults: tuple[Fault, ...],
    say: Say,
) -> None:
    """Let one fault happen after the other, in an order of their own in each round."""
    timed = pair.timed
    line: list[Fault] = []
    for number in range(1, failovers + 1):
        line = line or rng.sample(faults, len(faults))
        fault = line.pop()
        await _goes_on(timed, load, rng.randrange(5, 100))
        timed.longest = 0.0
        await fault(pair, rng)
        await pair.settled()
        await _goes_on(timed, load, 5)
        gap = timed.longest
        found.gaps.setdefault(fault.__name__, []).append(gap)
        counts = f"{timed.confirmed} sent, {load.missing} open"
        say(f"{number} {fault.__name__}: {gap:.2f} s; {counts}")


async def _goes_on(timed: Timed, load: Workload, orders: int) -> None:
    """Return once so many more orders are confirmed and answered."""
    answered = load.answered
    await timed.until(orders)
    async with asyncio.timeout(WITHIN):
        while load.answered < answered + orders:  # noqa: ASYNC110  # others count what comes
            await asyncio.sleep(0.02)


async def play(
    folder: Path,
    *,
    seed: int,
    failovers: int,
    say: Say,
    faults: tuple[Fault, ...] = FAULTS,
    synchronous: bool = True,
) -> Found:
    """Run servers, daemons and load in a folder, and leave only files behind."""
    with Servers() as servers:
        async with AsyncExitStack() as stack:
            pair = Pair(folder, servers, stack, synchronous=synchronous)
            await pair.start()
            return await survive(pair, seed=seed, failovers=failovers, say=say, faults=faults)


def main() -> int:
    """Run `make soak-failover`. Exit status 0: nothing was lost or doubled, in order; 1: not so."""
    return command("failover", __doc__, play)


def command(name: str, about: str, play: Callable[..., Coroutine[Any, Any, Found]]) -> int:
    """Run `make soak-NAME` with the arguments of this process; return its exit status.

    `play`: runs the failovers, as `play` of this module does."""
    parser = argparse.ArgumentParser(prog=f"soak-{name}", description=about.partition("\n")[0])
    parser.add_argument("--failovers", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where files go; a new directory if left out")
    options = parser.parse_args()
    folder = options.dir or Path(tempfile.mkdtemp(prefix=f"brokerd-{name}-"))
    say = lambda text: (sys.stdout.write(f"{text}\n"), sys.stdout.flush())  # noqa: E731
    say(f"seed {options.seed}, files in {folder}")
    found = uvloop.run(play(folder, seed=options.seed, failovers=options.failovers, say=say))
    for text in (*found.table(), *found.problems, f"{found.orders} orders"):
        say(text)
    say("violated" if found.problems else "clean")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
