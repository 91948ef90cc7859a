"""Principals: the user at the other end of a client's connection, and its rights.

Reads:  the peer credentials that the kernel keeps for a Unix socket, the list of users.
Calls:  security.grants.
Never:  relies on anything that a client states about itself.
"""

import asyncio
import os
import pwd
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Final

from brokerd.config.toml_file import did_you_mean
from brokerd.security.grants import PUBLIC, Grant, Rights, rights_of
from brokerd.sessions.in_process_stream import LocalStream

PEER_UID: Final = "peer_uid"
"""Name of the extra information in which a simulated stream gives the uid of its user."""
_CREDENTIALS: Final = struct.Struct("3i")


class Principals:
    """The grants of one instance, applied to its clients."""

    def __init__(self, grants: Sequence[Grant]) -> None:
        self._grants = grants
        self._masters: tuple[int, ...] = (0, os.geteuid())

    def unknown(self) -> list[str]:
        """Return a line for each user in the grants that does not exist on this machine now."""
        return unknown_users(self._grants)

    def rights(self, transport: asyncio.BaseTransport) -> Rights | None:
        """Return the rights of a client; None = all rights.

        A client has all rights if the instance has no grants, if the client is in this process,
        or if its user is root or the daemon's own. A client over TCP has no known user, and gets
        only the public grants."""
        if not self._grants or isinstance(transport, LocalStream):
            return None
        uid = _uid(transport)
        if uid is None:
            return rights_of(self._grants, ())
        if uid in self._masters:
            return None
        return rights_of(self._grants, (str(uid), _name(uid)))


def unknown_users(grants: Iterable[Grant]) -> list[str]:
    """Return a line for each user in the grants that does not exist on this machine.

    Grants to such a user have no effect. A uid counts as a user even if it has no name here."""
    names = sorted({one.to for one in grants} - {PUBLIC})
    return [
        f"there is no user {name!r} on this machine{_near(name)}"
        for name in names
        if not name.isdecimal() and not _is_user(name)
    ]


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


def _near(name: str) -> str:
    return did_you_mean(name, [one.pw_name for one in pwd.getpwall()])


def _uid(transport: asyncio.BaseTransport) -> int | None:
    peer_uid = transport.get_extra_info(PEER_UID)
    if isinstance(peer_uid, int):
        return peer_uid
    there = transport.get_extra_info("socket")
    if there is None or there.family != socket.AF_UNIX:
        return None
    said = there.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(said)[1]
    return uid


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""
