"""EndpointLife: what the transport does as its endpoint starts, stops and moves (END-4 to 6).

Reads:  the state of the endpoint.      Calls: listeners, the dialer, connections.
Never:  sends; a state changes one at a time, each to its end.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta

import msgspec

from brokerd.config.settings import EndpointState
from brokerd.protocol.neighbour import GoodbyeReason, Hello, RejectReason
from brokerd.transport.destination import Destination
from brokerd.transport.dialer import Dialer
from brokerd.transport.endpoint import BrokerEndpoint, Lull
from brokerd.transport.listener import Listener
from brokerd.transport.peers import Peers


class EndpointLife:
    """The half of `Destinations` that concerns the whole endpoint."""

    endpoint: BrokerEndpoint
    peers: Peers
    drain: timedelta
    """How long open connections may finish when the endpoint stops (END-5)."""
    _known: dict[str, Destination]
    _dialer: Dialer
    _lull: Lull
    _changing: asyncio.Lock
    _closing: Callable[[], None]
    _is_up: bool
    """Whether what the state of the endpoint asks for is being done."""

    @property
    def listeners(self) -> list[Listener]:
        """Those of the broker endpoint."""
        return self.endpoint.listeners

    async def start(self, *, must_listen: bool = False) -> None:
        """Take up the state of the endpoint: listen, connect to whatever was notified.

        Raises:
            PortTaken: `must_listen`, and an address cannot be listened at; nothing is left open.
        """
        async with self._changing:
            try:
                await self._take_up(must_listen=must_listen)
            except BaseException:
                await self._shut()
                raise

    async def stop(self) -> None:
        """Drain for at most the set time, say GOODBYE everywhere, close (END-5, TRN-18)."""
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
        """Listen elsewhere; connections stay (END-6)."""
        async with self._changing:
            await self.endpoint.rebind(addresses)
            self._say_port()

    def _authorise(self, peer: Hello) -> RejectReason | None:
        """Everyone admitted by SEC-10 may use the endpoint while it is started (END-4)."""
        if self.endpoint.state is EndpointState.DISABLED:
            return RejectReason.ENDPOINT_DISABLED
        return None if self._dialer.running else RejectReason.DRAINING

    async def _take_up(self, *, must_listen: bool = False) -> None:
        """Do what the state of the endpoint asks for."""
        if self.endpoint.listens:
            await self.endpoint.open(must_listen=must_listen)
            self._say_port()
        self._is_up = True
        self._dialer.running = bool(self.listeners) and not self.endpoint.why_unavailable
        if self._dialer.running:
            for destination in self._known.values():
                destination.release()  # NBT-8
            self._dialer.connect_due(self._known.values())

    async def _shut(self) -> None:
        """End all there is: first what waits on open connections, then those (END-5)."""
        self._is_up = False
        self._closing()
        self.endpoint.close()
        await self._dialer.stop(self._known.values())
        self.endpoint.close()  # one may have been opened meanwhile
        seconds = self.drain.total_seconds()
        await self._lull.wait(self._is_drained, seconds)
        for connection in list(self.peers.connections.values()):
            self.peers.leave(connection, GoodbyeReason.DRAIN)
        await self._lull.wait(lambda: not self.peers.connections, seconds)
        for connection in list(self.peers.connections.values()):
            connection.abort("stopped")

    def _say_port(self) -> None:
        """What connections made from now on tell their peers."""
        self.peers.hello = msgspec.structs.replace(self.peers.hello, port=self.endpoint.port)

    async def _open_again(self, listener: Listener) -> None:
        try:
            await listener.open()
        except OSError:
            return  # logged, shown as `listen_error`, tried again in the next pass
        if not self._is_up or listener not in self.listeners:
            listener.close()
        self._say_port()

    def _is_drained(self) -> bool:
        return not any(d.pending for d in self._known.values() if d.connection is not None)
