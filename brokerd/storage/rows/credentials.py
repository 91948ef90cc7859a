"""Credentials: principals and certificates, kept in `msdb`; statements and row mapping (SEC-4).

Reads:  the tables `principals` and `certificates`.      Calls: `audit`, `grants`.
Never:  decrypts a private key, or judges a certificate.
"""

from collections.abc import Callable
from typing import Any, Final

import orjson
from msgspec import Struct
from sqlalchemy import bindparam, delete, select

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.ids import InstanceId
from brokerd.security.certificates import Certificate, read_certificate
from brokerd.security.credentials import Installed, Kind, Principal, Purpose
from brokerd.security.dialog_certificates import read_dialog_certificate
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.rows.audit import append
from brokerd.storage.rows.grants import remove_of_principal
from brokerd.storage.statements import Inserts, Script, sql
from brokerd.storage.tables import certificates, principals
from brokerd.telemetry.audit import Entry


class StoredCredentials(Struct, frozen=True):
    """The principals and certificates of a store; there are none but in `msdb`."""

    principals: tuple[Principal, ...] = ()
    certificates: tuple[Installed, ...] = ()


class CredentialChange(Struct, frozen=True, kw_only=True):
    """Changes that are made together, and the entries of the audit that say so."""

    put: tuple[Principal | Installed, ...] = ()
    """Added, or changed; a principal comes before its certificates."""
    removed_principal: str | None = None
    """Name of a principal to be removed with its certificates and grants."""
    removed_certificates: tuple[bytes, ...] = ()
    entries: tuple[Entry, ...] = ()


def load(connection: Connection) -> StoredCredentials:
    """Return all principals and certificates."""
    return StoredCredentials(
        tuple(_principal(*row) for row in connection.execute(_load_principals)),
        tuple(_installed(*row) for row in connection.execute(_load_certificates)),
    )


def write(
    connection: Connection,
    change: CredentialChange,
    also: Callable[[Connection], None] | None = None,
) -> None:
    """Make the changes in one transaction; `also`: further statements of it."""
    script = Script()
    named = [one for one in change.put if isinstance(one, Principal)]
    _put_principals.add(script, [_row_of_principal(one) for one in named])
    certified = [one for one in change.put if isinstance(one, Installed)]
    _put_certificates.add(script, [_row_of_certificate(one) for one in certified])
    with transaction(connection):
        script.run(connection)
        connection.executemany(_remove_certificate, [(one,) for one in change.removed_certificates])
        if change.removed_principal is not None:
            connection.execute(_remove_principal, (change.removed_principal,))
            remove_of_principal(connection, change.removed_principal)
        if also is not None:
            also(connection)
        append(connection, change.entries)


def _principal(  # noqa: PLR0917  # the columns of the table
    name: str,
    kind: str,
    instance_id: bytes | None,
    addresses: str,
    created_at: int,
    created_by: str,
) -> Principal:
    return Principal(
        name=name,
        kind=Kind(kind),
        created_at=Instant(created_at),
        created_by=created_by,
        instance_id=None if instance_id is None else InstanceId(instance_id),
        addresses=tuple(orjson.loads(addresses)),
    )


def _row_of_principal(one: Principal) -> tuple[Any, ...]:
    addresses = orjson.dumps(one.addresses).decode()
    return (
        one.name,
        one.kind.value,
        one.instance_id,
        addresses,
        one.created_at,
        one.created_by,
    )


def _installed(  # noqa: PLR0917  # the columns of the table
    _id: bytes,
    purpose: str,
    principal: str | None,
    encoded: bytes,
    not_before: int,
    not_after: int,
    private_key: bytes | None,
    is_active: int,
    installed_at: int,
) -> Installed:
    return Installed(
        certificate=_parse(
            Purpose(purpose), Certificate(encoded, "", Instant(not_before), Instant(not_after))
        ),
        purpose=Purpose(purpose),
        principal=principal,
        installed_at=Instant(installed_at),
        is_active=bool(is_active),
        private_key=private_key,
    )


def _parse(purpose: Purpose, stored: Certificate) -> Certificate:
    """Parse a certificate; if that fails, return it as it was stored, which no key fits."""
    try:
        if purpose is Purpose.DIALOG:
            return read_dialog_certificate(stored.encoded)
        return read_certificate(stored.encoded)
    except InvalidArgument:
        return stored


def _row_of_certificate(one: Installed) -> tuple[Any, ...]:
    certificate = one.certificate
    return (
        certificate.id,
        one.purpose.value,
        one.principal,
        certificate.encoded,
        certificate.not_before,
        certificate.not_after,
        one.private_key,
        int(one.is_active),
        one.installed_at,
    )


_load_principals: Final = sql(select(principals).order_by(principals.c.name))
_load_certificates: Final = sql(
    select(certificates).order_by(certificates.c.installed_at, certificates.c.certificate_id)
)
_put_principals: Final = Inserts(principals, replace=True)
_put_certificates: Final = Inserts(certificates, replace=True)
_remove_principal: Final = sql(delete(principals).where(principals.c.name == bindparam("name")))
_remove_certificate: Final = sql(
    delete(certificates).where(certificates.c.certificate_id == bindparam("certificate_id"))
)
