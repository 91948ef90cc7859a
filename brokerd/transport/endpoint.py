"""BrokerEndpoint: the listening addresses of an instance, and the state of the endpoint (END).

Reads:  nothing.                                Calls: `transport.listener`.
Never:  touches a connection; `transport.destinations` drains and closes them when a state changes.
Fails:  an address that cannot be bound keeps its error and is retried (END-17).
"""

import asyncio
from collections.abc import Callable, Iterable

from brokerd.config.settings import EndpointState
from brokerd.errors import PortTaken
from brokerd.telemetry.log import Log
from brokerd.transport.door import Door
from brokerd.transport.listener import Listener
from brokerd.transport.network import Factory, Network, host_and_port, tcp_address


class BrokerEndpoint:
    """The listeners of an instance; without an address there is no endpoint (END-1)."""

    def __init__(
        self,
        *,
        network: Network,
        factory: Factory,
        door: Door,
        log: Log,
        addresses: Iterable[str],
        state: EndpointState,
    ) -> None:
        self.state = state
        """The wanted state; a busy port does not change it (END-17)."""
        self._network = network
        self._factory = factory
        self.door = door
        """Limits on accepted connections, over all addresses together (END-18)."""
        self._log = log
        self.listeners = [self._listener(address) for address in addresses]

    @property
    def listens(self) -> bool:
        """Whether the port should be open, even if only to refuse connections (END-4)."""
        return self.state is not EndpointState.STOPPED

    @property
    def addresses(self) -> tuple[str, ...]:
        """The wanted listening addresses."""
        return tuple(one.wanted for one in self.listeners)

    @property
    def port(self) -> int:
        """The real port of the first open listener; 0 = none is open."""
        return next((one.port for one in self.listeners if one.is_open), 0)

    @property
    def listen_error(self) -> str:
        """The errors of all listeners that failed; empty = none has failed."""
        return "; ".join(one.listen_error for one in self.listeners if one.listen_error)

    @property
    def why_unavailable(self) -> str:
        """Reason why messages wait for the endpoint; empty = the endpoint is started."""
        if not self.listeners:
            return "there is no broker endpoint"
        started = self.state is EndpointState.STARTED
        return "" if started else f"the broker endpoint is {self.state}"

    async def open(self, *, must_listen: bool = False) -> None:
        """Listen on every address.

        Raises:
            PortTaken: `must_listen` is set, and listening on an address fails.
        """
        for listener in self.listeners:
            host, port = host_and_port(listener.wanted)
            if not port and self.port:  # the free port of the first address, for all addresses
                listener.wanted = tcp_address(host, self.port)
            try:
                await listener.open()
            except OSError as error:
                if must_listen:
                    raise PortTaken(f"cannot listen at {listener.wanted}: {error}") from error

    def close(self) -> None:
        """Stop listening on all addresses."""
        for listener in self.listeners:
            listener.close()

    def closed(self) -> list[Listener]:
        """Return the listeners that should be open and are not (END-17)."""
        return [one for one in self.listeners if self.listens and not one.is_open]

    async def rebind(self, addresses: Iterable[str]) -> None:
        """Listen on other addresses; listeners whose address stays are not touched (END-6)."""
        wanted = list(addresses)
        kept = {one.wanted: one for one in self.listeners if one.wanted in wanted}
        for listener in self.listeners:
            if listener.wanted not in kept:
                listener.close()
        self.listeners = [kept.get(one) or self._listener(one) for one in wanted]
        if self.listens:
            await self.open()

    def _listener(self, address: str) -> Listener:
        return Listener(
            network=self._network,
            factory=self._factory,
            address=address,
            door=self.door,
            log=self._log,
        )


class Lull:
    """A wait for a condition, with a time limit."""

    def __init__(self) -> None:
        self._checking: asyncio.Future[None] | None = None
        self._late = False

    async def wait(self, is_quiet: Callable[[], bool], seconds: float) -> None:
        """Wait until `is_quiet` is true, at most `seconds`; `check_again` evaluates it again."""
        loop = asyncio.get_running_loop()
        self._late = False
        limit = loop.call_later(seconds, self._give_up)
        try:
            while not is_quiet() and not self._late:
                self._checking = loop.create_future()
                await self._checking
        finally:
            limit.cancel()
            self._checking = None

    def check_again(self) -> None:
        """Check the condition again, because it may be true now."""
        if self._checking is not None and not self._checking.done():
            self._checking.set_result(None)

    def _give_up(self) -> None:
        self._late = True
        self.check_again()
