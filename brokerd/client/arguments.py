"""Arguments of verbs: checked by the client, and encoded for requests (SDK-18). PURE.

An argument of a wrong form fails at the call. Conditions that only the broker knows (states,
rights, existing names) are checked by the broker: their errors come with the answer, or at the
commit of a transaction whose verbs are only collected.

Reads:  arguments.     Calls: nothing.
Never:  asks the daemon.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from typing import Any, Final

from brokerd.client.messages import ABSENT, CURRENT_DATABASE, FOREVER, Body, Wait
from brokerd.errors import (
    DuplicateHandle,
    ErrorNeedsCodeAndText,
    InvalidArgument,
    InvalidLifetime,
    InvalidName,
    MessageTooLarge,
    NullBody,
)
from brokerd.ids import show
from brokerd.protocol.client_verbs import (
    FOREVER_MS,
    MAX_GROUPS,
    MAX_MESSAGES,
    MAX_TIMER_MS,
    MAX_WAIT_MS,
)
from brokerd.protocol.headers import Headers, find_problem
from brokerd.protocol.wire import MAX_ERROR

MAX_REMOTE_NAME: Final = 256
"""Maximum length of the name of a remote service, in characters (OBJ-8)."""
MAX_LIFETIME: Final = 2**31 - 1
MAX_ERROR_TEXT: Final = 3000
"""Maximum length of the description of an error, in characters (DLG-20)."""
MAX_TIMER_NAME: Final = 128
"""Maximum length of the name of a timer, in characters (PBT-23)."""
_NOTHING_SPECIAL: Final = (None,) * 5


# One value.


def wire_body(body: Body, limit: int) -> bytes | None:
    """Check a body and return it as a request contains it; None = no body.

    Raises:
        NullBody: the body is None.
        MessageTooLarge: the body has more than `limit` bytes.
        InvalidArgument: the body is not bytes.
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


def wire_headers(headers: Headers | None) -> dict[str, str | bytes] | None:
    """Check headers and return them as a request contains them; None = no headers (SND-26).

    Raises:
        InvalidArgument: a name or a value has the wrong form, or there are too many.
    """
    if not headers:
        return None
    _check_mapping(headers)
    given = {name: _plain(value) for name, value in headers.items()}
    problem = find_problem(given)
    if problem:
        raise InvalidArgument(f"headers: {problem}")
    return given


def _plain(value: Any) -> Any:  # noqa: ANN401  # checked afterwards
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def _check_mapping(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidArgument(
            f"headers are {type(headers).__name__}, not a mapping",
            hint='give names with their values: headers={"content-type": "application/json"}',
        )


def send_args(
    handles: bytes | list[bytes],
    message_type: str | None,
    body: bytes | None,
    headers: dict[str, str | bytes] | None,
) -> tuple[object, ...]:
    """Return the arguments of a `send` for a request: without headers as ever (CLP-167).

    Raises: nothing.
    """
    if headers is None:
        return handles, message_type, body
    return handles, message_type, body, headers


def wire_id(value: object, what: str) -> bytes:
    """Check an id and return it; `what`: the name of the argument, for the error.

    Raises:
        InvalidArgument: the id is not 16 bytes.
    """
    if type(value) is not bytes or len(value) != 16:  # noqa: PLR2004
        raise InvalidArgument(
            f"{what} is {_describe(value)}, not 16 bytes",
            hint="give what begin_dialog returned, or the handle of a message; of a text that is "
            "uuid.UUID(text).bytes",
        )
    return value


def wire_text(value: object, what: str) -> str:
    """Check a text and return it; `what`: the name of the argument, for the error.

    Raises:
        InvalidArgument: the value is not a text.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is {_describe(value)}, not a text", hint=f"name the {what}")
    return value


def wire_handles(value: bytes | Sequence[bytes]) -> bytes | list[bytes]:
    """Check one handle, or several of one atomic send or end, and return them (SND-8, DLG-47).

    Raises:
        InvalidArgument: a handle is not 16 bytes.
        DuplicateHandle: a handle is given twice.
    """
    if type(value) is bytes:
        return wire_id(value, "handle")
    if not isinstance(value, list | tuple) or not value:
        raise InvalidArgument(
            f"handle is {_describe(value)}, not 16 bytes and no list of such",
            hint="give what begin_dialog returned, or the handle of a message",
        )
    handles = [wire_id(each, "handle") for each in value]
    check_handles(handles)
    return handles


def _describe(value: object) -> str:
    """Return the type and the length of a wrong argument, for an error."""
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, bytes | str | list | tuple) else kind


def wire_wait(wait: Wait) -> int | None:
    """Return a wait in milliseconds for a request, rounded up; None = no wait.

    Raises:
        InvalidArgument: `wait` is not a duration, or out of range.
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
    """Return the time of a timer in milliseconds for a request, rounded up; None cancels (DLG-35).

    Raises:
        InvalidArgument: `after` is not a duration above 0, or out of range.
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
    """Check the name of a timer and return it; None = the unnamed timer (PBT-23).

    Raises:
        InvalidArgument: the name is not a text of 1 to 128 characters.
    """
    if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= MAX_TIMER_NAME):
        raise InvalidArgument(
            f"the name of a timer is {_describe(name)}",
            hint=f"give 1 to {MAX_TIMER_NAME} characters, or None for the unnamed one",
        )
    return name


def whole_seconds(lifetime: float | timedelta | None) -> int | None:
    """Return a lifetime in whole seconds, as it is sent to the daemon (DLG-10).

    Raises:
        InvalidArgument: the lifetime is not a whole number of seconds.
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


# Checks.


def check_services(from_service: object, to_service: object) -> int:
    """Check the names of both services; return the sum of their lengths in characters.

    Raises:
        InvalidArgument: a name is not a text.
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
    """Check that an end has both an error number and a description, or neither (DLG-20).

    Raises:
        ErrorNeedsCodeAndText: one of the two is missing, or the number is not above 0.
        InvalidArgument: one of the two has the wrong type, or is too large.
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
        DuplicateHandle: a handle is given twice.
    """
    if len(set(handles)) != len(handles):
        twice = next(at for at, one in enumerate(handles) if one in handles[:at])
        raise DuplicateHandle(f"handle {show(handles[twice])} at position {twice} is given twice")


def check_receive(queue: object, max_messages: object, groups: object, *, named: bool) -> None:
    """Check the queue and the limits of a receive (RCV-1, RCV-12, RCV-44).

    `named`: whether the receive names a conversation or a group.

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


# Whole verbs.


def as_wire(declared: object) -> Any:  # noqa: ANN401  # as deep as a declaration is
    """Return a declaration with the dates and times of TOML as text.

    The daemon then reports the key that does not accept such a value.

    Raises: nothing.
    """
    if isinstance(declared, Mapping):
        return {key: as_wire(value) for key, value in declared.items()}
    if isinstance(declared, list | tuple):
        return [as_wire(value) for value in declared]
    return declared.isoformat() if isinstance(declared, date | time) else declared


def dialog_options(
    *,
    contract: str | None,
    lifetime: float | timedelta | None,
    broker_id: bytes | str | None,
    related_conversation: bytes | None,
    related_group: bytes | None,
    encryption: bool | None,
) -> dict[str, object]:
    """Check the options of `begin_dialog` and return those that are given, as a map.

    Raises:
        InvalidArgument, InvalidLifetime: an option has the wrong form.
    """
    special = (broker_id, related_conversation, related_group, lifetime, encryption)
    if special == _NOTHING_SPECIAL:  # nearly always
        check_dialog(contract, None, None)
        return {} if contract is None else {"contract": contract}
    if isinstance(broker_id, str):
        if broker_id.upper() != CURRENT_DATABASE:
            raise InvalidArgument(
                f"broker_id {broker_id[:64]!r} is neither 16 bytes nor {CURRENT_DATABASE}",
                hint="session.welcome.broker_id is one; of a text it is uuid.UUID(text).bytes",
            )
        broker_id = b""
    elif broker_id is not None:
        wire_id(broker_id, "broker_id")
    for name, value in (("conversation", related_conversation), ("group", related_group)):
        if value is not None:
            wire_id(value, f"related_{name}")
    seconds = whole_seconds(lifetime)
    check_dialog(contract, seconds, encryption)
    given = {
        "contract": contract,
        "broker_id": broker_id,
        "related_conversation": related_conversation,
        "related_group": related_group,
        "lifetime": seconds,
        "encryption": encryption,
    }
    return {name: value for name, value in given.items() if value is not None}


def receive_args(
    queue: str,
    max_messages: int | None,
    conversation: bytes | None,
    group: bytes | None,
    *,
    wait_ms: int | None,
    groups: int = 1,
) -> tuple[object, ...]:
    """Check the arguments of a `receive` and return them for a request (RCV-1).

    Raises:
        InvalidArgument: an argument has the wrong form, or both selectors are given.
    """
    check_receive(queue, max_messages, groups, named=(conversation or group) is not None)
    if conversation is not None and group is not None:
        raise InvalidArgument(
            "a receive is of a conversation or of a group, not both",
            hint="leave one of the two selectors out",
        )
    if conversation is not None:
        wire_id(conversation, "conversation")
    if group is not None:
        wire_id(group, "group")
    args = (queue, max_messages, conversation, group, wait_ms)
    return args if groups == 1 else (*args, None, groups)
