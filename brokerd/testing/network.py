"""SimNetwork: nodes, links between them, and everything that can go wrong on the way (HK-4).

A node is a name; it gets its own network by `for_node(name)`, with the two methods of
`brokerd.transport.network.Network`. `TCP://east:4022` reaches the node `east`; a node may listen
at its own name, at a wildcard or at loopback, and port 0 draws one. `unix:` paths are one name
space for all nodes, so that a client that is a node of its own can reach its daemon.

Reads:  conditions of links, the seeded stream of random numbers it is given.
Calls:  `stream.SimTransport` and `stream.Pipe`, and through them the protocols.
Never:  draws from anything but its stream, or lets the order of connections depend on addresses.
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
"""Waits between attempts to reach a node behind a cut, as Linux does; 127 s in all."""
_FIRST_FREE_PORT = 40_000


class SimListening:
    """An address being listened on."""

    def __init__(self, network: "SimNetwork", node: str, place: Place, factory: Factory) -> None:
        self.node = node
        self.place = place
        self.factory = factory
        self.context = copy_context()
        self._network = network

    @property
    def address(self) -> str:
        """The address with the real port."""
        return self.place.show()

    def close(self) -> None:
        """Accept nobody any more; connections stay."""
        self._network.forget(self)


class Connection(msgspec.Struct, frozen=True, eq=False):
    """An established connection: the way of the side that connected, and the way back."""

    there: Pipe
    back: Pipe

    def pipes(self) -> tuple[Pipe, Pipe]:
        """Both directions; the writer of each is the side it belongs to."""
        return self.there, self.back

    def joins(self, a: str, b: str) -> bool:
        """Whether it runs between these two nodes."""
        ends = (self.there.writer.node, self.back.writer.node)
        return ends in ((a, b), (b, a))

    def is_over(self) -> bool:
        """Whether both sides are gone; where nobody ever answered, whether the one is."""
        return self.there.writer.gone and (self.back.writer.gone or self.there.swallows)


class SimEndpoint:
    """The network as one boot of a node sees it; after a crash it is dead for good."""

    def __init__(self, network: "SimNetwork", node: str) -> None:
        self.node = node
        self.alive = True
        self._network = network

    async def listen(
        self, factory: Factory, address: str, door: Door | None = None
    ) -> SimListening:
        """Accept connections at the address; `OSError` if it is taken or not ours.

        A node has no descriptors to run out of, so a door is not asked."""
        self._check()
        return self._network.listen(self.node, factory, address)

    async def connect(
        self, factory: Factory, address: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect; `OSError` as the system would raise it."""
        self._check()
        place = parse_address(address, self.node)
        await self._network.reach(self.node, place)
        self._check()
        return self._network.establish(self.node, factory, place)

    async def places(self, address: str) -> frozenset[str]:
        """The address itself: nodes have names only."""
        return frozenset({address})

    def _check(self) -> None:
        if not self.alive:
            raise OSError(errno.ENETDOWN, f"node {self.node} has crashed")


class SimNetwork:
    """The whole network of a simulation; see the module."""

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
        """The user of whom the programs of a node are, where a listener can be told."""
        self._links: dict[tuple[str, str], Link] = {}
        self._endpoints: dict[str, SimEndpoint] = {}
        self._listening: dict[Place, SimListening] = {}
        self._connections: list[Connection] = []
        self._ports = _FIRST_FREE_PORT

    # Nodes and links.

    def for_node(self, node: str) -> SimEndpoint:
        """Return the node's network; a crashed node gets a fresh one."""
        found = self._endpoints.get(node.lower())
        if found is None or not found.alive:
            found = self._endpoints[node.lower()] = SimEndpoint(self, node.lower())
        return found

    def link(self, from_node: str, to_node: str) -> Link:
        """Return one direction between two nodes."""
        key = (from_node.lower(), to_node.lower())
        if key not in self._links:
            self._links[key] = Link(*key, self._conditions)
        return self._links[key]

    def shape(self, from_node: str, to_node: str, conditions: Conditions) -> None:
        """Set the conditions of one direction from now on."""
        self.link(from_node, to_node).conditions = conditions

    def mangle(self, from_node: str, to_node: str, mangler: Mangler | None) -> None:
        """Let a mangler decide about the frames of one direction.

        For links that carry whole frames (u32 length) from their first byte; set it before
        connections are made.
        """
        self.link(from_node, to_node).mangler = mangler

    @property
    def connections(self) -> list[Connection]:
        """What is established, oldest first."""
        return list(self._connections)

    # Faults.

    def cut(self, from_node: str, to_node: str, *, both: bool = True) -> None:
        """Let nothing through, silently, until `heal`; with `both=False` one way only.

        Connections stay and carry nothing, nor do resets pass. After `give_up` seconds a writer
        is told that its connection timed out.
        """
        for pair in [(from_node, to_node), (to_node, from_node)][: 2 if both else 1]:
            self._note(pair[0], f"cut to {pair[1]}")
            link = self.link(*pair)
            link.is_cut = True
            for pipe in self._pipes(link):
                pipe.freeze()

    def heal(self, from_node: str | None = None, to_node: str | None = None) -> None:
        """End every cut, or those between two nodes.

        A connection that was frozen goes on after a pause, or is reset: `survive_cut` says how
        often. What a crash or a half-open fault left behind stays dead.
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
        """Break every connection between two nodes; both sides see a reset."""
        self._note(a, f"reset with {b}")
        for connection in self._between(a, b):
            for pipe in connection.pipes():
                pipe.reset_reader()

    def half_open(self, a: str, b: str) -> None:
        """Take every connection between two nodes from `a` alone; `b` is not told.

        What `b` writes vanishes until it gives up.
        """
        self._note(a, f"half-open with {b}")
        for connection in self._between(a, b):
            for pipe in connection.pipes():
                pipe.black_hole()
                if pipe.writer.node == a.lower():
                    pipe.lose_writer()

    def stall(self, from_node: str, to_node: str, seconds: float) -> None:
        """Hold up what is sent from now on in one direction; nothing is lost."""
        self.link(from_node, to_node).stalled_until = self._loop.time() + seconds

    def crash(self, node: str, *, late: bool = False) -> None:
        """The node is gone between two instructions: nothing reaches its protocols any more.

        Its peers see a reset after the way's delay. With `late`, as when only the process dies,
        the bytes it had handed to its machine still arrive before that; else nothing does. The
        tasks of the node are not the network's: see `VirtualLoop.kill`.
        """
        node = node.lower()
        self._note(node, "crashed")
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
        """See `SimEndpoint.listen`."""
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
        """Stop listening."""
        if self._listening.get(listening.place) is listening:
            del self._listening[listening.place]

    async def reach(self, node: str, place: Place) -> None:
        """Travel to a listener and back; raises what a connect would, after its time."""
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
        """Make both sides of a connection; call it in the step in which `reach` returned."""
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
