"""Verbs of administration: views in pages, delivery, identity, clean-up, backup (CLP-90 to 95).

Reads:  nothing.      Calls: nothing.
Never:  decides anything; `client_verbs` uses these forms to check requests.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from brokerd.protocol.credential_verbs import CREDENTIAL_VERBS, CredentialVerb

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(max_length=1024)]
MOST_ROWS: Final = 10_000
"""Most rows of a page, and most endpoints of a batch."""
DEFAULT_ROWS: Final = 1_000
DEFAULT_WAIT: Final = 60.0
"""Seconds that an operation waits for open transactions (MAN-1)."""
DEFAULT_GRACE: Final = 10.0
"""Seconds that readers have to end when their queue is drained (PBT-25)."""
PURGE_BATCH: Final = 250
"""Messages of a batch of a purge; each dialog that ends is a commit."""


class ViewOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `view`: the choice of the rows, and their number (CLP-90)."""

    where: dict[Name, Any] = {}
    """Map of columns to the value that a row must have, or to a list of such values."""
    older_than: Annotated[float, Meta(ge=0)] | None = None
    """Least age in seconds, counted from the instant that the view defines."""
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = DEFAULT_ROWS
    after: str | None = None
    """The value `next` of the previous page."""
    bodies: bool = False
    """Whether messages include their bodies."""


class View(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for a page of rows of a view (CLP-90)."""

    name: Name
    options: ViewOptions = ViewOptions()


class Exclusion(Struct, frozen=True, forbid_unknown_fields=True):
    """Treatment of open transactions (MAN-1)."""

    force: bool = False
    """Whether to roll open transactions back, instead of waiting for them."""
    wait: Annotated[float, Meta(ge=0, le=86_400)] = DEFAULT_WAIT
    """Seconds to wait for open transactions."""


class Enable(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to switch delivery on (MAN-2)."""

    broker: Name
    options: Exclusion = Exclusion()


class Disable(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to switch delivery off (MAN-3)."""

    broker: Name
    options: Exclusion = Exclusion()


class ErrorConversations(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to end every dialog with an error (MAN-5)."""

    broker: Name
    options: Exclusion = Exclusion()


class NewBroker(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to remove every dialog and adopt a new identifier, made by the client (MAN-6).

    A request with the identifier that the broker already has changes nothing."""

    broker: Name
    broker_id: Id
    options: Exclusion = Exclusion()


class CleanUpOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `clean_up_endpoints`: the choice of the endpoints (MAN-15)."""

    states: list[Annotated[str, Meta(max_length=2)]] = []
    """States of the endpoints; empty = every state."""
    older_than: Annotated[float, Meta(ge=0)] | None = None
    """Least time, in seconds, that the endpoints have been in their state."""
    service: Name | None = None
    far_service: Name | None = None
    batch: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = DEFAULT_ROWS
    """Number of endpoints inspected in one step."""
    dry_run: bool = False
    after: int | None = None
    """The value `next` of the previous batch."""


class CleanUpEndpoints(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to remove one batch of dialog endpoints without notifying their peers (MAN-15)."""

    broker: Name
    reason: Annotated[str, Meta(min_length=1, max_length=1024)]
    options: CleanUpOptions = CleanUpOptions()


class Backup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to copy a broker's store to a file on the daemon's machine (MAN-11)."""

    broker: Name
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


class ForgetBroker(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to give up a broker whose file is missing (MAN-18)."""

    broker: Name


class DrainQueue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to switch off a queue's activation and let its readers end (CLP-118, PBT-25)."""

    broker: Name
    queue: Name
    grace: Annotated[float, Meta(ge=0, le=86_400)] = DEFAULT_GRACE
    """Seconds after which readers that still run are ended."""


class AlterEndpoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to change the broker endpoint while it runs (END-4 to END-9)."""

    endpoint: dict[Name, Any]
    """Keys of the section [endpoint] with values as in a file; other keys keep their values."""


class ConfirmClock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to accept a held jump of UTC (REL-24)."""


class HandOver(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to hand the stores over to a daemon that waits for them (REL-58)."""


class RetryDestination(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to clear suppression and connect now (NBT-8)."""

    address: Name | None = None
    """Address of the destination; None = every destination."""


class ExplainOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `explain_route`: the message to route."""

    broker_id: Id | None = None
    """Broker named together with the service (DLG-4)."""
    handle: Id | None = None
    """Handle of a dialog of the client's broker, instead of a service."""
    arriving: bool = False
    """Whether the message arrives from outside, instead of from the client's broker."""
    reply: bool = False
    """Whether the target's side sends the message."""
    hops: Annotated[int, Meta(ge=0, le=255)] = 10
    """Hops that an arriving message has left (FWD-5)."""


class ExplainRoute(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to explain where a message would go, and by which steps (CLP-98)."""

    service: Name | None
    options: ExplainOptions = ExplainOptions()


class PingOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `ping`."""

    broker_id: Id | None = None
    """Broker named together with the service (DLG-4)."""
    from_service: Name | None = None
    """Service that would get the replies; None = a service of the client's broker."""
    wait: Annotated[float, Meta(gt=0, le=300)] = 10.0
    """Longest wait in seconds; the answer then contains the steps known so far."""


class Ping(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to follow the routing of a service name out and back (NBT-7, CLP-131)."""

    service: Name
    options: PingOptions = PingOptions()


class DialogTimeline(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the reports of both sides of a dialog (MON-55)."""

    handle: Id
    wait: Annotated[float, Meta(gt=0, le=60)] = 3.0
    """Longest wait for the far side, in seconds."""


GrantText = Annotated[str, Meta(min_length=1, max_length=4096)]
"""A grant as in the settings: `send on SERVICE to WHO`."""


class GrantPermission(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to grant a permission from now on (CLP-140)."""

    grant: GrantText


class RevokePermission(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to take a permission back (CLP-141)."""

    grant: GrantText


class WhoCan(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the grants of an object or of a principal; of neither = all (CLP-142)."""

    permission: Name | None = None
    securable: Name | None = None
    """The object that the permission is on."""
    principal: Name | None = None
    """The principal whose grants are asked for, instead of an object."""


Reason = Annotated[str, Meta(max_length=1024)]


class ReleaseGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to make a parked or waiting group receivable again (PBT-3)."""

    broker: Name
    group: Id
    reason: Reason = ""


class DiscardGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to delete a group's first message, or all its messages, and release the group."""

    broker: Name
    group: Id
    everything: bool = False
    reason: Reason = ""
    message: Id | None = None
    """The message for which the caller has seen the group held; None = any."""


class EndGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to end every dialog of a group with an error, dropping its messages (PSN-11)."""

    broker: Name
    group: Id
    code: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    description: Annotated[str, Meta(min_length=1, max_length=3000)]


class EditGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to replace the body of a group's first message, and release the group."""

    broker: Name
    group: Id
    body: bytes | None
    reason: Reason = ""
    as_it_is: bool = False
    """Whether to accept a body that is not JSON in place of a JSON body."""
    message: Id | None = None
    """The message for which the caller has seen the group held; None = any."""


class CureQueue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to end the dialog that a queue was disabled for, and enable the queue (PSN-11)."""

    broker: Name
    queue: Name
    code: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    description: Annotated[str, Meta(min_length=1, max_length=3000)]


class OpenPage(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for an address at which a browser is let in as this client (MON-28)."""


class PurgeQueue(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to end the dialogs of a batch of messages with an error (MAN-24)."""

    broker: Name
    queue: Name
    code: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    description: Annotated[str, Meta(min_length=1, max_length=3000)]
    after: Annotated[int, Meta(ge=0)] | None = None
    """Where the batch begins: `next` of the answer before; None = at the first message."""
    batch: Annotated[int, Meta(ge=1, le=1000)] = PURGE_BATCH
    """Largest number of messages in the batch."""


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
    | PurgeQueue
    | AlterEndpoint
    | RetryDestination
    | ConfirmClock
    | HandOver
    | ExplainRoute
    | Ping
    | DialogTimeline
    | GrantPermission
    | RevokePermission
    | WhoCan
    | OpenPage
    | CredentialVerb
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
    "purge_queue": PurgeQueue,
    "alter_endpoint": AlterEndpoint,
    "retry_destination": RetryDestination,
    "confirm_clock": ConfirmClock,
    "hand_over": HandOver,
    "explain_route": ExplainRoute,
    "ping": Ping,
    "dialog_timeline": DialogTimeline,
    "grant": GrantPermission,
    "revoke": RevokePermission,
    "who_can": WhoCan,
    "open_page": OpenPage,
    **CREDENTIAL_VERBS,
}
