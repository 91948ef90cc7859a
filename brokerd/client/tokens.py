"""Tokens: the numbers of one client's commits, by which a broker recognises a repeat. PURE.

The broker remembers the newest `OUTSTANDING` tokens of a client. A commit that may have to be
repeated must be among them, so no token is drawn that would push out the oldest one whose answer
is missing (CLP-52).

Reads:  nothing.     Calls: nothing.
Never:  draws a number twice.
"""

from typing import Final

from brokerd.protocol.client_frames import OUTSTANDING

NONE: Final = -1
"""The highest token of a client that has committed nothing."""


class Tokens:
    """The tokens of one client."""

    __slots__ = ("_next", "_oldest", "_outstanding", "highest_confirmed")

    def __init__(self) -> None:
        self._next = 0
        self._oldest = 0
        """A lower bound of the outstanding tokens, recomputed when the window seems full."""
        self._outstanding: set[int] = set()
        self.highest_confirmed = NONE
        """The highest token of a commit that is known to have taken effect."""

    def continue_from(self, highest: int) -> None:
        """Drop the outstanding tokens, and from now on draw only tokens above `highest`.

        `highest`: the highest token that the broker knows.

        Raises: nothing.
        """
        self._outstanding.clear()
        self._next = max(self._next, highest + 1)
        self._oldest = self._next
        self.highest_confirmed = highest

    def may_draw(self, reserved: int) -> bool:
        """Return whether a token may be drawn that leaves room for `reserved` more in the window.

        Raises: nothing.
        """
        window = OUTSTANDING - reserved
        if self._next - self._oldest < window:
            return True
        self._oldest = min(self._outstanding, default=self._next)
        return self._next - self._oldest < window

    def draw(self) -> int:
        """Return a new token, which is outstanding until it is confirmed or discarded.

        Raises: nothing.
        """
        token = self._next
        self._next = token + 1
        self._outstanding.add(token)
        return token

    def confirm(self, token: int) -> None:
        """Note that the commit of a token has taken effect.

        Raises: nothing.
        """
        self._outstanding.discard(token)
        if token > self.highest_confirmed:  # noqa: PLR1730  # `max` is a call for each commit
            self.highest_confirmed = token

    def discard(self, token: int) -> None:
        """Record that the commit of a token will not be repeated.

        The commit was refused, its outcome is unknown, or the token belongs to a receive.

        Raises: nothing.
        """
        self._outstanding.discard(token)

    def discard_all(self) -> None:
        """Note that no outstanding token will be repeated.

        Raises: nothing.
        """
        self._outstanding.clear()

    @property
    def are_settled(self) -> bool:
        """Whether no token is outstanding."""
        return not self._outstanding
