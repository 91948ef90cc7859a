"""The figures of one frame: queues and destinations with rates, what is wrong first (MON-80).

PURE.   One or two answers to `status` in, figures out.
Reads:  the statuses that it is given.      Calls: attention, telemetry.status.
Never:  shows a rate over a restart of the daemon, whose totals begin anew.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from brokerd.admin.top.attention import Attention, attention, destination_name
from brokerd.clock import SECOND, Instant
from brokerd.telemetry.status import DestinationStatus, InstanceStatus, QueueStatus, unsent

GRAVE: Final = 3
"""The least pain that does not go away by itself."""


class Sample(NamedTuple):
    """The status of an instance, and when it was asked for."""

    status: InstanceStatus
    at: float
    """Monotonic seconds."""


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """One queue."""

    broker: str
    name: str
    state: str
    ready: int
    parked: int
    in_per_second: float | None
    """Messages that have come in a second; None = there is no earlier sample."""
    out_per_second: float | None
    """Messages whose receive was committed in a second."""
    oldest: int | None
    """Age of the oldest message in seconds."""
    readers: int
    max_readers: int
    handler: str
    is_activation_off: bool = False
    trouble: str
    """The fault of the line; empty = none."""
    pain: int
    """How badly: 0 = nothing is wrong, 1 and 2 = it will mend itself, 3 and more = it will not."""


class DestinationLine(msgspec.Struct, frozen=True, kw_only=True):
    """One destination, or the messages of a broker that have none."""

    broker: str
    address: str
    state: str
    messages: int
    since: int | None
    """Seconds for which it has been in that state."""
    trouble: str
    """The reason why messages wait, or connecting fails; empty = none."""
    pain: int


Line = QueueLine | DestinationLine
Choice = Attention | Line
"""A line that can be chosen."""


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a frame shows of an instance."""

    instance: str
    state: str
    now: Instant
    up: int | None
    """Seconds since the daemon started."""
    clients: int
    peers: int
    dialogs: dict[str, int]
    attention: list[Attention]
    """The lines that ask for attention, worst first."""
    queues: list[QueueLine]
    destinations: list[DestinationLine]


def make_board(now: Sample, before: Sample | None) -> Board:
    """Return the figures of the present status; `before`: an earlier sample, for the rates."""
    status = now.status
    if before is not None and (before.status.boot_id != status.boot_id or now.at <= before.at):
        before = None
    earlier = {}
    if before is not None:
        earlier = {(one.broker, one.name): one for one in before.status.queues}
    seconds = 0.0 if before is None else now.at - before.at
    return Board(
        instance=status.instance,
        state=status.state,
        now=status.now,
        up=None if status.started_at is None else (status.now - status.started_at) // SECOND,
        clients=status.clients,
        peers=status.peers,
        dialogs=status.dialogs,
        attention=attention(status),
        queues=[
            _queue(one, earlier.get((one.broker, one.name)), seconds, status.now)
            for one in status.queues
        ],
        destinations=[
            _destination(one, status.now)
            for one in status.destinations
            if one.messages or one.state != "idle" or one.failures
        ],
    )


def _queue(one: QueueStatus, before: QueueStatus | None, seconds: float, now: Instant) -> QueueLine:
    trouble, pain = _trouble(one)
    came = gone = None
    if before is not None:
        came = max(0, one.enqueued - before.enqueued) / seconds
        gone = max(0, one.received - before.received) / seconds
    oldest = one.oldest_ready_at
    return QueueLine(
        broker=one.broker,
        name=one.name,
        state="full" if one.full and one.status == "on" else one.status,
        ready=one.ready,
        parked=one.parked,
        in_per_second=came,
        out_per_second=gone,
        oldest=None if oldest is None else max(0, now - oldest) // SECOND,
        readers=one.readers,
        max_readers=one.max_readers,
        handler=one.handler,
        is_activation_off=one.is_activation_off,
        trouble=trouble,
        pain=pain,
    )


def _trouble(one: QueueStatus) -> tuple[str, int]:
    """Return why a queue suffers, and how badly; its state and figures are in other columns."""
    if one.status != "on":
        return one.off_because or f"it is {one.status}", 6
    if one.reason or one.unread:
        return one.reason or one.unread, 5
    if one.full:
        return one.full, 4
    if one.parked:
        return one.last_error or "groups are parked", 3
    if one.retrying:
        return one.last_error or "groups wait for their next attempt", 1
    return "", 0


def _destination(one: DestinationStatus, now: Instant) -> DestinationLine:
    trouble = unsent(one, now).partition(": ")[2]
    reason = one.text or " ".join(word for word in (one.status_key, one.detail) if word)
    is_failing = bool(one.failures) or one.state == "suppressed"
    return DestinationLine(
        broker=one.broker,
        address=destination_name(one),
        state=one.state,
        messages=one.messages,
        since=None if one.since is None else max(0, now - one.since) // SECOND,
        trouble=trouble or (reason if is_failing else ""),
        pain=5 if trouble else 2 * is_failing,
    )


Key = Callable[[Line], tuple[object, ...]]


def _worst(line: Line) -> tuple[object, ...]:
    if isinstance(line, QueueLine):
        return -line.pain, -(line.oldest or 0), -line.ready, *_name(line)
    return -line.pain, -line.messages, *_name(line)


def _name(line: Line) -> tuple[object, ...]:
    if isinstance(line, QueueLine):
        return line.broker, line.name
    return line.address, line.broker


def _most(field: str) -> Key:
    """Return a key by which the largest value of a field of queues is first."""
    at_destination = {"ready": "messages", "oldest": "since"}

    def key(line: Line) -> tuple[object, ...]:
        name = field if isinstance(line, QueueLine) else at_destination.get(field, "messages")
        return -(getattr(line, name) or 0), *_name(line)

    return key


ORDERS: Final[dict[str, Key]] = {
    "pain": _worst,
    "name": _name,
    "in/s": _most("in_per_second"),
    "out/s": _most("out_per_second"),
    "ready": _most("ready"),
    "oldest": _most("oldest"),
    "parked": _most("parked"),
}
"""The orders of the lines, by name; each begins with what matters most by it."""


def chosen(lines: list[QueueLine] | list[DestinationLine], order: str, filter_: str) -> list[Line]:
    """Return the lines whose name contains a text, in an order."""
    text = filter_.casefold()
    wanted: list[Line] = [one for one in lines if text in " ".join(map(str, _name(one))).casefold()]
    return sorted(wanted, key=ORDERS[order])
