"""RECEIVE and GET CONVERSATION GROUP: choose a group, dequeue, wait (RCV, GRP-14 to GRP-17).

Reads: the broker's memory.      Calls: group_locks, broker.queues, broker.transaction.
Never: commits, or dequeues messages before all of them are in memory. A verb that has to wait
returns `Blocked` and is called again (`broker.blocked`).
Fails: with the errors of appendix A; the session then marks the transaction as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Final

from brokerd.broker import retention
from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.deadlock import break_deadlock
from brokerd.broker.queues import QueueState
from brokerd.broker.state import Group, Live, ReceiveWait, Taken
from brokerd.broker.transaction import Transaction
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import (
    AccessDenied,
    BrokerError,
    ConversationNotFound,
    GroupNotFound,
    InvalidArgument,
    QueueDisabled,
    QueueNotFound,
    QuotaExceeded,
    ServiceMoved,
)
from brokerd.ids import GroupId, Handle, show
from brokerd.protocol.transitions import State
from brokerd.verbs.group_locks import find, group_of, pin_one_of

FOREVER: Final = -1.0
"""The `wait` of a receive without a limit (RCV-18)."""
MAX_MESSAGES: Final = 2**31 - 1


class ReceiveRequest:
    """One RECEIVE or GET CONVERSATION GROUP, from its first attempt to its answer."""

    __slots__ = (
        "_end_wait",
        "awaited",
        "chosen",
        "completed",
        "conversation",
        "even_held",
        "expired",
        "fresh",
        "group",
        "groups",
        "max_messages",
        "owes",
        "queue",
        "selective",
        "taken",
        "ticket",
        "timer",
        "wait",
    )

    def __init__(
        self,
        queue: str,
        *,
        max_messages: int | None = None,
        conversation: Handle | None = None,
        group: GroupId | None = None,
        wait: float | None = None,
        groups: int = 1,
    ) -> None:
        if conversation is not None and group is not None:
            raise InvalidArgument("receive takes a conversation or a group, not both")
        self.queue = queue
        self.max_messages = max_messages
        self.conversation = conversation
        self.group = group
        self.selective = conversation is not None or group is not None
        """Whether the request names a conversation or a group (ACT-12)."""
        self.even_held = False
        """Whether the request receives even from a group that is held (PBT-3)."""
        self.wait = wait
        """Seconds to wait; None = answer immediately, FOREVER = wait without limit."""
        self.expired = False
        self.timer: asyncio.TimerHandle | None = None
        self.chosen: Group | None = None
        """The group that the request has locked."""
        self.awaited: Group | None = None
        """The group that the request selects."""
        self.fresh = False
        """Whether the request itself locked the chosen group, so that it may unlock it."""
        self.completed = False
        """Whether the messages that it receives from the chosen group are in memory."""
        self.ticket = 0
        """The number in the line of waiters (RCV-21); 0 = the request has not waited."""
        self.groups = groups
        """The number of combined receives that remain to be executed (RCV-44)."""
        self.taken: list[Taken] = []
        """The messages that its earlier receives have dequeued."""
        self.owes: QueueState | None = None
        """The queue that woke it: if it takes nothing, the next waiter must be woken (RCV-21)."""
        self._end_wait: Resume | None = None

    def waits(self, end: Resume) -> None:
        """Note that the request waits for a message; `end` ends the wait."""
        self._end_wait = end

    def woken(self, queue: QueueState) -> None:
        """Note that the request was woken, because there may be a message for it."""
        self._end_wait, self.owes = None, queue

    def give_up(self) -> None:
        """End the wait as if its time were over, even a wait that has not begun (CLP-40)."""
        self.expired = True
        if self._end_wait is not None:
            self._end_wait()

    def over(self) -> None:
        """Stop the timer, and wake the next waiter if one has to be woken.

        The request is answered, or never will be."""
        self._end_wait = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        queue, self.owes = self.owes, None
        if queue is not None:
            queue.pass_on()


def receive(tx: Transaction, request: ReceiveRequest) -> list[Taken] | Blocked:
    """Receive the messages of one group, or of several groups (RCV-1 to RCV-25).

    Only a request that combines several receives takes several groups (RCV-44). Return an empty
    list if the wait is over."""
    # Once for all combined receives: nothing else runs between them.
    queue = _queue(tx, request)
    if request.max_messages == 0:  # counts as a receive and takes nothing (RCV-12)
        return []
    if tx.size >= tx.broker.options.max_bytes:
        raise QuotaExceeded(f"a transaction carries at most {tx.broker.options.max_bytes} bytes")
    if request.groups == 1 and not request.taken:
        return _of_one_group(tx, queue, request)
    while True:
        try:
            found = _of_one_group(tx, queue, request)
        except QuotaExceeded:
            if not request.taken:
                raise
            _leave(tx, request)  # raised again for the next receive of that group (PBT-24)
            return request.taken
        if isinstance(found, Blocked):
            return found
        request.taken += found
        request.groups -= 1
        if not found or not request.groups or not _may_go_on(tx, request, found):
            return request.taken


def _may_go_on(tx: Transaction, request: ReceiveRequest, found: list[Taken]) -> bool:
    """Return whether the next combined receive may take anything; it does not wait (RCV-44)."""
    request.wait = None
    if request.max_messages is not None:
        for one in found:
            request.max_messages -= len(one.messages)
        if not request.max_messages:  # a receive of none would count as one (RCV-12)
            return False
    return tx.size < tx.broker.options.max_bytes


def _of_one_group(
    tx: Transaction, queue: QueueState, request: ReceiveRequest
) -> list[Taken] | Blocked:
    limit = MAX_MESSAGES if request.max_messages is None else request.max_messages
    size = tx.broker.options.max_bytes - tx.size
    group = None if request.chosen is None else _chosen(tx, request)
    if group is None:
        found = _selected(tx, queue, request) if request.selective else _best(tx, queue)
        if found is None or isinstance(found, Blocked):
            return found or _wait(tx, queue, request) or []
        request.fresh = found.holder is None
        found.lock(tx)
        request.chosen = group = found
    only = tx.broker.endpoints.find(request.conversation) if request.conversation else None
    # `completed` is set before the wait: after it the receive takes the messages in memory, even if
    # they are fewer than expected, and does not wait for the store again.
    has_backlog = queue.backlog.total > 0
    if has_backlog and not request.completed and queue.is_short(group, limit, only):
        request.completed = True
        return queue.complete(group, limit, size, only, tx.ended)
    if not queue.retains:
        taken: list[Taken] | Blocked = queue.dequeue(group, limit, size, only=only, but=tx.ended)
    else:
        taken = _take_retained(tx, queue, group, (limit, size), only)
    if isinstance(taken, Blocked):
        return taken
    request.chosen, request.completed = None, False
    if not taken:  # as if the group had never been locked (GRP-10)
        if request.fresh:
            tx.give_back(group)
        return _wait(tx, queue, request) or []
    if request.timer is not None or request.owes is not None:  # it has waited
        request.owes = None
        request.over()
    tx.received(queue, taken)
    tx.broker.receives += 1
    if has_backlog:
        queue.load_ahead(limit)
    return taken


def _chosen(tx: Transaction, request: ReceiveRequest) -> Group | None:
    """Return the group that the request has locked; None = it has locked none.

    If the group has been held since then, because damage was found in it, leave it and return
    None."""
    group = request.chosen
    if group is None or group.held is None or request.even_held:
        return group
    _leave(tx, request)
    return None


def _leave(tx: Transaction, request: ReceiveRequest) -> None:
    """Leave the chosen group without taking anything."""
    group, request.chosen, request.completed = request.chosen, None, False
    if group is not None and request.fresh:
        tx.give_back(group)


def _take_retained(
    tx: Transaction, queue: QueueState, group: Group, limits: tuple[int, int], only: Live | None
) -> list[Taken] | Blocked:
    """Dequeue messages if there is room to retain them (PBT-24)."""
    blocked = retention.before_receive(tx.broker, group.ready.values())
    if blocked is not None:
        return blocked
    taken = queue.dequeue(group, *limits, only=only, but=tx.ended)
    try:
        retention.check_received(taken)
    except QuotaExceeded:
        queue.put_back(taken)
        raise
    for live, messages, size, _ in taken:
        tx.reserve(live, len(messages), size)
    return taken


def get_group(tx: Transaction, request: ReceiveRequest) -> Group | Blocked | None:
    """Lock the best group without dequeuing anything (GRP-14). None = the wait is over."""
    queue = _queue(tx, request)
    found = _best(tx, queue, but=tx.returned)
    if found is None:
        found = queue.groups.best(tx)  # a group returned before, as there is no other (GRP-16)
    if isinstance(found, Blocked):
        return found
    if found is None:
        return _wait(tx, queue, request)
    found.lock(tx)
    request.owes = None
    request.over()
    tx.returns(found)
    return found


def _queue(tx: Transaction, request: ReceiveRequest) -> QueueState:
    """Return the queue if a receive from it is allowed now, else raise (RCV-17, GRP-17)."""
    if tx.failure is not None:
        raise tx.failure
    queue = tx.broker.queues.get(request.queue)
    if queue is None:
        near = did_you_mean(request.queue, tx.broker.queues)
        raise QueueNotFound(f"queue {request.queue!r} is not in broker {tx.broker.name!r}{near}")
    if tx.rights is not None and not tx.rights.may_receive(tx.broker.name, queue.name):
        raise AccessDenied(
            f"{tx.owner} has no receive permission on queue {queue.name!r} of {tx.broker.name!r}"
        )
    if not queue.queue.receive_enabled:
        raise QueueDisabled(f"queue {request.queue!r} is off")
    queue.notify()  # earlier waiters come first (RCV-21)
    return queue


def _best(tx: Transaction, queue: QueueState, but: Container[Group] = ()) -> Group | Blocked | None:
    group = queue.groups.best(tx, but)
    if queue.backlog_may_precede(group, tx.ended):
        return queue.page_in()
    return group


def _selected(
    tx: Transaction, queue: QueueState, request: ReceiveRequest
) -> Group | Blocked | None:
    """Return the selected group; None if it is locked elsewhere, or has no message (GRP-10)."""
    live: Live | None = None
    if request.conversation is not None:
        named = find(tx, request.conversation)
        if isinstance(named, Blocked):
            return named
        live = named
        # A ticket means that it has waited: the conversation was on this queue when it began to.
        if live.queue is not queue and request.ticket:
            raise ServiceMoved(
                f"conversation {show(request.conversation)} is on queue {live.queue.name!r} now"
            )
        if live.queue is not queue or live.endpoint.state is State.CLOSED:
            raise ConversationNotFound(
                f"conversation {show(request.conversation)} is not on queue {request.queue!r}",
                hint="receive from the queue of its service; see: brokerd dialog show HANDLE",
            )
        if live in tx.ended:
            raise ConversationNotFound(
                f"this transaction has ended conversation {show(request.conversation)}",
                hint="receive what is to be had of a conversation before ending it",
            )
        group = group_of(tx, live)
    else:
        assert request.group is not None, "one of the two makes it selective"
        found = tx.broker.group_members.look_up(request.group, tx)
        if isinstance(found, Blocked):
            return found
        if found is not None and found.queue is not queue and request.ticket:
            raise ServiceMoved(
                f"conversation group {show(request.group)} is on queue {found.queue.name!r} now"
            )
        if found is None or found.queue is not queue:
            raise GroupNotFound(
                f"there is no conversation group {show(request.group)} on queue {request.queue!r}"
            )
        group = found
        pin_one_of(tx, group)
    request.awaited = group
    is_held = group.held is not None and not request.even_held
    if is_held or group.holder not in (None, tx) or not queue.may_have(group, live):
        return None
    return group


def _wait(tx: Transaction, queue: QueueState, request: ReceiveRequest) -> Blocked | None:
    """Wait for a message; None = the time is over, or the request does not wait (RCV-18)."""
    if request.wait is None or request.wait == 0 or request.expired:
        _found_nothing(queue, request)
        return None
    selected = request.awaited

    def register(resume: Resume) -> None:
        def resume_receive() -> None:
            tx.stopped_waiting()
            tx.waits_without(None)
            request.woken(queue)
            resume()

        def leave() -> BrokerError | None:
            queue.line.leave(waiting)
            tx.waits_without(None)
            request.over()
            return None

        def end() -> None:
            queue.line.leave(waiting)
            resume_receive()

        request.owes = None
        request.ticket = request.ticket or queue.line.next_ticket()
        waiting = ReceiveWait(
            holder=tx,
            group_id=None if selected is None else selected.group_id,
            ticket=request.ticket,
            resume=resume_receive,
            end=request.give_up,
        )
        queue.line.join(waiting)
        tx.wait(leave, resume)
        if request.wait != FOREVER and request.timer is None:
            assert request.wait is not None
            loop = asyncio.get_running_loop()
            request.timer = loop.call_later(request.wait, request.give_up)  # for all waits
        request.waits(end)
        # A circle of waits may lead through the selected group (GRP-12). A wait shorter than those
        # for locks ends by itself, and opens the circle.
        if selected is not None and _is_long(tx, request):
            tx.waits_without(selected)
            break_deadlock(tx)

    return Blocked("message", register)


def _found_nothing(queue: QueueState, request: ReceiveRequest) -> None:
    """Report that the request, or the last of its combined receives, found nothing (RCV-44)."""
    request.over()
    if not request.selective:
        queue.on_empty(queue)


def _is_long(tx: Transaction, request: ReceiveRequest) -> bool:
    """Return whether the wait may outlast any wait for a lock.

    If so, its end does not break a deadlock (GRP-12)."""
    assert request.wait is not None
    return request.wait == FOREVER or request.wait > tx.broker.options.lock_timeout
