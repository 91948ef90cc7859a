"""Network: listening and connecting, behind a protocol that a simulation can implement.

Reads:  nothing.                                Calls: the running event loop.
Never:  frames, retries, logs or decides; a failure is an `OSError`, which the caller handles.

Addresses are `TCP://host:port` (IPv6 in brackets, scheme in any case) or `unix:/path`.
"""

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Callable
from typing import Final, Protocol

from brokerd.transport.accepting import Acceptor, is_descriptor_free
from brokerd.transport.door import Door

Factory = Callable[[], asyncio.Protocol]
"""Function that returns the asyncio protocol object of one stream."""

ALL: Final = "all"
"""Host in a listening address that means every interface (END-3)."""
BACKLOG: Final = 512
UNIX: Final = "unix:"
TCP: Final = "tcp://"
HIGHEST_PORT: Final = 65535
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


class Listening(Protocol):
    """An open listener."""

    @property
    def address(self) -> str:
        """Listening address, with the real port: `TCP://127.0.0.1:40123` or `unix:/path`."""
        ...

    def close(self) -> None:
        """Stop listening; accepted streams stay open."""
        ...


class Network(Protocol):
    """The interface that opens listeners and outgoing streams."""

    async def listen(self, factory: Factory, address: str, door: Door) -> Listening:
        """Listen on the address; port 0 means any free port (END-2). Raises `OSError`.

        Each protocol object of the factory gets the attribute `seat`, its place at the door."""
        ...

    async def connect(
        self, factory: Factory, address: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a stream, trying all addresses of the name in order (END-16). Raises `OSError`."""
        ...

    async def places(self, address: str) -> frozenset[str]:
        """Return the literal addresses that an address resolves to now. Raises `OSError`."""
        ...


class SystemNetwork:
    """The machine's sockets, on the running event loop.

    `connect_timeout`: seconds for one attempt. `is_shared`: returns whether all programs of this
    machine share a literal address; the limits of one address do not apply to it (END-18)."""

    def __init__(
        self,
        *,
        connect_timeout: float = 10.0,
        is_shared: Callable[[str], bool] | None = None,
    ) -> None:
        self._connect_timeout = connect_timeout
        self._is_shared = is_shared or is_loopback

    async def listen(self, factory: Factory, address: str, door: Door) -> Listening:
        """Listen on TCP, or on a Unix socket that only its owner may open."""
        path = unix_path(address)
        if path is not None:
            _remove_stale_socket(path)
            return _UnixListening(self._accept(factory, [_bind_privately(path)], door), path)
        host, port = host_and_port(address)
        if host == ALL:
            bound = _bind_everywhere(port)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            bound = _bind_all([(family, where) for family, *_, where in dict.fromkeys(found)])
        return _TcpListening(self._accept(factory, bound, door), host)

    def _accept(self, factory: Factory, bound: list[socket.socket], door: Door) -> list[Acceptor]:
        """Listen on bound sockets; close all of them if one fails."""
        acceptors: list[Acceptor] = []
        try:
            for one in bound:
                one.setblocking(False)
                one.listen(BACKLOG)
                acceptors.append(Acceptor(one, factory, door=door, is_shared=self._is_shared))
        except OSError:
            for one in bound:
                one.close()
            raise
        return acceptors

    async def connect(
        self, factory: Factory, address: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect over TCP or to a Unix socket.

        A name is resolved each time. Each of its addresses gets an equal share of the remaining
        time, so that an address without an answer leaves time for the next ones (END-16)."""
        loop = asyncio.get_running_loop()
        path = unix_path(address)
        if path is not None:
            return await loop.create_unix_connection(factory, path)
        host, port = host_and_port(address)
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        deadline = loop.time() + self._connect_timeout
        failures: list[OSError] = []
        for number, (family, _, protocol, _, where) in enumerate(found):
            share = (deadline - loop.time()) / (len(found) - number)
            try:
                async with asyncio.timeout(share):
                    _check_room(family)
                    return await loop.create_connection(
                        factory, str(where[0]), port, family=family, proto=protocol
                    )
            except OSError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        reasons = (
            f"{tcp_address(str(where[0]), port)}: {str(error) or 'no answer'}"
            for (*_, where), error in zip(found, failures, strict=True)
        )
        raise OSError(failures[-1].errno, "; ".join(reasons))

    async def places(self, address: str) -> frozenset[str]:
        """Resolve the name to addresses with the port; a literal is returned unresolved."""
        if unix_path(address) is not None:
            return frozenset({address})
        host, port = host_and_port(address)
        if _is_literal(host):
            return frozenset({address.lower()})
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return frozenset(tcp_address(str(where[0]), port).lower() for *_, where in found)


def try_listening(address: str) -> None:
    """Raise the `OSError` that listening on the address would raise; change nothing."""
    path = unix_path(address)
    if path is not None:
        _is_stale(path)
        return
    host, port = host_and_port(address)
    found = socket.getaddrinfo(
        None if host == ALL else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    for family, kind, protocol, _, where in found:
        try:
            probe = socket.socket(family, kind, protocol)
        except OSError:
            continue  # a machine without IPv6
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(where)
            except OSError as error:
                if host != ALL or family != socket.AF_INET6 or error.errno not in _NO_IPV6:
                    raise


class _TcpListening:
    def __init__(self, acceptors: list[Acceptor], host: str) -> None:
        self._acceptors = acceptors
        self._address = tcp_address(host, acceptors[0].port)

    @property
    def address(self) -> str:
        return self._address

    def close(self) -> None:
        for one in self._acceptors:
            one.close()


class _UnixListening:
    def __init__(self, acceptors: list[Acceptor], path: str) -> None:
        self._acceptors = acceptors
        self._path = path
        self._inode = os.stat(path).st_ino

    @property
    def address(self) -> str:
        return UNIX + self._path

    def close(self) -> None:
        for one in self._acceptors:
            one.close()
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)


def unix_path(address: str) -> str | None:
    """Return the path of a `unix:` address; None = the address is of another kind."""
    return address[len(UNIX) :] if address.startswith(UNIX) else None


def host_and_port(address: str) -> tuple[str, int]:
    """Return lower-case host and port of `TCP://host:port`; raise `OSError` for another form."""
    if address[: len(TCP)].lower() != TCP:
        raise OSError(f"not a network address: {address!r}")
    host, colon, port = address[len(TCP) :].removesuffix("/").rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise OSError(f"not of the form TCP://host:port: {address!r}")
    if int(port) > HIGHEST_PORT:
        raise OSError(f"no such port: {address!r}")
    return host, int(port)


def tcp_address(host: str, port: int) -> str:
    """Return the address of a host and a port; an IPv6 literal gets brackets."""
    return f"TCP://[{host}]:{port}" if ":" in host else f"TCP://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a peer's literal address is this machine; "" means a Unix socket."""
    if not host:
        return True
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _check_room(family: int) -> None:
    """Raise `OSError` if a connection would use a descriptor that is reserved (REL-27)."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if not is_descriptor_free(probe.fileno(), is_local=True):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _is_literal(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return False


def _bind_everywhere(port: int) -> list[socket.socket]:
    """Return sockets of both address families bound to the same port, chosen if `port` is 0."""
    first = _bind_all([(socket.AF_INET, ("0.0.0.0", port))])  # noqa: S104
    real = int(first[0].getsockname()[1])
    try:
        return first + _bind_all([(socket.AF_INET6, ("::", real))])
    except OSError as error:
        if error.errno in _NO_IPV6:
            return first  # a machine without IPv6
        first[0].close()
        raise


def _bind_all(places: list[tuple[int, tuple[object, ...]]]) -> list[socket.socket]:
    """Return a socket bound to each place, without IPv6 where the machine has none.

    If one place cannot be bound, close all sockets."""
    bound: list[socket.socket] = []
    try:
        for family, where in places:
            try:
                one = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if error.errno not in _NO_IPV6 or family != socket.AF_INET6:
                    raise
                continue  # a machine without IPv6
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(where)
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound


def let_others_in(address: str) -> None:
    """Let every user connect to a listening Unix socket; do nothing for TCP.

    The kernel names the user of each connection, and grants decide on the user's rights (CLP-130).
    """
    if address.startswith("unix:"):
        os.chmod(address.removeprefix("unix:"), 0o666)  # noqa: S103  # that is the point


def _bind_privately(path: str) -> socket.socket:
    """Return a bound Unix socket that only its owner may open; it does not listen yet."""
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(path)
        os.chmod(path, 0o600)
    except OSError:
        bound.close()
        raise
    return bound


def _remove_stale_socket(path: str) -> None:
    """Remove a socket that a killed process left; raise `OSError` if it is in use."""
    if _is_stale(path):
        os.unlink(path)


def _is_stale(path: str) -> bool:
    """Return whether a killed process left this socket.

    Raise `OSError` if the path is in use or is not a socket."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "it is there and is not a socket", path)
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except FileNotFoundError:
            return False
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
