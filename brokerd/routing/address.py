"""Addresses: LOCAL, TRANSPORT and `TCP://host:port`, parsed and normalised (END-13 to END-15).

Normalised text is the key of a destination: two spellings of one address share one queue and
one suppression state (END-14).

Reads:  text.      Calls: nothing.
Never:  resolves a host name; each connection attempt does (END-16).
Fails:  with `InvalidArgument`, which names the invalid part.
"""

import ipaddress
import re
from functools import lru_cache
from typing import Final

import msgspec

from brokerd.errors import InvalidArgument

LOCAL: Final = "LOCAL"
"""Address of a route to a service of this instance."""
TRANSPORT: Final = "TRANSPORT"
"""Address of a route for services whose name begins with their address (RTE-62)."""
DEFAULT_PORT: Final = 4022
MAX_ADDRESS: Final = 256
"""Largest number of characters of an address (END-13)."""

_SCHEME = "tcp://"
_MAX_HOST = 253
_MAX_PORT = 65535
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_HINT = "write TCP://host:port; an IPv6 address goes in brackets, the port defaults to 4022"


class TcpAddress(msgspec.Struct, frozen=True):
    """A network address in normal form."""

    host: str
    """Host in lower case; an IPv6 literal without its brackets."""
    port: int

    @property
    def text(self) -> str:
        """Normalised text: the key of the destination (END-14)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SCHEME}{host}:{self.port}"


def parse_tcp(text: str, *, any_port: bool = False) -> TcpAddress:
    """Parse `TCP://host:port` (END-13); `any_port` admits port 0, for listening (END-2).

    Raises:
        InvalidArgument: the text is not such an address; the message names the invalid part.
    """
    if len(text) > MAX_ADDRESS:
        raise _too_long(text)
    if not text[: len(_SCHEME)].lower() == _SCHEME:
        raise _bad(text, "it does not begin with TCP://")
    rest = text[len(_SCHEME) :].removesuffix("/")
    host, port = _split(text, rest)
    address = TcpAddress(host=_host(text, host), port=_port(text, port, any_port=any_port))
    if len(address.text) > MAX_ADDRESS:  # the normal form is stored and parsed again
        raise _too_long(address.text)
    return address


@lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    """Return the address of a route in normal form (END-14, END-15).

    Results are cached, since every change of objects normalises the addresses of all routes again,
    and different addresses are usually few.

    Raises:
        InvalidArgument: the text is neither LOCAL nor TRANSPORT nor a network address.
    """
    word = text.upper()
    if word in (LOCAL, TRANSPORT):
        return word
    return parse_tcp(text).text


def address_in_name(service_name: str) -> str | None:
    """Return the normalised address that a service name begins with (RTE-62), or None.

    `TCP://far:4022/Orders/Checkout` gives `tcp://far:4022`.
    """
    if service_name[: len(_SCHEME)].lower() != _SCHEME:
        return None
    end = service_name.find("/", len(_SCHEME))
    try:
        return parse_tcp(service_name if end < 0 else service_name[:end]).text
    except InvalidArgument:
        return None


def _split(text: str, rest: str) -> tuple[str, str | None]:
    """Return host and port as written; the port is None if the text has none."""
    if not rest.startswith("["):
        host, colon, port = rest.partition(":")
        return host, port if colon else None
    host, bracket, after = rest.partition("]")
    if not bracket or (after and not after.startswith(":")):
        raise _bad(text, "the brackets around the IPv6 address are off")
    return host + bracket, after[1:] if after else None


def _host(text: str, host: str) -> str:
    host = host.lower()
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError as error:
            raise _bad(text, f"{host} is no IPv6 address") from error
    labels = host.split(".")
    if labels[-1].isdigit():
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError as error:
            raise _bad(text, f"{host} is no IPv4 address") from error
    if len(host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise _bad(text, f"{host!r} is no host name")
    return host


def _port(text: str, port: str | None, *, any_port: bool) -> int:
    if port is None:
        return DEFAULT_PORT
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= len("65535") else -1
    if not (0 if any_port else 1) <= number <= _MAX_PORT:
        raise _bad(text, f"{port!r} is no port")
    return number


def _too_long(text: str) -> InvalidArgument:
    return _bad(text[:40] + "...", f"it is longer than {MAX_ADDRESS} characters")


def _bad(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{text!r} is no network address: {why}", hint=_HINT)
