"""Call sites: the line of the program that called a verb, for the note of its error (SDK-25).

Reads:  the stack.      Calls: nothing.
Never:  keeps a frame alive, or formats anything before an error asks for it.

A verb inside a transaction fails later than its call: with the next answer, or at the commit. The
traceback shows that place, so the error names the line that called the verb.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

_OWN: Final = f"{Path(__file__).parents[1]}/"
_LOOP: Final = f"{Path(asyncio.__file__).parent}/"
MOST: Final = 4
"""Largest number of call sites that one note names."""


class Site(NamedTuple):
    """The call of a verb."""

    verb: str
    code: CodeType | None
    """The code of the caller outside the SDK; None = there is none."""
    at: int
    """Offset of the instruction; below 0 = the beginning of the function."""

    @property
    def line(self) -> int:
        """The line of the call; to find it takes longer than the call of many a verb."""
        if self.code is None:
            return 0
        lines = (line for start, end, line in self.code.co_lines() if start <= self.at < end)
        return next(lines, None) or self.code.co_firstlineno

    def __str__(self) -> str:
        """Return the place of the call as text."""
        if self.code is None:
            return self.verb
        return f"{self.verb} at {self.code.co_filename}:{self.line}, in {self.code.co_qualname}"


_make: Final[Callable[[type[Site], tuple[str, CodeType, int]], Site]] = tuple.__new__
"""Makes a `Site` without the checks of its constructor."""


def call_site(verb: str, handler: CodeType | None = None, depth: int = 3) -> Site:
    """Return the nearest caller that is no code of brokerd, up to the event loop.

    `handler`: the code to name if there is none. `depth`: number of callers that are surely of
    brokerd. Every verb of a transaction calls this, so it looks at as few frames as it can, and
    classifies each file only once.

    Raises: nothing.
    """
    frame: FrameType | None = sys._getframe(depth)
    places = _PLACES
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        place = places[file] if file in places else _classify(file)
        if place == _PROGRAM:
            return _make(Site, (verb, code, frame.f_lasti))
        if place == _OF_LOOP:
            break
        frame = frame.f_back
    return Site(verb, handler, -1)


_OF_SDK, _OF_LOOP, _PROGRAM = range(3)
"""The owners of code: the SDK, the event loop, the program.

No enum: in Python 3.11 each look at a member is the call of a function."""
_PLACES: Final[dict[str, int]] = {}
_MOST_PLACES: Final = 4096


def _classify(file: str) -> int:
    if len(_PLACES) >= _MOST_PLACES:  # of a program that makes code as it runs
        _PLACES.clear()
    place = _OF_SDK if file.startswith(_OWN) else _PROGRAM
    _PLACES[file] = _OF_LOOP if file.startswith(_LOOP) else place
    return _PLACES[file]


def note(sites: list[Site]) -> str:
    """Return the note of an error of one of these calls, or of one of many; "" = nothing to say.

    Raises: nothing.
    """
    known = [one for one in sites if one.code is not None]
    if not known:
        return ""
    if len(known) == 1:
        return f"the failed verb: {known[0]}"
    shown = "; ".join(map(str, known[:MOST]))
    more = f"; and {len(known) - MOST} more" if len(known) > MOST else ""
    return f"one of the verbs failed: {shown}{more}"
