"""One queue in memory: its arrivals, its receives, and its notifications (RCV, design D4).

Reads:  nothing by itself.      Calls: its window, ready groups, backlog and waiting receives.
Never:  commits; transactions dequeue messages here and give them back.
Wakes:  waiting receives and the queue monitor, once all of a flush is published (GRP-15).

A queue has four parts. The window (`window.py`) holds, level by level, the messages with the lowest
queuing orders; the backlog (`backlog.py`) those that are only in the store. The ready groups
(`ready_groups.py`) are those that can be received, and the line (`receive_waiters.py`) has the
receives that wait. A message that arrives while others of its level are in the backlog goes to the
backlog too, and nothing is received while a message that comes before it is only in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from brokerd.broker.backlog import Backlog, Found, Source
from brokerd.broker.blocked import Blocked
from brokerd.broker.messages import QueuedMessage
from brokerd.broker.poison import NO_STREAK, Streak
from brokerd.broker.queue_times import QueueTimes
from brokerd.broker.ready_groups import ReadyGroups
from brokerd.broker.receive_waiters import WaitingLine
from brokerd.broker.room import Room
from brokerd.broker.state import Group, HomeQueue, Live, ReceiveWait, Taken
from brokerd.broker.window import MESSAGE_COST, Window, WindowOptions
from brokerd.clock import Instant
from brokerd.ids import BrokerId
from brokerd.model import SYSTEM_TYPES, Queue, is_system
from brokerd.protocol.transitions import State
from brokerd.storage.changes import QueueRow


class Depth(NamedTuple):
    """The number of messages a queue holds, as committed: counted as they come and go (PBT-20)."""

    ready: int
    """Number of messages not received, or received by a transaction that is still open."""
    parked: int
    """Number of messages of groups that are set aside (PBT-3)."""


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
        on_room: Callable[[QueueState], None],
        behind: Callable[[Callable[[], None]], None],
        times: QueueTimes,
        now: Callable[[], float],
        utc: Callable[[], Instant],
    ) -> None:
        self._now = now
        self._utc = utc
        self.youngest_at: float | None = None
        """Time of the commit of the latest message (monotonic)."""
        self.read_at: Instant | None = None
        """Time of the last receive that was committed or rolled back; None = never yet."""
        self.times = times
        self.on_arrival = on_arrival
        self.on_empty = on_empty
        self._on_room = on_room
        self._behind = behind
        self._offered: dict[Group, bool] = {}
        self._was_empty: bool | None = None
        self._is_to_notify = self._is_loading = False
        self.queue = queue
        self.retains = queue.retention
        """Whether received and sent messages are kept until the conversation ends (RCV-31)."""
        self.is_system = is_system(queue.name)
        """Whether it is an internal queue of the broker (EVT-12)."""
        self.broker_id = broker_id
        self.backlog = Backlog(
            source,
            page_messages=options.page_messages,
            page_bytes=options.page_bytes,
            enter=self._enter,
            entered=self.offer,
        )
        """The backlog: messages that are only in the store."""
        self.groups = ReadyGroups(self, utc)
        """The groups that can be received, in the order of their turns."""
        self.window = Window(options, utc)
        """The messages that are in memory."""
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
        self.room: Room | None = None
        """The limits of the queue (REL-42); None = no limit."""
        self.taken_bytes = 0
        """Bytes of the messages received in transactions that are still open."""
        self._use_options()

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
        """Number of receivable messages; locked groups count, held groups do not (RCV-34)."""
        return self.window.count + self.backlog.total - self.parked

    @property
    def depth(self) -> Depth:
        """The number of committed messages, by kind."""
        ready = self.window.count + self.backlog.total + self.taken - self.parked
        return Depth(ready, self.parked)

    @property
    def size(self) -> int:
        """The bytes of the bodies of all committed messages; see `Backlog.size`."""
        window = self.window
        return window.size - MESSAGE_COST * window.count + self.backlog.size + self.taken_bytes

    def is_at_limit(self, messages: int = 0, size: int = 0) -> bool:
        """Return whether the queue, with so much more in it, takes no message (REL-42)."""
        room = self.room
        if room is None:
            return False
        count = self.window.count + self.backlog.total + self.taken
        return room.is_full(count + messages, self.size + size)

    @property
    def beyond(self) -> int:
        """Number of messages in the backlog."""
        return self.backlog.total

    @property
    def oldest_at(self) -> Instant | None:
        """Enqueue time of the oldest ready message, or None if no message is ready.

        Messages of locked groups do not count. For levels with nothing in memory, as after a start,
        the time is that of the backlog."""
        by_level = self.groups.oldest_by_level()
        times = list(by_level.values())
        if self.ready_count:
            times += self.backlog.since(besides=by_level.keys())
        return min(times, default=None)

    def recovered(self, priority: int, count: int, since: int) -> None:
        """Add the messages of a level that were in the store at the start to the backlog.

        `since`: when the first of them was enqueued."""
        self.backlog.recovered(priority, count, since)
        if self.queue.max_bytes is not None:
            self.backlog.measure()

    def alter(self, queue: Queue) -> None:
        """Use changed options of the queue; waiters see them immediately (RCV-19)."""
        if queue.is_on and not self.queue.is_on:
            self.streak = NO_STREAK
        self.queue, self.retains = queue, queue.retention
        self._use_options()
        if not queue.receive_enabled:
            self.line.wake_all()

    def _use_options(self) -> None:
        """Start or stop the ageing of levels (PBT-16), and use the limits (REL-42)."""
        self.backlog.ageing = self.groups.use_ageing(self.queue.receive_ageing)
        most, most_bytes = self.queue.max_messages, self.queue.max_bytes
        if most is None and most_bytes is None:
            self.room = None
        elif self.room is None:
            self.room = Room(most, most_bytes)
        else:
            self.room.set_limits(most, most_bytes)
        if most_bytes is not None:
            self.backlog.measure()

    # Messages come in.

    def must_page(self, priority: int, size: int) -> bool:
        """Return whether a new message of this level has to go to the backlog."""
        window = self.window
        return (
            self.backlog.holds(priority)
            or window.count >= window.options.window_messages
            or window.size + size > window.options.window_bytes
        )

    def published(self, live: Live, row: QueueRow) -> bool:
        """Add a durable message to the window or the backlog, unless it was dropped unread.

        Return whether its group may have something new for a waiter: then the caller passes the
        group to `arrived`."""
        if self.room is not None:
            self.room.arrived(len(row.body or b""))
        if live.gone or row.queuing_order < live.dropped_before:
            if row.paged:
                self.backlog.deleted(row)
            return False
        self.enqueued += 1
        if live.group.held is not None:
            self.held_changed(live.group, 1)
        if row.paged and self.backlog.published(live, row):
            return self.line.expects(live.group.group_id)
        if row.sequence >= 0:
            self.backlog.passed(row.priority, row.queuing_order)
        is_first = row.sequence < 0 or not live.ready
        self.window.add(live, QueuedMessage.from_row(row))
        return is_first

    def offer(self, group: Group) -> None:
        """Put an unlocked group among the ready ones, and wake waiters for it (RCV-20, RCV-21)."""
        self._wake_for(group, is_new=self._placed(group))

    def _placed(self, group: Group) -> bool:
        """Put an unlocked group with messages among the ready ones.

        Return whether the group is ready now and was not before."""
        if group.holder is not None or not group.ready or group.held is not None:
            return False
        is_new = group.entry is None
        self.groups.put(group)
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
            group.noticed_loss()
            self.line.wake_for(group, is_new=False)

    def arrived(self, groups: Collection[Group], *, was_empty: bool) -> None:
        """Note that messages have been committed; notify waiters and the queue monitor (ACT-6a).

        `groups`: those that may have something new for a waiter."""
        self.youngest_at = self._now()
        if self._was_empty is None:
            self._was_empty = was_empty
        self.unlocked(groups)

    def unlocked(self, groups: Collection[Group]) -> None:
        """Offer the groups that an ended transaction had locked (RCV-20).

        Waiters are woken when the whole flush is published, and choose among all its messages
        (GRP-15): messages that become durable together are seen together, and need few receives."""
        expected, beyond = self.line.is_expecting, self.backlog.total
        for group in groups:
            if not (group.ready or beyond or group.thinned):
                continue  # nothing can be received, and nothing that a waiter selects has gone
            is_new = self._placed(group)
            if expected:
                self._offered[group] = is_new or self._offered.get(group, False)
        if not self._is_to_notify:
            self._is_to_notify = True
            self._behind(self.notify)

    def notify(self) -> None:
        """Wake waiters for the offered groups and notify the monitor, if that is still due."""
        if not self._is_to_notify:
            return
        self._is_to_notify = False
        offered, self._offered = self._offered, {}
        was_empty, self._was_empty = self._was_empty, None
        for group, is_new in offered.items():
            self._wake_for(group, is_new=is_new)
        for _ in offered:  # a woken receive chose the best group: others may be left
            if not self._wake_next():
                break
        self._load_for_waiters()
        if was_empty is not None:
            self.on_arrival(self, was_empty)

    def pass_on(self) -> None:
        """Wake the next waiter, because a woken one left without taking anything (RCV-21)."""
        self._wake_next()
        self._load_for_waiters()

    def _wake_next(self) -> bool:
        """Wake the first waiter if an unlocked group has messages. Return whether one was woken."""
        if not self.waiting or self.groups.first() is None:
            return False
        self.line.wake_one()
        return True

    def _load_for_waiters(self) -> None:
        """Load messages of the backlog for waiting receives, as far as memory allows.

        Stop when one of them can be received. A page may hold only messages of locked groups."""
        if self.waiting and self.beyond and not self._is_full and not self._is_loading:
            self._is_loading = True
            self.backlog.fetch(self._load_more)

    def _load_more(self) -> None:
        self._is_loading = False
        self._load_for_waiters()

    # Messages go out.

    def dequeue(
        self,
        group: Group,
        limit: int,
        max_bytes: int,
        *,
        only: Live | None = None,
        but: Collection[Live] = (),
    ) -> list[Taken]:
        """Remove up to `limit` messages, at least one, of a locked group from the window (RCV-7).

        They are removed in order. The arguments are those of `Window.dequeue`."""
        taken, count = self.window.dequeue(group, limit, max_bytes, only=only, but=but)
        if count:
            self.taken += count
            self.taken_bytes += sum([one.size for one in taken])
            if self.backlog.total:
                self._fill_window()
        return taken

    def put_back(self, taken: Sequence[Taken]) -> None:
        """Return the messages of a rolled back receive to their places (RCV-15)."""
        for live, messages, size, _ in reversed(taken):
            self.taken -= len(messages)
            self.taken_bytes -= size
            self.rolled_back += len(messages)
            self.read_at = self._utc()
            if not live.gone:
                kept = [one for one in messages if one.order >= live.dropped_before]
                self.window.put_back(live, kept)

    def consumed(self, taken: Sequence[Taken], now: Instant) -> None:
        """Count messages whose receives have become durable."""
        self.streak = NO_STREAK
        self.read_at = now
        count = sum([len(one.messages) for one in taken])
        self.taken -= count
        self.taken_bytes -= sum([one.size for one in taken])
        self.received += count
        self.times.consumed(taken, now)
        room = self.room
        if room is not None and room.owes_resume and self._is_half_empty(room):
            room.resumed()
            self._on_room(self)

    def _is_half_empty(self, room: Room) -> bool:
        return room.is_half_empty(self.depth.ready + self.depth.parked, self.size)

    def joining(self, row: QueueRow) -> None:
        """Note that a message of the backlog has joined the commit pipeline."""
        self.backlog.joining(row)

    def drop_backlog(self, live: Live) -> int | None:
        """Drop an endpoint's messages in the backlog; return their number, None = unknown."""
        return self.backlog.drop(live)

    def drop(self, live: Live) -> list[QueuedMessage]:
        """Drop an endpoint's unread messages; return those that were in memory.

        `drop_backlog` drops the others."""
        if live.group.held is not None:
            self.held_changed(live.group, -len(live.ready) - (live.beyond or 0))
        dropped = self.window.drop(live)
        self._fill_window()
        return dropped

    def moved(self, live: Live, left: Group, to: Group) -> None:
        """Update the counts after an endpoint moved from or to a held group."""
        count = len(live.ready) + (live.beyond or 0)
        damaged = () if left.held is None else left.held.damaged
        self.held_changed(left, -count)
        self.held_changed(to, count)
        for message in live.ready:
            if message.order in damaged:
                self.backlog.damaged(live, message.order, message.message_id)

    def count_parked(self, count: int) -> None:
        """Count messages as not received for now; negative `count` = as receivable again."""
        self.parked += count

    def continue_streak(self, streak: Streak) -> None:
        """Note that a rollback has continued the current run (PSN-2)."""
        self.streak = streak

    def held_changed(self, group: Group, count: int) -> None:
        """Count messages that a held group gained, or lost (negative `count`)."""
        held = group.held
        if held is not None:
            held.messages += count
            held.changes += 1
            self.count_parked(count)

    def _fill_window(self) -> None:
        """Load the next page after messages have left the window, as soon as it fits."""
        if self.backlog.total and self.window.has_room_for_page:
            self.backlog.fetch()

    # Messages of the backlog.

    def backlog_may_precede(self, group: Group | None, but: Collection[Live]) -> bool:
        """Return whether a message of the backlog may precede those of the best group in memory.

        `but`: conversations of the group that do not count."""
        if not self.backlog.total or self._is_full:
            return False
        if group is None:
            return True
        level, order = self.groups.place(group, but)
        return self.backlog.outranks(-level, order)

    def load_ahead(self, limit: int) -> None:
        """Load messages for the next receives, if they are like the one just done."""
        if self.backlog.total and not self._is_full:
            # Only groups of one conversation: what a receive takes of them is known without a lock.
            alone = [one for one in self.groups.next_up() if one.whole and len(one.members) == 1]
            self.backlog.load_ahead([live for one in alone for live in one.ready.values()], limit)

    def page_in(self) -> Blocked:
        """Return the wait of a receive for the next page, which may have the best message."""
        return Blocked("page", self.backlog.fetch)

    def is_short(self, group: Group, limit: int, only: Live | None) -> bool:
        """Return whether a receive of `limit` messages of a locked group needs the backlog."""
        if not self.backlog.total:
            return False
        if only is None and (not group.whole or len(group.members) > 1):
            return True
        live = only or next(iter(group.members.values()))
        # An Error or a DialogTimer in the backlog comes before the messages in memory (RCV-9).
        hidden = live.endpoint.state is State.ERROR or live.endpoint.key in self.backlog.fired
        return live.beyond != 0 and (hidden or len(live.ready) < limit)

    def complete(
        self, group: Group, limit: int, size: int, only: Live | None, but: Collection[Live]
    ) -> Blocked:
        """Return the wait of a receive until the messages it takes are loaded (see `is_short`).

        `but`: conversations of which it takes nothing."""
        return Blocked(
            "page", lambda resume: self.backlog.complete(group, limit, size, only, resume, but=but)
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
        return Blocked("page", lambda resume: self.backlog.count(live, resume))

    @property
    def _is_full(self) -> bool:
        """Whether locked groups fill so much memory that nothing more is loaded."""
        return self.window.is_full(self)

    def _enter(self, found: Found) -> Iterable[Group]:
        """Add messages of the backlog to the window; return the groups to offer."""
        return self.window.enter(found, is_expected=self.line.is_expecting)


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
            asyncio.get_running_loop().call_soon(place.grant)
    for group in freed:
        groups.setdefault(group.queue, {})[group] = None
    for queue, together in groups.items():
        if queue in empty:
            queue.arrived(together, was_empty=empty[queue])
        else:
            queue.unlocked(together)
