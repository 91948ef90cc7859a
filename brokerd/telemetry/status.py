"""Status of a daemon for one screen: the answer to the verb `status`, as values.

PURE.  The daemon fills an `InstanceStatus` and sends it as plain maps; the command line reads it.
Every field has a default, so that either side may be the newer one.
"""

from datetime import timedelta
from typing import Final

import msgspec

from brokerd.clock import SECOND, Instant, show_instant
from brokerd.config.exposure import OpenListener
from brokerd.units import counted, show_duration

STUCK_AFTER: Final = 5 * 60 * SECOND
"""Microseconds of waiting without progress that cause a warning (Numbers: stuck message)."""
SILENT_AFTER: Final = 10 * SECOND
"""Microseconds of silence of a peer that owes acknowledgements, after which it is a concern."""
HERE: Final = "LOCAL"
"""Address of messages that wait for a service of the instance itself."""
REPEATS: Final = 2
"""Repeated transmissions without an acknowledgement that are a concern: some 12 s by default."""
NEVER_SENT: Final[dict[str, str]] = {
    "held_after_error": "the dialog is in error, so nothing more is sent on it",
    "held_after_end": "the other side has ended the dialog, so nothing more is sent on it",
}
"""Why messages of a dialog that is over stay where they are (DLP-50), by status key."""
QUIET: Final = frozenset({"", "not_attempted", "awaiting_ack"})
"""Status keys of messages that nothing holds up."""
UNREAD_AFTER: Final = 60 * SECOND
UNREAD_AT_FIRST: Final = 15 * SECOND
"""Microseconds without a receive after which waiting messages count as unread; the second, if
nothing was received since the daemon started."""
CLOCK_TOLERANCE: Final = timedelta(minutes=5)
"""The largest difference of two clocks that is no concern (Numbers: clock tolerance)."""


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one queue (VIEW-4)."""

    name: str
    broker: str = ""
    ready: int = 0
    oldest_ready_at: Instant | None = None
    status: str = "on"
    handler: str = ""
    readers: int = 0
    max_readers: int = 0
    reason: str = ""
    """Problem with the readers; empty = no problem."""
    parked: int = 0
    """Number of parked groups (PBT-3)."""
    retrying: int = 0
    """Number of groups that wait for their next attempt, which is not a concern yet."""
    last_error: str = ""
    """Error of the latest attempt."""
    enqueued: int = 0
    received: int = 0
    """Messages that came, and whose receive was committed, since the daemon started."""
    full: str = ""
    """Content, limits and refusals of a queue at its limit (REL-42); empty = it has room."""
    max_messages: int = 0
    max_bytes: int = 0
    """Limits of the queue; 0 = none."""
    refused_at: Instant | None = None
    """Instant of the last send or arrival that was refused for want of room."""
    off_because: str = ""
    """Why and by whom the queue was switched off; empty = it is on, or nothing is known."""
    is_poisoned: bool = False
    """Whether it is off because of one conversation, which `brokerd queue cure` ends (PSN-2)."""
    is_activation_off: bool = False
    """Whether the queue has a handler, and its activation is switched off."""
    unread: str = ""
    """Why nothing receives the messages that wait; empty = none has waited long, or something
    receives (MON-70)."""


class DestinationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that wait for one destination, and the reason (MON-8, XMT-19)."""

    address: str
    """Normalised address; empty for dialogs without a destination."""
    broker: str = ""
    """Broker of the dialogs that have no address, or of those that are held up."""
    messages: int = 0
    state: str = "idle"
    """State: idle, connecting, online, suppressed; delayed if there is no destination."""
    status_key: str = ""
    detail: str = ""
    text: str = ""
    """Meaning of the key, with the detail."""
    since: Instant | None = None
    oldest_at: Instant | None = None
    next_attempt_at: Instant | None = None
    failures: int = 0
    """Number of successive failed attempts to connect. Without a destination: the highest number of
    failed searches for a route among the dialogs."""
    held_up: int = 0
    """Number of the messages whose dialogs have the status `status_key`, if that is none of `QUIET`
    (MON-71)."""
    service: str = ""
    """A far service for which messages are held up, or that no route leads to."""
    dialog: str = ""
    """Handle of a dialog with that service."""
    repeats: int = 0
    """Largest number of times that a dialog's messages were sent again since the last
    acknowledgement."""
    heard_at: Instant | None = None
    """Instant of the last frame from the peer; None = no connection is open."""


class TransmissionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Transmission status of one dialog (SND-23, XMT-16 to XMT-19)."""

    status_key: str = ""
    """Key of XMT-19; empty only if no message waits to be sent or acknowledged."""
    transmission_status: str = ""
    """Meaning of the key, with the detail."""
    status_since: Instant | None = None
    attempts: int = 0
    """Number of times that the oldest fragment was sent since the last acknowledgement; without a
    destination, the number of searches for a route (XMT-18)."""
    next_attempt_at: Instant | None = None
    pending: int = 0
    """Number of messages that the peer has not acknowledged."""
    destination: str | None = None


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one broker's store."""

    broker: str
    state: str = "ok"
    """State: ok, full, slow, read_only, refused, missing; disabled = delivery is off."""
    path: str = ""
    """The file; empty = the store is on a server."""
    schema: str = ""
    """The schema of the store on a server."""
    size_bytes: int = 0
    wal_bytes: int = 0
    free_bytes: int | None = None
    reason: str = ""
    loss: str = ""
    """The loss that an administrator accepted, shown until `loss_file` is removed (REL-40)."""
    loss_accepted_at: Instant | None = None
    loss_file: str = ""
    """The file that an operator removes once the loss is resolved."""


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the database server that has the stores."""

    place: str
    """The servers and the database, as `postgresql://HOSTS/DATABASE`."""
    version: str = ""
    redundancy: str = ""
    """How many machines a confirmed commit is on, as text."""
    standbys: tuple[str, ...] = ()
    """Names of the synchronous standbys that are connected."""
    former: tuple[str, ...] = ()
    """Other servers that take changes, and were the primary before or are of another system."""
    newer: tuple[str, ...] = ()
    """Other servers that take changes, and were promoted since."""
    waits_for_standby: bool = False
    """Whether a commit waits for a standby, as far as the server shows its standbys."""


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with a file or directory that is not exclusively the instance's own (SX-24)."""

    path: str
    problem: str
    """Description of the problem, to be read after the path."""
    mend: str
    """Command or instruction that solves the problem."""
    is_refused: bool = True
    """Whether the daemon refuses to start with this problem; otherwise it is only reported."""


class CertificateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate in use that has expired, or expires within 30 days (NBT-21)."""

    owner: str = ""
    """The peer or client, such as `peer:west`; empty = this instance."""
    purpose: str = ""
    """`transport` or `dialog`."""
    certificate_id: str = ""
    not_after: Instant = Instant(0)
    days_left: int = 0
    """Whole days until it expires; negative = it has expired."""


class PublicGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A permission that everybody has (SEC-50)."""

    permission: str
    securable: str
    """The object that it is on."""
    origin: str = "settings"
    """`settings` or `online`."""


class DuplicateStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A broker for which two instances deliver (RTE-71)."""

    broker_id: str
    broker: str = ""
    """Name of the broker, if it belongs to this instance."""
    earlier: str = ""
    """Instance that receives the messages for the broker, with its address."""
    later: str = ""
    """Instance that receives no messages for the broker."""
    since: Instant | None = None


class DoorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Connections accepted from peers, from clients or over HTTP (END-18)."""

    kind: str
    """`peers`, `clients` or `http`."""
    connections: int = 0
    most: int = 0
    strangers: int = 0
    """Number of connections that have not logged in yet."""
    refused: dict[str, int] = {}
    """Number of connections refused since the start, by reason."""
    refused_at: Instant | None = None
    """Instant of the last refusal."""


class FailedDialogs(msgspec.Struct, frozen=True, kw_only=True):
    """Dialogs that brokers ended with the same error between the same services (MON-72)."""

    broker: str = ""
    service: str = ""
    far_service: str = ""
    contract: str = ""
    code: int = 0
    """Number of the error, below 0; 0 = a message was refused for `reason`."""
    reason: str = ""
    count: int = 0
    is_of_dialogs: bool = True
    """Whether `count` is of dialogs; otherwise it is of messages whose dialog did not begin."""
    last_at: Instant = Instant(0)
    example: str = ""
    """Identifier of the latest of these conversations; empty = this side of it is gone."""
    is_initiator: bool | None = None
    principal: str = ""
    """The sender of refused messages that had no permission; empty = they had another fault."""


class RefusedLogins(msgspec.Struct, frozen=True, kw_only=True):
    """Logins of peers that this instance has refused for the same sort of reason."""

    who: str
    """The principal, or the address of an instance that is not known."""
    reason: str = ""
    """The reason of the latest refusal."""
    count: int = 0
    first_at: Instant = Instant(0)
    """Instant of the first refusal; none of the later ones came more than an hour after another."""
    last_at: Instant = Instant(0)


class ClockApart(msgspec.Struct, frozen=True, kw_only=True):
    """A connected peer whose clock differs from this one by more than the tolerance (MON-73)."""

    peer: str
    """Name or address of the peer."""
    ahead: float = 0.0
    """Seconds by which its clock is ahead; negative = behind."""


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `brokerd status` shows."""

    instance: str = ""
    instance_id: str = ""
    boot_id: str = ""
    version: str = ""
    broker: str = ""
    broker_id: str = ""
    now: Instant = Instant(0)
    started_at: Instant | None = None
    state: str = "ready"
    """State: starting, ready, draining."""
    listening: tuple[str, ...] = ()
    listen_error: str = ""
    endpoint_state: str = ""
    """State of the broker endpoint: started, stopped, disabled; empty = there is none."""
    clients: int = 0
    peers: int = 0
    doors: tuple[DoorStatus, ...] = ()
    queues: tuple[QueueStatus, ...] = ()
    destinations: tuple[DestinationStatus, ...] = ()
    dialogs: dict[str, int] = {}
    """Number of dialog endpoints by state (CO, DI ...)."""
    stores: tuple[StoreStatus, ...] = ()
    server: ServerStatus | None = None
    """The server that has the stores; None = they are files."""
    duplicates: tuple[DuplicateStatus, ...] = ()
    """Brokers for which two instances deliver (PBT-13)."""
    warnings: tuple[str, ...] = ()
    """Warnings about periodic work that fails."""
    clock: str = ""
    """Jump of the machine's clock that the daemon does not follow, as text (REL-24)."""
    unknown_users: tuple[str, ...] = ()
    """Users named in the settings that the machine does not know (CLP-130)."""
    open_listeners: tuple[OpenListener, ...] = ()
    """Listeners that other machines can reach (SX-21). The settings permit each listener, so they
    are shown but are not a concern."""
    openings: tuple[str, ...] = ()
    """Sentences about everything else that the settings or objects open (SEC-88); no concern."""
    open_to_public: tuple[PublicGrant, ...] = ()
    """Permissions of everybody. Somebody has granted them, so they are shown but no concern."""
    file_problems: tuple[FileProblem, ...] = ()
    """Files and directories that are not exclusively the instance's own (SX-24)."""
    certificates: tuple[CertificateStatus, ...] = ()
    """Certificates in use that have expired, or will within 30 days (NBT-21)."""
    no_master_key: str = ""
    """Why the private keys of the instance cannot be used; empty = they can (SEC-38)."""
    open_files: int = 0
    """Number of descriptors in use, sockets included; 0 = unknown."""
    max_files: int = 0
    """Limit of descriptors (`ulimit -n`)."""
    min_free: int = 0
    """Free bytes below which the stores accept no new messages (`store.min_free`)."""
    lingering_after: float = 3600.0
    """Seconds after which an unfinished dialog is reported; 0 = never (PBT-5)."""
    idle_dialogs: dict[str, str] = {}
    """Sentences about dialogs whose end was announced, by broker (REL-44)."""
    dialog_limits: tuple[str, ...] = ()
    """Sentences about users and peers that were refused a dialog in the last hour (REL-45)."""
    failed_dialogs: tuple[FailedDialogs, ...] = ()
    """Dialogs that failed in the last hour, the most frequent error first; at most 20 rows."""
    clocks_apart: tuple[ClockApart, ...] = ()
    refused_logins: tuple[RefusedLogins, ...] = ()
    """Logins of peers that were refused in the last hour, the latest first; at most 20 rows."""


def concerns(status: InstanceStatus) -> list[str]:
    """Return the concerns for an operator, worst first; empty if all is well."""
    # The order is that of the display. States that need no action are left out: a destination
    # without messages, groups between two attempts, listeners that the settings permit.
    found = [
        f"store {s.broker} is {s.state}: {s.reason}".removesuffix(": ")
        for s in status.stores
        if _bad(s)
    ]
    found += [accepted_loss(one) for one in status.stores if one.loss_accepted_at is not None]
    if status.state != "ready":
        found.append(f"the daemon is {status.state}")
    if (server := status.server) is not None:
        found += [f"another server was promoted: {one}" for one in server.newer]
        if server.waits_for_standby and not server.standbys:
            found.append(f"{server.place}: {server.redundancy}")
        found += [f"another server takes changes: {one}" for one in server.former]
    if status.clock:
        found.append(status.clock)
    if status.listen_error:
        found.append(f"not listening for peers: {status.listen_error}")
    if status.endpoint_state not in ("", "started"):
        found.append(f"the broker endpoint is {status.endpoint_state}: no other instance gets in")
    found += [
        f"broker {d.broker_id} is at {d.earlier}, and at {d.later}" for d in status.duplicates
    ]
    found += [apart(one) for one in status.clocks_apart]
    for queue in status.queues:
        found += _queue_concerns(queue)
    unsent_to = [(to, unsent(to, status.now)) for to in status.destinations]
    found += [text for to, text in unsent_to if text and not is_over(to)]
    found += [failure(one) for one in status.failed_dialogs]
    found += [text for to, text in unsent_to if text and is_over(to)]  # a failure is the cause
    found += [f"{one.path} {one.problem}" for one in status.file_problems if one.is_refused]
    found += [status.no_master_key] if status.no_master_key else []
    found += [expiry(one) for one in status.certificates]
    found += status.warnings
    return found + [f"grants: {one}" for one in status.unknown_users]


def _queue_concerns(queue: QueueStatus) -> list[str]:
    found: list[str] = []
    name = f"{queue.name} of broker {queue.broker}" if queue.broker else queue.name
    if queue.status != "on":
        because = f": {queue.off_because}" if queue.off_because else ""
        count = counted(queue.ready, "message")
        found.append(f"queue {name} is {queue.status}, {count} in it{because}")
    elif queue.reason:
        found.append(f"queue {name}: {queue.reason}")
    elif queue.unread:
        found.append(f"queue {name}: {queue.unread}")
    if queue.full:
        found.append(f"queue {name} is full: {queue.full}")
    if queue.parked:
        count = counted(queue.parked, "group is", "groups are")
        found.append(f"queue {name}: {count} parked; brokerd group ls --parked")
    return found


def is_over(to: DestinationStatus) -> bool:
    """Return whether messages are held because their dialogs are over: nothing sends them."""
    return to.status_key in NEVER_SENT


def unsent(to: DestinationStatus, now: Instant) -> str:
    """Return why messages for a destination do not arrive; empty = nothing holds them up.

    A message on its way is no concern, nor is a destination for which none waits (MON-71)."""
    if not to.messages:
        return ""
    is_held = to.status_key not in QUIET
    silent = _silence(to, now)
    is_repeated = to.repeats >= REPEATS
    if not (
        is_held or silent or is_repeated or to.state in ("suppressed", "delayed") or _stuck(to, now)
    ):
        return ""
    count = counted(to.held_up or to.messages, "message waits", "messages wait")
    where = to.address or to.service or "no destination"
    if to.address == HERE:
        where = f"{to.service} of this instance" if to.service else "this instance"
    elif to.address and to.service:
        where = f"{to.service} at {to.address}"
    if silent and not is_held:
        return f"{count} for {where}: the peer has been silent for {silent // SECOND} s"
    if is_repeated and not is_held:
        return f"{count} for {where}: sent {to.repeats + 1} times, and not acknowledged"
    why = (
        NEVER_SENT.get(to.status_key)
        or to.text
        or " ".join(word for word in (to.status_key, to.detail) if word)
    )
    return f"{count} for {where}: {why or to.state}"


def _silence(to: DestinationStatus, now: Instant) -> int:
    """Return how long, in microseconds, a peer has been silent that owes acknowledgements; else 0.

    Both the oldest message and the silence must have lasted for `SILENT_AFTER`."""
    if to.heard_at is None or to.oldest_at is None:
        return 0
    lasted = min(now - to.heard_at, now - to.oldest_at)
    return lasted if lasted > SILENT_AFTER else 0


def failure(one: FailedDialogs) -> str:
    """Return dialogs that failed as a sentence (MON-72)."""
    ways = (("from", one.service), ("to", one.far_service))
    if one.is_initiator is False:
        ways = (("from", one.far_service), ("to", one.service))
    named = "".join(f" {way} {service}" for way, service in ways if service)
    if one.contract:
        named += f" under contract {one.contract}"
    if one.code:
        return f"{counted(one.count, 'dialog')}{named} failed: error {one.code}: {one.reason}"
    if not one.is_of_dialogs:
        were = counted(one.count, "arriving message", "arriving messages")
        return f"{were}{named} {'was' if one.count == 1 else 'were'} refused: {one.reason}"
    return f"messages of {counted(one.count, 'dialog')}{named} were refused: {one.reason}"


def apart(one: ClockApart) -> str:
    """Return the difference of two clocks as a sentence (MON-73)."""
    way = "ahead of" if one.ahead > 0 else "behind"
    seconds = abs(one.ahead)
    unit = next((size for size in (86_400, 3_600) if seconds >= 2 * size), 60)
    size = show_duration(timedelta(seconds=round(seconds / unit) * unit))
    return f"the clock of {one.peer} is {size} {way} that of this instance"


def expiry(one: CertificateStatus) -> str:
    """Return the end of a certificate as a sentence (NBT-21)."""
    whose = one.owner or "this instance"
    when = "has expired" if one.days_left < 0 else f"expires in {counted(one.days_left, 'day')}"
    return f"the {one.purpose} certificate of {whose} {when}: {show_instant(one.not_after)}"


def foreign_key(broker: str) -> str:
    """Return that another instance's master key encrypts the dialogs of a broker (SEC-73)."""
    return f"{_FOREIGN_KEY} {broker!r} are encrypted by another master key than the one here"


def way_to_master_key(problem: str) -> str:
    """Return what to do about a problem with the master key, as `no_master_key` has it."""
    if problem.startswith(_FOREIGN_KEY):
        return (
            "copy master.key, with mode 0600, from the instance that had the broker open, and "
            "restart the daemon"
        )
    return (
        "put master.key back from a backup of the same time, and restart the daemon; if it is lost "
        "for good: brokerd certificate replace-key"
    )


_FOREIGN_KEY: Final = "the keys of dialogs of broker"
BY_AUTHORITY: Final = "ca.certificate"
"""Owner, in reports, of the certificate that a company's own CA has made for this instance."""


def replacement(owner: str) -> str:
    """Return the way to replace a certificate.

    `owner`: a principal, or `BY_AUTHORITY`; empty = this instance."""
    if owner == BY_AUTHORITY:
        return "have the CA make the next one, and replace the files of ca.certificate and ca.key"
    if not owner:
        return (
            "brokerd certificate renew makes the next one and sends it to the peers; clients need "
            "it in a file; then: brokerd certificate switch"
        )
    kind, _, name = owner.partition(":")
    return (
        f"have {name} make its next certificate (brokerd certificate renew there); if it does not "
        f"come by itself: brokerd {kind} add {name} --certificate FILE"
    )


def accepted_loss(store: StoreStatus) -> str:
    """Return the accepted loss of a store as a sentence (REL-40)."""
    at = "" if store.loss_accepted_at is None else show_instant(store.loss_accepted_at)
    return (
        f"store {store.broker}: a loss was accepted at {at}: {store.loss}; once it is dealt with "
        f"remove {store.loss_file}"
    )


def _bad(store: StoreStatus) -> bool:
    return store.state != "ok"


def _stuck(to: DestinationStatus, now: Instant) -> bool:
    return to.oldest_at is not None and now - to.oldest_at > STUCK_AFTER
