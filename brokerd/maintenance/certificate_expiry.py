"""Certificate expiry: warns before a certificate in use expires (NBT-21).

Reads:  the credentials, UTC.      Calls: the log.
Never:  makes or removes a certificate, or ends a connection whose certificate expires (SEC-8).
Wakes:  with the slow pass; a line is written 30, 7 and 1 days before, at the end, and once after
        each start.
"""

from collections.abc import Callable, Iterator
from typing import Final

from brokerd.clock import SECOND, Clock, show_instant
from brokerd.security.certificates import Certificate, show_id
from brokerd.security.credentials import Credentials, Installed, Purpose
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import CERTIFICATE
from brokerd.telemetry.status import BY_AUTHORITY, CertificateStatus, replacement

DAY: Final = 24 * 3600 * SECOND
STAGES: Final = (0, 1, 7, 30)
"""Days before the end at which a line is written, in this order; 0 = it has expired."""


class CertificateExpiry:
    """The watch on the certificates in use: of each owner and purpose, the one that lasts longest.

    If a newer certificate is installed already, the end of an older one needs no action (SEC-9).
    """

    def __init__(
        self,
        *,
        credentials: Credentials,
        clock: Clock,
        log: Log,
        of_authority: Callable[[], Certificate | None] = lambda: None,
    ) -> None:
        """Create the watch.

        `of_authority`: returns the certificate that a company's own CA has made for this instance;
        None = there is none, or it cannot be read (SEC-67)."""
        self._credentials = credentials
        self._of_authority = of_authority
        self._clock = clock
        self._log = log
        self._logged: dict[bytes, int] = {}

    def check(self) -> int:
        """Log the certificates that have come nearer to their end; return the number of lines."""
        now, lines = self._clock.utc(), 0
        for one in self._in_use():
            certificate = one.certificate
            left = certificate.not_after - now
            stage = next((days for days in STAGES if left <= days * DAY), None)
            if stage is None or self._logged.get(certificate.id, 2**30) <= stage:
                continue
            self._logged[certificate.id] = stage
            lines += 1
            self._log.warning(
                CERTIFICATE,
                subclass="expires_soon" if stage else "expired",
                principal=one.principal,
                purpose=one.purpose.value,
                certificate_id=show_id(certificate.id),
                not_after=show_instant(certificate.not_after),
                days_left=left // DAY,
                hint=replacement(one.principal or ""),
            )
        return lines

    def soon(self) -> list[CertificateStatus]:
        """Return the certificates in use that have expired, or will within 30 days."""
        now = self._clock.utc()
        return [
            CertificateStatus(
                owner=one.principal or "",
                purpose=one.purpose.value,
                certificate_id=show_id(one.certificate.id),
                not_after=one.certificate.not_after,
                days_left=(one.certificate.not_after - now) // DAY,
            )
            for one in sorted(self._in_use(), key=lambda one: one.certificate.not_after)
            if one.certificate.not_after - now <= STAGES[-1] * DAY
        ]

    def days_left(self) -> dict[str, float]:
        """Return the days until the first certificate in use expires, of own and others' apart."""
        now = self._clock.utc()
        left: dict[str, float] = {}
        for one in self._in_use():
            is_own = one.principal in (None, BY_AUTHORITY)
            name = "own_certificate_days" if is_own else "peer_certificate_days"
            days = (one.certificate.not_after - now) / DAY
            left[name] = min(days, left.get(name, days))
        return left

    def _in_use(self) -> Iterator[Installed]:
        last: dict[tuple[str, str], Installed] = {}
        for one in self._credentials.certificates.values():
            if not one.is_active:
                continue
            key = (one.principal or "", one.purpose.value)
            known = last.get(key)
            if known is None or known.certificate.not_after < one.certificate.not_after:
                last[key] = one
        yield from last.values()
        certificate = self._of_authority()
        if certificate is not None:
            yield Installed(
                certificate=certificate,
                purpose=Purpose.TRANSPORT,
                principal=BY_AUTHORITY,
                installed_at=certificate.not_before,
            )
