"""One declared remote service binding: from its table in a file or a request to a value. PURE.

Reads:  one table of TOML values.      Calls: security.credentials, for the form of a principal.
Never:  knows which principals exist: they are in the store of `msdb`, and `admin.objects` asks.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from brokerd.config.toml_file import Problems
from brokerd.errors import DuplicateBinding, MayNotOwnCertificates
from brokerd.objects.keys import MAX_REMOTE_NAME
from brokerd.security.bindings import Binding
from brokerd.security.credentials import Kind as PrincipalKind

KEYS: Final = ("name", "service", "principal", "anonymous")
"""Keys that a table of a remote service binding may have."""
_OWNERS: Final = tuple(f"{kind.value}:" for kind in PrincipalKind)
"""First letters of the names of principals that may own certificates."""


def read_binding(
    at: str, name: str, table: Mapping[str, object], problems: Problems, *, anonymous: bool
) -> Binding:
    """Return the binding that a table declares; meaningless if problems were added (SEC-18)."""
    service, principal = table.get("service"), table.get("principal")
    if not isinstance(service, str) or not 1 <= len(service) <= MAX_REMOTE_NAME:
        problems.add(
            f"{at}.service", f"name the remote service, 1 to {MAX_REMOTE_NAME} characters (SEC-18)"
        )
        service = ""
    if not isinstance(principal, str) or not principal:
        problems.add(
            f"{at}.principal", "name the owner of the service's certificate: peer:NAME (SEC-18)"
        )
        principal = ""
    elif why := why_no_owner(principal):
        problems.add(f"{at}.principal", why, error=MayNotOwnCertificates)
    return Binding(name, service, principal, anonymous)


def why_no_owner(principal: str) -> str:
    """Return why a principal may not own certificates; empty = it may (SEC-18)."""
    kind = next((one for one in _OWNERS if principal.startswith(one)), None)
    if kind is not None and principal != kind:
        return ""
    return f"{principal!r} may not own certificates: only peer:NAME and client:NAME may (SEC-18)"


def refuse_same_service(placed: Iterable[tuple[str, Binding]], problems: Problems) -> None:
    """Add a problem for each binding whose service has an earlier one (SEC-18)."""
    first: dict[str, str] = {}
    for at, one in placed:
        other = first.setdefault(one.service_name, one.name)
        if other != one.name:
            text = f'service "{one.service_name}" has the binding "{other}" already (SEC-18)'
            problems.add(f"{at}.service", text, error=DuplicateBinding)
