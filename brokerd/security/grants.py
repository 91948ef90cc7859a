"""Grants: which users may receive from which queue, send to which service, and administer what.

PURE.  A principal is a user of the machine, as the kernel names who is at the other end of the
client socket, so nobody can claim to be another. Without grants whoever may open the socket may do
everything (CLP-1); with them everybody but the daemon's own user and root may do what is granted,
and nothing else.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

PUBLIC: Final = "public"
"""What is granted to it everybody has."""

_FORM: Final = re.compile(
    r"(?P<what>receive|send|control)\s+on\s+(?P<on>\S+)\s+to\s+(?P<to>\S+)", re.IGNORECASE
)
_FORMS: Final = (
    '"receive on BROKER/QUEUE to USER", "send on SERVICE to USER" or "control on BROKER to USER"'
)


class Permission(StrEnum):
    """What can be granted; each on objects of one kind."""

    RECEIVE = "receive"
    """On a queue: receive, browse, and own the dialogs of its services (RCV-26, SND-25)."""
    SEND = "send"
    """On a service: begin dialogs with it (ERR-8494)."""
    CONTROL = "control"
    """On a broker: everything, administration too (DLG-23)."""


class Grant(Struct, frozen=True):
    """One permission of one principal; `*` and `?` in the name of the object stand for others."""

    permission: Permission
    on: str
    to: str


class Rights(Struct, frozen=True):
    """What one client may do."""

    receive: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    control: tuple[str, ...] = ()

    def may_receive(self, broker: str, queue: str) -> bool:
        """Whether from this queue, and speak for its services."""
        return _is_any(f"{broker}/{queue}", self.receive) or self.may_control(broker)

    def may_send(self, broker: str, service: str) -> bool:
        """Whether a client of this broker may begin a dialog with the service, wherever it is."""
        return _is_any(service, self.send) or self.may_control(broker)

    def may_control(self, broker: str) -> bool:
        """Whether it may administer the broker."""
        return _is_any(broker, self.control)


def parse_grant(text: str) -> Grant:
    """A grant as it is written; `ValueError` says how it is to be."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not of the form {_FORMS}")
    permission = Permission(found["what"].lower())
    if permission is Permission.RECEIVE and "/" not in found["on"]:
        raise ValueError(f"{text!r} does not say of which broker the queue is: BROKER/QUEUE")
    return Grant(permission, found["on"], found["to"])


def rights_of(grants: Iterable[Grant], names: Iterable[str]) -> Rights:
    """What somebody of these names may do; `public` is a name of everybody."""
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
