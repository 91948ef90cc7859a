"""Dialer: opens streams, one attempt at a time per destination (TRN-13 to TRN-21).

Reads:  destinations.                           Calls: `transport.network`, `transport.peers`.
Never:  logs in, or evaluates the end of a login; `transport.destinations` does.
Fails:  an attempt fails alone and suppresses its destination (TRN-17).
"""

import asyncio
import socket
from collections.abc import Coroutine, Iterable
from random import Random

from brokerd.telemetry.log import Log
from brokerd.transport.connection import PeerConnection, describe
from brokerd.transport.destination import Destination
from brokerd.transport.events import log_connecting, log_failed
from brokerd.transport.login_guard import Way
from brokerd.transport.network import Network, host_and_port, tcp_address
from brokerd.transport.options import MOST_AT_ONCE, TransportOptions
from brokerd.transport.peers import Peers

MOST_ATTEMPTS = 1_000
"""Attempts under way at a time. Each may wait for a name server, which takes memory although it
takes no socket; further ones begin with the next connect pass."""


class Dialer:
    """The opener of outgoing streams, each in a task of its own."""

    def __init__(
        self,
        *,
        network: Network,
        rng: Random,
        options: TransportOptions,
        peers: Peers,
        log: Log,
    ) -> None:
        self.running = False
        """Whether attempts may be made."""
        self._network = network
        self._rng = rng
        self._options = options
        self._peers = peers
        self._log = log
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered, unlike a set (HK-1)

    def connect_due(self, destinations: Iterable[Destination]) -> int:
        """Connect all destinations with pending items that may connect now (TRN-14).

        If they are many, spread the attempts (TRN-21). Return the number of destinations."""
        return self._connect_pending(destinations, at_work=0)

    def connect_again(self, destinations: Iterable[Destination]) -> None:
        """Connect destinations with pending items anew, whose connection ended for that (SEC-89).

        Connections of many peers may end at a time, so running attempts count for the spread."""
        self._connect_pending(destinations, at_work=len(self._tasks))

    def _connect_pending(self, destinations: Iterable[Destination], *, at_work: int) -> int:
        if not self.running:
            return 0
        due = [d for d in destinations if d.pending and d.may_connect and d.due is None]
        is_spread = at_work + len(due) > MOST_AT_ONCE
        spread = self._options.connect_spread.total_seconds() if is_spread else 0.0
        for destination in due:
            if spread:
                wait = self._rng.uniform(0.0, spread)
                loop = asyncio.get_running_loop()
                destination.due = loop.call_later(wait, self.connect, destination)
            else:
                self.connect(destination)
        return len(due)

    def connect(self, destination: Destination) -> None:
        """Begin an attempt now, if one is allowed (TRN-12)."""
        destination.due = None
        if not self.running or not destination.may_connect or len(self._tasks) >= MOST_ATTEMPTS:
            return
        destination.attempts += 1
        self._begin(destination, None)

    def connect_otherwise(self, destination: Destination, way: Way) -> None:
        """Try in another way, as part of the attempt that has just failed (SEC-10)."""
        if self.running and destination.connection is None and destination.opening is None:
            self._begin(destination, way)

    def _begin(self, destination: Destination, way: Way | None) -> None:
        connection = self._peers.make(destination.address, way)
        connection.machine.connecting()
        destination.opening = connection
        log_connecting(self._log, connection)
        destination.attempt = self.spawn(self._attempt(destination, connection))

    def failed(
        self, destination: Destination, connection: PeerConnection, reason: str, detail: str
    ) -> None:
        """Record and log an attempt that failed, in its stream or its login."""
        if destination.connection is None:  # an accepted connection may serve it meanwhile
            destination.failed(reason, detail)
        log_failed(self._log, connection, reason, detail)

    async def stop(self, destinations: Iterable[Destination]) -> None:
        """Cancel all due and running attempts, and wait for their end."""
        self.running = False
        for destination in destinations:
            if destination.due is not None:
                destination.due.cancel()
                destination.due = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task that `stop` cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    async def _attempt(self, destination: Destination, connection: PeerConnection) -> None:
        """Open the stream; the connection then logs in by itself."""
        limit = self._options.connect_timeout.total_seconds()
        try:
            async with asyncio.timeout(limit):
                # Set before the peer answers: if it connects to this instance meanwhile, these
                # addresses identify it (TRN-19).
                destination.places = await self._network.places(destination.address)
                await self._network.connect(connection.stream_protocol, destination.address)
        except TimeoutError:
            self._unreached(destination, connection, "connect_failed", f"no answer in {limit:g} s")
        except socket.gaierror as error:
            self._unreached(destination, connection, "dns_failed", describe(error))
        except OSError as error:
            self._unreached(destination, connection, "connect_failed", describe(error))
        else:
            _, port = host_and_port(destination.address)
            destination.places = frozenset({tcp_address(connection.remote_host, port).lower()})
        finally:
            if destination.opening in (connection, None):
                destination.attempt = None
            if not connection.has_stream and destination.opening is connection:  # cancelled
                destination.opening = None
                self._peers.drop(connection)

    def _unreached(
        self, destination: Destination, connection: PeerConnection, reason: str, detail: str
    ) -> None:
        """Record an attempt that opened no stream (TRN-17)."""
        self._peers.drop(connection)
        if destination.opening is connection:
            destination.opening = None
            self.failed(destination, connection, reason, detail)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
