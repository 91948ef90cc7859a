"""Bodies: Python values to bytes and back, by the type that the program names (SDK-2).

PURE.  Calls: msgspec; for a pydantic model its own methods, found by their names.
Never:  guesses a type: a body is read as the type that the contract has for its message type.
"""

import typing
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, cast

import msgspec

from brokerd.client.messages import ABSENT, Body
from brokerd.errors import InvalidArgument

Kind = Any
"""The type of a body: a dataclass, a msgspec Struct, a pydantic model, `bytes`, None for no body,
or any other type that msgspec writes as JSON (`dict`, `list[int]`, a TypedDict, an enum, ...)."""


def encode(value: object) -> Body:
    """Return the body of a value: JSON, except that bytes stay bytes and None means no body.

    Raises:
        InvalidArgument: the value cannot be written as JSON.
    """
    if value is None:
        return ABSENT
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if _is_pydantic(type(value)):
        return cast("str", cast("Any", value).model_dump_json()).encode()
    try:
        return msgspec.json.encode(value)
    except TypeError as error:
        raise InvalidArgument(
            f"a {type(value).__name__} cannot be a body: {error}",
            hint="a body is a dataclass, a msgspec Struct, a pydantic model, or bytes",
        ) from None


def decode(body: bytes | None, kind: Kind) -> object:
    """Return the value of a body.

    Raises:
        ValueError: the body is not a value of the type `kind`.
    """
    if kind is None or kind is NoneType:
        if body:
            raise ValueError(f"no body is expected, and {len(body)} bytes came")
        return None
    if kind is bytes:
        return body or b""
    if _is_pydantic(kind):
        return kind.model_validate_json(body or b"")
    try:
        return cast("object", msgspec.json.decode(body or b"", type=kind))
    except msgspec.MsgspecError as error:  # not always a ValueError
        raise ValueError(str(error)) from None


def members(kind: Kind) -> tuple[Kind, ...]:
    """Return the members of a union; of any other type, the type itself.

    Raises: nothing.
    """
    origin: Any = typing.get_origin(kind)
    if origin is UnionType or origin is typing.Union:
        return typing.get_args(kind)
    return (kind,)


def type_name(kind: Kind) -> str:
    """Return the default name of the message type for a Python type: the name of the class.

    Raises:
        InvalidArgument: the type is not a class of a program, so a name has to be given.
    """
    name = getattr(kind, "__name__", None)
    if not isinstance(name, str) or not isinstance(kind, type) or kind.__module__ == "builtins":
        raise InvalidArgument(
            f"{kind!r} gives no name to a message type",
            hint='name it: Contract("...", initiator={"Order": bytes})',
        )
    return name


def named(kinds: Mapping[str, Kind] | typing.Iterable[Kind]) -> dict[str, Kind]:
    """Return types by message type: a copy of a mapping, or the given classes by their names.

    Raises:
        InvalidArgument: a type needs a name, because it is not a class of a program.
    """
    if isinstance(kinds, Mapping):
        return dict(kinds)
    return {type_name(kind): kind for kind in kinds}


def is_a(value: object, kind: Kind) -> bool:
    """Return whether the value may be sent as this type.

    Raises: nothing.
    """
    if kind is None or kind is NoneType:
        return value is None
    if kind is Any or kind is object:
        return True
    origin: Any = typing.get_origin(kind)
    plain: Any = kind if origin is None else origin
    return isinstance(plain, type) and not typing.is_typeddict(plain) and isinstance(value, plain)


def _is_pydantic(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")
