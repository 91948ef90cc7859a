"""Call sites: the line of the program that called a verb, for the note of its error (SDK-25).

Reads:  the stack.      Calls: nothing.
Never:  keeps a frame alive, or formats anything before an error asks for it.

A verb inside a transaction fails later than its call: with the next answer, or at the commit. The
traceback shows that place, so the error names the line that called the verb.
"""

import asyncio
import sys
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
    line: int

    def __str__(self) -> str:
        """Return the place of the call as text."""
        if self.code is None:
            return self.verb
        return f"{self.verb} at {self.code.co_filename}:{self.line}, in {self.code.co_qualname}"


def call_site(verb: str) -> Site:
    """Return the nearest caller that is no code of brokerd, up to the event loop."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if not name.startswith(_OWN):
            return (
                Site(verb, None, 0) if name.startswith(_LOOP) else Site(verb, code, frame.f_lineno)
            )
        frame = frame.f_back
    return Site(verb, None, 0)


def note(sites: list[Site]) -> str:
    """Return the note of an error of one of these calls, or of one of many; "" = nothing to say."""
    known = [one for one in sites if one.code is not None]
    if not known:
        return ""
    if len(known) == 1:
        return f"the failed verb: {known[0]}"
    shown = "; ".join(map(str, known[:MOST]))
    more = f"; and {len(known) - MOST} more" if len(known) > MOST else ""
    return f"one of the verbs failed: {shown}{more}"
