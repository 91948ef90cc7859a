"""Faults to be planted one a day in a month, and what the report of that day has to say of each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.month import FAULTS, HOUR, Fault, Line, Month, cut_off, lost, midnight
from tests.spark.segments import SECOND

DAY_HOURS = range(8, 14)


def old(name: str, *also: str, days: int = 1, rule: str = "REL-31") -> Fault:
    """A fault that `month.FAULTS` has."""
    one = FAULTS[name]
    return Fault(one.status, (one.text, *also), when=name, days=days, rule=rule)


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
    "garbage": old("garbage", rule="BI-L1"),
    "version": old("version", rule="BI-L2"),
    "twice": old("twice", rule="BI-L3"),
    "hour": old("hour", "20 messages cannot be judged", rule="BI-L3"),
    "clock": old("clock", rule="BI-L3"),
    "copied": old("copied", rule="BI-L9"),
    "torn": Fault(1, ("1 segment was set aside whole: north",), land=tear("north"), rule="BI-L9"),
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
        rule="BI-L10",
    ),
    "history lost": Fault(
        2,
        ("west reported a dialog whose other side lost what it had acknowledged",),
        add=event("west", "broker.history_lost", reason="restored", conversation_id=lost(99)),
        rule="BI-L10",
    ),
    "two brokers": Fault(
        2,
        ("west reported that two instances deliver for one broker",),
        add=event("west", "broker.duplicate_broker", "seen", severity="error"),
        rule="BI-L10",
    ),
    "logins": Fault(
        1,
        ("5,000 logins of peers failed at east",),
        add=event(
            "east", "audit.broker_login", "authentication_failure", times=5000, error="no key"
        ),
        days=2,
        rule="BI-L11",
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
        rule="BI-L11",
    ),
    "rolled back": Fault(
        2,
        ("720 messages of queue archive at north went back to it by a rollback",),
        lines("queue", "north", counters(rolled_back=30)),
        rule="BI-L11",
    ),
    "loop": Fault(
        1,
        ("New today, 3 times: daemon loop_blocked at north: reader N of archive",),
        add=event("north", "broker.daemon", "loop_blocked", times=3, task="reader 4 of archive"),
        rule="BI-L10",
    ),
    "no master key": Fault(
        1,
        ("New today, 1 time: certificate no_master_key at north: missing",),
        add=event("north", "broker.certificate", "no_master_key", problem="missing"),
        rule="BI-L10",
    ),
}
"""What daemons report as events."""

ALONE = EVENTS | FOUND | LOGS | STATE
