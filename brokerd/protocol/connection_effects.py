"""States of a transport connection, and the effects that it asks its shell for (TRN-5, TRN-6).

Reads, calls: nothing. Never: acts; `protocol.connection` makes the effects, the shell acts.
"""

from enum import Enum, IntEnum, StrEnum, auto

from msgspec import Struct

from brokerd.protocol.frames import BadItem, Header, Item
from brokerd.protocol.neighbour import Advice, Hello, RejectReason


class State(IntEnum):
    """Connection state (TRN-5)."""

    NEW = 1
    CONNECTING = 2
    CONNECTED = 3
    LOGGED_IN = 4
    CLOSED = 5


class LoginState(IntEnum):
    """Login state (TRN-6), as far as brokerd enters it."""

    INITIAL = 0
    WAIT_LOGIN_NEGOTIATE = 1
    WAIT_PRE_MASTER_SECRET = 9
    """The TLS handshake runs."""
    WAIT_VALIDATION = 10
    WAIT_ARBITRATION = 11
    ONLINE = 12
    ERROR = 13


class Outcome(Enum):
    """Outcome of a connection, which decides about suppression (TRN-15 to TRN-18)."""

    ORDERLY = auto()
    """The connection ended with a GOODBYE; by default nothing is suppressed."""
    ARBITRATION = auto()
    """Another connection to this peer stays; this is not a failure."""
    SELF = auto()
    """The connection led back to this instance (TRN-26)."""
    FAILED = auto()
    """The attempt failed: the connection never came ONLINE."""
    LOST = auto()
    """The connection was ONLINE and broke."""


class LoginOutcome(StrEnum):
    """Outcome of a login, as it is audited (SEC-12)."""

    SUCCESS = "success"
    PROTOCOL_ERROR = "protocol_error"
    FORMAT_ERROR = "format_error"
    NEGOTIATE_FAILURE = "negotiate_failure"
    AUTHENTICATION_FAILURE = "authentication_failure"
    AUTHORIZATION_FAILURE = "authorization_failure"


class Refusal(Struct, frozen=True):
    """A login that this side refuses: the reason for the peer, and the details for this side."""

    reason: RejectReason
    detail: str = ""


class Limits(Struct, frozen=True):
    """Time limits of a connection, in seconds (TRN-9, TRN-25, TRN-30, END-5)."""

    login: float = 10.0
    tls: float = 5.0
    """Share of `login` for the TLS handshake."""
    pairing: float = 60.0
    """Time for a pairing, once the far end has proven that it has the code (SEC-62)."""
    ping_after: float = 20.0
    ping_timeout: float = 10.0
    arbitration_ping: float = 5.0
    goodbye: float = 5.0
    """Longest wait for the answer to a GOODBYE."""


class Write(Struct, frozen=True):
    """Send these bytes."""

    data: bytes


class AskArbitration(Struct, frozen=True):
    """On the accepting side: call `arbitrated` with the verdict, now or later."""

    peer: Hello


class AskSettlement(Struct, frozen=True):
    """On the connecting side, after the peer's grant: call `settled` before the next effect."""

    peer: Hello
    over_stale: bool


class CameOnline(Struct, frozen=True):
    """The connection is ONLINE: fragments may be sent."""

    peer: Hello


class Received(Struct, frozen=True):
    """A boxcar arrived; `size` is its payload in bytes."""

    items: list[Item | BadItem]
    size: int
    headers: list[Header] = []  # msgspec copies it
    """Headers of the items, as received; a forwarder passes them on (FWD-14)."""


class PairingArrived(Struct, frozen=True):
    """A PAIR frame of a far end that has not logged in arrived (SEC-62)."""

    payload: bytes


class Noticed(Struct, frozen=True):
    """A NOTICE, TRACE, ROLE or BROKERS frame arrived (NBT-4, NBT-7, RTE-55, TRN-46)."""

    notice: Advice


class ProbeAnswered(Struct, frozen=True):
    """A probed connection is alive, so it stays (TRN-23)."""


class Closed(Struct, frozen=True):
    """The connection is closed and sends nothing more: flush the writes, then close the stream."""

    outcome: Outcome
    key: str
    """A key of XMT-19, or "" if nothing has failed."""
    detail: str


class Breathe(Struct, frozen=True):
    """Let other work of the loop run before taking the next effect of this read."""


Effect = (
    Write
    | AskArbitration
    | AskSettlement
    | CameOnline
    | Received
    | PairingArrived
    | Noticed
    | ProbeAnswered
    | Closed
)
