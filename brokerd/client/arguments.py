"""Arguments of verbs, judged on this side: what cannot be right fails at the call (SDK-18).

Reads:  arguments.     Calls: nothing.
Never:  judges what only the broker knows: states, rights, names that are there. Those errors come
with the answer, in a transaction that is only collected with that of its commit.
"""

from collections.abc import Sequence
from typing import Final

from brokerd.errors import (
    DuplicateHandle,
    ErrorNeedsCodeAndText,
    InvalidArgument,
    InvalidLifetime,
    InvalidName,
)
from brokerd.ids import show
from brokerd.protocol.client_verbs import MAX_GROUPS, MAX_MESSAGES
from brokerd.protocol.wire import MAX_ERROR

MAX_REMOTE_NAME: Final = 256
"""Characters of a service elsewhere (OBJ-8)."""
MAX_LIFETIME: Final = 2**31 - 1
MAX_ERROR_TEXT: Final = 3000
"""Characters (DLG-20)."""


def check_services(from_service: object, to_service: object) -> int:
    """Check that both are names; return how many characters they have.

    Raises:
        InvalidArgument: one of them is no text.
        InvalidName: `to_service` is empty or too long.
    """
    if not isinstance(from_service, str):
        raise InvalidArgument(
            f"from_service is {type(from_service).__name__}, not a text",
            hint="name the local service in which's name the dialog is begun",
        )
    if not isinstance(to_service, str):
        raise InvalidArgument(
            f"to_service is {type(to_service).__name__}, not a text",
            hint="name the service to talk to",
        )
    if not 1 <= len(to_service) <= MAX_REMOTE_NAME:
        raise InvalidName(
            f"to_service {to_service[:64]!r} has {len(to_service)} characters",
            hint=f"name the service to talk to: 1 to {MAX_REMOTE_NAME} characters",
        )
    return len(from_service) + len(to_service)


def check_dialog(contract: object, lifetime: int | None, encryption: object) -> None:
    """Check the types of the options of a begin, and the range of the lifetime (DLG-10).

    Raises:
        InvalidLifetime: the lifetime is out of range.
        InvalidArgument: an option has the wrong type.
    """
    if contract is not None and not isinstance(contract, str):
        raise InvalidArgument(
            f"contract is {type(contract).__name__}, not a text",
            hint="give the name of a contract, or leave it out for DEFAULT",
        )
    if lifetime is not None and not 1 <= lifetime <= MAX_LIFETIME:
        raise InvalidLifetime(f"lifetime is 1 to {MAX_LIFETIME} seconds, not {lifetime}")
    if encryption not in (None, True, False):
        raise InvalidArgument(
            f"encryption is {encryption!r}",
            hint="give True, False, or None for the usual one",
        )


def check_end(handles: bytes | Sequence[bytes], error: object, description: object) -> None:
    """Check that an end has an error of number and text, or none (DLG-20).

    Raises:
        ErrorNeedsCodeAndText: one of the two is missing, or the number is not above 0.
        InvalidArgument: one has the wrong type, or is too large.
    """
    if error is None and description is None:
        return
    if error is not None and (not isinstance(error, int) or isinstance(error, bool)):
        raise InvalidArgument(
            f"error is {type(error).__name__}, not a number", hint=ErrorNeedsCodeAndText.hint
        )
    if description is not None and not isinstance(description, str):
        raise InvalidArgument(
            f"description is {type(description).__name__}, not a text",
            hint=ErrorNeedsCodeAndText.hint,
        )
    if error is None or description is None or error <= 0:
        handle = handles if isinstance(handles, bytes) else handles[0]
        raise ErrorNeedsCodeAndText(
            f"conversation {show(handle)} cannot end with error {error} and "
            f"{'a' if description is not None else 'no'} description"
        )
    if error > MAX_ERROR:
        raise InvalidArgument(
            f"error {error} is too large", hint=f"give a number from 1 to {MAX_ERROR}"
        )
    if len(description) > MAX_ERROR_TEXT:
        raise InvalidArgument(
            f"description has {len(description)} characters, of which {MAX_ERROR_TEXT} may be sent",
            hint="send what is longer as a message before the end",
        )


def check_handles(handles: Sequence[bytes]) -> None:
    """Check that no handle is given twice (SND-8, DLG-47).

    Raises:
        DuplicateHandle: one is.
    """
    if len(set(handles)) != len(handles):
        twice = next(at for at, one in enumerate(handles) if one in handles[:at])
        raise DuplicateHandle(f"handle {show(handles[twice])} at position {twice} is given twice")


def check_receive(queue: object, max_messages: object, groups: object, *, named: bool) -> None:
    """Check that a receive names its queue, and its limits (RCV-1, RCV-12, RCV-44).

    `named`: whether it names a conversation or a group.

    Raises:
        InvalidArgument: an argument has the wrong form.
    """
    if not isinstance(queue, str):
        raise InvalidArgument(
            f"queue is {type(queue).__name__}, not a text",
            hint="name the queue to receive from: brokerd queue ls",
        )
    if max_messages is not None and not _is_count(max_messages):
        raise InvalidArgument(
            f"max_messages is {max_messages!r}",
            hint=f"give 0 to {MAX_MESSAGES}, or None for as many as fit",
        )
    if not isinstance(groups, int) or not 1 <= groups <= MAX_GROUPS:
        raise InvalidArgument(
            f"groups is {groups!r}",
            hint=f"give how many conversation groups one call may take: 1 to {MAX_GROUPS}",
        )
    if named and groups != 1:
        raise InvalidArgument(
            "groups is for a receive of whatever is next",
            hint="leave it out where a conversation or a group is named",
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_MESSAGES
