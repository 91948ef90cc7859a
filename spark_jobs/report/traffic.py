"""Traffic that did not come, peers that could not be reached, and backlogs. Pure.

Reads:  counters and gauges by the hour, and the traffic of the hours it is compared with.
Never:  calls a queue quiet in an hour without a line of its instance, or in one that was quiet on
        half of the days before.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from statistics import median_low

from spark_jobs.dates import DAY_US
from spark_jobs.latency import HOUR_US
from spark_jobs.report.baseline import has_run
from spark_jobs.report.data import Counter, Data
from spark_jobs.report.standing import Hours, Standing, by_subject, last_of, most_of, queues
from spark_jobs.report.status import Point, Status, about, pasted
from spark_jobs.report.words import counted, hours_of, number

LEAST = 20
"""Messages of an hour that are usual, below which an hour without any is nothing to report."""

QUIET_HOURS = 3
"""Number of quiet hours in a row that are reported. An hour more or less is nothing: where clocks
are set forward or back, people and programs come an hour earlier or later in UTC (BI-L17)."""

FAILED = 10
"""Number of failed attempts in an hour without any success, from which a peer was out of reach."""

STILL_HOURS = 3
"""Hours for which a peer has been out of reach at the end of the day, from which it has status ACT.
"""

BACKLOG = 1_000
"""Waiting messages below which a queue has no backlog."""

BACKLOG_HOURS = 6
"""Hours of work, at the pace of the last hours, from which a backlog has status ACT."""

NAMED = 3
"""Maximum number of queues that a point names."""

_Queue = tuple[str, str, str]
_Place = tuple[str, str]


def traffic(data: Data) -> Iterator[Point]:
    """Yield quiet queues, peers out of reach, and backlogs (BI-L15 to BI-L17)."""
    yield from _quiet(data)
    yield from _unreachable(data)
    yield from _behind(data)


@about("traffic")
def _quiet(data: Data) -> Iterator[Point]:
    usual = _usual(data.enqueued_before)
    came = {
        (_queue(one), _hour(one.hour_at))
        for one in data.counters
        if _is_enqueued(one) and one.total
    }
    alive = {(one.instance, _hour(one.hour_at)) for one in data.gauges}
    shut = _shut(data)
    quiet: dict[_Queue, list[int]] = defaultdict(list)
    for (queue, hour), messages in sorted(usual.items()):
        there = (queue[0], hour) in alive and (queue, hour) not in shut
        if messages >= LEAST and there and (queue, hour) not in came:
            quiet[queue].append(hour)
    together: dict[tuple[str, str, tuple[int, ...]], list[str]] = defaultdict(list)
    for (instance, broker, name), hours in quiet.items():
        if has_run(hours, QUIET_HOURS):
            together[instance, broker, tuple(hours)].append(name)
    for (instance, broker, span), names in sorted(together.items()):
        messages = sum(usual[(instance, broker, one), hour] for one in names for hour in span)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield Point(
            Status.LOOK,
            f"No message came for queue{'s' if names[1:] else ''} {', '.join(names[:NAMED])}{more} "
            f"at {instance} from {hours_of(span)}, when {number(messages)} are usual.",
            "See whether the programs that send them run, and reach the instance.",
            pasted("brokerd", "queue", "show", names[0], "--broker", broker),
        )


def _usual(days: Collection[Iterable[Counter]]) -> dict[tuple[_Queue, int], int]:
    """Return the lower median of what came for each queue in each hour of the day."""
    found: dict[tuple[_Queue, int], list[int]] = defaultdict(list)
    for day in days:
        for one in day:
            if _is_enqueued(one):
                found[_queue(one), _hour(one.hour_at)].append(one.total)
    absent = {key: [0] * (len(days) - len(values)) for key, values in found.items()}
    return {key: median_low(values + absent[key]) for key, values in found.items()}


def _shut(data: Data) -> set[tuple[_Queue, int]]:
    """Return the hours in which a queue, or its store, took no message: they are named as such."""
    full = {
        (one.instance, one.broker, _hour(one.hour_at))
        for one in data.gauges
        if (one.scope, one.gauge) == ("instance", "store_full") and one.most
    }
    return {
        ((one.instance, one.broker, one.name), _hour(one.hour_at))
        for one in data.gauges
        if one.scope == "queue"
        and (
            (one.gauge in {"full", "off"} and one.most)
            or (one.instance, one.broker, _hour(one.hour_at)) in full
        )
    }


@about("peers")
def _unreachable(data: Data) -> Iterator[Point]:
    failed, heard = _attempts(data.counters)
    left_alone: dict[_Place, set[int]] = defaultdict(set)
    newest: dict[str, int] = {}
    for gauge in data.gauges:
        newest[gauge.instance] = max(newest.get(gauge.instance, 0), gauge.hour_at)
        if (gauge.scope, gauge.gauge) == ("destination", "suppressed") and gauge.most:
            left_alone[gauge.instance, gauge.name].add(gauge.hour_at)
    for place in sorted({*failed, *left_alone}):
        often = {hour for hour, times in failed.get(place, {}).items() if times >= FAILED}
        hours = sorted((often | left_alone[place]) - heard[place])
        if not (set(hours) & often or has_run([hour // HOUR_US for hour in hours], 2)):
            continue
        instance, name = place
        is_still = hours[-1] == newest.get(instance) and _ends_in(hours, STILL_HOURS)
        yield Point(
            Status.ACT if is_still else Status.LOOK,
            f"Peer {name} could not be reached from {instance} from "
            f"{hours_of([_hour(hour) for hour in hours])}{', and still cannot' * is_still}.",
            "See its last error, and whether the peer runs.",
            pasted("brokerd", "destination", "show", name),
        )


def _attempts(
    counters: Iterable[Counter],
) -> tuple[dict[_Place, dict[int, int]], dict[_Place, set[int]]]:
    """Return the failed attempts by hour, and the hours with a sign of the peer, by destination."""
    failed: dict[_Place, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    heard: dict[_Place, set[int]] = defaultdict(set)
    for one in counters:
        if one.scope == "destination" and one.total:
            if one.counter.startswith("failed_"):
                failed[one.instance, one.name][one.hour_at] += one.total
            elif one.counter in {"connects", "fragments_received"}:
                heard[one.instance, one.name].add(one.hour_at)
    return failed, heard


@about("readers")
def _behind(data: Data) -> Iterator[Point]:
    received: dict[_Queue, dict[int, int]] = defaultdict(dict)
    for counter in data.counters:
        if (counter.scope, counter.counter) == ("queue", "received"):
            received[_queue(counter)][counter.hour_at] = counter.total
    subjects = by_subject(data)
    for one in queues(data):
        queue = one.instance, one.broker, one.name
        if one.verdict in {"STALLED", "STOPPED"} or one.waiting < BACKLOG:
            continue
        hours = subjects[one.instance, one.broker, "queue", one.name]
        pace = _pace(received[queue], max(hours))
        if one.waiting > pace:
            yield _backlog(one, pace, hours)


def _pace(received: Mapping[int, int], newest: int) -> int:
    """Return the messages received in the newest hour, which may be cut off, or the one before."""
    return max(received.get(newest, 0), received.get(newest - HOUR_US, 0))


def _backlog(one: Standing, pace: int, hours: Hours) -> Point:
    now = hours[max(hours)]
    readers = round(last_of(now, "readers"))
    is_busy = most_of(now, "max_readers") and readers >= most_of(now, "max_readers")
    left = one.waiting / max(pace, 1)
    busy = f", with all {counted(readers, 'reader')} busy" if is_busy else ""
    return Point(
        Status.ACT if left >= BACKLOG_HOURS else Status.LOOK,
        f"{counted(one.waiting, 'message')} wait in queue {one.name} at {one.instance}, "
        f"{left:,.0f} hours of work at the present pace{busy}.",
        "Allow more readers, if the machine can carry them, or make the handlers quicker.",
        pasted("brokerd", "queue", "show", one.name, "--broker", one.broker),
    )


def _is_enqueued(one: Counter) -> bool:
    return (one.scope, one.counter) == ("queue", "enqueued")


def _queue(one: Counter) -> _Queue:
    return one.instance, one.broker, one.name


def _hour(at: int) -> int:
    """Return the hour of the day, 0 to 23."""
    return at % DAY_US // HOUR_US


def _ends_in(hours: list[int], length: int) -> bool:
    """Return whether the last `length` hours are in a row."""
    return len(hours) >= length and hours[-1] - hours[-length] == (length - 1) * HOUR_US
