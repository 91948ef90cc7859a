"""Answers to the verbs of an administrator (MAN, CLP).

PURE.   Reads: nothing.      Calls: nothing.
"""

import msgspec

from brokerd.clock import Instant


class BrokerState(msgspec.Struct, frozen=True):
    """A broker after an operation on it."""

    name: str
    broker_id: str
    is_broker_enabled: bool
    disabled_reason: str | None = None
    endpoints: dict[str, int] = {}
    """Number of dialog endpoints that were ended or removed, by their state before."""


class CleanedUp(msgspec.Struct, frozen=True):
    """The result of a bulk cleanup: numbers of dialog endpoints by state (MAN-15)."""

    matched: dict[str, int] = {}
    removed: dict[str, int] = {}
    locked: dict[str, int] = {}
    """Endpoints that were left alone, because a transaction had locked their group."""


class Drained(msgspec.Struct, frozen=True):
    """The result of draining a queue: how its readers ended (PBT-25)."""

    ended: int = 0
    """Readers that ended by themselves within the grace period."""
    stopped: int = 0
    """Readers that were ended after the grace period, with their transactions rolled back."""
    left: int = 0
    """Readers that could not be ended: handlers in the daemon that ignore their cancellation."""
    activation: str = "on"
    """Activation of the queue before the drain: on, off, or none if the queue has none."""


class Purged(msgspec.Struct, frozen=True):
    """The result of purging a queue, or of one batch (MAN-24)."""

    dialogs: int = 0
    """Dialogs that were ended with the error."""
    messages: int = 0
    """Messages that went with them."""
    locked: int = 0
    """Dialogs that were left because a transaction has their group."""
    next: int | None = None
    """Where the next batch begins; None = there is none."""


class Edited(msgspec.Struct, frozen=True):
    """A message whose body was replaced (CLP-117)."""

    message_id: str
    message_type: str
    validation: str
    """The validation of the message type, as written in a file of objects."""

    @property
    def is_checked(self) -> bool:
        """Whether a schema has accepted the new body."""
        return self.validation.startswith("valid_")


class RouteStep(msgspec.Struct, frozen=True):
    """One rule of routing that was applied."""

    table: str
    """Routing table: own, instance, or empty for a rule without a table."""
    step: str
    """Label of the step: 1 to 7 when finding routes, A to D when choosing one, or a word."""
    finding: str
    routes: tuple[str, ...] = ()
    """Names of the routes that the finding is about."""


class RouteExplanation(msgspec.Struct, frozen=True):
    """The destination of a service name or a dialog, and every routing step that led to it."""

    service: str
    broker_id: str | None
    outcome: str
    """local, remote, delayed, dropped or refused (by the broker named in `where`)."""
    where: str
    """Destination: name of a broker, or an address; empty if there is no destination."""
    reason: str
    """Key of the reason why messages do not reach the destination (XMT-19); empty if they do."""
    route: str
    """Name of the chosen route; empty if no routing table was used."""
    hops_used: int
    steps: tuple[RouteStep, ...]
    attempts: int = 0
    """Number of attempts to transmit; 0 unless a dialog was explained (XMT-18)."""
    next_attempt_at: Instant | None = None


class PingStep(msgspec.Struct, frozen=True):
    """The decision of one instance about a ping (NBT-7)."""

    leg: str
    """Direction: out, or back."""
    instance: str
    broker: str
    """The broker whose routes were used; empty for the routes of the instance."""
    outcome: str
    """local, remote, delayed, dropped or refused (by the broker named in `where`)."""
    step: str
    """Label of the step that found the routes, 1 to 7."""
    route: str
    where: str
    """Address or broker that the ping goes to next; empty if it goes no further."""
    reason: str
    """Key of the reason why the ping goes no further (XMT-19); empty if it does."""
    detail: str


class PingAnswer(msgspec.Struct, frozen=True):
    """The result of a ping."""

    service: str
    from_service: str
    steps: tuple[PingStep, ...]
    is_complete: bool
    """Whether the ping has gone out and its reply has come back."""
    seconds: float


class PageAddress(msgspec.Struct, frozen=True):
    """An address at which a browser is let in as the client that asked for it (MON-28)."""

    url: str
    """Secret until it has been used: whoever opens it first is let in."""
    user: str
    """The principal as whom the browser is let in."""
    seconds: float
    """Time for which the address can be used, once."""
