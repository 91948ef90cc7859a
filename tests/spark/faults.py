"""Faults to be planted one a day in a month, and what the report of that day has to say of each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.month import FAULTS, HOUR, Fault, Line, Month, cut_off, lost, midnight
from tests.spark.segments import SECOND

DAY_HOURS = range(8, 14)


def old(name: str, *also: str, days: int = 1) -> Fault:
    """A fault that `month.FAULTS` has."""
    one = FAULTS[name]
    return Fault(one.status, (one.text, *also), when=name, days=days)


def lines(
    scope: str, instance: str, change: Callable[[Line, int], Line | None], **fields: str
) -> Callable[[Line, int], Line | None]:
    """Change the interval lines of one scope of one instance; `broker` "" is the machine's."""

    def changed(line: Line, hour: int) -> Line | None:
        is_meant = (line.get("scope"), line["instance"]) == (scope, instance)
        if is_meant and all(line[name] == value for name, value in fields.items()):
            return change(line, hour)
        return line

    return changed


def gauges(hours: Any = range(24), **values: float) -> Callable[[Line, int], Line]:
    """Set gauges in these hours."""

    def changed(line: Line, hour: int) -> Line:
        return line | {"gauges": line["gauges"] | values} if hour in hours else line

    return changed


def put(hours: Any = range(24), **fields: Any) -> Callable[[Line, int], Line]:
    """Put these fields in place of those of the line in these hours."""

    def changed(line: Line, hour: int) -> Line:
        return line | fields if hour in hours else line

    return changed


def counters(hours: Any = range(24), **values: int) -> Callable[[Line, int], Line]:
    """Set counters in these hours."""

    def changed(line: Line, hour: int) -> Line:
        return line | {"counters": line["counters"] | values} if hour in hours else line

    return changed


def event(
    instance: str,
    name: str,
    subclass: str = "",
    *,
    times: int = 1,
    hour: int = 10,
    severity: str = "warning",
    **fields: str,
) -> Callable[[Month, int, int], None]:
    """Write an event, with the number of its repeats as the daemon writes it."""

    def add(month: Month, day: int, at_hour: int) -> None:
        if at_hour != hour:
            return
        said = fields | ({"repeated": str(times)} if times > 1 else {})
        about = {"event": name, "subclass": subclass, "severity": severity, "fields": said}
        month.logs[instance].add("event", midnight(day) + hour * HOUR + 5 * SECOND, **about)

    return add


def tear(instance: str) -> Callable[[Path], None]:
    """Take its end away from the day's segment of an instance."""

    def land(directory: Path) -> None:
        (path,) = directory.glob(f"{instance}-*.jsonl.gz")
        cut_off(path)

    return land


def away(instance: str, hours: Any = range(24)) -> Callable[[Line, int], Line | None]:
    """Have an instance write nothing in these hours."""

    def changed(line: Line, hour: int) -> Line | None:
        return None if line["instance"] == instance and hour in hours else line

    return changed


def starts(
    instance: str, hour: int, *, times: int = 1, orderly: bool = False
) -> Callable[[Month, int, int], None]:
    """Start an instance some times within a minute."""

    def add(month: Month, day: int, at_hour: int) -> None:
        for one in range(times if at_hour == hour else 0):
            at = midnight(day) + hour * HOUR + one * SECOND
            month.restart(instance, at, orderly=orderly)

    return add


def stops(instance: str, hour: int) -> Callable[[Month, int, int], None]:
    """Stop an instance in order."""

    def add(month: Month, day: int, at_hour: int) -> None:
        if at_hour == hour:
            month.stop(instance, midnight(day) + hour * HOUR)

    return add


def all_of(*every: Callable[..., Any]) -> Callable[..., None]:
    """Call them all."""

    def call(*arguments: Any) -> None:
        for one in every:
            one(*arguments)

    return call


def longer(measure: str, hour: int, buckets: int) -> Callable[[Line, int], Line]:
    """Make each time of an hour longer, by a factor of 1.02 for each bucket."""

    def changed(line: Line, at_hour: int) -> Line:
        if at_hour != hour:
            return line
        moved = {
            str(int(key) + buckets): count for key, count in line["histograms"][measure].items()
        }
        return line | {"histograms": line["histograms"] | {measure: moved}}

    return changed


def dialogs(instance: str, by: int) -> Callable[[Line, int], Line]:
    """Set the clock of an instance to another time, as its dialogs show it."""

    def changed(line: Line, hour: int) -> Line:
        if (line["kind"], line["instance"]) != ("dialog", instance):
            return line
        return line | {name: line[name] + by for name in ("began_at", "ended_at")}

    return changed


def renamed(instance: str, name: str, hours: Any) -> Callable[[Line, int], Line]:
    """Give the service of an instance another name, which its peers do not know."""

    def changed(line: Line, hour: int) -> Line:
        is_meant = (line["kind"], line["instance"]) == ("dialog", instance) and hour in hours
        return line | {"service": name} if is_meant else line

    return changed


def dated(instance: str, days: int) -> Callable[[Path], None]:
    """Have the manifest of an instance say that its segment is of days before."""

    def land(directory: Path) -> None:
        (path,) = directory.glob(f"{instance}-*.manifest")
        said = json.loads(path.read_bytes())
        path.write_text(json.dumps(said | {"first_at": said["first_at"] - days * 24 * HOUR}))

    return land


def again(instance: str, hour: int) -> Callable[[Month, int, int], None]:
    """Start an instance with the id of the boot before, as of a machine that was set back."""

    def add(month: Month, day: int, at_hour: int) -> None:
        if at_hour == hour:
            log = month.logs[instance]
            month.stop(instance, midnight(day) + hour * HOUR)
            boot = log.boot
            month.restart(instance, midnight(day) + hour * HOUR, orderly=True, boot=boot)

    return add


def copied(instance: str, of: str) -> Callable[[Month, int, int], None]:
    """Give an instance the boot id of another until noon, as of a copied machine."""

    def add(month: Month, day: int, hour: int) -> None:
        if hour == 0:
            at = midnight(day)
            month.stop(instance, at)
            month.restart(instance, at, orderly=True, boot=month.logs[of].boot)
        if hour == 12:
            month.stop(instance, midnight(day) + hour * HOUR)
            month.restart(instance, midnight(day) + hour * HOUR, orderly=True)

    return add


def remove(instance: str) -> Callable[[Path], None]:
    """Remove the day's segment of an instance before it is taken in."""

    def land(directory: Path) -> None:
        for path in directory.glob(f"{instance}-*"):
            path.unlink()

    return land


FOUND = {
    "doubled": old("doubled"),
    "unheard": old("unheard"),
    "unheard overnight": old("unheard overnight"),
    "older": old("older"),
    "overnight": old("overnight"),
    "lost": old("lost"),
}
"""Dialogs that do not balance."""

LOGS = {
    "garbage": old("garbage"),
    "version": old("version"),
    "twice": old("twice"),
    "hour": old("hour", "20 messages cannot be judged"),
    "clock": old("clock"),
    "copied": old("copied"),
    "removed": Fault(
        1,
        ("lines are missing from the logs: 2026-1", "23:59:59 to 2026-1"),
        land=remove("north"),
        days=2,
    ),
    "torn": Fault(1, ("1 segment was set aside whole: north",), land=tear("north"), rest=1),
}
"""Logs that are late, spoilt, absent or doubled."""

STATE = {
    "leak": old("leak", days=3),
    "slow": old("slow"),
    "storm": old("storm", "3 messages more parked on queue orders at west"),
    "off": Fault(
        2,
        ("Queue archive at north is switched off: 7 messages waiting.",),
        lines("queue", "north", gauges(range(20, 24), off=1.0, ready=7.0)),
    ),
    "full queue": Fault(
        1,
        ("Queue archive at north was full, from 08:00 to 14:00",),
        lines("queue", "north", gauges(DAY_HOURS, full=1.0)),
    ),
    "full disk": Fault(
        1,
        ("The disk of east was full, from 08:00 to 14:00",),
        lines("instance", "east", gauges(DAY_HOURS, store_full=1.0), broker="main"),
    ),
    "jump": Fault(
        1,
        ("The clock of the machine of north has jumped",),
        lines("instance", "north", gauges(range(23, 24), clock_jump_s=900.0), broker=""),
    ),
}
"""What daemons say of themselves."""

EVENTS = {
    "lost messages": Fault(
        2,
        ("east reported messages that the other side of a dialog lacks: the other side is gone",),
        add=event(
            "east",
            "broker.lost_messages",
            conversation_id=lost(99),
            count="2",
            code="-8470",
            description="the other side is gone",
        ),
    ),
    "history lost": Fault(
        2,
        ("west reported a dialog whose other side lost what it had acknowledged",),
        add=event("west", "broker.history_lost", reason="restored", conversation_id=lost(99)),
    ),
    "two brokers": Fault(
        2,
        ("west reported that two instances deliver for one broker",),
        add=event("west", "broker.duplicate_broker", "seen", severity="error"),
    ),
    "logins": Fault(
        1,
        ("5,000 logins of peers failed at east",),
        add=event(
            "east", "audit.broker_login", "authentication_failure", times=5000, error="no key"
        ),
        days=2,
    ),
    "every receive": Fault(
        2,
        ("1,440 failures for 1,440 messages received: activation handler_failed of archive",),
        add=event(
            "north",
            "broker.activation",
            "handler_failed",
            times=1440,
            queue="archive",
            error="KeyError: 'price'",
        ),
        days=2,
    ),
    "rolled back": Fault(
        2,
        ("720 messages of queue archive at north went back to it by a rollback",),
        lines("queue", "north", counters(rolled_back=30)),
    ),
    "loop": Fault(
        1,
        ("New today, 3 times: daemon loop_blocked at north: reader N of archive",),
        add=event("north", "broker.daemon", "loop_blocked", times=3, task="reader 4 of archive"),
    ),
    "no master key": Fault(
        1,
        ("New today, 1 time: certificate no_master_key at north: missing",),
        add=event("north", "broker.certificate", "no_master_key", problem="missing"),
    ),
}
"""What daemons report as events."""

AWAY = {
    "gone": Fault(
        2,
        ("north wrote no line on this day, the last one is of ",),
        away("north"),
        days=2,
    ),
    "back": Fault(
        1,
        ("north did not run from 00:00:00 to 09:00:00", "north started 1 time after a crash"),
        away("north", range(9)),
        starts("north", 9),
    ),
    "stopped": Fault(
        1,
        ("north wrote no line since 15:00:00; it was stopped in order.",),
        away("north", range(15, 24)),
        stops("north", 15),
    ),
    "started": Fault(
        1,
        ("north did not run from 00:00:00 to 01:00:00",),
        away("north", range(1)),
        starts("north", 1, orderly=True),
    ),
    "paused": Fault(
        1,
        ("north did not run from 12:00:00 to 14:00:00",),
        away("north", range(12, 14)),
        all_of(stops("north", 12), starts("north", 14, orderly=True)),
    ),
    "crashes": Fault(
        2,
        ("north started 12 times after a crash",),
        add=starts("north", 4, times=12),
    ),
}
"""Instances that do not run."""

NOTHING = {"counters": {}, "histograms": {}, "groups": {}}
LEFT_ALONE = {
    "counters": {"attempts": 60, "failed_timeout": 60},
    "gauges": {"suppressed": 1.0, "dialogs_waiting": 9.0},
    "histograms": {},
}
TRAFFIC = {
    "no traffic": Fault(
        1,
        ("No message came for queue archive at north from 06:00 to 24:00, when 1,080 are usual.",),
        lines("queue", "north", put(range(6, 24), **NOTHING)),
    ),
    "a few quiet hours": Fault(0, (), lines("queue", "north", put((3, 4, 6, 7), **NOTHING))),
    "out of reach": Fault(
        1,
        ("Peer TCP://west:4022 could not be reached from east from 08:00 to 14:00.",),
        lines("destination", "east", put(DAY_HOURS, **LEFT_ALONE)),
    ),
    "still out of reach": Fault(
        2,
        ("could not be reached from east from 20:00 to 24:00, and still cannot.",),
        lines("destination", "east", put(range(20, 24), **LEFT_ALONE)),
    ),
    "backlog": Fault(
        2,
        ("96,000 messages wait in queue archive at north, 1,600 hours of work at the present",),
        lines("queue", "north", gauges(range(20, 24), ready=96_000.0, readers=4.0)),
    ),
}
"""Messages that do not come, or are not worked off."""

HALF = range(12, 24)
NEGATIVE = {"counters": {"enqueued": -5, "received": 60}}
MORE = {
    "slow for an hour": Fault(
        1,
        ("Waiting in queue archive at north took up to ",),
        lines("queue", "north", longer("wait_us", 15, 200)),  # 1.02 ** 200 is 52
    ),
    "slower for an hour": Fault(0, (), lines("queue", "north", longer("wait_us", 15, 100))),
    "three hours ahead": Fault(
        1,
        ("By the times of dialogs the clock of west is 2.98 h or more ahead of that of east",),
        dialogs("west", 3 * HOUR),
    ),
    "three hours behind": Fault(
        1,
        ("By the times of dialogs the clock of east is 3 h or more ahead of that of west",),
        dialogs("west", -3 * HOUR),
    ),
    "clock of a peer": Fault(
        1,
        ("The clock of TCP://west:4022 differed from that of east by +3 h",),
        lines("destination", "east", gauges(DAY_HOURS, clock_ahead_s=10_800.0)),
    ),
    "renamed": Fault(
        1,
        ("12 dialogs had two names of one service: warehouse at east is depot at west.",),
        renamed("west", "depot", HALF),
    ),
    "negative": Fault(
        1,
        ("2 lines were set aside because of negative counts",),
        lines("queue", "north", put((7, 8), **NEGATIVE)),
    ),
    "another time": Fault(
        1,
        ("1 segment was set aside whole: north",),
        land=dated("north", 30),
        rest=1,
    ),
    "boot id used again": Fault(
        1,
        ("Several boots have one boot id at north: missing lines cannot be noticed.",),
        add=again("north", 12),
    ),
    "boot id of two": Fault(
        1,
        ("Several boots have one boot id at east, north",),
        add=copied("north", "east"),
    ),
    "sent again": Fault(
        1,
        ("north sent 2,400 fragments again, 20% of what it sent.",),
        lines(
            "instance",
            "north",
            counters(retransmitted=100, transport_fragments_sent=500),
            broker="",
        ),
    ),
    "duplicates": Fault(
        1,
        ("north received 2,400 fragments that it had already, 20% of what it received.",),
        lines("instance", "north", counters(duplicates=100, fragments_received=500), broker=""),
    ),
    "some duplicates": Fault(
        0,
        (),
        lines("instance", "north", counters(duplicates=40, fragments_received=500), broker=""),
    ),
    "dropped": Fault(
        1,
        ("north dropped 240 fragments that arrived, 2% of them, most of them because of stale.",),
        lines("instance", "north", counters(dropped_stale=10, fragments_received=500), broker=""),
    ),
    "not passed on": Fault(
        1,
        ("north did not pass on 240 fragments, 10% of what it was to pass on",),
        lines(
            "instance", "north", counters(forward_dropped_hops=10, forward_received=100), broker=""
        ),
    ),
    "too many dialogs": Fault(
        1,
        ("Broker main of north refused 24 dialogs: a user or a peer has too many.",),
        lines("instance", "north", counters(dialogs_refused=1), broker="main"),
    ),
    "refused connections": Fault(
        1,
        ("north refused 240 connections because of a limit.",),
        lines("instance", "north", counters(refused_peers_total=10), broker=""),
    ),
    "certificate": Fault(
        2,
        ("A certificate of north expires in 9 days.",),
        lines("instance", "north", gauges(own_certificate_days=9.2), broker=""),
    ),
    "filling disk": Fault(
        2,
        ("The disk of north is full in ",),
        lines("instance", "north", gauges(disk_free_bytes=2e9), broker=""),
    ),
}
"""Times, counts and names that cannot be, and what a machine runs out of."""

ALONE = TRAFFIC | MORE | AWAY | EVENTS | FOUND | LOGS | STATE
