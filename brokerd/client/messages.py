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


class _Mark(Enum):
    ABSENT = "absent"
    FOREVER = "forever"


ABSENT: Final = _Mark.ABSENT
"""No body at all, which is not the same argument as None (SND-11)."""
FOREVER: Final = _Mark.FOREVER
"""Wait without a limit (RCV-18)."""
CURRENT_DATABASE: Final = "CURRENT_DATABASE"
"""As `broker_id`: the broker of this session (DLG-5)."""

Body = bytes | bytearray | memoryview | Literal[_Mark.ABSENT]
Wait = float | timedelta | Literal[_Mark.FOREVER] | None
"""Seconds or a `timedelta`, `FOREVER`, or None to return at once."""


class Message(MessageValue, frozen=True, array_like=True):
    """A received message.

    `handle` is what to answer on, `group_id` the key for application state (GRP-2). The names of
    service, contract and message type are their ids as well (RCV-39 to RCV-41).
    """

    status: int = 0
    """0 received, 1 ready, 2 not complete, 3 sent; 0 in a receive, any in a browse (RCV-27)."""

    @property
    def is_end(self) -> bool:
        """Return whether the other side has ended the dialog; end this side too (DLG-18)."""
        return self.message_type == END_DIALOG

    @property
    def is_error(self) -> bool:
        """Return whether the dialog is broken; `error` says why (DLG-28)."""
        return self.message_type == ERROR

    @property
    def is_timer(self) -> bool:
        """Return whether a conversation timer of this side is due."""
        return self.message_type == DIALOG_TIMER

    @property
    def error(self) -> RemoteError | None:
        """Return the error of an Error message, None for any other (DLG-29)."""
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
    """Position in the old dialog."""
    message_id: bytes
    """Unchanged, so that the receiver recognises a message that it has already."""
    message_type: str
    may_have_arrived: bool
    """Whether it was sent on the old dialog, and only the acknowledgement is missing."""


class _ErrorBody(Struct):
    code: int = 0
    description: str = ""


class Page(Struct, frozen=True):
    """Part of a queue's contents, by queuing order (OBJ-47)."""

    messages: list[Message]
    after: tuple[int, int] | None
    """Where the next page goes on; None = this is the last."""


def read_page(value: object) -> Page:
    """Return the page in the ANSWER to a browse.

    Raises:
        ProtocolError: it has another form.
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
        ProtocolError: they have another form.
    """
    try:
        return msgspec.convert(value, list[Message], builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a message cannot be read: {error}") from None


def read_resent(value: object) -> list[Resent]:
    """Return what the ANSWER to `resend_pending` says was sent.

    Raises:
        ProtocolError: it has another form.
    """
    try:
        return msgspec.convert(value, list[Resent], builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ProtocolError(f"resend_pending: {error}") from None
