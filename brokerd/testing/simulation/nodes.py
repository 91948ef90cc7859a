"""Nodes: one simulated machine each, with an instance that is started, killed and started again.

Reads:  the plan.      Calls: the real `Instance`, on the real store files, in line.
Never:  cleans up after a crash: what the killed boot was doing simply stops.
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
from brokerd.storage.engine import Connection
from brokerd.storage.store import Store
from brokerd.testing import left
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import SCOPE
from brokerd.testing.rng import Streams
from brokerd.testing.simulation import objects
from brokerd.testing.simulation.counting import CountingLog
from brokerd.testing.simulation.features import MIRRORED, PARTNER
from brokerd.testing.simulation.machine import Machine
from brokerd.testing.simulation.surround import Surround

UTC_START: Final = Instant(1_800_000_000_000_000)
"""UTC at virtual time 0."""


T = TypeVar("T")


class Crashed(BaseException):
    """Raised at a failpoint where the process has just died; nothing may catch it."""


class InjectedFault(OSError):
    """What a store's file said, by order of the plan."""


class Node:
    """One machine and its instance, over all its boots."""

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
        """Told when it died of itself; whoever is told starts it again."""
        self.data_dir = directory / name
        streams = shared.streams.child(name)
        self._streams = streams
        skew = shared.plan.skew.get(name, timedelta())
        self.clock = SimClock(shared.loop, utc_start=UTC_START, skew=skew)
        self._ids = SeededIds(streams.of("ids"))
        self._commit_rng = streams.of("commits")
        self._fault_rng = streams.of("failpoints")
        self._point_rng = streams.of("points")
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
        """Whether it is ready, and nobody has begun to stop it."""
        self.answers = asyncio.Event()
        """Set while `up`: who dials a machine that is off may hear nothing until then."""
        self._alive = False
        self._was_ready = False  # this boot
        self._down_at = 0.0
        self.downs: list[tuple[float, float]] = []
        """From when to when it was off, each time."""
        self.calm = False
        """Nothing fails of itself any more."""
        self.store_error_due = False
        self.log = CountingLog(name, shared.trace, shared.counts)
        self.problems: list[str] = []
        self._started: asyncio.Future[None] | None = None

    # Life.

    async def start(self) -> None:
        """Boot on the files as they are; returns when it is ready, or has died on the way."""
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
                rng=self._streams.of("rng"),
                network=shared.network.for_node(self.name),
                executor=self.machine,
                log=self.log,
                boot_id=BootId(self._ids.fresh()),
                fault=self._fault,
                limits=shared.plan.limits,
                recorder=shared.recording.at(MIRRORED if self.name == PARTNER else self.name),
            ),
        )

    def crash(self, why: str, *, late: bool = False) -> None:
        """Kill it between two instructions; whatever was synced stays, nothing else does."""
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
        """Stop it in an orderly way (REL-28); False if it died meanwhile."""
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
            return False  # it died on the way, and is started again for that
        self._alive = False
        loop.kill(self.scope)
        stores = self._stores()
        self.machine.power_off()
        self._verify(stores)
        self._shared.network.crash(self.name, late=True)
        return True

    def _stores(self) -> dict[Path, bool]:
        """The files that it has open, and whether rows that nobody needs may be in them."""
        if self.instance is None:
            return {}
        stores = [broker.store for broker in self.instance.brokers.values()]
        return {one.path: one.is_deleting for one in stores}

    def _verify(self, stores: Mapping[Path, bool]) -> None:
        """Whether every row has what it stands for, whatever the moment of its death (HK-10)."""
        for path, is_deleting in stores.items():
            self._shared.counts["stores verified"] += 1
            for text in left.in_file(path, may_be_over=is_deleting or not self._was_ready):
                self.problems.append(f"{self.name}, boot {self.boots}: {text}")

    def _note_down(self) -> None:
        if self.up:
            self._down_at = self._shared.loop.time()

    def was_down_at(self, at: float) -> bool:
        """Whether it was off at that virtual time, and has been up since."""
        return any(first <= at <= last for first, last in self.downs)

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run something within the process of this boot; it dies with it."""
        context = self._shared.loop.scope(self.scope)
        context.run(self._enter)
        self._shared.loop.create_task(work, context=context)

    def die(self, why: str, boot: int) -> None:
        """Die of itself, if that boot is still there."""
        if self.up and self.boots == boot:
            self._die(why)

    def _die(self, why: str) -> None:
        self.crash(why)
        self._died(self)

    def _failed(self, failed: "asyncio.Future[BaseException]") -> None:
        """The instance cannot go on; the real daemon would exit, and be started again."""
        self._fail(failed.result())

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error.__cause__, InjectedFault):
            self.problems.append(f"{self.name} failed: {error!r}")
            self._shared.trace.note(self.name, f"failed {type(error).__name__}")
        if self._alive:
            self._die("store error")

    # What its world does to it.

    def _schedule(self, function: Callable[[], None]) -> None:
        """How long each half of a commit takes."""
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
        """A place of that name is passed: by the plan it dies there (HK-6)."""
        shared = self._shared
        if self.up and not self.calm and shared.happens(name, self._point_rng):
            shared.loop.call_soon(self.die, name, self.boots, context=shared.context)

    def _reads(self) -> None:
        """Its store is read: by itself, or by the world that looks what is in it."""
        if SCOPE.get() == self.scope:
            self.passes("store.read")

    # What can be asked.

    @property
    def holds(self) -> bool:
        """Whether it serves the broker with the services: of two partners one does."""
        instance = self.instance
        return (
            self.up
            and instance is not None
            and objects.BROKER in instance.brokers
            and objects.BROKER not in instance.absent.reasons
        )

    @property
    def broker(self) -> Broker:
        """The broker with the services."""
        assert self.instance is not None
        return self.instance.brokers[objects.BROKER]

    def committed(self) -> Store | None:
        """The store with the services, whose reads see what is committed; None while it is down."""
        if not self._alive or self.instance is None:
            return None
        found = self.instance.brokers.get(objects.BROKER)
        return None if found is None else found.store

    def readers(self) -> list[tuple[str, int, int]]:
        """Queues with activation: how many readers run, and how many may (CHK-11)."""
        if not self.holds or self.instance is None:
            return []
        return [
            (
                state.name,
                self.instance.readers.running(objects.BROKER, state.name),
                most.max_readers,
            )
            for state in self.broker.own_queues
            if (most := state.queue.activation) is not None
        ]

    def imbalance(self) -> list[str]:
        """What the counts of fragments do not explain (NBT-15): each came to one end."""
        if not self.up or self.instance is None:
            return []
        it = self.instance.dispatcher
        dropped = sum(it.dropped.values())
        known = it.stored + it.duplicates + dropped + it.buffered
        if it.received == known:
            return []
        return [
            f"{it.received} fragments were received; {it.stored} stored + {it.duplicates} had"
            f" already + {dropped} dropped + {it.buffered} buffered = {known} (NBT-15)"
        ]

    def is_drained(self) -> bool:
        """Whether nothing waits to be sent, to be received anywhere but in the shop, or to come."""
        return self.up and not self._waiting() and not self._has_timers()

    def _has_timers(self) -> bool:
        if not self.holds or not self.broker.timers.any:
            return False
        return left.run_now(self.broker.store.first_timer()) is not None

    def _waiting(self) -> list[str]:
        assert self.instance is not None
        return left.waiting(self.instance, self.broker) if self.holds else []

    def unexplained(self) -> list[str]:
        """Dialogs that wait without a reason (REL-22)."""
        if not self.holds or self.instance is None:
            return []
        return left.unexplained(self.instance, self.broker)

    def waits_for(self, service: str) -> list[str]:
        """Why dialogs with a service do not get on, one each."""
        if not self.holds or self.instance is None:
            return []
        found = [live.outgoing for live in self.broker.endpoints.all()]
        return [
            self.instance.transmitter.status(out)[0]
            for out in found
            if out is not None and out.pending and out.live.endpoint.far_service == service
        ]

    def is_over(self) -> bool:
        """Whether no dialog is open and nothing is held in memory (CHK-9)."""
        return self.up and not self._open() and not self._held()

    def _open(self) -> list[str]:
        return left.open_dialogs(self.broker) if self.holds else []

    def _held(self) -> list[str]:
        assert self.instance is not None
        return left.held(self.instance, self.broker) if self.holds else []

    def left(self) -> list[str]:
        """What is not settled, for the report."""
        if not self.up:
            return [f"{self.name} is down"]
        return [f"{self.name}: {text}" for text in self._waiting() + self._open() + self._held()]

    def count(self) -> None:
        """Add what this boot has counted itself."""
        instance, counts = self.instance, self._shared.counts
        assert instance is not None
        dispatcher = instance.dispatcher
        counts["fragments received"] += dispatcher.received
        counts["duplicates suppressed"] += dispatcher.duplicates
        if self.boots > 1:
            counts["duplicates suppressed after a restart"] += dispatcher.duplicates
        for broker in instance.brokers.values():
            counts["unread messages deleted later"] += broker.store.metrics.dropped
        counts["fragments retransmitted"] += instance.transmitter.retransmitted
        for reason, count in dispatcher.dropped.items():
            counts[f"dropped: {reason}"] += count
        counts["fragments forwarded"] += instance.forwarder.report.sent
        for reason, count in instance.forwarder.report.dropped.items():
            counts[f"forward dropped: {reason}"] += count


def new_rng(streams: Streams, purpose: str) -> Random:
    """A generator of its own, the next of that purpose."""
    return Random(streams.of(purpose).random())  # noqa: S311  # a simulation
