"""Admission: decides whether a dialog from another instance may begin with a service (SEC-50).

Reads: the grants, by a function.      Calls: the event log, the audit.
Never: asks about a dialog of this instance (SEC-53), or about one that exists: valid keys of the
       dialog suffice for all further messages, and for every reply (SEC-50, DIS-23).
Fails: a sender whose message could not be authenticated learns nothing, not even whether the
       service exists (SEC-54, SX-17).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.ids import InstanceId, show
from brokerd.protocol.frames import Fragment
from brokerd.security.grants import PUBLIC
from brokerd.telemetry.audit import Action, Audit, Outcome
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import AUDIT_CONVERSATION

NO_SEND_PERMISSION: Final = -8494
"""Code of the error for an authenticated sender without the permission (SEC-54)."""
MaySend = Callable[[str | None, str], bool]
"""Function that returns whether a principal may send to a service; None = acts as `public`."""


def no_permission(principal: str | None, item: Fragment) -> str:
    """Return what a sender without the permission is told, if it has proven itself."""
    return f"{principal or PUBLIC} has no send permission on service {item.to_service!r}"


class Admission:
    """The gate for dialogs that other instances begin."""

    __slots__ = ("_audit", "_log", "_may_send")

    def __init__(self, *, may_send: MaySend, audit: Audit, log: Log) -> None:
        self._may_send = may_send
        self._audit = audit
        self._log = log

    def admits(
        self, broker: Broker, item: Fragment, neighbour: InstanceId | None, principal: str | None
    ) -> bool:
        """Return whether a fragment may begin its dialog; log and audit a refusal.

        `neighbour`: brought the fragment; None = a broker of this instance. `principal`: the owner
        of the certificate that the dialog is proven by; None = none is."""
        service = item.to_service
        if neighbour is None or self._may_send(principal, service):
            return True
        sender = principal or PUBLIC
        # Only names of this instance: a stranger may draw new ones for ever, and each would be a
        # line of its own.
        target = f"{broker.name}/{service}" if service in broker.services else broker.name
        self._log.warning(
            AUDIT_CONVERSATION,
            subclass="no_send_permission",
            broker=broker.name,
            reason=f"{sender} may not send to {target}",
            principal=sender,
            to_service=service if service in broker.services else None,
            from_service=item.from_service,
            neighbour=show(neighbour),
            ssb_code=-NO_SEND_PERMISSION,
        )
        self._audit.record(
            Action.ACCESS,
            actor=sender,
            subject=target,
            outcome=Outcome.REFUSED,
            needed="send",
            neighbour=show(neighbour),
        )
        return False
