"""One side of a dialog, as a value: what its row holds (DLP-2).

Reads: nothing.      Calls: nothing.      Never: changes; `dialog.step` makes the next one.
"""

import msgspec

from brokerd.clock import Instant
from brokerd.ids import BrokerId, ConversationId, EndpointKey, GroupId, Handle, MessageId
from brokerd.protocol.transitions import State

_replace = msgspec.structs.replace


class DialogEndpoint(msgspec.Struct, frozen=True):
    """A dialog endpoint. The fields from `priority` on may change during its life, and the last
    four, its progress, with every message."""

    key: EndpointKey
    handle: Handle
    conversation_id: ConversationId
    is_initiator: bool
    service: str
    """The local service."""
    contract: str
    far_service: str
    encryption: bool
    """Asked to be encrypted when it leaves the instance (DLG-12)."""
    began_at: Instant
    expires_at: Instant
    """The same instant on both sides (DLG-11)."""
    priority: int
    group_id: GroupId
    state: State
    far_broker: BrokerId | None = None
    """The broker the dialog is pinned or bound to (DLP-43)."""
    bound: bool = False
    """Whether an acknowledgement has bound `far_broker` (at a target: from the first message)."""
    end_sequence: int = -1
    """Sequence of the own EndDialog or Error; -1 = not ended."""
    far_end_sequence: int = -1
    """Sequence of the peer's EndDialog or Error; -1 = it has not ended."""
    discarded: int = 0
    """Application messages that were received here and deleted unread (design D16)."""
    first_acked: bool = False
    """Initiator: message 0 was acknowledged. Target: FIRST_ACKED was seen (DLP-55)."""
    purge_at: Instant | None = None
    """A closed target endpoint is kept until then (DLP-54; SSB: security_timestamp)."""
    error_code: int | None = None
    """Code of the error that struck, negative when a broker made it (DLG-28)."""
    error_text: str | None = None
    route: str | None = None
    """Name of the chosen route while not bound, where there was a choice (RTE-29)."""
    error_queue: str | None = None
    """Set at the initiator of a posted dialog, which the broker ends by itself: the queue that
    gets its messages, which are its errors (PBT-4)."""
    state_since: Instant = Instant(0)
    """When it came into its state (VIEW-1)."""
    send_sequence: int = 0
    """Next sequence number to send (SND-5)."""
    receive_sequence: int = 0
    """Next sequence number expected."""
    receive_fragment: int = 0
    """Next fragment of it expected."""
    last_message: MessageId | None = None
    """Identity of the message that was received last, in part or whole: another one under its
    number shows that the peer has forgotten what it sent (REL-15). None = none yet."""

    def only_moved(self, before: "DialogEndpoint") -> bool:
        """Whether nothing but progress sets it apart from what it was before.

        True for nearly every message; the store then writes a small row only."""
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
        """Application messages sent so far."""
        return self.send_sequence - (1 if self.end_sequence >= 0 else 0)

    @property
    def received(self) -> int:
        """Application messages received so far, read or not."""
        return self.receive_sequence - (1 if self.far_end_sequence >= 0 else 0)
