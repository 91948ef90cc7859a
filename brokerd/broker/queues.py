"""One queue in memory: ready groups, a window of messages, and waiting receives (RCV, design D4).

Reads: the store, for messages of the backlog.      Calls: storage (through `page`).
Never: commits; transactions dequeue messages here and give them back.

The window holds, level by level, the messages with the lowest queuing orders. A message that
arrives while others of its level are in the backlog goes to the backlog too (`backlog.py`), and
nothing is received while a message that comes before it is only in the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from brokerd.broker.ageing import Ageing, oldest_at
from brokerd.broker.backlog import Beyond, Found, Source
from brokerd.broker.blocked import Blocked
from brokerd.broker.poison import NO_STREAK
from brokerd.broker.queue_times import QueueTimes
from brokerd.broker.receive_waiters import WaitingLine
from brokerd.broker.state import HomeQueue, QueuedMessage, ReceiveWait, Taken, size_of
from brokerd.clock import Instant
from brokerd.ids import BrokerId
from brokerd.model import SYSTEM_TYPES, Queue, is_system
from brokerd.protocol.transitions import State
from brokerd.storage.changes import QueueRow

if TYPE_CHECKING:
    from brokerd.broker.state import Group, Holder, Live


class WindowOptions(msgspec.Struct, frozen=True):
    """How much of a queue is held in memory."""

    window_messages: int = 50_000
    window_bytes: int = 32 * 1024 * 1024
    page_messages: int = 2_000
    """Messages loaded at a time."""
    page_bytes: int = 4 * 1024 * 1024
    locked_factor: int = 4
    """How many windows may be in memory before a receive stops looking past locked groups."""


class Depth(NamedTuple):
    """The number of messages a queue holds, as committed: counted as they come and go (PBT-20)."""

    ready: int
    """Messages not received, or received by a transaction that is still open."""
    parked: int
    """Messages of groups that are set aside (PBT-3)."""


_STALE = 1000
"""Heap entries of groups locked since that are tolerated, however few other entries there are."""
NEXT_UP = 16
"""How many of the groups to be received next are checked for messages to load ahead."""
MESSAGE_COST = 400
"""Bytes of memory that a message in the window costs in addition to its body."""


class QueueState:
    """The state of one queue that is in memory between two commits."""

    def __init__(
        self,
        queue: Queue,
        *,
        broker_id: BrokerId,
        options: WindowOptions,
        source: Source,
        on_arrival: Callable[[QueueState, bool], None],
        on_empty: Callable[[QueueState], None],
        behind: Callable[[Callable[[], None]], None],
        times: QueueTimes,
        now: Callable[[], float],
        utc: Callable[[], Instant],
    ) -> None:
        self._now = now
        self._utc = utc
        self.youngest_at: float | None = None
        """When the latest message was committed (monotonic)."""
        self.times = times
        self.on_arrival = on_arrival
        self.on_empty = on_empty
        self._behind = behind
        self._offered: dict[Group, bool] = {}
        self._was_empty: bool | None = None
        self._tells = self._looks = False
        self.queue = queue
        self.retains = queue.retention
        """Whether received and sent messages are kept until the conversation ends (RCV-31)."""
        self.is_system = is_system(queue.name)
        """Whether it is an internal queue of the broker (EVT-12)."""
        self.broker_id = broker_id
        self._options = options
        self.past = Beyond(
            source,
            page_messages=options.page_messages,
            page_bytes=options.page_bytes,
            enter=self._enter,
            entered=self.offer,
        )
        """The backlog: messages that are only in the store."""
        self._heap: list[tuple[int, int, Group]] = []
        self._heap_limit = _STALE
        self._window = 0
        self._window_bytes = 0
        self._ageing: Ageing | None = None
        self.line = WaitingLine()
        """Receives that wait for a message."""
        self.taken = 0
        """Messages received in transactions that are still open."""
        self.aside: set[Group] = set()
        """Groups in memory that are set aside: they are not received for now (PBT-3)."""
        self.parked = 0
        """Messages of groups that are not received for now, in window or backlog (PBT-20)."""
        self.streak = NO_STREAK
        """The current run of rollbacks (PSN-2)."""
        self.enqueued = self.received = self.rolled_back = 0
        """Counts since this daemon started: arrivals, committed receives, receives given back."""
        self._take_options()

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    @property
    def takes_system_messages(self) -> bool:
        """Whether the broker can enqueue messages of its own now (DLG-41)."""
        return self.queue.enqueue_enabled and not self._is_full

    @property
    def waiting(self) -> list[ReceiveWait]:
        """Receives that wait for any group, in order of arrival (ACT-10)."""
        return self.line.unselective

    @property
    def ready_count(self) -> int:
        """Number of messages that can be received, locked groups included, held not (RCV-34)."""
        return self._window + self.past.total - self.parked

    @property
    def depth(self) -> Depth:
        """The number of committed messages, by kind."""
        ready = self._window + self.past.total + self.taken - self.parked
        return Depth(ready, self.parked)

    @property
    def beyond(self) -> int:
        """Number of messages in the backlog."""
        return self.past.total

    @property
    def oldest_at(self) -> Instant | None:
        """Enqueue time of the oldest ready message, or None if no message is ready.

        Locked groups do not count. For levels with nothing in memory, as after a start, the backlog
        says it."""
        first: dict[int, tuple[int, int, Group]] = {}
        for entry in self._heap:  # all of it: it is ordered by level, and holds stale entries
            level, order, group = entry
            if group.entry is entry and group.ready:
                known = first.get(level)
                if known is None or order < known[1]:
                    first[level] = entry
        times = [oldest_at(group) for _, _, group in first.values()]
        if self.ready_count:
            times += self.past.since(besides={-level for level in first})
        return min(times, default=None)

    def ready_groups(self, most: int) -> int:
        """Count the unlocked groups in memory that have messages, up to `most`."""
        free = (entry for entry in self._heap if entry[2].entry is entry and entry[2].ready)
        return sum(1 for _ in islice(free, most))

    def recovered(self, priority: int, count: int, since: int) -> None:
        """Add messages of a level that were in the store at the start to the backlog; `since`: when
        the first of them was enqueued."""
        self.past.recovered(priority, count, since)

    def alter(self, queue: Queue) -> None:
        """Use changed options of the queue; waiters see them immediately (RCV-19)."""
        if queue.is_on and not self.queue.is_on:
            self.streak = NO_STREAK
        self.queue, self.retains = queue, queue.retention
        self._take_options()
        if not queue.receive_enabled:
            self.line.wake_all()

    def _take_options(self) -> None:
        """Start or stop the ageing of levels (PBT-16), and place the ready groups again."""
        interval = self.queue.receive_ageing
        if interval is None and self._ageing is None:
            return
        self._ageing = self.past.ageing = None if interval is None else Ageing(interval, self._utc)
        entries, self._heap = self._heap, []
        for entry in entries:
            group = entry[2]
            if group.entry is entry:
                group.entry = None
                self._put(group)

    # Messages come in.

    def must_page(self, priority: int, size: int) -> bool:
        """Return whether a new message of this level has to go to the backlog."""
        return (
            self.past.holds(priority)
            or self._window >= self._options.window_messages
            or self._window_bytes + size > self._options.window_bytes
        )

    def published(self, live: Live, row: QueueRow) -> bool:
        """Add a durable message to the window or the backlog, unless it was dropped unread
        meanwhile.

        Return whether its group may have something new for a waiter: then the caller passes the
        group to `arrived`."""
        if live.gone or row.queuing_order < live.dropped_before:
            if row.paged:
                self.past.deleted(row)
            return False
        self.enqueued += 1
        if live.group.held is not None:
            self.held_changed(live.group, 1)
        if row.paged and self.past.published(live, row):
            return self.line.expects(live.group.group_id)
        if row.sequence >= 0:
            self.past.passed(row.priority, row.queuing_order)
        is_first = row.sequence < 0 or not live.ready
        self.add(live, QueuedMessage.of(row))
        return is_first

    def add(self, live: Live, message: QueuedMessage) -> None:
        """Add a committed message to the window; the caller offers its group afterwards."""
        ready = live.ready
        if not ready:
            live.group.has_ready(live)
            ready.append(message)
        elif message.sequence < 0:
            _insert(ready, (message,))
        else:
            ready.append(message)
        self._window += 1
        self._window_bytes += MESSAGE_COST + len(message.body or b"")

    def offer(self, group: Group) -> None:
        """Put an unlocked group among the ready ones, and wake waiters for it (RCV-20, RCV-21)."""
        self._wake_for(group, is_new=self._placed(group))

    def _placed(self, group: Group) -> bool:
        """Put an unlocked group with messages among the ready ones. Return whether it is new."""
        if group.holder is not None or not group.ready or group.held is not None:
            return False
        is_new = group.entry is None
        self._put(group)
        return is_new

    def _wake_for(self, group: Group, *, is_new: bool) -> None:
        # The holder of the lock may itself wait for a message of this group.
        if group.holder is not None:
            self.line.wake_own(group)
            if group.thinned:  # it stays so: what is gone for good shows when the holder has ended
                self.line.wake_selecting(group)
        elif group.ready and group.held is None:
            self.line.wake_for(group, is_new=is_new and group.entry is not None)
        elif self.beyond or group.thinned:
            group.thinned = False
            self.line.wake_for(group, is_new=False)

    def _put(self, group: Group) -> None:
        """Give an unlocked group its place, unless it has one that is as good."""
        known, place = group.entry, self._place(group)
        if known is not None and known[:2] <= place:
            return
        entry = group.entry = (*place, group)
        heappush(self._heap, entry)
        if len(self._heap) > self._heap_limit:
            self._forget_stale()
        if self._ageing is not None:
            self._ageing.watch(group)

    def _forget_stale(self) -> None:
        """Drop the entries of groups locked since: perhaps no receive ever pops them."""
        self._heap = [entry for entry in self._heap if entry[2].entry is entry]
        heapify(self._heap)
        self._heap_limit = 2 * len(self._heap) + _STALE

    def arrived(self, groups: Collection[Group], *, was_empty: bool) -> None:
        """Note that messages have been committed; waiters and the queue monitor are notified
        (ACT-6a).

        `groups`: those that may have something new for a waiter."""
        self.youngest_at = self._now()
        if self._was_empty is None:
            self._was_empty = was_empty
        self.unlocked(groups)

    def unlocked(self, groups: Collection[Group]) -> None:
        """Offer the groups that an ended transaction had locked (RCV-20).

        Waiters are woken when the whole flush is published, and choose among all of it (GRP-15):
        messages that become durable together are seen together, and need few receives."""
        expected, beyond = self.line.is_expecting, self.past.total
        for group in groups:
            if not (group.ready or beyond or group.thinned):
                continue  # nothing can be received, and nothing that a waiter selects has gone
            is_new = self._placed(group)
            if expected:
                self._offered[group] = is_new or self._offered.get(group, False)
        if not self._tells:
            self._tells = True
            self._behind(self.tell)

    def tell(self) -> None:
        """Wake waiters for what has come, if that is still to be done; notify the monitor."""
        if not self._tells:
            return
        self._tells = False
        offered, self._offered = self._offered, {}
        was_empty, self._was_empty = self._was_empty, None
        for group, is_new in offered.items():
            self._wake_for(group, is_new=is_new)
        for _ in offered:  # a woken receive chose the best group: others may be left
            if not self._wake_next():
                break
        self._look_for_waiting()
        if was_empty is not None:
            self.on_arrival(self, was_empty)

    def pass_on(self) -> None:
        """Wake the next waiter, because a woken one left without taking anything (RCV-21)."""
        self._wake_next()
        self._look_for_waiting()

    def _wake_next(self) -> bool:
        """Wake the first waiter if an unlocked group has messages. Return whether one was woken."""
        if not self.waiting or self._first() is None:
            return False
        self.line.wake_one()
        return True

    def _look_for_waiting(self) -> None:
        """Load messages of the backlog for waiting receives, as far as memory allows it, until one
        of them can be received. A page may hold only messages of locked groups."""
        if self.waiting and self.beyond and not self._is_full and not self._looks:
            self._looks = True
            self.past.fetch(self._look_again)

    def _look_again(self) -> None:
        self._looks = False
        self._look_for_waiting()

    # Messages go out.

    def best(self, holder: Holder, but: Container[Group] = ()) -> Group | None:
        """Return the group an unselective receive takes: unlocked or the transaction's own (RCV-3).

        `but`: groups of the transaction to skip (GRP-16)."""
        first = self._first()
        ended = holder.ended
        own: list[Group] = []
        for group in list(holder.ready):
            if not group.ready:  # all of its messages are received
                del holder.ready[group]
                continue
            is_here = group.queue is self and group.held is None
            if is_here and group not in but and _lives(group, ended):
                own.append(group)
        if not own:
            return None if first is None else first[2]
        place, mine = min((self._place(one, ended), at) for at, one in enumerate(own))
        return first[2] if first is not None and first[:2] < place else own[mine]

    def best_unlocked(self) -> Group | None:
        """Return the best unlocked group; None if there is none."""
        first = self._first()
        return None if first is None else first[2]

    def _first(self) -> tuple[int, int, Group] | None:
        """Return the heap entry of the best unlocked group; None if there is none."""
        if self._ageing is not None:
            for group in self._ageing.risen():
                if group.queue is self:  # otherwise its service has moved to another queue (OBJ-35)
                    self._put(group)
                    self._ageing.watch(group)
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[2].entry is entry:
                return entry
            heappop(heap)
        return None

    def _place(self, group: Group, but: Collection[Live] = ()) -> tuple[int, int]:
        """Return the rank of a group among the others, lowest first (GRP-15, PBT-16).

        `but`: conversations of the group that do not count."""
        ready = group.ready
        if len(ready) == 1 and not but:
            (live,) = ready.values()
            level, order = live.endpoint.priority, _oldest(live)
        else:
            level, order = _rank(_lives(group, but))
        if self._ageing is not None:
            level = self._ageing.level(level, oldest_at(group))
        return -level, order

    def take(
        self,
        group: Group,
        limit: int,
        max_bytes: int,
        *,
        only: Live | None = None,
        but: Collection[Live] = (),
        now: Instant | None = None,
    ) -> list[Taken]:
        """Remove up to `limit` messages, at least one, of a locked group from the window, in order
        (RCV-7).

        The first message is taken however large it is. `only`: take from this conversation alone
        (RCV-5). `but`: skip these conversations. `now`: the instant, for a caller that takes from
        many groups at once."""
        taken: list[Taken] = []
        now = self._utc() if now is None else now
        lives = _lives(group, but, only) if but or only else list(group.ready.values())
        if len(lives) > 1:
            lives.sort(key=lambda one: (-one.endpoint.priority, one.ready[0].order))
        count = size = 0
        for live in lives:
            ready = live.ready
            here = len(ready)
            if here == 1:
                message = ready[0]
                messages, its_size = [message], len(message.body or b"")
            else:
                messages = list(islice(ready, limit))
                its_size = size_of(messages)
            # A message that does not fit ends the receive (limit 0), as none may overtake it.
            if its_size > max_bytes:
                messages, limit = _fitting(messages, max_bytes, least=0 if taken else 1), 0
                its_size = size_of(messages)
            its_count = len(messages)
            if messages:
                taken.append(Taken(live, messages, its_size, now))
                count += its_count
                size += its_size
            if its_count < here:
                for _ in messages:
                    ready.popleft()
                break
            ready.clear()
            del group.ready[live.endpoint.key]
            limit -= its_count
            max_bytes -= its_size
            if limit <= 0:
                break
        if count:
            self._left_window(count, size)
            self.taken += count
        return taken

    def put_back(self, taken: Sequence[Taken]) -> None:
        """Return the messages of a rolled back receive to their places (RCV-15)."""
        for live, messages, *_ in reversed(taken):
            self.taken -= len(messages)
            self.rolled_back += len(messages)
            if not live.gone:
                self._put_back(live, [one for one in messages if one.order >= live.dropped_before])

    def _put_back(self, live: Live, messages: Sequence[QueuedMessage]) -> None:
        if not messages:
            return
        ready = live.ready
        if ready and ready[0].sequence < messages[-1].sequence:  # a timer or Error came meanwhile
            _insert(ready, messages)
        else:
            ready.extendleft(reversed(messages))
        live.group.has_ready(live)
        for message in messages:
            message.deliveries += 1
            self._window_bytes += MESSAGE_COST + len(message.body or b"")
        self._window += len(messages)

    def consumed(self, taken: Sequence[Taken], now: Instant) -> None:
        """Count messages whose receives have become durable."""
        self.streak = NO_STREAK
        count = sum([len(one.messages) for one in taken])
        self.taken -= count
        self.received += count
        self.times.consumed(taken, now)

    def joining(self, row: QueueRow) -> None:
        """Note that a message of the backlog has joined the commit pipeline."""
        self.past.joining(row)

    def drop_backlog(self, live: Live) -> int | None:
        """Drop an endpoint's messages in the backlog; return their number, None = unknown."""
        return self.past.drop(live)

    def drop(self, live: Live) -> list[QueuedMessage]:
        """Drop an endpoint's unread messages; return those that were in memory.

        `drop_backlog` drops the others."""
        dropped = list(live.ready)
        if live.group.held is not None:
            self.held_changed(live.group, -len(dropped) - (live.beyond or 0))
        live.ready.clear()
        live.group.ready.pop(live.endpoint.key, None)
        self._left_window(len(dropped), size_of(dropped))
        return dropped

    def moved(self, live: Live, left: Group, to: Group) -> None:
        """Update the counts after an endpoint moved between two groups of which one or both are
        held."""
        count = len(live.ready) + (live.beyond or 0)
        damaged = () if left.held is None else left.held.damaged
        self.held_changed(left, -count)
        self.held_changed(to, count)
        for message in live.ready:
            if message.order in damaged:
                self.past.damaged(live, message.order, message.message_id)

    def held_changed(self, group: Group, count: int) -> None:
        """Count messages that a held group got, or lost (negative `count`)."""
        held = group.held
        if held is not None:
            held.messages += count
            held.changes += 1
            self.parked += count

    def _left_window(self, count: int, size: int) -> None:
        self._window -= count
        self._window_bytes -= count * MESSAGE_COST + size
        if self.past.total and self._has_room:
            self.past.fetch()

    # Messages of the backlog.

    @property
    def _has_room(self) -> bool:
        """Whether the next page fits into the window.

        A page is loaded as soon as it fits: successive messages lie together in the file, and cost
        a third of the work of as many messages of one group, which lie scattered."""
        options = self._options
        return (
            self._window + options.page_messages <= options.window_messages
            and self._window_bytes + options.page_bytes <= options.window_bytes
        )

    def must_look_further(self, group: Group | None, but: Collection[Live]) -> bool:
        """Return whether a message of the backlog may precede those of the best group in memory.

        `but`: conversations of the group that do not count."""
        if not self.beyond or self._is_full:
            return False
        if group is None:
            return True
        level, order = self._place(group, but)
        return self.past.outranks(-level, order)

    def look_ahead(self, limit: int) -> None:
        """Load what the next receives will take, if they are like the one just done."""
        if self.beyond and not self._is_full:
            next_up = [one for _, _, one in sorted(self._heap[:NEXT_UP]) if one.entry is not None]
            # Only groups of one conversation: what a receive takes of them is known without a lock.
            alone = [group for group in next_up if group.whole and len(group.members) == 1]
            self.past.look_ahead([live for one in alone for live in one.ready.values()], limit)

    def page_in(self) -> Blocked:
        """Return the wait of a receive for the next page, which may have the best message."""
        return Blocked("page", self.past.fetch)

    def is_short(self, group: Group, limit: int, only: Live | None) -> bool:
        """Return whether a receive of `limit` messages of a locked group needs the backlog."""
        if not self.beyond:
            return False
        if only is None and (not group.whole or len(group.members) > 1):
            return True
        live = only or next(iter(group.members.values()))
        # An Error or a DialogTimer in the backlog comes before the messages in memory (RCV-9).
        hidden = live.endpoint.state is State.ERROR or live.endpoint.key in self.past.fired
        return live.beyond != 0 and (hidden or len(live.ready) < limit)

    def complete(
        self, group: Group, limit: int, size: int, only: Live | None, but: Collection[Live]
    ) -> Blocked:
        """Return the wait of such a receive; `but`: conversations of which it takes nothing."""
        return Blocked(
            "page", lambda resume: self.past.complete(group, limit, size, only, resume, but=but)
        )

    def may_have(self, group: Group, only: Live | None) -> bool:
        """Return whether the group has a message in the window, or may have one in the backlog."""
        lives = [only] if only is not None else list(group.members.values())
        if any(live.ready for live in lives):
            return True
        unknown = only is None and not group.whole
        return self.beyond > 0 and (unknown or any(live.beyond != 0 for live in lives))

    def count_beyond(self, live: Live) -> Blocked:
        """Return the wait of an END CONVERSATION until its unread messages are counted."""
        return Blocked("page", lambda resume: self.past.count(live, resume))

    @property
    def is_crowded(self) -> bool:
        """Whether the window is full, so that arrivals go to the backlog."""
        options = self._options
        return self._window >= options.window_messages or self._window_bytes >= options.window_bytes

    @property
    def _is_full(self) -> bool:
        """Whether locked groups fill so much memory that nothing more is loaded.

        Groups that are set aside do not count: perhaps nobody ever releases them, and the messages
        behind them would never be received."""
        options, most = self._options, self._options.locked_factor
        count, size = self._window, self._window_bytes
        if count < most * options.window_messages and size < most * options.window_bytes:
            return False
        for group in self.aside:
            if group.held is not None and group.queue is self:
                for live in group.ready.values():
                    count -= len(live.ready)
                    size -= len(live.ready) * MESSAGE_COST + size_of(live.ready)
        return count >= most * options.window_messages or size >= most * options.window_bytes

    def _enter(self, found: Found) -> Iterable[Group]:
        """Add messages of conversations to the window, each conversation's in their order.

        Return the groups to offer, those with the oldest messages first. A receivable group that
        had messages here keeps its place, since those added behind them are younger. Not so if its
        first message is a DialogTimer or an Error, which is first whatever its age (RCV-9)."""
        firsts: dict[Group, int] = {}
        is_expected = self.line.is_expecting
        count = size = 0
        for live, rows in found:
            messages = QueuedMessage.all_of(rows)
            ready, group = live.ready, live.group
            has_place = bool(ready) and ready[0].sequence >= 0
            if not ready:
                group.has_ready(live)
            if min([one.sequence for one in messages]) < 0:
                _insert(ready, messages)
                has_place = False
            else:
                ready.extend(messages)
            if is_expected or not has_place:
                order = messages[0].order
                firsts[group] = min(order, firsts.get(group, order))
            count += len(messages)
            size += size_of(messages)
        self._window += count
        self._window_bytes += count * MESSAGE_COST + size
        return sorted(firsts, key=firsts.__getitem__)


def _fitting(messages: list[QueuedMessage], room: int, *, least: int) -> list[QueuedMessage]:
    """Return the messages up to the first that exceeds the room, but at least `least`."""
    for at, message in enumerate(messages):
        room -= len(message.body or b"")
        if room < 0 and at >= least:
            return messages[:at]
    return messages


def publish(arrivals: Iterable[tuple[Live, QueueRow]], freed: Sequence[Group] = ()) -> None:
    """Publish durable messages to their queues, and notify each queue once (REL-4).

    `freed`: groups whose locks end with the same commit. Waiters choose among all (GRP-14)."""
    groups: dict[HomeQueue, dict[Group, None]] = {}
    empty: dict[HomeQueue, bool] = {}
    for live, row in arrivals:
        live.unpublished.popleft()
        queue = live.queue
        if queue not in groups:
            groups[queue], empty[queue] = {}, not queue.ready_count
        if queue.published(live, row):
            groups[queue][live.group] = None
        if row.message_type not in SYSTEM_TYPES:
            live.coming.received += 1
    # The next holder goes on in a turn of its own: it may commit and release the lock at once, and
    # a long line would make a deep stack (REL-18).
    for group in freed:
        if (place := group.release()) is not None:
            asyncio.get_running_loop().call_soon(place.tell)
    for group in freed:
        groups.setdefault(group.queue, {})[group] = None
    for queue, together in groups.items():
        if queue in empty:
            queue.arrived(together, was_empty=empty[queue])
        else:
            queue.unlocked(together)


def _lives(group: Group, but: Collection[Live], only: Live | None = None) -> list[Live]:
    """Return a group's conversations with messages in the window, without `but`; or only `only`."""
    if only is not None:
        return [only] if only.ready else []
    ready = group.ready.values()
    return [live for live in ready if live not in but] if but else list(ready)


def _rank(lives: Sequence[Live]) -> tuple[int, int]:
    """Return the level of a group, and the order of its oldest message of that level (GRP-15).

    Messages of lower levels may be older; they may be in the backlog, and do not count."""
    level = max(live.endpoint.priority for live in lives)
    return level, min(_oldest(live) for live in lives if live.endpoint.priority == level)


def _oldest(live: Live) -> int:
    """Return the order of a conversation's oldest message; an Error is first whatever its order."""
    first = live.ready[0]
    if first.sequence < 0:
        return min(message.order for message in live.ready)
    return first.order


def _insert(ready: deque[QueuedMessage], messages: Iterable[QueuedMessage]) -> None:
    """Put messages at their places by sequence: DialogTimer, then Error, then the rest (RCV-9)."""
    ordered = sorted([*ready, *messages], key=lambda one: (one.sequence, one.order))
    ready.clear()
    ready.extend(ordered)
