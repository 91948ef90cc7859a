"""Views of security: principals, certificates, the audit (SEC-4, SX-15).

Reads: the credentials in memory; the audit in the store of `msdb`.      Calls: storage.
Never: shows a private key (SX-9), or changes anything.
"""

from collections.abc import Mapping
from typing import Final

import orjson

from brokerd.admin.views.stored import Page, Row, is_wanted
from brokerd.broker.broker import Broker
from brokerd.clock import SECOND, Clock
from brokerd.errors import InvalidArgument
from brokerd.ids import show
from brokerd.model import MSDB
from brokerd.protocol.admin_verbs import ViewOptions
from brokerd.security.certificates import show_id, why_not_valid
from brokerd.security.credentials import Credentials, Installed

_DAY: Final = 24 * 3600 * SECOND
_ALL: Final = 2**62


class SecurityViews:
    """Source of the rows about principals, certificates and the audit."""

    def __init__(
        self, *, credentials: Credentials, brokers: Mapping[str, Broker], clock: Clock
    ) -> None:
        self._credentials = credentials
        self._brokers = brokers
        self._clock = clock

    def principals(self) -> list[Row]:
        """Return a row for each peer and client."""
        return [
            {
                "name": one.name,
                "type": str(one.kind),
                "instance_id": None if one.instance_id is None else show(one.instance_id),
                "addresses": list(one.addresses),
                "create_date": one.created_at,
                "created_by": one.created_by,
                "certificates": len(self._credentials.owned_by(one.name)),
            }
            for one in self._credentials.principals.values()
        ]

    def certificates(self) -> list[Row]:
        """Return a row for each certificate, this instance's own among them."""
        return [self._certificate(one) for one in self._credentials.certificates.values()]

    def _certificate(self, one: Installed) -> Row:
        now, certificate = self._clock.utc(), one.certificate
        return {
            "certificate_id": show_id(certificate.id),
            "purpose": str(one.purpose),
            "principal_name": one.principal,
            "subject": certificate.subject,
            "start_date": certificate.not_before,
            "expiry_date": certificate.not_after,
            "days_left": (certificate.not_after - now) // _DAY,
            "is_active": one.is_active,
            "is_in_use": one is self._used(one),
            "why_not_valid": why_not_valid(certificate, now) or None,
            "has_private_key": one.private_key is not None,
            "installed_at": one.installed_at,
        }

    def _used(self, one: Installed) -> Installed | None:
        now = self._clock.utc()
        if one.principal is None:
            return self._credentials.own(one.purpose, now)
        return self._credentials.of_principal(one.principal, one.purpose, now)

    async def audit(self, options: ViewOptions) -> Page:
        """Return a page of entries, newest first.

        Raises:
            InvalidArgument: the cursor is no end of a page, or an age is given.
        """
        if options.older_than is not None:
            raise InvalidArgument("the rows of view audit have no age")
        before, rows, store = _cursor(options.after), list[Row](), self._brokers[MSDB].store
        while True:
            found = await store.audit.page(before, options.limit)
            for one in found:
                before = one.key
                row: Row = {
                    "audit_id": one.key,
                    "event_time": one.at,
                    "action": str(one.action),
                    "actor": one.actor or None,
                    "subject": one.subject,
                    "outcome": str(one.outcome),
                    "detail": orjson.dumps(one.detail).decode(),
                }
                if is_wanted(row, options.where):
                    rows.append(row)
                if len(rows) == options.limit:
                    return Page(rows, str(before))
            if len(found) < options.limit:
                return Page(rows, None)


def _cursor(after: str | None) -> int:
    if after is None:
        return _ALL
    if not after.isdecimal():
        raise InvalidArgument(f"after: {after[:64]!r} is no end of a page")
    return min(int(after), _ALL)
