"""Messages as programs receive them, and the types of bodies and waits (RCV-27 to RCV-43). PURE.

Reads:  decoded answers.     Calls: msgspec.
Never:  guesses what a body means; bytes stay bytes (SND-13).
"""

from datetime import timedelta
from enum import Enum
from typing import Final, Literal

import msgspec
from msgspec import Struct

from brokerd.errors import (
    ProtocolError,
    RemoteError,
)
from brokerd.model import DIALOG_TIMER, END_DIALOG, ERROR
from brokerd.protocol.client_frames import MessageValue
from brokerd.protocol.headers import NO_HEADERS, HeaderMap


class _Mark(Enum):
    ABSENT = "absent"
    FOREVER = "forever"


ABSENT: Final = _Mark.ABSENT
"""The argument for a message without a body; None is refused as a body (SND-11)."""
FOREVER: Final = _Mark.FOREVER
"""A wait without a limit (RCV-18)."""
CURRENT_DATABASE: Final = "CURRENT_DATABASE"
"""The value of `broker_id` for the broker of this session (DLG-5)."""

Body = bytes | bytearray | memoryview | Literal[_Mark.ABSENT]
Wait = float | timedelta | Literal[_Mark.FOREVER] | None
"""A waiting time: seconds, a `timedelta`, `FOREVER`, or None to return at once."""


class Message(MessageValue, frozen=True, array_like=True):
    """A received message.

    `handle` is the handle of the dialog, to answer on; `group_id` is the key for application state
    (GRP-2). Services, contracts and message types have their names as ids (RCV-39 to RCV-41).
    """

    status: int = 0
    """0 received, 1 ready, 2 not complete, 3 sent; only a browse returns 1, 2 or 3 (RCV-27)."""
    headers: HeaderMap = NO_HEADERS
    """The headers that the sender gave the message (SND-26); empty if it has none."""

    @property
    def is_end(self) -> bool:
        """Whether the other side has ended the dialog; if so, end this side, too (DLG-18)."""
        return self.message_type == END_DIALOG

    @property
    def is_error(self) -> bool:
        """Whether the dialog is broken; `error` is the reason (DLG-28)."""
        return self.message_type == ERROR

    @property
    def is_timer(self) -> bool:
        """Whether the message reports that a conversation timer of this side is due."""
        return self.message_type == DIALOG_TIMER

    @property
    def error(self) -> RemoteError | None:
        """The error of an Error message; None for any other message (DLG-29)."""
        if not self.is_error:
            return None
        try:
            found = msgspec.json.decode(self.body or b"{}", type=_ErrorBody)
        except msgspec.MsgspecError:
            return RemoteError(0, "the body of the Error message cannot be read")
        return RemoteError(found.code, found.description)


class Resent(Struct, frozen=True, array_like=True):
    """A message that was sent again on another dialog (PBT-12)."""

    sequence: int
    """Position of the message in the old dialog."""
    message_id: bytes
    """Unchanged id of the message, so that the receiver recognises one that it already has."""
    message_type: str
    may_have_arrived: bool
    """Whether the message was sent on the old dialog, and only its acknowledgement is missing."""


class _ErrorBody(Struct):
    code: int = 0
    description: str = ""


class Page(Struct, frozen=True):
    """A page of a queue's messages, in queuing order (OBJ-47)."""

    messages: list[Message]
    after: tuple[int, int] | None
    """The value of `after` for the next page; None = this is the last page."""


def read_page(value: object) -> Page:
    """Return the page in the ANSWER to a browse.

    Raises:
        ProtocolError: the answer has another form.
    """
    try:
        messages, after = msgspec.convert(
            value, tuple[list[Message], tuple[int, int] | None], builtin_types=(bytes,)
        )
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a page of a queue cannot be read: {error}") from None
    return Page(messages, after)


def read_messages(value: object) -> list[Message]:
    """Return the messages of an ANSWER.

    Raises:
        ProtocolError: the answer has another form.
    """
    try:
        return msgspec.convert(value, list[Message], builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a message cannot be read: {error}") from None


def read_resent(value: object) -> list[Resent]:
    """Return the sent messages that the ANSWER to `resend_pending` lists.

    Raises:
        ProtocolError: the answer has another form.
    """
    try:
        return msgspec.convert(value, list[Resent], builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ProtocolError(f"resend_pending: {error}") from None
