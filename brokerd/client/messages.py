"""What programs hand in and get back: messages, bodies, durations, as values (RCV-27 to RCV-43).

Reads:  decoded answers.     Calls: msgspec.
Never:  guesses what a body means; bytes stay bytes (SND-13).
"""

import math
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from typing import Final, Literal

import msgspec
from msgspec import Struct

from brokerd.client.arguments import check_handles
from brokerd.errors import (
    InvalidArgument,
    MessageTooLarge,
    NullBody,
    ProtocolError,
    RemoteError,
)
from brokerd.model import DIALOG_TIMER, END_DIALOG, ERROR
from brokerd.protocol.client_frames import MessageValue
from brokerd.protocol.client_verbs import FOREVER_MS, MAX_TIMER_MS, MAX_WAIT_MS


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
    """Its position in the old dialog."""
    message_id: bytes
    """Kept: the receiver knows by it a message that it had already."""
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


def wire_body(body: Body, limit: int) -> bytes | None:
    """Return the body as it travels; None for no body.

    Raises:
        NullBody: it is None.
        MessageTooLarge: it has more than `limit` bytes.
        InvalidArgument: it is not bytes.
    """
    if type(body) is not bytes:
        if body is ABSENT:
            return None
        if body is None:
            raise NullBody
        if not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"a body is bytes, not {type(body).__name__}",
                hint="encode it: text.encode(), or use a Contract and bk.dialog for typed values",
            )
        body = bytes(body)
    if len(body) > limit:
        raise MessageTooLarge(f"a body of {len(body)} bytes is over the limit of {limit}")
    return body


def wire_id(value: object, what: str) -> bytes:
    """Return an id as it travels.

    Raises:
        InvalidArgument: it is not 16 bytes; the message names it.
    """
    if type(value) is not bytes or len(value) != 16:  # noqa: PLR2004
        raise InvalidArgument(
            f"{what} is {_told(value)}, not 16 bytes",
            hint="give what begin_dialog returned, or the handle of a message; of a text that is "
            "uuid.UUID(text).bytes",
        )
    return value


def wire_text(value: object, what: str) -> str:
    """Return a text as it travels.

    Raises:
        InvalidArgument: it is no text; the message names it.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is {_told(value)}, not a text", hint=f"name the {what}")
    return value


def wire_handles(value: bytes | Sequence[bytes]) -> bytes | list[bytes]:
    """Return one handle, or several of one atomic send or end, as they travel (SND-8, DLG-47).

    Raises:
        InvalidArgument: one of them is not 16 bytes.
        DuplicateHandle: one is given twice.
    """
    if type(value) is bytes:
        return wire_id(value, "handle")
    if not isinstance(value, list | tuple) or not value:
        raise InvalidArgument(
            f"handle is {_told(value)}, not 16 bytes and no list of such",
            hint="give what begin_dialog returned, or the handle of a message",
        )
    handles = [wire_id(each, "handle") for each in value]
    check_handles(handles)
    return handles


def _told(value: object) -> str:
    """What was given, short."""
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, bytes | str | list | tuple) else kind


def wire_wait(wait: Wait) -> int | None:
    """Return a duration in milliseconds as it travels, rounded up; None for no wait.

    Raises:
        InvalidArgument: it is no duration.
    """
    if wait is None:
        return None
    if wait is FOREVER:
        return FOREVER_MS
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_WAIT_MS / 1000:
        raise InvalidArgument(
            f"wait is {wait!r}",
            hint=f"give 0 to {MAX_WAIT_MS / 1000:.0f} seconds, FOREVER, or None not to wait",
        )
    return math.ceil(seconds * 1000)


def wire_after(after: float | timedelta | None) -> int | None:
    """Return the time of a timer in milliseconds as it travels, rounded up; None cancels (DLG-35).

    Raises:
        InvalidArgument: it is no duration above 0.
    """
    if after is None:
        return None
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if type(seconds) not in (int, float) or not 0 < seconds <= MAX_TIMER_MS / 1000:
        raise InvalidArgument(
            f"a timer cannot be set to {after!r}",
            hint=f"give more than 0 and at most {MAX_TIMER_MS // 1000} seconds; None cancels it",
        )
    return math.ceil(seconds * 1000)


def wire_name(name: object) -> str | None:
    """Return the name of a timer as it travels; None is the unnamed one (PBT-23).

    Raises:
        InvalidArgument: it is no text of 1 to 128 characters.
    """
    if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= MAX_TIMER_NAME):
        raise InvalidArgument(
            f"the name of a timer is {_told(name)}",
            hint=f"give 1 to {MAX_TIMER_NAME} characters, or None for the unnamed one",
        )
    return name


MAX_TIMER_NAME: Final = 128


def whole_seconds(lifetime: float | timedelta | None) -> int | None:
    """Return a lifetime in seconds as it travels (DLG-10).

    Raises:
        InvalidArgument: it is not a whole number of seconds.
    """
    if lifetime is None:
        return None
    seconds = lifetime.total_seconds() if isinstance(lifetime, timedelta) else lifetime
    is_number = type(seconds) in (int, float)
    if is_number and -(2**62) < seconds < 2**62 and seconds == int(seconds):
        return int(seconds)
    raise InvalidArgument(
        f"lifetime is {lifetime!r}", hint="give whole seconds, or a timedelta of such"
    )
