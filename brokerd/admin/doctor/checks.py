"""The checks of a whole instance: the faults in its views and status, and the cure (MON-20).

PURE.   Rows of views in, findings out.
Reads:  the rows that `cli.doctor` has fetched.      Calls: status.
Never:  guesses: each finding is a fact that a view or the status shows as well.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from shlex import quote
from typing import Final

import msgspec

from brokerd.admin.doctor.findings import Finding, Row, error, info, warning
from brokerd.clock import SECOND, Instant, show_instant
from brokerd.config.exposure import describe
from brokerd.model import CONFIGURATION_SERVICE, MSDB
from brokerd.routing.reasons import LACKING, Reason, status_text
from brokerd.telemetry.status import (
    DestinationStatus,
    DoorStatus,
    InstanceStatus,
    QueueStatus,
    expiry,
    replacement,
)
from brokerd.transport.door import ADDRESS_FULL, ADDRESS_LOGINS, DESCRIPTORS, DISPLACED, FULL
from brokerd.units import counted, show_duration

SKEW: Final = 300 * SECOND
"""The largest difference between two clocks that is not reported (Numbers: clock tolerance)."""
NEARLY_FULL: Final = 0.9
MOST: Final = 100
"""The number of parked groups or stuck dialogs of a broker that are reported one by one."""
RECENT: Final = 3600 * SECOND
"""Age below which an incident is reported as a warning; an older one is reported as information."""
LOCAL: Final = "LOCAL"
LINGERING: Final = {
    "DI": "the peer has ended them, and their own side is not ended",
    "DO": "the peer has not acknowledged their end",
    "ER": "nobody has ended them after their error",
}
"""States in which a dialog should not stay, and the missing step that ends each (PBT-5)."""


class BrokerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, as its views show it."""

    name: str
    default_encryption: bool = False
    """Whether dialogs that begin in the broker are encrypted by default (DLG-12)."""
    services: list[Row] = []
    routes: list[Row] = []
    bindings: list[Row] = []
    """The remote service bindings."""
    parked: list[Row] = []
    queues: list[Row] = []
    usages: list[Row] = []
    """The contracts of which each service is a target."""
    contracts: list[Row] = []
    message_usages: list[Row] = []
    message_types: list[Row] = []
    readers: dict[str, str] = {}
    """Reasons why no reader of a queue is started, by queue; empty = nothing prevents it."""
    lingering: dict[str, int] = {}
    """Number of endpoints, by state, that ended long ago and that no program has finished (PBT-5).

    Counting stops at `MOST` + 1 for each state.
    """
    stuck: list[Row] = []
    """Each dialog's oldest message, if it has waited more than `status.STUCK_AFTER` to be sent."""
    more_stuck: bool = False
    """Whether messages other than those in `stuck` may have waited as long."""
    delayed: list[Row] = []
    """Waiting messages, one per dialog, if some messages of the broker have no destination."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, as its views and status show it."""

    status: InstanceStatus
    now: Instant = Instant(0)
    """The time by the clock of the machine that runs the doctor."""
    brokers: list[BrokerSeen] = []
    known: list[Row] = []
    """The rows of the view `brokers`."""
    endpoint: Row | None = None
    destinations: list[Row] = []
    instance_routes: list[Row] = []
    forwarder: Row = {}
    dispatching: Row = {}


def examine(seen: Seen) -> Iterator[Finding]:
    """Yield all findings, in the order in which a message would run into them."""
    yield from _clock(seen)
    yield from _machine(seen.status)
    yield from _stores(seen.status)
    yield from delivery(seen.known)
    yield from _duplicates(seen.status)
    for queue in seen.status.queues:
        yield from _queue(queue)
    for broker in seen.brokers:
        queues = [one for one in seen.status.queues if one.broker == broker.name]
        yield from parked_groups(broker, sum(one.parked for one in queues))
        yield from _lingering(broker, seen.status)
        yield from _idle(broker.name, seen.status)
        yield from _routes(broker.name, broker.routes)
        yield from _hidden(broker)
        remote = {str(row["remote_service_name"]) for row in broker.routes if is_remote(row)}
        bare = without_binding(broker, remote)
        if broker.default_encryption and bare:
            yield warning("D28", *must_be_encrypted(broker, bare))
    yield from _routes(MSDB, seen.instance_routes)
    yield from _endpoint(seen)
    yield from _destinations(seen)
    yield from _waiting(seen)
    yield from _forwarding(seen)
    yield from _checks(seen)
    for line in seen.status.dialog_limits:
        mend = "end dialogs that are over, or raise clients.max_dialogs_per_user or "
        mend += "transport.max_dialogs_per_peer in the settings"
        yield warning("D75", f"instance {seen.status.instance}", line, mend)
    for line in seen.status.warnings:
        yield error("D46", "periodic work", line, "brokerd periodic ls; see the log for why")


def _clock(seen: Seen) -> Iterator[Finding]:
    apart = abs(seen.now - seen.status.now)
    if seen.status.clock:
        mend = "set the clock of the machine right; if it is: brokerd clock confirm"
        yield warning("D47", f"instance {seen.status.instance}", seen.status.clock, mend)
    elif apart > SKEW:
        text = f"its time and that of this machine are {apart // SECOND} s apart"
        mend = "set the clock of the machine; lifetimes and timers go by the daemon's (REL-24)"
        yield warning("D47", f"instance {seen.status.instance}", text, mend)
    if seen.status.state != "ready":
        about = f"instance {seen.status.instance}"
        yield warning("D48", about, f"the daemon is {seen.status.state}", "wait, or see its log")


def _machine(status: InstanceStatus) -> Iterator[Finding]:
    about = f"instance {status.instance}"
    for line in status.unknown_users:
        mend = "make the user, or revoke what it was granted: brokerd who-can; brokerd revoke"
        yield warning("D52", about, f"grants: {line}", mend)
    for listener in status.open_listeners:
        mend = "listen at loopback, or keep strangers off that network; SECURITY.md says what they "
        mend += "can do"
        yield warning("D60", about, f"open to other machines: {describe(listener)}", mend)
    for opening in status.openings:
        mend = "if this is not meant, change it; docs/reference/settings.md has the safe values"
        yield info("D77", about, f"open: {opening}", mend)
    yield from _public(status)
    for one in status.file_problems:
        level = error if one.is_refused else warning
        yield level("D61", f"file {one.path}", f"it {one.problem}", one.mend)
    if status.no_master_key:
        mend = "put master.key back from a backup of the same time, and restart the daemon; if it "
        mend += "is lost for good: brokerd certificate replace-key"
        yield error("D04", about, status.no_master_key, mend)
    for certificate in status.certificates:
        level = error if certificate.days_left < 0 else warning
        owner = certificate.owner or about
        yield level(
            "D26", f"certificate of {owner}", expiry(certificate), replacement(certificate.owner)
        )
    if 0 < status.max_files * NEARLY_FULL < status.open_files:
        text = f"{status.open_files} of at most {status.max_files} files and sockets are open"
        mend = "raise its limit: ulimit -n, or LimitNOFILE= of its unit, and restart the daemon"
        yield warning("D53", about, text, mend)
    for door in status.doors:
        yield from _refused(door, status.now)


def _public(status: InstanceStatus) -> Iterator[Finding]:
    """Yield a finding for each permission that everybody has, the graver for administration."""
    for grant in status.open_to_public:
        level = warning if grant.permission in {"control", "execute"} else info
        words = f"{grant.permission} on {grant.securable}"
        mend = f'if this is not meant: brokerd revoke "{words} to public"'
        if grant.origin == "settings":
            mend = "if this is not meant, remove it from clients.grants and restart the daemon"
        yield level("D70", f"instance {status.instance}", f"open to everybody: {words}", mend)


def _refused(door: DoorStatus, now: Instant) -> Iterator[Finding]:
    """Yield a finding for connections that a limit refused (END-18)."""
    if door.refused_at is None:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(door.refused.items()))
    text = f"connections were refused since the daemon started ({why}), the last at "
    text += f"{_clock_time(door.refused_at)}; {door.connections} of at most {door.most} are open, "
    text += f"{door.strangers} of them have not logged in"
    section = "transport" if door.kind == "peers" else "clients"
    mend = "see remote= of the log lines of broker.endpoint, refused; where all are welcome raise "
    mend += ", ".join(_limits(section, door.refused))
    level = warning if now - door.refused_at < RECENT else info
    yield level("D62", f"connections of {door.kind}", text, mend)


def _limits(section: str, reasons: Iterable[str]) -> list[str]:
    """Return the settings to raise, given the reasons why connections were refused."""
    limits = {
        FULL: "max_peers" if section == "transport" else "max_clients",
        ADDRESS_FULL: "max_per_address",
        ADDRESS_LOGINS: "max_logins_per_address",
        DISPLACED: "max_logins",
    }
    found = [f"{section}.{limits[one]}" for one in sorted(reasons) if one in limits]
    if DESCRIPTORS in reasons:
        found.append("the limit of open files (ulimit -n, or LimitNOFILE= of its unit)")
    return found


def _stores(status: InstanceStatus) -> Iterator[Finding]:
    for store in status.stores:
        about = f"store of broker {store.broker}"
        if store.state == "full":
            mend = f"make room on the disk of {store.path}; it goes on by itself"
            yield error("D43", about, store.reason or "the disk is full", mend)
        elif store.state == "slow":
            mend = f"iostat -x 1: what else uses the disk of {store.path}, and whether it fails"
            yield warning("D51", about, store.reason, mend)
        elif store.state == "refused":
            yield error("D42", about, store.reason, f"brokerd store verify {quote(store.path)}")
        elif store.state == "missing":
            mend = "put it back; if it is gone for good: brokerd broker forget "
            yield error("D42", about, store.reason, mend + quote(store.broker))
        elif store.state == "read_only":
            yield error("D42", about, store.reason or "it can only be read", f"see {store.path}")
        if store.loss_accepted_at is not None:
            text = f"a loss was accepted at {show_instant(store.loss_accepted_at)}: {store.loss}"
            mend = "see what peers and programs still have; then: rm " + quote(store.loss_file)
            yield warning("D63", about, text, mend)
        if store.free_bytes is not None and store.free_bytes < 2 * status.min_free:
            text = f"{store.free_bytes >> 20} MiB of the disk are free; below "
            text += f"{status.min_free >> 20} MiB nothing new is taken (REL-26)"
            yield warning("D43", about, text, f"make room on the disk of {store.path}")


def delivery(known: list[Row]) -> Iterator[Finding]:
    """Yield brokers with delivery off or equal identifiers; `known`: rows of the view `brokers`."""
    names: dict[object, str] = {}
    for row in known:
        name, about = str(row["name"]), f"broker {row['name']}"
        if not row["is_broker_enabled"] and not row["start_failure"]:
            why = row.get("disabled_reason") or "it was switched off"
            mend = f"brokerd broker enable {quote(name)}"
            yield error("D02", about, f"delivery is off: {why}", mend)
        other = names.setdefault(row["broker_id"], name)
        if other != name and row["broker_id"] is not None:
            mend = f"brokerd broker new-id {quote(name)}"
            yield error("D03", about, f"it has the identifier of broker {other}", mend)


def _duplicates(status: InstanceStatus) -> Iterator[Finding]:
    """Yield duplicate brokers; only an operator can say which of the two is the copy (PBT-13)."""
    for one in status.duplicates:
        about = f"broker {one.broker or one.broker_id}"
        text = f"{one.earlier} and {one.later} both deliver for {one.broker_id}; what is for it "
        text += "goes to the first, and nothing to the second (RTE-72)"
        mend = "at the one that is the copy, once no route leads dialogs of the other there: "
        yield error("D55", about, text, mend + "brokerd broker new-id NAME")


def _queue(queue: QueueStatus) -> Iterator[Finding]:
    about = f"queue {queue.name} of broker {queue.broker}"
    name, of = quote(queue.name), f"--broker {quote(queue.broker)}"
    if queue.status != "on":
        text = f"it is {queue.status}, with {counted(queue.ready, 'message')} in it"
        mend = f"brokerd queue show {name} {of} says why; brokerd queue alter {name} status=on {of}"
        yield error("D06", about, text, mend)
    elif queue.reason:
        yield not_read(queue.broker, queue.name, queue.reason)
    if queue.full:
        mend = f"let its messages be received: brokerd monitor ls --queue {name} {of}; or raise "
        mend += f"the limit: brokerd queue alter {name} max_messages=N max_bytes=SIZE {of}"
        yield warning("D74", about, f"it is full: {queue.full}", mend)
    if queue.retrying:
        text = counted(queue.retrying, "group waits", "groups wait") + " for the next attempt: "
        text += queue.last_error or "no cause was given"
        yield warning("D44", about, text, f"brokerd group ls --parked {of}")


def not_read(broker: str, queue: str, why: str) -> Finding:
    """Return the finding for a queue whose readers cannot be started (PBT-6)."""
    of = f"--broker {quote(broker)}"
    mend = f"brokerd monitor ls --queue {quote(queue)} {of}; brokerd queue show {quote(queue)} {of}"
    about = f"queue {queue} of broker {broker}"
    return error("D45", about, f"no reader is started: {why}", mend)


def parked_groups(broker: BrokerSeen, every: int) -> Iterator[Finding]:
    """Yield at most `MOST` parked groups, and the number of the others.

    `every`: the total number of parked groups of the broker."""
    of = f"--broker {quote(broker.name)}"
    for row in broker.parked[:MOST]:
        group = row["conversation_group_id"]
        text = f"group {group} is parked, with {counted(row['messages'], 'message')}: "
        text += str(row["park_reason"])
        if row.get("last_error"):
            text += f", {row['last_error']}"
        mend = f"brokerd group show {group} {of}; then release, edit, discard or end it"
        yield error("D44", f"queue {row['queue']} of broker {broker.name}", text, mend)
    if len(broker.parked) > MOST:
        text = counted(max(1, every - MOST), "more group is parked", "more groups are parked")
        yield error("D44", f"broker {broker.name}", text, f"brokerd group ls --parked {of}")


def _lingering(broker: BrokerSeen, status: InstanceStatus) -> Iterator[Finding]:
    of, limit = quote(broker.name), timedelta(seconds=status.lingering_after)
    for state, count in broker.lingering.items():
        many = f"more than {MOST} dialogs have"
        if count <= MOST:
            many = counted(count, "dialog has", "dialogs have")
        text = f"{many} been {state} for more than {show_duration(limit)}: "
        text += LINGERING[state]
        mend = f"brokerd dialog ls --broker {of}; brokerd broker clean-up {of} --help"
        yield warning("D49", f"broker {broker.name}", text, mend)


def _idle(broker: str, status: InstanceStatus) -> Iterator[Finding]:
    """Yield a finding if dialogs without a message for long will be ended (REL-44)."""
    if text := status.idle_dialogs.get(broker):
        mend = "end them, send on them, or raise dialog.idle_after in the settings: "
        mend += f"brokerd dialog ls --broker {quote(broker)} shows idle_since"
        yield warning("D76", f"broker {broker}", text, mend)


def _routes(broker: str, routes: list[Row]) -> Iterator[Finding]:
    noun = "instance-route" if broker == MSDB else "route"
    of = "" if broker == MSDB else f" --broker {quote(broker)}"
    for row in routes:
        name = str(row["name"])
        about = f"{noun} {name}" + ("" if broker == MSDB else f" of broker {broker}")
        if row["is_expired"] and not row["is_dynamic"]:
            mend = f"brokerd {noun} alter {quote(name)} lifetime=7d{of}"
            yield warning("D11", about, "it has expired, so it is not used (RTE-3)", mend)
        state = row.get("mirror_state")
        if state == "not_operational":
            both = f"{row['address']} and {row['mirror_address']}"
            text = f"neither of {both} is known to be principal (RTE-54)"
            yield error("D20", about, text, "start one of the two; brokerd destination ls")
        elif state == "principal_only":
            text = f"only {row['current_principal']} can be reached (RTE-57)"
            yield warning("D19", about, text, "start the other one")


def _hidden(broker: BrokerSeen) -> Iterator[Finding]:
    """Yield a warning for services that a route to the configuration service hides (BCN-12).

    It is not an error, since the route may be intended.
    """
    routed = {row["remote_service_name"] for row in broker.routes}
    if CONFIGURATION_SERVICE not in routed:
        return
    hidden = sorted(
        str(row["name"])
        for row in broker.services
        if row["name"] not in routed
        and row["name"] != CONFIGURATION_SERVICE
        and not str(row["name"]).startswith("urn:brokerd:")
    )
    if hidden:
        text = f"dynamic routing is asked for its own services as well: {', '.join(hidden)}"
        mend = "brokerd route create NAME service=SERVICE address=LOCAL "
        mend += f"--broker {quote(broker.name)}; or set bcn.exempt_local"
        yield warning("D14", f"broker {broker.name}", text, mend)


def is_remote(route: Row) -> bool:
    """Return whether a route leads out of the instance."""
    return route["address"] not in (LOCAL, None)


def without_binding(broker: BrokerSeen, services: Collection[str]) -> list[str]:
    """Return those of the services for which a broker has no remote service binding (SEC-18)."""
    bound = {str(row["remote_service_name"]) for row in broker.bindings}
    return sorted(set(services) - bound)


def must_be_encrypted(broker: BrokerSeen, services: Sequence[str]) -> tuple[str, str, str]:
    """Return object, text and cure of the finding that dialogs to these services fail (DLG-12).

    They must be encrypted, and no binding names the owner of their targets."""
    text = "its dialogs are to be encrypted, and one that leaves the instance for a service"
    text += f" without a remote service binding ends with error -9727: {', '.join(services)}"
    mend = f"brokerd binding create NAME service={quote(services[0])} principal=peer:NAME --broker "
    mend += f"{quote(broker.name)}; or, to send in clear, brokerd broker alter {quote(broker.name)}"
    return f"broker {broker.name}", text, f"{mend} default_encryption=off"


def _endpoint(seen: Seen) -> Iterator[Finding]:
    tables = [*(one.routes for one in seen.brokers), seen.instance_routes]
    remote = any(is_remote(row) for table in tables for row in table)
    yield from broker_endpoint(seen.endpoint, seen.status.instance, is_needed=remote)


def broker_endpoint(row: Row | None, instance: str, *, is_needed: bool) -> Iterator[Finding]:
    """Yield the faults that keep the broker endpoint from use; `row`: from the view `endpoint`."""
    about = f"endpoint of instance {instance}"
    if row is None:
        if is_needed:
            text = "there is none, but routes lead to other instances, or from them (END-1)"
            mend = "add a section [endpoint] to the settings, and start the daemon again"
            yield error("D21", about, text, mend)
        return
    state = str(row["state"]).upper()
    if state != "STARTED":
        yield error("D22", about, f"it is {state}", "brokerd endpoint start")
    elif row["listen_error"]:
        mend = "stop what has the port, or brokerd endpoint alter port=..."
        yield error("D23", about, f"it does not listen: {row['listen_error']}", mend)


def _destinations(seen: Seen) -> Iterator[Finding]:
    for row in seen.destinations:
        address = str(row["address"])
        if row["state"] == "suppressed":
            failed = row["consecutive_failures"]
            text = f"it is left alone until {_clock_time(row['suppressed_until'])}, after "
            text += f"{failed} failed attempts: {row['last_error']}"
            yield warning("D40", f"destination {address}", text, _mend(row))
        elif row["consecutive_failures"] and row["state"] != "online":
            text = f"the last {row['consecutive_failures']} attempts failed: {row['last_error']}"
            yield warning("D37", f"destination {address}", text, _mend(row))


def _mend(row: Row) -> str:
    """Return the command that helps a destination with which connecting failed."""
    if row.get("status_key") == Reason.AUTH_FAILED:
        return "brokerd peer pair"  # no attempt helps before each side knows the other
    return f"brokerd destination retry {quote(str(row['address']))}"


def _waiting(seen: Seen) -> Iterator[Finding]:
    for to in seen.status.destinations:
        if to.state == "delayed" and to.messages:
            rows = [row for one in seen.brokers if one.name == to.broker for row in one.delayed]
            yield _delayed(to, [row for row in rows if row["status_key"] == to.status_key])
    for broker in seen.brokers:
        yield from stuck_dialogs(broker, seen.status.now)


def stuck_dialogs(broker: BrokerSeen, now: Instant) -> Iterator[Finding]:
    """Yield the dialogs with a message that has waited for too long."""
    of = f"--broker {quote(broker.name)}"
    for row in broker.stuck[:MOST]:
        handle = row["conversation_handle"]
        text = f"a message has waited for {(now - row['enqueue_time']) // SECOND} s: "
        text += row["transmission_status"] or row["status_key"] or "no reason is given"
        text += _tried(row["attempts"], row["next_attempt_at"])
        mend = f"brokerd dialog status {handle} {of}; brokerd route explain --handle {handle} {of}"
        yield error("D39", f"dialog {handle} to {row['to_service_name']}", text, mend)
    if broker.more_stuck or len(broker.stuck) > MOST:
        text = f"messages of more than these {min(MOST, len(broker.stuck))} dialogs may wait"
        mend = f"brokerd transmission ls --older-than 5min {of}"
        yield error("D39", f"broker {broker.name}", text, mend)


def _tried(attempts: int, next_at: Instant | None) -> str:
    """Return the number of attempts and the time of the next one, as text (XMT-18)."""
    text = f"; tried {counted(attempts, 'time')}" if attempts else ""
    return text if next_at is None else f"{text}, next at {_clock_time(next_at)}"


def _delayed(to: DestinationStatus, examples: list[Row]) -> Finding:
    """Return the finding for messages without a destination; `examples`: some of these messages."""
    of = f" --broker {quote(to.broker)}" if to.broker else ""
    service, handle = "SERVICE", "HANDLE"
    waiting = counted(to.messages, "message waits", "messages wait")
    text = f"{waiting}: {status_text(to.status_key)} {to.detail}".strip()
    text += _tried(to.failures, to.next_attempt_at)
    if examples:
        service = quote(str(examples[0]["to_service_name"]))
        handle = str(examples[0]["conversation_handle"])
        text += f"; for example of dialog {handle} to {examples[0]['to_service_name']}"
    about = f"routing ({to.status_key})" + (f" of broker {to.broker}" if to.broker else "")
    if to.status_key == Reason.SENDER_DISABLED:
        mend = f"brokerd broker enable {quote(to.broker or 'NAME')}"
    elif to.status_key in LACKING:
        mend = f"brokerd route explain {service}{of}; brokerd route create NAME service={service} "
        mend += f"address=TCP://HOST:PORT{of}; if the name is wrong, give the dialog up: "
        mend += f"brokerd dialog end {handle} --cleanup --reason WHY{of}"
    else:
        mend = f"brokerd transmission ls{of}; brokerd dialog status {handle}{of}"
    return error("D10", about, text, mend)


def _forwarding(seen: Seen) -> Iterator[Finding]:
    limit, used = seen.forwarder.get("limit_bytes", 0), seen.forwarder.get("used_bytes", 0)
    if seen.forwarder.get("is_forwarding") and used > NEARLY_FULL * limit:
        text = f"{used} of {limit} bytes for what passes through are in use (FWD-7)"
        yield warning("D17", "forwarder", text, "brokerd endpoint alter forward_size_mb=...")
    at = seen.dispatching.get("memory_full_at")
    if at is not None:
        many = (seen.dispatching.get("dropped_by_reason") or {}).get("dispatcher_memory", 1)
        dropped = counted(many, "fragment was", "fragments were")
        text = f"{dropped} dropped for want of memory since the daemon started, "
        text += f"the last at {_clock_time(at)} (DSP-10)"
        level = warning if seen.status.now - at < RECENT else info
        yield level("D50", "dispatcher", text, "raise dispatcher.mem_hard, or add readers")


def _checks(seen: Seen) -> Iterator[Finding]:
    why = seen.dispatching.get("check_failure")
    if why:
        text = f"bodies cannot be checked, so none is taken whose type asks for it: {why} (OBJ-61)"
        yield error("D58", "checks of bodies", text, "see broker.checks in the event log")


def _clock_time(at: object) -> str:
    return show_instant(Instant(at)) if isinstance(at, int) else "soon"
