"""Arbitration: which of several connections to one peer stays (TRN-22 to TRN-25).

Reads, calls: nothing. Never: closes or pings anything; the shell does what these answers say.

The accepting side of a connection decides about it. Where both sides open one at the same moment
each may grant the other's before it hears of its own being granted; `keeps_new` then gives both
the same answer, since it uses only what both know: who opened which, and both instance ids.
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
    """What the accepting side does with a connection whose login is complete."""

    GRANT = auto()
    """It wins; rivals opened here and still in their login are closed."""
    REFUSE = auto()
    PROBE = auto()
    """Ping the ONLINE rival: an answer means REFUSE, silence GRANT over a stale one (TRN-25)."""


def arbitrate(*, me: InstanceId, peer: InstanceId, rivals: Iterable[Rival]) -> Decision:
    """Decide about a connection that `peer` opened to this side."""
    rivals = list(rivals)
    if any(rival.online for rival in rivals):
        return Decision.PROBE
    if any(rival.opened_here for rival in rivals) and me < peer:
        return Decision.REFUSE
    return Decision.GRANT


def keeps_new(
    *, me: InstanceId, peer: InstanceId, over_stale: bool, rivals: Iterable[Rival]
) -> bool:
    """Whether a connection opened here and now granted by `peer` replaces what is ONLINE here.

    Against one the peer opened, the smaller instance id's connection stays, on both sides
    (TRN-24). Against an older one opened here the peer's later word counts.
    """
    accepted_online = any(rival.online and not rival.opened_here for rival in rivals)
    return over_stale or not accepted_online or me < peer
