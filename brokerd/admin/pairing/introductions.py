"""Introductions: install all that this instance needs of another one, and undo it (SEC-61).

Reads:  credentials, grants, the objects of a broker.
Calls:  admin.credential_store, admin.objects.
Never:  leaves a part: if the objects cannot be made, the principal with its certificates and grants
        is as it was before.
Fails:  `InvalidArgument` or `ObjectsRefused`, with nothing changed; `StoreFull`, likewise.
"""

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from brokerd.admin.credential_store import CredentialStore
from brokerd.admin.objects.administration import ObjectAdministration
from brokerd.admin.pairing.acquaintance import Stranger, Wishes
from brokerd.admin.pairing.objects import PeerServices, restored, with_peer
from brokerd.clock import Clock, Instant
from brokerd.errors import InvalidArgument
from brokerd.objects.declared import Declared
from brokerd.security.certificates import show_id
from brokerd.security.credentials import Credentials, Installed, Kind, Principal, Purpose
from brokerd.security.grants import ENDPOINT, Entry, Grant, Grants, Origin, Permission
from brokerd.security.pairing import choose_principal, outdated
from brokerd.storage.connections import Connection
from brokerd.storage.rows import grants as stored_grants
from brokerd.storage.rows.credentials import CredentialChange
from brokerd.telemetry.audit import Action
from brokerd.telemetry.audit import Entry as AuditEntry
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION


class Introduced(msgspec.Struct, frozen=True, kw_only=True):
    """The things that an introduction has installed, and the data to undo it."""

    principal: str
    peer: PeerServices
    is_new: bool
    """Whether the principal did not exist before."""
    grants: tuple[str, ...]
    """Permissions that the peer has now, in words."""
    changes: tuple[str, ...] = ()
    """Changes of routes and bindings, in words."""
    left_out: dict[str, str] = {}
    """Services for which nothing was made, and why."""
    credentials_before: CredentialChange
    """The change that undoes that of the credentials."""
    granted: tuple[Entry, ...]
    """Grants that did not exist before."""
    objects_before: Declared | None = None


class Introductions:
    """The part that installs other instances, and that undoes it."""

    def __init__(
        self,
        *,
        store: CredentialStore,
        grants: Grants,
        objects: ObjectAdministration,
        clock: Clock,
        log: Log,
    ) -> None:
        self._store = store
        self._credentials: Credentials = store.credentials
        self._grants = grants
        self._objects = objects
        self._clock = clock
        self._log = log

    def check(self, stranger: Stranger, wishes: Wishes) -> str:
        """Return the name of the principal that the other instance would become.

        Raises:
            InvalidArgument: it cannot become that principal (SEC-61).
        """
        return self._choose(stranger, wishes)[0]

    def _choose(self, stranger: Stranger, wishes: Wishes) -> tuple[str, Principal | None]:
        name, before = choose_principal(self._credentials, stranger.acquaintance, wishes.name)
        dialog = stranger.dialog_certificate
        known = None if dialog is None else self._credentials.certificates.get(dialog.id)
        if known is not None and known.principal != name:
            raise InvalidArgument(
                "the dialog certificate of the other machine is installed here for "
                f"{known.principal or 'this instance'}"
            )
        return name, before

    async def install(self, stranger: Stranger, wishes: Wishes) -> Introduced:
        """Install principal, certificates and grants, then routes and bindings; all or nothing.

        Raises:
            InvalidArgument: the other instance cannot become the principal (SEC-61).
        """
        made: list[Introduced] = []

        def change() -> CredentialChange:
            forward, introduced = self._prepare(stranger, wishes)
            made.append(introduced)
            return forward

        def also(connection: Connection) -> None:
            stored_grants.put(connection, made[0].granted)

        await self._store.change(change, also)
        one = made[0]
        for entry in one.granted:
            self._grants.add(entry)
        try:
            one = await self._make_objects(one, wishes)
        except BaseException:
            await self._undo_credentials(one)
            raise
        self._log.info(
            ADMINISTRATION,
            subclass="pair",
            actor=wishes.actor,
            principal=one.principal,
            broker=wishes.broker.name,
            after={"address": one.peer.address, "grants": one.grants, "changes": one.changes},
        )
        return one

    async def undo(self, one: Introduced, wishes: Wishes) -> None:
        """Restore everything that `install` has changed."""
        if one.objects_before is not None:
            before = one.objects_before
            await self._objects.amend(
                wishes.broker, lambda now: restored(before, now, one.peer), wishes.actor
            )
        await self._undo_credentials(one)
        self._log.info(
            ADMINISTRATION, subclass="undo_pairing", actor=wishes.actor, principal=one.principal
        )

    # Parts of an installation.

    def _prepare(self, stranger: Stranger, wishes: Wishes) -> tuple[CredentialChange, Introduced]:
        """Return the change of the credentials, and what it will have installed."""
        who, now = stranger.acquaintance, self._clock.utc()
        name, before = self._choose(stranger, wishes)
        after = Principal(
            name=name,
            kind=Kind.PEER,
            created_at=now if before is None else before.created_at,
            created_by=wishes.actor if before is None else before.created_by,
            instance_id=who.instance_id,
            addresses=(who.address,),
        )
        owned = self._credentials.owned_by(name)
        put = list(self._certificates(stranger, name, now))
        inactive = [
            msgspec.structs.replace(one, is_active=False)
            for one in owned
            if one.purpose is Purpose.DIALOG
            and one.is_active
            and stranger.dialog_certificate
            and one.certificate.id != stranger.dialog_certificate.id
        ]
        gone = outdated(self._credentials, name, who.certificate.id)
        entry = AuditEntry(
            at=now,
            action=Action.PAIRED,
            actor=wishes.actor,
            subject=name,
            detail={
                "address": who.address,
                "certificates": [show_id(one.certificate.id) for one in put],
                "shares": list(wishes.shares),
            },
        )
        forward = CredentialChange(
            put=(after, *put, *inactive), removed_certificates=gone, entries=(entry,)
        )
        wanted = [Grant(Permission.CONNECT, ENDPOINT, name)]
        wanted += [Grant(Permission.SEND, one, name) for one in wishes.shares]
        known = {one.grant for one in self._grants.entries}
        granted = tuple(
            Entry(grant=one, origin=Origin.ONLINE, granted_at=now, granted_by=wishes.actor)
            for one in wanted
            if one not in known
        )
        new = [one.certificate.id for one in put]
        back = CredentialChange(
            put=() if before is None else (before, *owned),
            removed_principal=name if before is None else None,
            removed_certificates=()
            if before is None
            else tuple(one for one in new if one not in self._credentials.certificates),
        )
        introduced = Introduced(
            principal=name,
            peer=PeerServices(
                principal=name,
                address=who.address,
                services=stranger.services,
                is_secured=stranger.dialog_certificate is not None,
            ),
            is_new=before is None,
            grants=tuple(str(one) for one in wanted),
            credentials_before=back,
            granted=granted,
        )
        return forward, introduced

    def _certificates(self, stranger: Stranger, name: str, now: Instant) -> Iterable[Installed]:
        """Yield the certificates of the other instance, active; those that are known stay."""
        given = (
            (Purpose.TRANSPORT, stranger.acquaintance.certificate),
            (Purpose.DIALOG, stranger.dialog_certificate),
        )
        for purpose, certificate in given:
            if certificate is not None:
                known = self._credentials.certificates.get(certificate.id)
                yield Installed(
                    certificate=certificate,
                    purpose=purpose,
                    principal=name,
                    installed_at=now if known is None else known.installed_at,
                )

    async def _make_objects(self, one: Introduced, wishes: Wishes) -> Introduced:
        reasons: list[dict[str, str]] = []

        def wanted(have: Declared) -> Declared:
            made, left_out = with_peer(have, one.peer)
            reasons.append(left_out)
            return made

        before, changes = await self._objects.amend(wishes.broker, wanted, wishes.actor)
        return msgspec.structs.replace(
            one,
            objects_before=before,
            changes=tuple(change.sentence for change in changes),
            left_out=reasons[0],
        )

    async def _undo_credentials(self, one: Introduced) -> None:
        grants = [entry.grant for entry in one.granted]
        now = self._clock.utc()
        entry = AuditEntry(at=now, action=Action.PAIRING_UNDONE, actor="", subject=one.principal)
        back = msgspec.structs.replace(one.credentials_before, entries=(entry,))
        drop: Callable[[Connection], None] = partial(stored_grants.drop, dropped=grants)
        await self._store.change(lambda: back, drop)
        self._grants.remove(*grants)
