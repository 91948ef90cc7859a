"""Whether the receiving side accepts an ordinary message, checked for many messages at a time.

Reads: the broker's message types.      Calls: broker.checks.
Never: gives a reason: a message that is not accepted takes the general path, which finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.broker.checks import Judge, looks_at_the_body, refuse_message
from brokerd.model import Contract
from brokerd.objects.validation import problem

if TYPE_CHECKING:
    from brokerd.broker.broker import Broker


class Accepting:
    """The check, which remembers the kind of message accepted last, within one turn of the loop."""

    __slots__ = ("_accepted", "_broker", "_checked")

    def __init__(self, broker: Broker, *, checked: bool = False) -> None:
        """Create the check. `checked`: bodies checked by the checking process may have their
        verdict now."""
        self._broker = broker
        self._checked = checked
        self._accepted: object = None

    def accepts(
        self, contract: Contract, message_type: str, body: bytes | None, *, from_initiator: bool
    ) -> bool:
        """Return whether a message can be enqueued without waiting for a check (OBJ-18, OBJ-29)."""
        terms = (contract, message_type, from_initiator, body is None)
        if terms == self._accepted:
            return True
        broker = self._broker
        if broker.is_full:
            return False
        known = broker.message_types
        judge: Judge = problem
        kind = known.get(message_type)
        if kind is not None and body is not None and broker.inspection.concerns(kind, len(body)):
            if not self._checked or broker.inspection.overrun(kind, body):
                return False  # the general path waits for the verdict
            judge = broker.inspection.evaluate
        if refuse_message(
            contract, message_type, body, known=known, from_initiator=from_initiator, judge=judge
        ):
            return False
        if not looks_at_the_body(known[message_type]):
            self._accepted = terms
        return True
