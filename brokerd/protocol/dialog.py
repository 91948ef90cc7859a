"""One dialog endpoint: order, acks, binding, end and error as a pure step (DLP, DLG). PURE.

Reads: the endpoint, one event, the time.      Calls: the table in `transitions.py`.
Never: awaits, logs, draws an id or reads a clock.

`step` returns the new endpoint, or None if it is removed, and the effects that the shell carries
out. An event without a row in the table changes nothing and yields an `Anomaly` (DLG-15).
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from brokerd.clock import Instant, later
from brokerd.ids import BrokerId, GroupId, MessageId
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import END, ERROR, Ack, Fragment
from brokerd.protocol.transitions import MOVES, OVER, State, Trigger
from brokerd.protocol.wire import MAX_FRAGMENTS

REPLAY_GUARD: Final = timedelta(minutes=30)
"""Time for which a closed target endpoint outlives FIRST_ACKED (DLP-55)."""

WHOLE: Final = MAX_FRAGMENTS - 1
"""Fragment number in an ack that means all fragments of the message."""
PEER_GONE: Final = -8462
"""The peer can no longer exchange messages (DLP-48)."""
LIFETIME_EXCEEDED: Final = -8489
ELSEWHERE: Final = -8495
"""Another broker acknowledged this dialog first (DLP-45)."""
HISTORY_LOST: Final = -60001
"""One side has lost messages that it had sent or acknowledged (REL-15)."""
DIALOG_IDLE: Final = -60002
"""No message was sent either way for too long (REL-44)."""
UNKNOWN_SENT: Final = "messages that were sent are not known to their sender any more"
UNKNOWN_STORED: Final = "messages that were acknowledged are not known to their receiver any more"
RESTORED: Final = -9719
"""The broker was restored, and an administrator has ended all its dialogs (MAN-5)."""
PEER_RESTORED: Final = -9720
"""Code of the error sent to the peers of a restored broker."""


# Events of an endpoint.


class SendRequested(msgspec.Struct, frozen=True):
    """The application sends one message."""


class EndRequested(msgspec.Struct, frozen=True):
    """The application ends its side; with an error if `code` is given (positive).

    `unread`: number of application messages received but never read; they are deleted."""

    unread: int = 0
    code: int | None = None
    description: str = ""


class MoveRequested(msgspec.Struct, frozen=True):
    """The application moves the conversation into another group of its service (GRP-18)."""

    group_id: GroupId


class CleanupRequested(msgspec.Struct, frozen=True):
    """An administrator removes the endpoint without notifying the peer (DLG-T27).

    `unread`: number of application messages received but never read; they are deleted."""

    unread: int = 0
    tombstone: bool = True
    """Whether a target leaves a tombstone (PBT-9): not needed if its service is dropped, too."""


class FragmentsReceived(msgspec.Struct, frozen=True):
    """Consecutive fragments of this dialog, beginning with the next expected one (DSP-3)."""

    fragments: list[Fragment]
    guard: timedelta = REPLAY_GUARD


class ErrorReceived(msgspec.Struct, frozen=True):
    """An Error from the peer's application (with its sequence) or broker (without)."""

    code: int
    description: str
    sequence: int | None = None


class AckReceived(msgspec.Struct, frozen=True):
    """An acknowledgement block arrived, with an item of any kind (DLP-15)."""

    ack: Ack
    guard: timedelta = REPLAY_GUARD


class LifetimeReached(msgspec.Struct, frozen=True):
    """The expiry instant has passed."""


class FaultStruck(msgspec.Struct, frozen=True):
    """A local reason prevents this side from continuing (DLG-T15). At a target without an accepted
    message 0, that message is unacceptable, and no endpoint is left (DLG-T6)."""

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


# Effects, which the shell carries out.


class StoreOutgoing(msgspec.Struct, frozen=True):
    """Put a message with this sequence and these flags into the transmission queue.

    `frozen`: whether the peer has ended or failed, so that the message is kept but never sent
    (DLG-26)."""

    sequence: int
    flags: int
    frozen: bool = False


class Deliver(msgspec.Struct, frozen=True):
    """Put a message on the queue, because it is complete; `last` is its last fragment."""

    last: Fragment


class KeepPart(msgspec.Struct, frozen=True):
    """Store a fragment of an incomplete message (DLP-11)."""

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
    """Whether the peer needs none of the rows any longer, so that none counts as undelivered."""


class DropUnread(msgspec.Struct, frozen=True):
    """Delete the endpoint's unread messages, stored fragments and timers."""


class Lose(msgspec.Struct, frozen=True):
    """Report an Error that the application cannot receive after it has ended its side (PBT-4)."""

    code: int
    description: str


class Refuse(msgspec.Struct, frozen=True):
    """Answer the peer with an error made by the broker (DLP-42)."""

    code: int
    description: str


class Anomaly(msgspec.Struct, frozen=True):
    """Log an event that is not allowed in this state and changed nothing (DLG-15)."""

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
    """The new endpoint; None = the endpoint is removed."""
    effects: tuple[Effect, ...] = ()


def step(endpoint: DialogEndpoint, event: Event, *, now: Instant) -> Step:
    """Apply one event; return the new endpoint and the effects for the shell."""
    return _STEPS[type(event)](endpoint, event, now)


def ordinary_send(endpoint: DialogEndpoint) -> DialogEndpoint | None:
    """Return the endpoint after an application message was sent in state CO (DLG-T8).

    The result is that of `step` for `SendRequested`, without its effects. None in any other
    state."""
    if endpoint.state is not State.CONVERSING:
        return None
    return _replace(endpoint, send_sequence=endpoint.send_sequence + 1)


def ordinary_receive(endpoint: DialogEndpoint, message_id: MessageId) -> DialogEndpoint | None:
    """Return the endpoint after an application message arrived whole in state CO (DLG-T9).

    The result is that of `step` for `FragmentsReceived` with that message alone. None in any other
    state, and in the middle of a fragmented message."""
    if endpoint.state is not State.CONVERSING or endpoint.receive_fragment:
        return None
    return _replace(
        endpoint, receive_sequence=endpoint.receive_sequence + 1, last_message=message_id
    )


def ordinary_target(endpoint: DialogEndpoint) -> DialogEndpoint:
    """Return a new target endpoint after a whole message 0 and EndDialog (DLG-T5, DLG-T12).

    Both were sent inside the target's broker. The result is that of `step` for
    `FragmentsReceived`, except for `last_message`."""
    return _replace(
        endpoint, state=State.DISCONNECTED_INBOUND, receive_sequence=2, far_end_sequence=1
    )


def ordinary_end(endpoint: DialogEndpoint) -> Step | None:
    """Return the step of an end without error after the peer has ended.

    A target is closed (DLG-T16), an initiator is removed (DLG-T17). None in any state but DI."""
    if endpoint.state is not State.DISCONNECTED_INBOUND:
        return None
    return Step(None if endpoint.is_initiator else _closed(endpoint), _END_EFFECTS)


def first_needed(endpoint: DialogEndpoint) -> int | None:
    """Return the lowest sequence that may still have to be sent (DLG-T11, DLG-T18).

    None means that nothing has to be sent any longer."""
    if endpoint.state is State.CLOSED:
        return None
    is_failed = endpoint.error_code is not None
    ended = endpoint.state is State.DISCONNECTED_OUTBOUND
    return endpoint.end_sequence if ended and is_failed else 0


def may(endpoint: DialogEndpoint, trigger: Trigger) -> bool:
    """Return whether the current state allows this act of the application (SND-2, DLG-19)."""
    return (endpoint.is_initiator, endpoint.state, trigger) in MOVES


def may_set_timer(endpoint: DialogEndpoint) -> bool:
    """Return whether the application still owns the dialog and may set a timer (DLG-39)."""
    return endpoint.state in _OWNED


def may_move(endpoint: DialogEndpoint) -> bool:
    """Return whether the application may move the conversation into another group (GRP-20)."""
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
    """Return the endpoint as a tombstone, with a purge time and without an error text (PBT-5).

    If FIRST_ACKED never came, the purge time is the guard time after the lifetime (DLP-56)."""
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


_END_EFFECTS: Final = (WithdrawOutgoing(), DropUnread())


def _end(endpoint: DialogEndpoint, event: EndRequested, _now: Instant) -> Step:
    failed = event.code is not None
    state = _to(endpoint, Trigger.END_ERROR if failed else Trigger.END)
    if state is None:
        return _anomaly(endpoint, "end")
    if event.unread:
        endpoint = _replace(endpoint, discarded=endpoint.discarded + event.unread)
    if state is not State.DISCONNECTED_OUTBOUND:  # no peer to notify: T3, T16, T17, T23
        return _moved(endpoint, state, *_END_EFFECTS)
    sequence = endpoint.send_sequence
    ended = _replace(
        endpoint,
        state=state,
        send_sequence=sequence + 1,
        end_sequence=sequence,
        error_code=event.code,
        error_text=event.description if failed else None,
    )
    if failed:  # DLG-T11: the Error replaces all that is unsent or unacked
        return Step(ended, (WithdrawOutgoing(), DropUnread(), StoreOutgoing(sequence, ERROR)))
    return Step(ended, (DropUnread(), StoreOutgoing(sequence, END)))


def _move(endpoint: DialogEndpoint, event: MoveRequested, _now: Instant) -> Step:
    """Move the endpoint to the group, whatever its state now (DLG-46).

    The verb was allowed by the state that the endpoint had when the verb ran."""
    return Step(_replace(endpoint, group_id=event.group_id))


def _cleanup(endpoint: DialogEndpoint, event: CleanupRequested, _now: Instant) -> Step:
    """Remove the endpoint.

    A target leaves a tombstone, so that retransmissions of the peer cannot begin the dialog
    again (PBT-9)."""
    state = _to(endpoint, Trigger.CLEANUP)
    if state is None:
        return _anomaly(endpoint, "cleanup")
    endpoint = _replace(endpoint, discarded=endpoint.discarded + event.unread)
    state = state if event.tombstone else State.NONE
    return _moved(endpoint, state, WithdrawOutgoing(), DropUnread())


def keeps_parts(endpoint: DialogEndpoint) -> bool:
    """Return whether to keep fragments of an incomplete message for the application."""
    state = endpoint.state
    return state not in OVER and state is not State.DISCONNECTED_OUTBOUND


def _fragments(endpoint: DialogEndpoint, event: FragmentsReceived, now: Instant) -> Step:
    """Apply a run of fragments (DLG-T4 to T12, T19, T21).

    The run is consecutive, so only the kind of each fragment has to be evaluated."""
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
        # CD and ER take no new sequence (DLP-48). The step ends before the sequence advances, so
        # the refused fragment is not acknowledged and the peer learns that the dialog is over.
        if state in OVER:
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


def _error(endpoint: DialogEndpoint, event: ErrorReceived, now: Instant) -> Step:
    state = _to(endpoint, Trigger.PEER_ERROR)
    if state is None:
        return _anomaly(endpoint, "error")
    if event.sequence is not None:  # acknowledges all before it (DLG-30)
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
    # SI: fragments of message 0 that arrive late must not begin the dialog again (DLG-T7). The
    # endpoint is kept for the guard time, as every endpoint that closes (DLP-56), and no longer.
    failed = _replace(endpoint, error_code=event.code, purge_at=now)
    return _moved(failed, state, WithdrawOutgoing(), DropUnread())


def _ack(endpoint: DialogEndpoint, event: AckReceived, now: Instant) -> Step:
    ack = event.ack
    # Lost history is checked first: after a restore of this side the bound peer acknowledges more
    # than was sent, which has to fail the dialog; from any other broker it is only an anomaly.
    forgotten = _forgotten(endpoint, ack)
    if forgotten is not None:
        return _fault(endpoint, FaultStruck(HISTORY_LOST, forgotten), now)
    if ack.sequence >= endpoint.send_sequence:
        return Step(endpoint, (Anomaly("acknowledgement of something never sent"),))  # DLP-17
    changed = endpoint
    if ack.sequence >= 0:
        if endpoint.far_broker not in (None, ack.broker_id):  # bound, or pinned at the beginning
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
    """Return the error text if one side has lost messages that it sent or acknowledged (REL-15).

    None means that nothing was lost. Only acknowledgements of the bound broker are checked, and
    only in CO: in later states messages are withdrawn, so gaps prove nothing."""
    if endpoint.state is not State.CONVERSING or not endpoint.bound:
        return None
    if endpoint.far_broker != ack.broker_id:
        return None
    if ack.highest_seen >= endpoint.send_sequence:
        return UNKNOWN_SENT
    return UNKNOWN_STORED if ack.base_sequence > endpoint.receive_sequence else None


def _covers(ack: Ack, sequence: int) -> bool:
    """Return whether the block acknowledges all fragments of message `sequence`."""
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
    """Fail the endpoint (DLG-T15). The peer gets an unsequenced error if it knows the dialog and
    has not ended it (CO), or if its message 0 is refused (DLG-T6)."""
    refused = _to(endpoint, Trigger.REFUSED)
    if refused is not None:
        refusal = Refuse(event.code, event.description)
        return _moved(endpoint, refused, WithdrawOutgoing(), DropUnread(), refusal)
    state = _to(endpoint, Trigger.FAULT)
    if state is None:
        return _anomaly(endpoint, "fault")
    known = endpoint.state is State.CONVERSING
    failed = _replace(endpoint, state=state, error_code=event.code, error_text=event.description)
    notice: tuple[Effect, ...] = (Refuse(event.code, event.description),) if known else ()
    return Step(failed, (DeliverError(event.code, event.description), FreezeOutgoing(), *notice))


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
