"""The event log: names, fields, repeats summed up, and what it never lets through."""

import ast
import io
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import structlog

from brokerd.clock import SECOND, Instant
from brokerd.config.settings import LogFormat, LogLevel, LogSettings, LogTime
from brokerd.ids import BootId, InstanceId
from brokerd.telemetry import logs
from brokerd.telemetry.logs import EventLog, configure


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> Instant:
        return Instant(1_700_000_000 * SECOND + round(self.now * SECOND))

    async def sleep_until(self, deadline: float) -> None:
        self.now = deadline


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Iterator[HandClock]:
    yield HandClock()
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def make(
    clock: HandClock, to: io.StringIO | None = None, settings: LogSettings | None = None
) -> EventLog:
    return configure(
        settings or LogSettings(),
        clock=clock,
        instance="east",
        instance_id=InstanceId(b"i" * 16),
        boot_id=BootId(b"b" * 16),
        terminal=to,
    )


def lines(to: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in to.getvalue().splitlines()]


# Names.


@pytest.mark.rule("MON-16")
def test_the_list_of_events_is_the_table_of_the_chapter() -> None:
    chapter = Path(__file__).parents[3] / "docs" / "spec" / "network.md"
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| .*?\((\d+)\) \| ([^|]*) \|", chapter.read_text(), re.MULTILINE
    )
    table = {
        name: (int(number), frozenset(re.findall(r"[a-z_]+", subclasses)))
        for name, number, subclasses in rows
    }
    assert len(table) == 15
    own = {name: (number, logs.SUBCLASSES[name]) for name, number in logs.SSB_EVENT_IDS.items()}
    assert own == table


@pytest.mark.rule("MON-16")
def test_events_without_a_class_in_service_broker_are_those_of_the_rule() -> None:
    chapter = Path(__file__).parents[3] / "docs" / "spec" / "network.md"
    rule = re.search(r"^- MON-16 (.*)$", chapter.read_text(), re.MULTILINE)
    assert rule is not None
    named = {
        name: frozenset(subclasses.replace(" ", "").split(",")) if subclasses else frozenset()
        for name, subclasses in re.findall(r"`(broker\.[a-z_]+)`(?: \(([a-z_, ]+)\))?", rule[1])
    }
    own = {n: s for n, s in logs.SUBCLASSES.items() if n not in logs.SSB_EVENT_IDS}
    assert own == named


# Lines.

_LISTS = ("logs.py", "log_events.py")
NOT_WRITTEN = {
    logs.AUDIT_LOGIN: logs.SUBCLASSES[logs.AUDIT_LOGIN],
    logs.AUDIT_CONVERSATION: logs.SUBCLASSES[logs.AUDIT_CONVERSATION] - {"error_from_elsewhere"},
}
"""What comes with logins and dialog security."""
MADE_OF_PARTS = logs.SUBCLASSES[logs.REMOTE_ACK]
"""What no source has as one word."""


@pytest.mark.rule("MON-16")
def test_every_subclass_of_the_table_is_written_somewhere() -> None:
    folder = Path(logs.__file__).parents[1]
    sources = [one for one in folder.rglob("*.py") if one.name not in _LISTS]
    words = set(re.findall(r'"([a-z_]+)"', "\n".join(one.read_text() for one in sources)))
    for event, subclasses in logs.SUBCLASSES.items():
        unwritten = subclasses - NOT_WRITTEN.get(event, frozenset()) - MADE_OF_PARTS
        assert unwritten <= words, event


@pytest.mark.rule("MON-16")
def test_no_line_has_a_subclass_that_the_table_does_not_list() -> None:
    pairs = set()
    for source in Path(logs.__file__).parents[1].rglob("*.py"):
        for call in ast.walk(ast.parse(source.read_text())):
            if isinstance(call, ast.Call) and call.args:
                event = ast.unparse(call.args[0]).strip("'")
                given = {one.arg: one.value for one in call.keywords}.get("subclass")
                if isinstance(given, ast.Constant):
                    pairs.add((vars(logs).get(event, event), given.value))
    listed = {(event, one) for event, known in logs.SUBCLASSES.items() for one in known}
    assert {one for one in pairs if one[0] in logs.SUBCLASSES} <= listed
    assert ("broker.store", "slow") in pairs


@pytest.mark.rule("MON-16")
def test_every_event_of_the_table_is_written_somewhere() -> None:
    folder = Path(logs.__file__).parents[1]
    sources = [one.read_text() for one in folder.rglob("*.py") if one.name not in _LISTS]
    names = {
        name: event
        for name, event in vars(logs).items()
        if isinstance(event, str) and event in logs.SUBCLASSES
    }
    unwritten = {
        name
        for name, event in names.items()
        if not any(re.search(rf'\b{name}\b|"{re.escape(event)}"', one) for one in sources)
    }
    assert "REMOTE_ACK" in names
    assert unwritten == set()


@pytest.mark.rule("MON-16")
def test_a_line_is_one_json_object_with_the_common_fields(clock: HandClock) -> None:
    to = io.StringIO()
    make(clock, to).log.info(logs.STORE, subclass="opened", broker="main", path=Path("/x"))
    assert lines(to) == [
        {
            "time": "2023-11-14T22:13:20.000000Z",
            "severity": "info",
            "event": "broker.store",
            "subclass": "opened",
            "broker": "main",
            "path": "/x",
            "instance": "east",
            "instance_id": "69696969-6969-6969-6969-696969696969",
            "boot_id": "62" * 16,
        }
    ]


def test_events_of_service_broker_carry_its_number(clock: HandClock) -> None:
    to = io.StringIO()
    make(clock, to).log.warning(logs.TRANSMISSION, status_key="no_route")
    assert lines(to)[0]["ssb_event_id"] == 142


def test_any_logger_of_the_process_writes_there(clock: HandClock) -> None:
    to = io.StringIO()
    make(clock, to)
    with structlog.contextvars.bound_contextvars(connection_id=7):
        structlog.get_logger().info(logs.CONNECTION, subclass="accept")
    assert lines(to)[0]["connection_id"] == 7


def test_time_may_be_seconds_since_1970(clock: HandClock) -> None:
    to = io.StringIO()
    clock.now = 0.25
    make(clock, to, LogSettings(time=LogTime.EPOCH)).log.info(logs.DAEMON, subclass="ready")
    assert lines(to)[0]["time"] == 1_700_000_000.25


@pytest.mark.rule("MON-16")
def test_what_occurs_once_per_message_is_left_out_at_level_info(clock: HandClock) -> None:
    to = io.StringIO()
    make(clock, to).log.debug(logs.CONVERSATION, subclass="send")
    assert to.getvalue() == ""
    make(clock, to, LogSettings(level=LogLevel.DEBUG)).log.debug(logs.CONVERSATION, subclass="send")
    assert lines(to)[0]["severity"] == "debug"


@pytest.mark.rule("SX-14")
@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.PRETTY])
def test_no_value_can_forge_a_line_or_move_the_cursor(clock: HandClock, form: LogFormat) -> None:
    to = io.StringIO()
    evil = 'a\n{"event": "x"}\x1b[2J\r\u202e'
    make(clock, to, LogSettings(format=form)).log.info(logs.DAEMON, subclass="ready", text=evil)
    assert len(to.getvalue().splitlines()) == 1
    assert "\x1b" not in to.getvalue()


@pytest.mark.rule("SX-14")
@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.PRETTY])
@pytest.mark.parametrize(
    "evil",
    # All characters of Unicode with the property Bidi_Control, then others that show nothing.
    [
        *"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
        *"\x7f\x9b\u00ad\u200b\u2028\u2029\ufeff\U000e0041",
    ],
    ids=lambda one: f"U+{ord(one):04X}",
)
def test_no_character_turns_or_hides_the_text_of_a_line(
    clock: HandClock, form: LogFormat, evil: str
) -> None:
    to = io.StringIO()
    log = make(clock, to, LogSettings(format=form)).log
    try:
        int(f"a{evil}b")
    except ValueError:
        log.exception(logs.DAEMON, subclass="ready", text=f"é{evil}x", many=[f"{evil}y"])
    assert evil not in to.getvalue()
    assert "é" in to.getvalue()
    if form is LogFormat.JSON:
        assert (lines(to)[0]["text"], lines(to)[0]["many"]) == (f"é{evil}x", [f"{evil}y"])


@pytest.mark.parametrize(
    ("form", "terminal", "pretty"),
    [
        (LogFormat.AUTO, True, True),
        (LogFormat.AUTO, False, False),
        (LogFormat.JSON, True, False),
        (LogFormat.PRETTY, False, True),
    ],
)
def test_lines_are_pretty_on_a_terminal(
    clock: HandClock, form: LogFormat, terminal: bool, pretty: bool
) -> None:
    to = Terminal() if terminal else io.StringIO()
    make(clock, to, LogSettings(format=form)).log.info(logs.DAEMON, subclass="ready")
    assert to.getvalue().startswith("{") is not pretty
    assert ("broker.daemon ready" in to.getvalue()) is pretty


def test_an_exception_is_written_with_its_traceback(clock: HandClock) -> None:
    to = io.StringIO()
    log = make(clock, to).log
    try:
        int("none")
    except ValueError:
        log.exception(logs.TICK, subclass="pass_failed", pass_name="x")
    assert "ValueError: invalid literal" in str(lines(to)[0]["exception"])


def test_a_file_is_appended_to(clock: HandClock, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "events.jsonl"
    for subclass in ("starting", "ready"):
        log = make(clock, settings=LogSettings(file=path))
        log.log.info(logs.DAEMON, subclass=subclass)
        log.close()
    written = [json.loads(line)["subclass"] for line in path.read_text().splitlines()]
    assert written == ["starting", "ready"]


@pytest.mark.rule("FD-5")
@pytest.mark.rule("REL-38", "MON-16")
def test_the_level_changes_for_loggers_that_were_bound_before(clock: HandClock) -> None:
    to = io.StringIO()
    log = make(clock, to)
    bound = log.log.bind(queue="q")
    for level, expected in ((LogLevel.DEBUG, 1), (LogLevel.WARNING, 1), (LogLevel.DEBUG, 2)):
        log.set_level(level)
        bound.debug(logs.STORE, subclass="opened")
        bound.info(logs.STORE, subclass="full") if level is LogLevel.WARNING else None
        assert len(lines(to)) == expected


@pytest.mark.rule("REL-38")
def test_a_file_is_opened_anew_and_kept_where_it_cannot_be(
    clock: HandClock, tmp_path: Path
) -> None:
    path = tmp_path / "a.log"
    log = make(clock, settings=LogSettings(file=path))
    path.rename(tmp_path / "a.log.1")
    log.reopen(path)
    log.log.info(logs.STORE, subclass="opened")
    with pytest.raises(OSError, match="directory"):
        log.reopen(tmp_path)
    log.log.info(logs.STORE, subclass="full")
    log.close()
    assert (tmp_path / "a.log.1").read_text() == ""
    assert [json.loads(line)["subclass"] for line in path.read_text().splitlines()] == [
        "opened",
        "full",
    ]


def test_a_full_disk_costs_lines_not_the_daemon(clock: HandClock) -> None:
    log = make(clock, settings=LogSettings(file=Path("/dev/full")))
    log.log.info(logs.DAEMON, subclass="ready")
    assert log.lost == 1
    log.close()


# Repeats.


def refused_connection(log: EventLog, address: str = "tcp://x:1") -> None:
    log.log.warning(logs.CONNECTION, subclass="connect_failed", address=address, reason="refused")


@pytest.mark.rule("MON-11")
def test_identical_events_are_logged_at_once_then_summed_per_minute(clock: HandClock) -> None:
    to = io.StringIO()
    log = make(clock, to)
    for _ in range(5):
        refused_connection(log)
        clock.now += 10
    assert len(lines(to)) == 1
    assert log.summarise() == 0
    clock.now = 60
    assert log.summarise() == 1
    _, summary = lines(to)
    assert (summary["repeated"], summary["severity"], summary["address"]) == (
        4,
        "warning",
        "tcp://x:1",
    )
    refused_connection(log)
    assert len(lines(to)) == 3


@pytest.mark.rule("MON-11")
@pytest.mark.parametrize(
    "other",
    [
        {"subclass": "closed"},
        {"address": "tcp://y:1"},
        {"reason": "timeout"},
        {"broker": "second"},
        {"conversation_id": "c"},
        {"route": "r"},
        {"listener": "clients"},
        {"queue": "q"},
        {"pass_name": "p"},
    ],
)
def test_events_that_differ_in_what_they_are_about_are_no_repeats(
    clock: HandClock, other: dict[str, str]
) -> None:
    to = io.StringIO()
    log = make(clock, to).log
    fields = {"subclass": "connect_failed", "address": "tcp://x:1", "reason": "refused"}
    log.warning(logs.CONNECTION, **fields)
    log.warning(logs.CONNECTION, **(fields | other))
    assert len(lines(to)) == 2


@pytest.mark.rule("MON-11")
def test_a_quiet_minute_makes_no_summary_and_forgets(clock: HandClock) -> None:
    to = io.StringIO()
    log = make(clock, to)
    refused_connection(log)
    clock.now = 61
    assert log.summarise() == 0
    refused_connection(log)
    assert ["repeated" in line for line in lines(to)] == [False, False]


def test_milestones_and_debug_lines_are_never_summed(clock: HandClock) -> None:
    to = io.StringIO()
    log = make(clock, to, LogSettings(level=LogLevel.DEBUG)).log
    for _ in range(3):
        log.info(logs.DAEMON, subclass="ready")
        log.debug(logs.CONVERSATION, subclass="send", conversation_id="c")
    assert len(lines(to)) == 6


def test_what_is_held_back_is_written_at_the_end(clock: HandClock) -> None:
    to = io.StringIO()
    log = make(clock, to)
    refused_connection(log)
    refused_connection(log)
    log.close()
    assert lines(to)[-1]["repeated"] == 1


def test_memory_for_repeats_is_bounded_and_nothing_is_swallowed(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_KEYS", 10)
    to = io.StringIO()
    log = make(clock, to, LogSettings(summary=timedelta(hours=1)))
    for number in range(50):
        refused_connection(log, f"tcp://x:{number + 1}")
        refused_connection(log, f"tcp://x:{number + 1}")
    log.close()
    told = sum(1 + int(str(line.get("repeated", 0))) for line in lines(to))
    assert told >= 50
    events = [line for line in lines(to) if "repeated" not in line]
    repeated = sum(int(str(line["repeated"])) for line in lines(to) if "repeated" in line)
    assert len(events) + repeated == 100
