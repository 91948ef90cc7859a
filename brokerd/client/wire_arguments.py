"""Arguments of the larger verbs as they go on the wire, checked (SDK-18).

Reads:  arguments.     Calls: arguments, messages.      Never:  asks the daemon.
"""

from collections.abc import Mapping
from datetime import date, time, timedelta
from typing import Any, Final

from brokerd.client.arguments import check_dialog, check_receive
from brokerd.client.messages import CURRENT_DATABASE, whole_seconds, wire_id
from brokerd.errors import InvalidArgument


def as_wire(declared: object) -> Any:  # noqa: ANN401  # as deep as a declaration is
    """Return a declaration with the dates and times of TOML as text.

    The daemon then names the key for which they are no value.

    Raises: nothing.
    """
    if isinstance(declared, Mapping):
        return {key: as_wire(value) for key, value in declared.items()}
    if isinstance(declared, list | tuple):
        return [as_wire(value) for value in declared]
    return declared.isoformat() if isinstance(declared, date | time) else declared


_NOTHING_SPECIAL: Final = (None,) * 5


def dialog_options(
    *,
    contract: str | None,
    lifetime: float | timedelta | None,
    broker_id: bytes | str | None,
    related_conversation: bytes | None,
    related_group: bytes | None,
    encryption: bool | None,
) -> dict[str, object]:
    """Return the map of `begin_dialog`, with only what was given.

    Raises:
        InvalidArgument, InvalidLifetime: an option has the wrong form.
    """
    special = (broker_id, related_conversation, related_group, lifetime, encryption)
    if special == _NOTHING_SPECIAL:  # as nearly always
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
    """Return the arguments of `receive`, checked (RCV-1).

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
