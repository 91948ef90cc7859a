"""Failures that count: new ones, grave ones, those of many messages, and far more than usual. Pure.

Reads:  failures by fingerprint, of the day and of the days it is compared with; counters.
Never:  repeats a known failure every day unless it is grave, or strikes a tenth of the messages.
"""

from collections import defaultdict
from collections.abc import Iterator

from spark_jobs.report.data import Data, Failure
from spark_jobs.report.status import Point, Status, about, pasted
from spark_jobs.report.words import counted, number

NEW_PART = 0.01
"""The part of the messages received above which a new failure has status ACT."""

KNOWN_PART = 0.1
"""The part of the messages received above which a known failure has status ACT."""

LEAST = 20
"""Number of failures below which they are no large part of the messages, however few these are."""

GROWN = 10
LEAST_GROWN = 100
"""A known failure counts if it is `GROWN` times as frequent as on any of the days it is compared
with, and came at least `LEAST_GROWN` times."""

LOGINS = 1_000
"""Number of failed logins at one instance in a day that count even if they are known."""

LOGIN = "audit.broker_login"
_OF_MESSAGES = ("broker.activation", "broker.parking", "broker.conversation")
"""Events that come once for each message that fails."""

_DELAYS = ("broker.connection", "broker.store", "broker.tick")
"""Events that delay messages, so that many of them are grave where few messages arrive."""

_OF_QUEUES = ("broker.activation", "broker.parking")

_GRAVE = {
    "broker.lost_messages": (
        "reported messages that the other side of a dialog lacks",
        "Find the dialog, and have its messages sent again on a new one (dialog resend).",
    ),
    "broker.history_lost": (
        "reported a dialog whose other side lost what it had acknowledged",
        "See which store was restored or copied, and begin the dialog again.",
    ),
    "broker.duplicate_broker": (
        "reported that two instances deliver for one broker",
        "Stop one of the two; doctor names them and the cure.",
    ),
}
"""Events that are grave whenever they come: what they report, and advice."""

_Key = tuple[str, str, str, str, str]


@about("failures")
def failed(data: Data) -> Iterator[Point]:
    """Yield the failures that count (REL-65, BI-L10, BI-L11)."""
    received = _received(data)
    usual = _usual(data)
    struck: set[tuple[str, str, str]] = set()
    yield from _grave(data)
    for one in data.failures:
        if one.event in _GRAVE:
            continue
        queue = one.instance, one.broker, one.name
        of_queue = one.event in _OF_QUEUES and queue in received
        messages = received[queue] if of_queue else sum(received.values())
        is_part = one.event in _OF_MESSAGES and one.times >= LEAST
        is_part = is_part and one.times > messages * KNOWN_PART
        before = usual.get(_key(one), 0.0)
        if is_part:
            struck.add(queue)
        if one.is_new:
            yield _new(one, sum(received.values()))
        elif is_part:
            yield _part(one, messages)
        elif one.event == LOGIN:
            continue
        elif data.past and one.times >= max(LEAST_GROWN, GROWN * before):
            yield _grown(one, before)
    yield from _rolled_back(data, received, struck)
    yield from _logins(data)


def _received(data: Data) -> dict[tuple[str, str, str], int]:
    """Return the number of messages received from each queue."""
    found: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in data.counters:
        if (one.scope, one.counter) == ("queue", "received"):
            found[one.instance, one.broker, one.name] += one.total
    return dict(found)


def _usual(data: Data) -> dict[_Key, float]:
    """Return the most that each failure came on one of the days compared with."""
    found: dict[_Key, float] = {}
    for day in data.past:
        for one in day.failures:
            key = one.instance, one.broker, one.scope, one.name, one.what
            found[key] = max(found.get(key, 0.0), one.value)
    return found


def _key(one: Failure) -> _Key:
    return one.instance, one.broker, one.event, one.name, one.fingerprint


def _grave(data: Data) -> Iterator[Point]:
    found: dict[tuple[str, str, str], list[Failure]] = defaultdict(list)
    for one in data.failures:
        if one.event in _GRAVE:
            found[one.event, one.instance, one.broker].append(one)
    for (event, instance, broker), every in sorted(found.items()):
        what, advice = _GRAVE[event]
        times = sum(one.times for one in every)
        first = every[0]  # the most frequent
        show = ("brokerd", "dialog", "show", first.conversation_id, "--broker", broker)
        yield Point(
            Status.ACT,
            f"{instance} {what}{f', {number(times)} times' if times > 1 else ''}: "
            f"{first.fingerprint}",
            advice,
            pasted(*show) if first.conversation_id and broker else "brokerd doctor",
        )


def _part(one: Failure, messages: int) -> Point:
    return Point(
        Status.ACT,
        f"{number(one.times)} failures for {counted(messages, 'message')} received: "
        f"{_where(one)}: {one.fingerprint}",
        "Read the example below; mend the program, or drain the queue until it is mended.",
        _command(one),
    )


def _new(one: Failure, messages: int) -> Point:
    is_part = one.event in _OF_MESSAGES + _DELAYS and one.times > messages * NEW_PART
    return Point(
        Status.ACT if is_part else Status.LOOK,
        f"New today, {counted(one.times, 'time')}: {_where(one)}: {one.fingerprint}",
        "Read the example below, and what changed today.",
        _command(one),
    )


def _grown(one: Failure, usual: float) -> Point:
    return Point(
        Status.LOOK,
        f"Far more often than usual, {number(one.times)} times instead of at most "
        f"{number(round(usual))}: {_where(one)}: {one.fingerprint}",
        "Read the example below, and what changed today.",
        _command(one),
    )


def _rolled_back(
    data: Data, received: dict[tuple[str, str, str], int], struck: set[tuple[str, str, str]]
) -> Iterator[Point]:
    """Yield queues of which many receives were rolled back without a failure that says why."""
    back: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in data.counters:
        if (one.scope, one.counter) == ("queue", "rolled_back"):
            back[one.instance, one.broker, one.name] += one.total
    for queue, messages in sorted(back.items()):
        instance, broker, name = queue
        of = received.get(queue, 0)
        if queue not in struck and messages >= LEAST and messages > of * KNOWN_PART:
            yield Point(
                Status.ACT,
                f"{counted(messages, 'message')} of queue {name} at {instance} went back to it by "
                f"a rollback, {number(of)} were received.",
                "See with what the programs that receive from it fail.",
                pasted("brokerd", "queue", "show", name, "--broker", broker),
            )


def _logins(data: Data) -> Iterator[Point]:
    at: dict[str, int] = defaultdict(int)
    for one in data.failures:
        if one.event == LOGIN and not one.is_new:
            at[one.instance] += one.times
    for instance, times in sorted(at.items()):
        if times >= LOGINS:
            yield Point(
                Status.LOOK,
                f"{number(times)} logins of peers failed at {instance}.",
                "See who it was: a peer with an old certificate, or a stranger.",
                "brokerd audit --refused --since 1d",
            )


def _where(one: Failure) -> str:
    name = f" of {one.name}" if one.name else ""
    return f"{one.event.removeprefix('broker.')} {one.subclass}{name} at {one.instance}"


_COMMANDS = {
    "broker.tick": "brokerd periodic ls",
    "audit.broker_login": "brokerd audit --refused --since 1d",
    "audit.broker_conversation": "brokerd audit --refused --since 1d",
    "broker.certificate": "brokerd certificate ls",
    "broker.endpoint": "brokerd endpoint show",
    "broker.daemon": "brokerd doctor",
    "broker.store": "brokerd doctor",
    "broker.checks": "brokerd doctor",
}


def _command(one: Failure) -> str:
    if one.event == "broker.connection" and one.name:
        return pasted("brokerd", "destination", "retry", one.name)
    if one.event in _OF_QUEUES and one.name:
        return pasted("brokerd", "queue", "show", one.name, "--broker", one.broker)
    return _COMMANDS.get(one.event, "brokerd status")
