"""Credential store: principals and certificates of one instance, and its own keys (SEC-2, SX-6).

Reads:  `msdb`, the key file, the clock.      Calls: security, storage.
Never:  shows a private key, makes a new master key while anything is encrypted by a lost one, or
        decides who may change something (sessions.permissions does).
Fails:  a change that cannot be stored changes nothing. Without the master key the instance works
        locally; what needs a private key raises `NoMasterKey` (SEC-5, SEC-38).

Each change is durable, with its entry in the audit, before memory shows it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from brokerd.clock import SECOND, Clock, Instant, show_instant
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import InUse, InvalidArgument, NoMasterKey, ObjectNotFound, StoreFull
from brokerd.ids import InstanceId, show
from brokerd.security.certificates import (
    Certificate,
    make_certificate,
    show_id,
    why_not_valid,
)
from brokerd.security.credentials import (
    Credentials,
    Installed,
    Kind,
    Principal,
    Purpose,
    principal_name,
)
from brokerd.security.dialog_certificates import make_dialog_certificate
from brokerd.security.master_key import MasterKey, Random
from brokerd.storage.connections import Connection
from brokerd.storage.files.key_file import NAME, make_key, read_keys, set_aside
from brokerd.storage.rows import credentials as stored
from brokerd.storage.rows.credentials import CredentialChange
from brokerd.storage.store import Store
from brokerd.telemetry.audit import Action, Entry
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION, CERTIFICATE


class Maker(Protocol):
    """A function that makes a certificate of one purpose."""

    def __call__(self, name: str, *, now: Instant, random: Random) -> tuple[Certificate, bytes]:
        """Return a new certificate of `name`, and its private key as bytes."""
        ...


MAKERS: Final[Mapping[Purpose, Maker]] = {
    Purpose.TRANSPORT: make_certificate,
    Purpose.DIALOG: make_dialog_certificate,
}
"""The makers of this instance's own certificates, by purpose."""


RENEW_WITHIN: Final = 30 * 24 * 3600 * SECOND
"""Time before its end at which a certificate that nobody else knows is replaced."""


class CredentialStore:
    """The only part that changes `Credentials`, and that decrypts private keys."""

    def __init__(
        self,
        *,
        instance: str,
        data_dir: Path,
        clock: Clock,
        random: Random | None,
        aside: Callable[[Callable[[], Any]], Awaitable[Any]],
        log: Log,
        makers: Mapping[Purpose, Maker] = MAKERS,
    ) -> None:
        """Create the store, empty. `random`: source of keys; None = the instance makes no keys."""
        self._instance = instance
        self._path = data_dir / NAME
        self._clock = clock
        self._random = random
        self._aside = aside
        self._log = log
        self._makers = makers
        self._msdb: Store
        self._changing = asyncio.Lock()
        self._why_no_key = "this instance makes no keys"
        self.credentials = Credentials()
        """All principals and certificates; others read them."""
        self.master_key: MasterKey | None = None
        """The master key; None = there is none, see `key`."""

    # At a start.

    async def open(self, msdb: Store) -> None:
        """Load what `msdb` has, read or make the master key, and make own certificates at need.

        Raises:
            UnsafeFile: other users can read or change the key file (SX-24).
        """
        self._msdb = msdb
        found = msdb.credentials
        self.credentials.load(found.principals, found.certificates)
        if self._random is None:
            return
        try:
            key, *former = await self._read_or_make_keys()
            self.master_key = MasterKey(key, self._random, former)
            self._check_key()
        except NoMasterKey as error:
            self.master_key, self._why_no_key = None, error.message
            self._log.error(
                CERTIFICATE, subclass="no_master_key", problem=error.message, hint=error.hint
            )
            return
        await self.renew()

    async def _read_or_make_keys(self) -> tuple[bytes, ...]:
        assert self._random is not None, "an instance that makes no keys needs none"
        keys: tuple[bytes, ...] | None = await self._aside(partial(read_keys, self._path))
        if keys is None and self._wrapped():
            raise NoMasterKey(
                f"{self._path} is not there, and keys that are stored were encrypted by it"
            )
        try:
            if keys is None:
                keys = (await self._aside(partial(make_key, self._path, self._random)),)
        except OSError as error:
            raise NoMasterKey(
                f"{self._path} cannot be made: {error.strerror}",
                hint="let the daemon's user write to the directory, and start it again",
            ) from error
        return keys

    def _check_key(self) -> None:
        """Raise `NoMasterKey` if the key decrypts none of the stored private keys."""
        wrapped = self._wrapped()
        for at, one in enumerate(wrapped, 1):
            try:
                self.private_key(one)
            except NoMasterKey:
                if at == len(wrapped):
                    raise NoMasterKey(
                        f"{self._path} is another key than that which encrypted what is stored"
                    ) from None
            else:
                return

    def _wrapped(self) -> list[Installed]:
        return [one for one in self.credentials.certificates.values() if one.private_key]

    @property
    def is_renewal_due(self) -> bool:
        """Whether `renew` has something to do."""
        return self.master_key is not None and any(self._to_renew())

    async def renew(self) -> int:
        """Make own certificates in place of those that expire soon, while nobody knows them.

        Once there are peers or clients, an administrator has to install the next certificate
        there, so only one that is missing or no longer valid is replaced, by the next one if it
        was made. Return the number replaced.
        """
        made = 0
        for purpose in list(self._to_renew()):
            try:
                if self.credentials.own(purpose, self._clock.utc()) is None and self._has_next(
                    purpose
                ):
                    await self.switch_own(purpose, actor="")
                else:
                    await self.make_own(purpose, actor="", is_active=True)
            except StoreFull:
                break  # the pass tries again
            made += 1
        return made

    def _has_next(self, purpose: Purpose) -> bool:
        """Return whether the newest own certificate is valid and not used yet."""
        newest = max(
            self.credentials.own_all(purpose), key=lambda one: one.installed_at, default=None
        )
        return (
            newest is not None
            and not newest.is_active
            and not why_not_valid(newest.certificate, self._clock.utc())
        )

    def _to_renew(self) -> Iterator[Purpose]:
        now = self._clock.utc()
        for purpose in self._makers:
            one = self.credentials.own(purpose, now)
            if one is None or (not self.credentials.principals and _expires_soon(one, now)):
                yield purpose

    # Keys.

    def why_no_key(self) -> str:
        """Return why the stored private keys cannot be used; empty = they can, or there are none.

        An instance that makes no keys has no use for them."""
        return "" if self.master_key is not None or self._random is None else self._why_no_key

    def key(self) -> MasterKey:
        """Return the master key.

        Raises:
            NoMasterKey: there is none; the text says why.
        """
        if self.master_key is None:
            raise NoMasterKey(self._why_no_key)
        return self.master_key

    async def replace_key(self, *, actor: str) -> None:
        """Give a lost master key up, with all that it encrypted here, and make another (SEC-38).

        After a crash at any moment the next start finds the old state, or one without anything
        encrypted, in which it makes the new key.

        Raises:
            InUse: the master key is there.
            NoMasterKey: the new one cannot be made.
        """
        async with self._changing:
            if self._random is None:
                raise NoMasterKey(self._why_no_key)
            if self.master_key is not None:
                raise InUse(
                    "the master key is there, and nothing is lost",
                    hint="to replace certificates: brokerd certificate renew",
                )
            lost = self._wrapped()
            removed = tuple(one.certificate.id for one in lost)
            entry = self._entry(Action.MASTER_KEY_REPLACED, actor, NAME, *lost)
            await self._write(CredentialChange(removed_certificates=removed, entries=(entry,)))
            for one in removed:
                self.credentials.remove_certificate(one)
            await self._aside(partial(set_aside, self._path))
            (key,) = await self._read_or_make_keys()
            self.master_key = MasterKey(key, self._random)
        self._log.warning(
            CERTIFICATE,
            subclass="master_key_replaced",
            actor=actor,
            certificates=[show_id(one) for one in removed],
        )
        await self.renew()

    def private_key(self, one: Installed) -> bytes:
        """Return the private key of an own certificate, as its maker returned it.

        Raises:
            NoMasterKey: there is no master key, or another one encrypted the private key.
            ObjectNotFound: the certificate is not one of this instance's own.
        """
        if one.private_key is None:
            raise ObjectNotFound("the private key of this certificate is not here")
        return self.key().unwrap(one.private_key, key_context(one.certificate.id))

    # Own certificates.

    async def make_own(self, purpose: Purpose, *, actor: str, is_active: bool) -> Installed:
        """Make a certificate of this instance's own; it is used only if `is_active` (SEC-9).

        Raises:
            NoMasterKey: there is no master key.
            InvalidArgument: this instance makes no certificates of this purpose.
        """
        maker = self._makers.get(purpose)
        key = self.key()
        if maker is None or self._random is None:
            raise InvalidArgument(f"this instance makes no certificates for {purpose}")
        now = self._clock.utc()
        certificate, private = maker(self._instance, now=now, random=self._random)
        made = Installed(
            certificate=certificate,
            purpose=purpose,
            principal=None,
            installed_at=self._after_others(purpose, now),
            is_active=is_active,
            private_key=key.wrap(private, key_context(certificate.id)),
        )
        await self._put(
            made, entry=self._entry(Action.CERTIFICATE_MADE, actor, show_id(certificate.id), made)
        )
        self._log.info(
            CERTIFICATE,
            subclass="made",
            actor=actor or None,
            purpose=purpose.value,
            certificate_id=show_id(certificate.id),
            not_after=show_instant(certificate.not_after),
            is_active=is_active,
        )
        return made

    def _after_others(self, purpose: Purpose, now: Instant) -> Instant:
        """Return an instant after which no other own certificate was made."""
        latest = max((one.installed_at for one in self.credentials.own_all(purpose)), default=now)
        return max(now, Instant(latest + 1))

    async def switch_own(self, purpose: Purpose, *, actor: str) -> Installed:
        """Use the newest of this instance's certificates, and no other (SEC-9).

        Raises:
            ObjectNotFound: there is no certificate.
        """
        async with self._changing:
            mine = self.credentials.own_all(purpose)
            if not mine:
                raise ObjectNotFound(f"this instance has no certificate for {purpose}")
            newest = max(mine, key=lambda one: one.installed_at)
            changed = [
                msgspec.structs.replace(one, is_active=one is newest)
                for one in mine
                if one.is_active is not (one is newest)
            ]
            subject = show_id(newest.certificate.id)
            if changed:
                entry = self._entry(Action.CERTIFICATE_SWITCHED, actor, subject, newest)
                await self._put(*changed, entry=entry)
                self._report("switch_certificate", actor, after=_shown(newest))
            return self.credentials.certificates[newest.certificate.id]

    # Principals.

    async def add_principal(
        self,
        kind: Kind,
        name: str,
        *certificates: tuple[Purpose, Certificate],
        actor: str,
        addresses: tuple[str, ...] = (),
        instance_id: InstanceId | None = None,
    ) -> Principal:
        """Add a peer or a client with its certificates, all or nothing.

        `name`: with or without its kind. `addresses`: in normal form.

        Raises:
            InvalidArgument: the name has another form.
            InUse: the name, a certificate, an address or the instance belongs to another.
        """
        full = principal_name(kind, name.removeprefix(f"{kind}:"))
        async with self._changing:
            if full in self.credentials.principals:
                raise InUse(
                    f"there is a {full} already",
                    hint=f"install a further certificate for it, or revoke it first: "
                    f"brokerd {kind} revoke {full.removeprefix(f'{kind}:')}",
                )
            now = self._clock.utc()
            new = Principal(
                name=full,
                kind=kind,
                created_at=now,
                created_by=actor,
                instance_id=instance_id,
                addresses=addresses,
            )
            self._refuse_taken(new)
            owned = [self._installable(full, purpose, it) for purpose, it in certificates]
            entry = self._entry(Action.PRINCIPAL_ADDED, actor, full, new, *owned)
            await self._put(new, *owned, entry=entry)
        self._report("add_principal", actor, principal=full, after=_shown(new, *owned))
        return new

    async def install(
        self, name: str, purpose: Purpose, certificate: Certificate, *, actor: str
    ) -> Installed:
        """Install a further certificate of a principal; those it has stay valid (SEC-9).

        Raises:
            ObjectNotFound: there is no such principal.
            InUse: the certificate belongs to another.
        """
        async with self._changing:
            owner = self.principal(name)
            one = self._installable(owner.name, purpose, certificate)
            entry = self._entry(Action.CERTIFICATE_INSTALLED, actor, owner.name, one)
            await self._put(one, entry=entry)
        self._report("install_certificate", actor, principal=owner.name, after=_shown(one))
        return one

    async def bind_instance(self, name: str, instance: InstanceId, *, actor: str) -> Principal:
        """Let a peer log in as this instance only (SEC-55).

        Raises:
            ObjectNotFound: there is no such principal.
            InUse: the peer is bound to another instance, or the instance to another peer.
        """
        async with self._changing:
            before = self.principal(name)
            if before.instance_id == instance:
                return before
            if before.instance_id is not None:
                raise InUse(
                    f"{name} is bound to instance {show(before.instance_id)}",
                    hint="revoke it and add it again if the instance was set up anew",
                )
            after = msgspec.structs.replace(before, instance_id=instance)
            return await self._alter(before, after, actor)

    async def set_addresses(
        self, name: str, addresses: tuple[str, ...], *, actor: str
    ) -> Principal:
        """Set the addresses, in normal form, that only this peer may serve.

        Raises:
            ObjectNotFound: there is no such principal.
            InUse: an address belongs to another peer.
        """
        async with self._changing:
            before = self.principal(name)
            return await self._alter(
                before, msgspec.structs.replace(before, addresses=addresses), actor
            )

    async def remove_principal(self, name: str, *, actor: str) -> Principal:
        """Remove a principal and its certificates; its connections end (SEC-4).

        Raises:
            ObjectNotFound: there is no such principal.
        """
        async with self._changing:
            gone = self.principal(name)
            owned = self.credentials.owned_by(name)
            entry = self._entry(Action.PRINCIPAL_REVOKED, actor, name, gone, *owned)
            await self._write(CredentialChange(removed_principal=name, entries=(entry,)))
            self.credentials.remove_principal(name)
        self._report("revoke_principal", actor, principal=name, before=_shown(gone, *owned))
        return gone

    async def remove_certificate(self, certificate_id: bytes, *, actor: str) -> Installed:
        """Remove a certificate, and its private key if it is one of this instance's own.

        Raises:
            ObjectNotFound: there is no such certificate.
            InUse: the instance uses the certificate now.
        """
        async with self._changing:
            gone = self.credentials.certificates.get(certificate_id)
            if gone is None:
                raise ObjectNotFound(f"no certificate {show_id(certificate_id)} is installed here")
            if gone.principal is None and gone is self.credentials.own(
                gone.purpose, self._clock.utc()
            ):
                raise InUse(
                    "this instance uses the certificate",
                    hint="make another one and switch to it first: brokerd certificate renew",
                )
            subject = gone.principal or show_id(certificate_id)
            entry = self._entry(Action.CERTIFICATE_REMOVED, actor, subject, gone)
            await self._write(
                CredentialChange(removed_certificates=(certificate_id,), entries=(entry,))
            )
            self.credentials.remove_certificate(certificate_id)
        self._report("remove_certificate", actor, principal=gone.principal, before=_shown(gone))
        return gone

    def principal(self, name: str) -> Principal:
        """Return a principal by its full name.

        Raises:
            ObjectNotFound: there is none.
        """
        found = self.credentials.principals.get(name)
        if found is None:
            kind, known = name.partition(":")[0], sorted(self.credentials.principals)
            raise ObjectNotFound(
                f"there is no {name!r} here{did_you_mean(name, known)}",
                hint=f"brokerd {kind} ls lists what there is",
            )
        return found

    # Several changes at once.

    async def change(
        self,
        change: Callable[[], CredentialChange],
        also: Callable[[Connection], None] | None = None,
    ) -> CredentialChange:
        """Make several changes in one commit, and return them (SEC-61).

        `change`: called while no other change is made, so that it may rely on what it finds.
        `also`: further statements of the commit."""
        async with self._changing:
            made = change()
            await self._msdb.run(partial(stored.write, change=made, also=also))
            if made.removed_principal is not None:
                self.credentials.remove_principal(made.removed_principal)
            for one in made.removed_certificates:
                self.credentials.remove_certificate(one)
            self.credentials.put(*made.put)
        return made

    # Checks and writes.

    def _refuse_taken(self, one: Principal) -> None:
        """Raise `InUse` if another principal has the instance or an address of this one."""
        for other in self.credentials.principals.values():
            if other.name == one.name:
                continue
            if one.instance_id is not None and other.instance_id == one.instance_id:
                raise InUse(f"{other.name} is instance {show(one.instance_id)} already")
            for address in one.addresses:
                if address in other.addresses:
                    raise InUse(f"{address} belongs to {other.name} already")

    def _installable(self, name: str, purpose: Purpose, certificate: Certificate) -> Installed:
        there = self.credentials.certificates.get(certificate.id)
        if there is not None:
            owner = there.principal or "this instance itself"
            raise InUse(
                f"the certificate belongs to {owner} already",
                hint="each principal has certificates of its own; was the right file given?",
            )
        return Installed(
            certificate=certificate,
            purpose=purpose,
            principal=name,
            installed_at=self._clock.utc(),
        )

    async def _alter(self, before: Principal, after: Principal, actor: str) -> Principal:
        self._refuse_taken(after)
        entry = self._entry(Action.PRINCIPAL_ALTERED, actor, after.name, after)
        await self._put(after, entry=entry)
        self._report(
            "alter_principal",
            actor,
            principal=after.name,
            before=_shown(before),
            after=_shown(after),
        )
        return after

    async def _put(self, *changed: Principal | Installed, entry: Entry) -> None:
        await self._write(CredentialChange(put=changed, entries=(entry,)))
        self.credentials.put(*changed)

    async def _write(self, change: CredentialChange) -> None:
        await self._msdb.run(partial(stored.write, change=change))

    def _entry(
        self, action: Action, actor: str, subject: str, *about: Principal | Installed
    ) -> Entry:
        return Entry(
            at=self._clock.utc(),
            action=action,
            actor=actor,
            subject=subject,
            detail=_shown(*about),
        )

    def _report(self, operation: str, actor: str, **fields: object) -> None:
        known = {name: value for name, value in fields.items() if value is not None}
        self._log.info(ADMINISTRATION, subclass=operation, actor=actor, **known)


def _expires_soon(one: Installed, now: Instant) -> bool:
    return one.certificate.not_after - now <= RENEW_WITHIN


def key_context(certificate_id: bytes) -> bytes:
    """Return the context under which the private key of a certificate is encrypted."""
    return b"private key of " + certificate_id


def _shown(*about: Principal | Installed) -> dict[str, object]:
    """Return the facts about principals and certificates for the log and the audit."""
    facts: dict[str, object] = {}
    certificates = []
    for one in about:
        if isinstance(one, Principal):
            facts["addresses"] = list(one.addresses)
            facts["instance_id"] = one.instance_id and show(one.instance_id)
        else:
            certificates.append(
                {
                    "purpose": one.purpose.value,
                    "certificate_id": show_id(one.certificate.id),
                    "not_after": show_instant(one.certificate.not_after),
                }
            )
    if certificates:
        facts["certificates"] = certificates
    return facts
