"""What an [endpoint] section may say, in the file and when it is altered (END-2 to END-11, SEC-10).

Reads:  values.     Calls: exposure.     Never: opens a port.
"""

import ipaddress
from collections.abc import Iterator

from brokerd.config.exposure import is_loopback_host
from brokerd.config.settings import Authentication, Encryption, Endpoint

ALL = "all"


def complaints(endpoint: Endpoint, *, allow_plaintext: bool) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it), for everything that is."""
    yield from _about_addresses(endpoint)
    if endpoint.encryption is not Encryption.DISABLED:
        yield (
            "encryption",
            f'"{endpoint.encryption}" needs certificates, which this version does not have yet; '
            'set encryption = "disabled" and authentication = "none", on loopback only (SEC-10)',
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
