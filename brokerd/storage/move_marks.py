"""Move marks: the version of a store says that it was moved, or that it is still being copied.

PURE.   Reads: nothing.      Calls: nothing.
Never:  puts a password into a mark.

A mark stands where a store says which version it has. So every program refuses a marked store,
older ones included, and a mark comes and goes with one transaction (REL-61).
"""

import re
from typing import Final, NamedTuple

_MOVED: Final = re.compile(r"moved to (.*) \(copy ([0-9a-f]{32})\)", re.DOTALL)
_UNFINISHED: Final = re.compile(r"unfinished copy ([0-9a-f]{32}) of (.*)", re.DOTALL)


class Moved(NamedTuple):
    """The mark of a store that goes on elsewhere."""

    to: str
    """The place of the store that goes on, without a password."""
    copy: str
    """Number of the copy, in hexadecimal digits."""

    def show(self) -> str:
        """Return the text that a store has in place of its version."""
        return f"moved to {self.to} (copy {self.copy})"


class Unfinished(NamedTuple):
    """The mark of a copy that nobody may open yet."""

    copy: str
    of: str
    """The place of the store that was copied, without a password."""

    def show(self) -> str:
        """Return the text that a store has in place of its version."""
        return f"unfinished copy {self.copy} of {self.of}"


def read_mark(version: str) -> Moved | Unfinished | None:
    """Return the mark in the version of a store; None = it is not marked."""
    if (found := _MOVED.fullmatch(version)) is not None:
        return Moved(*found.groups())
    if (found := _UNFINISHED.fullmatch(version)) is not None:
        return Unfinished(*found.groups())
    return None
