"""Principals: the names of the principal at the other end of a client's connection, its rights.

Reads:  the peer credentials that the kernel keeps for a Unix socket, the list of users.
Calls:  security.grants.
Never:  relies on anything that a client states about itself.
"""

import asyncio
import os
import pwd
import socket
import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from brokerd.config.toml_file import did_you_mean
from brokerd.security.grants import PUBLIC, Grant, Grants, Rights
from brokerd.security.names import Kind
from brokerd.sessions.in_process_stream import LocalStream

PEER_UID: Final = "peer_uid"
"""Name of the extra information in which a simulated stream gives the uid of its user."""
PRINCIPAL: Final = "principal"
"""Name of the extra information in which a stream gives the owner of the certificate that its far
end has proven to hold, such as `client:till` (SEC-4)."""
_CREDENTIALS: Final = struct.Struct("3i")


Names = tuple[str, ...] | None
"""Names of a principal, to which something can be granted, without `public`; None = the daemon's
own user, or root, who need no grants."""


class Who(msgspec.Struct, frozen=True):
    """A principal that was recognised on one connection, for work on its behalf on another."""

    names: Names
    user: str
    """The principal under which its dialogs are counted (REL-45), and which is shown."""


ON_BEHALF: Final = "on_behalf"
"""Name of the extra information in which a stream inside the process gives the `Who` for whom it
was opened (MON-27); without it, the stream is the daemon's own."""


class Principals:
    """The grants of one instance, applied to its clients."""

    def __init__(self, grants: Grants, *, certified: Collection[str] | None = None) -> None:
        """Create the principals.

        certified: names of the peers and clients whose certificates are installed; None = unknown.
        """
        self._grants = grants
        self._certified = certified
        self._masters: tuple[int, ...] = (0, os.geteuid())

    def unknown(self) -> list[str]:
        """Return a line for each user, peer and client in the grants that is not known here now."""
        grants = [one.grant for one in self._grants.entries]
        return [*unknown_users(grants), *self._uncertified(grants)]

    def _uncertified(self, grants: Iterable[Grant]) -> Iterator[str]:
        known = self._certified
        if known is not None:
            for name in sorted({one.to for one in grants if ":" in one.to} - set(known)):
                yield f"no certificate of {name} is installed here{did_you_mean(name, known)}"

    def names(self, transport: asyncio.BaseTransport) -> Names:
        """Return the names of a client, which stay the same while it is connected.

        A client in this process is the daemon's own user, or works for a `Who`. The kernel names
        the user at the other end of a Unix socket, and a certificate the client at the other end of
        a TCP connection. Without either, nobody is known there."""
        if isinstance(transport, LocalStream):
            who = _on_behalf(transport)
            return None if who is None else who.names
        uid = _uid(transport)
        if uid is None:
            principal = transport.get_extra_info(PRINCIPAL)
            return (principal,) if isinstance(principal, str) else ()
        return None if uid in self._masters else user_names(uid)

    def rights(self, names: Names) -> Rights | None:
        """Return the present rights of a client; None = all rights.

        A client has all rights if it is the daemon's own user or root, or if the instance has no
        grants about clients (CLP-130). A client with a certificate always needs grants."""
        if names is None:
            return None
        rights = self._grants.rights(names)
        if rights is None and any(name.startswith(f"{Kind.CLIENT}:") for name in names):
            return Rights()  # of those that come over the network, nobody has rights by default
        return rights

    @staticmethod
    def user(transport: asyncio.BaseTransport) -> str:
        """Return the principal under which the dialogs of a client are counted (REL-45).

        Empty: the client is in this process, and works for nobody else."""
        if isinstance(transport, LocalStream):
            who = _on_behalf(transport)
            return "" if who is None else who.user
        uid = _uid(transport)
        if uid is None:
            principal = transport.get_extra_info(PRINCIPAL)
            return principal if isinstance(principal, str) else PUBLIC
        return _name(uid) or str(uid)


def _on_behalf(stream: LocalStream) -> Who | None:
    who = stream.get_extra_info(ON_BEHALF)
    return who if isinstance(who, Who) else None


def user_names(uid: int) -> tuple[str, ...]:
    """Return the names to which something can be granted for a user: its number, its name."""
    name = _name(uid)
    return (str(uid), name) if name else (str(uid),)


def names_of(principal: str) -> tuple[str, ...]:
    """Return all names of a principal, given one: of a user, both its name and its number."""
    try:
        uid = int(principal) if principal.isdecimal() else pwd.getpwnam(principal).pw_uid
    except (KeyError, ValueError):
        return (principal,)
    return user_names(uid)


def is_stranger(transport: asyncio.BaseTransport | None) -> bool:
    """Return whether nothing is known of a client: it came over TCP, and no certificate names it.

    It learns nothing from a refusal that it did not say itself (SX-17)."""
    if transport is None or isinstance(transport.get_extra_info(PRINCIPAL), str):
        return False
    there = transport.get_extra_info("socket")
    return there is not None and there.family != socket.AF_UNIX


def unknown_users(grants: Iterable[Grant]) -> list[str]:
    """Return a line for each user in the grants that does not exist on this machine.

    Grants to such a user have no effect. A uid counts as a user even if it has no name here. Peers
    and clients with certificates are no users of the machine."""
    names = sorted({one.to for one in grants if ":" not in one.to} - {PUBLIC})
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
