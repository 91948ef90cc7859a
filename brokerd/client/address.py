"""Addresses of a daemon, and the connectors for them (CLP-1).

Reads:  the address as text, or BROKERD_ADDRESS.     Calls: the running loop.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast
from urllib.parse import urlsplit

from brokerd.client.tls import Opening, Tls, context_of
from brokerd.errors import InvalidArgument
from brokerd.security.secure_stream import SecureStream

DEFAULT_ADDRESS: Final = "unix:/run/brokerd/brokerd.sock"
ADDRESS_VARIABLE: Final = "BROKERD_ADDRESS"
_COMMA: Final = re.compile(r",\s*(?=(?:unix|tcp):)", re.IGNORECASE)

Factory = Callable[[], asyncio.Protocol]
Connector = Callable[[Factory], Awaitable[tuple[asyncio.Transport, asyncio.Protocol]]]
"""A function that makes one connection, or raises `OSError`; tests and in-process daemons pass
their own."""


def default_address() -> str:
    """Return BROKERD_ADDRESS, or the address where a packaged daemon listens.

    Raises: nothing.
    """
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def addresses_of(text: str) -> list[str]:
    """Return the addresses of a list, which commas separate: the daemons of one instance.

    Raises: nothing.
    """
    return _COMMA.split(text)


class Alternatives:
    """A connector to the first of several daemons that lets it connect (REL-58).

    Each call begins behind the daemon that the last one has reached: that daemon has ended since,
    or it waits for another one, which has the stores."""

    def __init__(self, connectors: Sequence[Connector]) -> None:
        """Create it; it begins with the first."""
        self._connectors = connectors
        self._next = 0

    async def __call__(self, factory: Factory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Make a connection.

        Raises:
            OSError: no daemon could be reached; the error is that of the last.
        """
        failure = OSError("there is no address")
        for _ in self._connectors:
            connector = self._connectors[self._next]
            self._next = (self._next + 1) % len(self._connectors)
            try:
                return await connector(factory)
            except OSError as error:
                failure = error
        raise failure

    @property
    def others(self) -> int:
        """Number of daemons that may still let a client in that the first one has refused."""
        return len(self._connectors) - 1


def connector_for(address: str, tls: Tls | None = None) -> Connector:
    """Return a connector to unix:/path or TCP://host:port, or to one of several of them.

    `tls`: encrypts TCP connections.

    Raises:
        InvalidArgument: an address is anything else.
    """
    several = addresses_of(address)
    if len(several) > 1:
        return Alternatives([connector_for(one, tls) for one in several])
    if address.lower().startswith("unix:"):
        return _unix(address[5:])
    parts = urlsplit(address)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme.lower() != "tcp" or not parts.hostname or not port or parts.path:
        raise InvalidArgument(f"address {address!r}: unix:/path or TCP://host:port is expected")
    if tls is not None:
        return _encrypted(parts.hostname, port, tls)
    return _tcp(parts.hostname, port)


def _unix(path: str) -> Connector:
    if not path:
        raise InvalidArgument("address: unix: is followed by a path")
    if os.name != "posix":
        raise InvalidArgument(
            f"address unix:{path}: this system has no Unix sockets for programs in Python",
            hint="connect by TLS: TCP://host:port, with the files of `brokerd client new`",
        )

    async def connect(factory: Factory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await asyncio.get_running_loop().create_unix_connection(factory, path)

    return connect


def _tcp(host: str, port: int) -> Connector:
    async def connect(factory: Factory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await asyncio.get_running_loop().create_connection(factory, host, port)

    return connect


def _encrypted(host: str, port: int, tls: Tls) -> Connector:
    async def connect(factory: Factory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        context = context_of(tls)
        inner = factory()
        opening = Opening(inner)
        _, stream = await asyncio.get_running_loop().create_connection(
            lambda: SecureStream(inner, opening, context=lambda: context, accepting=False),
            host,
            port,
        )
        try:
            await opening.done
        except BaseException:
            stream.abort()
            raise
        return cast("asyncio.Transport", stream), inner

    return connect
