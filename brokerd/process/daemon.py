"""The daemon: an instance on the machine's clocks, sockets and threads, until a signal ends it.

Reads: settings.      Calls: preflight, instance, logs, metrics_log, watchdog, supervisor.
Never: decides anything about messages.
Fails: with an exit status that tells operators the remedy (reliability, section 2).
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NoReturn, cast

import uvloop

from brokerd.activation.handlers import import_from_here
from brokerd.checking.process import CheckProcess
from brokerd.clock import SystemClock
from brokerd.config.settings import Settings
from brokerd.errors import Refusal, StoreFault, StoreLocked
from brokerd.ids import BootId, RandomIds
from brokerd.instance import part_options
from brokerd.instance.instance import Instance, Surroundings
from brokerd.instance.preflight import check_start, first_broker
from brokerd.instance.store_engine import executor_of, survey_of
from brokerd.maintenance.disk_space import SystemDisk
from brokerd.maintenance.slow_commits import SlowCommits
from brokerd.objects.declared import Declared
from brokerd.process.allocator import keep_freed
from brokerd.process.exit_statuses import INTERNAL_ERROR, IO_ERROR, TAKEN, exit_status
from brokerd.process.host import fingerprint
from brokerd.process.reloading import Reloading
from brokerd.process.restarting import is_restarted, reap_former_children, restart
from brokerd.process.secrecy import keep_private
from brokerd.process.supervisor import Supervisor
from brokerd.process.waiting import Waiting
from brokerd.process.watchdog import PERIOD, Watchdog
from brokerd.telemetry.logs import DAEMON, EventLog, configure
from brokerd.telemetry.metrics_log import MetricsLog
from brokerd.transport.network import SystemNetwork

if TYPE_CHECKING:
    from brokerd.storage.postgresql.claim import Claim

SWITCH_INTERVAL: Final = 0.0005
"""Seconds after which another thread may run in the interpreter; see design D3."""
HANDLER_BLOCKS: Final = 'await what takes time, or run the handler with host = "process"'
COLLECT: Final = (10_000, 1, 200)
"""Thresholds of the garbage collector.

A message creates some twenty objects and leaves no cycles, and neither does a dialog that ends
(RCV-45), so the default of 700 would scan much of memory hundreds of times a second for nothing.
But a collection takes about a microsecond for each new object, and the writer waits meanwhile: with
50,000 a collection took up to 50 ms, and was the longest hop to the writer.
"""


def serve(
    settings: Settings,
    *,
    declared: Declared | None = None,
    reread: Callable[[], Settings] | None = None,
    waits: bool = True,
) -> int:
    """Run a daemon until SIGTERM or SIGINT; return the exit status.

    Raises `Refusal` if the daemon cannot start.

    `reread`: reads the settings again, for SIGHUP (REL-38); None = the settings stay as they are.
    `waits`: whether to wait while another daemon has the stores on a server (REL-54).
    """
    # Recorded until the loop has its own handler, because the default would end the process.
    early: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _frame: early.append(number))
    keep_private(core_dumps=settings.daemon.core_dumps)
    import_from_here()
    reap_former_children()
    try:
        if not settings.is_on_server:  # otherwise when no other daemon makes it meanwhile
            declared = declared or first_broker(settings)
        check_start(settings, declared)
    except StoreFault as error:  # the server is waited for if it has answered before
        if not is_restarted() or isinstance(error, Refusal):
            raise
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.set_threshold(*COLLECT)
    keep_freed()
    return uvloop.run(_serve(settings, declared, reread or (lambda: settings), early, waits=waits))


async def _serve(
    settings: Settings,
    declared: Declared | None,
    reread: Callable[[], Settings],
    early: Sequence[int],
    *,
    waits: bool,
) -> int:
    """Run a daemon on this loop. `early`: the SIGHUPs that came before the loop ran."""
    clock, ids = SystemClock(), RandomIds()
    boot_id = BootId(ids.fresh())
    events = configure(
        settings.log,
        clock=clock,
        instance=settings.instance.name,
        boot_id=boot_id,
    )
    metrics = MetricsLog(
        directory=settings.metrics_dir,
        instance=settings.instance.name,
        boot_id=boot_id,
        clock=clock,
        segment_age=settings.log.segment_age,
        segment_size=settings.log.segment_size,
        later=_in_a_thread,
    )
    events.copy_to(metrics.write_event)
    instance = _instance(settings, events, boot_id, metrics)
    stop = asyncio.Event()
    hurry = asyncio.Event()
    handing_over = asyncio.Event()

    def on_hand_over() -> None:
        if not stop.is_set():
            handing_over.set()
            stop.set()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    hangups = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hangups.set)
    supervisor = Supervisor.from_environment(os.environ, turn=PERIOD)
    place = Place(settings, instance, events, supervisor, declared)
    if settings.is_on_server and not await place.claim(stop, waits=waits):
        return 0
    await place.start()
    gc.freeze()
    reloading = Reloading(instance=instance, events=events, supervisor=supervisor, reread=reread)
    loop.add_signal_handler(signal.SIGHUP, reloading.reload)
    if settings.is_on_server:
        place.allow_hand_over(on_hand_over)
    turned = partial(give_sign_of_life, instance.parts.slow_commits, supervisor)
    with _watchdog(settings, events, turned):
        supervisor.ready()
        if early or hangups.is_set():  # while it was starting (REL-38)
            reloading.reload()
        failure = await _until_stopped(instance, stop, hurry, supervisor, handing_over)
    if failure is not None:
        place.leave(failure)
    await place.release()
    if handing_over.is_set():
        events.close()
        restart()
    return 0


class Place:
    """The place where one daemon has its stores: the claim to them, and the way back to it."""

    def __init__(
        self,
        settings: Settings,
        instance: Instance,
        events: EventLog,
        supervisor: Supervisor,
        declared: Declared | None,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._events = events
        self._supervisor = supervisor
        self._declared = declared
        self._claim: Claim | None = None
        self._comes_back = is_restarted()
        """Whether the server has answered once, so that it is waited for."""

    async def claim(self, stop: asyncio.Event, *, waits: bool) -> bool:
        """Get the claim to the stores on a server; return False if the daemon was asked to stop."""
        instance, world = self._instance, self._instance.surroundings
        waiting = Waiting(
            self._settings,
            clock=world.clock,
            network=world.network,
            log=world.log,
            supervisor=self._supervisor,
            began=self._began,
        )
        with _watchdog(self._settings, self._events, self._supervisor.turned):
            claiming = asyncio.ensure_future(
                instance.wait(waiting.claim(waits=waits, is_known=self._comes_back))
            )
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not claiming.done():
                claiming.cancel()
                await asyncio.gather(claiming, return_exceptions=True)
                return False
            self._claim = claiming.result()
        self._claim.begin(instance.parts.tasks.fail)
        return True

    def allow_hand_over(self, begin: Callable[[], None]) -> None:
        """Let administrators hand the stores over; `begin`: stops this daemon for it (REL-58)."""
        assert self._claim is not None, "it has the stores"
        self._instance.parts.hand_over.allow(self._claim.waiting, begin)

    def _began(self) -> None:
        self._comes_back = True
        self._instance.parts.tasks.spawn(self._instance.start_http())

    async def start(self) -> None:
        """Start the instance on the stores as they are now."""
        try:
            if self._settings.is_on_server:
                found = await asyncio.to_thread(survey_of, self._settings)
                self._instance.stores.host = found.fingerprint
                if self._declared is None and not found.brokers:
                    self._declared = Declared()
            await self._instance.start(self._declared)
        except (StoreFault, StoreLocked) as error:
            if self._comes_back:
                self.leave(error)
            raise

    def leave(self, failure: BaseException) -> NoReturn:
        """End with a failure, or begin again in this process where the server may come back.

        Without clean-up: the next start decides about unconfirmed transactions (REL-5), and a
        thread that still holds a connection must not keep the process alive.
        """
        self._instance.log_failure(failure)
        comes_back = isinstance(failure, StoreFault | StoreLocked) and _status_of(failure) in {
            IO_ERROR,
            TAKEN,
        }
        if comes_back and self._settings.is_on_server:
            self._supervisor.describe("the stores are lost; beginning again")
            metrics = self._instance.surroundings.metrics
            if metrics is not None:  # the wait may last for months, and the report needs the lines
                metrics.seal_now()
            self._events.close()
            restart()
        self._events.close()
        os._exit(_status_of(failure))

    async def release(self) -> None:
        """Give the claim back, once the stores are closed."""
        if self._claim is not None:
            await self._claim.release()


def _instance(
    settings: Settings, events: EventLog, boot_id: BootId, metrics: MetricsLog
) -> Instance:
    """Return the instance, with the clocks, sockets and threads of this machine."""
    clock, ids = SystemClock(), RandomIds()
    return Instance(
        settings,
        Surroundings(
            clock=clock,
            ids=ids,
            rng=Random(ids.fresh()),  # noqa: S311  # turns and delays, not secrets
            network=SystemNetwork(
                connect_timeout=settings.transport.connect_timeout.total_seconds()
            ),
            executor=executor_of(settings),
            checker=CheckProcess(limits=part_options.check_limits(settings), log=events.log),
            log=events.log,
            boot_id=boot_id,
            host=None if settings.is_on_server else fingerprint(),
            # The disk of a server's machine cannot be seen from here.
            disk=None if settings.is_on_server else SystemDisk(settings.instance.data_dir),
            metrics=metrics,
            summarise=events.summarise,
            identify=events.identify,
            serves_http=True,
        ),
    )


def _watchdog(settings: Settings, events: EventLog, turned: Callable[[], None]) -> Watchdog:
    """Return a watchdog that logs the task that blocks the loop, mostly a handler (FP-8).

    While the loop is blocked, the supervisor gets no sign of life.
    """

    def report_blocked(seconds: float, task: str, stack: list[str]) -> None:
        events.write_aside(
            "warning",
            DAEMON,
            subclass="loop_blocked",
            seconds=seconds,
            task=task,
            stack=stack,
            hint=HANDLER_BLOCKS,
        )

    def report_free(seconds: float) -> None:
        events.log.warning(DAEMON, subclass="loop_free", seconds=seconds)

    after = settings.daemon.loop_blocked.total_seconds()
    return Watchdog(
        after=after, report_blocked=report_blocked, report_free=report_free, turned=turned
    )


def give_sign_of_life(slow: SlowCommits, supervisor: Supervisor) -> None:
    """Count a turn of the loop for signs of life, unless a commit is stuck.

    A commit that never returns ends only with the process (REL-34), so a supervisor must end it.
    """
    slow.check()
    if not slow.is_stuck:
        supervisor.turned()


def _in_a_thread(work: Callable[[], None]) -> None:
    """Compress and sync a segment on a thread, because the loop must not wait.

    The exit of the process waits for the thread."""
    asyncio.get_running_loop().run_in_executor(None, work)


async def _until_stopped(
    instance: Instance,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    supervisor: Supervisor,
    handing_over: asyncio.Event,
) -> BaseException | None:
    """Wait for a signal, then stop cleanly; return the error of a failed instance, else None."""
    failure = await _first(stop.wait(), instance.failed)
    if failure is None:
        if handing_over.is_set():
            supervisor.describe("handing the stores over to a daemon that waits for them")
        else:
            supervisor.stopping()
        stopping = asyncio.ensure_future(instance.stop(instance.settings.daemon.drain))
        stopping.add_done_callback(lambda _done: hurry.set())
        failure = await _first(hurry.wait(), instance.failed)
        if failure is None:
            if not stopping.done():
                instance.parts.sessions.end_all()
            await stopping
    return failure


async def _first(
    wanted: Coroutine[None, None, object], failed: asyncio.Future[BaseException]
) -> BaseException | None:
    """Wait for `wanted` or for a failure of the instance; return the failure, else None."""
    waiting: asyncio.Future[object] = asyncio.ensure_future(wanted)
    both: list[asyncio.Future[object]] = [waiting, cast("asyncio.Future[object]", failed)]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        waiting.cancel()
        return failed.result()
    return None


def _status_of(error: BaseException) -> int:
    return exit_status(error) if isinstance(error, StoreFault | Refusal) else INTERNAL_ERROR
