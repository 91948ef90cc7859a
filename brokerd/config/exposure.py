"""Exposure: listeners that other machines can reach, and the setting that permits each (SX-21).

PURE.   Reads: addresses as they are written.      Calls: nothing.
Never:  resolves a name. The operator of the resolver could change the answer between a check and
        the bind, so every host name but `localhost` counts as reachable from other machines.

The far end of an unencrypted TCP connection proves nothing. The listeners returned by
`beyond_this_machine` are refused unless the settings permit them, and are reported by
`config check`, `status`, `doctor` and the log. So is the HTTP listener, although it is encrypted
there: it speaks the language that every scanner of ports speaks (SX-25).
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

import msgspec

CLIENTS: Final = "clients"
PEERS: Final = "peers"
HTTP: Final = "http"
PERMITTED_BY: Final = {
    CLIENTS: "clients.trust_network",
    PEERS: "transport.allow_plaintext",
    HTTP: "http.tls",
}
"""The setting that permits each kind of listener beyond this machine."""
_TCP: Final = "tcp://"


class OpenListener(msgspec.Struct, frozen=True, kw_only=True):
    """A listener that can be reached from other machines."""

    who: str
    """Users of the listener: `clients`, `peers` or `http`."""
    address: str
    permitted_by: str
    """The setting that permits the listener."""
    risk: str
    """The harm that anyone who reaches the listener can do."""


def beyond_this_machine(
    client_address: str, peer_addresses: Iterable[str], *, has_grants: bool
) -> tuple[OpenListener, ...]:
    """Return the listeners that other machines can reach.

    `has_grants`: whether `clients.grants` limits the rights of clients."""
    risks = {
        CLIENTS: "anyone who reaches it may do what clients.grants gives to public, unencrypted"
        if has_grants
        else "anyone who reaches it may do everything, running programs included, unencrypted",
        PEERS: "anyone who reaches it may pass for any peer, send and read messages, unencrypted",
    }
    doors = [(CLIENTS, client_address), *((PEERS, address) for address in peer_addresses)]
    return tuple(
        OpenListener(who=who, address=address, permitted_by=PERMITTED_BY[who], risk=risks[who])
        for who, address in doors
        if not is_local_address(address)
    )


def encrypted_http(address: str) -> tuple[OpenListener, ...]:
    """Return the HTTP listener, if other machines can reach it. `address`: empty = there is none.

    It is always encrypted there (SX-25)."""
    if not address or is_local_address(address):
        return ()
    risk = "callers with an installed client certificate read metrics and the page, as granted"
    return (OpenListener(who=HTTP, address=address, permitted_by=PERMITTED_BY[HTTP], risk=risk),)


def describe(door: OpenListener) -> str:
    """Return one line that describes a listener to an operator."""
    return f"{door.who} at {door.address} ({door.permitted_by}): {door.risk}"


def is_local_address(address: str) -> bool:
    """Return whether an address, `unix:PATH` or `TCP://host:port`, admits this machine only."""
    if address[: len(_TCP)].lower() != _TCP:
        return True  # a socket in the file system
    host, _, _ = address[len(_TCP) :].removesuffix("/").rpartition(":")
    return is_loopback_host(host.removeprefix("[").removesuffix("]"))


def is_loopback_host(host: str) -> bool:
    """Return whether a host is this machine: a loopback address, or `localhost`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
