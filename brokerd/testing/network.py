"""SimNetwork: nodes, links between them, and the faults of a network (HK-4).

A node is identified by its name; `for_node(name)` returns the node's network, with the methods of
`brokerd.transport.network.Network`. `TCP://east:4022` reaches the node `east`; a node may listen on
its own name, on a wildcard or on loopback, and port 0 selects a free port. `unix:` paths are one
name space for all nodes, so that a client that is its own node can reach its daemon.

Reads:  conditions of links, its seeded stream of random numbers.
Calls:  `stream.SimTransport` and `pipe.Pipe`, and through them the protocols.
Never:  draws from another source than its stream, or lets the order of connections depend on memory
        addresses.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random

import msgspec

from brokerd.testing.link import Conditions, Link
from brokerd.testing.mangler import Mangler
from brokerd.testing.pipe import Pipe
from brokerd.testing.places import Place, parse_address
from brokerd.testing.stream import Address, SimTransport
from brokerd.testing.trace import Trace
from brokerd.transport.door import Door

Factory = Callable[[], asyncio.Protocol]

_SYN_TIMES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Waits in seconds between attempts to reach a node behind a cut, as on Linux; 127 s in all."""
_FIRST_FREE_PORT = 40_000


class SimListening:
    """An address on which a node listens."""

    def __init__(self, network: "SimNetwork", node: str, place: Place, factory: Factory) -> None:
        self.node = node
        self.place = place
        self.factory = factory
        self.context = copy_context()
        self._network = network

    @property
    def address(self) -> str:
        """The address, with the actual port."""
        return self.place.show()

    def close(self) -> None:
        """Stop accepting connections; existing connections stay open."""
        self._network.forget(self)


class Connection(msgspec.Struct, frozen=True, eq=False):
    """An established connection: the pipe that the opener writes to, and the pipe back to it."""

    there: Pipe
    back: Pipe

    def pipes(self) -> tuple[Pipe, Pipe]:
        """Return the pipes of both directions, first the one that the opener writes to."""
        return self.there, self.back

    def joins(self, a: str, b: str) -> bool:
        """Return whether the connection is between the nodes `a` and `b`."""
        ends = (self.there.writer.node, self.back.writer.node)
        return ends in ((a, b), (b, a))

    def is_over(self) -> bool:
        """Return whether both sides have ended; for a silent connection, whether the opener has."""
        return self.there.writer.gone and (self.back.writer.gone or self.there.swallows)


class SimEndpoint:
    """The network as one boot of a node sees it; a crash makes it unusable forever."""

    def __init__(self, network: "SimNetwork", node: str) -> None:
        self.node = node
        self.alive = True
        self._network = network

    async def listen(
        self, factory: Factory, address: str, door: Door | None = None
    ) -> SimListening:
        """Accept connections on the address; raise `OSError` if it is in use or not this node's.

        `door` is ignored, because a simulated node cannot run out of descriptors."""
        self._check()
        return self._network.listen(self.node, factory, address)

    async def connect(
        self, factory: Factory, address: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect; raise the `OSError` that the operating system would raise."""
        self._check()
        place = parse_address(address, self.node)
        await self._network.reach(self.node, place)
        self._check()  # the node may have crashed meanwhile
        return self._network.establish(self.node, factory, place)

    async def places(self, address: str) -> frozenset[str]:
        """Return the address itself: a node's name is its only address."""
        return frozenset({address})

    def _check(self) -> None:
        if not self.alive:
            raise OSError(errno.ENETDOWN, f"node {self.node} has crashed")


class SimNetwork:
    """The whole network of a simulation; see the docstring of the module."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: Random,
        *,
        conditions: Conditions | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._conditions = conditions or Conditions()
        self._trace = trace
        self.users: dict[str, int] = {}
        """User ids under which the programs of each node run; listeners see them as `peer_uid`."""
        self._links: dict[tuple[str, str], Link] = {}
        self._endpoints: dict[str, SimEndpoint] = {}
        self._listening: dict[Place, SimListening] = {}
        self._connections: list[Connection] = []
        self._ports = _FIRST_FREE_PORT

    # Nodes and links.

    def for_node(self, node: str) -> SimEndpoint:
        """Return the node's network; a crashed node gets a new network."""
        found = self._endpoints.get(node.lower())
        if found is None or not found.alive:
            found = self._endpoints[node.lower()] = SimEndpoint(self, node.lower())
        return found

    def link(self, from_node: str, to_node: str) -> Link:
        """Return the link of one direction between two nodes."""
        key = (from_node.lower(), to_node.lower())
        if key not in self._links:
            self._links[key] = Link(*key, self._conditions)
        return self._links[key]

    def shape(self, from_node: str, to_node: str, conditions: Conditions) -> None:
        """Set the conditions of one direction from now on."""
        self.link(from_node, to_node).conditions = conditions

    def mangle(self, from_node: str, to_node: str, mangler: Mangler | None) -> None:
        """Pass the frames of one direction through a mangler; None removes it.

        Only for links that carry frames (u32 length) from the first byte of each connection. Set
        the mangler before connections are established.
        """
        self.link(from_node, to_node).mangler = mangler

    @property
    def connections(self) -> list[Connection]:
        """The established connections, oldest first."""
        return list(self._connections)

    # Faults.

    def cut(self, from_node: str, to_node: str, *, both: bool = True) -> None:
        """Silently drop all traffic until `heal`; with `both=False`, in one direction only.

        Connections stay open, but carry nothing, not even resets. A writer whose bytes have not
        arrived for `give_up` seconds loses its connection with a timeout.
        """
        for pair in [(from_node, to_node), (to_node, from_node)][: 2 if both else 1]:
            self._note(pair[0], f"cut to {pair[1]}")
            link = self.link(*pair)
            link.is_cut = True
            for pipe in self._pipes(link):
                pipe.freeze()

    def heal(self, from_node: str | None = None, to_node: str | None = None) -> None:
        """End every cut, or the cuts of one node or between two nodes.

        A frozen connection continues after a pause, with probability `survive_cut`; otherwise it is
        reset. A connection that is dead because of a crash or a half-open fault stays dead.
        """
        wanted = {name.lower() for name in (from_node, to_node) if name is not None}
        healed = [
            link
            for link in self._links.values()
            if link.is_cut and wanted <= {link.from_node, link.to_node}
        ]
        for link in healed:
            self._note(link.from_node, f"healed to {link.to_node}")
            link.is_cut = False
        for connection in self.connections:
            self._heal_connection(connection, healed)

    def reset(self, a: str, b: str) -> None:
        """Reset every connection between two nodes; both sides see the reset."""
        self._note(a, f"reset with {b}")
        for connection in self._between(a, b):
            for pipe in connection.pipes():
                pipe.reset_reader()

    def half_open(self, a: str, b: str) -> None:
        """End every connection between two nodes at `a` only; at `b` the connections stay open.

        Bytes that `b` writes vanish, until `b` gives up.
        """
        self._note(a, f"half-open with {b}")
        for connection in self._between(a, b):
            for pipe in connection.pipes():
                pipe.black_hole()
                if pipe.writer.node == a.lower():
                    pipe.lose_writer()

    def stall(self, from_node: str, to_node: str, seconds: float) -> None:
        """Hold back bytes sent in one direction until `seconds` have passed; no byte is lost."""
        self.link(from_node, to_node).stalled_until = self._loop.time() + seconds

    def crash(self, node: str, *, late: bool = False) -> None:
        """Kill a node between two instructions, so that its protocols are no longer called.

        Its peers see a reset after the delay of the link. With `late`, as when only the process
        dies, bytes that the process had handed to its machine arrive before the reset; otherwise
        they are lost. The caller stops the tasks of the node by `VirtualLoop.kill`.
        """
        node = node.lower()
        self._note(node, "crashed")
        # The endpoint is dead forever, even if a coroutine still holds it: the next boot gets a new
        # endpoint from `for_node`.
        self._endpoints.pop(node, SimEndpoint(self, node)).alive = False
        for listening in [found for found in self._listening.values() if found.node == node]:
            self.forget(listening)
        for connection in self.connections:
            for pipe in connection.pipes():
                if pipe.writer.node == node and not pipe.writer.gone:
                    pipe.end_by_crash(late=late)
                    pipe.writer.vanish()

    # What endpoints call.

    def listen(self, node: str, factory: Factory, address: str) -> SimListening:
        """Listen on behalf of a node; see `SimEndpoint.listen`."""
        place = parse_address(address, node)
        if not place.path and place.host != node:
            raise OSError(errno.EADDRNOTAVAIL, f"{address} is not an address of {node}")
        if not place.path and place.port == 0:
            self._ports += 1
            place = Place(node, self._ports)
        if place in self._listening:
            raise OSError(errno.EADDRINUSE, f"{address} is in use")
        self._listening[place] = made = SimListening(self, node, place, factory)
        return made

    def forget(self, listening: SimListening) -> None:
        """Stop accepting connections for a listener."""
        if self._listening.get(listening.place) is listening:
            del self._listening[listening.place]

    async def reach(self, node: str, place: Place) -> None:
        """Wait as long as a connect takes; if it fails, raise its error."""
        host = self._host(place)
        link, back = self.link(node, host), self.link(host, node)
        for wait in _SYN_TIMES:
            if not link.is_cut and not back.is_cut:
                break
            await self._pause(wait)
        else:
            raise TimeoutError(errno.ETIMEDOUT, f"{place.show()} does not answer")
        await self._pause(link.delay(self._rng) + back.delay(self._rng))
        refused = self._rng.random() < link.conditions.refuse
        if refused or place not in self._listening:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{place.show()} refuses")

    def establish(
        self, node: str, factory: Factory, place: Place
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Create both sides of a connection; return the opener's transport and protocol.

        Call this directly after `reach`, without an await in between: the listener must still be
        open.
        """
        listening = self._listening[place]
        link = self.link(node, listening.node)
        silent = self._rng.random() < link.conditions.silent
        self._note(node, f"connected to {place.show()}")
        self._ports += 1
        own: Address = "" if place.path else (node, self._ports)
        protocol = factory()
        opener = self._side(node, protocol, copy_context(), own, place.peer())
        accepting = (
            asyncio.Protocol() if silent else listening.context.copy().run(listening.factory)
        )
        context = listening.context.copy()
        acceptor = self._side(listening.node, accepting, context, place.peer(), own)
        acceptor.peer_uid = self.users.get(node)
        # Both sides need their pipes before either protocol may write, so `begin` comes last.
        self._join(link, opener, acceptor, silent=silent)
        self._loop.call_soon(acceptor.begin, context=context)
        opener.begin()
        return opener, protocol

    # Helpers.

    def _side(
        self,
        node: str,
        protocol: asyncio.Protocol,
        context: Context,
        sockname: Address,
        peername: Address,
    ) -> SimTransport:
        return SimTransport(
            self._loop,
            protocol,
            node=node,
            context=context,
            sockname=sockname,
            peername=peername,
            lost=self._side_lost,
        )

    def _join(
        self, link: Link, opener: SimTransport, acceptor: SimTransport, *, silent: bool
    ) -> None:
        back = self.link(acceptor.node, opener.node)
        there = self._pipe(link, opener, acceptor)
        here = self._pipe(back, acceptor, opener)
        there.other, here.other = here, there
        opener.attach(there)
        acceptor.attach(here)
        there.swallows = silent
        made = Connection(there, here)
        self._connections.append(made)
        if self._rng.random() < link.conditions.half_open:
            after = self._rng.expovariate(1 / link.conditions.half_open_after)
            self._loop.call_later(after, self._go_dark, made, context=Context())

    def _pipe(self, link: Link, writer: SimTransport, reader: SimTransport) -> Pipe:
        return Pipe(
            self._loop, link, writer=writer, reader=reader, rng=self._rng, trace=self._trace
        )

    def _go_dark(self, connection: Connection) -> None:
        for pipe in connection.pipes():
            pipe.black_hole()

    def _side_lost(self, side: SimTransport) -> None:
        self._note(side.node, "lost a connection")
        side.wake_incoming()
        self._connections = [found for found in self._connections if not found.is_over()]

    def _heal_connection(self, connection: Connection, healed: list[Link]) -> None:
        pipes = list(connection.pipes())
        touched = [pipe for pipe in pipes if pipe.link in healed]
        # While one direction is still cut, neither acknowledgements nor resets could pass.
        if not touched or any(pipe.link.is_cut for pipe in pipes):
            return
        if self._rng.random() < touched[0].link.conditions.survive_cut:
            for pipe in touched:
                pipe.thaw()
        else:
            for pipe in pipes:
                pipe.reset_reader()

    def _between(self, a: str, b: str) -> list[Connection]:
        return [found for found in self.connections if found.joins(a.lower(), b.lower())]

    def _pipes(self, link: Link) -> list[Pipe]:
        return [pipe for found in self.connections for pipe in found.pipes() if pipe.link is link]

    def _host(self, place: Place) -> str:
        if place.path:
            listening = self._listening.get(place)
            if listening is None:
                raise FileNotFoundError(errno.ENOENT, f"nobody listens at {place.show()}")
            return listening.node
        known = {listening.node for listening in self._listening.values()} | set(self._endpoints)
        if place.host not in known:
            raise socket.gaierror(socket.EAI_NONAME, f"no node is called {place.host}")
        return place.host

    async def _pause(self, seconds: float) -> None:
        done = self._loop.create_future()
        timer = self._loop.call_later(seconds, _finish, done)
        try:
            await done
        finally:
            timer.cancel()

    def _note(self, node: str, what: str) -> None:
        if self._trace is not None:
            self._trace.note(node.lower(), what)


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
