"""Principals: the verbs for peers, clients and certificates (CLP-160 to CLP-166, SEC-9).

Reads:  the credentials.      Calls: the credential store, which makes each change; the exchange.
Never:  returns a private key, or trusts a certificate before the administrator has sent it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from brokerd.admin.certificate_exchange import CertificateExchange
from brokerd.admin.credential_store import CredentialStore
from brokerd.admin.key_rotation import KeyRotation
from brokerd.clock import Clock
from brokerd.errors import InUse, InvalidArgument, ObjectNotFound
from brokerd.ids import show
from brokerd.protocol import credential_verbs as wire
from brokerd.routing.address import parse_tcp
from brokerd.security.certificate_files import read_certificates
from brokerd.security.certificates import Certificate, show_id, why_not_valid
from brokerd.security.credentials import Installed, Kind, Principal, Purpose

Row = dict[str, Any]
_FORMS: Final = "a principal is written peer:NAME or client:NAME"


class PrincipalAdministration:
    """Performer of the verbs for peers, clients and certificates."""

    def __init__(
        self,
        *,
        store: CredentialStore,
        exchange: CertificateExchange,
        rotation: KeyRotation,
        is_vouched_for: Callable[[Kind], bool],
        clock: Clock,
    ) -> None:
        """Create the performer. `is_vouched_for`: whether a CA makes certificates of this kind."""
        self._store = store
        self._exchange = exchange
        self._rotation = rotation
        self._is_vouched_for = is_vouched_for
        self._clock = clock

    async def run(  # noqa: PLR0911  # one return a verb
        self, verb: wire.CredentialVerb, actor: str
    ) -> object:
        """Perform a verb and return its answer."""
        match verb:
            case wire.InstallPrincipal(name, options):
                return await self.install(name, options, actor)
            case wire.RevokePrincipal(name):
                return await self.revoke(name, actor)
            case wire.OwnCertificates(wait):
                if wait:
                    await self._exchange.wait(self._newest(Purpose), wait)
                return self.exported()
            case wire.MakeCertificates(purposes):
                return await self.make(_distinct(purposes), actor)
            case wire.SwitchCertificates(purposes, options):
                return await self.switch(_distinct(purposes), options, actor)
            case wire.DropCertificate(certificate_id):
                gone = await self._store.remove_certificate(certificate_id, actor=actor)
                return {"principal_name": gone.principal, **_certificate(gone)}
            case wire.ReplaceMasterKey():
                await self._store.replace_key(actor=actor)
                await self._rotation.claim()
                return self.exported()
            case wire.RotateMasterKey():
                return {"brokers": await self._rotation.rotate(actor=actor)}

    # Principals.

    async def install(self, name: str, options: wire.InstallOptions, actor: str) -> Row:
        """Add a principal, or install what it lacks; a repeat changes nothing.

        Raises:
            InvalidArgument: name, address or certificate is wrong, or the certificate has expired.
            InUse: a certificate or an address belongs to another.
            ObjectNotFound: a new principal would have no certificate.
        """
        kind, short = _parse_name(name)
        given = [one for content in options.certificates for one in read_certificates(content)]
        for _, certificate in given:
            self._refuse_expired(certificate)
        addresses = options.addresses
        if addresses is not None:
            addresses = list(dict.fromkeys(parse_tcp(one).text for one in addresses))
            if addresses and kind is not Kind.PEER:
                raise InvalidArgument("only a peer serves an address")
        known = self._store.credentials.principals.get(f"{kind}:{short}")
        if known is None:
            return await self._add(kind, short, given, tuple(addresses or ()), actor)
        new = []
        for purpose, certificate in given:
            if not self._has(known.name, certificate):
                new.append(await self._store.install(known.name, purpose, certificate, actor=actor))
        if addresses is not None and tuple(addresses) != known.addresses:
            known = await self._store.set_addresses(known.name, tuple(addresses), actor=actor)
        return self._principal_row(known, is_new=False, new=new)

    async def _add(
        self,
        kind: Kind,
        name: str,
        given: list[tuple[Purpose, Certificate]],
        addresses: tuple[str, ...],
        actor: str,
    ) -> Row:
        if not given and not self._is_vouched_for(kind):
            raise ObjectNotFound(
                f"there is no {kind}:{name} here, and no certificate to add it with",
                hint=f"brokerd {kind} add {name} --certificate FILE",
            )
        made = await self._store.add_principal(kind, name, *given, actor=actor, addresses=addresses)
        new = self._store.credentials.owned_by(made.name)
        return self._principal_row(made, is_new=True, new=new)

    async def revoke(self, name: str, actor: str) -> Row:
        """Remove a principal with all it owns; its connections end.

        Raises:
            ObjectNotFound: there is none of that name.
        """
        owned = self._store.credentials.owned_by(name)
        gone = await self._store.remove_principal(name, actor=actor)
        return {"name": gone.name, "certificates": [_certificate(one) for one in owned]}

    def _has(self, name: str, certificate: Certificate) -> bool:
        there = self._store.credentials.certificates.get(certificate.id)
        return there is not None and there.principal == name

    def _refuse_expired(self, certificate: Certificate) -> None:
        now = self._clock.utc()
        if now > certificate.not_after:
            raise InvalidArgument(
                why_not_valid(certificate, now),
                hint="have its owner make the next one: brokerd certificate renew",
            )

    def _principal_row(self, one: Principal, *, is_new: bool, new: list[Installed]) -> Row:
        now = self._clock.utc()
        return {
            "name": one.name,
            "is_new": is_new,
            "instance_id": None if one.instance_id is None else show(one.instance_id),
            "addresses": list(one.addresses),
            "installed": [_certificate(it) for it in new],
            "notes": [why for it in new if (why := why_not_valid(it.certificate, now))],
        }

    # Own certificates.

    def exported(self) -> list[Row]:
        """Return the certificates that others should have, in use and next."""
        return [self._own_row(one) for purpose in Purpose for one in self._shown(purpose)]

    async def make(self, purposes: list[Purpose], actor: str) -> list[Row]:
        """Make the next certificates, and use them at once if nobody else knows the present ones.

        Raises:
            NoMasterKey: the instance has no master key.
            InUse: an earlier next certificate is waiting to be used.
        """
        for purpose in purposes:
            waiting = self._next(purpose)
            if waiting is not None:
                raise InUse(
                    f"the next certificate for {purpose} is made already, and waits to be used: "
                    f"{show_id(waiting.certificate.id)}",
                    hint="install what `brokerd certificate export --next` prints at all peers and "
                    "clients, then: brokerd certificate switch",
                )
        rows = []
        for purpose in purposes:
            is_known = bool(self._store.credentials.principals)
            made = await self._store.make_own(purpose, actor=actor, is_active=not is_known)
            if not is_known:
                made = await self._store.switch_own(purpose, actor=actor)
            rows.append(self._own_row(made))
        return rows

    async def switch(
        self, purposes: list[Purpose], options: wire.SwitchOptions, actor: str
    ) -> list[Row]:
        """Use the newest certificates from now on (SEC-9, SEC-66).

        Raises:
            InUse: peers have not installed them.
        """
        waiting = [one for one in purposes if self._next(one) is not None]
        lacking = await self._exchange.wait(self._newest(waiting), options.wait)
        if waiting and lacking and not options.anyway:
            who = "; ".join(f"{name}: {why}" for name, why in lacking.items())
            raise InUse(
                f"not all peers have installed the next certificates ({who})",
                hint="wait for them: brokerd certificate switch --wait 60s; or have them added by "
                "hand (brokerd certificate export --next), and switch with --anyway",
            )
        return [
            self._own_row(await self._store.switch_own(purpose, actor=actor))
            for purpose in purposes
        ]

    def _newest(self, purposes: Iterable[Purpose]) -> list[bytes]:
        """Return the ids of the certificates that `switch` would use."""
        return [
            max(mine, key=lambda one: one.installed_at).certificate.id
            for purpose in purposes
            if (mine := self._store.credentials.own_all(purpose))
        ]

    def _next(self, purpose: Purpose) -> Installed | None:
        """Return the certificate that `switch_own` would use, and that is not used yet."""
        mine = self._store.credentials.own_all(purpose)
        newest = max(mine, key=lambda one: one.installed_at, default=None)
        return None if newest is None or newest.is_active else newest

    def _shown(self, purpose: Purpose) -> list[Installed]:
        """Return the certificates that others should have: the present one, and the next."""
        present = self._store.credentials.own(purpose, self._clock.utc())
        return [one for one in (present, self._next(purpose)) if one is not None]

    def _own_row(self, one: Installed) -> Row:
        used = self._store.credentials.own(one.purpose, self._clock.utc())
        return {
            **_certificate(one),
            "is_in_use": one is used,
            "pem": one.certificate.pem,
            "lacking": self._exchange.lacking([one.certificate.id]),
        }


def _parse_name(name: str) -> tuple[Kind, str]:
    kind, _, short = name.partition(":")
    try:
        return Kind(kind), short
    except ValueError:
        raise InvalidArgument(f"{name!r} is no name of a peer or a client", hint=_FORMS) from None


def _distinct(purposes: tuple[wire.PurposeName, ...]) -> list[Purpose]:
    return [Purpose(one) for one in dict.fromkeys(purposes)]


def _certificate(one: Installed) -> Row:
    return {
        "certificate_id": show_id(one.certificate.id),
        "purpose": str(one.purpose),
        "subject": one.certificate.subject,
        "start_date": one.certificate.not_before,
        "expiry_date": one.certificate.not_after,
    }
