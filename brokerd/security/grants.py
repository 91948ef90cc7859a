"""Grants: permissions of users to receive from a queue, send to a service, administer a broker.

PURE.  A principal is a user of the machine. The kernel names the user at the other end of the
client socket, so no client can claim to be another. Without grants, every user who may open the
socket may do everything (CLP-1). With grants, all users but the daemon's own and root have only
the permissions granted to them.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

PUBLIC: Final = "public"
"""Principal that means every user."""

_FORM: Final = re.compile(
    r"(?P<what>receive|send|control)\s+on\s+(?P<on>\S+)\s+to\s+(?P<to>\S+)", re.IGNORECASE
)
_FORMS: Final = (
    '"receive on BROKER/QUEUE to USER", "send on SERVICE to USER" or "control on BROKER to USER"'
)


class Permission(StrEnum):
    """A permission that can be granted, on objects of one kind."""

    RECEIVE = "receive"
    """On a queue: receive, browse, and own the dialogs of its services (RCV-26, SND-25)."""
    SEND = "send"
    """On a service: begin dialogs with it (ERR-8494)."""
    CONTROL = "control"
    """On a broker: everything, administration included (DLG-23)."""


class Grant(Struct, frozen=True):
    """One permission of one principal; `*` and `?` in the object name are wildcards."""

    permission: Permission
    on: str
    to: str


class Rights(Struct, frozen=True):
    """The rights of one client: patterns of object names, by permission."""

    receive: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    control: tuple[str, ...] = ()

    def may_receive(self, broker: str, queue: str) -> bool:
        """Return whether the client may receive from this queue and act for its services."""
        return _is_any(f"{broker}/{queue}", self.receive) or self.may_control(broker)

    def may_send(self, broker: str, service: str) -> bool:
        """Return whether a client of this broker may begin dialogs with a service in any broker."""
        return _is_any(service, self.send) or self.may_control(broker)

    def may_control(self, broker: str) -> bool:
        """Return whether the client may administer the broker."""
        return _is_any(broker, self.control)


def parse_grant(text: str) -> Grant:
    """Parse a grant as written in the settings.

    Raises:
        ValueError: the grant has another form; the message shows the right one.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not of the form {_FORMS}")
    permission = Permission(found["what"].lower())
    if permission is Permission.RECEIVE and "/" not in found["on"]:
        raise ValueError(f"{text!r} does not say of which broker the queue is: BROKER/QUEUE")
    return Grant(permission, found["on"], found["to"])


def rights_of(grants: Iterable[Grant], names: Iterable[str]) -> Rights:
    """Return the rights of a user with these names; every user also has the name `public`."""
    mine = {PUBLIC, *names}
    held: dict[Permission, list[str]] = {one: [] for one in Permission}
    for grant in grants:
        if grant.to in mine:
            held[grant.permission].append(grant.on)
    return Rights(
        receive=tuple(held[Permission.RECEIVE]),
        send=tuple(held[Permission.SEND]),
        control=tuple(held[Permission.CONTROL]),
    )


def _is_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, one) for one in patterns)
