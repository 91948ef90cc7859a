"""EndpointLife: start, stop and move of the broker endpoint in the transport (END-4 to END-6).

Reads:  the state of the endpoint.      Calls: listeners, the dialer, connections.
Never:  sends, or begins a change of state before the previous one has ended.
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

import msgspec

from brokerd.config.settings import Authentication, Encryption, EndpointState
from brokerd.protocol.connection_effects import Refusal
from brokerd.protocol.neighbour import GoodbyeReason, Hello, RejectReason
from brokerd.transport.connection import PeerConnection
from brokerd.transport.destination import Destination
from brokerd.transport.dialer import Dialer
from brokerd.transport.endpoint import BrokerEndpoint, Lull
from brokerd.transport.listener import Listener
from brokerd.transport.meeting import TransportEvents
from brokerd.transport.peers import Peers


class EndpointLife:
    """The part of `Destinations` that concerns the whole endpoint."""

    endpoint: BrokerEndpoint
    peers: Peers
    drain: timedelta
    """Time that open connections have to send pending items when the endpoint stops (END-5)."""
    _known: dict[str, Destination]
    _dialer: Dialer
    _lull: Lull
    _changing: asyncio.Lock
    _events: TransportEvents
    _is_up: bool
    """Whether the endpoint's state has been applied, and not undone by a shutdown since."""

    @property
    def listeners(self) -> list[Listener]:
        """The listeners of the broker endpoint."""
        return self.endpoint.listeners

    async def start(self, *, must_listen: bool = False) -> None:
        """Apply the state of the endpoint: listen, and connect to destinations with pending items.

        Raises:
            PortTaken: `must_listen` is set, and listening on an address fails; nothing stays open.
        """
        async with self._changing:
            try:
                await self._take_up(must_listen=must_listen)
            except BaseException:
                await self._shut()
                raise

    async def stop(self) -> None:
        """Drain open connections for at most `drain`, send GOODBYE, close (END-5, TRN-18)."""
        async with self._changing:
            await self._shut()

    async def switch(self, state: EndpointState) -> None:
        """Start, stop or disable the endpoint; messages stay in their stores (END-4, END-5)."""
        async with self._changing:
            self.endpoint.state = state
            if state is not EndpointState.STARTED:
                await self._shut()
            await self._take_up()

    async def rebind(self, addresses: Iterable[str]) -> None:
        """Listen on other addresses; connections stay open (END-6)."""
        async with self._changing:
            await self.endpoint.rebind(addresses)
            self._say_port()

    async def secure(self, encryption: Encryption, authentication: Authentication) -> None:
        """Change how peers are authenticated; end all connections in an orderly way (END-6)."""
        async with self._changing:
            guard = self.peers.guard
            if guard is None:
                return
            guard.encryption, guard.authentication = encryption, authentication
            for connection in list(self.peers.connections.values()):
                self.peers.leave(connection, GoodbyeReason.DRAIN)
            self._dialer.connect_due(self._known.values())

    def check_identities(self) -> None:
        """Apply changed credentials and grants (SX-3, SEC-9).

        Connections whose peer may not be connected any longer end at once, those that show a
        replaced certificate in an orderly way. What failed may succeed now, so no address waits."""
        guard = self.peers.guard
        if guard is None:
            return
        for connection in list(self.peers.connections.values()):
            peer = connection.machine.peer
            if peer is None:
                continue
            why = guard.why_no_longer(connection, peer.instance_id)
            if why:
                connection.abort(why)
            elif guard.has_dropped(connection.own_certificate_id) or guard.is_replaced(connection):
                self.peers.leave(connection, GoodbyeReason.RENEW)
        for destination in [one for one in self._known.values() if one.is_suppressed]:
            destination.forgive()
            if destination.pending:
                self._dialer.connect(destination)

    def verify_again(self) -> int:
        """End the connections for which a CA vouched, in an orderly way; return their number.

        The next handshake is by the present files of the CA (SEC-69)."""
        vouched = [one for one in self.peers.connections.values() if one.identity.by_authority]
        for connection in vouched:
            self.peers.leave(connection, GoodbyeReason.DRAIN)
        return len(vouched)

    def _authorise(self, connection: PeerConnection, peer: Hello) -> Refusal | None:
        """Return why a peer is refused; None = it may log in (END-4, END-8)."""
        if self.endpoint.state is EndpointState.DISABLED:
            return Refusal(RejectReason.ENDPOINT_DISABLED)
        if not self._dialer.running:
            return Refusal(RejectReason.DRAINING)
        if self.peers.guard is None:
            return None
        online = self.peers.online.get(peer.instance_id)
        who = None if online is None else online.identity
        refusal = self.peers.guard.why_refused(connection, peer, who)
        if refusal is None and online is not None and online.identity != connection.identity:
            proves = connection.identity.is_authenticated and not online.identity.is_authenticated
            if proves and not self.peers.guard.is_open:
                online.abort("a peer has proven to be the instance that this one said it is")
        return refusal

    async def _take_up(self, *, must_listen: bool = False) -> None:
        """Listen and connect as the state of the endpoint demands."""
        if self.endpoint.listens:
            await self.endpoint.open(must_listen=must_listen)
            self._say_port()
        self._is_up = True
        self._dialer.running = bool(self.listeners) and not self.endpoint.why_unavailable
        if self._dialer.running:
            for destination in self._known.values():
                destination.release()  # do not wait for the end of a suppression (NBT-8)
            self._dialer.connect_due(self._known.values())

    async def _shut(self) -> None:
        """Stop listening and dialling, drain the open connections, then end them (END-5)."""
        self._is_up = False
        # first: owed acknowledgements leave while connections drain (DLP-19)
        self._events.before_closing()
        self.endpoint.close()
        await self._dialer.stop(self._known.values())
        self.endpoint.close()  # a retry may have opened a listener meanwhile
        seconds = self.drain.total_seconds()
        await self._lull.wait(self._is_drained, seconds)
        for connection in list(self.peers.connections.values()):
            self.peers.leave(connection, GoodbyeReason.DRAIN)
        await self._lull.wait(lambda: not self.peers.connections, seconds)
        for connection in list(self.peers.connections.values()):
            connection.abort("stopped")

    def _say_port(self) -> None:
        """Set the port in the HELLO of new connections."""
        self.peers.hello = msgspec.structs.replace(self.peers.hello, port=self.endpoint.port)

    async def _open_again(self, listener: Listener) -> None:
        try:
            await listener.open()
        except OSError:
            return  # logged and shown as `listen_error`; retried in the next pass
        if not self._is_up or listener not in self.listeners:
            listener.close()
        self._say_port()

    def _is_drained(self) -> bool:
        return not any(d.pending for d in self._known.values() if d.connection is not None)
