"""Kills of a daemon, its readers and an activator under load; what is committed is then judged.

Judged from outside, by committed effects only (design, question 4): every order has one answer, in
the order of the dialog, with the running hash of its group; and by locks that the system keeps: at
no time were there more readers than may be, not even while a killed daemon was followed by another.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

import brokerd
from brokerd.client.session import Session, connect
from brokerd.errors import BrokerError
from tests.kills.handlers import INSIDE, OUTSIDE, next_state

DIALOGS: Final = 6
BACKLOG: Final = 200
"""Orders without an answer at which the writer waits."""
SETTLE: Final = 90.0
OBJECTS: Final = f"""
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Order"
[[message_type]]
name = "Answer"
[[contract]]
name = "orders"
types = {{ Order = "initiator", Answer = "target" }}
[[queue]]
name = "shop_q"
[[queue]]
name = "work_q"
poison_handling = "off"
[queue.activation]
handler = "tests.kills.handlers:inside"
host = "process"
max_readers = {INSIDE}
initial_readers = 2
ramp_interval = "1s"
[[queue]]
name = "depot_q"
poison_handling = "off"
[[queue]]
name = "wakes_q"
[[service]]
name = "shop"
queue = "shop_q"
[[service]]
name = "work"
queue = "work_q"
contracts = ["orders"]
[[service]]
name = "depot"
queue = "depot_q"
contracts = ["orders"]
[[service]]
name = "wakes"
queue = "wakes_q"
contracts = ["urn:brokerd:PostEventNotification"]
[[event_notification]]
name = "wake"
queue = "depot_q"
events = ["QUEUE_ACTIVATION"]
service = "wakes"
activation_timeout = "1s"
"""
Say = Callable[[str], object]


class Place:
    """A directory with a daemon and an activator, both of which may be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.address = f"unix:{folder}/s"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "objects.toml").write_text(OBJECTS)
        (folder / "settings.toml").write_text(
            f'[instance]\nname = "here"\ndata_dir = "{folder}/data"\n'
            f'[clients]\nlisten = "{self.address}"\n[clock]\ntick = "1s"\n'
        )
        (folder / "activator.toml").write_text(
            f'[[notification_service]]\nname = "here"\naddress = "{self.address}"\n'
            'queue = "wakes_q"\n[[application]]\nname = "depot"\n'
            '[application.trigger]\nqueue = "depot_q"\n'
            f'[application.launch]\ncommand = ["{sys.executable}", "-m", "tests.kills.handlers"]\n'
            f"[application.instances]\nmin = 1\nmax = {OUTSIDE}\n"
        )

    def start(self, what: str) -> None:
        """`daemon` or `activator`."""
        words = {
            "daemon": ["serve", "-c", "settings.toml", "--objects", "objects.toml"],
            "activator": ["activator", "serve", "activator.toml"],
        }[what]
        home = str(Path(brokerd.__file__).parents[1])
        own = {k: v for k, v in os.environ.items() if not k.startswith("BROKERD_")}
        own |= {"PYTHONPATH": home, "TMPDIR": str(self.folder)}
        with (self.folder / f"{what}.log").open("ab") as log:
            self._running[what] = subprocess.Popen(
                [sys.executable, "-m", "brokerd", *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=own,
            )

    def kill(self, what: str, number: signal.Signals = signal.SIGKILL) -> int:
        """End one of them and wait for it; its exit status."""
        process = self._running.pop(what)
        process.send_signal(number)
        return process.wait(60)

    def end(self) -> None:
        """Leave nothing behind."""
        for what in list(self._running):
            self.kill(what)

    def exceeded(self) -> list[str]:
        """Readers that found as many as may be running already."""
        return [str(one) for one in (self.folder / "ceiling").glob("*/exceeded-*")]


@contextmanager
def place(folder: Path) -> Iterator[Place]:
    """One that is gone afterwards, its files excepted."""
    made = Place(folder)
    with ExitStack() as stack:
        stack.callback(made.end)
        made.start("daemon")
        made.start("activator")
        yield made


class Workload:
    """Orders to both queues, and the answers, in the order in which they were committed."""

    def __init__(
        self,
        session: Session,
        rng: Random,
        *,
        services: Sequence[str] = ("work", "work", "depot"),
        backlog: int = BACKLOG,
    ) -> None:
        """`services`: which get the dialogs, in turn; `backlog`: open orders at which it waits."""
        self._session = session
        self._rng = rng
        self._services = services
        self._backlog = backlog
        self.sent: dict[bytes, list[bytes]] = {}
        self.answers: dict[bytes, list[bytes]] = {}
        self.kinds: dict[bytes, str] = {}
        """The service of each dialog."""
        self.stopping = False

    @property
    def missing(self) -> int:
        """Orders without an answer."""
        return sum(map(len, self.sent.values())) - self.answered

    @property
    def answered(self) -> int:
        """Answers so far."""
        return sum(map(len, self.answers.values()))

    async def moved(self) -> None:
        """Wait until both queues are worked on again, so that what is killed is at work."""
        before = self._answered()

        def still(kind: str) -> bool:
            return self._answered()[kind] <= before[kind]

        async with asyncio.timeout(SETTLE):
            while still("work") or still("depot"):  # noqa: ASYNC110  # others count what comes
                await asyncio.sleep(0.02)

    def _answered(self) -> Counter[str]:
        """Answers by service."""
        return Counter(self.kinds[one] for one, came in self.answers.items() for _ in came)

    async def write(self) -> None:
        """Send orders until told to stop."""
        handles = []
        for number in range(DIALOGS):
            to = self._services[number % len(self._services)]
            handle = await self._session.begin_dialog("shop", to, "orders")
            handles.append(handle)
            self.kinds[handle], self.sent[handle], self.answers[handle] = to, [], []
        while not self.stopping:
            handle = self._rng.choice(handles)
            body = b"order %d" % len(self.sent[handle])
            self.sent[handle].append(body)
            await self._session.send(handle, body, "Order")
            while self.missing > self._backlog and not self.stopping:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._rng.uniform(0.0, 0.01))

    async def read(self) -> None:
        """Take the answers; what was rolled back comes again."""
        while True:
            with suppress(BrokerError):
                async with self._session.transaction() as tx:
                    messages = await tx.receive("shop_q", 50, wait=1.0)
                for one in messages:
                    if one.body is not None:
                        self.answers[one.handle].append(one.body)

    def problems(self) -> list[str]:
        """What is not as it has to be."""
        found = []
        for number, (handle, orders) in enumerate(self.sent.items()):
            state, wanted = None, []
            for order in orders:
                state = next_state(state, order)
                wanted.append(order + b" " + state)
            if self.answers[handle] != wanted:
                got = Counter(self.answers[handle])
                twice = [one for one, times in got.items() if times > 1]
                lost = [one for one in wanted if one not in got]
                found.append(
                    f"dialog {number}: {len(orders)} orders, {len(lost)} answers lost, "
                    f"{len(twice)} twice, {len(got.keys() - set(wanted))} not as they should be"
                )
        return found


async def survive(made: Place, *, seed: int, kills: int, pause: float, say: Say) -> list[str]:
    """Kill so many times under load; what was wrong afterwards."""
    rng = Random(seed)
    async with connect(made.address, broker="main", wait=60, retry=120) as session:
        work = Workload(session, rng)
        writing = asyncio.ensure_future(work.write())
        reading = asyncio.ensure_future(work.read())
        for number in range(kills):
            await work.moved()
            await asyncio.sleep(rng.uniform(0.0, pause))
            victim = VICTIMS[number % len(VICTIMS)]
            say(f"kill {number + 1}: {await _kill(victim, made, session)}; {work.missing} open")
        work.stopping = True
        await writing
        left = f"after {SETTLE:g} s {{}} orders have no answer"
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE):
                while work.missing:  # noqa: ASYNC110  # what comes in is counted elsewhere
                    await asyncio.sleep(0.05)
        reading.cancel()
        found = [left.format(work.missing)] if work.missing else []
        say(f"{sum(map(len, work.sent.values()))} orders answered")
        return found + work.problems() + made.exceeded()


VICTIMS: Final = ("reader", "daemon", "program", "activator")


async def _kill(victim: str, made: Place, session: Session) -> str:
    if victim in {"daemon", "activator"}:
        made.kill(victim)
        made.start(victim)
        return victim
    pids = _readers(made.folder, "inside" if victim == "reader" else "outside")
    for pid in pids[:1]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"{victim} {pids[:1]}"


def _readers(folder: Path, where: str) -> list[int]:
    """Processes that hold a lock below the ceiling, as the system lists them."""
    inodes = {str(one.stat().st_ino) for one in (folder / "ceiling" / where).glob("[0-9]*")}
    found = []
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].rpartition(":")[2] in inodes:
            found.append(int(words[4]))
    return found
