"""Checks of settings that concern more than one key, or need more than its form (BI-C1, BI-C2).

PURE.   Reads: the settings tree.      Calls: exposure, the parsers of addresses and grants.
Never:  stops at the first problem, or opens what it checks.
"""

import ipaddress
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from brokerd.config import database_url
from brokerd.config.bounds import MAX_SOCKET_PATH
from brokerd.config.exposure import is_local_address, is_loopback_host
from brokerd.config.settings import (
    Authentication,
    CertificateAuthority,
    Encryption,
    Endpoint,
    Settings,
)
from brokerd.config.toml_file import Problems
from brokerd.errors import InvalidArgument
from brokerd.model import MSDB
from brokerd.routing.address import parse_tcp
from brokerd.security.grants import parse_grant
from brokerd.security.names import NAME, rule_problem


def check_whole(settings: Settings, problems: Problems) -> None:
    _check_clients(settings, problems)
    _check_http(settings, problems)
    _check_endpoint(settings, problems)
    _check_authority(settings.ca, problems)
    _check_mirroring(settings, problems)
    _check_server(settings, problems)
    for low, high in _ORDERED:
        if _value(settings, low) > _value(settings, high):
            problems.add(low, f"must not be above {high}")
    wire = settings.transport  # a boxcar is added while less than the mark is unsent
    if wire.send_mark + wire.boxcar_bytes > wire.destination_memory:
        problems.add(
            "transport.destination_memory",
            "must not be below transport.send_mark and transport.boxcar_bytes together",
        )


_ORDERED: Final = (
    ("dispatcher.mem_low", "dispatcher.mem_high"),
    ("dispatcher.mem_high", "dispatcher.mem_hard"),
    ("dispatcher.mem_dialog", "dispatcher.mem_hard"),
    ("dialog.retry_first", "dialog.retry_max"),
    ("transport.boxcar_bytes", "transport.max_frame"),
    ("dialog.fragment_size", "transport.boxcar_bytes"),
    ("transport.connect_timeout", "transport.login_timeout"),
    ("log.metrics_interval", "log.segment_age"),
)


def _value(settings: Settings, path: str) -> float:
    section, key = path.split(".")
    value = getattr(getattr(settings, section), key)
    return value.total_seconds() if isinstance(value, timedelta) else value


def _check_clients(settings: Settings, problems: Problems) -> None:
    for text in settings.clients.grants:
        try:
            parse_grant(text)
        except ValueError as error:
            problems.add("clients.grants", str(error))
    addresses = settings.client_addresses
    for address in addresses:
        _check_address("clients.listen", address, problems)
    if len(set(addresses)) < len(addresses):
        problems.add("clients.listen", "an address is there twice")
    elif sum(one.startswith("unix:") for one in addresses) > 1:
        problems.add("clients.listen", "there is one Unix socket: name one unix:PATH")


def _check_http(settings: Settings, problems: Problems) -> None:
    """Check the address of the HTTP listener, which beyond this machine is encrypted (SX-25)."""
    if not settings.http_address:
        return
    address, tls = settings.http_address, settings.http.tls
    if not _check_address("http.listen", address, problems):
        return
    if not tls and not is_local_address(address):
        problems.add(
            "http.listen",
            f"{address} can be reached from other machines: set http.tls = true, so that callers "
            "prove who they are, or listen at TCP://127.0.0.1:8022 or a Unix socket (SX-25)",
        )
    if tls and address.startswith("unix:"):
        problems.add("http.tls", "a Unix socket is not encrypted: give http.listen a TCP address")


def _check_address(key: str, address: str, problems: Problems) -> bool:
    """Add the problem of an address for listening; return whether it has none."""
    why = _why_no_listener(address)
    if why:
        problems.add(key, why)
    return not why


def _why_no_listener(address: str) -> str:
    """Return why nothing can listen at an address; empty = it is possible."""
    if address.startswith("unix:"):
        length = len(os.fsencode(address.removeprefix("unix:")))
        if length == 0:
            return "the path is missing: write unix:PATH"
        if length > MAX_SOCKET_PATH:
            return (
                f"the socket path has {length} bytes, the system takes {MAX_SOCKET_PATH}; "
                "give a shorter one or use TCP"
            )
        return ""
    try:
        parse_tcp(address, any_port=True)
    except InvalidArgument:
        return f"{address!r} is neither unix:PATH nor TCP://host:port"
    return ""


def _check_authority(ca: CertificateAuthority, problems: Problems) -> None:
    for key, rule in (("peers", ca.peers), ("clients", ca.clients)):
        if wrong := rule_problem(rule):
            problems.add(f"ca.{key}", wrong)
    if ca.file is None:
        for key in ("crl_file", "certificate", "key", "peers", "clients"):
            if getattr(ca, key):
                problems.add(f"ca.{key}", "it has no meaning without ca.file")
        return
    for key in ("certificate", "key"):
        if getattr(ca, key) is None:
            problems.add(f"ca.{key}", "this instance needs a certificate of the CA, and its key")
    if ca.peers and ca.peers.lower() == ca.clients.lower():
        problems.add(
            "ca.clients",
            "it is the rule of ca.peers as well: a client program could log in as a peer of the "
            f"same name, so give it names of its own, such as {NAME}.clients.example",
        )
    if not ca.peers and not ca.clients:
        problems.add("ca.peers", "say whose certificates the CA makes: ca.peers or ca.clients")


def _check_mirroring(settings: Settings, problems: Problems) -> None:
    mirroring = settings.mirroring
    if not mirroring.brokers:
        return
    if mirroring.directory in (None, settings.instance.data_dir):
        problems.add(
            "mirroring.directory",
            "give the directory of the files that are shared with the partner; "
            "instance.data_dir is for this instance alone",
        )
    if MSDB in mirroring.brokers:
        problems.add("mirroring.brokers", f"{MSDB} belongs to one instance and has no mirror")


def _check_server(settings: Settings, problems: Problems) -> None:
    """Check the database of the stores (REL-56)."""
    if not settings.is_on_server:
        return
    for what in database_url.problems_of(settings.store.url):
        problems.add("store.url", what)
    if settings.mirroring.brokers:
        problems.add(
            "mirroring.brokers",
            "stores in a database are shared without it: a second daemon with the same store.url "
            "waits for them; leave this key out",
        )


def _check_endpoint(settings: Settings, problems: Problems) -> None:
    if settings.endpoint is not None:
        plaintext = settings.transport.allow_plaintext
        for key, what in complaints(settings.endpoint, allow_plaintext=plaintext):
            problems.add(f"endpoint.{key}", what)


ALL = "all"
_NEVER_PLAIN: Final = (Encryption.SUPPORTED, Authentication.CERTIFICATE)


def complaints(endpoint: Endpoint, *, allow_plaintext: bool) -> Iterator[tuple[str, str]]:
    """Yield the key and the description of every problem of the endpoint."""
    yield from _about_addresses(endpoint)
    if endpoint.encryption is not Encryption.DISABLED:
        if endpoint.authentication is Authentication.NONE:
            yield (
                "authentication",
                f'"none" is for encryption = "disabled" only: with encryption = '
                f'"{endpoint.encryption}" set "certificate" or "certificate,public" (SEC-10)',
            )
        elif (endpoint.encryption, endpoint.authentication) == _NEVER_PLAIN:
            yield (
                "encryption",
                '"supported" admits unencrypted peers, which prove nothing: set authentication = '
                '"certificate,public" to let them in as public, or encryption = "required"',
            )
    elif endpoint.authentication is not Authentication.NONE:
        yield (
            "authentication",
            f'"{endpoint.authentication}" must be "none" where encryption is "disabled": nothing '
            "would prove it (SEC-10)",
        )
    elif not allow_plaintext and not all(map(is_loopback_host, endpoint.listen)):
        yield (
            "listen",
            "unencrypted connections are allowed on loopback only; listen on 127.0.0.1, or set "
            "transport.allow_plaintext = true if you trust everyone on that network (SEC-10)",
        )


def _about_addresses(endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    seen: set[object] = set()
    for name in endpoint.listen:
        address = _ip(name)
        if name != ALL and address is None:
            yield "listen", f"{name!r} is neither all nor an IP address (END-3)"
        elif (address or name) in seen:
            yield "listen", f"{name!r} is there twice"
        seen.add(address or name)
    if len(endpoint.listen) > 1 and ALL in endpoint.listen:
        yield "listen", '"all" stands alone'


def _ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
