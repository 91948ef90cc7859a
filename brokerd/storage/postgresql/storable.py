"""Storable: texts with U+0000, which PostgreSQL cannot store, in a form that it can (REL-55).

Reads:  nothing.      Calls: nothing.
Never:  changes a text that comes back, or lets two texts become one.

A peer chooses the names in its messages, so such a text must neither stop the daemon nor come back
as another one: a message type is part of what is signed. U+0000 is stored as `_MARK` and `0`, and
the mark itself, a code point that Unicode gives to no character, as `_MARK` and `1`.
"""

from collections.abc import Sequence
from typing import Any, Final

_MARK: Final = "\ufdd0"
_NUL: Final = "\0"
_STORED_NUL: Final = _MARK + "0"
_STORED_MARK: Final = _MARK + "1"


def storable(value: Any) -> Any:  # noqa: ANN401  # any value that can be bound
    """Return the value in a form that the server can store."""
    if isinstance(value, str) and (_NUL in value or _MARK in value):
        return value.replace(_MARK, _STORED_MARK).replace(_NUL, _STORED_NUL)
    return value


def storable_rows(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return the rows in a form that the server can store: nearly always as they are."""
    for column in zip(*rows, strict=True):
        # One look at a whole column: a flush has thousands of values.
        joined = "".join([value for value in column if isinstance(value, str)])
        if _NUL in joined or _MARK in joined:
            return [tuple(map(storable, row)) for row in rows]
    return rows


def as_given(rows: list[tuple[Any, ...]], texts: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return rows of the server with all texts as they were given.

    `texts`: the indexes of the columns that are texts.
    """
    for at in texts:
        if _MARK in "".join([row[at] for row in rows if row[at] is not None]):
            return [tuple(map(_as_given, row)) for row in rows]
    return rows


def _as_given(value: Any) -> Any:  # noqa: ANN401  # any value of a row
    if isinstance(value, str) and _MARK in value:
        return value.replace(_STORED_NUL, _NUL).replace(_STORED_MARK, _MARK)
    return value
