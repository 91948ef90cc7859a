"""Timeline: both sides of a dialog joined: what happened, and where it hangs (MON-52).

PURE.   Reports of both sides in, moments, sums and sentences out.
Reads:  nothing.      Calls: nothing.
Never:  guesses: what neither side knows any more is left out.
"""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from brokerd.clock import SECOND, Instant
from brokerd.protocol.inquiry import LATEST, SideReport, Waiting
from brokerd.routing.reasons import Reason, status_text
from brokerd.units import counted

Side = Literal["initiator", "target"]
Tone = Literal["", "good", "warn", "bad"]
OTHER: Final[dict[Side, Side]] = {"initiator": "target", "target": "initiator"}
_PATIENCE: Final = 5 * SECOND
"""Time that an acknowledgement may take before it is worth a sentence."""
_ENDED: Final = {"DO", "CD", "ER"}
_KINDS: Final = (
    *("begun", "arrived", "sent", "transmitted", "queued"),
    *("parked", "incident", "ended", "due", "retry"),
)
_RANK: Final = {kind: at for at, kind in enumerate(_KINDS)}


class Moment(msgspec.Struct, frozen=True):
    """One thing that happened at one side, or is about to."""

    at: Instant
    """When, by the clock of the instance that joins the sides."""
    side: Side
    what: str
    """begun, arrived, sent, transmitted, queued, parked, incident, ended, due or retry."""
    text: str
    tone: Tone = ""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one direction; None = the side that knows was not reached."""

    sender: Side
    sent: int | None
    acknowledged: int | None
    """Sent messages that the other side has acknowledged; the end of the dialog counts as one."""
    arrived: int | None
    unread: int | None
    """Messages that have arrived and wait to be received."""
    received: int | None
    """Messages that a program has received."""
    discarded: int | None


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of a dialog."""

    flows: tuple[Flow, Flow]
    """The messages of the initiator, and those of the target."""
    moments: tuple[Moment, ...]
    """The known events of both sides, the earliest first."""
    hangs: tuple[tuple[Tone, str], ...]
    """Sentences about what the dialog waits for, the most serious first; empty = for nothing."""
    ahead: int
    """How far the clock of the other instance is ahead, in microseconds; 0 = it agrees."""


def join(near: SideReport, far: SideReport | None, seconds: float) -> Joined:
    """Join the sides. `far`: None = no report came. `seconds`: how long the report took to come."""
    ahead = 0
    if far is not None:
        half = round(seconds * SECOND / 2)
        apart = far.now - (near.now + half)
        ahead = apart if abs(apart) > max(SECOND, 2 * half) else 0
    here: Side = "initiator" if near.is_initiator else "target"
    sides: dict[Side, SideReport | None] = {here: near, OTHER[here]: far}
    moments = [*_moments(near, here, 0)]
    if far is not None and far.is_known:
        moments += _moments(far, OTHER[here], ahead)
    return Joined(
        flows=(_flow("initiator", sides), _flow("target", sides)),
        # Within a millisecond, what must have come first is first.
        moments=tuple(sorted(moments, key=lambda one: (one.at // 1000, _RANK[one.what], one.at))),
        hangs=tuple(_hangs(sides, near.now)),
        ahead=ahead,
    )


def _flow(sender: Side, sides: dict[Side, SideReport | None]) -> Flow:
    from_, to = sides[sender], sides[OTHER[sender]]
    if to is not None and not to.is_known:
        to = None
    return Flow(
        sender=sender,
        sent=None if from_ is None or not from_.is_known else from_.sent,
        acknowledged=(
            None if from_ is None or not from_.is_known else max(0, from_.sent - from_.pending)
        ),
        arrived=None if to is None else to.received,
        unread=None if to is None else to.unread,
        received=None if to is None else max(0, to.received - to.unread - to.discarded),
        discarded=None if to is None else to.discarded,
    )


def _moments(  # noqa: C901  # one statement for each kind of moment
    one: SideReport, side: Side, ahead: int
) -> Iterator[Moment]:
    """Yield what a side knows, by the clock of the instance that joins."""

    def at(instant: int) -> Instant:
        # a peer names any two instants, and what is between them must be an instant that exists
        return Instant(min(max(0, instant - ahead), LATEST))

    if side == "initiator":
        yield Moment(at(one.began_at), side, "begun", "begun here")
    else:
        yield Moment(at(one.began_at), side, "arrived", "its first message arrived here", "good")
    for message in one.waiting:
        yield Moment(at(message.at), side, "sent", _sent(message, one))
    if one.last_attempt_at is not None and one.pending:
        # a report over the network has no destination
        is_sent = bool(one.destination) or one.status_key == Reason.AWAITING_ACK
        what = "transmitted" if is_sent else "tried to transmit"
        times = counted(one.attempts, "time")
        yield Moment(
            at(one.last_attempt_at),
            side,
            "transmitted",
            f"last {what}, {times} so far",
            "warn",
        )
    for message in one.queued:
        which = "a timer" if message.sequence < 0 else f"message {message.sequence}"
        yield Moment(at(message.at), side, "queued", f"{which} arrived, and waits to be received")
    if one.parked_at is not None:
        yield Moment(at(one.parked_at), side, "parked", "its group was parked", "bad")
    for incident in one.incidents:
        code = "" if incident.code is None else f" ({incident.code})"
        yield Moment(at(incident.at), side, "incident", f"{incident.what}{code}", "bad")
    if one.state in _ENDED or one.state == "DI":
        yield Moment(at(one.state_since), side, "ended", *_end(one))
    if one.next_attempt_at is not None and one.pending:
        yield Moment(at(one.next_attempt_at), side, "due", "the next attempt is due")
    if one.retry_at is not None:
        yield Moment(at(one.retry_at), side, "retry", "its group can be received again")


def _sent(message: Waiting, one: SideReport) -> str:
    what = "the end of the dialog" if message.sequence == one.end_sequence else ""
    text = f"{what or f'message {message.sequence}'} sent, not acknowledged"
    if message.fragments > 1:
        text += f": {message.acknowledged} of {message.fragments} fragments are"
    return text


def _end(one: SideReport) -> tuple[str, Tone]:
    code = "" if one.error_code is None else f" {one.error_code}"
    if one.state == "ER":
        return f"ended by error{code}", "bad"
    if one.state == "DI":
        return "the other side has ended; this side has not", "warn"
    if one.state == "DO":
        return f"ended here with error{code}" if code else "ended here", "bad" if code else ""
    return (f"closed after error{code}", "bad") if code else ("closed: both sides have ended", "")


def _hangs(sides: dict[Side, SideReport | None], now: int) -> Iterator[tuple[Tone, str]]:
    found: list[tuple[Tone, str]] = []
    for sender in OTHER:
        found += _way(sender, sides[sender], sides[OTHER[sender]], now)
    for side, one in sides.items():
        if one is not None and one.is_known:
            found += _queue(side, one)
            if one.state == "DI":
                found.append(("warn", f"the {side} has not ended its side, the other side has"))
            elif one.state == "ER":
                found.append(("bad", f"the {side} failed with error {one.error_code}, and no "
                              "program has ended it"))  # fmt: skip
    order = ("bad", "warn", "", "good")
    yield from sorted(found, key=lambda pair: order.index(pair[0]))


def _way(
    sender: Side, one: SideReport | None, other: SideReport | None, now: int
) -> Iterator[tuple[Tone, str]]:
    """Yield what keeps the messages of a side from arriving."""
    if one is None or not one.is_known or not one.pending:
        return
    many = counted(one.pending, "message")
    oldest = one.waiting[0].at if one.waiting else now
    if other is not None and not other.is_known and one.state != "CD":
        missing = "has no side of this dialog: nothing of it has arrived, or it is over there"
        yield "bad", f"the instance of the {OTHER[sender]} {missing}"
    if one.status_key not in ("", Reason.AWAITING_ACK, Reason.NOT_ATTEMPTED):
        to = f" for {one.destination}" if one.destination else ""
        yield "bad", f"{many} of the {sender} cannot leave{to}: {status_text(one.status_key)}"
    elif now - oldest > _PATIENCE:
        yield "warn", f"{many} of the {sender} left, and no acknowledgement came"


def _queue(side: Side, one: SideReport) -> Iterator[tuple[Tone, str]]:
    """Yield why the messages that have arrived at a side are not received."""
    if not one.unread and not one.is_parked:
        return
    many = counted(one.unread, "message waits", "messages wait")
    if one.is_parked:
        until = "until its next attempt" if one.parked_at is None else "as its group is parked"
        yield "bad", f"{many} at the {side} {until}"
    elif not one.is_queue_on:
        yield "bad", f"{many} at the {side}, whose queue is off"
    elif one.is_locked:
        yield "", f"{many} at the {side}; a transaction has its group just now"
    else:
        yield "warn", f"{many} at the {side} to be received"
