"""Identity: the browsers that were let in, and the principal that sent a request (MON-27, MON-28).

Reads:  tokens and cookies of requests.      Calls: nothing.
Never:  keeps a token or a cookie as it is (only its hash), writes one to a file or to the log, or
        gives a right: the rights of a principal are looked up for each request.

A connection over a Unix socket or TLS has a principal of its own. One over plain TCP has none, so a
browser brings a token, which a client has asked for over its own connection, and gets a cookie for
it. Everything is in memory: after a restart, browsers need new tokens.
"""

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Final

import msgspec

from brokerd.clock import Clock
from brokerd.sessions.principals import Who

TOKEN_LIFETIME: Final = 600.0
"""Seconds in which a token can be used, once."""
MOST_TOKENS: Final = 256
"""Most unused tokens; the oldest gives way."""
MOST_TOKENS_OF_ONE: Final = 16
"""Most unused tokens of one principal, so that nobody pushes out the tokens of others."""
MOST_BROWSERS: Final = 256
"""Most browsers that are let in at a time; the one that was let in first gives way."""
MOST_BROWSERS_OF_ONE: Final = 32
_SECRET: Final = 32


class Browser(msgspec.Struct, frozen=True):
    """A browser that was let in."""

    who: Who
    csrf: str
    """Value that its pages send along with a POST."""
    until: float


class _Token(msgspec.Struct, frozen=True):
    who: Who
    until: float


class Browsers:
    """The tokens that can still be used, and the browsers that were let in."""

    def __init__(self, *, clock: Clock, random: Callable[[int], bytes], lifetime: float) -> None:
        """Create an empty list. `lifetime`: seconds for which a browser stays let in."""
        self._clock = clock
        self._random = random
        self._lifetime = lifetime
        self._key = random(_SECRET)
        self._tokens: dict[bytes, _Token] = {}
        self._browsers: dict[bytes, Browser] = {}

    def __len__(self) -> int:
        return len(self._browsers)

    def issue(self, who: Who) -> str:
        """Return a token that lets one browser in as the principal, once (MON-28)."""
        self._drop_expired()
        _make_room(self._tokens, who, MOST_TOKENS, MOST_TOKENS_OF_ONE)
        secret = self._random(_SECRET)
        until = self._clock.monotonic() + TOKEN_LIFETIME
        self._tokens[sha256(secret).digest()] = _Token(who, until)
        return secret.hex()

    def let_in(self, token: str) -> str | None:
        """Use up a token; return the cookie for the browser, or None if the token is not valid."""
        found = self._tokens.pop(_digest(token), None)
        now = self._clock.monotonic()
        if found is None or found.until <= now:
            return None
        self._drop_expired()
        _make_room(self._browsers, found.who, MOST_BROWSERS, MOST_BROWSERS_OF_ONE)
        secret = self._random(_SECRET)
        self._browsers[sha256(secret).digest()] = Browser(
            found.who, self.csrf_of(secret.hex()), now + self._lifetime
        )
        return secret.hex()

    def find(self, cookie: str) -> Browser | None:
        """Return the browser that has the cookie; None = it is not, or no longer, let in."""
        found = self._browsers.get(_digest(cookie))
        return None if found is None or found.until <= self._clock.monotonic() else found

    def leave(self, cookie: str) -> None:
        """Let a browser in no more."""
        self._browsers.pop(_digest(cookie), None)

    def csrf_of(self, of: str) -> str:
        """Return what the pages of a cookie, or of a principal, send along with a POST."""
        return hmac.new(self._key, of.encode(), sha256).hexdigest()

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        for table in (self._tokens, self._browsers):
            for key in [key for key, one in table.items() if one.until <= now]:
                del table[key]


def _make_room(
    table: dict[bytes, _Token] | dict[bytes, Browser], who: Who, most: int, of_one: int
) -> None:
    """Drop the oldest entry of the principal at its limit, and the oldest of all at theirs."""
    own = [key for key, one in table.items() if one.who == who]
    for key in own[: max(0, len(own) - of_one + 1)]:
        del table[key]
    for key in list(table)[: max(0, len(table) - most + 1)]:
        del table[key]


def _digest(secret: str) -> bytes:
    try:
        return sha256(bytes.fromhex(secret)).digest()
    except ValueError:
        return b""
