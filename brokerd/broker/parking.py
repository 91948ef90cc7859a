"""Groups that are not received for now: they wait for their next attempt, or are parked (PBT-3).

Reads:  reports of rollbacks, the clock.      Calls: poison, the store, the queues of the groups.
Never:  locks a group, or delays a rollback: memory is updated immediately, the store with the next
        flush.
Wakes:  when the first wait is over.

A row lasts from the first rollback that counts to the next commit that receives from the group.
A group with a damaged message is parked as well (REL-6), and no commit frees it.
A held group is skipped by every receive; its messages count as parked, not as ready (RCV-34).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from typing import Final

from brokerd.broker.deadlines import Deadline
from brokerd.broker.endpoints import Endpoints
from brokerd.broker.messages import QueuedMessage
from brokerd.broker.poison import Undone, counted, judged, verdict
from brokerd.broker.queues import QueueState
from brokerd.broker.state import Group, Held, HomeQueue, Live, Taken
from brokerd.broker.store_reads import Spawn, read_until_answered
from brokerd.clock import Clock, Instant
from brokerd.errors import StoreFault
from brokerd.ids import EndpointKey, GroupId, MessageId, QueueKey, show
from brokerd.model import QueueStatus
from brokerd.protocol.headers import trace_of
from brokerd.protocol.transitions import State
from brokerd.routing.reasons import Reason
from brokerd.storage.changes import Changes, HeldRow, QueueRow
from brokerd.storage.rows.held_groups import RecoveredGroup
from brokerd.storage.store import Store

Received = list[tuple["QueueState", list["Taken"]]]
CHECK_OVERRUN: Final = "check_overrun"
"""The reason of a group that is parked because a check came to no verdict (OBJ-62)."""
BY_POISON = "poison handling"
"""The author of the change if a queue is switched off because of its rollbacks (PBT-1)."""


class HeldGroups:
    """The groups of one broker with rolled back transactions, and no committed one since."""

    def __init__(
        self,
        *,
        store: Store,
        endpoints: Endpoints,
        groups: Mapping[GroupId, Group],
        queues: Mapping[str, QueueState],
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        """Create the parking of a broker, which changes `groups` and `queues` as it runs."""
        self._store = store
        self._endpoints = endpoints
        self._groups = groups
        self._queues = queues
        self._clock = clock
        self._spawn = spawn
        self.by_id: dict[GroupId, Held] = {}
        self._waits: list[tuple[Instant, GroupId]] = []
        self.deadline = Deadline(clock, self._due)
        self.on_parking: Callable[[str, dict[str, object]], None] = _tell_nobody
        """Called with subclass and fields when a group is parked or delayed, once durable."""
        self.on_poisoned: Callable[[QueueState, QueueStatus], None] = _disable_nothing
        """Called with a queue that is to be switched off, and the reason (PSN-7)."""

    # After opening the store.

    def recovered(self, found: Iterable[RecoveredGroup]) -> None:
        """Load the groups that the store knows; end the waits that are over by now."""
        for row, messages in found:
            held = self.by_id[row.group_id] = Held(row)
            if row.parked_at is not None or row.retry_at is not None:
                self._begin(held, messages)

    def holding(self, group_id: GroupId) -> Held | None:
        """Return the hold on a group that is being loaded; None = it is not held."""
        held = self.by_id.get(group_id)
        return held if held is not None and held.holds else None

    # Rollbacks and commits.

    def undone(self, received: Received, how: Undone) -> None:
        """Count a rollback for its queues and groups.

        Its messages have been given back, and its locks are still held."""
        groups: dict[Group, tuple[Live, QueuedMessage]] = {}
        queues: dict[QueueState, tuple[Live, QueuedMessage]] = {}
        for queue, taken in received:
            if taken and not queue.is_system and not taken[0].live.gone:
                first = taken[0].live, taken[0].messages[0]
                groups.setdefault(first[0].group, first)
                queues.setdefault(queue, first)
        for queue, culprit in queues.items():
            self._count(queue, culprit, how)
        for group, culprit in groups.items():
            self._evaluate(group, culprit, how)

    def _count(self, queue: QueueState, culprit: tuple[Live, QueuedMessage], how: Undone) -> None:
        streak = counted(queue.queue, queue.streak, how)
        if streak is queue.streak:
            return
        queue.continue_streak(streak)
        reason = verdict(queue.queue.poison, streak)
        if reason and queue.queue.receive_enabled:
            live, message = culprit
            status = QueueStatus(
                reason=reason,
                changed_at=self._clock.utc(),
                changed_by=BY_POISON,
                conversation_id=live.endpoint.conversation_id,
                message_id=message.message_id,
                error=how.error,
                rollbacks=streak.disconnects if how.disconnect else streak.rollbacks,
            )
            self.on_poisoned(queue, status)

    def _evaluate(self, group: Group, culprit: tuple[Live, QueuedMessage], how: Undone) -> None:
        live, message = culprit
        known = self.by_id.get(group.group_id)
        if known is not None and known.row.reason == CHECK_OVERRUN:
            return  # it is parked already, and the reason must not be replaced
        before = HeldRow(group.group_id, group.queue.queue.key) if known is None else known.row
        row = judged(before, group.queue.queue, how, now=self._clock.utc())
        if row is before or (row.attempts, row.disconnects, row.retry_at, row.parked_at) == (
            before.attempts,
            before.disconnects,
            before.retry_at,
            before.parked_at,
        ):
            return
        row = row._replace(
            queue=group.queue.queue.key,
            conversation_id=live.endpoint.conversation_id,
            message_id=message.message_id,
        )
        if known is None:
            known = self.by_id[group.group_id] = Held(row)
        known.row = row
        is_held = row.parked_at is not None or row.retry_at is not None
        if is_held and not known.holds:
            self._begin_in(known, group)
        what = "parked" if row.parked_at is not None else "retry_scheduled" if is_held else ""
        fields = self._about(row, group) | trace_of(message.body)
        self._write(row.group_id, row, lambda: self._report(what, fields))

    def handled(self, changes: Changes, taken: list[Taken]) -> None:
        """Free the group of a transaction that received from it and commits (PSN-4).

        The group stays held while an operator receives from it, or while a message without a sound
        body or without a verdict remains."""
        group = taken[0].live.group
        held = self.by_id.get(group.group_id)
        if held is None:
            return
        orders = [message.order for one in taken for message in one.messages]
        held.damaged.difference_update(orders)
        if held.unchecked in orders:
            held.unchecked = None
        if held.stays:
            return
        if held.damaged or held.unchecked is not None:
            # The messages were received before the hold, or an administrator discarded them.
            group.queue.held_changed(group, -len(orders))
            return
        del self.by_id[group.group_id]
        self._end(held, group)
        changes.rarely().held[group.group_id] = None

    # Damage.

    def damaged(self, live: Live, order: int, message_id: MessageId) -> None:
        """Park the group of a loaded message whose body fails its hash.

        The mode of its queue does not matter. Nothing behind the message is received either (REL-6,
        REL-10)."""
        group = live.group
        known = self.by_id.get(group.group_id)
        if known is None:
            known = self.by_id[group.group_id] = Held(HeldRow(group.group_id, QueueKey(0)))
        known.damaged.add(order)
        before = known.row
        is_known = before.parked_at is not None and before.reason == Reason.DAMAGED
        if not is_known:
            known.row = before._replace(
                queue=group.queue.queue.key,
                retry_at=None,
                parked_at=self._clock.utc(),
                reason=Reason.DAMAGED.value,
                conversation_id=live.endpoint.conversation_id,
                message_id=message_id,
            )
        # A transaction that holds the lock may give messages back; they count as parked as well.
        if not known.holds:
            taken = 0 if group.holder is None else group.holder.taken_of(group)
            self._begin_in(known, group, taken)
        if not is_known:
            fields = self._about(known.row, group)
            self._write(group.group_id, known.row, lambda: self._report("parked", fields))

    # Checks without a verdict.

    def unchecked(
        self, changes: Changes, live: Live, row: QueueRow, why: str
    ) -> Callable[[], None]:
        """Park the group of a message that is being enqueued though its check came to no verdict.

        The mode of its queue does not matter. The group is parked in the changeset that stores the
        message (OBJ-62). Return the report, to be made once the changeset is durable."""
        group = live.group
        known = self.by_id.get(group.group_id)
        if known is None:
            known = self.by_id[group.group_id] = Held(HeldRow(group.group_id, QueueKey(0)))
        known.unchecked = row.queuing_order
        known.row = known.row._replace(
            queue=group.queue.queue.key,
            retry_at=None,
            parked_at=self._clock.utc(),
            reason=CHECK_OVERRUN,
            error=why,
            conversation_id=live.endpoint.conversation_id,
            message_id=row.message_id,
        )
        if not known.holds:
            self._begin_in(
                known, group, 0 if group.holder is None else group.holder.taken_of(group)
            )
        changes.rarely().held[group.group_id] = known.row
        return partial(self.on_parking, "parked", self._about(known.row, group))

    def is_unchecked(self, live: Live) -> bool:
        """Return whether the group is parked for a message of this dialog that has no verdict."""
        held = self.by_id.get(live.group.group_id)
        if held is None or held.row.reason != CHECK_OVERRUN:
            return False
        return held.holds and held.row.conversation_id == live.endpoint.conversation_id

    # Damage.

    def is_damaged(self, group_id: GroupId) -> bool:
        """Return whether the group has a message in memory with a damaged body."""
        held, group = self.by_id.get(group_id), self._groups.get(group_id)
        if held is None or group is None or not held.damaged:
            return False
        held.damaged &= {one.order for live in group.members.values() for one in live.ready}
        return bool(held.damaged)

    # Orders of an administrator.

    def release(self, group_id: GroupId) -> Held | None:
        """Let the group be received again, from its first attempt; return its hold, or None."""
        held = self.by_id.pop(group_id, None)
        if held is None:
            return None
        self._free(held)
        self._write(group_id, None, lambda: None)
        return held

    def rebound(self, group: Group) -> None:
        """Note that the group's messages are on another queue now (OBJ-35)."""
        held = self.by_id.get(group.group_id)
        if held is not None:
            held.row = held.row._replace(queue=group.queue.queue.key)
            if held.holds:
                group.queue.aside.add(group)
            self._write(group.group_id, held.row, lambda: None)

    def gone(self, group: Group) -> None:
        """Stop holding a group whose last dialog has ended."""
        held = self.by_id.pop(group.group_id, None)
        if held is not None:
            self._end(held, group)
            self._write(group.group_id, None, lambda: None)

    def close(self) -> None:
        """Stop the timer: the store is about to close."""
        self.deadline.close()

    def queue_of(self, row: HeldRow) -> HomeQueue | None:
        """Return the queue that the group's messages are on; None = it was dropped."""
        group = self._groups.get(row.group_id)
        if group is not None:
            return group.queue
        named = (one for one in self._queues.values() if one.queue.key == row.queue)
        return next(named, None)

    # Internals.

    def _begin_in(self, held: Held, group: Group, taken: int = 0) -> None:
        """Hold a group in memory; `taken`: messages that a transaction may still give back."""
        self._begin(held, _in_memory(group) + taken, group)
        if not group.whole or any(one.beyond is None for one in group.members.values()):
            self._spawn(self._recount(held))

    def _begin(self, held: Held, messages: int, group: Group | None = None) -> None:
        held.holds, held.messages = True, messages
        queue = self.queue_of(held.row)
        if queue is not None:
            queue.count_parked(messages)
        group = group or self._groups.get(held.row.group_id)
        if group is not None:
            group.hold(held)
        if held.row.retry_at is not None:
            heappush(self._waits, (held.row.retry_at, held.row.group_id))
            self.deadline.at_latest(self._waits[0][0])

    def _end(self, held: Held, group: Group | None) -> None:
        """Stop holding the group. A transaction that has locked it offers it at its end."""
        if not held.holds:
            return
        held.holds = False
        queue = self.queue_of(held.row) if group is None else group.queue
        if queue is not None:
            queue.count_parked(-held.messages)
        if group is not None:
            group.free()

    def _free(self, held: Held) -> None:
        """Stop holding the group and offer it: its messages count as arrivals (RCV-34)."""
        group, queue = self._groups.get(held.row.group_id), self.queue_of(held.row)
        was_empty = queue is not None and not queue.ready_count
        is_held = held.holds
        self._end(held, group)
        if is_held and queue is not None and held.messages:
            queue.arrived(() if group is None else (group,), was_empty=was_empty)

    def _due(self) -> None:
        """Free the groups whose waits are over."""
        now = self._clock.utc()
        while self._waits and self._waits[0][0] <= now:
            at, group_id = heappop(self._waits)
            held = self.by_id.get(group_id)
            if held is None or not held.holds or held.row.retry_at != at:
                continue  # released, or rolled back once more since
            if held.row.parked_at is not None:
                continue
            held.row = held.row._replace(retry_at=None)
            if not held.row.attempts and not held.row.disconnects:
                del self.by_id[group_id]
                self._write(group_id, None, lambda: None)
            self._free(held)
        if self._waits:
            self.deadline.at_latest(self._waits[0][0])

    async def _recount(self, held: Held) -> None:
        """Count a held group's messages, stored or in memory; repeat if the number changes."""
        store, endpoints = self._store, self._endpoints
        while held.holds:
            mark, total = held.changes, 0
            for stored in await read_until_answered(store.endpoints.in_group, held.row.group_id):
                if stored.state is State.CLOSED:
                    continue
                live, here, coming = endpoints.get(stored.key), set[int](), set[int]()
                if live is not None:
                    here = {message.order for message in live.ready}
                    coming = {row.queuing_order for row in live.unpublished}
                key, before = EndpointKey(stored.key), store.coming_order
                found = await read_until_answered(
                    store.message_counts.tally, key, -1, before, here | coming
                )
                total += len(here) + found.messages
            if mark == held.changes and held.holds:
                queue = self.queue_of(held.row)
                if queue is not None:
                    queue.count_parked(total - held.messages)
                held.messages = total
                return

    def _write(self, group_id: GroupId, row: HeldRow | None, done: Callable[[], None]) -> None:
        changes = Changes()
        changes.rarely().held[group_id] = row
        with suppress(StoreFault):  # the daemon is stopping for it already (REL-5)
            self._store.join(changes, done)

    def _report(self, what: str, fields: dict[str, object]) -> None:
        if what:
            self.on_parking(what, fields)

    def _about(self, row: HeldRow, group: Group | None) -> dict[str, object]:
        queue = self.queue_of(row) if group is None else group.queue
        return {
            "queue": "" if queue is None else queue.name,
            "group_id": show(row.group_id),
            "conversation_id": show(row.conversation_id),
            "message_id": show(row.message_id),
            "attempts": row.attempts,
            "retry_at": row.retry_at,
            "reason": row.reason,
            "error": row.error,
        }


def _in_memory(group: Group) -> int:
    return sum(len(one.ready) + (one.beyond or 0) for one in group.members.values())


def _tell_nobody(what: str, fields: dict[str, object]) -> None:
    """Ignore the event: there is no listener."""


def _disable_nothing(queue: QueueState, status: QueueStatus) -> None:
    """Ignore the order: there is no administration."""
