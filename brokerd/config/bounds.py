"""Bounds of settings: the range of a number, size or duration, and the form of a text.

PURE.   Reads: nothing.      Calls: nothing.
`settings` annotates its fields with them; `loading` holds given values against them.
"""

from datetime import timedelta
from typing import Annotated, Final

import msgspec

MAX_SOCKET_PATH: Final = 107
"""Longest path of a Unix socket, in bytes."""


class Range(msgspec.Struct, frozen=True):
    """The range of a number, both ends included."""

    least: int
    most: int


class Size(Range, frozen=True):
    """The range of a number of bytes, which is written with a unit."""


class Span(msgspec.Struct, frozen=True):
    """The range of a duration, both ends included."""

    least: timedelta
    most: timedelta


class Pattern(msgspec.Struct, frozen=True):
    """The form that a text must have, and its description for messages."""

    regex: str
    meaning: str


MOMENT = Span(least=timedelta(milliseconds=1), most=timedelta(days=1))
AT_ONCE = Span(least=timedelta(0), most=timedelta(days=1))
Moment = Annotated[timedelta, MOMENT]
"""A duration from 1 ms to a day."""
Wait = Annotated[timedelta, AT_ONCE]
"""A duration from nothing to a day."""
Count = Annotated[int, Range(1, 10_000_000)]
