"""Alerts for the operator other than those of the books: few, with a command each. Pure.

Reads:  `Data`.      Never: reports slowness, new failures, or growth of dialogs and disks without
        earlier days to compare with.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from spark_jobs.latency import HOUR_US
from spark_jobs.report.baseline import slow
from spark_jobs.report.data import Data, Gauge
from spark_jobs.report.failed import failed
from spark_jobs.report.slo import DAYS as BUDGET_DAYS
from spark_jobs.report.slo import Burn, levels
from spark_jobs.report.standing import Hours, by_subject, last_of, most_of, queues
from spark_jobs.report.status import Point, Status, about, pasted
from spark_jobs.report.words import counted, day_and_time, duration, hours_of, number, signed

NIGHTS = 3
"""Number of nights in a row of growth that count as a leak until shown otherwise."""

GROWTH = 1.05
LEAST_GROWTH = 20.0
"""Growth in a night that counts: by the factor `GROWTH`, and by at least `LEAST_GROWTH` dialogs."""

DISK_DAYS = 7.0
CERTIFICATE_DAYS = 14.0
DAY_HOURS = 24
CERTIFICATES = {
    "own_certificate_days": ("{instance}", "brokerd certificate renew"),
    "peer_certificate_days": ("a peer or a client of {instance}", "brokerd certificate ls"),
}
"""Gauges of the days until a certificate expires: whose it is, and a command."""

COVERED = 0.99
CLOCK_TOLERANCE_S = 300.0
"""The largest difference of two clocks that is no concern (Numbers: clock tolerance)."""


def alerts(data: Data) -> Iterator[Point]:
    """Yield all alerts except those about the books and the coverage of the logs."""
    yield from _stuck(data)
    yield from _shut(data)
    yield from _clocks(data)
    yield from _slow(data)
    yield from failed(data)
    yield from _growing(data)
    yield from _ending(data)
    yield from _burning(data)


@about("queues")
def _stuck(data: Data) -> Iterator[Point]:
    for one in queues(data):
        where = f"Queue {one.name} at {one.instance}"
        if one.verdict in {"STALLED", "STOPPED"}:
            how = "is switched off" if one.verdict == "STOPPED" else "is stalled"
            yield Point(
                Status.ACT,
                f"{where} {how}: {counted(one.waiting, 'message')} waiting.",
                "See why nobody receives from it.",
                pasted("brokerd", "queue", "show", one.name, "--broker", one.broker),
            )
    yesterday = _night(data, 1)
    known = {(one.instance, one.broker) for one in yesterday.values()}
    for key, gauge in _night(data, 0).items():
        # A gauge of zero is left out, so its absence means zero where the broker has other gauges;
        # where it has none, nothing is known of that night.
        if gauge.gauge != "parked" or (gauge.instance, gauge.broker) not in known:
            continue
        before = yesterday.get(key)
        grown = round(gauge.last - (before.last if before else 0.0))
        if grown > 0:
            yield Point(
                Status.LOOK,
                f"{counted(grown, 'message')} more parked on queue {gauge.name} at "
                f"{gauge.instance} than the night before.",
                "See what their groups failed with, then release, edit or end them.",
                pasted("brokerd", "group", "ls", "--parked", "--broker", gauge.broker),
            )


@about("queues")
def _shut(data: Data) -> Iterator[Point]:
    """Yield queues that were off or full, and stores that were full, for some hours of the day."""
    at_the_end = {
        (one.instance, one.broker, one.name) for one in queues(data) if one.verdict == "STOPPED"
    }
    for (instance, broker, scope, name), hours in sorted(by_subject(data).items()):
        now = hours[max(hours)]
        is_off = (instance, broker, name) in at_the_end
        if scope == "queue" and not is_off and (off := _hours_with(hours, "off")):
            yield Point(
                Status.LOOK,
                f"Queue {name} at {instance} was switched off for a time, from {off}.",
                "It is on again; see what had switched it off.",
                pasted("brokerd", "queue", "show", name, "--broker", broker),
            )
        if scope == "queue" and (full := _hours_with(hours, "full")):
            is_now = bool(last_of(now, "full"))
            yield Point(
                Status.ACT if is_now else Status.LOOK,
                f"Queue {name} at {instance} {'is' if is_now else 'was'} full, from {full}: it "
                "took no message.",
                "Have its messages received, or raise its limit.",
                pasted("brokerd", "queue", "show", name, "--broker", broker),
            )
        if scope == "instance" and (full := _hours_with(hours, "store_full")):
            is_now = bool(last_of(now, "store_full"))
            yield Point(
                Status.ACT if is_now else Status.LOOK,
                f"The disk of {instance} {'is' if is_now else 'was'} full, from {full}: broker "
                f"{broker} took no message.",
                "Make room; the daemon goes on by itself.",
                "brokerd doctor",
            )


def _hours_with(hours: Hours, gauge: str) -> str:
    """Return the hours in which a gauge was not zero, as text; "" = none."""
    found = [at for at, gauges in sorted(hours.items()) if most_of(gauges, gauge)]
    return hours_of([at // HOUR_US % 24 for at in found]) if found else ""


@about("peers")
def _clocks(data: Data) -> Iterator[Point]:
    told: set[str] = set()
    for (instance, _, scope, name), hours in sorted(by_subject(data).items()):
        at = max(hours)
        jump = hours[at].get("clock_jump_s")
        if scope == "instance" and jump is not None and last_of(hours[at], "clock_jump_s"):
            yield Point(
                Status.LOOK,
                f"The clock of the machine of {instance} has jumped by {signed(jump.last)}.",
                "Set it right; if it is right, confirm it.",
                "brokerd clock confirm",
            )
        ahead = [one for gauges in hours.values() if (one := gauges.get("clock_ahead_s"))]
        if not ahead:
            continue
        newest = max(ahead, key=lambda one: one.last_at)
        worst = max(ahead, key=lambda one: abs(one.last))
        if abs(worst.last) > CLOCK_TOLERANCE_S:
            is_now = abs(newest.last) > CLOCK_TOLERANCE_S
            told.add(instance)
            yield Point(
                Status.LOOK,
                f"The clock of {name} {'differs' if is_now else 'differed'} from that of "
                f"{instance} by {signed((newest if is_now else worst).last)}.",
                "Compare both with a clock that is right, and set the one that is wrong.",
                "date -u",
            )
    yield from _clocks_of_dialogs(data, told)


def _clocks_of_dialogs(data: Data, told: set[str]) -> Iterator[Point]:
    """Yield clocks that differ by the times of dialogs, if their instances do not say so."""
    most: dict[tuple[str, str], int] = {}
    for one in data.sides:
        if one.most_us is not None and one.ahead is not None and one.behind is not None:
            pair = one.ahead, one.behind
            most[pair] = max(most.get(pair, 0), one.most_us)
    for (ahead, behind), us in sorted(most.items()):
        if us > CLOCK_TOLERANCE_S * 1e6 and not told & {ahead, behind}:
            yield Point(
                Status.LOOK,
                f"By the times of dialogs the clock of {ahead} is {duration(us)} or more ahead of "
                f"that of {behind}: hours may be off.",
                "Compare both with a clock that is right, and set the one that is wrong.",
                "date -u",
            )


@about("waits")
def _slow(data: Data) -> Iterator[Point]:
    for one in slow(data):
        what = _SLOW.get(one.measure, one.measure)
        yield Point(
            Status.LOOK,
            f"{what.format(name=one.name, instance=one.instance)} took up to "
            f"{duration(one.worst_us)} (p95) from {hours_of(one.hours)}; "
            f"{duration(one.usual_us)} is usual.",
            "Compare with the changes of the day below.",
            pasted("brokerd", "destination", "ls", "--where", f"address={one.name}")
            if one.scope == "destination"
            else pasted("brokerd", "queue", "show", one.name, "--broker", one.broker),
        )


_SLOW = {
    "wait_us": "Waiting in queue {name} at {instance}",
    "handler_us": "Handling messages of queue {name} at {instance}",
    "wire_us": "The way from {instance} to peer {name}",
    "outbox_us": "Leaving {instance} for peer {name}",
}


@about("soon")
def _growing(data: Data) -> Iterator[Point]:
    rows: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for gauge in data.nights:
        if gauge.gauge == "endpoints":
            rows[gauge.instance, gauge.broker][gauge.date] = gauge.last
    for (instance, broker), by_night in sorted(rows.items()):
        if data.date not in by_night:
            continue
        counts = [by_night[date] for date in sorted(by_night)][-(NIGHTS + 1) :]
        steps = list(pairwise(counts))
        if len(steps) == NIGHTS and all(
            after >= max(before * GROWTH, before + LEAST_GROWTH) for before, after in steps
        ):
            yield Point(
                Status.LOOK,
                f"Open dialogs at {instance} grow: {number(round(counts[0]))} to "
                f"{number(round(counts[-1]))} in {NIGHTS} nights.",
                "Find those that nobody ends.",
                pasted("brokerd", "dialog", "ls", "--older-than", "1d", "--broker", broker),
            )


@about("soon")
def _ending(data: Data) -> Iterator[Point]:
    for instance, days in sorted(disk_days(data).items()):
        if days < DISK_DAYS:
            yield Point(
                Status.ACT,
                f"The disk of {instance} is full in {days:.1f} days at this rate.",
                "Make room, or find what grows.",
                "brokerd status",
            )
    for gauge in data.nights:
        if gauge.date != data.date or gauge.gauge not in CERTIFICATES:
            continue
        left = gauge.last
        if left < CERTIFICATE_DAYS:
            whose, command = CERTIFICATES[gauge.gauge]
            expires = f"expires in {left:.0f} days" if left > 0 else "has expired"
            yield Point(
                Status.ACT,
                f"A certificate of {whose.format(instance=gauge.instance)} {expires}.",
                "Put a new one in its place, here and at its peers.",
                command,
            )


@about("levels")
def _burning(data: Data) -> Iterator[Point]:
    """Yield the service levels whose budget burns fast, or is used up (REL-75, REL-76)."""
    for level in levels(data.date, data.kept):
        one = level.objective
        where = f"{one.pair} ({one.scope} {one.name})"
        command = (
            pasted("brokerd", "queue", "show", one.name)
            if one.scope == "queue"
            else pasted("brokerd", "destination", "ls", "--where", f"address={one.name}")
        )
        if (burn := level.fast or level.slow) is not None:
            yield Point(
                Status.ACT if level.fast else Status.LOOK,
                f"Service level of {where}: {_part(burn.late / burn.total)} of the messages "
                f"{_window(burn)} took longer than {duration(one.within_us)}; "
                f"{_part(1 - one.part)} is allowed. That is {_part(burn.cost)} of the budget of "
                f"{BUDGET_DAYS} days.",
                "Look at the waits of these hours below, and at what changed before them.",
                command,
            )
        elif level.left <= 0:
            yield Point(
                Status.LOOK,
                f"Service level of {where}: the budget of {BUDGET_DAYS} days is used up.",
                "Find what costs it, day by day, or change the level in slo.toml.",
                command,
            )


def _part(value: float) -> str:
    return f"{value * 100:.3g} %"


def _window(burn: Burn) -> str:
    """Return the time of a window in words."""
    if burn.hours == DAY_HOURS:
        return "of the day"
    begin = day_and_time(burn.until_at - burn.hours * HOUR_US)
    end = day_and_time(burn.until_at - 1)
    if begin[:10] != end[:10]:
        return f"from {begin[:16]} to {day_and_time(burn.until_at)[:16]}"
    return f"from {hours_of(range(int(begin[11:13]), int(end[11:13]) + 1))}"


def disk_days(data: Data) -> dict[str, float]:
    """Return the days until the disk of each instance is full, at the rate of the last week.

    Leave out instances whose disks do not fill, that have too few nights to tell, or none now.
    """
    free: dict[str, dict[str, float]] = defaultdict(dict)
    for gauge in data.nights:
        if gauge.gauge == "disk_free_bytes":
            free[gauge.instance][gauge.date] = gauge.last
    found: dict[str, float] = {}
    for instance, by_night in free.items():
        nights = sorted(by_night)[-8:]
        used = by_night[nights[0]] - by_night[nights[-1]]
        if len(nights) > NIGHTS and used > 0 and nights[-1] == data.date:
            found[instance] = by_night[nights[-1]] / (used / (len(nights) - 1))
    return found


def _night(data: Data, back: int) -> dict[tuple[str, str, str, str], Gauge]:
    dates = sorted({gauge.date for gauge in data.nights})
    if len(dates) <= back or dates[-1] != data.date:
        return {}
    return {
        (one.instance, one.broker, one.name, one.gauge): one
        for one in data.nights
        if one.date == dates[-1 - back]
    }
