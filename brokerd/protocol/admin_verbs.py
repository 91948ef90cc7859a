"""Verbs of administration: views in pages, delivery, identity, cleaning up, backup (CLP-90 to 95).

Reads:  nothing.      Calls: nothing.
Never:  decides anything: the forms only, as in `client_verbs`, which checks them.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(max_length=1024)]
MOST_ROWS: Final = 10_000
"""Rows of a page, and endpoints of a batch, at most."""
DEFAULT_ROWS: Final = 1_000
DEFAULT_WAIT: Final = 60.0
"""Seconds that an operation waits for open transactions (MAN-1)."""
DEFAULT_GRACE: Final = 10.0
"""Seconds that the readers of a queue have to end when it is drained (PBT-25)."""


class ViewOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The map of `view`: which rows, and how many of them (CLP-90)."""

    where: dict[Name, Any] = {}
    """Column to the value it has, or to a list of values it may have."""
    older_than: Annotated[float, Meta(ge=0)] | None = None
    """Seconds since the instant that the view counts age from."""
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = DEFAULT_ROWS
    after: str | None = None
    """`next` of the page before."""
    bodies: bool = False
    """Whether messages come with their bodies."""


class View(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Ask for a page of the rows of a view (CLP-90)."""

    name: Name
    options: ViewOptions = ViewOptions()


class Exclusion(Struct, frozen=True, forbid_unknown_fields=True):
    """How open transactions are treated (MAN-1)."""

    force: bool = False
    """Roll them back, instead of waiting for them."""
    wait: Annotated[float, Meta(ge=0, le=86_400)] = DEFAULT_WAIT
    """Seconds to wait for them."""


class Enable(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Switch delivery on (MAN-2)."""

    broker: Name
    options: Exclusion = Exclusion()


class Disable(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Switch delivery off (MAN-3)."""

    broker: Name
    options: Exclusion = Exclusion()


class ErrorConversations(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """End every dialog with an error (MAN-5)."""

    broker: Name
    options: Exclusion = Exclusion()


class NewBroker(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Remove every dialog and take another identifier, which the client made (MAN-6).

    Asked again with the identifier that the broker has by then, it changes nothing."""

    broker: Name
    broker_id: Id
    options: Exclusion = Exclusion()


class CleanUpOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The map of `clean_up_endpoints`: which ones (MAN-15)."""

    states: list[Annotated[str, Meta(max_length=2)]] = []
    """Empty = every state."""
    older_than: Annotated[float, Meta(ge=0)] | None = None
    """Seconds they have been in their state at least."""
    service: Name | None = None
    far_service: Name | None = None
    batch: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = DEFAULT_ROWS
    """Endpoints looked at in one step."""
    dry_run: bool = False
    after: int | None = None
    """`next` of the batch before."""


class CleanUpEndpoints(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Remove dialog endpoints without a word to their peers, one batch of them (MAN-15)."""

    broker: Name
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]
    options: CleanUpOptions = CleanUpOptions()


class Backup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Write a copy of a broker's store to a file of the daemon's machine (MAN-11)."""

    broker: Name
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class ForgetBroker(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A broker whose file is not there is gone for good (MAN-18)."""

    broker: Name


class DrainQueue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Switch the activation of a queue off and let its readers end (CLP-118, PBT-25)."""

    broker: Name
    queue: Name
    grace: Annotated[float, Meta(ge=0, le=86_400)] = DEFAULT_GRACE
    """Seconds until they are ended."""


class AlterEndpoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Change the broker endpoint while it runs (END-4 to END-9)."""

    endpoint: dict[Name, Any]
    """Keys of the section [endpoint] to values as in a file; what is left out stays."""


class ConfirmClock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Follow a jump of UTC that is held (REL-24)."""


class RetryDestination(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Clear suppression and connect now (NBT-8)."""

    address: Name | None = None
    """None = every destination."""


class ExplainOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The map of `explain_route`: what is routed."""

    broker_id: Id | None = None
    """The broker it names (DLG-4)."""
    handle: Id | None = None
    """A dialog of the client's broker, instead of the service."""
    arriving: bool = False
    """As if it came from outside, instead of from the client's broker."""
    reply: bool = False
    """Whether it is sent by the target's side."""
    hops: Annotated[int, Meta(ge=0, le=255)] = 10
    """For what arrives: how many it has left (FWD-5)."""


class ExplainRoute(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Ask where something would go, and by which steps (CLP-98)."""

    service: Name | None
    options: ExplainOptions = ExplainOptions()


class PingOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The map of `ping`."""

    broker_id: Id | None = None
    """The broker it names (DLG-4)."""
    from_service: Name | None = None
    """Where replies would come to; None = a service of the client's broker."""
    wait: Annotated[float, Meta(gt=0, le=300)] = 10.0
    """Seconds until what is known then is the answer."""


class Ping(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Walk the routing of a service name out and back (NBT-7, CLP-131)."""

    service: Name
    options: PingOptions = PingOptions()


Reason = Annotated[str, Meta(max_length=1024)]


class ReleaseGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Let a parked or waiting group be received again (PBT-3)."""

    broker: Name
    group: Id
    reason: Reason = ""


class DiscardGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Delete its first message, or all of them, and release it."""

    broker: Name
    group: Id
    everything: bool = False
    reason: Reason = ""


class EndGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """End every dialog of it with an error; what waits of them goes (PSN-11)."""

    broker: Name
    group: Id
    code: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    description: Annotated[str, Meta(min_length=1, max_length=3000)]


class EditGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Give its first message another body, and release it."""

    broker: Name
    group: Id
    body: bytes | None
    reason: Reason = ""
    as_it_is: bool = False
    """Also if the body it had was JSON and this one is not."""


class CureQueue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """End the dialog for which a queue was switched off, and switch it on (PSN-11)."""

    broker: Name
    queue: Name
    code: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    description: Annotated[str, Meta(min_length=1, max_length=3000)]


PoisonVerb = ReleaseGroup | DiscardGroup | EndGroup | EditGroup | CureQueue
POISON_VERBS: Final[dict[str, type[PoisonVerb]]] = {
    "release_group": ReleaseGroup,
    "discard_group": DiscardGroup,
    "end_group": EndGroup,
    "edit_group": EditGroup,
    "cure_queue": CureQueue,
}
AdminVerb = (
    View
    | Enable
    | Disable
    | ErrorConversations
    | NewBroker
    | CleanUpEndpoints
    | Backup
    | ForgetBroker
    | DrainQueue
    | AlterEndpoint
    | RetryDestination
    | ConfirmClock
    | ExplainRoute
    | Ping
)
ADMIN_VERBS: Final[dict[str, type[AdminVerb]]] = {
    "view": View,
    "enable": Enable,
    "disable": Disable,
    "error_conversations": ErrorConversations,
    "new_broker": NewBroker,
    "clean_up_endpoints": CleanUpEndpoints,
    "backup": Backup,
    "forget_broker": ForgetBroker,
    "drain_queue": DrainQueue,
    "alter_endpoint": AlterEndpoint,
    "retry_destination": RetryDestination,
    "confirm_clock": ConfirmClock,
    "explain_route": ExplainRoute,
    "ping": Ping,
}
