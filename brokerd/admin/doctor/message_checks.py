"""The checks of messages on their way: destinations, what waits and why, dialogs that failed.

PURE.   The status of an instance and rows of views in, findings out (MON-20, MON-71, MON-72).
Reads:  the observations that it is given.      Calls: findings, telemetry.status.
Never:  judges a message that is only on its way: `status.unsent` says what holds one up.
"""

from collections.abc import Iterable, Iterator, Mapping
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
from brokerd.admin.doctor.queue_checks import NAMED
from brokerd.admin.doctor.seen import MOST, BrokerSeen, Seen
from brokerd.clock import SECOND, Instant
from brokerd.config.toml_file import did_you_mean
from brokerd.errors import FOUND_BY_BROKERS
from brokerd.routing.address import LOCAL
from brokerd.routing.reasons import LACKING, Reason, status_text
from brokerd.security.grants import PUBLIC
from brokerd.telemetry.status import (
    NEVER_SENT,
    QUIET,
    DestinationStatus,
    FailedDialogs,
    QueueStatus,
    failure,
    is_over,
    unsent,
)
from brokerd.units import counted

_NO_PERMISSION: Final = -8494
_AT_THE_PEER: Final[dict[str, str]] = {
    Reason.PEER_QUEUE_DISABLED: (
        "nothing is lost, and it goes on once the queue is on; at the daemon of the other side, "
        "this names the queue and the command: brokerd doctor {service}"
    ),
    Reason.PEER_QUEUE_FULL: (
        "nothing is lost, and it goes on once there is room; at the daemon of the other side, "
        "this names the queue and who reads it: brokerd doctor {service}"
    ),
    Reason.PEER_STORE_FULL: (
        "nothing is lost, and it goes on once the disk of the other side has room; there: "
        "brokerd doctor"
    ),
    Reason.PEER_DIALOG_LIMIT: (
        "end dialogs that are over, or have transport.max_dialogs_per_peer raised there"
    ),
    Reason.TARGET_NOTICE: (
        "brokerd doctor at the other side names the cause; it is asked for {service}"
    ),
}
"""The remedy for messages that the other side does not take, by status key."""


def failed_dialogs(found: Iterable[FailedDialogs], now: Instant) -> Iterator[Finding]:
    """Yield the dialogs that failed, and messages that were refused, in the last hour (MON-72)."""
    for one in found:
        about = f"dialogs of broker {one.broker}" if one.broker else "dialogs"
        text = f"{failure(one)}; the last {age(one.last_at, now)}"
        commands: list[str] = []
        mend = "the error comes from the broker at the other side, and says what it found"
        if one.code == _NO_PERMISSION and (grant := _missing_grant(one)):
            mend = f"the other side lacks a grant; there: {grant}"
        elif one.code in FOUND_BY_BROKERS:
            mend = FOUND_BY_BROKERS[one.code][1]
        elif not one.code:
            mend, commands = _refused(one)
        if one.example:
            of = f" --broker {quote(one.broker)}" if one.broker else ""
            commands = [f"brokerd dialog ls --where conversation_id={one.example}{of}"]
        level = warning if now - one.last_at < RECENT else info
        yield level("D77", about, text, mend, *commands)


def _missing_grant(one: FailedDialogs) -> str:
    """Return the command for the other side that lets the dialogs begin; empty = unknown.

    The other side says by which principal it knows this one (SEC-54)."""
    principal, said, _ = one.reason.partition(" has no send permission")
    if not said or not one.far_service or len(principal.split()) != 1:
        return ""
    return f"brokerd grant send on {quote(one.far_service)} to {quote(principal)}"


def _refused(one: FailedDialogs) -> tuple[str, list[str]]:
    """Return what helps where messages of another instance were refused, and the commands."""
    who_can = "brokerd who-can"
    if not one.principal:
        mend = "change what the sender sends, or let the service here take it"
        if not one.service:
            return mend, []
        of = f" --broker {quote(one.broker)}" if one.broker else ""
        return f"{mend}; what it takes:", [f"brokerd service show {quote(one.service)}{of}"]
    if one.principal == PUBLIC:
        mend = "the sender has not proven who it is: pair with its instance (brokerd peer pair); "
        return mend + "what is granted here:", [who_can]
    if not one.service:
        mend = f"broker {one.broker} has no service of the name that it sends to; what it may do:"
        return mend, [f"{who_can} --principal {quote(one.principal)}"]
    grant = f"brokerd grant send on {quote(one.service)} to {quote(one.principal)}"
    mend = (
        "if it should be able to send there, grant it; dialogs that begin afterwards get through:"
    )
    return mend, [who_can, grant]


def examine_destinations(seen: Seen) -> Iterator[Finding]:
    """Yield the destinations with which connecting failed."""
    services = {to.address: to.service for to in seen.status.destinations if to.service}
    for one in seen.brokers:
        for route in one.routes:
            if route["address"] and route["remote_service_name"]:
                address = str(route["address"]).lower()
                services.setdefault(address, str(route["remote_service_name"]))
    for row in seen.destinations:
        address = str(row["address"])
        if row["state"] == "suppressed":
            text = f"it is left alone until {clock_time(row['suppressed_until'])}, after "
            failed = row["consecutive_failures"]
            text += f"{failed} failed attempts" if failed else "the connection was lost"
            text += f": {row['last_error']}"
            if row["pending_messages"]:
                text += f"; {counted(row['pending_messages'], 'message waits', 'messages wait')}"
            yield warning("D40", f"destination {address}", text, *_mend(row, services))
        elif row["consecutive_failures"] and row["state"] != "online":
            failed = row["consecutive_failures"]
            text = "the last attempt" if failed == 1 else f"the last {failed} attempts"
            text += f" failed: {row['last_error']}"
            yield warning("D37", f"destination {address}", text, *_mend(row, services))


def _pair_again(service: str) -> tuple[str, str]:
    """Return how two instances come to know each other, and the command that lists the peers.

    `service`: one of the other side; empty = unknown."""
    share = f" --share {quote(service)}" if service else " --share SERVICE"
    mend = "each side has to know the other's certificate, and pairing begins at the other side: "
    mend += f"brokerd peer pair{share} there, then brokerd peer pair CODE here; the peers so far:"
    return mend, "brokerd peer ls"


def _mend(row: Row, services: Mapping[str, str]) -> tuple[str, str]:
    """Return what helps a destination with which connecting failed, and the command."""
    if row.get("status_key") == Reason.AUTH_FAILED:  # no attempt helps before each knows the other
        return _pair_again(services.get(str(row["address"]), ""))
    mend = "see whether the daemon there runs, its endpoint is started, and the network passes; "
    return mend + "then:", f"brokerd destination retry {quote(str(row['address']))}"


def examine_waiting(seen: Seen) -> Iterator[Finding]:
    """Yield what holds messages up, by destination and by dialog."""
    unreachable = {
        row["address"]
        for row in seen.destinations
        if row["state"] == "suppressed"
        or (row["consecutive_failures"] and row["state"] != "online")
    }
    for to in seen.status.destinations:
        if to.state == "delayed" and to.messages:
            rows = [row for one in seen.brokers if one.name == to.broker for row in one.delayed]
            names = [name for one in seen.brokers if one.name == to.broker for name in _known(one)]
            yield _delayed(to, [row for row in rows if row["status_key"] == to.status_key], names)
        elif to.address not in unreachable and (text := unsent(to, seen.status.now)):
            here = _queue_here(to, seen) if to.address == LOCAL else None
            if here is None or not _is_named(to, here):
                yield held_up(to, text, here)
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
        status = f"brokerd dialog status {handle} {of}"
        explain = f"brokerd route explain --handle {handle} {of}"
        about = f"dialog {handle} to {row['to_service_name']}"
        yield error("D39", about, text, "", status, explain)
    if broker.more_stuck or len(broker.stuck) > MOST:
        text = f"messages of more than these {min(MOST, len(broker.stuck))} dialogs may wait"
        older = f"brokerd transmission ls --older-than 5min {of}"
        yield error("D39", f"broker {broker.name}", text, "", older)


def _queue_here(to: DestinationStatus, seen: Seen) -> QueueStatus | None:
    """Return the queue of this instance for which messages wait; None = unknown."""
    for broker in sorted(seen.brokers, key=lambda one: one.name != to.broker):
        for row in broker.services:
            if row["name"] == to.service:
                queue = (broker.name, row["service_queue_id"])
                return next((q for q in seen.status.queues if (q.broker, q.name) == queue), None)
    return None


def _is_named(to: DestinationStatus, queue: QueueStatus) -> bool:
    """Return whether a finding about the queue itself says why the messages wait."""
    if to.status_key == Reason.PEER_QUEUE_DISABLED:
        return queue.status != "on"
    return to.status_key == Reason.PEER_QUEUE_FULL and bool(queue.full)


def held_up(to: DestinationStatus, text: str, here: QueueStatus | None = None) -> Finding:
    """Return the finding for messages that a peer does not take or acknowledge (MON-71).

    `here`: the queue that they wait for, if this instance has it."""
    of = f" --broker {quote(to.broker)}" if to.broker else ""
    if to.address == LOCAL:
        mend, about = "they wait for a queue of this instance:", f"messages of broker {to.broker}"
        show = f"brokerd dialog status {to.dialog}{of}" if to.dialog else "brokerd status"
        if here is not None:
            mend = f"they wait for queue {here.name} of broker {here.broker}, here:"
            show = f"brokerd queue show {quote(here.name)} --broker {quote(here.broker)}"
        return warning("D78", about, text, mend, show)
    if to.status_key == Reason.AUTH_FAILED:
        mend, command = _pair_again(to.service)
        commands = [command]
    elif to.status_key in _AT_THE_PEER:
        mend = _AT_THE_PEER[to.status_key].format(service=quote(to.service or "SERVICE"))
        commands = [f"brokerd dialog status {to.dialog}{of}"] if to.dialog else []
    elif to.status_key in QUIET:
        mend = "the connection is open and nothing comes back: the network is cut, or the daemon "
        mend += "there hangs; brokerd doctor there may say why:"
        commands = [f"brokerd destination show {quote(to.address)}"]
    else:
        mend = "see whether the daemon there runs, its endpoint is started, and the network passes:"
        commands = [f"brokerd destination retry {quote(to.address)}"]
    return warning("D78", f"destination {to.address or to.broker}", text, mend, *commands)


def _tried(attempts: int, next_at: Instant | None) -> str:
    """Return the number of attempts and the time of the next one, as text (XMT-18)."""
    text = f"; tried {counted(attempts, 'time')}" if attempts else ""
    return text if next_at is None else f"{text}, next at {clock_time(next_at)}"


def _known(broker: BrokerSeen) -> list[str]:
    """Return the services that a broker knows: its own, and those that its routes name."""
    routed = (str(row["remote_service_name"] or "") for row in broker.routes)
    return [name for name in (*(str(row["name"]) for row in broker.services), *routed) if name]


def _delayed(to: DestinationStatus, examples: list[Row], known: list[str]) -> Finding:
    """Return the finding for messages without a destination.

    `examples`: some of these messages. `known`: the services that their broker knows."""
    of = f" --broker {quote(to.broker)}" if to.broker else ""
    service, handle = to.service, to.dialog
    waiting = counted(to.messages, "message waits", "messages wait")
    why = NEVER_SENT.get(to.status_key) or f"{status_text(to.status_key)} {to.detail}".strip()
    if to.status_key == Reason.LOCAL_SERVICE_MISSING:
        why = f"no service of that name: {why}"
    text = f"{waiting}: {why}"
    text += _tried(to.failures, to.next_attempt_at)
    if examples:
        service = str(examples[0]["to_service_name"])
        handle = str(examples[0]["conversation_handle"])
    if service:
        text += f"; for example of dialog {handle} to {service}"
        if to.status_key in LACKING:
            text += did_you_mean(service, (name for name in known if name != service))
    about = f"routing ({to.status_key})" + (f" of broker {to.broker}" if to.broker else "")
    if to.status_key == Reason.SENDER_DISABLED:
        enable = f"brokerd broker enable {quote(to.broker or 'main')}"
        return error("D10", about, text, "", enable)
    if is_over(to):
        about = about.replace("routing", "dialogs", 1)
        mend = "the program has to receive the message that says so, and end the dialog, which "
        mend += "deletes what was not sent; where no program does, the last command ends it:"
        end = [f"brokerd dialog end {handle}{of}"] if handle else []
        return warning("D10", about, text, mend, f"brokerd transmission ls{of}", *end)
    if to.status_key not in LACKING:
        status = [f"brokerd dialog status {handle}{of}"] if handle else []
        return error("D10", about, text, "", f"brokerd transmission ls{of}", *status)
    if not service:  # of an older daemon
        return error("D10", about, text, "", f"brokerd transmission ls{of}")
    alike = [
        str(row["conversation_handle"])
        for row in examples
        if row["to_service_name"] == service and row["status_key"] == to.status_key
    ]
    return error("D10", about, text, *_not_found(to, service, alike or [handle]))


def _not_found(to: DestinationStatus, service: str, handles: list[str]) -> tuple[str, ...]:
    """Return what helps where a service is not found, and the commands.

    `handles`: those of dialogs that wait for it."""
    of = f" --broker {quote(to.broker)}" if to.broker else ""
    elsewhere = f"brokerd route create NAME service={quote(service)} address=TCP://HOST:PORT{of}"
    lost = "the dialog" if len(handles) == 1 else f"the {len(handles)} dialogs"
    if len(handles) > NAMED:
        lost = "all dialogs with it"
    give_up = f"give {lost} up, as the last command does"
    if to.status_key == Reason.LOCAL_SERVICE_MISSING:
        mend = f"if the name is wrong, correct it in the program and {give_up}; if the service is "
        mend += f"elsewhere, say where: {elsewhere}"
    else:
        mend = f"say where it is: {elsewhere}; if the name is wrong, {give_up}:"
    explain = f"brokerd route explain {quote(service)}{of}"
    give_up = f"brokerd dialog end {' '.join(handles)} --cleanup --reason 'wrong service'{of}"
    if len(handles) > NAMED:
        give_up = f"brokerd broker clean-up {quote(to.broker or 'main')} --far-service "
        give_up += f"{quote(service)} --reason 'wrong service'"
    return mend, explain, give_up
