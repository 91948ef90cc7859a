"""NOTICEs: report to a sender why its messages were refused, and when to try again (NBT-4).

Reads: transmission objects of the brokers.      Calls: the transport, by `send`.
Never: changes the state of a dialog: a NOTICE sets its status, or makes it retransmit at once.
Fails: a NOTICE may be lost; the retransmission of the refused fragment provokes a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import timedelta

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.state import HomeQueue
from brokerd.clock import Clock
from brokerd.ids import ConversationId, InstanceId
from brokerd.protocol.frames import Fragment
from brokerd.protocol.neighbour import Notice
from brokerd.routing.reasons import Reason

RESUME = "resume"
"""Reason of a NOTICE that takes a refusal back (DSP-11)."""
_TAKEN_BACK = (
    Reason.PEER_QUEUE_DISABLED,
    Reason.PEER_STORE_FULL,
    Reason.PEER_QUEUE_FULL,
    Reason.PEER_DIALOG_LIMIT,
)
"""Reasons that are status keys of their own at the sender, and that `resume` takes back; any other
reason becomes the detail of `target_notice`."""
MOST = 20_000
"""Limit of NOTICEs sent, and of refused senders over all queues, that are remembered. A sender that
is dropped sends again by its own timer."""

Sender = tuple[ConversationId, bool]
"""Conversation id, and whether its initiator is the sender."""
_Answer = tuple[Notice, InstanceId | None]
"""A NOTICE and its recipient; None = a broker of this instance."""


class NoticeOptions(msgspec.Struct, frozen=True):
    """Whether and how often NOTICEs are sent to neighbours (NBT-4)."""

    notices: bool = True
    interval: timedelta = timedelta(seconds=10)


class RefusalNotices:
    """Sender of NOTICEs to neighbours, which also applies received ones; one per instance."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        clock: Clock,
        options: NoticeOptions,
        send: Callable[[InstanceId, Notice], object],
        resume: Callable[[Broker, Outgoing], None],
    ) -> None:
        """Create the sender of NOTICEs.

        `send`: sends a NOTICE to a neighbour. `resume`: makes a dialog send again."""
        self._brokers = brokers
        self._clock = clock
        self._options = options
        self._send = send
        self._resume = resume
        self._sent_at: OrderedDict[tuple[Sender, str], float] = OrderedDict()
        self._refused: dict[tuple[str, str], OrderedDict[Sender, _Answer]] = {}
        self._waiting = 0
        """Number of refused senders, over all queues."""
        self.sent = self.taken = 0
        """Numbers of NOTICEs sent to neighbours, and of NOTICEs received and applied (MON-9)."""

    # This side refuses.

    def refuse(
        self, item: Fragment, reason: str, neighbour: InstanceId | None, detail: str = ""
    ) -> None:
        """Report why a fragment was refused, once in 10 s per dialog and reason (NBT-4)."""
        if neighbour is None:
            self._note(_notice(item, reason, detail))
        elif self._options.notices and self._is_new((_sender(item), reason)):
            self.sent += 1
            self._send(neighbour, _notice(item, reason, detail))

    def refuse_for(
        self,
        broker: Broker,
        queue: HomeQueue,
        item: Fragment,
        neighbour: InstanceId | None,
        reason: Reason,
    ) -> None:
        """Report that a queue accepts nothing, and remember the sender for `release` (DSP-11)."""
        place = broker.name, queue.name
        waiting = self._refused.setdefault(place, OrderedDict())
        sender = _sender(item)
        self._waiting += sender not in waiting
        waiting[sender] = _notice(item, RESUME, ""), neighbour
        waiting.move_to_end(sender)
        if self._waiting > MOST:
            self._drop_one(place if len(waiting) > 1 else next(iter(self._refused)))
        self.refuse(item, reason, neighbour)

    def release(self, broker: Broker) -> int:
        """Send `resume` to senders whose queue accepts messages; return their number (DSP-11)."""
        released = 0
        for place in [place for place in self._refused if place[0] == broker.name]:
            queue = broker.queues.get(place[1])
            if queue is not None and (
                broker.is_full or not queue.queue.enqueue_enabled or queue.is_at_limit()
            ):
                continue
            refused = self._refused.pop(place)
            self._waiting -= len(refused)
            if queue is None or not broker.enabled:
                continue  # the senders get the outcome when they send again
            for sender, (what, neighbour) in refused.items():
                for reason in _TAKEN_BACK:
                    self._sent_at.pop((sender, reason), None)
                released += 1
                if neighbour is None:
                    self._note(what)
                elif self._options.notices:
                    self.sent += 1
                    self._send(neighbour, what)
        return released

    def trim(self) -> int:
        """Forget NOTICEs that may be repeated by now (XMT-10), and release senders (REL-26).

        Return the number of both together."""
        oldest = self._clock.monotonic() - self._options.interval.total_seconds()
        gone = 0
        while self._sent_at and next(iter(self._sent_at.values())) <= oldest:
            self._sent_at.popitem(last=False)
            gone += 1
        if self._refused:
            gone += sum(self.release(broker) for broker in list(self._brokers.values()))
        return gone

    def _drop_one(self, place: tuple[str, str]) -> None:
        """Drop the sender that has waited longest for a queue."""
        waiting = self._refused[place]
        waiting.popitem(last=False)
        self._waiting -= 1
        if not waiting:
            del self._refused[place]

    def _is_new(self, what: tuple[Sender, str]) -> bool:
        now = self._clock.monotonic()
        sent_at = self._sent_at.get(what)
        if sent_at is not None and now < sent_at + self._options.interval.total_seconds():
            return False
        self._sent_at[what] = now
        self._sent_at.move_to_end(what)
        if len(self._sent_at) > MOST:
            self._sent_at.popitem(last=False)
        return True

    # The other side has refused.

    def apply(self, notice: Notice) -> bool:
        """Apply a NOTICE of a neighbour; False = it concerns no dialog of this instance."""
        found = self._note(notice)
        self.taken += found
        return found

    def _note(self, notice: Notice) -> bool:
        for broker in self._brokers.values():
            live = broker.endpoints.find_conversation(notice.conversation_id, notice.from_initiator)
            if live is None:
                continue
            out = live.outgoing
            if out is not None and notice.reason == RESUME:
                out.route.refusal_over()
                self._resume(broker, out)
            elif out is not None and out.pending:
                key, detail = _status_of(notice)
                out.route.refused(key, detail, self._clock.utc())
            return True
        return False


def _sender(item: Fragment) -> Sender:
    return item.conversation_id, item.from_initiator


def _notice(item: Fragment, reason: str, detail: str) -> Notice:
    return Notice(
        item.conversation_id,
        item.from_initiator,
        item.sequence,
        reason,
        detail,
        to_service=item.from_service,
        to_broker=item.from_broker,
    )


def _status_of(notice: Notice) -> tuple[str, str]:
    """Return the status key and detail that a NOTICE sets at the sender (XMT-19)."""
    if notice.reason in _TAKEN_BACK:
        return notice.reason, notice.detail
    detail = f"{notice.reason} ({notice.detail})" if notice.detail else notice.reason
    return Reason.TARGET_NOTICE, detail
