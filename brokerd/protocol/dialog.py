"""One dialog endpoint: order, acks, binding, end and error as a pure step (DLP, DLG). PURE.

Reads: the endpoint, one event, the time.      Calls: the table in `transitions.py`.
Never: awaits, logs, draws an id or looks at a clock.

`step` returns the endpoint as it then stands, or None when it is gone, and what the shell has to
do. An event that has no row in the table changes nothing and says so (`Anomaly`, DLG-15).
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from brokerd.clock import Instant, later
from brokerd.ids import BrokerId, GroupId, MessageId
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import END, ERROR, Ack, Fragment
from brokerd.protocol.transitions import MOVES, State, Trigger
from brokerd.protocol.wire import MAX_FRAGMENTS

REPLAY_GUARD: Final = timedelta(minutes=30)
"""How long a closed target endpoint outlives FIRST_ACKED (DLP-55)."""

WHOLE: Final = MAX_FRAGMENTS - 1
"""Fragment number in an ack that means: all fragments of this message."""
PEER_GONE: Final = -8462
"""The peer cannot exchange messages any more (DLP-48)."""
LIFETIME_EXCEEDED: Final = -8489
ELSEWHERE: Final = -8495
"""Another broker acknowledged this dialog first (DLP-45)."""
HISTORY_LOST: Final = -60001
"""One side no longer has what the other was promised (REL-15)."""
UNKNOWN_SENT: Final = "messages that were sent are not known to their sender any more"
UNKNOWN_STORED: Final = "messages that were acknowledged are not known to their receiver any more"
RESTORED: Final = -9719
"""The broker was restored, and an administrator has ended all its dialogs (MAN-5)."""
PEER_RESTORED: Final = -9720
"""What the other side is told of it."""


# What can happen to an endpoint.


class SendRequested(msgspec.Struct, frozen=True):
    """The application sends one message."""


class EndRequested(msgspec.Struct, frozen=True):
    """The application ends its side; with an error when `code` is given (positive).

    `unread`: how many received application messages it never read; they are deleted."""

    unread: int = 0
    code: int | None = None
    description: str = ""


class MoveRequested(msgspec.Struct, frozen=True):
    """The application puts the conversation into another group of its service (GRP-18)."""

    group_id: GroupId


class CleanupRequested(msgspec.Struct, frozen=True):
    """An administrator removes the endpoint; the peer is not told (DLG-T27).

    `unread`: how many received application messages were never read; they are deleted."""

    unread: int = 0
    tombstone: bool = True
    """Whether a target leaves one (PBT-9); where its service goes as well nothing is repeated."""


class FragmentsReceived(msgspec.Struct, frozen=True):
    """Consecutive fragments of this dialog, the first being the next expected one (DSP-3)."""

    fragments: list[Fragment]
    guard: timedelta = REPLAY_GUARD


class ErrorReceived(msgspec.Struct, frozen=True):
    """An Error from the peer's application (with its sequence) or broker (without)."""

    code: int
    description: str
    sequence: int | None = None


class AckReceived(msgspec.Struct, frozen=True):
    """The acknowledgement block of anything that arrived (DLP-15)."""

    ack: Ack
    guard: timedelta = REPLAY_GUARD


class LifetimeReached(msgspec.Struct, frozen=True):
    """The expiry instant has passed."""


class FaultStruck(msgspec.Struct, frozen=True):
    """This side cannot go on, for a reason of its own (DLG-T15); in SI, the reason is message 0
    and no endpoint is left (DLG-T6)."""

    code: int
    description: str


Event = (
    SendRequested
    | EndRequested
    | MoveRequested
    | CleanupRequested
    | FragmentsReceived
    | ErrorReceived
    | AckReceived
    | LifetimeReached
    | FaultStruck
)


# What the shell has to do.


class StoreOutgoing(msgspec.Struct, frozen=True):
    """Put a message with this sequence and these flags into the transmission queue.

    `frozen`: the peer has ended or failed, so it is kept but never sent (DLG-26)."""

    sequence: int
    flags: int
    frozen: bool = False


class Deliver(msgspec.Struct, frozen=True):
    """A message is complete; `last` is its last fragment. Put it on the queue."""

    last: Fragment


class KeepPart(msgspec.Struct, frozen=True):
    """Store a fragment of a message that is not complete (DLP-11)."""

    fragment: Fragment


class DeliverError(msgspec.Struct, frozen=True):
    """Put one Error message on the local queue."""

    code: int
    description: str


class FreezeOutgoing(msgspec.Struct, frozen=True):
    """Send nothing more of this dialog; the rows stay until the application ends (DLP-50)."""


class WithdrawOutgoing(msgspec.Struct, frozen=True):
    """Delete every row of this dialog in the transmission queue."""

    is_settled: bool = False
    """Whether the peer needs none of them any more, so that none counts as undelivered."""


class DropUnread(msgspec.Struct, frozen=True):
    """Delete the endpoint's unread messages, stored fragments and timers."""


class Lose(msgspec.Struct, frozen=True):
    """An Error will be seen by nobody, because the application has ended: say so (PBT-4)."""

    code: int
    description: str


class Refuse(msgspec.Struct, frozen=True):
    """Answer with an error made by the broker (DLP-42); nothing was changed."""

    code: int
    description: str


class Anomaly(msgspec.Struct, frozen=True):
    """The event has no place in this state; it is logged and changes nothing (DLG-15)."""

    what: str


Effect = (
    StoreOutgoing
    | Deliver
    | KeepPart
    | DeliverError
    | FreezeOutgoing
    | WithdrawOutgoing
    | DropUnread
    | Lose
    | Refuse
    | Anomaly
)


class Step(msgspec.Struct, frozen=True):
    """The outcome of one event."""

    endpoint: DialogEndpoint | None
    """As it now stands; None = it is gone."""
    effects: tuple[Effect, ...] = ()


def step(endpoint: DialogEndpoint, event: Event, *, now: Instant) -> Step:
    """Apply one event; return the new endpoint and what the shell must do."""
    return _STEPS[type(event)](endpoint, event, now)


def plain_send(endpoint: DialogEndpoint) -> DialogEndpoint | None:
    """The endpoint after an application message was sent in state CO (DLG-T8).

    What `step` gives for `SendRequested` then, without the words; None in any other state."""
    if endpoint.state is not State.CONVERSING:
        return None
    return _replace(endpoint, send_sequence=endpoint.send_sequence + 1)


def plain_receive(endpoint: DialogEndpoint, message_id: MessageId) -> DialogEndpoint | None:
    """The endpoint after a whole application message arrived in state CO (DLG-T9).

    What `step` gives for `FragmentsReceived` of that one then; None where more is to be done."""
    if endpoint.state is not State.CONVERSING or endpoint.receive_fragment:
        return None
    return _replace(
        endpoint, receive_sequence=endpoint.receive_sequence + 1, last_message=message_id
    )


def plain_whole(endpoint: DialogEndpoint) -> DialogEndpoint:
    """A new target endpoint after message 0 came whole and EndDialog behind it, inside its broker
    (DLG-T5, DLG-T12): what `step` gives for `FragmentsReceived` of the two, save `last_message`."""
    return _replace(
        endpoint, state=State.DISCONNECTED_INBOUND, receive_sequence=2, far_end_sequence=1
    )


def plain_end(endpoint: DialogEndpoint) -> Step | None:
    """The step of an end without an error where the other side has ended: a target is closed
    (DLG-T16), an initiator is gone (DLG-T17). None in any other state."""
    if endpoint.state is not State.DISCONNECTED_INBOUND:
        return None
    return Step(None if endpoint.is_initiator else _closed(endpoint), _OVER)


def first_needed(endpoint: DialogEndpoint) -> int | None:
    """The lowest sequence that may still have to be sent; None = none (DLG-T11, DLG-T18)."""
    if endpoint.state is State.CLOSED:
        return None
    is_failed = endpoint.error_code is not None
    ended = endpoint.state is State.DISCONNECTED_OUTBOUND
    return endpoint.end_sequence if ended and is_failed else 0


def may(endpoint: DialogEndpoint, trigger: Trigger) -> bool:
    """Whether the application may do this in the present state (SND-2, DLG-19)."""
    return (endpoint.is_initiator, endpoint.state, trigger) in MOVES


def may_set_timer(endpoint: DialogEndpoint) -> bool:
    """Whether the application still owns the dialog, so that a timer has a meaning (DLG-39)."""
    return endpoint.state in _OWNED


def may_move(endpoint: DialogEndpoint) -> bool:
    """Whether the application may put it into another group (GRP-20)."""
    return endpoint.state in _OWNED


_replace = msgspec.structs.replace
_OWNED = frozenset(
    {State.STARTED_OUTBOUND, State.CONVERSING, State.DISCONNECTED_INBOUND, State.ERROR}
)
_FROZEN_STATES = frozenset({State.DISCONNECTED_INBOUND, State.ERROR})


def _to(endpoint: DialogEndpoint, trigger: Trigger) -> State | None:
    move = MOVES.get((endpoint.is_initiator, endpoint.state, trigger))
    return None if move is None else move.to


def _anomaly(endpoint: DialogEndpoint, what: str) -> Step:
    return Step(endpoint, (Anomaly(f"{what} in state {endpoint.state}"),))


def _moved(endpoint: DialogEndpoint, to: State, *effects: Effect) -> Step:
    if to is State.NONE:
        return Step(None, effects)
    if to is State.CLOSED:
        return Step(_closed(endpoint), effects)
    return Step(_replace(endpoint, state=to), effects)


_GUARD: Final = later(Instant(0), REPLAY_GUARD)


def _closed(endpoint: DialogEndpoint) -> DialogEndpoint:
    """A closed endpoint is a tombstone: it knows when it may go, if only long after its lifetime
    (DLP-56), and keeps no text (PBT-5)."""
    purge_at = endpoint.purge_at or Instant(endpoint.expires_at + _GUARD)
    return _replace(endpoint, state=State.CLOSED, purge_at=purge_at, error_text=None, route=None)


def _send(endpoint: DialogEndpoint, _event: SendRequested, _now: Instant) -> Step:
    sequence = endpoint.send_sequence
    state = _to(endpoint, Trigger.SEND)
    if state is not None:
        return Step(
            _replace(endpoint, state=state, send_sequence=sequence + 1),
            (StoreOutgoing(sequence, 0),),
        )
    if endpoint.state in _FROZEN_STATES:  # allowed when the verb ran; the peer ended since (DLG-46)
        return Step(
            _replace(endpoint, send_sequence=sequence + 1),
            (StoreOutgoing(sequence, 0, frozen=True),),
        )
    return _anomaly(endpoint, "send")


_OVER: Final = (WithdrawOutgoing(), DropUnread())


def _end(endpoint: DialogEndpoint, event: EndRequested, _now: Instant) -> Step:
    failed = event.code is not None
    state = _to(endpoint, Trigger.END_ERROR if failed else Trigger.END)
    if state is None:
        return _anomaly(endpoint, "end")
    if event.unread:
        endpoint = _replace(endpoint, discarded=endpoint.discarded + event.unread)
    if state is not State.DISCONNECTED_OUTBOUND:  # nobody has to be told: T3, T16, T17, T23
        return _moved(endpoint, state, *_OVER)
    sequence = endpoint.send_sequence
    ended = _replace(
        endpoint,
        state=state,
        send_sequence=sequence + 1,
        end_sequence=sequence,
        error_code=event.code,
        error_text=event.description if failed else None,
    )
    if failed:  # DLG-T11: whatever is unsent or unacked goes, the Error takes its place
        return Step(ended, (WithdrawOutgoing(), DropUnread(), StoreOutgoing(sequence, ERROR)))
    return Step(ended, (DropUnread(), StoreOutgoing(sequence, END)))


def _move(endpoint: DialogEndpoint, event: MoveRequested, _now: Instant) -> Step:
    """Allowed when the verb ran; whatever has come meanwhile, it is in that group (DLG-46)."""
    return Step(_replace(endpoint, group_id=event.group_id))


def _cleanup(endpoint: DialogEndpoint, event: CleanupRequested, _now: Instant) -> Step:
    """At a target a tombstone stays: what the peer repeats must not begin it anew (PBT-9)."""
    state = _to(endpoint, Trigger.CLEANUP)
    if state is None:
        return _anomaly(endpoint, "cleanup")
    endpoint = _replace(endpoint, discarded=endpoint.discarded + event.unread)
    state = state if event.tombstone else State.NONE
    return _moved(endpoint, state, WithdrawOutgoing(), DropUnread())


def keeps_parts(endpoint: DialogEndpoint) -> bool:
    """Whether what has come of a message that is not complete is kept for its application."""
    state = endpoint.state
    return state not in _REFUSING and state is not State.DISCONNECTED_OUTBOUND


def _fragments(endpoint: DialogEndpoint, event: FragmentsReceived, now: Instant) -> Step:
    """The run is consecutive, so only what each fragment is decides (DLG-T4 to T12, T19, T21)."""
    effects: list[Effect] = []
    initiator, state = endpoint.is_initiator, endpoint.state
    sequence, part = endpoint.receive_sequence, endpoint.receive_fragment
    discarded, far_end = endpoint.discarded, endpoint.far_end_sequence
    first_acked, purge_at = endpoint.first_acked, endpoint.purge_at
    last_message = endpoint.last_message
    for fragment in event.fragments:
        trigger = _trigger(fragment)
        move = MOVES.get((initiator, state, trigger))
        if move is None:
            effects.append(Anomaly(f"{trigger} in state {state}"))
            break
        if state in _REFUSING:  # CD and ER take no new sequence (DLP-48)
            effects.append(Refuse(PEER_GONE, "the dialog is over at this side"))
            break
        if state is not State.DISCONNECTED_OUTBOUND:
            effects.append(KeepPart(fragment) if trigger is Trigger.PART else Deliver(fragment))
            if trigger is Trigger.PEER_END:
                effects.append(FreezeOutgoing())
        elif trigger is Trigger.MESSAGE:
            discarded += 1
        if trigger is Trigger.PEER_END:
            far_end = sequence
        state = move.to
        last_message = fragment.message_id
        if trigger is Trigger.PART:
            part = fragment.fragment + 1
        else:
            sequence, part = sequence + 1, 0
        if not initiator and not first_acked and fragment.ack and fragment.ack.first_acked:
            first_acked, purge_at = True, later(now, event.guard)
    return Step(
        _replace(
            endpoint,
            state=state,
            receive_sequence=sequence,
            receive_fragment=part,
            last_message=last_message,
            far_end_sequence=far_end,
            discarded=discarded,
            first_acked=first_acked,
            purge_at=purge_at,
        ),
        tuple(effects),
    )


def _trigger(fragment: Fragment) -> Trigger:
    if fragment.flags & END:
        return Trigger.PEER_END
    return Trigger.PART if fragment.fragment + 1 < fragment.fragments else Trigger.MESSAGE


_REFUSING = frozenset({State.CLOSED, State.ERROR})


def _error(endpoint: DialogEndpoint, event: ErrorReceived, now: Instant) -> Step:
    state = _to(endpoint, Trigger.PEER_ERROR)
    if state is None:
        return _anomaly(endpoint, "error")
    if event.sequence is not None:  # its ack covers every sequence up to its own (DLG-30)
        endpoint = _replace(
            endpoint,
            receive_sequence=event.sequence + 1,
            receive_fragment=0,
            far_end_sequence=event.sequence,
        )
    if state is State.ERROR:
        failed = _replace(
            endpoint, state=state, error_code=event.code, error_text=event.description
        )
        return Step(failed, (DeliverError(event.code, event.description), FreezeOutgoing()))
    if state is endpoint.state:  # DI: a peer cannot fail what it has ended (DLG-T29)
        return Step(endpoint)
    if endpoint.state is State.DISCONNECTED_OUTBOUND:
        if event.code == PEER_GONE and not endpoint.is_initiator:  # DLG-T31
            return _moved(endpoint, state, WithdrawOutgoing(is_settled=True), DropUnread())
        lost = Lose(event.code, event.description)  # DLG-T20
        return _moved(endpoint, state, lost, WithdrawOutgoing(), DropUnread())
    # SI: what comes late of message 0 must not begin the dialog once more (DLG-T7). It is kept for
    # the guard time, as every endpoint that closes (DLP-56), and for no longer.
    failed = _replace(endpoint, error_code=event.code, purge_at=now)
    return _moved(failed, state, WithdrawOutgoing(), DropUnread())


def _ack(endpoint: DialogEndpoint, event: AckReceived, now: Instant) -> Step:
    ack = event.ack
    forgotten = _forgotten(endpoint, ack)
    if forgotten is not None:
        return _fault(endpoint, FaultStruck(HISTORY_LOST, forgotten), now)
    if ack.sequence >= endpoint.send_sequence:
        return Step(endpoint, (Anomaly("acknowledgement of something never sent"),))  # DLP-17
    changed = endpoint
    if ack.sequence >= 0:
        if endpoint.far_broker not in (None, ack.broker_id):  # bound, or pinned by its beginner
            return Step(endpoint, (Refuse(ELSEWHERE, "another broker has this dialog"),))
        if not endpoint.bound:
            changed = _replace(changed, far_broker=BrokerId(ack.broker_id), bound=True)
    if changed.is_initiator:
        if _covers(ack, 0) and not changed.first_acked:
            changed = _replace(changed, first_acked=True)
    elif ack.first_acked and not changed.first_acked:
        changed = _replace(changed, first_acked=True, purge_at=later(now, event.guard))
    if changed.state is State.DISCONNECTED_OUTBOUND and _covers(ack, changed.end_sequence):
        over = MOVES[changed.is_initiator, changed.state, Trigger.END_ACKED].to
        return _moved(changed, over, WithdrawOutgoing(is_settled=True))  # DLG-T18
    return Step(changed)


def _forgotten(endpoint: DialogEndpoint, ack: Ack) -> str | None:
    """What one side no longer has of what the other was promised (REL-15); None = nothing.

    Only of the bound broker, and while both sides go on: later on messages are withdrawn."""
    if endpoint.state is not State.CONVERSING or not endpoint.bound:
        return None
    if endpoint.far_broker != ack.broker_id:
        return None
    if ack.highest_seen >= endpoint.send_sequence:
        return UNKNOWN_SENT
    return UNKNOWN_STORED if ack.base_sequence > endpoint.receive_sequence else None


def _covers(ack: Ack, sequence: int) -> bool:
    """Whether it acknowledges all fragments of that message."""
    return (ack.sequence, ack.fragment) >= (sequence, WHOLE)


def _lifetime(endpoint: DialogEndpoint, _event: LifetimeReached, _now: Instant) -> Step:
    state = _to(endpoint, Trigger.LIFETIME)
    if state is None:
        return _anomaly(endpoint, "lifetime")
    text = "the dialog's lifetime is over"
    if state is State.ERROR:
        failed = _replace(endpoint, state=state, error_code=LIFETIME_EXCEEDED, error_text=text)
        return Step(failed, (DeliverError(LIFETIME_EXCEEDED, text), FreezeOutgoing()))
    return _moved(endpoint, state, WithdrawOutgoing(), DropUnread())


def _fault(endpoint: DialogEndpoint, event: FaultStruck, _now: Instant) -> Step:
    """DLG-T15. The peer is told with an unsequenced error, if it knows the dialog and goes on."""
    refused = _to(endpoint, Trigger.REFUSED)
    if refused is not None:
        told_why = Refuse(event.code, event.description)
        return _moved(endpoint, refused, WithdrawOutgoing(), DropUnread(), told_why)
    state = _to(endpoint, Trigger.FAULT)
    if state is None:
        return _anomaly(endpoint, "fault")
    known = endpoint.state is State.CONVERSING
    failed = _replace(endpoint, state=state, error_code=event.code, error_text=event.description)
    told: tuple[Effect, ...] = (Refuse(event.code, event.description),) if known else ()
    return Step(failed, (DeliverError(event.code, event.description), FreezeOutgoing(), *told))


_STEPS: dict[type, Callable[..., Step]] = {
    SendRequested: _send,
    EndRequested: _end,
    MoveRequested: _move,
    CleanupRequested: _cleanup,
    FragmentsReceived: _fragments,
    ErrorReceived: _error,
    AckReceived: _ack,
    LifetimeReached: _lifetime,
    FaultStruck: _fault,
}
