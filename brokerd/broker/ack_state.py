"""Acknowledgement state of a dialog: fragments received, acknowledgements owed (DLP-14, DLP-19).

Reads: the endpoint, once.      Calls: nothing.
Never: decides when an acknowledgement leaves. `delivery/incoming/` reports stored and buffered
       fragments, `delivery/outgoing/` due and sent acknowledgements; no other module assigns.

The state is in memory only: after a restart the peer sends unacknowledged fragments again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerd.ids import BrokerId
from brokerd.protocol import dialog
from brokerd.protocol.frames import Ack

if TYPE_CHECKING:
    from brokerd.ids import InstanceId
    from brokerd.protocol.endpoint import DialogEndpoint
    from brokerd.protocol.frames import Fragment

WHOLE: Final = dialog.WHOLE
"""The fragment number that means, in an ack, all fragments of the message."""

Ranges = tuple[tuple[int, int, int, int], ...]
"""Ranges of fragments, each as first sequence and fragment, last sequence and fragment."""


class AckState:
    """The receiving side of one dialog, as far as it concerns acknowledgements.

    - `stored_sequence` and `stored_fragment` are durable: the truth behind every ack (DLP-15).
      They may be behind the endpoint in memory, and are never ahead of its row.
    - `due_at` is set if and only if an ack is owed.
    - `first_acked` is durable, too: it promises the target that message 0 never comes again.
    """

    __slots__ = (
        "due_at",
        "errors",
        "first_acked",
        "first_acked_sent",
        "held_ranges",
        "highest_seen",
        "is_warned",
        "neighbour",
        "owed",
        "stored_fragment",
        "stored_message",
        "stored_sequence",
    )

    def __init__(self, endpoint: DialogEndpoint) -> None:
        self.stored_sequence = endpoint.receive_sequence - (
            1 if not endpoint.receive_fragment else 0
        )
        """Sequence of the last message that is stored, as a whole or in part; -1 = none."""
        self.stored_fragment = endpoint.receive_fragment - 1 if endpoint.receive_fragment else WHOLE
        """Number of the last stored fragment of message `stored_sequence`; `WHOLE` = all."""
        self.stored_message = endpoint.last_message
        """The id of message `stored_sequence` (REL-15)."""
        self.highest_seen = self.stored_sequence
        """The highest sequence that has arrived, stored or not."""
        self.held_ranges: Ranges = ()
        """Fragments that the dispatcher holds and that are not stored (DLP-16)."""
        self.owed = 0
        """Fragments stored, or received again, since the last ack was sent."""
        self.due_at: float | None = None
        """The latest time to send a dedicated ack (monotonic, DLP-19); None = no ack is owed."""
        self.errors: list[tuple[int, str]] = []
        """Errors made by this broker that wait for the next connection (DLP-3)."""
        self.first_acked = endpoint.first_acked and endpoint.is_initiator
        """Whether message 0 is acknowledged to this initiator, durably (DLP-57)."""
        self.first_acked_sent = False
        """Whether an item with FIRST_ACKED was built for sending (DLP-57)."""
        self.neighbour: InstanceId | None = None
        """The instance that brought the last arrival; None = none yet, or this instance (NBT-1)."""
        self.is_warned = False
        """Whether a missing route back was reported already (NBT-1)."""

    # Arrivals.

    def came_from(self, neighbour: InstanceId | None) -> None:
        """Record which instance brought the latest arrival (NBT-1)."""
        self.neighbour = neighbour

    def buffered(self, ranges: Ranges, highest_seen: int) -> None:
        """Record which fragments are held in memory, after some have arrived."""
        self.held_ranges = ranges
        self.highest_seen = max(self.highest_seen, highest_seen)

    def dropped(self, ranges: Ranges) -> None:
        """Record which fragments are still held, after others were dropped unacknowledged."""
        self.held_ranges = ranges

    def stored(self, last: Fragment) -> None:
        """Record that everything up to this fragment is durable."""
        self.stored_sequence, self.stored_message = last.sequence, last.message_id
        self.stored_fragment = last.fragment if last.fragment + 1 < last.fragments else WHOLE

    def first_ack_stored(self) -> None:
        """Record that the acknowledgement of this initiator's message 0 is durable (DLP-57)."""
        self.first_acked = True

    # Acknowledgements and errors owed.

    @property
    def is_owing(self) -> bool:
        """Whether an acknowledgement or an error waits to be sent."""
        return self.due_at is not None or bool(self.errors)

    def owe(self, count: int) -> int:
        """Count fragments to be acknowledged; return their new number."""
        self.owed += count
        return self.owed

    def owe_error(self, code: int, text: str) -> None:
        """Record an error to be sent to the peer (DLP-42)."""
        self.errors.append((code, text))

    def due(self, at: float) -> None:
        """Set the latest time to send the acknowledgement (DLP-19)."""
        self.due_at = at

    def build(self, *, base_sequence: int, broker_id: BrokerId) -> Ack:
        """Return the acknowledgement block as of now: committed state only (REL-4)."""
        stored, seen = self.stored_sequence, self.highest_seen
        return Ack(
            sequence=stored,
            fragment=self.stored_fragment if stored >= 0 else -1,
            highest_seen=max(stored, seen),
            base_sequence=base_sequence,
            broker_id=broker_id,
            first_acked=self.first_acked,
            ranges=self.held_ranges,
        )

    def ack_sent(self) -> None:
        """Record that an item with the acknowledgement was built for sending."""
        self.owed, self.due_at = 0, None
        if self.first_acked:
            self.first_acked_sent = True

    def errors_sent(self) -> list[tuple[int, str]]:
        """Remove and return the errors; the caller builds the items that carry them."""
        errors, self.errors = self.errors, []
        return errors

    def unsent(self, owed: int, due_at: float | None, errors: list[tuple[int, str]]) -> None:
        """Restore acknowledgement and errors that could not be handed to a neighbour (NBT-1)."""
        self.owed, self.due_at, self.errors = owed, due_at, errors

    def warn_once(self) -> bool:
        """Return whether to report a missing route back: True on the first call only (NBT-1)."""
        first, self.is_warned = not self.is_warned, True
        return first
