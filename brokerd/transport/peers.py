"""Peers: every open connection, and which one is ONLINE for each peer instance (TRN-4).

Reads:  the state of its connections.           Calls: `protocol.arbitration`, its `Sink`.
Never:  knows of addresses or suppression; `transport.destinations` does, behind the `Sink`.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Protocol

import msgspec

from brokerd.clock import Clock
from brokerd.ids import InstanceId
from brokerd.protocol.arbitration import Decision, Rival, arbitrate, keeps_new
from brokerd.protocol.connection import Connection
from brokerd.protocol.connection_effects import Closed, Outcome, Received, Refusal
from brokerd.protocol.neighbour import Advice, GoodbyeReason, Hello, RejectReason, Verdict
from brokerd.telemetry.log import Log
from brokerd.transport.connection import PeerConnection
from brokerd.transport.login_guard import LoginGuard, Way
from brokerd.transport.options import TransportOptions
from brokerd.transport.pairing import Invites

Authorise = Callable[[PeerConnection, Hello], Refusal | None]
"""Function that returns why a peer may not use this endpoint; None = it may (SEC-6, SEC-10)."""


class Sink(Protocol):
    """The part that sends and receives over the connections (`transport.destinations`)."""

    def on_online(self, connection: PeerConnection) -> None:
        """Use a connection that carries fragments from now on."""
        ...

    def on_switched(self, old: PeerConnection, new: PeerConnection) -> None:
        """Move traffic, without loss, to another connection of the same peer (TRN-27)."""
        ...

    def on_received(self, connection: PeerConnection, boxcar: Received) -> None:
        """Process a boxcar."""
        ...

    def on_noticed(self, connection: PeerConnection, notice: Advice) -> None:
        """Process a NOTICE, TRACE, ROLE or BROKERS."""
        ...

    def on_writable(self, connection: PeerConnection) -> None:
        """Resume sending on a connection whose socket has room."""
        ...

    def on_ended(self, connection: PeerConnection, end: Closed) -> None:
        """Release a connection that has ended."""
        ...


class Totals(msgspec.Struct):
    """Totals of the traffic of all connections since the start (MON-12)."""

    fragments_sent: int = 0
    fragments_received: int = 0
    boxcars_sent: int = 0
    boxcars_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    sends: int = 0
    receives: int = 0

    def add(self, one: "PeerConnection | Totals") -> None:
        """Add the figures of a connection or of other totals."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(one, name))


class Peers:
    """The owner of all connections: creates them, keeps them until they end, and arbitrates."""

    def __init__(
        self,
        *,
        hello: Hello,
        clock: Clock,
        options: TransportOptions,
        authorise: Authorise,
        sink: Sink,
        log: Log,
        guard: LoginGuard | None = None,
    ) -> None:
        self.hello = hello
        """HELLO of connections created from now on."""
        self.online: dict[InstanceId, PeerConnection] = {}
        self.connections: dict[int, PeerConnection] = {}
        self.closing: dict[int, PeerConnection] = {}
        """Ended connections whose stream still writes its last bytes."""
        self._clock = clock
        self._options = options
        self._authorise = authorise
        self._sink = sink
        self._log = log
        self.guard = guard
        """Decides about logins; None = every peer is let in, unencrypted."""
        self.invites: Invites | None = None
        """The part that pairs far ends without a certificate; set by `instance.pairing_parts`."""
        self._numbers = count(1)
        self._ended = Totals()
        self._waiting: dict[InstanceId, list[PeerConnection]] = {}

    def make(self, address: str | None, way: Way | None = None) -> PeerConnection:
        """Create a connection to a destination, or an accepted one (`address` None).

        `way`: how to open the stream; None = as is to be tried first."""
        number = next(self._numbers)
        if way is None:
            way = Way.PLAIN if self.guard is None else self.guard.first_way
        connection = PeerConnection(
            number=number,
            address=address,
            machine=Connection(
                accepting=address is None,
                hello=self.hello,
                limits=self._options.limits(),
                authorise=partial(self._authorise_number, number),
            ),
            owner=self,
            loop=asyncio.get_running_loop(),
            clock=self._clock,
            options=self._options,
            log=self._log,
            guard=self.guard,
            way=way,
        )
        connection.invites = self.invites
        self.connections[connection.number] = connection
        return connection

    def totals(self) -> Totals:
        """Return the totals of all connections, including those that have ended."""
        totals = msgspec.structs.replace(self._ended)
        for one in self.connections.values():
            totals.add(one)
        return totals

    def drop(self, connection: PeerConnection) -> None:
        """Remove a connection that never got a stream."""
        self.connections.pop(connection.number, None)

    def leave(self, connection: PeerConnection, reason: GoodbyeReason) -> None:
        """Say GOODBYE on a connection, which serves no destination from now on.

        The connection leaves `online` first, so that a login that waits for its place can be
        granted."""
        peer = _peer_of(connection)
        served = peer is not None and self.online.get(peer) is connection
        if peer is not None and served:
            del self.online[peer]
        connection.say_goodbye(reason)
        if peer is not None:
            self._grant_waiting(peer, connection, served=served, stale=False)

    # Called by connections, as their owner.

    def ask_arbitration(self, connection: PeerConnection) -> None:
        """Decide on a connection that a peer opened (TRN-23 to TRN-25)."""
        peer = _peer_of(connection)
        assert peer is not None
        me = self.hello.instance_id
        match arbitrate(me=me, peer=peer, rivals=self._rivals(connection, peer)):
            case Decision.PROBE:  # the ONLINE connection may be half dead (TRN-25)
                self._waiting.setdefault(peer, []).append(connection)
                self.online[peer].probe()
            case Decision.REFUSE:
                connection.arbitrated(Verdict.LOST)
            case Decision.GRANT:
                connection.arbitrated(Verdict.WON)
                self._close_own_logins(peer, but=connection)

    def ask_settlement(self, connection: PeerConnection, *, over_stale: bool) -> bool:
        """Return whether to keep a connection that a peer granted (TRN-24)."""
        peer = _peer_of(connection)
        assert peer is not None
        old = self.online.get(peer)
        if over_stale and old is not None:
            old.abort("the peer found it dead and took a new one")
        me = self.hello.instance_id
        rivals = self._rivals(connection, peer)
        return keeps_new(me=me, peer=peer, over_stale=over_stale, rivals=rivals)

    def came_online(self, connection: PeerConnection) -> None:
        """Register a connection that came ONLINE; it takes over the traffic of an older one."""
        peer = _peer_of(connection)
        assert peer is not None
        old = self.online.get(peer)
        self.online[peer] = connection
        if old is not None:
            self._sink.on_switched(old, connection)
        self._sink.on_online(connection)
        # Last: when the older one ends, it must not have any destinations left (TRN-27).
        if old is not None:
            old.say_goodbye(GoodbyeReason.ARBITRATION)

    def received(self, connection: PeerConnection, boxcar: Received) -> None:
        """Pass a boxcar to the sink."""
        self._sink.on_received(connection, boxcar)

    def noticed(self, connection: PeerConnection, notice: Advice) -> None:
        """Pass a NOTICE, TRACE, ROLE or BROKERS to the sink."""
        self._sink.on_noticed(connection, notice)

    def writable(self, connection: PeerConnection) -> None:
        """Notify the sink that a socket has room."""
        self._sink.on_writable(connection)

    def probe_answered(self, connection: PeerConnection) -> None:
        """Refuse the logins that waited, because the ONLINE connection is alive (TRN-23)."""
        peer = _peer_of(connection)
        for waiting in self._waiting.pop(peer, []) if peer is not None else []:
            waiting.arbitrated(Verdict.LOST)

    def ended(self, connection: PeerConnection, end: Closed) -> None:
        """Remove an ended connection; grant a login that waited for its place (TRN-25)."""
        self.connections.pop(connection.number, None)
        self._ended.add(connection)
        if connection.has_stream:
            self.closing[connection.number] = connection
        peer = _peer_of(connection)
        served = peer is not None and self.online.get(peer) is connection
        if peer is not None and served:
            del self.online[peer]
        self._sink.on_ended(connection, end)
        if peer is not None:
            stale = end.outcome is Outcome.LOST
            self._grant_waiting(peer, connection, served=served, stale=stale)

    def gone(self, connection: PeerConnection) -> None:
        """Remove an ended connection whose stream is closed, too."""
        self.closing.pop(connection.number, None)

    # Internals.

    def _authorise_number(self, number: int, peer: Hello) -> Refusal | None:
        connection = self.connections.get(number)
        if connection is None:
            return Refusal(RejectReason.DRAINING)
        return self._authorise(connection, peer)

    def _grant_waiting(
        self, peer: InstanceId, ended: PeerConnection, *, served: bool, stale: bool
    ) -> None:
        waiting = [c for c in self._waiting.pop(peer, []) if c is not ended]
        if not served:
            if waiting:
                self._waiting[peer] = waiting
            return
        for connection in waiting:
            if peer in self.online:
                connection.arbitrated(Verdict.LOST)
            else:
                connection.arbitrated(Verdict.WON_OVER_STALE if stale else Verdict.WON)

    def _rivals(self, connection: PeerConnection, peer: InstanceId) -> list[Rival]:
        online = self.online.get(peer)
        return [
            Rival(opened_here=not other.machine.accepting, online=other is online)
            for other in self.connections.values()
            if other is not connection and _peer_of(other) == peer and not other.machine.is_leaving
        ]

    def _close_own_logins(self, peer: InstanceId, *, but: PeerConnection) -> None:
        """End this side's logins to a peer, which lost to a connection that the peer opened.

        Logins whose HELLO has not arrived yet are not known to lead to this peer."""
        for other in list(self.connections.values()):
            own_login = not other.machine.accepting and not other.machine.is_online
            leaving = other.machine.is_leaving or other is but
            if own_login and not leaving and _peer_of(other) == peer:
                other.say_goodbye(GoodbyeReason.ARBITRATION)


def _peer_of(connection: PeerConnection) -> InstanceId | None:
    peer = connection.machine.peer
    return None if peer is None else peer.instance_id
