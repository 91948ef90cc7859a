"""One side of a dialog, as an immutable value with the fields of its row (DLP-2).

Reads: nothing.      Calls: nothing.      Never: changes; `dialog.step` makes the next value.
"""

import msgspec

from brokerd.clock import Instant
from brokerd.ids import BrokerId, ConversationId, EndpointKey, GroupId, Handle, MessageId
from brokerd.protocol.transitions import State

_replace = msgspec.structs.replace


class DialogEndpoint(msgspec.Struct, frozen=True):
    """A dialog endpoint. The fields from `priority` on may change during its life; the last four,
    its progress, change with every message."""

    key: EndpointKey
    handle: Handle
    conversation_id: ConversationId
    is_initiator: bool
    service: str
    """The local service."""
    contract: str
    far_service: str
    encryption: bool
    """Whether encryption was requested for transport outside the instance (DLG-12)."""
    began_at: Instant
    expires_at: Instant
    """End of the lifetime, the same instant on both sides (DLG-11)."""
    priority: int
    group_id: GroupId
    state: State
    far_broker: BrokerId | None = None
    """Broker that the dialog is pinned or bound to (DLP-43)."""
    bound: bool = False
    """Whether an acknowledgement has bound `far_broker` (at a target: from the first message)."""
    end_sequence: int = -1
    """Sequence of this side's EndDialog or Error; -1 = not ended."""
    far_end_sequence: int = -1
    """Sequence of the peer's EndDialog or Error; -1 = not ended."""
    discarded: int = 0
    """Number of application messages received here and deleted unread (design D16)."""
    first_acked: bool = False
    """Whether message 0 was acknowledged (initiator) or FIRST_ACKED was seen (target) (DLP-55)."""
    purge_at: Instant | None = None
    """Instant until which a closed target endpoint is kept (DLP-54; SSB: security_timestamp)."""
    error_code: int | None = None
    """Code of the error that the dialog failed with; negative if a broker made it (DLG-28)."""
    error_text: str | None = None
    route: str | None = None
    """Name of the chosen route while not bound, if several routes matched (RTE-29)."""
    error_queue: str | None = None
    """Queue for the errors of a posted dialog, which the broker itself ends; set at its initiator
    only (PBT-4)."""
    state_since: Instant = Instant(0)
    """Instant of the last change of state (VIEW-1)."""
    security: bytes | None = None
    """The keys of the dialog, wrapped by the broker's key; None = it is not secured (SEC-38)."""
    send_sequence: int = 0
    """Next sequence number to send (SND-5)."""
    receive_sequence: int = 0
    """Next sequence number expected."""
    receive_fragment: int = 0
    """Next fragment number expected of message `receive_sequence`."""
    last_message: MessageId | None = None
    """Identity of the latest received message, partial or whole; None = no message received yet.
    Another identity under the same sequence shows that the peer has lost sent messages (REL-15)."""

    def only_moved(self, before: "DialogEndpoint") -> bool:
        """Return whether this endpoint differs from an earlier one only in its progress.

        After nearly every message it does; the store then writes only a small row."""
        moved_alike = _replace(
            before,
            send_sequence=self.send_sequence,
            receive_sequence=self.receive_sequence,
            receive_fragment=self.receive_fragment,
            last_message=self.last_message,
        )
        return moved_alike == self

    @property
    def sent(self) -> int:
        """Number of application messages sent so far."""
        return self.send_sequence - (1 if self.end_sequence >= 0 else 0)

    @property
    def received(self) -> int:
        """Number of application messages received so far, read or not."""
        return self.receive_sequence - (1 if self.far_end_sequence >= 0 else 0)
