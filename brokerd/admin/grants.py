"""Grants: the verbs `grant`, `revoke` and `who_can` (CLP-140 to CLP-142, SEC-50).

Reads:  the grants of the instance, the objects of its brokers, the users of the machine.
Calls:  storage.grants.
Never:  makes a change effective before it is durable (SX-3), or changes what the settings say.
Fails:  a change that cannot be stored changes nothing.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import InvalidArgument, ObjectNotFound
from brokerd.model import MSDB, is_system
from brokerd.protocol.admin_verbs import GrantPermission, RevokePermission, WhoCan
from brokerd.security.grants import (
    PUBLIC,
    Entry,
    Grant,
    Grants,
    Origin,
    Permission,
    check_object,
    parse_grant,
)
from brokerd.storage.rows import grants as stored
from brokerd.telemetry.audit import Action
from brokerd.telemetry.audit import Entry as AuditEntry
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION

Row = dict[str, Any]
_SETTING: Final = "clients.grants"
_NOBODY: Final = (
    "no grant is left, and what was limited stays so: only the daemon's own user and root may do "
    'anything; brokerd grant "control on * to public" is what opens it to everybody'
)


class GrantAdministration:
    """The only part that changes the grants of one instance."""

    def __init__(
        self,
        *,
        grants: Grants,
        brokers: Mapping[str, Broker],
        principals: Collection[str],
        unknown_users: Callable[[Iterable[Grant]], list[str]],
        names_of: Callable[[str], Iterable[str]],
        has_endpoint: bool,
        why_unreachable: Callable[[], str],
        clock: Clock,
        log: Log,
    ) -> None:
        """Create the verbs.

        principals: names of the peers and clients whose certificates are installed.
        unknown_users: returns a line for each user whom the machine does not know. names_of:
        returns all names of a user, given one. why_unreachable: returns why other users cannot
        open the client socket, if its directory is closed to them; empty = they can."""
        self._grants = grants
        self._brokers = brokers
        self._principals = principals
        self._unknown_users = unknown_users
        self._names_of = names_of
        self._has_endpoint = has_endpoint
        self._why_unreachable = why_unreachable
        self._clock = clock
        self._log = log
        self._changing = asyncio.Lock()

    async def run(self, verb: GrantPermission | RevokePermission | WhoCan, actor: str) -> Row:
        """Perform a verb for `actor` and return its answer."""
        match verb:
            case GrantPermission(text):
                return await self.grant(_parse(text), actor)
            case RevokePermission(text):
                return await self.revoke(_parse(text), actor)
            case WhoCan():
                return self.who_can(verb)

    async def grant(self, grant: Grant, actor: str) -> Row:
        """Grant a permission from now on, on open connections too; durable on return.

        Nothing changes if it is granted already, in the settings or online.

        Raises:
            ObjectNotFound: it is for a peer or client of which no certificate is installed.
        """
        async with self._changing:
            found = self._find(grant)
            if found is not None:
                return grant_row(found) | {"is_new": False, "notes": list(self._notes(grant))}
            self._refuse_unknown(grant)
            entry = Entry(
                grant=grant,
                origin=Origin.ONLINE,
                granted_at=self._clock.utc(),
                granted_by=actor,
            )
            record = self._audit(Action.GRANTED, grant, actor)
            await self._store.run(partial(stored.add, entry=entry, record=record))
            if self._is_missing(grant):  # removed meanwhile, and its grants with it
                await self._store.run(partial(stored.remove, grant=grant, record=None))
                self._refuse_unknown(grant)
            self._grants.add(entry)
        self._report("grant", actor, before=None, after=str(grant))
        return grant_row(entry) | {"is_new": True, "notes": list(self._notes(grant))}

    async def revoke(self, grant: Grant, actor: str) -> Row:
        """Take a permission back from now on, on open connections too; durable on return.

        Raises:
            InvalidArgument: the grant stands in the settings.
            ObjectNotFound: nothing of the kind is granted.
        """
        async with self._changing:
            if grant in self._grants.declared:
                raise InvalidArgument(
                    f"{str(grant)!r} stands in the daemon's settings, at {_SETTING}",
                    hint="remove it from the settings file, and start the daemon again; where the "
                    "file is: brokerd config show",
                )
            entry = self._grants.online.get(grant)
            if entry is None:
                near = did_you_mean(str(grant), map(str, self._grants.online))
                raise ObjectNotFound(
                    f"{str(grant)!r} is not granted{near}", hint="see: brokerd who-can"
                )
            record = self._audit(Action.REVOKED, grant, actor)
            await self._store.run(partial(stored.remove, grant=grant, record=record))
            self._grants.remove(grant)
        self._report("revoke", actor, before=str(grant), after=None)
        left = [] if self._grants.entries else [_NOBODY]
        others = [
            f"{grant.to} still may: {one.grant} ({one.origin})"
            for one in self._grants.who_can(grant.permission, grant.on)
            if one.grant.to in {PUBLIC, grant.to}
        ]
        return grant_row(entry) | {"notes": [*left, *others]}

    def who_can(self, asked: WhoCan) -> Row:
        """Return the grants that answer a question, and notes about it.

        Raises:
            InvalidArgument: the permission is unknown, or is not granted on such an object.
        """
        grants, notes = self._grants, list[str]()
        if asked.principal is not None:
            entries = grants.held_by({asked.principal, *self._names_of(asked.principal)})
            notes += self._notes_of_principal(asked.principal)
        elif asked.permission is None:
            entries = grants.entries
        else:
            permission, on = _permission(asked.permission), asked.securable or ""
            try:
                check_object(permission, on)
            except ValueError as error:
                raise InvalidArgument(str(error)) from None
            entries = grants.who_can(permission, on)
            notes += self._notes_of_object(Grant(permission, on, PUBLIC))
        return {
            "grants": [grant_row(one) for one in entries],
            "notes": [*notes, *self._about_all()],
        }

    def _about_all(self) -> Iterator[str]:
        """Yield what holds whatever is granted."""
        grants = self._grants
        if not grants.limits_clients:
            yield "nothing is granted to clients: every client that can connect may do everything"
        else:
            yield "besides, the daemon's own user and root may do everything"
        if not self._has_endpoint or grants.authenticates:
            return
        if not grants.audiences:
            yield "the endpoint authenticates nobody: every peer may connect and send"
        else:
            yield "the endpoint authenticates nobody: every peer may connect, and acts as public"

    # Checks of what is granted.

    @property
    def _store(self) -> Any:  # noqa: ANN401  # as in `Broker`
        return self._brokers[MSDB].store

    def _find(self, grant: Grant) -> Entry | None:
        return next((one for one in self._grants.entries if one.grant == grant), None)

    def _is_missing(self, grant: Grant) -> bool:
        return ":" in grant.to and grant.to not in self._principals

    def _refuse_unknown(self, grant: Grant) -> None:
        """Raise `ObjectNotFound` if no certificate is installed for a peer or client.

        Otherwise whoever gets the name later would have the permission from the start."""
        if self._is_missing(grant):
            near = did_you_mean(grant.to, self._principals)
            raise ObjectNotFound(
                f"no certificate of {grant.to} is installed here{near}",
                hint="install it first: brokerd peer --help",
            )

    def _notes(self, grant: Grant) -> Iterator[str]:
        """Yield remarks about a grant that may not be what its maker meant."""
        yield from self._notes_of_principal(grant.to)
        yield from self._notes_of_object(grant)
        is_of_socket = ":" not in grant.to and grant.permission is not Permission.CONNECT
        if is_of_socket and (why := self._why_unreachable()):
            yield why
        if grant.permission is Permission.EXECUTE:
            controlling = self._grants.who_can(Permission.CONTROL, grant.on)
            if not any(one.grant.to in {PUBLIC, grant.to} for one in controlling):
                yield f"execute counts beside control only: grant control on {grant.on} too"
        if grant.to == PUBLIC and grant.permission in {Permission.CONTROL, Permission.EXECUTE}:
            yield "public is everybody, whom no certificate or user has to prove"

    def _notes_of_principal(self, to: str) -> Iterator[str]:
        if ":" in to:
            if to not in self._principals:
                near = did_you_mean(to, self._principals)
                yield f"no certificate of {to} is installed here{near}"
        else:
            yield from self._unknown_users([Grant(Permission.SEND, "*", to)])

    def _notes_of_object(self, grant: Grant) -> Iterator[str]:
        """Yield a remark if no object of this instance has the name."""
        if grant.permission is Permission.CONNECT:
            return
        known = list(self._objects(grant.permission))
        if any(fnmatchcase(one, grant.on) for one in known):
            return
        near = did_you_mean(grant.on, known)
        kind = _KINDS[grant.permission]
        if grant.permission is not Permission.SEND:
            yield f"there is no {kind} {grant.on!r} in this instance{near}"
        elif near or grant.to.startswith("peer:"):
            yield f"no broker of this instance has the {kind} {grant.on!r}{near}"

    def _objects(self, permission: Permission) -> Iterator[str]:
        for broker in self._brokers.values():
            match permission:
                case Permission.SEND:
                    yield from (one for one in broker.services if not is_system(one))
                case Permission.RECEIVE:
                    yield from (f"{broker.name}/{one}" for one in broker.queues)
                case _:
                    yield broker.name

    # Records.

    def _audit(self, action: Action, grant: Grant, actor: str) -> AuditEntry:
        return AuditEntry(
            at=self._clock.utc(),
            action=action,
            actor=actor,
            subject=grant.to,
            detail={"grant": str(grant)},
        )

    def _report(self, subclass: str, actor: str, *, before: str | None, after: str | None) -> None:
        self._log.info(ADMINISTRATION, subclass=subclass, actor=actor, before=before, after=after)


_KINDS: Final = {
    Permission.SEND: "service",
    Permission.RECEIVE: "queue",
    Permission.CONTROL: "broker",
    Permission.EXECUTE: "broker",
}


def grant_row(entry: Entry) -> Row:
    """Return a grant as a row of the view `grants`, and as the verbs answer it."""
    grant = entry.grant
    return {
        "permission": grant.permission.value,
        "securable": grant.on,
        "principal": grant.to,
        "origin": entry.origin.value,
        "granted_at": entry.granted_at,
        "granted_by": entry.granted_by,
    }


def _parse(text: str) -> Grant:
    try:
        return parse_grant(text)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def _permission(word: str) -> Permission:
    known = [one.value for one in Permission]
    if word.lower() not in known:
        raise InvalidArgument(
            f"there is no permission {word!r}{did_you_mean(word, known)}",
            hint=f"there is: {', '.join(known)}",
        )
    return Permission(word.lower())
