"""SRV records: the addresses of a service in DNS (RFC 2782); needs dnspython, the extra `dns`.

Reads:  name servers.      Calls: dnspython, and routing.address.
Never:  resolves the names of targets: each attempt to connect does (END-16).
Fails:  with `Unanswered`, whose text is the answer of DNS, or reports that no answer came in time.
"""

import importlib
import ipaddress
from collections.abc import Container, Iterable
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from brokerd.errors import ConfigError, InvalidArgument
from brokerd.routing.address import normalise

EXTRA: Final = "dns"
LEAST_LIFETIME: Final = 30
"""Shortest validity of an answer in seconds; a TTL of 0 would cause endless queries."""
_LONGEST_NAME: Final = 253
_LONGEST_LABEL: Final = 63
_PORT: Final = 53
_LAST_PORT: Final = 65_535


class DnsOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name servers to query, and the time-out of a query."""

    servers: list[str] = []
    """Addresses of name servers, `127.0.0.1` or `127.0.0.1:5353`; [] = those of the system."""
    timeout: Annotated[float, Meta(gt=0, le=60)] = 5.0
    """Seconds that a query may take, including repeats and queries to other servers."""


class Target(NamedTuple):
    """One usable SRV record."""

    priority: int
    weight: int
    address: str


class Found(msgspec.Struct, frozen=True):
    """The evaluated SRV records of a name."""

    targets: tuple[Target, ...]
    lifetime: int
    """Seconds for which the records are valid."""
    unusable: tuple[str, ...] = ()
    """Error texts of records without a usable address."""


class Unanswered(Exception):
    """Error raised if no record can be used; the text gives the reason."""


class SrvRecords:
    """The resolver, which queries the name servers for SRV records."""

    def __init__(self, options: DnsOptions) -> None:
        """Create the resolver.

        Raises `ConfigError` if dnspython is missing, or neither `options` nor the system names a
        server."""
        self._options = options
        self._resolver = _resolver(options)

    async def look_up(self, name: str) -> Found:
        """Return the records of a name such as `_brokerd._tcp.example.net`.

        Raises `Unanswered` if no record can be used, or DNS gives no answer in time."""
        exception = importlib.import_module("dns.exception")
        resolver = importlib.import_module("dns.resolver")
        limit = self._options.timeout
        try:
            answer = await self._resolver.resolve(f"{name.rstrip('.')}.", "SRV", lifetime=limit)
        except resolver.NXDOMAIN:
            raise Unanswered(f"DNS knows no name {name}") from None
        except resolver.NoAnswer:
            raise Unanswered(f"DNS has no SRV records for {name}") from None
        except exception.Timeout:
            text = f"no name server said anything about {name} in {limit:g} s"
            raise Unanswered(text) from None
        except (exception.DNSException, OSError) as error:
            raise Unanswered(f"DNS gave no answer about {name}: {error}") from None
        records = [
            (int(one.priority), int(one.weight), int(one.port), one.target.to_text(True))
            for one in answer
        ]
        return found(name, records, ttl=int(answer.rrset.ttl))


def found(name: str, records: Iterable[tuple[int, int, int, str]], *, ttl: int) -> Found:
    """Return the evaluated records, given as (priority, weight, port, host). PURE.

    Raises `Unanswered` if no record can be used."""
    targets: list[Target] = []
    unusable: list[str] = []
    for priority, weight, port, host in sorted(records):
        if host in (".", "") or port == 0:
            unusable.append(f"target {host} and port {port} mean that it is not offered")
            continue
        try:
            targets.append(Target(priority, weight, normalise(f"TCP://{host}:{port}")))
        except InvalidArgument as error:
            unusable.append(error.message)
    if not targets:
        raise Unanswered(f"no SRV record of {name} can be used: {'; '.join(unusable)}")
    return Found(tuple(targets), max(ttl, LEAST_LIFETIME), tuple(unusable))


def chosen(targets: Iterable[Target], failed: Container[str]) -> list[str]:
    """Return the addresses for routes: all ranks up to the first with a working address. PURE.

    The lowest priority comes first; within a priority, weight 0 comes after the others. Other
    weights make no difference: dialogs take turns among equally fitting routes (RTE-25). A failed
    address stays in the list, because a dialog bound to it can use no other (RTE-27)."""
    ranks: dict[tuple[int, bool], list[str]] = {}
    for priority, weight, address in targets:
        ranks.setdefault((priority, weight == 0), []).append(address)
    addresses: dict[str, None] = {}
    for rank in sorted(ranks):
        addresses |= dict.fromkeys(ranks[rank])
        if any(one not in failed for one in ranks[rank]):
            break
    return list(addresses)


def check_name(name: str) -> None:
    """Check the name of an SRV record; raise `InvalidArgument` for a wrong name."""
    labels = name.rstrip(".").split(".")
    lengths = all(1 <= len(one) <= _LONGEST_LABEL for one in labels)
    if not (name.isascii() and name.isprintable() and " " not in name and lengths):
        raise InvalidArgument(f"{name!r} is no name in DNS")
    if len(name) > _LONGEST_NAME or not name.startswith("_"):
        raise InvalidArgument(f"{name!r} is not of the form _service._tcp.domain")


def check_server(text: str) -> tuple[str, int]:
    """Return the address and port of a name server; raise `InvalidArgument` for any other text."""
    try:
        return str(ipaddress.ip_address(text.strip("[]"))), _PORT
    except ValueError:
        host, _, port = text.rpartition(":")
    try:
        address, number = str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError:
        address, number = "", 0
    if not 1 <= number <= _LAST_PORT:
        raise InvalidArgument(f"{text!r} is no address of a name server, as 127.0.0.1:53")
    return address, number


def _resolver(options: DnsOptions) -> Any:  # noqa: ANN401  # type of an optional library
    try:
        library = importlib.import_module("dns.asyncresolver")
    except ImportError:
        hint = f"pip install brokerd[{EXTRA}]"
        raise ConfigError("SRV records are looked up by dnspython", hint=hint) from None
    if not options.servers:
        try:
            return library.Resolver()
        except importlib.import_module("dns.resolver").NoResolverConfiguration:
            hint = 'name them: [dns] servers = ["127.0.0.1"]'
            raise ConfigError("this machine names no name servers", hint=hint) from None
    nameserver = importlib.import_module("dns.nameserver").Do53Nameserver
    resolver = library.Resolver(configure=False)
    resolver.nameservers = [nameserver(*check_server(one)) for one in options.servers]
    return resolver
