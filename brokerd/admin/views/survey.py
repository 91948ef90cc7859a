"""Survey: the queues of an instance that need somebody, worst first, at a bounded cost (MON-43).

Reads:  memory: counts that every queue keeps.      Calls: the clock; nothing that changes anything.
Never:  works longer than `SLICE` queues without letting other tasks run, keeps more than `WORST`
        rows, or spends more than one part in `SHARE` of a processor.
Wakes:  when somebody looks; a survey that is still fresh is used again by all who look.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from brokerd.admin.kept_answer import KeptAnswer
from brokerd.broker.broker import Broker
from brokerd.broker.queues import QueueState
from brokerd.clock import SECOND, Clock, Instant
from brokerd.model import MSDB

SLICE: Final = 200
"""Queues surveyed between two turns of the loop, less if they are long."""
_LIGHT: Final = 50
"""Messages in memory that count as much as a queue."""
WORST: Final = 500
"""Most queues that a survey keeps; the others are counted."""
FRESH: Final = 2.0
"""Seconds for which a survey is used again."""
SHARE: Final = 100
"""A survey is fresh for at least this many times the processor time that it took."""
SAMPLES: Final = 120
"""Samples of the totals that are kept, for rates."""


class SurveyedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """One queue, as far as its state tells whether somebody is needed."""

    broker: str
    name: str
    pain: int
    """How badly somebody is needed: 5 = off with messages, 4 = readers fail, 3 = parked groups,
    2 = full, or off without messages, 1 = messages wait and nothing reads, 0 = nothing is wrong."""
    why: str
    """The fault in a few words; empty if there is none."""
    ready: int
    parked: int
    """Messages of parked groups."""
    oldest_ready_at: Instant | None
    is_on: bool
    readers: int
    max_readers: int
    handler: str


class Sample(msgspec.Struct, frozen=True):
    """Totals of the instance at one moment."""

    at: Instant
    enqueued: int
    received: int
    sent: int
    rolled_back: int


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of all brokers at one moment."""

    at: Instant
    seconds: float
    """Processor time that the survey took."""
    queues: int
    ready: int
    parked: int
    ill: int
    """Queues with something wrong."""
    busy: int
    """Queues with messages."""
    oldest_ready_at: Instant | None
    worst: tuple[SurveyedQueue, ...]
    samples: tuple[Sample, ...]


class ReaderFacts(Protocol):
    """The queries to activation."""

    def trouble(self, broker: str, queue: str) -> str:
        """Return why no reader is started now because readers keep failing; "" if they do not."""
        ...

    def running(self, broker: str, queue: str) -> int:
        """Return the number of running readers of the queue."""
        ...


class Surveys:
    """The surveyor of one instance."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        readers: ReaderFacts,
        clock: Clock,
        elapsed: Callable[[], float],
    ) -> None:
        """Create the surveyor. `elapsed`: returns the processor time of this thread, in seconds."""
        self._brokers = brokers
        self._readers = readers
        self._clock = clock
        self._elapsed = elapsed
        self._kept = KeptAnswer(self._make, clock=clock)
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    async def survey(self) -> Survey:
        """Return a survey: the last one while it is fresh, else a new one."""
        return await self._kept.get()

    def expire(self) -> None:
        """Make a new survey for the next who looks, because somebody has changed something."""
        self._kept.expire()

    async def _make(self) -> tuple[Survey, float]:
        """Return a survey, and the seconds for which it is fresh."""
        found = await self._all_queues()
        return found, max(FRESH, found.seconds * SHARE)

    async def _all_queues(self) -> Survey:
        worst: list[tuple[tuple[int, int, int, str, str], SurveyedQueue]] = []
        count = ready = parked = ill = busy = enqueued = 0
        oldest: Instant | None = None
        spent, now = 0.0, self._clock.utc()
        for part in _slices(self._brokers.values()):
            began = self._elapsed()
            for broker, state in part:
                row = self._queue(broker, state)
                count += 1
                ready += row.ready
                parked += row.parked
                ill += row.pain > 1
                busy += row.ready + row.parked > 0
                enqueued += state.enqueued
                if row.oldest_ready_at is not None:
                    oldest = min(oldest or row.oldest_ready_at, row.oldest_ready_at)
                if row.pain or row.ready or len(worst) < WORST:
                    entry = (_order(row, now), row)
                    if len(worst) < WORST:
                        heapq.heappush(worst, entry)
                    elif entry[0] > worst[0][0]:
                        heapq.heapreplace(worst, entry)
            spent += self._elapsed() - began
            await self._clock.sleep_until(0)  # let other tasks run
        self._sample(enqueued)
        return Survey(
            at=now,
            seconds=spent,
            queues=count,
            ready=ready,
            parked=parked,
            ill=ill,
            busy=busy,
            oldest_ready_at=oldest,
            worst=tuple(row for _, row in sorted(worst, key=_worst_first)),
            samples=tuple(self._samples),
        )

    def _queue(self, broker: Broker, state: QueueState) -> SurveyedQueue:
        queue, name, depth = state.queue, state.name, state.depth
        activation = queue.activation
        is_on = queue.enqueue_enabled and queue.receive_enabled
        running = trouble = None
        if activation is not None:
            running = self._readers.running(broker.name, name)
            trouble = self._readers.trouble(broker.name, name)
        pain, why = _pain(state, trouble or "", running or 0)
        return SurveyedQueue(
            broker=broker.name,
            name=name,
            pain=pain,
            why=why,
            ready=depth.ready,
            parked=depth.parked,
            oldest_ready_at=state.oldest_at if depth.ready else None,
            is_on=is_on,
            readers=running or 0,
            max_readers=activation.max_readers if activation is not None else 0,
            handler=activation.procedure if activation is not None else "",
        )

    def _sample(self, enqueued: int) -> None:
        brokers = self._brokers.values()
        self._samples.append(
            Sample(
                self._clock.utc(),
                enqueued,
                sum(one.receives for one in brokers),
                sum(one.sends for one in brokers),
                sum(one.rollbacks for one in brokers),
            )
        )


def rates(samples: tuple[Sample, ...], over: int = 60 * SECOND) -> dict[str, float]:
    """Return the increase of each total per second, over the last samples; {} without two."""
    if len(samples) < 2:  # noqa: PLR2004  # a rate needs two
        return {}
    last = samples[-1]
    first = next(one for one in samples if last.at - one.at <= over or one is last)
    if first is last:
        first = samples[-2]
    seconds = (last.at - first.at) / SECOND
    if seconds <= 0:
        return {}
    return {
        name: max(0.0, (getattr(last, name) - getattr(first, name)) / seconds)
        for name in ("enqueued", "received", "sent", "rolled_back")
    }


def _pain(state: QueueState, trouble: str, running: int) -> tuple[int, str]:  # noqa: PLR0911
    """Return how badly somebody is needed, and why; 0 and "" if nothing is wrong."""
    queue, depth = state.queue, state.depth
    if not (queue.enqueue_enabled and queue.receive_enabled):
        poison = queue.status is not None and queue.status.conversation_id
        why = "off for a poison message" if poison else "off"
        return (5, why) if depth.ready else (2, why)
    if trouble:
        return 4, "its readers fail"
    if depth.parked:
        return 3, "groups are parked"
    if state.is_at_limit():
        return 2, "full"
    if depth.ready and not running and not state.waiting:
        activation = queue.activation
        if activation is not None and not activation.enabled:
            return 2, "activation is off"
        return 1, "nobody reads"
    return 0, ""


def _order(row: SurveyedQueue, now: Instant) -> tuple[int, int, int, str, str]:
    """Return what rows are compared by: the worse, the older and the longer queue is higher."""
    waited = 0 if row.oldest_ready_at is None else now - row.oldest_ready_at
    return row.pain, waited // SECOND, row.ready, row.broker, row.name


def _worst_first(
    entry: tuple[tuple[int, int, int, str, str], SurveyedQueue],
) -> tuple[int, int, int, str, str]:
    """Return what the rows are sorted by: as `_order`, and equals by name."""
    pain, waited, ready, broker, name = entry[0]
    return -pain, -waited, -ready, broker, name


def _slices(brokers: Iterable[Broker]) -> Iterator[list[tuple[Broker, QueueState]]]:
    """Yield the declared queues of all brokers, some at a time; queues may come and go meanwhile.

    Always yields at least one slice."""
    part: list[tuple[Broker, QueueState]] = []
    weight = 0
    for broker in list(brokers):
        if broker.name == MSDB:
            continue
        for state in list(broker.queues.values()):
            if not state.is_system:
                part.append((broker, state))
                weight += 1 + state.window.count // _LIGHT  # its oldest message is searched for
            if weight >= SLICE:
                yield part
                part, weight = [], 0
    yield part
