"""Listeners: finds out whether a given process listens on an address (BI-C5).

Reads:  the kernel's tables of sockets (Linux).      Calls: the operating system.
Never:  guesses; if the kernel does not show the listeners, the answer is None.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from sys import byteorder
from typing import Final, NamedTuple

from brokerd.transport.network import ALL, host_and_port, unix_path

_LISTENING: Final = "0A"
_TABLES: Final = {socket.AF_INET: "tcp", socket.AF_INET6: "tcp6"}
_CREDENTIALS: Final = struct.Struct("iII")
"""Layout of SO_PEERCRED: process, user and group."""
_SOCKET: Final = "socket:["


class _Listener(NamedTuple):
    family: int
    host: bytes
    port: int
    inode: str

    def overlaps(self, family: int, host: bytes, port: int) -> bool:
        """Return whether this socket keeps all others from listening on this host and port."""
        is_any = not any(self.host) or not any(host)
        return (self.family, self.port) == (family, port) and (is_any or self.host == host)


def is_listener(pid: int, address: str) -> bool | None:
    """Return whether the process, and no other, listens on `address`; None = unknown."""
    try:
        if (path := unix_path(address)) is not None:
            return _pid_at(path) == pid
        return _is_tcp_listener(pid, address)
    except (OSError, ValueError, AttributeError):  # not Linux, or another user's process
        return None


def listener_at(path: str) -> int | None:
    """Return the id of the process that began to listen on a Unix socket; None = unknown."""
    try:
        return _pid_at(path)
    except (OSError, AttributeError):  # nobody listens, or not Linux
        return None


def _pid_at(path: str) -> int:
    """Return the id of the process that began to listen on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        probe.connect(path)
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[0])


def _is_tcp_listener(pid: int, address: str) -> bool:
    host, port = host_and_port(address)
    wanted = socket.getaddrinfo(
        None if host == ALL else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    places = [
        (family, socket.inet_pton(family, str(where[0]).partition("%")[0]))
        for family, _, _, _, where in wanted
    ]
    own = _sockets_of(pid)
    holders = [
        one.inode in own
        for one in _listeners()
        if any(one.overlaps(family, packed, port) for family, packed in places)
    ]
    return bool(holders) and all(holders)


def _sockets_of(pid: int) -> set[str]:
    """Return the inode numbers of the sockets that a process has open."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            target = os.readlink(descriptor)
            if target.startswith(_SOCKET):
                found.add(target[len(_SOCKET) : -1])
    return found


def _listeners() -> Iterator[_Listener]:
    """Yield all listening TCP sockets of this machine."""
    for family, table in _TABLES.items():
        path = Path("/proc/net") / table
        if family == socket.AF_INET6 and not path.exists():
            continue  # a machine without IPv6
        for line in path.read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTENING:
                host, _, port = words[1].partition(":")
                yield _Listener(family, _packed(host), int(port, 16), words[9])


def _packed(host: str) -> bytes:
    """Return the address in network order; the kernel prints its words in machine order."""
    words = (host[at : at + 8] for at in range(0, len(host), 8))
    return b"".join(int(word, 16).to_bytes(4, byteorder) for word in words)
