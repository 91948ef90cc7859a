"""Activator: reads notifications of brokers and starts the programs they call for (ACT-40).

Reads:  notification queues, as any client does, on this machine or another (ACT-43).
Calls:  plan for the number, recovery for the survivors, activation.processes to run programs.
Never:  receives from the queue of an application: the programs do (ACT-44). A notification is
        consumed even if it starts nothing; a lost one is repeated, because no receive follows
        (ACT-36).
Fails:  an unreachable daemon is retried; a program fails alone, and its failure is logged.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import orjson

from brokerd.activation.processes import Child, Running, start
from brokerd.activator import plan as plans
from brokerd.activator.config import (
    ActivatorConfig,
    ApplicationService,
    NotificationService,
    memory_of,
)
from brokerd.activator.plan import Answer, Plan
from brokerd.activator.recovery import RecoveryLog, Slot
from brokerd.client.address import default_address
from brokerd.client.messages import Message
from brokerd.client.session import Session, connect
from brokerd.client.transaction import Transaction
from brokerd.clock import Clock, show_instant
from brokerd.errors import BrokerError, DaemonUnreachable, TransactionAborted
from brokerd.ids import parse, show
from brokerd.model import EVENT_NOTIFICATION
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ACTIVATOR

LAST_WORDS: Final = 5.0
"""Seconds that a program has to end once its activator has ended.

Above 0, unlike for the readers of a daemon, because the program's broker may still run."""
LOOK: Final = 30.0
"""Seconds that one receive of notifications waits."""
BATCH: Final = 100
RECONNECT_FIRST: Final = 1.0
RECONNECT_MOST: Final = 30.0
"""First and longest wait, in seconds, between attempts to reach a daemon."""
SURVIVORS: Final = 0.25
"""Seconds between two checks of instances that an earlier activator has left running."""


class _Application:
    """One application, its slots and its running instances."""

    def __init__(self, service: ApplicationService, slots: list[Slot]) -> None:
        self.service = service
        self.slots = slots
        self.plan = Plan(service.instances)
        self.running: set[Running] = set()
        self.left: list[Slot] = []
        """Slots held by instances that an earlier activator started."""

    def free_slot(self) -> tuple[Slot, int] | None:
        """Return a free slot and the descriptor of its lock; None = all slots are held."""
        for slot in self.slots[: self.service.instances.max]:
            if slot.in_use or slot in self.left:
                continue
            if (descriptor := slot.lock()) is not None:
                return slot, descriptor
        return None


class Activator:
    """The activator of one configuration, which runs its programs until `stop`."""

    def __init__(self, config: ActivatorConfig, *, clock: Clock, log: Log) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._recovery = RecoveryLog(config.state_dir)
        self._applications: list[_Application] = []
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._reading: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        """Numbers of notifications by their effect, and of started and ended instances."""

    def stop(self) -> None:
        """Make `run` end all programs and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Listen and start programs until `stop`.

        Raises `StoreLocked` if another activator uses the same `state_dir`."""
        self._recovery.open()
        try:
            self._applications = [
                _Application(one, self._recovery.slots(one.name, one.instances.max))
                for one in self._config.applications
                if one.enabled
            ]
            async with asyncio.TaskGroup() as group:
                self._group = group
                for application in self._applications:
                    self._recover(application)
                    self._keep_up(application)
                for service in self._config.services:
                    if service.enabled:
                        self._reading.add(group.create_task(self._listen(service)))
                await self._stopping.wait()
                await self._end_all()
        finally:
            self._group = None
            self._recovery.close()

    # What an earlier activator has left (ACT-45).

    def _recover(self, application: _Application) -> None:
        """Count surviving instances of an earlier activator towards the application's maximum."""
        left = application.left = [slot for slot in application.slots if slot.is_held()]
        if left:
            application.plan = plans.started(application.plan, len(left))
            pids = [slot.read().get("pid") for slot in left]
            self._log_event("survivors", application, instances=len(left), pids=pids)
            self._spawn(self._await_survivors(application))

    async def _await_survivors(self, application: _Application) -> None:
        """Uncount instances of an earlier activator as they end, which they do by themselves."""
        while application.left and not self._stopping.is_set():
            await self._clock.sleep_until(self._clock.monotonic() + SURVIVORS)
            for slot in [slot for slot in application.left if not slot.is_held()]:
                application.left.remove(slot)
                self._count_out(application, failed=False, lived=plans.STEADY)

    # Notifications.

    async def _listen(self, service: NotificationService) -> None:
        """Read one notification queue until `stop`; retry while its daemon is unreachable."""
        pause = RECONNECT_FIRST
        while not self._stopping.is_set():
            try:
                async with connect(
                    service.address, broker=service.broker, wait=0.0, retry=0.0
                ) as session:
                    self._check_identity(service, session)
                    self._log.info(ACTIVATOR, subclass="connected", service=service.name)
                    pause = RECONNECT_FIRST
                    await self._read(service, session)
            except (BrokerError, OSError) as error:
                text = error.message if isinstance(error, BrokerError) else str(error)
                self._log.warning(
                    ACTIVATOR, subclass="lost", service=service.name, error=text, retry_in=pause
                )
            await self._wait(pause)
            pause = min(RECONNECT_MOST, pause * 2)

    def _check_identity(self, service: NotificationService, session: Session) -> None:
        if service.id is not None and parse(service.id) != session.welcome.broker_id:
            raise DaemonUnreachable(
                f"broker {service.broker} has the id {show(session.welcome.broker_id)}, "
                f"not {service.id}",
                hint="mend notification_service.id, or its address",
            )

    async def _read(self, service: NotificationService, session: Session) -> None:
        while not self._stopping.is_set():
            with suppress(TransactionAborted):  # the messages will be received again
                async with session.transaction() as tx:
                    for message in await tx.receive(service.queue, BATCH, wait=LOOK):
                        await self._process(service, tx, message)
            if session.closed:
                return

    async def _process(
        self, service: NotificationService, tx: Transaction, message: Message
    ) -> None:
        """Start the programs that a notification calls for.

        If the other side has ended the dialog, or the dialog has failed, end this side too."""
        if message.is_end or message.is_error:
            await tx.end(message.handle)
        elif message.message_type == EVENT_NOTIFICATION:
            self.process(service.name, message.body or b"")

    def process(self, service: str, body: bytes) -> None:
        """Start the programs that one notification calls for, or count why none starts.

        See ACT-41 and ACT-47."""
        try:
            facts: Any = orjson.loads(body)
            queue = f"{facts['instance']}/{facts['broker']}/{facts['queue']}"
        except (orjson.JSONDecodeError, KeyError, TypeError):
            facts, queue = {}, "what cannot be read"
        fitting = [one for one in self._applications if one.service.trigger.fits(facts)]
        if not fitting:
            self.counts["unknown_queue"] += 1
            self._log.warning(ACTIVATOR, subclass="unknown_queue", service=service, queue=queue)
        for application in fitting:
            answer = plans.notified(application.plan)
            if answer is Answer.START:
                self._start(application, "notified", ready_messages=facts.get("ready_messages"))
            else:
                self.counts[answer.value] += 1
                self._log_event(answer.value, application)

    # Programs.

    def _keep_up(self, application: _Application) -> None:
        """Start missing instances up to `min`, now or when a restart is allowed (ACT-42)."""
        if self._stopping.is_set():
            return
        for _ in range(plans.missing(application.plan, self._clock.monotonic())):
            self._start(application, "min")
        again = plans.next_restart(application.plan)
        if again is not None:
            self._spawn(self._keep_up_at(application, again))

    async def _keep_up_at(self, application: _Application, moment: float) -> None:
        await self._wait(moment - self._clock.monotonic())
        self._keep_up(application)

    def _start(self, application: _Application, why: str, **facts: object) -> None:
        if self._stopping.is_set():
            return
        place = application.free_slot()
        if place is None:  # held by a process that has left its group
            self.counts["slot_held"] += 1
            text = "a process of an ended instance still runs outside of its process group"
            self._log_event("slot_held", application, error=text)
            return
        application.plan = plans.started(application.plan)
        self._spawn(self._run(application, place, {"why": why, **facts}))

    async def _run(
        self, application: _Application, place: tuple[Slot, int], facts: dict[str, object]
    ) -> None:
        """Run one instance from start to end; `place`: its slot, and the descriptor of the lock."""
        began, error = self._clock.monotonic(), ""
        slot, descriptor = place
        try:
            running = await start(
                self._child(application.service, slot, descriptor),
                lambda line: self._log_event("output", application, slot=slot.number, line=line),
            )
        except (OSError, LookupError) as problem:
            error = f"it cannot be started: {problem}"
            running = None
        # Only now, when the program holds the lock itself, so that the slot is never free.
        slot.release(descriptor)
        if running is not None:
            self.counts["started"] += 1
            now = show_instant(self._clock.utc())
            slot.write(application=application.service.name, pid=running.pid, started_at=now)
            self._log_event("started", application, slot=slot.number, pid=running.pid, **facts)
            application.running.add(running)
            if self._stopping.is_set():
                running.terminate()
            try:
                error = await running.ended()
            finally:
                application.running.discard(running)
        slot.in_use = False
        lived = self._clock.monotonic() - began
        self.counts["ended"] += 1
        self._count_out(application, failed=bool(error), lived=lived)
        self._log_event(
            "ended", application, slot=slot.number, seconds=round(lived, 3), error=error
        )

    def _child(self, service: ApplicationService, slot: Slot, descriptor: int) -> Child:
        launch = service.launch
        sources = [one for one in self._config.services if one.broker == service.trigger.broker]
        address = next((one.address for one in sources if one.address is not None), None)
        return Child(
            words=launch.command,
            environment={
                "BROKERD_ADDRESS": address or default_address(),
                "BROKERD_BROKER": service.trigger.broker,
                "BROKERD_QUEUE": service.trigger.queue,
                "BROKERD_INSTANCE": str(slot.number),
                **launch.environment,
            },
            run_as=launch.run_as,
            memory=memory_of(launch),
            last_words=LAST_WORDS,
            directory=launch.directory,
            descriptors=(descriptor,),
        )

    def _count_out(self, application: _Application, *, failed: bool, lived: float) -> None:
        application.plan = plans.ended(
            application.plan, failed=failed, lived=lived, now=self._clock.monotonic()
        )
        self._keep_up(application)

    async def _end_all(self) -> None:
        """End the programs: send SIGTERM, wait for the grace period, send SIGKILL (ACT-46)."""
        for task in self._reading:
            task.cancel()
        running = [one for application in self._applications for one in application.running]
        for one in running:
            one.terminate()
        deadline = self._clock.monotonic() + self._config.grace
        while any(one.running for one in self._applications):
            if self._clock.monotonic() >= deadline:
                for application in self._applications:
                    for one in application.running:
                        one.kill()
                return
            await self._clock.sleep_until(self._clock.monotonic() + SURVIVORS)

    # Small things.

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        assert self._group is not None, "it runs"
        self._group.create_task(work)

    async def _wait(self, seconds: float) -> None:
        """Wait for a number of seconds, or until `stop`."""
        stop = asyncio.ensure_future(self._stopping.wait())
        timer = asyncio.ensure_future(
            self._clock.sleep_until(self._clock.monotonic() + max(0.0, seconds))
        )
        try:
            await asyncio.wait({stop, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            timer.cancel()

    def _log_event(self, what: str, application: _Application, **facts: object) -> None:
        write: Callable[..., object] = self._log.info
        if facts.get("error"):
            write = self._log.warning
        write(
            ACTIVATOR,
            subclass=what,
            application=application.service.name,
            active=application.plan.running,
            max=application.service.instances.max,
            **facts,
        )
