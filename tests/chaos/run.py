"""Run: a stream through daemons while faults befall them; then everything is held against it.

Calls:  places, faults, the judge.      Never:  leaves a process behind, or files of a clean run.
"""

import asyncio
import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from brokerd.client.session import connect
from tests.chaos.commands import doctor, verify
from tests.chaos.faults import Faults
from tests.chaos.judge import judge, judge_closing_lines, judge_log, judge_logins
from tests.chaos.places import Places
from tests.chaos.plan import Plan
from tests.chaos.report import Report
from tests.chaos.schedule import EAST, GUARDS, WEST, Form, Kind, faults
from tests.chaos.sender import cursor_of, read_cursor
from tests.chaos.stores import DATABASE
from tests.chaos.stream import Stream, make_stream
from tests.postgresql.servers import Server, Servers

RATE: Final = 40
"""Messages a second that a drawn stream has."""
STUCK_AFTER: Final = 180.0
"""Seconds without a fault and without any change in any store after which something is stuck: more
than guards and the longest pauses between attempts take."""
LOOK_EVERY: Final = 0.5
CONVERSING: Final = "endpoints CO"
TELL_EVERY: Final = 15.0
EXPLAINED: Final = frozenset({"D43"})
"""Codes of findings of the machine, not of what went on here: the room on its disk."""
Say = Callable[[str], object]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to run."""

    form: Form = Form.TWO
    seed: int = 1
    seconds: float = 600.0
    """How long messages are sent and faults come, at least."""
    stream: Path | None = None
    """One that is there; None draws one."""
    haste: float = 1.0
    """All times of faults, and the guard, are so many times shorter."""
    rate: float = RATE
    faults: int | None = None
    """How many faults there are; None: they go on until all is received."""
    only: tuple[Kind, ...] = ()
    """The kinds of faults; none = all."""
    fast_paths: bool = True
    """Whether ordinary messages may take the daemons' fast path."""
    on_server: bool = False
    """Whether the stores are in PostgreSQL."""


async def run(folder: Path, options: Options, say: Say) -> Report:
    """One run in a new directory, which the report tells of; its processes are gone afterwards."""
    folder.mkdir(mode=0o700, parents=True)  # noqa: ASYNC240  # nothing else is to be done meanwhile
    report = Report(form=options.form, seed=options.seed, folder=str(folder))
    began = time.monotonic()
    said = lambda text: say(f"{time.monotonic() - began:7.1f}  {text}")  # noqa: E731
    where = options.stream or folder / "stream"
    if options.stream is None:
        messages = int(options.seconds * options.rate)
        await asyncio.to_thread(make_stream, where, seed=options.seed, messages=messages)
    stream = Stream(where)
    report.dialogs, report.bytes = len(stream.dialogs), stream.size
    said(f"{len(stream)} messages of {len(stream.dialogs)} dialogs, {stream.size / 2**20:.1f} MiB")
    guard = GUARDS[0] / options.haste
    with ExitStack() as stack:
        server = _server(stack) if options.on_server else None
        places = Places(
            folder, options.form, guard=guard, fast_paths=options.fast_paths, server=server
        )
        return await _play(places, where, stream, options, report=report, say=said)


def _server(stack: ExitStack) -> Server:
    """Start a PostgreSQL server for the stores of all daemons."""
    server = stack.enter_context(Servers()).started("chaos", fsync=True)
    server.create_database(DATABASE)
    return server


async def _play(
    places: Places, where: Path, stream: Stream, options: Options, *, report: Report, say: Say
) -> Report:
    """Let programs talk and faults happen, and judge what came of it."""
    folder, said, began = places.folder, say, time.monotonic()
    going = _Run(places, where, options, report=report, say=said)
    complete = False
    try:
        await going.go()
        complete = True
    except Exception:  # noqa: BLE001  # whatever happened is what this run has found
        report.problems.append(f"the run broke off:\n{traceback.format_exc()}")
    finally:
        await places.end()
    report.seconds = time.monotonic() - began
    report.problems += going.faults.problems
    report.faults = dict(going.faults.counts)
    report.problems += [f"process {pid} was left behind" for pid in places.left_over()]
    for daemon in places.daemons.values():
        report.peaks[daemon.name] = daemon.peak
        report.stores[daemon.name] = daemon.store.size
        report.problems += judge_log(daemon.log)
        windows = going.faults.credentials.refusing[daemon.name]
        report.problems += judge_logins(daemon.log, windows)
        report.problems += judge_closing_lines(daemon.directory / "metrics")
    said("judging the journals")
    verdict = await asyncio.to_thread(judge, folder / "journal", stream, complete=complete)
    report.problems += verdict.problems
    report.messages, report.replies = verdict.messages, verdict.replies
    report.transactions = verdict.transactions
    for name in options.form.ways:
        report.resets[name] = sum(relay.resets for relay in places.between(name))
        report.passed[name] = sum(relay.passed for relay in places.between(name))
    return report


def clear(report: Report) -> None:
    """Remove the files of a run that found nothing."""
    if not report.problems:
        shutil.rmtree(report.folder)


class _Run:
    def __init__(
        self, places: Places, stream: Path, options: Options, *, report: Report, say: Say
    ) -> None:
        self._places = places
        self._report = report
        self._say = say
        drawn = faults(options.seed, options.form, haste=options.haste, only=options.only)
        schedule = islice(drawn, options.faults)
        self.faults = Faults(places, schedule, say)
        self._plan = Plan(
            stream=str(stream.absolute()),
            journal=str(places.folder / "journal"),
            client_address=places.daemons[EAST].address,
            ledger_address=places.daemons[WEST].address,
            senders=sum(name.startswith("sender") for name in options.form.programs),
            began=time.monotonic(),
            seconds=options.seconds,
        )

    async def go(self) -> None:
        """Everything up to the stop of the daemons."""
        places, found = self._places, self._report.problems
        await places.start_daemons()
        await self.faults.credentials.introduce()
        self._plan = msgspec.structs.replace(self._plan, began=time.monotonic())
        self._plan.write(places.folder)
        await places.start_programs()
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self.faults.watch())
            telling = tasks.create_task(self._tell())
            befalling = tasks.create_task(self.faults.run(enough))
            await self._received()
            enough.set()
            await befalling
            self._say("no more faults; what is under way has to come to its end")
            await self._end_cursors()
            found += await self._settled()
            watching.cancel()
            telling.cancel()
        for name, daemon in places.daemons.items():
            told = await doctor(daemon.file)
            rows = [row for row in told if row["code"] not in EXPLAINED]
            found += [
                f"doctor says of {name}: {row['code']} {row['about']}: {row['text']}"
                for row in rows
            ]
        await self._stop()

    async def _received(self) -> None:
        """Wait until all is sent and received, and the time is over.

        Raises `RuntimeError` if nothing moves any more."""
        senders = [one for name, one in self._places.programs.items() if name.startswith("sender")]
        still = _Still()
        while (
            time.monotonic() < self._over
            or not all(one.is_done for one in senders)
            or self._rows()[0].get(CONVERSING)
        ):
            await asyncio.sleep(LOOK_EVERY)
            if still.since(self._rows()) > 2 * STUCK_AFTER and time.monotonic() > self._over:
                raise RuntimeError(f"nothing moves any more: {self._rows()}")

    @property
    def _over(self) -> float:
        return self._plan.began + self._plan.seconds

    async def _end_cursors(self) -> None:
        """End the dialogs whose groups keep the positions of the senders."""
        async with connect(self._plan.client_address, broker="main", wait=60) as session:
            for number in range(self._plan.senders):
                async with session.group(cursor_of(number)) as group:
                    handle, _ = read_cursor(group.state)
                    await group.tx.end(handle)

    async def _settled(self) -> list[str]:
        """Wait until no store has anything of a dialog left; what is left if nothing moves."""
        still = _Still()
        while any(rows := self._rows()):
            if still.since(rows) > STUCK_AFTER:
                return [
                    f"{name} has {count} rows left: {table}"
                    for name, found in zip(self._places.daemons, rows, strict=True)
                    for table, count in found.items()
                ]
            await asyncio.sleep(LOOK_EVERY)
        return []

    def _rows(self) -> list[dict[str, int]]:
        found = []
        for daemon in self._places.daemons.values():
            try:
                found.append(daemon.store.rows())
            except OSError:
                found.append({})
        return found

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY)
            rows = zip(self._places.daemons, self._rows(), strict=True)
            self._say("; ".join(f"{name}: {_words(found)}" for name, found in rows))

    async def _stop(self) -> None:
        found = self._report.problems
        for one in self._places.programs.values():
            await one.kill()
        for name, daemon in self._places.daemons.items():
            if status := await daemon.stop():
                found.append(f"{name} ended with status {status} when it was to stop")
            if wrong := await verify(daemon.store):
                found.append(f"the store of {name} at the end is not whole: {wrong}")
            found += [
                f"{name} has {count} rows left after its stop: {table}"
                for table, count in daemon.store.rows().items()
            ]
            found += [
                f"a backup of {name} has left {path.name} behind"
                for path in daemon.backups.glob("*")
                if path.suffix != ".db"
            ]


class _Still:
    """Since when something has not changed."""

    def __init__(self) -> None:
        self._last: object = None
        self._at = time.monotonic()

    def since(self, value: object) -> float:
        """Seconds for which it has been like this."""
        if value != self._last:
            self._last, self._at = value, time.monotonic()
        return time.monotonic() - self._at


def _words(rows: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in rows.items()) or "nothing"
