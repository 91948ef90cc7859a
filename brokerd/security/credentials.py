"""Credentials: principals, their certificates, and the instance's own, as memory holds them.

PURE.   Reads: what it was given.               Calls: security.certificates.
Never:  stores anything: `storage.credentials` does, before memory is changed (design D1).

A principal is a peer or a client program, and owns the certificates installed for it (SEC-4). Its
name has its kind in front, `peer:west` or `client:billing`, so that no user of the machine can
have the same name. `public` is everybody, and owns nothing.
"""

import hashlib
from collections.abc import Callable, Iterable
from enum import StrEnum

from msgspec import Struct

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument, ObjectNotFound
from brokerd.ids import InstanceId
from brokerd.security.certificates import Certificate, why_not_valid
from brokerd.security.names import Kind, principal_name

__all__ = [
    "Credentials",
    "Installed",
    "Kind",
    "Principal",
    "Purpose",
    "principal_name",
]


class Purpose(StrEnum):
    """The uses of a certificate."""

    TRANSPORT = "transport"
    """TLS connections of peers and clients (SEC-2)."""
    DIALOG = "dialog"
    """Keys of dialogs, end to end (SEC-31)."""


class Principal(Struct, frozen=True, kw_only=True):
    """A peer instance or a client program."""

    name: str
    """With its kind: `peer:west`."""
    kind: Kind
    created_at: Instant
    created_by: str
    instance_id: InstanceId | None = None
    """The only instance that may log in as this peer; None = it has not logged in yet (SEC-55)."""
    addresses: tuple[str, ...] = ()
    """Addresses, in normal form, that only this peer may serve."""


class Installed(Struct, frozen=True, kw_only=True):
    """A certificate that an administrator installed, or one of this instance's own."""

    certificate: Certificate
    purpose: Purpose
    principal: str | None
    """The owner; None = this instance."""
    installed_at: Instant
    is_active: bool = True
    """Whether dialogs may begin with it (SEC-21, SEC-22)."""
    private_key: bytes | None = None
    """Wrapped by the master key; None = of somebody else."""


class Credentials:
    """All principals and certificates of one instance."""

    def __init__(
        self, principals: Iterable[Principal] = (), certificates: Iterable[Installed] = ()
    ) -> None:
        self.principals: dict[str, Principal] = {one.name: one for one in principals}
        self.certificates: dict[bytes, Installed] = {
            one.certificate.id: one for one in certificates
        }
        self.version = 0
        """Rises with each change; contexts for TLS are made anew where it has risen."""
        self._watchers: list[Callable[[], None]] = []

    def load(self, principals: Iterable[Principal], certificates: Iterable[Installed]) -> None:
        """Add what the store has, at a start."""
        self.principals.update({one.name: one for one in principals})
        self.certificates.update({one.certificate.id: one for one in certificates})
        self._changed()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after each change."""
        self._watchers.append(watcher)

    def own(self, purpose: Purpose, now: Instant) -> Installed | None:
        """Return the own certificate to use now; None = no active certificate is valid (SEC-21).

        If several are valid, the one that expires last is used."""
        return self._best(None, purpose, now)

    def own_all(self, purpose: Purpose) -> list[Installed]:
        """Return all own certificates with this purpose, valid or not."""
        return [
            one
            for one in self.certificates.values()
            if one.principal is None and one.purpose is purpose
        ]

    def owned_by(self, name: str) -> list[Installed]:
        """Return all certificates of a principal, valid or not."""
        return [one for one in self.certificates.values() if one.principal == name]

    def of_principal(self, name: str, purpose: Purpose, now: Instant) -> Installed | None:
        """Return the certificate of a principal to begin a dialog with (SEC-22)."""
        return self._best(name, purpose, now)

    def installed(self, purpose: Purpose, kind: Kind | None = None) -> list[Installed]:
        """Return the certificates of others, valid or not, with this purpose."""
        return [
            one
            for one in self.certificates.values()
            if one.principal is not None
            and one.purpose is purpose
            and (kind is None or self.principals[one.principal].kind is kind)
        ]

    def owner(self, encoded: bytes, purpose: Purpose, now: Instant) -> Principal:
        """Return the owner of a certificate that the far end has proven to hold (SEC-4).

        Raises:
            ObjectNotFound: nobody here owns the certificate.
            InvalidArgument: the certificate is not valid now; the text says why (SEC-11).
        """
        found = self.certificates.get(hashlib.sha256(encoded).digest())
        if found is None or found.principal is None or found.purpose is not purpose:
            raise ObjectNotFound("the certificate is not installed here")
        if why := why_not_valid(found.certificate, now):
            raise InvalidArgument(why)
        return self.principals[found.principal]

    def server_of(self, address: str) -> Principal | None:
        """Return the only peer that may serve an address; None = any peer may."""
        return next((one for one in self.principals.values() if address in one.addresses), None)

    def bound_to(self, instance: InstanceId) -> Principal | None:
        """Return the only principal that may log in as an instance; None = any may (SEC-55)."""
        return next((one for one in self.principals.values() if one.instance_id == instance), None)

    def put(self, *changed: Principal | Installed) -> None:
        """Add or replace principals and certificates; the store has them already."""
        for one in changed:
            if isinstance(one, Principal):
                self.principals[one.name] = one
            else:
                self.certificates[one.certificate.id] = one
        self._changed()

    def remove_principal(self, name: str) -> None:
        """Remove a principal and its certificates; the store has removed them already."""
        del self.principals[name]
        for key, one in list(self.certificates.items()):
            if one.principal == name:
                del self.certificates[key]
        self._changed()

    def remove_certificate(self, certificate_id: bytes) -> None:
        """Remove a certificate; the store has removed it already."""
        del self.certificates[certificate_id]
        self._changed()

    def _best(self, principal: str | None, purpose: Purpose, now: Instant) -> Installed | None:
        fit = [
            one
            for one in self.certificates.values()
            if one.principal == principal
            and one.purpose is purpose
            and one.is_active
            and not why_not_valid(one.certificate, now)
        ]
        return max(fit, key=lambda one: one.certificate.not_after, default=None)

    def _changed(self) -> None:
        self.version += 1
        for watcher in self._watchers:
            watcher()
