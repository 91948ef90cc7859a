"""Addresses of a daemon, and the connectors for them (CLP-1).

Reads:  the address as text, or BROKERD_ADDRESS.     Calls: the running loop.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final, cast
from urllib.parse import urlsplit

from brokerd.client.tls import Opening, Tls, context_of
from brokerd.errors import InvalidArgument
from brokerd.security.secure_stream import SecureStream

DEFAULT_ADDRESS: Final = "unix:/run/brokerd/brokerd.sock"
ADDRESS_VARIABLE: Final = "BROKERD_ADDRESS"

Factory = Callable[[], asyncio.Protocol]
Connector = Callable[[Factory], Awaitable[tuple[asyncio.Transport, asyncio.Protocol]]]
"""A function that makes one connection, or raises `OSError`; tests and in-process daemons pass
their own."""


def default_address() -> str:
    """Return BROKERD_ADDRESS, or the address where a packaged daemon listens.

    Raises: nothing.
    """
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def connector_for(address: str, tls: Tls | None = None) -> Connector:
    """Return a connector to unix:/path or TCP://host:port. `tls`: encrypts TCP connections.

    Raises:
        InvalidArgument: the address is anything else.
    """
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
