"""Dialer: opens the connections of one client, retrying with growing delays (CLP-50).

Reads:  the clock.     Calls: client.connection.
Never:  repeats a request. It returns a connection, or raises the reason why it has none.
Fails:  at a deadline with the error of the last attempt, at once if the daemon refuses for good.
"""

import errno
from random import Random
from typing import Final

from brokerd.client.address import Alternatives, Connector
from brokerd.client.connection import Connection, Listener, open_connection
from brokerd.client.tls import NotEncrypted
from brokerd.clock import Clock
from brokerd.errors import BrokerError, ConnectionLost, TooManyOpenFiles
from brokerd.protocol.client_frames import Welcome

_LATE: Final = 60.0
"""Seconds after which an abandoned HELLO has reached the daemon, or never will."""
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 5.0
_NEVER: Final = float("-inf")
_PLAIN: Final = (
    "on loopback, or with clients.trust_network, the daemon does not encrypt: leave the TLS files "
    "out (--tls-..., BROKERD_TLS_..., tls=); elsewhere see whether the address is right"
)


class Dialer:
    """The opener of one client's connections, one after another."""

    def __init__(self, *, connector: Connector, hello: bytes, clock: Clock, rng: Random) -> None:
        self._connector = connector
        self._others = connector.others if isinstance(connector, Alternatives) else 0
        self._hello = hello
        self._clock = clock
        self._rng = rng
        self._abandoned_at = _NEVER

    async def connect(self, deadline: float, *, listener: Listener) -> tuple[Connection, Welcome]:
        """Open a connection, retrying until the deadline; return it with the daemon's WELCOME.

        `deadline`: in seconds of the monotonic clock.

        Raises:
            ConnectionLost: the last attempt failed.
            BrokerError: the refusal of the daemon.
        """
        attempt, others = 0, self._others
        while True:
            try:
                return await open_connection(
                    self._connector, self._hello, listener=listener, clock=self._clock
                )
            except OSError as error:
                failure: BrokerError = _explain(error)
            except BrokerError as error:
                if not error.retryable:
                    raise
                failure = error
                # The daemon may read this attempt's HELLO later, and then drops a newer connection.
                self._abandoned_at = self._clock.monotonic()
            if others:  # another daemon of the instance may let it in at once
                others -= 1
                continue
            others = self._others
            at = self._clock.monotonic() + self.delay(attempt)
            if at > deadline:
                raise failure
            await self._clock.sleep_until(at)
            attempt += 1

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after attempt 0, 1, 2, ...

        Raises: nothing.
        """
        return reconnect_delay(attempt, self._rng)

    def replaced_itself(self) -> bool:
        """Return whether an abandoned HELLO may have taken this client id (CLP-14).

        An abandoned HELLO explains the loss of only one connection, so this call forgets it.

        Raises: nothing.
        """
        is_recent = self._clock.monotonic() < self._abandoned_at + _LATE
        self._abandoned_at = _NEVER
        return is_recent


def reconnect_delay(attempt: int, rng: Random) -> float:
    """Return the seconds to wait after attempt 0, 1, 2, ...: doubling up to 5, half of it random.

    Raises: nothing.
    """
    longest = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(attempt, 16))
    return longest * (0.5 + rng.random() / 2)


def _explain(error: OSError) -> ConnectionLost:
    """Return `TooManyOpenFiles` for a lack of descriptors, otherwise `ConnectionLost`."""
    if error.errno == errno.EMFILE:
        return TooManyOpenFiles(f"this process may open no more files: {error}")
    if error.errno == errno.ENFILE:
        return TooManyOpenFiles(f"this machine may open no more files: {error}")
    return ConnectionLost(str(error), hint=_PLAIN if isinstance(error, NotEncrypted) else None)
