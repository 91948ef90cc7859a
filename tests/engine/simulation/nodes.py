"""Nodes: simulated machines, each with an instance that is started, killed and started again.

Reads:  the plan.      Calls: the real `Instance`, on the real store files, in line.
Never:  cleans up after a crash: the killed boot just stops.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final, TypeVar

from brokerd.broker.broker import Broker
from brokerd.clock import Instant
from brokerd.errors import StoreFault
from brokerd.ids import BootId, SeededIds
from brokerd.instance.instance import Instance, Surroundings
from brokerd.storage.connections import Connection
from brokerd.storage.store import Store
from brokerd.testing import left
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import SCOPE
from brokerd.testing.rng import Streams
from tests.engine.simulation import objects
from tests.engine.simulation.counting import CountingLog
from tests.engine.simulation.features import MIRRORED, PARTNER
from tests.engine.simulation.machine import Machine
from tests.engine.simulation.surround import Surround

UTC_START: Final = Instant(1_800_000_000_000_000)
"""UTC at virtual time 0."""


T = TypeVar("T")


class Crashed(BaseException):
    """The end of a process at a failpoint where it has just died; nothing may catch it."""


class InjectedFault(OSError):
    """An error of a store's file that the chaos has injected."""


class Node:
    """One machine and its instance, over all boots."""

    def __init__(
        self,
        name: str,
        directory: Path,
        shared: Surround,
        *,
        enter: Callable[[], None],
        died: Callable[["Node"], None],
        kept: Mapping[Path, Connection],
    ) -> None:
        self.name = name
        self._shared = shared
        self._enter = enter
        self._died = died
        """Called when the node died by itself; the callee starts it again."""
        self.data_dir = directory / name
        streams = shared.streams.child(name)
        self._streams = streams
        skew = shared.plan.skew.get(name, timedelta())
        self.clock = SimClock(shared.loop, utc_start=UTC_START, skew=skew)
        self._ids = SeededIds(streams.stream("ids"))
        self._keys = streams.stream("keys").randbytes
        self._commit_rng = streams.stream("commits")
        self._fault_rng = streams.stream("failpoints")
        self._point_rng = streams.stream("points")
        mine = {path: one for path, one in kept.items() if path.parent == self.data_dir}
        self.machine = Machine(
            self._schedule,
            keep=shared.plan.keeps_files_open,
            kept=mine,
            shared=directory / objects.SHARED,
            reads=self._reads,
        )
        self.boots = 0
        self.scope = ""
        self.instance: Instance | None = None
        self.up = False
        """Whether the instance is ready and has not begun to stop."""
        self.answers = asyncio.Event()
        """Set while `up`: a client that dials a machine that is off may have to wait for it."""
        self._alive = False
        self._was_ready = False  # this boot
        self._down_at = 0.0
        self.downs: list[tuple[float, float]] = []
        """Virtual times from which to which the node was off."""
        self.calm = False
        """Whether failpoints and injected errors are off, in the second phase."""
        self.store_error_due = False
        self.log = CountingLog(name, shared.trace, shared.counts)
        self.problems: list[str] = []
        self._started: asyncio.Future[None] | None = None

    # Starting and stopping.

    async def start(self) -> None:
        """Boot on the files as they are; return when the instance is ready, or has died."""
        loop = self._shared.loop
        self.boots += 1
        self._alive = True
        self._was_ready = False
        self.scope = f"{self.name}/{self.boots}"
        context = loop.scope(self.scope)
        context.run(self._enter)
        self._started = loop.create_future()
        self._shared.trace.note(self.name, f"boot {self.boots}")
        if any(log.stat().st_size for log in self.data_dir.glob("*.db-wal")):
            self._shared.counts["boots with a log to recover"] += 1
        loop.create_task(self._boot(self._started), context=context)
        await self._started

    async def _boot(self, started: "asyncio.Future[None]") -> None:
        instance = self.instance = self._make()
        instance.failed.add_done_callback(self._failed)
        plan = self._shared.plan
        declared = None
        if self.boots == 1 and not self.data_dir.exists():
            declared = objects.declared(self.name, plan, broker_id=self._shared.broker_id)
        try:
            await instance.start(declared)
        except Exception as error:  # noqa: BLE001  # a start that fails is a finding
            if not isinstance(error.__cause__, InjectedFault):
                self.problems.append(f"{self.name} did not start: {error!r}")
            self._die("start failed")
            return
        self.up = self._was_ready = True
        self.downs.append((self._down_at, self._shared.loop.time()))
        self.answers.set()
        if not started.done():
            started.set_result(None)
        self.passes("start.ready")

    def _make(self) -> Instance:
        shared = self._shared
        return Instance(
            objects.settings(self.name, self.data_dir, shared.plan),
            Surroundings(
                clock=self.clock,
                ids=self._ids,
                rng=self._streams.stream("rng"),
                network=shared.network.for_node(self.name),
                executor=self.machine,
                log=self.log,
                boot_id=BootId(self._ids.fresh()),
                keys=self._keys if shared.plan.security else None,
                fault=self._fault,
                limits=shared.plan.limits,
                recorder=shared.recording.at(MIRRORED if self.name == PARTNER else self.name),
            ),
        )

    def crash(self, why: str, *, late: bool = False) -> None:
        """Kill the node between two instructions: only what was committed survives.

        The order matters: first no task may run any more, then the network drops the connections,
        then the stores abandon their jobs, and only then are the files verified as a new process
        would find them. A `start` or `stop` that was under way returns.
        """
        shared = self._shared
        shared.trace.note(self.name, f"dies: {why}")
        shared.counts["crashes"] += 1
        shared.counts[f"crash: {why}"] += 1
        if self.up:
            self.count()
        self._note_down()
        self.up = self._alive = False
        self.answers.clear()
        shared.loop.kill(self.scope)
        shared.network.crash(self.name, late=late)
        stores = self._stores()
        for broker in self.instance.brokers.values() if self.instance is not None else ():
            left.run_now(broker.store.abandon())
        self.machine.power_off()
        self._verify(stores)
        if self._started is not None and not self._started.done():
            self._started.set_result(None)

    async def stop(self) -> bool:
        """Stop the instance in an orderly way (REL-28).

        Return False if it was not up, or died meanwhile.
        """
        instance, loop = self.instance, self._shared.loop
        if not self.up or instance is None:
            return False
        self.count()
        self._note_down()
        self.up = False
        self.answers.clear()
        done, boot = loop.create_future(), self.boots
        self._started = done

        async def stop() -> None:
            try:
                await instance.stop(timedelta(seconds=1))
            except StoreFault as fault:
                self._fail(fault)
            if not done.done():
                done.set_result(None)

        self.run(stop())
        await done
        if instance.condition != "stopped" or not self._alive or self.boots != boot:
            return False  # it died meanwhile, and `_died` has it started again
        self._alive = False
        loop.kill(self.scope)
        stores = self._stores()
        self.machine.power_off()
        self._verify(stores)
        self._shared.network.crash(self.name, late=True)
        return True

    def _stores(self) -> dict[Path, bool]:
        """Return the open store files, and whether each may hold rows of ended dialogs."""
        if self.instance is None:
            return {}
        stores = [broker.store for broker in self.instance.brokers.values()]
        return {one.path: one.is_deleting for one in stores}

    def _verify(self, stores: Mapping[Path, bool]) -> None:
        """Verify the stores after a crash or a stop, and keep what is wrong as problems (HK-10).

        Rows of ended dialogs may be left while they are being deleted, or if the boot died before
        it was ready.
        """
        for path, is_deleting in stores.items():
            self._shared.counts["stores verified"] += 1
            for text in left.in_file(path, may_be_over=is_deleting or not self._was_ready):
                self.problems.append(f"{self.name}, boot {self.boots}: {text}")

    def _note_down(self) -> None:
        if self.up:
            self._down_at = self._shared.loop.time()

    def was_down_at(self, at: float) -> bool:
        """Return whether the node was off at a virtual time and has been up since."""
        return any(first <= at <= last for first, last in self.downs)

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run a coroutine within the process of this boot; a crash kills it as well."""
        context = self._shared.loop.scope(self.scope)
        context.run(self._enter)
        self._shared.loop.create_task(work, context=context)

    def die(self, why: str, boot: int) -> None:
        """Die by itself, if this boot is still running."""
        if self.up and self.boots == boot:
            self._die(why)

    def _die(self, why: str) -> None:
        self.crash(why)
        self._died(self)

    def _failed(self, failed: "asyncio.Future[BaseException]") -> None:
        """Die because the instance has failed; the real daemon would exit and be restarted."""
        self._fail(failed.result())

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error.__cause__, InjectedFault):
            self.problems.append(f"{self.name} failed: {error!r}")
            self._shared.trace.note(self.name, f"failed {type(error).__name__}")
        if self._alive:
            self._die("store error")

    # Faults.

    def _schedule(self, function: Callable[[], None]) -> None:
        """Call one half of a commit after a drawn time."""
        rng = self._commit_rng
        delay = rng.uniform(0.0002, 0.005)
        if not self.calm and rng.random() < self._shared.plan.slow_commits:
            delay = rng.choice((0.05, 1.5))
        self._shared.loop.call_later(delay, function)

    def _fault(self, name: str) -> None:
        if self.calm:
            return
        if name == "store.begin" and self.store_error_due:
            self.store_error_due = False
            self._shared.counts["store errors"] += 1
            raise InjectedFault("the disk says no")
        if self._fault_rng.random() < self._shared.plan.failpoints.get(name, 0.0):
            self._die(name)
            raise Crashed(name)

    def passes(self, name: str) -> None:
        """Die, by the plan, at the failpoint that is being passed (HK-6).

        The death comes with the next turn of the loop: the caller may be code of this process.
        """
        shared = self._shared
        if self.up and not self.calm and shared.happens(name, self._point_rng):
            shared.loop.call_soon(self.die, name, self.boots, context=shared.context)

    def _reads(self) -> None:
        """Pass the failpoint of a read of the store, unless the world inspects the store."""
        if SCOPE.get() == self.scope:
            self.passes("store.read")

    # State.

    @property
    def holds(self) -> bool:
        """Whether the node serves the broker with the services: one of two partners does."""
        instance = self.instance
        return (
            self.up
            and instance is not None
            and objects.BROKER in instance.brokers
            and objects.BROKER not in instance.parts.absent_brokers.reasons
        )

    @property
    def broker(self) -> Broker:
        """The broker with the services."""
        assert self.instance is not None
        return self.instance.brokers[objects.BROKER]

    def committed(self) -> Store | None:
        """Return the store of the services, whose reads see committed rows only.

        None while the node is down or the broker is not open.
        """
        if not self._alive or self.instance is None:
            return None
        found = self.instance.brokers.get(objects.BROKER)
        return None if found is None else found.store

    def readers(self) -> list[tuple[str, int, int]]:
        """Return (queue, running readers, most readers) of queues with activation (CHK-11)."""
        if not self.holds or self.instance is None:
            return []
        return [
            (
                state.name,
                self.instance.parts.readers.running(objects.BROKER, state.name),
                most.max_readers,
            )
            for state in self.broker.own_queues
            if (most := state.queue.activation) is not None
        ]

    def imbalance(self) -> list[str]:
        """Return how the counts of fragments differ from their sum (NBT-15); empty if they agree.

        Each received fragment must be stored, a duplicate, dropped or buffered.
        """
        if not self.up or self.instance is None:
            return []
        it = self.instance.parts.dispatcher
        dropped = sum(it.dropped.values())
        known = it.stored + it.duplicates + dropped + it.buffered
        if it.received == known:
            return []
        return [
            f"{it.received} fragments were received; {it.stored} stored + {it.duplicates} had"
            f" already + {dropped} dropped + {it.buffered} buffered = {known} (NBT-15)"
        ]

    def is_drained(self) -> bool:
        """Return whether no message waits to be sent or received, and no timer is set."""
        return self.up and not self._waiting() and not self._has_timers()

    def _has_timers(self) -> bool:
        if not self.holds or not self.broker.timers.any:
            return False
        return left.run_now(self.broker.store.timers.first_due()) is not None

    def _waiting(self) -> list[str]:
        assert self.instance is not None
        return left.waiting(self.instance, self.broker) if self.holds else []

    def unexplained(self) -> list[str]:
        """Dialogs that wait without a reason (REL-22)."""
        if not self.holds or self.instance is None:
            return []
        return left.unexplained(self.instance, self.broker)

    def waits_for(self, service: str) -> list[str]:
        """Return why each dialog with a service does not progress, as transmission statuses."""
        if not self.holds or self.instance is None:
            return []
        found = [live.outgoing for live in self.broker.endpoints.all()]
        return [
            self.instance.parts.transmitter.status(out)[0]
            for out in found
            if out is not None and out.pending and out.live.endpoint.far_service == service
        ]

    def is_over(self) -> bool:
        """Return whether no dialog is open and no lock or fragment is in memory (CHK-9)."""
        return self.up and not self._open() and not self._held()

    def _open(self) -> list[str]:
        return left.open_dialogs(self.broker) if self.holds else []

    def _held(self) -> list[str]:
        assert self.instance is not None
        return left.held(self.instance, self.broker) if self.holds else []

    def left(self) -> list[str]:
        """Return what is not settled, for the report."""
        if not self.up:
            return [f"{self.name} is down"]
        return [f"{self.name}: {text}" for text in self._waiting() + self._open() + self._held()]

    def count(self) -> None:
        """Add the counters of this boot to those of the run."""
        instance, counts = self.instance, self._shared.counts
        assert instance is not None
        dispatcher = instance.parts.dispatcher
        counts["fragments received"] += dispatcher.received
        counts["duplicates suppressed"] += dispatcher.duplicates
        if self.boots > 1:
            counts["duplicates suppressed after a restart"] += dispatcher.duplicates
        for broker in instance.brokers.values():
            counts["unread messages deleted later"] += broker.store.metrics.dropped
        counts["fragments retransmitted"] += instance.parts.transmitter.retransmitted
        for reason, count in dispatcher.dropped.items():
            counts[f"dropped: {reason}"] += count
        counts["fragments forwarded"] += instance.parts.forwarder.report.sent
        for reason, count in instance.parts.forwarder.report.dropped.items():
            counts[f"forward dropped: {reason}"] += count


def new_rng(streams: Streams, purpose: str) -> Random:
    """Return a new generator, seeded from the stream of a purpose."""
    return Random(streams.stream(purpose).random())
