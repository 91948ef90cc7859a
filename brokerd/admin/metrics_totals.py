"""The figures of an instance as totals since the start, for a scrape (MON-31 to MON-34).

Reads: the counters that every part keeps, through `metrics_rows`.      Calls: metrics.
Never: holds the loop up: it lets other work run between a few hundred objects; gives more series
       than its limit, however many queues and destinations there are; or lets a counter fall.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Final, Generic, TypeVar

import msgspec

from brokerd.admin.metrics_rows import (
    Figures,
    broker_counters,
    destination_counters,
    queue_counters,
)
from brokerd.admin.views.state import StateReport
from brokerd.broker.broker import Broker
from brokerd.broker.queues import QueueState
from brokerd.clock import SECOND, Clock
from brokerd.delivery.outgoing.classification import HERE
from brokerd.routing.reasons import Reason
from brokerd.telemetry.metric_names import Scope
from brokerd.telemetry.metrics import Histogram, HistogramTotals
from brokerd.transport.destination import Destination

STEP: Final = 200
"""Number of objects after which other work runs."""
OTHER: Final = "other"
"""The label of the sum of all objects without series of their own; its other labels are empty, so
that no object is called the same."""
_REASONS: Final = frozenset(one.value for one in Reason)
_T = TypeVar("_T")
_Breathe = Callable[[], Awaitable[None]]


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one object, or of the other objects together."""

    scope: Scope
    labels: dict[str, str] = {}
    counters: Mapping[str, float] = {}
    gauges: Mapping[str, float] = {}
    histograms: Mapping[str, HistogramTotals] = {}


class Kind(msgspec.Struct, Generic[_T], frozen=True):
    """The functions that return the figures of one kind of objects."""

    scope: Scope
    labels: Callable[[_T], dict[str, str]]
    trouble: Callable[[_T], tuple[float, ...]]
    """The larger, the rather an object has series of its own; empty = all its figures are zero.
    Called for all objects."""
    counters: Callable[[_T], Mapping[str, int]]
    gauges: Callable[[_T], Mapping[str, float]]
    histograms: Callable[[_T], Mapping[str, Histogram]]
    greatest: frozenset[str] = frozenset()
    """Gauges of which the others show the greatest, not the sum."""


class Bounded(Generic[_T]):
    """Series for the objects in most trouble, and one for all others (MON-33).

    Objects change between the two. So that the sum of the others never falls, what was counted is
    added to it as it happens: the increase of each object since the last scrape."""

    def __init__(self, kind: Kind[_T], *, most: int) -> None:
        self._kind = kind
        self._most = most
        self._shown: frozenset[tuple[str, ...]] = frozenset()
        self._last: dict[tuple[str, ...], tuple[Mapping[str, int], dict[str, HistogramTotals]]] = {}
        """Figures up to the last scrape, by the labels of an object; nothing is kept as
        long as all objects have series."""
        self._counters: dict[str, float] = {}
        self._histograms: dict[str, HistogramTotals] = {}

    async def collect(self, objects: Sequence[_T], breathe: _Breathe) -> list[Totals]:
        """Return the totals of all objects. `breathe`: lets other work run."""
        kind = self._kind
        if len(objects) <= self._most and not self._last:
            return [self._own(one) for one in objects]
        named: list[tuple[tuple[str, ...], _T]] = []
        ranked = []
        for number, one in enumerate(objects):
            key = tuple(kind.labels(one).values())
            named.append((key, one))
            # of two in the same trouble, the one that had series before keeps them
            ranked.append((kind.trouble(one), key in self._shown, number))
            if number % STEP == STEP - 1:
                await breathe()
        await breathe()
        chosen = {number for *_, number in nlargest(self._most, ranked)}
        await breathe()
        self._shown = frozenset(named[number][0] for number in chosen)
        gauges = dict.fromkeys(kind.gauges(objects[0]), 0.0) if objects else {}
        zeros = dict.fromkeys(kind.counters(objects[0]), 0) if objects else {}
        for number, (key, one) in enumerate(named):
            if ranked[number][0] or key in self._last:  # else there is nothing to add up
                self._count(key, one, is_other=number not in chosen)
                if number not in chosen:
                    self._add_gauges(gauges, one)
            if number % STEP == STEP - 1:
                await breathe()
        await breathe()
        there = {key for key, _ in named}
        for gone in [key for key in self._last if key not in there]:
            del self._last[gone]
        await breathe()
        labels = dict.fromkeys(self._kind.labels(objects[0]), "") if objects else {}
        if labels:
            labels[list(labels)[-1]] = OTHER
        return [
            *(self._own(named[number][1]) for number in sorted(chosen)),
            Totals(
                scope=kind.scope,
                labels=labels,
                counters=zeros | self._counters,
                gauges=gauges,
                histograms=dict(self._histograms),
            ),
        ]

    def _own(self, one: _T) -> Totals:
        kind = self._kind
        return Totals(
            scope=kind.scope,
            labels=kind.labels(one),
            counters=kind.counters(one),
            gauges=kind.gauges(one),
            histograms={name: each.totals() for name, each in kind.histograms(one).items()},
        )

    def _count(self, key: tuple[str, ...], one: _T, *, is_other: bool) -> None:
        """Note what an object has counted; add the increase to the others if it is one of them."""
        now = self._kind.counters(one)
        before, times = self._last.get(key, ({}, {}))
        if before == now:
            return
        now_times = {name: each.totals() for name, each in self._kind.histograms(one).items()}
        self._last[key] = (now, now_times)
        if not is_other:
            return
        for name, total in now.items():
            last = before.get(name, 0)
            gain = total - last if total >= last else total  # it was made again
            self._counters[name] = self._counters.get(name, 0) + gain
        for name, each in now_times.items():
            gained = each.plus(times.get(name, HistogramTotals()), -1)
            if min(gained.counts) < 0:
                gained = each
            self._histograms[name] = self._histograms.get(name, HistogramTotals()).plus(gained)

    def _add_gauges(self, gauges: dict[str, float], one: _T) -> None:
        for name, value in self._kind.gauges(one).items():
            there = gauges.get(name, 0.0)
            is_greatest = name in self._kind.greatest
            gauges[name] = max(there, value) if is_greatest else there + value


class Scrape:
    """The source of all totals of one instance."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        destinations: Callable[[], Sequence[Destination]],
        figures: Figures,
        state: StateReport,
        delayed: Callable[[], Mapping[str, int]],
        trouble: Callable[[str, str], str],
        clock: Clock,
        most: int,
    ) -> None:
        """Create the source.

        `delayed`: returns the number of dialogs without a destination, by reason. `trouble`:
        returns why the readers of a queue fail; empty = they do not. `most`: objects of each kind
        with series of their own."""
        self._brokers = brokers
        self._destinations = destinations
        self._figures = figures
        self._state = state
        self._delayed = delayed
        self._trouble = trouble
        self._clock = clock
        self._waiting: Counter[str] = Counter()
        """Number of messages that wait for an acknowledgement, by destination."""
        self._noticed: Counter[str] = Counter()
        """Number of dialogs whose messages the receiving side does not accept, by its reason."""
        self._queues = Bounded(self._queue_kind(), most=most)
        self._by_broker = Bounded(self._broker_kind(), most=most)
        self._by_destination = Bounded(self._destination_kind(), most=most)

    async def collect(self) -> list[Totals]:
        """Return the totals of everything. Only one call at a time."""
        queues = [
            (broker, queue)
            for broker in self._brokers.values()
            for queue in broker.queues.values()
            if not queue.is_system
        ]
        found = await self._queues.collect(queues, self._breathe)
        found += await self._by_broker.collect(list(self._brokers.values()), self._breathe)
        await self._count_waiting()
        found += await self._by_destination.collect(self._destinations(), self._breathe)
        found += self._stores()
        found.append(self._instance())
        return found

    async def _breathe(self) -> None:
        await self._clock.sleep_until(0)

    async def _count_waiting(self) -> None:
        waiting, noticed = Counter[str](), Counter[str]()
        for broker in list(self._brokers.values()):
            for number, live in enumerate(broker.endpoints.all()):
                out = live.outgoing
                if out is not None and out.pending:
                    route = out.route
                    if route.address is not None and route.address != HERE:
                        waiting[route.address] += out.pending
                    if route.notice is not None:  # whose reason is the peer's own word
                        key = route.notice.key
                        noticed[key if key in _REASONS else OTHER] += 1
                if number % (10 * STEP) == 10 * STEP - 1:
                    await self._breathe()
        self._waiting, self._noticed = waiting, noticed

    def _instance(self) -> Totals:
        figures = self._figures
        return Totals(
            scope=Scope.INSTANCE,
            counters=figures.instance_counters(),
            gauges={
                **figures.instance_gauges(),
                "min_free_bytes": float(self._state.min_free),
                "started_s": self._state.started_at / SECOND,
                "ready": float(self._state.condition == "ready"),
                **{f"delayed_{reason}": float(n) for reason, n in self._delayed().items()},
                **{f"noticed_{reason}": float(n) for reason, n in self._noticed.items()},
            },
        )

    def _stores(self) -> Iterable[Totals]:
        """Return how many stores are in each state, and what is off."""
        for one in self._state.stores():
            yield Totals(
                scope=Scope.BROKER,
                labels={"broker": one.broker},
                gauges={
                    f"state_{state}": float(one.state == state)
                    for state in ("full", "slow", "disabled", "refused", "missing")
                },
            )

    def _queue_kind(self) -> Kind[tuple[Broker, QueueState]]:
        def trouble(one: tuple[Broker, QueueState]) -> tuple[float, ...]:
            _, queue = one
            ready, parked = queue.ready_count, queue.parked
            is_off = not queue.queue.receive_enabled or queue.is_at_limit()
            if not ready and not parked:
                if not queue.enqueued and not is_off and queue.queue.activation is None:
                    return ()
                return (0.0, 0.0, 0.0, float(queue.enqueued))
            oldest = queue.oldest_at
            age = 0.0 if oldest is None else float(now() - oldest)
            return (float(is_off), float(parked), age, float(ready))

        def gauges(one: tuple[Broker, QueueState]) -> dict[str, float]:
            broker, queue = one
            found = self._figures.queue_gauges(broker, queue)
            found["failing"] = 1.0 if self._trouble(broker.name, queue.name) else 0.0
            return found

        now = self._clock.utc
        return Kind(
            scope=Scope.QUEUE,
            labels=lambda one: {"broker": one[0].name, "queue": one[1].name},
            trouble=trouble,
            counters=lambda one: queue_counters(one[1]),
            gauges=gauges,
            histograms=lambda one: {
                "wait_us": one[1].times.wait,
                "handler_us": one[1].times.handler,
            },
            greatest=frozenset({"oldest_s"}),
        )

    def _broker_kind(self) -> Kind[Broker]:
        figures = self._figures
        return Kind(
            scope=Scope.BROKER,
            labels=lambda one: {"broker": one.name},
            trouble=lambda one: (float(one.is_full), float(not one.enabled), float(one.sends)),
            counters=broker_counters,
            gauges=lambda one: (
                figures.broker_gauges(one) | figures.endpoint_counts.get(one.name, {})
            ),
            histograms=figures.store_times,
        )

    def _destination_kind(self) -> Kind[Destination]:
        figures = self._figures

        def gauges(one: Destination) -> dict[str, float]:
            found = figures.destination_gauges(one)
            found["waiting"] = float(self._waiting[one.address])
            found["connected"] = float(one.connection is not None)
            return found

        return Kind(
            scope=Scope.DESTINATION,
            labels=lambda one: {"destination": one.address},
            trouble=lambda one: (
                float(one.is_suppressed and bool(self._waiting[one.address])),
                float(self._waiting[one.address]),
                float(one.fragments_sent),
            ),
            counters=destination_counters,
            gauges=gauges,
            histograms=figures.destination_times,
            greatest=frozenset({"clock_ahead_s"}),
        )
