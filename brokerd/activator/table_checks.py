"""Table checks: compare a TOML table with a struct, and report problems by key and line. PURE.

Reads:  the types of the struct.      Calls: nothing.
Never:  stops at the first problem, or uses Python's names of types in messages.
"""

import enum
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec
from msgspec import NODEFAULT

from brokerd.config.toml_file import Problems, unknown_keys

_WORDS: Final = {
    "str": "a text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_KINDS: Final = re.compile(r"Expected `([a-z]+)(?: \| null)?`, got `([a-z]+)`")
_BOUND: Final = re.compile(r"Expected `int` (>=|<=) (\d+)")


def check_table(kind: type[msgspec.Struct], table: object, under: str, problems: Problems) -> None:
    """Record all problems that keep `table` from being a `kind`; `under`: the table's key."""
    if not isinstance(table, Mapping):
        problems.add(under, f"must be {_WORDS['object']}")
        return
    fields = msgspec.structs.fields(kind)
    unknown_keys(table, [one.encode_name for one in fields], under=under, problems=problems)
    for one in fields:
        place = f"{under}.{one.encode_name}" if under else one.encode_name
        if one.encode_name in table:
            _check_value(one.type, table[one.encode_name], place, problems)
        elif one.default is NODEFAULT and one.default_factory is NODEFAULT:
            problems.add(place, "is missing")


def _check_value(kind: Any, value: object, place: str, problems: Problems) -> None:  # noqa: ANN401
    """Record the problems of one value; `kind`: any type that a field of a struct may have."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        check_table(kind, value, place, problems)
        return
    below = _struct_of(kind)
    if below is not None and isinstance(value, list):
        for number, one in enumerate(value, start=1):
            check_table(below, one, f"{place}[{number}]", problems)
        return
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problems.add(place, _plain(str(error), kind))


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:  # noqa: ANN401
    """Return the struct type of a list's items; None = the type is not a list of structs."""
    if get_origin(kind) is not list:
        return None
    (found,) = get_args(kind)
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else None


def parsed(read: Callable[[str], object], text: object, place: str, problems: Problems) -> None:
    """Record the problem of a text that `read` cannot parse."""
    if isinstance(text, str):
        try:
            read(text)
        except ValueError as error:
            problems.add(place, str(error))


def _plain(text: str, kind: Any) -> str:  # noqa: ANN401
    """Return the library's error as text that tells the user what to write."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"must be one of: {', '.join(str(one.value) for one in kind)}"
    if found := _KINDS.match(text):
        wanted, got = (_WORDS.get(word, word) for word in found.groups())
        where = " in each of its places" if " - at `$[" in text else ""
        return f"must be {wanted}{where}, not {got}"
    if found := _BOUND.match(text):
        return f"must be at {'least' if found[1] == '>=' else 'most'} {found[2]}"
    if "of length >= 1" in text:
        return "must not be empty"
    if "matching regex" in text:
        return f"must be {_meaning(kind)}"
    return text


def _meaning(kind: Any) -> str:  # noqa: ANN401
    """Return the description of a pattern, from the annotations of its type."""
    if get_origin(kind) is Annotated:
        for one in get_args(kind)[1:]:
            if isinstance(one, msgspec.Meta) and one.description:
                return one.description
    return "of another form"
