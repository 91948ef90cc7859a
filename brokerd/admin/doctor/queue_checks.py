"""The checks of queues: off, full, not read, with parked groups (MON-20, MON-70).

PURE.   The status of a queue and rows of views in, findings out.
Reads:  the observations that it is given.      Calls: findings.
Never:  guesses: each finding is a fact that a view or the status shows as well.
"""

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Final

from brokerd.admin.doctor.findings import Finding, Row, age, error, warning
from brokerd.admin.doctor.seen import MOST, BrokerSeen
from brokerd.clock import Instant
from brokerd.telemetry.status import STUCK_AFTER, QueueStatus
from brokerd.units import counted, show_size

NAMED: Final = 10
"""Largest number of groups or dialogs that one command names."""


def examine_queue(
    queue: QueueStatus, now: Instant, parked: Iterable[Row] = ()
) -> Iterator[Finding]:
    """Yield the faults of one queue; those of `parked`, its parked groups, are yielded apart.

    An error of a handler is told once: with the groups that it holds up, not as well with the
    readers that it ends (MON-87)."""
    about = f"queue {queue.name} of broker {queue.broker}"
    of = f"--broker {quote(queue.broker)}"
    causes = {str(row.get("last_error") or "") for row in parked if row["queue"] == queue.name}
    is_cause = bool(queue.retrying) and _explains(queue.last_error, queue.reason)
    is_told = is_cause or any(_explains(one, queue.reason) for one in causes)
    if queue.retrying:
        text = counted(queue.retrying, "group waits", "groups wait") + " for the next attempt: "
        text += queue.last_error or "no cause was given"
        level = error if is_cause else warning
        yield level("D44", about, text, "", f"brokerd group ls --parked {of}")
    if queue.status != "on":
        text = f"it is {queue.status}, with {counted(queue.ready, 'message')} in it"
        text += f": {queue.off_because}" if queue.off_because else ""
        yield queue_off(about, text, queue.name, queue.broker, is_poisoned=queue.is_poisoned)
    elif queue.reason and not is_told:
        yield not_read(queue.broker, queue.name, queue.reason)
    elif queue.unread and not is_told:
        yield unread(queue)
    if queue.full:
        yield _full(queue, about, now)


def _explains(cause: str, reason: str) -> bool:
    """Return whether an error is the one that readers fail with."""
    return bool(cause) and cause in reason


def _full(queue: QueueStatus, about: str, now: Instant) -> Finding:
    """Return the finding for a queue at its limit: an error while it refuses messages (REL-42)."""
    name, of = quote(queue.name), f"--broker {quote(queue.broker)}"
    text = f"it is full: {queue.full}"
    level = warning
    if queue.refused_at is not None:
        text += f", the last {age(queue.refused_at, now)}"
        level = error if now - queue.refused_at <= STUCK_AFTER else warning
    commands = [f"brokerd monitor ls --queue {name} {of}"]
    limits = [f"max_messages={2 * queue.max_messages}"] if queue.max_messages else []
    if queue.max_bytes:
        limits.append(f"max_bytes={show_size(2 * queue.max_bytes)}")
    mend = "have its messages received, by more readers if need be; who reads:"
    if limits:
        commands.append(f"brokerd queue alter {name} {' '.join(limits)} {of}")
        mend = "have its messages received (the first command says who reads), or raise its limit:"
    return level("D74", about, text, mend, *commands)


def queue_off(about: str, text: str, queue: str, broker: str, *, is_poisoned: bool) -> Finding:
    """Return the finding for a queue that is off, with the command that switches it on (PSN-11).

    `is_poisoned`: whether one conversation has caused it, which would cause it again."""
    name, of = quote(queue), f"--broker {quote(broker)}"
    if not is_poisoned:
        switch = f"brokerd queue alter {name} status=on {of}"
        return error("D06", about, text, "", f"brokerd queue show {name} {of}", switch)
    mend = "mend the program and switch the queue on, or end the dialog that caused it, whose "
    mend += "messages are then deleted; the last command does that:"
    cure = f"brokerd queue cure {name} --error 1 --description 'it cannot be processed' {of}"
    browse = f"brokerd queue browse {name} --max 10 {of}"
    return error("D06", about, text, mend, browse, cure)


def unread(queue: QueueStatus) -> Finding:
    """Return the finding for a queue whose messages nothing receives (MON-70)."""
    name, of = quote(queue.name), f"--broker {quote(queue.broker)}"
    about = f"queue {queue.name} of broker {queue.broker}"
    browse = f"brokerd queue browse {name} --max 10 {of}"
    if queue.is_activation_off:
        mend = "start the program that reads it, or let the daemon start readers again:"
        switch = f"brokerd queue alter {name} activation.status=on {of}"
        return error("D45", about, queue.unread, mend, switch)
    if queue.handler:
        mend = "see what the queue monitor has decided, and why:"
        return error("D45", about, queue.unread, mend, f"brokerd queue show {name} {of}")
    mend = "start the program that reads it; what waits there:"
    return error("D45", about, queue.unread, mend, browse)


def not_read(broker: str, queue: str, why: str) -> Finding:
    """Return the finding for a queue whose readers cannot be started (PBT-6)."""
    of = f"--broker {quote(broker)}"
    about = f"queue {queue} of broker {broker}"
    show = f"brokerd queue show {quote(queue)} {of}"
    mend = "mend what the text names; the readers are started again by themselves:"
    return error("D45", about, f"no reader is started: {why}", mend, show)


def parked_groups(broker: BrokerSeen, every: int) -> Iterator[Finding]:
    """Yield the parked groups by queue and error, of at most `MOST`, and the number of the others.

    `every`: the total number of parked groups of the broker."""
    of = f"--broker {quote(broker.name)}"
    alike: dict[tuple[str, str], list[Row]] = {}
    for row in broker.parked[:MOST]:
        why = ", ".join(str(row[name]) for name in ("park_reason", "last_error") if row.get(name))
        alike.setdefault((str(row["queue"]), why), []).append(row)
    for (queue, why), rows in alike.items():
        groups = [str(row["conversation_group_id"]) for row in rows]
        messages = counted(sum(row["messages"] for row in rows), "message")
        mend = "mend the program and release the group, or edit, discard or end it "
        text = f"group {groups[0]} is parked"
        if len(rows) > 1:
            mend = "mend the program and release the groups, or edit, discard or end them "
            text = f"{len(rows)} groups are parked"
        mend += "(brokerd group --help)"
        commands = [
            f"brokerd queue browse {quote(queue)} --max 10 {of}",
            f"brokerd group release {' '.join(groups[:NAMED])} {of}",
        ]
        if len(groups) > NAMED:
            mend += f"; the last command releases {NAMED}, and doctor then names the next"
            commands.insert(1, f"brokerd group ls --parked {of}")
        about = f"queue {queue} of broker {broker.name}"
        yield error("D44", about, f"{text}, with {messages}: {why}", f"{mend}:", *commands)
    if len(broker.parked) > MOST:
        text = counted(max(1, every - MOST), "more group is parked", "more groups are parked")
        parked = f"brokerd group ls --parked {of}"
        yield error("D44", f"broker {broker.name}", text, "", parked)
