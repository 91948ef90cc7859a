"""Listener: one address of the broker endpoint, open or waiting for a retry (END-17).

Reads:  nothing.                                Calls: `transport.network`.
Never:  retries by itself; the connect pass of every second tick does.
"""

from brokerd.telemetry.log import Log
from brokerd.transport.connection import describe
from brokerd.transport.door import Door
from brokerd.transport.network import Factory, Listening, Network, host_and_port

EVENT = "broker.endpoint"


class Listener:
    """The listener for peers at one address."""

    def __init__(
        self, *, network: Network, factory: Factory, address: str, door: Door, log: Log
    ) -> None:
        self.wanted = address
        self.listen_error: str | None = None
        self._network = network
        self._factory = factory
        self._door = door
        self._log = log
        self._listening: Listening | None = None

    @property
    def is_open(self) -> bool:
        """Whether the listener is open."""
        return self._listening is not None

    @property
    def address(self) -> str | None:
        """Address with the real port; None = the listener is not open."""
        return None if self._listening is None else self._listening.address

    @property
    def port(self) -> int:
        """The real port; the wanted one while the listener is not open."""
        return host_and_port(self.address or self.wanted)[1]

    async def open(self) -> None:
        """Begin to listen. On failure, set `listen_error` and raise `OSError`."""
        if self._listening is not None:
            return
        try:
            self._listening = await self._network.listen(self._factory, self.wanted, self._door)
        except OSError as error:
            self.listen_error = describe(error)
            self._log.warning(
                EVENT, subclass="listen_failed", address=self.wanted, error=self.listen_error
            )
            raise
        self.listen_error = None
        self._log.info(EVENT, subclass="listening", address=self.address)

    def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._log.info(EVENT, subclass="stopped", address=self.address)
            self._listening.close()
            self._listening = None
