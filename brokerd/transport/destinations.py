"""Destinations: the public part of the transport; connects, suppresses, pulls items and writes.

Reads:  nothing durable.            Calls: its listener, a `TransportEvents`.
Never:  keeps a fragment; fragments are pulled when the socket has room, and written at once.
Wakes:  on `notify`, when a socket has room, on the connect pass of every second tick.
Fails:  a destination fails alone, with a reason in its status (XMT-19).
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice
from random import Random

import msgspec

from brokerd.clock import SECOND, Clock, Instant
from brokerd.config.settings import EndpointState
from brokerd.ids import InstanceId
from brokerd.protocol.connection_effects import Closed, LoginState, Outcome, Received
from brokerd.protocol.frames import BadItem, Item
from brokerd.protocol.neighbour import Advice, GoodbyeReason, Hello, Reject, RejectReason, encode
from brokerd.telemetry.log import Log
from brokerd.transport.connection import PeerConnection
from brokerd.transport.destination import Destination, DestinationStatus
from brokerd.transport.dialer import Dialer
from brokerd.transport.door import Door
from brokerd.transport.endpoint import BrokerEndpoint, Lull
from brokerd.transport.endpoint_life import EndpointLife
from brokerd.transport.events import log_corrupted, log_ended, log_online
from brokerd.transport.login_guard import LoginGuard, Way
from brokerd.transport.meeting import Arrival, TransportEvents
from brokerd.transport.neighbours import Neighbours
from brokerd.transport.network import Network
from brokerd.transport.options import TransportOptions
from brokerd.transport.peers import Peers

MOST_KNOWN = 10_000
"""Destinations remembered while nothing leads there. Routes name few; but a TRANSPORT route takes
the address from the name of a service, which peers choose (RTE-62)."""
BOXCARS_PER_TURN = 4
"""Boxcars written to one connection before other work of the event loop gets its turn."""


class Destinations(EndpointLife, Neighbours):
    """All destinations of an instance, with its broker endpoint.

    `listen`: the addresses of the broker endpoint; without one there is no endpoint, and nothing is
    sent or received over the network (END-1)."""

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        hello: Hello,
        options: TransportOptions,
        events: TransportEvents,
        log: Log,
        listen: Iterable[str] = (),
        state: EndpointState = EndpointState.STARTED,
        guard: LoginGuard | None = None,
    ) -> None:
        """Create the destinations, their connections and the endpoint."""
        self.ignored_advice = 0
        """NOTICE, TRACE, ROLE and BROKERS frames of peers that are not trusted (SX-7)."""
        self.corrupted_items = 0
        self.arbitrations_lost = 0
        self.drain = options.drain
        self._clock = clock
        self._options = options
        self._events = events
        self._log = log
        self._known: dict[str, Destination] = {}
        self._bound: dict[PeerConnection, deque[Destination]] = {}
        self._pumping: set[PeerConnection] = set()
        self._receiving = True
        self._lull = Lull()
        self._changing = asyncio.Lock()
        self._is_up = False
        self.peers = Peers(
            hello=msgspec.structs.replace(hello, largest_frame=options.max_frame),
            clock=clock,
            options=options,
            authorise=self._authorise,
            sink=self,
            log=log,
            guard=guard,
        )
        self._dialer = Dialer(network=network, rng=rng, options=options, peers=self.peers, log=log)
        self.endpoint = BrokerEndpoint(
            network=network,
            factory=self._accept,
            door=Door("peers", options=options.door(), refusal=_refusal, clock=clock, log=log),
            log=log,
            addresses=listen,
            state=state,
        )

    def notify(self, address: str) -> None:
        """Send soon to an address with pending items, or connect at once if allowed (TRN-12)."""
        destination = self._destination(address)
        destination.pending = True
        if destination.connection is not None:
            self._pump_soon(destination.connection)
        elif destination.may_connect:
            self._dialer.connect(destination)

    def status(self, address: str) -> DestinationStatus:
        """Return state and reason of a destination; an address never used is idle."""
        known = self._known.get(address)
        if known is None:
            known = Destination(address, clock=self._clock, options=self._options)
        status = known.status()
        if self._dialer.running:
            return status
        why = self.endpoint.why_unavailable
        return msgspec.structs.replace(status, reason="transport_unavailable", detail=why)

    def is_online(self, address: str) -> bool:
        """Return whether a connection serves the address now."""
        known = self._known.get(address)
        return known is not None and known.connection is not None

    def last_heard_at(self, address: str) -> Instant | None:
        """Return when the peer's last frame arrived; None = no connection serves the address."""
        known = self._known.get(address)
        if known is None or known.connection is None:
            return None
        silent = self._clock.monotonic() - known.connection.machine.heard_at
        return Instant(self._clock.utc() - int(silent * SECOND))

    def clocks(self) -> list[tuple[str, float]]:
        """Return the name or address of each connected peer that reports its clock (TRN-47).

        With it, return the seconds by which that clock is ahead; negative = behind."""
        found: list[tuple[str, float]] = []
        for one in self.peers.online.values():
            if (ahead := one.clock_ahead) is not None:
                name = one.identity.name if one.identity.is_authenticated else ""
                found.append((name or one.address or one.place or one.remote, ahead))
        return found

    def is_suppressed(self, address: str) -> bool:
        """Return whether an address has failed and is not tried now (TRN-15, TRN-16)."""
        return self.status(address).suppressed_until is not None

    def own_addresses(self) -> frozenset[str]:
        """Return the addresses that the instance listens on, or that led back to it (RTE-42)."""
        listening = (one.address for one in self.listeners if one.address)
        led_back = (one.address for one in self._known.values() if one.is_self)
        return frozenset(address.lower() for address in (*listening, *led_back))

    def known(self) -> list[Destination]:
        """Return all destinations, with their figures."""
        return list(self._known.values())

    def connect_pass(self) -> int:
        """Retry failed listeners and connect due destinations, every second tick (END-17, TRN-14).

        Return the number of due destinations."""
        if self._is_up:
            for listener in self.endpoint.closed():
                self._dialer.spawn(self._open_again(listener))
        return self._dialer.connect_due(self._known.values())

    def close_idle(self) -> int:
        """End connections without traffic, every fifth tick; return their number (TRN-28)."""
        oldest = self._clock.monotonic() - self._options.idle_close.total_seconds()
        idle = [c for c in self.peers.online.values() if c.machine.last_activity <= oldest]
        for connection in idle:
            self.peers.leave(connection, GoodbyeReason.IDLE)
        return len(idle)

    def retry(self, address: str | None = None) -> int:
        """Clear suppression and connect now, for one address or all known addresses (NBT-8).

        Return the number of addresses."""
        chosen = list(self._known.values()) if address is None else [self._destination(address)]
        for destination in chosen:
            destination.release()
            destination.is_self = False
            if destination.may_connect:
                self._dialer.connect(destination)
        return len(chosen)

    def release(self, addresses: Iterable[str]) -> None:
        """Clear the suppression of addresses of new routes (NBT-8).

        Connect those with pending items."""
        for address in sorted(addresses):  # a set has no stable order (HK-1)
            known = self._known.get(address)
            if known is not None:
                known.release()
                if known.pending:
                    self._dialer.connect(known)

    def hand_back(self, peer: InstanceId, items: list[bytes]) -> bool:
        """Send items over a neighbour's open connection, without a route to it (NBT-1).

        False: the neighbour is not ONLINE, or its socket has no room; the items are not kept."""
        connection = self.peers.online.get(peer)
        if connection is None or not connection.is_writable:
            return False
        connection.send_boxcar(items)
        return True

    def pause_receiving(self) -> None:
        """Stop reading from all peers (TRN-34)."""
        self._receiving = False
        for connection in self.peers.online.values():
            connection.pause_receiving()

    def resume_receiving(self) -> None:
        """Resume reading from all peers."""
        self._receiving = True
        for connection in list(self.peers.connections.values()):
            connection.resume_receiving()

    # Called by `Peers`, as its sink.

    def on_online(self, connection: PeerConnection) -> None:
        """Let a connection serve every destination that leads to its peer (TRN-4, TRN-19)."""
        log_online(self._log, connection)
        if not self._receiving:
            connection.pause_receiving()
        bound = self._bound.setdefault(connection, deque())
        peer = connection.machine.peer
        for destination in list(self._known.values()):
            if destination.opening is connection and peer is not None:
                destination.opening = None
                destination.peer = peer.instance_id
                if destination.connection is None and destination not in bound:
                    self._bind(destination, connection)
            if destination not in bound and destination.is_served_by(connection):
                self._bind(destination, connection)
        if peer is not None:
            self._events.neighbour_met(peer.instance_id)

    def on_switched(self, old: PeerConnection, new: PeerConnection) -> None:
        """Move the destinations of a connection to another connection of the same peer (TRN-27)."""
        moved = self._bound.pop(old, deque())
        for destination in moved:
            destination.connection = new
        self._bound[new] = moved
        self._pump_soon(new)

    def on_received(self, connection: PeerConnection, boxcar: Received) -> None:
        """Count a boxcar, drop and log its bad items, and pass the others on (TRN-44)."""
        address = connection.address or connection.place
        source = self._known.get(address or "")
        if source is not None:
            source.boxcars_received += 1
            source.fragments_received += len(boxcar.items)
            source.bytes_received += boxcar.size
        items: list[Item] = []
        bad: list[BadItem] = []
        for item in boxcar.items:
            if isinstance(item, BadItem):
                bad.append(item)
            else:
                items.append(item)
        if bad:
            self.corrupted_items += len(bad)
            log_corrupted(self._log, connection, bad)
        headers = boxcar.headers
        if len(items) < len(headers):
            both = zip(boxcar.items, headers, strict=True)
            headers = [header for item, header in both if not isinstance(item, BadItem)]
        peer = connection.machine.peer
        assert peer is not None
        self._events.boxcar_arrived(Arrival(address, peer.instance_id, items, headers))

    def on_noticed(self, connection: PeerConnection, notice: Advice) -> None:
        """Pass a NOTICE, TRACE, ROLE or BROKERS on."""
        peer = connection.machine.peer
        if peer is None:
            return
        if connection.is_trusted:
            self._events.notice_arrived(peer.instance_id, notice)
        else:
            self.ignored_advice += 1

    def on_writable(self, connection: PeerConnection) -> None:
        """Resume sending on a connection whose socket has room."""
        self._pump_soon(connection)

    def on_ended(self, connection: PeerConnection, end: Closed) -> None:
        """Release the destinations of a connection; if it was lost, suppress them (TRN-15)."""
        log_ended(self._log, connection, end)
        served = self._bound.pop(connection, deque())
        for destination in served:
            if end.outcome is Outcome.LOST:
                destination.lost(end.key, end.detail)
            else:
                destination.closed()
            self._events.address_changed(destination.address, False)
        if end.detail == GoodbyeReason.RENEW.value:
            self._dialer.connect_again(served)
        peer = connection.machine.peer
        if peer is not None and peer.instance_id not in self.peers.online:
            self._events.neighbour_left(peer.instance_id)
        if end.outcome is Outcome.ARBITRATION:
            self.arbitrations_lost += 1
        opener = self._known.get(connection.address or "")
        if opener is not None and opener.opening is connection:
            opener.opening = None
            self._attempt_ended(opener, connection, end)
        self._lull.check_again()

    # Connecting.

    def _destination(self, address: str) -> Destination:
        found = self._known.get(address)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._forget_idle()
            found = Destination(address, clock=self._clock, options=self._options)
            self._known[address] = found
            for connection in self.peers.online.values():
                if connection.place == address and connection.may_serve(address):
                    self._bind(found, connection)
                    break
        return found

    def _forget_idle(self) -> None:
        """Forget the oldest destinations without a connection or an attempt, half of them all.

        What waits for one of them announces it again when it is next due."""
        idle = (one for one in self._known.values() if one.is_idle)
        for destination in list(islice(idle, MOST_KNOWN // 2)):
            del self._known[destination.address]
            if destination.due is not None:
                destination.due.cancel()

    def _attempt_ended(
        self, destination: Destination, connection: PeerConnection, end: Closed
    ) -> None:
        """Record the outcome of an attempt whose login ended before it came ONLINE."""
        peer = connection.machine.peer
        if end.outcome is Outcome.SELF:
            destination.is_self = True
            self._events.reached_self(destination.address)
        elif end.outcome is Outcome.FAILED:
            way = self._next_way(connection)
            if way is None:
                self._dialer.failed(destination, connection, end.key, end.detail)
            else:
                self._dialer.connect_otherwise(destination, way)
        elif peer is not None:
            destination.peer = peer.instance_id
            # The login lost to another connection of the same peer, which serves the address now.
            stays = self.peers.online.get(peer.instance_id)
            may = stays is not None and stays.may_serve(destination.address, was_dialled=True)
            if stays is not None and may and destination.connection is None:
                self._bind(destination, stays)

    def _next_way(self, connection: PeerConnection) -> Way | None:
        """Return how to try once more in this attempt; None = it has failed."""
        if self.peers.guard is None or connection.address is None:
            return None
        return self.peers.guard.next_way(
            connection.way,
            connection.address,
            rejected=connection.machine.rejected,
            certificate_refused=connection.was_certificate_refused,
        )

    def _bind(self, destination: Destination, connection: PeerConnection) -> None:
        destination.served_by(connection)
        destination.pending = True
        self._bound.setdefault(connection, deque()).append(destination)
        self._events.address_changed(destination.address, True)
        self._pump_soon(connection)

    # Sending.

    def _pump_soon(self, connection: PeerConnection) -> None:
        if connection not in self._pumping:
            self._pumping.add(connection)
            asyncio.get_running_loop().call_soon(self._pump, connection)

    def _pump(self, connection: PeerConnection) -> None:
        """Write boxcars for the destinations of a connection in turn (TRN-31, TRN-32)."""
        self._pumping.discard(connection)
        written = 0
        bound = self._bound.get(connection)
        while bound and connection.is_writable and any(d.pending for d in bound):
            if written == BOXCARS_PER_TURN:
                self._pump_soon(connection)
                return
            destination = bound[0]
            bound.rotate(-1)  # before sending, so that each destination gets its turn
            written += self._send_boxcar(destination, connection)
        self._lull.check_again()

    def _send_boxcar(self, destination: Destination, connection: PeerConnection) -> int:
        if not destination.pending:
            return 0
        options = self._options
        peer = connection.machine.peer
        theirs = options.max_frame if peer is None else peer.largest_frame
        largest = min(options.max_frame, theirs)
        room = min(options.boxcar_bytes, largest - 1)
        items = self._events.fill(destination.address, room, options.boxcar_fragments)
        if not items:
            destination.pending = False
            return 0
        destination.bytes_sent += connection.send_boxcar(items)
        destination.fragments_sent += len(items)
        destination.boxcars_sent += 1
        return 1

    # Listening and stopping.

    def _accept(self) -> asyncio.Protocol:
        return self.peers.make(None).stream_protocol()


def _refusal(_text: str) -> bytes:
    """Return the REJECT frame for a peer that the door refuses (NBT-20)."""
    return encode(Reject(RejectReason.TOO_MANY.value, LoginState.WAIT_LOGIN_NEGOTIATE.name.lower()))
