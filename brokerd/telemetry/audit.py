"""Audit: the interface through which components record logins, refusals and administration (SX-15).

Reads, calls: nothing.   Never: stores an entry; `maintenance.audit_trail` implements `Audit`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from brokerd.clock import Instant


class Action(StrEnum):
    """The actions that are recorded."""

    LOGIN = "login"
    """A peer or a client logged in, or was refused (SEC-12)."""
    ACCESS = "access"
    """A request of a peer or a client was refused."""
    PRINCIPAL_ADDED = "principal_added"
    PRINCIPAL_ALTERED = "principal_altered"
    PRINCIPAL_REVOKED = "principal_revoked"
    CERTIFICATE_INSTALLED = "certificate_installed"
    CERTIFICATE_REMOVED = "certificate_removed"
    CERTIFICATES_RECEIVED = "certificates_received"
    """A peer sent its next certificate, or dropped an old one, over its connection (SEC-64)."""
    CERTIFICATE_MADE = "certificate_made"
    """The instance made a certificate of its own."""
    MASTER_KEY_REPLACED = "master_key_replaced"
    """An administrator gave a lost master key up; what it encrypted is lost (SEC-38)."""
    MASTER_KEY_ROTATED = "master_key_rotated"
    """Another master key took over; what the former one encrypted can be read (SEC-71)."""
    PAIRING_OFFERED = "pairing_offered"
    """A code was shown that lets another instance pair with this one (SEC-60)."""
    PAIRED = "paired"
    """Another instance was installed by pairing (SEC-61), or refused."""
    PAIRING_UNDONE = "pairing_undone"
    """A pairing broke off, and everything is as before it."""
    CERTIFICATE_SWITCHED = "certificate_switched"
    """The instance began to use another of its own certificates (SEC-9)."""
    GRANTED = "granted"
    REVOKED = "revoked"
    # Operations of an administrator have the names of their verbs.
    CLEAN_UP = "clean_up"
    ENABLE = "enable"
    DISABLE = "disable"
    ERROR_CONVERSATIONS = "error_conversations"
    NEW_BROKER = "new_broker"
    CLEAN_UP_ENDPOINTS = "clean_up_endpoints"
    BACKUP = "backup"
    FORGET_BROKER = "forget_broker"
    DRAIN_QUEUE = "drain_queue"
    PURGE_QUEUE = "purge_queue"
    ALTER_ENDPOINT = "alter_endpoint"
    CONFIRM_CLOCK = "confirm_clock"
    HAND_OVER = "hand_over"
    RELEASE_GROUP = "release_group"
    DISCARD_GROUP = "discard_group"
    END_GROUP = "end_group"
    EDIT_GROUP = "edit_group"
    CURE_QUEUE = "cure_queue"
    BODY_SHOWN = "body_shown"
    """The page has shown the body of a message (SX-10)."""
    QUEUE_SWITCHED = "queue_switched"
    """A queue was switched on or off by the page."""


FROM_OUTSIDE = frozenset({Action.LOGIN, Action.ACCESS})
"""Actions that others can cause as often as they like."""


APART = (
    FROM_OUTSIDE,
    frozenset({Action.CERTIFICATES_RECEIVED}),
    frozenset({Action.BODY_SHOWN}),
    frozenset({Action.QUEUE_SWITCHED}),
    frozenset({Action.PURGE_QUEUE}),
)
"""Classes of actions that one side can cause often; entries of a class never displace others."""


COUNTED = FROM_OUTSIDE | {Action.CLEAN_UP}
"""Actions of which repeats by one actor within a minute are counted, not stored one by one."""


class Outcome(StrEnum):
    """The outcomes of an action."""

    SUCCESS = "success"
    REFUSED = "refused"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry."""

    at: Instant
    action: Action
    actor: str
    """The principal that acted, or the address of one that is not known; empty = the instance."""
    subject: str
    """The name of the thing concerned."""
    outcome: Outcome = Outcome.SUCCESS
    detail: Mapping[str, object] = {}
    """Further facts, without secrets (SX-9)."""


class Audit(Protocol):
    """The record of logins, refusals and administration."""

    def record(
        self,
        action: Action,
        *,
        actor: str,
        subject: str,
        outcome: Outcome = Outcome.SUCCESS,
        **detail: object,
    ) -> None:
        """Record an entry; it is durable soon after, and nobody waits for it."""
        ...
