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
from collections.abc import Collection, Iterable
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
    client_addresses: Iterable[str], peer_addresses: Iterable[str], *, has_grants: bool
) -> tuple[OpenListener, ...]:
    """Return the listeners that other machines can reach.

    `has_grants`: whether `clients.grants` limits the rights of clients."""
    risks = {
        CLIENTS: "anyone who reaches it may do what clients.grants gives to public, unencrypted"
        if has_grants
        else "anyone who reaches it may do everything, running programs included, unencrypted",
        PEERS: "anyone who reaches it may pass for any peer, send and read messages, unencrypted",
    }
    doors = [(CLIENTS, address) for address in client_addresses]
    doors += [(PEERS, address) for address in peer_addresses]
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


def openings(
    *,
    client_addresses: Collection[str],
    trusts_network: bool,
    peer_addresses: Collection[str],
    encryption: str,
    authentication: str,
    allows_plaintext: bool,
    core_dumps: bool,
    has_grants: bool,
    plain_http: str = "",
) -> tuple[str, ...]:
    """Return a sentence for everything that these settings open, but for listeners above (SEC-88).

    `encryption`, `authentication`: of the broker endpoint, which listens at `peer_addresses`.
    `plain_http`: the address for HTTP without TLS; empty = there is none."""
    may = "what is granted to public" if has_grants else "everything"
    local = [one for one in client_addresses if _is_tcp(one) and is_local_address(one)]
    said = [
        f"clients at {one} prove nothing: every user of this machine may do {may}" for one in local
    ]
    if _is_tcp(plain_http):
        said.append(
            f"HTTP at {plain_http}: every user of this machine may read figures, names of queues "
            "and addresses of peers"
        )
    if trusts_network and all(map(is_local_address, client_addresses)):
        said.append(
            "clients.trust_network admits clients of other machines in clear, should a listener "
            "reach them"
        )
    at = ", ".join(peer_addresses)
    if at and encryption == "disabled" and all(map(is_local_address, peer_addresses)):
        said.append(
            f"peers at {at} prove nothing (endpoint.encryption is disabled): every user of this "
            "machine may pass for any peer"
        )
    elif at and encryption == "supported":
        said.append(f"peers at {at} that do not encrypt are let in as public, if it may connect")
    elif at and authentication == "certificate,public":
        said.append(f"peers at {at} without a certificate are let in as public, if it may connect")
    if allows_plaintext and (
        encryption != "disabled" or all(map(is_local_address, peer_addresses))
    ):
        said.append(
            "transport.allow_plaintext admits unencrypted peers of other machines, should the "
            "endpoint take them"
        )
    if core_dumps:
        said.append("daemon.core_dumps lets a crash write keys and bodies to a file")
    return tuple(said)


def in_clear(broker: str) -> str:
    """Return the sentence for a broker whose dialogs are encrypted only if a binding says so."""
    return (
        f"dialogs of broker {broker} leave in clear where they have no binding "
        "(default_encryption is off)"
    )


def describe(door: OpenListener) -> str:
    """Return one line that describes a listener to an operator."""
    return f"{door.who} at {door.address} ({door.permitted_by}): {door.risk}"


def _is_tcp(address: str) -> bool:
    return address[: len(_TCP)].lower() == _TCP


def is_local_address(address: str) -> bool:
    """Return whether an address, `unix:PATH` or `TCP://host:port`, admits this machine only."""
    if not _is_tcp(address):
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
