"""The demo: two instances converse, are killed in mid-stream, and are checked from the outside.

Calls:  place for files, daemon for processes, client for the dialogs, settled, reports.report.
Never:  leaves a process behind, or reports success without a check.
Order of events: both daemons start and are paired, as `brokerd peer pair` does it, so that
connections and dialogs are encrypted; the client converses; west is killed after a third of the
answers and east after two thirds, each started again immediately; both stores settle; both daemons
are stopped; the report is made from their metrics logs.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import uvloop

from brokerd.client.session import Session, connect
from brokerd.clock import Clock, SystemClock
from brokerd.demo.client import ALL, FROM, TO, Client, Tally
from brokerd.demo.daemon import Daemon, DemoFailed
from brokerd.demo.dialogs import Dialog, choose_files, order_dialogs
from brokerd.demo.place import EAST, WEST, Place
from brokerd.demo.result import MEMORY_LIMIT, DemoResult, Kill, Memory, mib
from brokerd.errors import BrokerError, Refusal
from brokerd.ids import IdSource, RandomIds
from brokerd.process.signals import on_interrupt
from brokerd.reports.report import run_report
from brokerd.telemetry.status import InstanceStatus

PATIENCE: Final = 60.0
"""Seconds without any progress after which the demo gives up."""
_END_NOTED: Final = 2.0
"""Seconds until the end of a daemon is known at the latest."""
_PATIENCE_WHEN_WRONG: Final = 10.0
_SETTLED_WITHIN: Final = 60.0
_LOOK_EVERY: Final = 0.25
_FILES_AT_ONCE: Final = 200
_CRASHED: Final = " after a crash."
"""The end of what the report says about a daemon that was killed and started again."""
_BEFORE_KILL: Final = {WEST: 0.5, EAST: 0.85}
"""Largest share of the messages that is sent before this instance is killed, so that the kill
interrupts a stream even on a fast machine."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a demo."""

    directory: Path
    dialogs: int = 500
    orders: int = 20_000
    source: Path | None = None
    """Directory of files to stream instead of orders; None = orders."""
    pattern: str = "*"
    limit_files: int | None = None
    limit_lines: int | None = None
    kill: bool = True
    report: bool = True
    keep: bool = False


class Teller(msgspec.Struct, frozen=True):
    """Callbacks through which the demo reports its progress."""

    say: Callable[[str], None]
    progress: Callable[[str], None]
    """Function called about once a second with a line that replaces the previous line."""


class Work(msgspec.Struct):
    """The dialogs of the client."""

    dialogs: Iterable[Dialog]
    count: int
    messages: int
    at_once: int
    what: str


def demo(
    options: DemoOptions, teller: Teller, *, clock: Clock | None = None, ids: IdSource | None = None
) -> DemoResult:
    """Run the whole demo and return its result; block until it is over.

    Call this in the main thread, because it handles SIGTERM, SIGINT and SIGHUP while daemons run.
    The first such signal ends the daemons and then raises `KeyboardInterrupt`.

    Raises:
        Refusal: the demo cannot begin. Later faults are in the result.
        KeyboardInterrupt: a signal ended the demo.
    """
    clock = clock or SystemClock()
    rng = Random((ids or RandomIds()).fresh())  # noqa: S311  # ports, not secrets
    began = clock.monotonic()
    work = _work(options, teller)
    with Place(options.directory, rng=rng) as place:
        result = DemoResult(str(place.directory))
        run = _Run(
            options=options, place=place, work=work, result=result, teller=teller, clock=clock
        )
        if not uvloop.run(run.run()):
            raise KeyboardInterrupt
        if result.ok and options.report:
            _report(place, result, teller, clock)
        if result.ok and not options.keep:
            place.remove_stores()
    result.total_seconds = clock.monotonic() - began
    return result


def _work(options: DemoOptions, teller: Teller) -> Work:
    if options.source is None:
        if not 0 < options.dialogs <= options.orders:
            raise Refusal("each dialog takes at least one order", hint="give more --orders")
        dialogs = order_dialogs(options.dialogs, options.orders)
        what = f"{options.orders} orders in {options.dialogs} dialogs"
        return Work(dialogs, options.dialogs, options.orders, options.dialogs, what)
    chosen = choose_files(
        options.source,
        pattern=options.pattern,
        limit_files=options.limit_files,
        limit_lines=options.limit_lines,
        but=options.directory,
    )
    if chosen.skipped:
        teller.say(f"{chosen.skipped} files cannot be read and are left out")
    count = len(chosen.files)
    if not count:
        raise Refusal(f"there is no file to send in {options.source}", hint="see --pattern")
    what = f"{chosen.messages - count} lines of {count} files"
    return Work(chosen.dialogs(), count, chosen.messages, _FILES_AT_ONCE, what)


class _Run:
    """One run, from starting the daemons to stopping them."""

    def __init__(
        self,
        *,
        options: DemoOptions,
        place: Place,
        work: Work,
        result: DemoResult,
        teller: Teller,
        clock: Clock,
    ) -> None:
        self._options = options
        self._place = place
        self._work = work
        self._result = result
        self._teller = teller
        self._clock = clock

    async def run(self) -> bool:
        """Run the demo and put faults into the result. Return False if a signal interrupted it."""
        interrupted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with on_interrupt(partial(interrupted.set_result, None)) as interruption:
            await self._run(interrupted)
            return not interruption.is_wanted

    async def _run(self, interrupted: "asyncio.Future[None]") -> None:
        sites = self._place.sites
        self.east = Daemon(sites[EAST], clock=self._clock)
        self.west = Daemon(sites[WEST], clock=self._clock)
        self.both = (self.east, self.west)
        self._tally = Tally(clock=self._clock)
        watching = asyncio.ensure_future(self._watch())
        working = asyncio.ensure_future(self._converse_and_stop())
        any_of: set[asyncio.Future[Any]] = {working, watching, self.east.lost, self.west.lost}
        any_of.add(interrupted)
        try:
            await asyncio.wait(any_of, return_when=asyncio.FIRST_COMPLETED)
            if working.done() and working.exception() is not None:
                # A connection breaks before the end of its daemon is known, which is the cause.
                ends = {self.east.lost, self.west.lost}
                await asyncio.wait(ends, timeout=_END_NOTED, return_when=asyncio.FIRST_COMPLETED)
            if not interrupted.done():
                self._judge_end(working, watching)
        except (DemoFailed, BrokerError) as error:
            self._result.differs.append(str(error))
        finally:
            for one in (working, watching):
                one.cancel()
            await asyncio.wait({working, watching})
            for daemon in self.both:
                await daemon.end()
            self._sum_up()

    def _judge_end(self, working: "asyncio.Future[None]", watching: "asyncio.Future[str]") -> None:
        for daemon in self.both:
            if daemon.lost.done():
                raise DemoFailed(f"{daemon.lost.result()}\n{daemon.tail()}")
        if watching.done():
            raise DemoFailed(watching.result())
        working.result()

    async def _converse_and_stop(self) -> None:
        say = self._teller.say
        say(f"directory  {self._place.directory}")
        await self._start_both()
        say("started    east and west")
        await self._pair()
        say(f"paired     east and west, encrypted; now {self._work.what}")
        began = self._clock.monotonic()
        async with connect(self.east.site.address, broker="main", clock=self._clock) as session:
            await self._converse(session)
            self._result.conversing_seconds = self._clock.monotonic() - began
            began = self._clock.monotonic()
            await self._settle(session)
            self._result.settling_seconds = self._clock.monotonic() - began
        for daemon in self.both:
            status = self._result.exit_statuses[daemon.name] = await daemon.stop()
            if status:
                self._differs(f"{daemon.name} stopped with status {status} on SIGTERM")

    async def _start_both(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for daemon in self.both:
                    group.create_task(daemon.start())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _pair(self) -> None:
        """Introduce the daemons to each other by the verbs of `brokerd peer pair` (SEC-60)."""
        east = connect(self.east.site.address, broker="main", clock=self._clock)
        west = connect(self.west.site.address, broker="main", clock=self._clock)
        async with east as joining, west as inviting:
            shown = await inviting.admin.invite_peer(shares=[TO])
            await joining.admin.join_peer(shown.code)
            answer = await joining.admin.ping(TO, from_service=FROM)
            if not answer.is_complete:
                raise DemoFailed("east and west are paired, but a ping does not come back")

    async def _converse(self, session: Session) -> None:
        self._tally = tally = Tally(clock=self._clock)
        gate = _BEFORE_KILL[WEST] if self._options.kill else ALL
        client = Client(session, tally, clock=self._clock, at_once=self._work.at_once, gate=gate)
        killing = asyncio.ensure_future(self._kill_both(tally, client))
        conversing = asyncio.ensure_future(client.run(self._work.dialogs))
        try:
            done, _ = await asyncio.wait({killing, conversing}, return_when=asyncio.FIRST_EXCEPTION)
            for one in done:
                one.result()
        finally:
            for one in (killing, conversing):
                one.cancel()
            await asyncio.wait({killing, conversing})
            self._end_pause()

    async def _kill_both(self, tally: Tally, client: Client) -> None:
        if not self._options.kill:
            return
        third = self._work.messages // 3
        for daemon, answered, gate in (
            (self.west, third, _BEFORE_KILL[EAST]),
            (self.east, 2 * third, ALL),
        ):
            await tally.mark(max(1, answered)).wait()
            self._end_pause()
            at = self._clock.monotonic()
            kill = Kill(daemon.name, at - tally.began_at, tally.answered)
            self._result.kills.append(kill)
            await daemon.kill()
            client.open_gate(gate)  # only now: the kill had to come before all was sent
            self._teller.say(f"killed     {daemon.name}, with {tally.answered} answered")
            await daemon.start()
            kill.ready_after = self._clock.monotonic() - at

    def _end_pause(self) -> None:
        if self._result.kills:
            self._result.kills[-1].pause = self._tally.longest_pause
        self._tally.longest_pause = 0.0

    async def _settle(self, session: Session) -> None:
        deadline = self._clock.monotonic() + _SETTLED_WITHIN
        west = await connect(self.west.site.address, broker="main", clock=self._clock)
        async with west:
            while True:
                waits = await unsettled(EAST, session)
                waits += await unsettled(WEST, west, closed=self._work.count)
                if not waits:
                    return
                if self._clock.monotonic() > deadline:
                    self._result.differs += waits
                    return
                # `_watch` does not count settling as a standstill: it has a deadline of its own.
                self._tally.moved_at = self._clock.monotonic()
                await self._clock.sleep_until(self._clock.monotonic() + _LOOK_EVERY)

    async def _watch(self) -> str:
        """Show the progress once a second; return a sentence after too long without progress."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + 1.0)
            for daemon in self.both:
                daemon.sample()
            tally = self._tally
            self._teller.progress(self._how_far(tally))
            patience = _PATIENCE_WHEN_WRONG if tally.faults else PATIENCE
            if self._clock.monotonic() - tally.moved_at > patience:
                return f"nothing has moved for {patience:.0f} s: {self._how_far(tally)}"

    def _how_far(self, tally: Tally) -> str:
        if not tally.sent:
            return "starting"
        memory = ", ".join(
            f"{one.name} {mib(one.peaks[-1])}" for one in self.both if one.peaks and one.peaks[-1]
        )
        return (
            f"{tally.sent} of {self._work.messages} sent, {tally.answered} answered, "
            f"{tally.ended} of {self._work.count} dialogs ended  {memory}"
        )

    def _sum_up(self) -> None:
        """Put the figures into the result and check them.

        The last three checks are made only if no fault was found before: otherwise the client did
        not finish, and they would report the consequences of that as further faults.
        """
        tally, result = self._tally, self._result
        result.differs = tally.faults + result.differs
        result.dialogs, result.sent = tally.dialogs, tally.sent
        result.answered, result.replies = tally.answered, tally.replies
        result.lost, result.doubled = max(0, tally.sent - tally.answered), tally.doubled
        result.redone = tally.redone
        # Unanswered messages are not lost if a daemon ended by itself: the demo stopped waiting.
        cut_short = any(one.lost.done() for one in self.both)
        if result.differs and (result.doubled or (result.lost and not cut_short)):
            wrong = f"{result.lost} lost and {result.doubled} doubled of {result.sent} sent"
            result.differs.insert(0, wrong)
        result.orders_per_second = _rate(tally.sent, tally.sent_at - tally.began_at)
        if tally.first_reply_at is not None and tally.replied_at is not None:
            result.replies_per_second = _rate(tally.replies, tally.replied_at - tally.began_at)
        result.memory = [Memory(one.name, [p for p in one.peaks if p]) for one in self.both]
        for memory in result.memory:
            if memory.peak >= MEMORY_LIMIT:
                self._differs(
                    f"{memory.instance} used {mib(memory.peak)} of memory, "
                    f"more than {mib(MEMORY_LIMIT)}"
                )
        if result.ok and tally.dialogs != self._work.count:
            self._differs(f"{tally.dialogs} dialogs were begun instead of {self._work.count}")
        if result.ok and tally.sent != self._work.messages:
            self._differs(f"{tally.sent} messages were sent instead of {self._work.messages}")
        if result.ok and tally.answered != tally.sent:
            self._differs(f"{tally.sent} messages were sent and {tally.answered} answered")

    def _differs(self, text: str) -> None:
        self._result.differs.append(text)


def _report(place: Place, result: DemoResult, teller: Teller, clock: Clock) -> None:
    began = clock.monotonic()
    try:
        made = run_report(place.metrics, place.report, state_dir=place.directory, say=teller.say)
    except Refusal as error:
        result.differs.append(f"no report: {error.message} ({error.hint})")
        return
    finally:
        result.report_seconds = clock.monotonic() - began
    result.report = str(made.page) if made.page else None
    result.report_verdict = made.verdict
    if made.page is None:
        result.differs.append(f"no report: {(made.said or ('',))[-1]}")
    elif named := _named(place.report):
        result.differs.append(f"the report says {made.verdict}: {named[0]}")


def _named(report: Path) -> list[str]:
    """Return what a report names, except the crashes: the demo has caused them itself."""
    said = msgspec.json.decode((report / "summary.json").read_bytes())
    points = (one["text"] for one in said["points"] if one["status"] != "fine")
    return [text for text in points if not text.endswith(_CRASHED)]


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


async def unsettled(instance: str, session: Session, *, closed: int = 0) -> list[str]:
    """Return the problems left after all dialogs are over, one sentence each; empty = settled.

    Settled means that no message is ready in any queue, the transmission queue is empty, and the
    only endpoints are `closed` ones in state CD, which wait for the end of their replay guard.
    """
    status = msgspec.convert(await session.status(), InstanceStatus, strict=False)
    found = [
        f"{queue.ready} messages wait in queue {queue.name} of {instance}"
        for queue in status.queues
        if queue.ready
    ]
    waiting = len(await session.view("transmission_queue"))
    if waiting:
        found.append(f"{waiting} messages wait in the transmission queue of {instance}")
    states = Counter(_state(row) for row in await session.view("conversation_endpoints"))
    found += [
        f"{count} dialog endpoints of {instance} are {state}"
        for state, count in sorted(states.items())
        if state != "CD"
    ]
    if states["CD"] != closed and not found:
        found.append(
            f"{instance} has {states['CD']} closed dialog endpoints, where {closed} are expected"
        )
    return found


def _state(row: object) -> str:
    return str(row["state"]) if isinstance(row, dict) else "unknown"
