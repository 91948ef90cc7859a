"""Acquaintance: what this instance says about itself in a pairing, and what it makes of the other.

Reads:  credentials, the endpoint, the services of a broker.      Calls: security, protocol.pairing.
Never:  sends or stores anything.
Fails:  `InvalidArgument`, which says what this instance lacks for a pairing, or what is wrong with
        the other's description.
"""

import re
from collections.abc import Collection
from typing import Final

import msgspec

from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import InvalidArgument, ObjectNotFound
from brokerd.ids import InstanceId
from brokerd.model import MSDB, is_system
from brokerd.objects.keys import MAX_REMOTE_NAME
from brokerd.protocol.pairing import MOST_SERVICES, Offer
from brokerd.routing.address import parse_tcp
from brokerd.security.certificates import Certificate, read_certificate, why_not_valid
from brokerd.security.credentials import Credentials, Kind, Purpose, principal_name
from brokerd.security.dialog_certificates import read_dialog_certificate
from brokerd.security.pairing import Acquaintance
from brokerd.transport.endpoint import BrokerEndpoint
from brokerd.transport.network import is_loopback
from brokerd.transport.pairing import reachable_host

_NO_PATTERN: Final = re.compile(r"[^\s*?\[]+")
"""Names that a grant can contain, and that match no other name."""
_MOST_SERVICE_BYTES: Final = 48 * 1024
"""Limit of the names of services in an offer, so that it fits into a frame."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of the administrator of this instance."""

    broker: Broker
    """Broker whose services the other instance gets routes to, and that gets routes itself."""
    actor: str
    name: str | None = None
    """Name for the other instance; None = the name that it says."""
    shares: tuple[str, ...] = ()
    """Services of the broker that the other instance may begin dialogs with."""
    address: str | None = None
    """Address of this instance for the other one; None = find it out."""


class Stranger(msgspec.Struct, frozen=True, kw_only=True):
    """An instance to be paired with, by a description that has been checked."""

    acquaintance: Acquaintance
    dialog_certificate: Certificate | None
    services: tuple[str, ...]


class Self:
    """The description of this instance."""

    def __init__(
        self,
        *,
        name: str,
        credentials: Credentials,
        endpoint: BrokerEndpoint,
        is_encrypted: bool,
        clock: Clock,
    ) -> None:
        """Create the description. `is_encrypted`: whether the endpoint speaks TLS."""
        self._name = name
        self._credentials = credentials
        self._endpoint = endpoint
        self._is_encrypted = is_encrypted
        self._clock = clock

    def check(self, wishes: Wishes) -> Certificate:
        """Return the own transport certificate, if this instance can be paired as wished.

        Raises:
            InvalidArgument: it cannot; the text says why.
            ObjectNotFound: a service to be shared does not exist.
        """
        broker = wishes.broker
        if broker.name == MSDB:
            raise InvalidArgument("msdb has no services: name a broker with --broker")
        if why := self._endpoint.why_unavailable:
            raise InvalidArgument(
                f"other machines cannot connect: {why}",
                hint="give the settings a section [endpoint] with listen and port, and start again",
            )
        if not self._is_encrypted:
            raise InvalidArgument(
                "the broker endpoint does not speak TLS, which pairing needs",
                hint='set endpoint.encryption = "required" in the settings, and start again',
            )
        own = self._credentials.own(Purpose.TRANSPORT, self._clock.utc())
        if own is None:
            raise InvalidArgument(
                "this instance has no valid certificate for connections",
                hint="see: brokerd certificate ls",
            )
        if wishes.name is not None:
            principal_name(Kind.PEER, wishes.name)
        for service in wishes.shares:
            if service not in broker.services:
                near = did_you_mean(service, broker.services)
                raise ObjectNotFound(
                    f"there is no service {service!r} in broker {broker.name!r}{near}"
                )
            if not _NO_PATTERN.fullmatch(service):
                raise InvalidArgument(
                    f"service {service!r} cannot be shared: in a grant its name means others too"
                )
        return own.certificate

    def address(self, given: str | None, local_host: str = "") -> str:
        """Return the address of this instance for the other one, in normal form.

        `given`: by the administrator. `local_host`: the address of this machine on a connection to
        the other one.

        Raises:
            InvalidArgument: it cannot be found out.
        """
        if given is not None:
            return parse_tcp(given).text
        host = reachable_host(self._endpoint.addresses, local_host)
        if host is None or not self._endpoint.port:
            raise InvalidArgument(
                "the address at which the other machine reaches this one is not known",
                hint="say it: --own-address TCP://HOST:PORT",
            )
        if local_host and not is_loopback(local_host) and is_loopback(host):
            raise InvalidArgument(
                f"the broker endpoint listens at {host} only, which other machines cannot reach",
                hint="set endpoint.listen in the settings, and start again",
            )
        shown = f"[{host}]" if ":" in host else host
        return parse_tcp(f"tcp://{shown}:{self._endpoint.port}").text

    def offer(self, wishes: Wishes, instance_id: InstanceId, address: str) -> Offer:
        """Return the description for the other instance."""
        own = self._credentials.own(Purpose.DIALOG, self._clock.utc())
        return Offer(
            name=self._name,
            instance_id=instance_id,
            address=address,
            dialog_certificate=b"" if own is None else own.certificate.encoded,
            services=_offered(wishes.broker.services, wishes.shares),
        )


def get_acquainted(offer: Offer, certificate: bytes, own_id: InstanceId, clock: Clock) -> Stranger:
    """Check the description of the other instance.

    Raises:
        InvalidArgument: something in it cannot be used; the text says what.
    """
    now = clock.utc()
    transport = read_certificate(certificate)
    dialog: Certificate | None = None
    if offer.dialog_certificate:
        dialog = read_dialog_certificate(offer.dialog_certificate)
    for one in (transport, dialog):
        if one is not None and (why := why_not_valid(one, now)):
            raise InvalidArgument(why)
    if offer.instance_id == own_id:
        raise InvalidArgument("the code is of this very instance: use it on the other machine")
    long = next((one for one in offer.services if len(one) > MAX_REMOTE_NAME), None)
    if long is not None:
        raise InvalidArgument(f"a service of the other machine has too long a name: {long[:40]}")
    return Stranger(
        acquaintance=Acquaintance(
            name=offer.name,
            instance_id=offer.instance_id,
            address=parse_tcp(offer.address).text,
            certificate=transport,
        ),
        dialog_certificate=dialog,
        services=offer.services,
    )


def _offered(services: Collection[str], first: Collection[str]) -> tuple[str, ...]:
    """Return the services that an offer names: those that were named first, as many as fit."""
    others = sorted(one for one in services if one not in first and not is_system(one))
    found: list[str] = []
    room = _MOST_SERVICE_BYTES
    for one in (*dict.fromkeys(first), *others):
        room -= len(one.encode())
        if len(found) == MOST_SERVICES or room < 0:
            break
        if one.isprintable():
            found.append(one)
    return tuple(found)
