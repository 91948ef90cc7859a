"""Log lines about connections: `broker.connection` and `broker.corrupted_message` (MON-16).

Reads:  connections.                            Calls: the log.
Never:  logs a body, or a line per message.
"""

from collections.abc import Sequence

from brokerd.ids import show
from brokerd.protocol.connection_effects import Closed, Outcome
from brokerd.protocol.items import BadItem
from brokerd.telemetry.log import Log
from brokerd.transport.connection import PeerConnection

EVENT = "broker.connection"


def log_connecting(log: Log, connection: PeerConnection) -> None:
    """Log the start of an attempt."""
    log.debug(EVENT, subclass="connecting", **_names(connection))


def log_online(log: Log, connection: PeerConnection) -> None:
    """Log a connection that has logged in."""
    subclass = "accept" if connection.machine.accepting else "connected"
    log.info(EVENT, subclass=subclass, **_names(connection))


def log_failed(log: Log, connection: PeerConnection, reason: str, detail: str) -> None:
    """Log a failed attempt."""
    names = _names(connection)
    log.warning(EVENT, subclass="connect_failed", reason=reason, error=detail, **names)


def log_ended(log: Log, connection: PeerConnection, end: Closed) -> None:
    """Log the end of a connection, with its traffic totals."""
    write = log.warning if end.outcome in (Outcome.LOST, Outcome.FAILED) else log.info
    write(
        EVENT,
        subclass="closed",
        outcome=end.outcome.name.lower(),
        reason=end.key,
        error=end.detail,
        fragments_sent=connection.fragments_sent,
        fragments_received=connection.fragments_received,
        boxcars_sent=connection.boxcars_sent,
        boxcars_received=connection.boxcars_received,
        bytes_sent=connection.bytes_sent,
        bytes_received=connection.bytes_received,
        **_names(connection),
    )


def log_corrupted(log: Log, connection: PeerConnection, bad: Sequence[BadItem]) -> None:
    """Log the items of one boxcar that were dropped because of bad headers (TRN-44)."""
    item = bad[0]
    log.warning(
        "broker.corrupted_message",
        reason=item.reason,
        items=len(bad),
        conversation_id=show(item.conversation_id) if item.conversation_id else None,
        remote=connection.remote,
    )


def _names(connection: PeerConnection) -> dict[str, object]:
    peer = connection.machine.peer
    return {
        "connection": connection.number,
        "address": connection.address,
        "remote": connection.remote,
        "peer": None if peer is None else show(peer.instance_id),
    }
