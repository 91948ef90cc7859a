"""Grants: who may connect, send, receive, administer, and name programs to run (SEC-50, CLP-130).

PURE.   Reads: grants as the settings and the store have them.      Calls: security.names.
Never:  stores anything: `storage.grants` does, before memory is changed. Never widens a right when
        a grant is removed.

A principal is a user of the machine, whom the kernel names at the other end of the client socket;
`client:NAME` or `peer:NAME`, whom a certificate proves; or `public`, which is everybody. Without
grants, every client who reaches the daemon may do everything (CLP-1). With grants, all but the
daemon's own user and root have only the permissions granted to them.
"""

import re
from collections.abc import Callable, Container, Iterable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from msgspec import Struct

from brokerd.clock import Instant
from brokerd.errors import InvalidArgument
from brokerd.security.names import Kind, principal_name

PUBLIC: Final = "public"
"""Principal that means everybody."""
ENDPOINT: Final = "endpoint"
"""The only object on which CONNECT can be granted (SEC-6)."""
_MOST_VERDICTS: Final = 10_000
"""Number of answers of `may_deliver` that are kept."""

_FORM: Final = re.compile(
    r"(?P<what>connect|send|receive|control|execute)\s+on\s+(?P<on>\S+)\s+to\s+(?P<to>\S+)",
    re.IGNORECASE,
)
_FORMS: Final = (
    '"send on SERVICE to WHO", "receive on BROKER/QUEUE to WHO", "control on BROKER to WHO", '
    '"execute on BROKER to WHO" or "connect on endpoint to WHO"'
)
_WHO: Final = "WHO is a user, client:NAME, peer:NAME or public"


class Permission(StrEnum):
    """A permission that can be granted, on objects of one kind."""

    CONNECT = "connect"
    """On the broker endpoint: log in as a peer (SEC-6, SEC-7)."""
    SEND = "send"
    """On a service: begin dialogs with it (ERR-8494), from another instance too (SEC-50)."""
    RECEIVE = "receive"
    """On a queue: receive, browse, and own the dialogs of its services (RCV-26, SND-25)."""
    CONTROL = "control"
    """On a broker: administer it, and send and receive there (DLG-23)."""
    EXECUTE = "execute"
    """On a broker, beside CONTROL: name the programs that the daemon runs there (SX-23)."""


class Grant(Struct, frozen=True):
    """One permission of one principal; `*` and `?` in the object name are wildcards."""

    permission: Permission
    on: str
    to: str

    def __str__(self) -> str:
        return f"{self.permission} on {self.on} to {self.to}"

    @property
    def audience(self) -> "Audience":
        """The connections that the grant is about."""
        peers = self.permission is Permission.CONNECT or self.to.startswith(f"{Kind.PEER}:")
        return Audience.PEERS if peers else Audience.CLIENTS


class Audience(StrEnum):
    """The connections that a grant is about."""

    CLIENTS = "clients"
    PEERS = "peers"


class Origin(StrEnum):
    """The place where a grant stands."""

    SETTINGS = "settings"
    """`clients.grants`, which only a changed file and a new start can change."""
    ONLINE = "online"
    """The table in `msdb`, which `brokerd grant` and `brokerd revoke` change."""


class Entry(Struct, frozen=True, kw_only=True):
    """A grant with its origin."""

    grant: Grant
    origin: Origin
    granted_at: Instant | None = None
    """None = it stands in the settings."""
    granted_by: str = ""


class Rights(Struct, frozen=True):
    """The rights of one client: patterns of object names, by permission."""

    receive: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    execute: tuple[str, ...] = ()

    def may_receive(self, broker: str, queue: str) -> bool:
        """Return whether the client may receive from this queue and act for its services."""
        return _is_any(f"{broker}/{queue}", self.receive) or self.may_control(broker)

    def may_send(self, broker: str, service: str) -> bool:
        """Return whether a client of this broker may begin dialogs with a service in any broker."""
        return _is_any(service, self.send) or self.may_control(broker)

    def may_control(self, broker: str) -> bool:
        """Return whether the client may administer the broker."""
        return _is_any(broker, self.control)

    def may_execute(self, broker: str) -> bool:
        """Return whether the client may name programs that the daemon runs for the broker."""
        return _is_any(broker, self.execute)

    def may_give(self, grant: Grant) -> bool:
        """Return whether the client has what it would grant: all objects that the grant is about.

        CONNECT is not for clients, and can be given without being had."""
        permission, on = grant.permission, grant.on
        if permission is Permission.CONNECT:
            return True
        if _covers(getattr(self, permission.value), on):
            return True
        if permission is Permission.RECEIVE:
            return _covers(self.control, on.partition("/")[0])
        return permission is Permission.SEND and "*" in self.control

    def includes(self, other: "Rights") -> bool:
        """Return whether the client keeps every grant it had with `other`."""
        return all(
            set(getattr(other, one)) <= set(getattr(self, one)) for one in self.__struct_fields__
        )


class Grants:
    """All grants of one instance: those of the settings, and those made while it runs."""

    def __init__(self, declared: Iterable[Grant] = (), *, authenticates: bool = True) -> None:
        """Create the list.

        declared: the grants of the settings. authenticates: whether peers have to prove who they
        are; if not, the administrator has opened the endpoint (SEC-10)."""
        self.declared: tuple[Grant, ...] = tuple(declared)
        self.authenticates = authenticates
        self.online: dict[Grant, Entry] = {}
        """Grants of the table, in the order in which they were made."""
        self._audiences = {one.audience for one in self.declared}
        self._verdicts: dict[tuple[str | None, str], bool] = {}
        self._watchers: list[Callable[[], None]] = []

    # Changes.

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after each change."""
        self._watchers.append(watcher)

    def load(self, entries: Iterable[Entry], audiences: Iterable[Audience]) -> None:
        """Take the table of the store over.

        `audiences`: the connections that grants have been made about, ever."""
        self.online = {one.grant: one for one in entries}
        self._audiences = {*audiences, *(one.audience for one in self._all())}
        self._changed()

    def add(self, entry: Entry) -> None:
        """Add a grant; the store has it already."""
        self.online[entry.grant] = entry
        self._audiences.add(entry.grant.audience)
        self._changed()

    def remove(self, *grants: Grant) -> None:
        """Remove grants; the store has removed them already.

        What was limited stays limited: with the last grant gone, nobody has a right by default."""
        for one in grants:
            self.online.pop(one, None)
        self._changed()

    def _changed(self) -> None:
        self._verdicts.clear()
        for watcher in self._watchers:
            watcher()

    def keep_of(self, principals: Container[str]) -> None:
        """Remove the online grants to peers and clients that are not among the principals.

        The store has removed them together with the principal."""
        gone = [one for one in self.online if ":" in one.to and one.to not in principals]
        if gone:
            self.remove(*gone)

    # Questions.

    @property
    def audiences(self) -> frozenset[Audience]:
        """The connections that are limited, because there is or was a grant about them."""
        return frozenset(self._audiences)

    @property
    def limits_clients(self) -> bool:
        """Whether clients have only the rights granted to them (CLP-130)."""
        return Audience.CLIENTS in self._audiences

    @property
    def lets_users_in(self) -> bool:
        """Whether other users of the machine have a reason to open the client socket."""
        return any(":" not in one.to and one.audience is Audience.CLIENTS for one in self._all())

    @property
    def entries(self) -> list[Entry]:
        """All grants, those of the settings first; one that stands in both places is there
        twice."""
        declared = [Entry(grant=one, origin=Origin.SETTINGS) for one in self.declared]
        return [*declared, *self.online.values()]

    def rights(self, names: Iterable[str]) -> Rights | None:
        """Return the rights of a client with these names; None = everything."""
        return rights_of(self._all(), names) if self.limits_clients else None

    def may_connect(self, principal: str | None) -> bool:
        """Return whether a peer may log in (SEC-6, SEC-7, END-8).

        `principal`: its name, which its certificate has proven; None = it has shown none. Where
        peers need not prove who they are, the administrator has let everybody in."""
        if not self.authenticates:
            return True
        return any(
            one.permission is Permission.CONNECT and one.to in (principal or PUBLIC, PUBLIC)
            for one in self._all()
        )

    def may_deliver(self, principal: str | None, service: str) -> bool:
        """Return whether a dialog from another instance may begin with a service (SEC-50, SEC-51).

        `principal`: the owner of the certificate that the dialog was secured with; None = the
        dialog is not secured, or anonymous, and acts as `public`. Only SEND counts. An endpoint
        without authentication, in an instance in which nothing was ever granted, admits all."""
        if not self.authenticates and not self._audiences:
            return True
        key = (principal, service)
        verdict = self._verdicts.get(key)
        if verdict is None:
            if len(self._verdicts) >= _MOST_VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[key] = any(
                one.permission is Permission.SEND
                and one.to in (principal or PUBLIC, PUBLIC)
                and fnmatchcase(service, one.on)
                for one in self._all()
            )
        return verdict

    def who_can(self, permission: Permission, on: str) -> list[Entry]:
        """Return the grants that give a permission on this object, those of CONTROL included."""
        return [one for one in self.entries if _gives(one.grant, permission, on)]

    def held_by(self, names: Iterable[str]) -> list[Entry]:
        """Return the grants of a principal with these names, and those of everybody."""
        mine = {PUBLIC, *names}
        return [one for one in self.entries if one.grant.to in mine]

    def open_to_public(self) -> list[Entry]:
        """Return the grants that everybody has."""
        return self.held_by(())

    def _all(self) -> Sequence[Grant]:
        return (*self.declared, *self.online)


def _gives(grant: Grant, permission: Permission, on: str) -> bool:
    if grant.permission is permission:
        return fnmatchcase(on, grant.on)
    if grant.permission is not Permission.CONTROL:
        return False
    if permission is Permission.RECEIVE:
        return fnmatchcase(on.partition("/")[0], grant.on)
    return permission is Permission.SEND  # from the broker that is controlled, to any service


def parse_grant(text: str) -> Grant:
    """Parse a grant as written in the settings.

    Raises:
        ValueError: the grant has another form; the message shows the right one.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not of the form {_FORMS}; {_WHO}")
    grant = Grant(Permission(found["what"].lower()), found["on"], found["to"])
    check_object(grant.permission, grant.on)
    _check_principal(grant)
    return grant


def check_object(permission: Permission, on: str) -> None:
    """Check that a permission can be granted on an object of this name.

    Raises:
        ValueError: it is granted on objects of another kind; the message says on which.
    """
    if permission is Permission.RECEIVE and "/" not in on:
        raise ValueError(f"{on!r} does not say of which broker the queue is: BROKER/QUEUE")
    if permission is Permission.CONNECT and on != ENDPOINT:
        raise ValueError(f"connect is granted on {ENDPOINT}, not on {on!r}")


def _check_principal(grant: Grant) -> None:
    kind, colon, name = grant.to.partition(":")
    if not colon:
        if grant.permission is Permission.CONNECT and grant.to != PUBLIC:
            raise ValueError(
                f"{grant.to!r} is no peer: connect is granted to peer:NAME or public; clients need "
                "no permission to connect"
            )
        return
    if kind not in _OF_KIND:
        raise ValueError(f"{grant.to!r} is no principal: {_WHO}")
    try:
        principal_name(Kind(kind), name)
    except InvalidArgument as error:
        raise ValueError(error.message) from None
    allowed = _OF_KIND[Kind(kind)]
    if grant.permission not in allowed:
        raise ValueError(
            f"{grant.to!r} can be granted {', '.join(allowed)}, but not {grant.permission}"
        )


_OF_KIND: Final = {
    Kind.PEER: (Permission.CONNECT, Permission.SEND),
    Kind.CLIENT: (Permission.SEND, Permission.RECEIVE, Permission.CONTROL, Permission.EXECUTE),
}
"""Permissions that a principal with certificates can have, by its kind."""


def rights_of(grants: Iterable[Grant], names: Iterable[str]) -> Rights:
    """Return the rights of a client with these names; every client also has the name `public`."""
    mine = {PUBLIC, *names}
    held: dict[Permission, list[str]] = {one: [] for one in Permission}
    for grant in grants:
        if grant.to in mine:
            held[grant.permission].append(grant.on)
    return Rights(
        receive=tuple(held[Permission.RECEIVE]),
        send=tuple(held[Permission.SEND]),
        control=tuple(held[Permission.CONTROL]),
        execute=tuple(held[Permission.EXECUTE]),
    )


@lru_cache(maxsize=4096)  # each send of a client with limited rights looks this up
def _is_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, one) for one in patterns)


def _covers(patterns: tuple[str, ...], on: str) -> bool:
    """Return whether one of the patterns certainly matches all that another pattern matches."""
    is_name = not set(on) & set("*?[")
    return any(one in {"*", on} or (is_name and fnmatchcase(on, one)) for one in patterns)
