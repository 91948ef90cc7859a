"""Arbitration: the choice of the connection to a peer that stays (TRN-22 to TRN-25).

Reads, calls: nothing. Never: closes or pings anything; the shell carries out the decision.

The accepting side of a connection decides about it. If both sides open a connection at the same
moment, each may grant the peer's connection before the verdict on its own arrives. `keeps_new` then
gives both the same answer, since it uses only facts that both know: which side opened which
connection, and both instance ids.
"""

from collections.abc import Iterable
from enum import Enum, auto

from msgspec import Struct

from brokerd.ids import InstanceId


class Rival(Struct, frozen=True):
    """Another connection to the same peer."""

    opened_here: bool
    online: bool


class Decision(Enum):
    """Decision of the accepting side about a connection whose login is complete."""

    GRANT = auto()
    """Accept the connection; rivals opened here and still in their login are closed."""
    REFUSE = auto()
    PROBE = auto()
    """Ping the ONLINE rival: an answer means REFUSE, silence GRANT over a stale one (TRN-25)."""


def arbitrate(*, me: InstanceId, peer: InstanceId, rivals: Iterable[Rival]) -> Decision:
    """Decide about a connection that `peer` opened to this side."""
    rivals = list(rivals)
    # An ONLINE rival stays, whichever side opened it, unless the ping shows that it is dead
    # (TRN-23, TRN-25); the instance ids decide only between logins in flight (TRN-24).
    if any(rival.online for rival in rivals):
        return Decision.PROBE
    if any(rival.opened_here for rival in rivals) and me < peer:
        return Decision.REFUSE
    return Decision.GRANT


def keeps_new(
    *, me: InstanceId, peer: InstanceId, over_stale: bool, rivals: Iterable[Rival]
) -> bool:
    """Return whether a connection opened here, just granted by `peer`, replaces the ONLINE ones.

    Against a connection that the peer opened, the one opened by the smaller instance id stays, on
    both sides (TRN-24). Against an older one opened here, the peer's later verdict counts.
    """
    accepted_online = any(rival.online and not rival.opened_here for rival in rivals)
    return over_stale or not accepted_online or me < peer
