"""Views of the transport: connections, destinations, counters (MON-1, 8, 9, 12).

Reads:  the transport, and the send windows of dialogs in memory.      Calls: nothing.
Never:  queries a peer or the store, so only the number of messages that wait in the store is known.
"""

from collections.abc import Iterable, Mapping

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.delivery.forwarding.forwarder import Forwarder
from brokerd.delivery.incoming.dispatcher import Dispatcher
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.ids import show
from brokerd.model import DEFAULT_PRIORITY, HIGHEST_PRIORITY, LOWEST_PRIORITY
from brokerd.security.certificates import show_id
from brokerd.transport.connection import PeerConnection
from brokerd.transport.destination import DestinationState
from brokerd.transport.destinations import Destinations

Row = dict[str, object]


class _Waiting(msgspec.Struct):
    """The totals of the messages that wait for acknowledgement by one destination."""

    dialogs: int = 0
    messages: int = 0
    fragments: int = 0
    size: int = 0
    unsent_fragments: int = 0
    unsent_bytes: int = 0


class TransportViews:
    """Source of the rows of `connections`, `destinations` and `transport_counters`."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        destinations: Destinations,
        transmitter: Transmitter,
        dispatcher: Dispatcher,
        forwarder: Forwarder,
    ) -> None:
        self._brokers = brokers
        self._destinations = destinations
        self._transmitter = transmitter
        self._dispatcher = dispatcher
        self._forwarder = forwarder

    def connections(self) -> list[Row]:
        """Return a row for every open or closing connection (MON-1)."""
        peers = self._destinations.peers
        served: dict[PeerConnection, list[str]] = {}
        for one in self._destinations.known():
            if one.connection is not None:
                served.setdefault(one.connection, []).append(one.address)
        open_now = [*peers.connections.values(), *peers.closing.values()]
        return [_connection(one, sorted(served.get(one, []))) for one in open_now]

    def destinations(self) -> list[Row]:
        """Return a row for every address to which something was sent (MON-8)."""
        waiting = self._waiting()
        passing = self._forwarder.waiting()
        nothing = _Waiting()
        rows: list[Row] = []
        for one in self._destinations.known():
            status = self._destinations.status(one.address)
            is_suppressed = status.state is DestinationState.SUPPRESSED
            has = waiting.get(one.address, nothing)
            items, size = passing.get(one.address, (0, 0))
            rows.append(
                {
                    "address": one.address,
                    "peer_instance": show(status.peer) if status.peer is not None else None,
                    "state": str(status.state),
                    "suppressed_until": status.suppressed_until if is_suppressed else None,
                    "suppress_reason": status.reason or None if is_suppressed else None,
                    "status_key": status.reason,
                    "status_since": status.since,
                    "last_error": one.last_error or None,
                    "last_error_at": one.last_error_at,
                    "consecutive_failures": status.failures,
                    "pending_messages": has.messages,
                    "pending_fragments": has.fragments + items,
                    "pending_bytes": has.size + size,
                    "dialogs": has.dialogs,
                    "is_self": status.is_self,
                    "connect_attempts": one.attempts,
                    "connects": one.connects,
                    "losses": one.losses,
                    "failures_by_cause": dict(one.failed_by_cause),
                }
            )
        return rows

    def counters(self) -> list[Row]:
        """Return the row of gauges and totals of the whole transport (MON-9, MON-12)."""
        transport, dispatcher = self._destinations, self._dispatcher
        totals = transport.peers.totals()
        waiting = list(self._waiting().values())
        open_now = list(transport.peers.connections.values())
        levels = self._transmitter.sent_at_level
        causes: dict[str, int] = {}
        for one in transport.known():
            for cause, count in one.failed_by_cause.items():
                causes[cause] = causes.get(cause, 0) + count
        row: Row = {
            "open_connections": len(open_now),
            "current_bytes_for_send": sum(one.unsent_bytes for one in open_now),
            "pending_fragments_for_send": sum(one.unsent_fragments for one in waiting),
            "pending_bytes_for_send": sum(one.unsent_bytes for one in waiting),
            "pending_fragments_for_receive": dispatcher.buffered,
            "fragment_sends_total": totals.fragments_sent,
            "fragment_receives_total": totals.fragments_received,
        }
        for level in range(LOWEST_PRIORITY, HIGHEST_PRIORITY + 1):
            passed = (
                self._forwarder.report.sent if level == DEFAULT_PRIORITY else 0
            )  # always there (TRN-43)
            row[f"fragment_p{level}_sends_total"] = levels[level] + passed
        return [
            row
            | {
                "send_ios_total": totals.sends,
                "receive_ios_total": totals.receives,
                "send_io_bytes_total": totals.bytes_sent,
                "receive_io_bytes_total": totals.bytes_received,
                "boxcars_sent_total": totals.boxcars_sent,
                "boxcars_received_total": totals.boxcars_received,
                "connect_attempts_total": sum(one.attempts for one in transport.known()),
                "connects_total": sum(one.connects for one in transport.known()),
                "losses_total": sum(one.losses for one in transport.known()),
                "failures_by_cause": causes,
                "suppressed_destinations": sum(one.is_suppressed for one in transport.known()),
                "arbitrations_lost_total": transport.arbitrations_lost,
                "corrupted_items_total": transport.corrupted_items,
                "refused_connections_total": transport.endpoint.door.refused.total(),
            }
        ]

    def _waiting(self) -> dict[str, _Waiting]:
        found: dict[str, _Waiting] = {}
        for out in self._outgoing():
            if out.route.address is None or not out.pending:
                continue
            has = found.setdefault(out.route.address, _Waiting())
            has.dialogs += 1
            has.messages += out.pending
            fragments, size, unsent, unsent_size = out.window.held()
            has.fragments += fragments
            has.size += size
            has.unsent_fragments += unsent
            has.unsent_bytes += unsent_size
        return found

    def _outgoing(self) -> Iterable[Outgoing]:
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                if live.outgoing is not None:
                    yield live.outgoing


def _connection(one: PeerConnection, destinations: list[str]) -> Row:
    machine, peer = one.machine, one.machine.peer
    certificate = one.identity.certificate_id
    reads = one.has_stream and not one.is_receive_flow_controlled
    return {
        "connection_id": one.number,
        "transport_stream_id": one.number if one.has_stream else None,
        "state": int(machine.state),
        "state_desc": machine.state.name,
        "connect_time": one.connected_at,
        "login_time": one.online_at,
        "authentication_method": "CERTIFICATE" if one.identity.is_authenticated else "NONE",
        "principal_name": one.identity.name if one.cipher else None,
        "remote_user_name": None,
        "last_activity_time": one.last_activity_at,
        "is_accept": machine.accepting,
        "login_state": int(machine.login_state),
        "login_state_desc": machine.login_state.name.replace("_", " "),
        "peer_certificate_id": None if certificate is None else show_id(certificate),
        "encryption_algorithm": int(bool(one.cipher)),
        "encryption_algorithm_desc": one.cipher or "NONE",
        "receives_posted": int(reads),
        "is_receive_flow_controlled": one.is_receive_flow_controlled,
        "sends_posted": int(one.unsent_bytes > 0),
        "is_send_flow_controlled": one.is_send_flow_controlled,
        "total_bytes_sent": one.bytes_sent,
        "total_bytes_received": one.bytes_received,
        "total_fragments_sent": one.fragments_sent,
        "total_fragments_received": one.fragments_received,
        "total_sends": one.sends,
        "total_receives": one.receives,
        "peer_arbitration_id": show(peer.instance_id) if peer is not None else None,
        "peer_address": one.remote if one.has_stream else one.address,
        "destinations": destinations,
        "error": machine.error or None,
    }
