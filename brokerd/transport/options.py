"""Settings of the transport and the endpoint, under their names in the configuration.

The defaults are those in the Numbers table of the network chapter. Times are `timedelta`, as in the
settings; on the wire and in the protocol machine they are seconds.
"""

from datetime import timedelta
from typing import Final

import msgspec

from brokerd.protocol.backoff import SUPPRESS_FAILED, SUPPRESS_LOST, SuppressMode
from brokerd.protocol.connection_effects import Limits
from brokerd.protocol.wire import FRAME_LIMIT
from brokerd.transport.door import DoorOptions

MOST_AT_ONCE: Final = 10
"""Number of destinations due in one pass beyond which their attempts are spread (TRN-21)."""


class TransportOptions(msgspec.Struct, frozen=True):
    """Settings `transport.*`, and `drain` of `endpoint.*`."""

    connect_timeout: timedelta = timedelta(seconds=10)
    login_timeout: timedelta = timedelta(seconds=10)
    suppress_lost: timedelta = SUPPRESS_LOST
    suppress_failed: timedelta = SUPPRESS_FAILED
    suppress_mode: SuppressMode = SuppressMode.FLAT
    suppress_after_goodbye: bool = False
    connect_spread: timedelta = timedelta(seconds=2)
    idle_close: timedelta = timedelta(seconds=90)
    ping_after: timedelta = timedelta(seconds=20)
    ping_timeout: timedelta = timedelta(seconds=10)
    arbitration_ping: timedelta = timedelta(seconds=5)
    boxcar_bytes: int = 128 * 1024
    boxcar_fragments: int = 512
    max_frame: int = FRAME_LIMIT
    send_mark: int = 256 * 1024
    destination_memory: int = 4 * 1024 * 1024
    """Limit of encoded bytes not yet sent; it must hold `send_mark` and a boxcar (TRN-36)."""
    max_peers: int = 256
    """Limit of connections accepted from peers (END-18)."""
    max_per_address: int = 64
    max_logins: int = 64
    """Limit of accepted connections that have not logged in (END-18)."""
    max_logins_per_address: int = 16
    allow_plaintext: bool = False
    """Whether plain TCP is allowed to and from other machines, too (SEC-10)."""
    drain: timedelta = timedelta(seconds=5)
    """Setting `endpoint.drain` (END-5)."""

    def door(self) -> DoorOptions:
        """Return the limits on accepted connections."""
        return DoorOptions(
            most=self.max_peers,
            per_address=self.max_per_address,
            logins=self.max_logins,
            logins_per_address=self.max_logins_per_address,
        )

    def limits(self) -> Limits:
        """Return the limits of a single connection, in seconds."""
        return Limits(
            login=self.login_timeout.total_seconds(),
            ping_after=self.ping_after.total_seconds(),
            ping_timeout=self.ping_timeout.total_seconds(),
            arbitration_ping=self.arbitration_ping.total_seconds(),
            goodbye=self.drain.total_seconds(),
        )
