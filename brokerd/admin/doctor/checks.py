"""The checks of a whole instance: the faults in its views and status, and the cure (MON-20).

PURE.   Rows of views in, findings out.
Reads:  the rows that `cli.doctor` has fetched.      Calls: queue_checks, message_checks.
Never:  guesses: each finding is a fact that a view or the status shows as well.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import PurePath
from shlex import quote
from typing import Final

from brokerd.admin.doctor.findings import (
    RECENT,
    Finding,
    Row,
    age,
    clock_time,
    error,
    info,
    warning,
)
from brokerd.admin.doctor.message_checks import (
    examine_destinations,
    examine_waiting,
    failed_dialogs,
)
from brokerd.admin.doctor.queue_checks import examine_queue, parked_groups
from brokerd.admin.doctor.seen import MOST, BrokerSeen, Seen
from brokerd.clock import SECOND, Instant, show_instant
from brokerd.config.exposure import describe
from brokerd.model import CONFIGURATION_SERVICE, MSDB
from brokerd.telemetry.status import (
    CLOCK_TOLERANCE,
    DoorStatus,
    InstanceStatus,
    RefusedLogins,
    ServerStatus,
    apart,
    expiry,
    replacement,
    way_to_master_key,
)
from brokerd.transport.door import ADDRESS_FULL, ADDRESS_LOGINS, DESCRIPTORS, DISPLACED, FULL
from brokerd.units import counted, show_duration

SKEW: Final = round(CLOCK_TOLERANCE.total_seconds()) * SECOND
"""The largest difference between two clocks that is not reported (Numbers: clock tolerance)."""
NEARLY_FULL: Final = 0.9
FEW: Final = 5
"""Largest number of objects for which one finding gives a command each."""
LOCAL: Final = "LOCAL"
LINGERING: Final = {
    "DI": "the peer has ended them, and their own side is not ended",
    "DO": "the peer has not acknowledged their end",
    "ER": "nobody has ended them after their error",
}
"""States in which a dialog should not stay, and the missing step that ends each (PBT-5)."""


def examine(seen: Seen) -> Iterator[Finding]:
    """Yield all findings, in the order in which a message would run into them."""
    yield from _clock(seen)
    yield from _machine(seen.status)
    yield from _stores(seen.status)
    yield from delivery(seen.known)
    yield from _duplicates(seen.status)
    for broker in seen.brokers:
        queues = [one for one in seen.status.queues if one.broker == broker.name]
        yield from parked_groups(broker, sum(one.parked for one in queues))
    parked = {one.name: one.parked for one in seen.brokers}
    for queue in seen.status.queues:
        yield from examine_queue(queue, seen.status.now, parked.get(queue.broker, ()))
    for broker in seen.brokers:
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
    yield from examine_destinations(seen)
    yield from failed_dialogs(seen.status.failed_dialogs, seen.status.now)
    yield from examine_waiting(seen)
    yield from _forwarding(seen)
    yield from _checks(seen)
    for line in seen.status.dialog_limits:
        mend = "end dialogs that are over, or raise clients.max_dialogs_per_user or "
        mend += "transport.max_dialogs_per_peer in the settings"
        yield warning("D75", f"instance {seen.status.instance}", line, mend)
    for line in seen.status.warnings:
        mend = "the log of the daemon says why:"
        yield error("D46", "periodic work", line, mend, "brokerd periodic ls")


def _clock(seen: Seen) -> Iterator[Finding]:
    difference = abs(seen.now - seen.status.now)
    if seen.status.clock:
        mend = "set the clock of the machine right; if it is right now:"
        about = f"instance {seen.status.instance}"
        yield warning("D47", about, seen.status.clock, mend, "brokerd clock confirm")
    elif difference > SKEW:
        text = f"its time and that of this machine are {difference // SECOND} s apart"
        mend = "set the clock of the machine; lifetimes and timers go by the daemon's"
        yield warning("D47", f"instance {seen.status.instance}", text, mend)
    for one in seen.status.clocks_apart:
        mend = "compare both machines with a clock that is right, and set the one that is wrong:"
        yield warning("D47", f"clock of {one.peer}", apart(one), mend, "date -u")
    if seen.status.state != "ready":
        about = f"instance {seen.status.instance}"
        yield warning("D48", about, f"the daemon is {seen.status.state}", "wait, or see its log")


def _machine(status: InstanceStatus) -> Iterator[Finding]:
    about = f"instance {status.instance}"
    for line in status.unknown_users:
        mend = "make the user, or revoke what it was granted:"
        yield warning("D52", about, f"grants: {line}", mend, "brokerd who-can")
    for listener in status.open_listeners:
        mend = "listen at loopback, or keep strangers off that network; SECURITY.md says what they "
        mend += "can do"
        yield warning("D60", about, f"open to other machines: {describe(listener)}", mend)
    for opening in status.openings:
        mend = "if this is not meant, change it; docs/reference/settings.md has the safe values"
        yield info("D79", about, f"open: {opening}", mend)
    yield from _public(status)
    for one in status.file_problems:
        level = error if one.is_refused else warning
        yield level("D61", f"file {one.path}", f"it {one.problem}", one.mend)
    if status.no_master_key:
        mend = way_to_master_key(status.no_master_key)
        yield error("D04", about, status.no_master_key, mend)
    for certificate in status.certificates:
        level = error if certificate.days_left < 0 else warning
        owner = certificate.owner or about
        renew = () if certificate.owner else ("brokerd certificate renew",)
        mend = replacement(certificate.owner)
        yield level("D26", f"certificate of {owner}", expiry(certificate), mend, *renew)
    if 0 < status.max_files * NEARLY_FULL < status.open_files:
        text = f"{status.open_files} of at most {status.max_files} files and sockets are open"
        mend = "raise its limit: ulimit -n, or LimitNOFILE= of its unit, and restart the daemon"
        yield warning("D53", about, text, mend)
    for logins in status.refused_logins:
        yield _refused_logins(logins, status.now)
    for door in status.doors:
        yield from _refused(door, status.now)


def _public(status: InstanceStatus) -> Iterator[Finding]:
    """Yield a finding for each permission that everybody has, the graver for administration."""
    for grant in status.open_to_public:
        level = warning if grant.permission in {"control", "execute"} else info
        words = f"{grant.permission} on {grant.securable}"
        about, text = f"instance {status.instance}", f"open to everybody: {words}"
        if grant.origin == "settings":
            mend = "if this is not meant, remove it from clients.grants and restart the daemon"
            yield level("D70", about, text, mend)
        else:
            revoke = f"brokerd revoke {quote(f'{words} to public')}"
            yield level("D70", about, text, "if this is not meant:", revoke)


def _refused_logins(logins: RefusedLogins, now: Instant) -> Finding:
    """Return the finding for logins of an instance that this one refuses."""
    times = counted(logins.count, "time")
    text = f"logins were refused {times} since {clock_time(logins.first_at)}, the last "
    text += f"{age(logins.last_at, now)}: {logins.reason}"
    mend = "strangers are kept out; if it is a peer of yours, do what the reason says; all of them:"
    audit = f"brokerd audit --refused --event login --principal {quote(logins.who)}"
    return info("D80", f"logins of {logins.who}", text, mend, audit)


def _refused(door: DoorStatus, now: Instant) -> Iterator[Finding]:
    """Yield a finding for connections that a limit refused (END-18)."""
    if door.refused_at is None:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(door.refused.items()))
    text = f"connections were refused since the daemon started ({why}), the last at "
    text += f"{clock_time(door.refused_at)}; {door.connections} of at most {door.most} are open, "
    text += f"{door.strangers} of them have not logged in"
    section = "transport" if door.kind == "peers" else door.kind
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
    if section == "http":
        limits = {
            FULL: "max_connections",
            ADDRESS_FULL: "max_per_address",
            ADDRESS_LOGINS: "max_per_address",
            DISPLACED: "max_connections",
        }
    found = [f"{section}.{limits[one]}" for one in sorted(reasons) if one in limits]
    if DESCRIPTORS in reasons:
        found.append("the limit of open files (ulimit -n, or LimitNOFILE= of its unit)")
    return found


def _stores(status: InstanceStatus) -> Iterator[Finding]:
    if status.server is not None:
        yield from _stores_on_server(status, status.server)
        return
    for store in status.stores:
        about = f"store of broker {store.broker}"
        if store.state == "full":
            mend = f"make room on the disk of {store.path}; it goes on by itself"
            yield error("D43", about, store.reason or "the disk is full", mend, _disk(store.path))
        elif store.state == "slow":
            mend = f"see what else uses the disk of {store.path}, and whether it fails:"
            yield warning("D51", about, store.reason, mend, "iostat -x 1 3")
        elif store.state == "refused":
            verify = f"brokerd store verify {quote(store.path)}"
            yield error("D42", about, store.reason, "", verify)
        elif store.state == "missing":
            mend = "put it back; if it is gone for good:"
            forget = f"brokerd broker forget {quote(store.broker)}"
            yield error("D42", about, store.reason, mend, forget)
        elif store.state == "read_only":
            yield error("D42", about, store.reason or "it can only be read", f"see {store.path}")
        if store.loss_accepted_at is not None:
            text = f"a loss was accepted at {show_instant(store.loss_accepted_at)}: {store.loss}"
            mend = "see what peers and programs still have, and then remove the note:"
            yield warning("D63", about, text, mend, "rm " + quote(store.loss_file))
        if store.free_bytes is not None and store.free_bytes < 2 * status.min_free:
            text = f"{store.free_bytes >> 20} MiB of the disk are free; below "
            text += f"{status.min_free >> 20} MiB nothing new is taken"
            mend = f"make room on the disk of {store.path}:"
            yield warning("D43", about, text, mend, _disk(store.path))


def _stores_on_server(status: InstanceStatus, server: ServerStatus) -> Iterator[Finding]:
    """Yield where the stores are, and what keeps the server from serving them."""
    about = f"stores in {server.place}"
    if server.waits_for_standby and not server.standbys:
        mend = "start the standby, or take it out of synchronous_standby_names of the server"
        yield error("D81", about, server.redundancy, mend)
    else:
        schemas = ", ".join(store.schema for store in status.stores)
        mend = "" if server.standbys else "a synchronous standby keeps each message on two machines"
        text = f"PostgreSQL {server.version}, schemas {schemas}: {server.redundancy}"
        yield info("D81", about, text, mend)
    for one in server.newer:
        text = f"{one} was promoted, and takes changes as well: what is confirmed here is not there"
        yield error("D82", about, text, "end one of both servers; brokerd goes on with the newest")
    for one in server.former:
        mend = "stop it, or make it a standby of the server that has the stores"
        yield warning("D82", about, f"another server takes changes: {one}", mend)
    for store in status.stores:
        one = f"store of broker {store.broker}"
        if store.state == "full":
            mend = "make room on the disk of the server; it goes on by itself"
            yield error("D43", one, store.reason or "the disk of the server is full", mend)
        elif store.state == "slow":
            mend = "see what holds the server up: pg_stat_activity shows what its sessions wait for"
            yield warning("D51", one, store.reason, mend)
        elif store.state in ("refused", "missing", "read_only"):
            yield error("D42", one, store.reason or "it can only be read")


def _disk(path: str) -> str:
    return f"df -h {quote(str(PurePath(path).parent))}"


def delivery(known: list[Row]) -> Iterator[Finding]:
    """Yield brokers with delivery off or equal identifiers; `known`: rows of the view `brokers`."""
    names: dict[object, str] = {}
    for row in known:
        name, about = str(row["name"]), f"broker {row['name']}"
        if not row["is_broker_enabled"] and not row["start_failure"]:
            why = row.get("disabled_reason") or "it was switched off"
            enable = f"brokerd broker enable {quote(name)}"
            yield error("D02", about, f"delivery is off: {why}", "", enable)
        other = names.setdefault(row["broker_id"], name)
        if other != name and row["broker_id"] is not None:
            new_id = f"brokerd broker new-id {quote(name)}"
            yield error("D03", about, f"it has the identifier of broker {other}", "", new_id)


def _duplicates(status: InstanceStatus) -> Iterator[Finding]:
    """Yield duplicate brokers; only an operator can say which of the two is the copy (PBT-13)."""
    for one in status.duplicates:
        about = f"broker {one.broker or one.broker_id}"
        text = f"{one.earlier} and {one.later} both deliver for {one.broker_id}; what is for it "
        text += "goes to the first, and nothing to the second (RTE-72)"
        mend = "give the copy an identifier of its own, once no route leads dialogs of the other "
        mend += "there: brokerd broker new-id, at the instance of the copy"
        yield error("D55", about, text, mend)


def _lingering(broker: BrokerSeen, status: InstanceStatus) -> Iterator[Finding]:
    of, limit = quote(broker.name), timedelta(seconds=status.lingering_after)
    for state, count in broker.lingering.items():
        many = f"more than {MOST} dialogs have"
        if count <= MOST:
            many = counted(count, "dialog has", "dialogs have")
        text = f"{many} been {state} for more than {show_duration(limit)}: "
        text += LINGERING[state]
        mend = "have programs end them, or remove what is left of them (brokerd broker clean-up):"
        those = f"brokerd dialog ls --state {state} --broker {of}"
        yield warning("D49", f"broker {broker.name}", text, mend, those)


def _idle(broker: str, status: InstanceStatus) -> Iterator[Finding]:
    """Yield a finding if dialogs without a message for long will be ended (REL-44)."""
    if text := status.idle_dialogs.get(broker):
        mend = "end them, send on them, or raise dialog.idle_after in the settings:"
        those = f"brokerd dialog ls --broker {quote(broker)}"
        yield warning("D76", f"broker {broker}", text, mend, those)


def _routes(broker: str, routes: list[Row]) -> Iterator[Finding]:
    noun = "instance-route" if broker == MSDB else "route"
    of = "" if broker == MSDB else f" --broker {quote(broker)}"
    for row in routes:
        name = str(row["name"])
        about = f"{noun} {name}" + ("" if broker == MSDB else f" of broker {broker}")
        if row["is_expired"] and not row["is_dynamic"]:
            extend = f"brokerd {noun} alter {quote(name)} lifetime=7d{of}"
            yield warning("D11", about, "it has expired, so it is not used (RTE-3)", "", extend)
        state = row.get("mirror_state")
        if state == "not_operational":
            both = f"{row['address']} and {row['mirror_address']}"
            text = f"neither of {both} is known to be principal (RTE-54)"
            yield error("D20", about, text, "start one of the two:", "brokerd destination ls")
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
        mend = "give each a route to this instance, or set bcn.exempt_local in the settings:"
        of = f"--broker {quote(broker.name)}"
        local = (
            f"brokerd route create {quote(f'{one}_here')} service={quote(one)} address=LOCAL {of}"
            for one in hidden[:FEW]
        )
        yield warning("D14", f"broker {broker.name}", text, mend, *local)


def is_remote(route: Row) -> bool:
    """Return whether a route leads out of the instance."""
    return route["address"] not in (LOCAL, None)


def without_binding(broker: BrokerSeen, services: Collection[str]) -> list[str]:
    """Return those of the services for which a broker has no remote service binding (SEC-18)."""
    bound = {str(row["remote_service_name"]) for row in broker.bindings}
    return sorted(set(services) - bound)


def must_be_encrypted(broker: BrokerSeen, services: Sequence[str]) -> tuple[str, str, str, str]:
    """Return object, text, cure and command of the finding that dialogs to these fail (DLG-12).

    They must be encrypted, and no binding names the owner of their targets."""
    text = "its dialogs are to be encrypted, and one that leaves the instance for a service"
    text += f" without a remote service binding ends with error -9727: {', '.join(services)}"
    mend = "pair with the instance that has it (brokerd peer pair), or name its owner (brokerd "
    mend += "binding create); or, to send in clear:"
    clear = f"brokerd broker alter {quote(broker.name)} default_encryption=off"
    return f"broker {broker.name}", text, mend, clear


def _endpoint(seen: Seen) -> Iterator[Finding]:
    tables = [*(one.routes for one in seen.brokers), seen.instance_routes]
    remote = any(is_remote(row) for table in tables for row in table)
    yield from broker_endpoint(seen.endpoint, seen.status.instance, is_needed=remote)


def broker_endpoint(row: Row | None, instance: str, *, is_needed: bool) -> Iterator[Finding]:
    """Yield the faults that keep the broker endpoint from use; `row`: from the view `endpoint`."""
    about = f"endpoint of instance {instance}"
    if row is None:
        if is_needed:
            text = "there is none, but routes lead to other instances, or from them"
            mend = "add a section [endpoint] to the settings, and start the daemon again"
            yield error("D21", about, text, mend)
        return
    state = str(row["state"]).upper()
    if state != "STARTED":
        yield error("D22", about, f"it is {state}", "", "brokerd endpoint start")
    elif row["listen_error"]:
        mend = "stop what has the port, or choose another one (brokerd endpoint alter port=...)"
        yield error("D23", about, f"it does not listen: {row['listen_error']}", mend)


def _forwarding(seen: Seen) -> Iterator[Finding]:
    limit, used = seen.forwarder.get("limit_bytes", 0), seen.forwarder.get("used_bytes", 0)
    if seen.forwarder.get("is_forwarding") and used > NEARLY_FULL * limit:
        text = f"{used} of {limit} bytes for what passes through are in use (FWD-7)"
        more = f"brokerd endpoint alter forward_size_mb={max(1, 2 * limit >> 20)}"
        yield warning("D17", "forwarder", text, "", more)
    at = seen.dispatching.get("memory_full_at")
    if at is not None:
        many = (seen.dispatching.get("dropped_by_reason") or {}).get("dispatcher_memory", 1)
        dropped = counted(many, "fragment was", "fragments were")
        text = f"{dropped} dropped for want of memory since the daemon started, "
        text += f"the last at {clock_time(at)} (DSP-10)"
        level = warning if seen.status.now - at < RECENT else info
        yield level("D50", "dispatcher", text, "raise dispatcher.mem_hard, or add readers")


def _checks(seen: Seen) -> Iterator[Finding]:
    why = seen.dispatching.get("check_failure")
    if why:
        text = f"bodies cannot be checked, so none is taken whose type asks for it: {why} (OBJ-61)"
        yield error("D58", "checks of bodies", text, "see broker.checks in the event log")
