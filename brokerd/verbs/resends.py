"""RESEND PENDING: send the frozen messages of a broken dialog on another dialog (PBT-12).

Reads: the frozen rows of the old dialog.      Calls: verbs.sends, broker.transaction.
Never: removes anything from the old dialog: its rows go when the application ends it (DLP-50).

A message that was sent and not acknowledged may have arrived (DLG-27). Every copy keeps the id of
its message, so that the receiver can recognize a duplicate.
"""

from collections import Counter
from typing import Final

import msgspec

from brokerd.broker.blocked import Blocked, Resume
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.state import Live
from brokerd.broker.transaction import Transaction
from brokerd.errors import InvalidArgument, InvalidState, QuotaExceeded
from brokerd.ids import Handle, MessageId
from brokerd.protocol.headers import body_of
from brokerd.protocol.items import ENDS
from brokerd.protocol.transitions import State
from brokerd.storage.changes import Changes
from brokerd.verbs import body_checks, large_bodies, sends

FROZEN: Final = frozenset({State.DISCONNECTED_INBOUND, State.ERROR})
"""States in which a dialog keeps messages that it may not send (DLG-26)."""


class Resent(msgspec.Struct, frozen=True):
    """One message that was sent again."""

    sequence: int
    """The sequence in the old dialog."""
    message_id: MessageId
    message_type: str
    may_have_arrived: bool


def resend_pending(tx: Transaction, old: Handle, new: Handle) -> list[Resent] | Blocked:
    """Send the frozen messages of `old` on `new`, in order, in this transaction (PBT-12)."""
    lives = sends.find_and_lock(tx, (old, new))
    if isinstance(lives, Blocked):
        return lives
    source, target = lives
    if source is target:
        raise InvalidArgument("the messages of a dialog are resent on another one")
    endpoint = tx.view(source)
    if endpoint is None or endpoint.state not in FROZEN:
        state = State.NONE if endpoint is None else endpoint.state
        raise InvalidState(
            f"a dialog in state {state} holds nothing back: it sends what waits, if there is any",
            ssb_code=8429,
        )
    out = source.outgoing
    if out is None:
        return []
    blocked = _bring_in(tx, out)
    return blocked or _copy(tx, out, target)


def _bring_in(tx: Transaction, out: Outgoing) -> Blocked | None:
    """Load all rows of the dialog, unless they are more than the transaction may send."""
    broker = tx.broker
    if out.pending > broker.options.max_verbs - tx.verbs:
        raise QuotaExceeded(
            f"{out.pending} messages wait, and a transaction has at most "
            f"{broker.options.max_verbs} verbs"
        )
    if out.unpublished:

        def publish(resume: Resume) -> None:
            async def wait() -> None:
                await broker.store.commit(Changes())
                resume()

            broker.spawn(wait())

        return Blocked("rows", publish)
    if out.damaged is not None:
        raise InvalidState(f"message {out.damaged} of that dialog is damaged")
    return Blocked("rows", out.load) if out.waiting else None


def _copy(tx: Transaction, out: Outgoing, target: Live) -> list[Resent] | Blocked:
    held = [(row, sent) for row, sent in out.window.attempted() if not row.flags & ENDS]
    size = sum(len(row.body or b"") for row, _ in held)
    if tx.size + size > tx.broker.options.max_bytes:
        raise QuotaExceeded(f"a transaction carries at most {tx.broker.options.max_bytes} bytes")
    checked = body_checks.before_sends(
        tx, target, ((row.message_type, body_of(row.body)) for row, _ in held)
    )
    if checked is not None:
        return checked
    bodies = {id(row.body): row.body for row, _ in held}
    times = Counter(id(row.body) for row, _ in held)  # two messages may share a body
    for key, body in bodies.items():  # all stored, one after the other, before anything is sent
        stored = large_bodies.before_send(tx, [target] * times[key], body)
        if stored is not None:
            return stored
    for row, _ in held:
        blocked = sends.send_as(tx, target, row.message_type, row.body, row.message_id)
        assert blocked is None or row is held[0][0], "nothing waits once the first is sent"
        if blocked is not None:
            return blocked
    tx.count_verbs(len(held))
    # A message from before this start, or from beyond the window, may have been sent before.
    return [
        Resent(row.sequence, row.message_id, row.message_type, sent or bool(row.paged))
        for row, sent in held
    ]
