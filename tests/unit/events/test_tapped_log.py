"""The event log as a source of events: which lines have a name, and which are never told."""

import pytest

from brokerd.clock import SystemClock
from brokerd.events.error_events import KEPT, ErrorEvents
from brokerd.events.tapped_log import TappedLog
from brokerd.ids import show
from brokerd.model import EVENT_NOTIFICATION
from brokerd.telemetry import logs


class Kept:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def debug(self, event: str, **fields: object) -> None:
        self.lines.append(("debug", event, fields))

    def info(self, event: str, **fields: object) -> None:
        self.lines.append(("info", event, fields))

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append(("warning", event, fields))

    def error(self, event: str, **fields: object) -> None:
        self.lines.append(("error", event, fields))


def told_of(event: str, level: str = "info", **fields: object) -> list[tuple[object, ...]]:
    told: list[tuple[object, ...]] = []

    def happened(name: str, broker: str, *, queue: str | None, **facts: object) -> None:
        told.append((name, broker, queue, facts))

    kept = Kept()
    log = TappedLog(kept, ErrorEvents(SystemClock()))
    getattr(log, level)(event, **fields)  # nobody listens yet
    log.happened = happened
    getattr(log, level)(event, **fields)
    assert kept.lines == [(level, event, fields)] * 2
    return told


@pytest.mark.rule("EVT-10", "MON-16")
@pytest.mark.parametrize(
    ("event", "subclass", "names"),
    [
        (logs.CONVERSATION, "end_with_error", ["BROKER_CONVERSATION"]),
        (logs.CONVERSATION, "begin_dialog", ["BROKER_CONVERSATION"]),
        (logs.CONVERSATION_GROUP, "drop", ["BROKER_CONVERSATION_GROUP"]),
        (logs.ACTIVATION, "started", ["BROKER_ACTIVATION"]),
        (logs.ACTIVATION, "failed_to_start", ["BROKER_ACTIVATION", "ACTIVATION_FAILED"]),
        (logs.MESSAGE_UNDELIVERABLE, "sequenced", ["BROKER_MESSAGE_UNDELIVERABLE"]),
        (logs.QUEUE_DISABLED, None, ["BROKER_QUEUE_DISABLED"]),
        (logs.QUEUE_STATUS, None, ["QUEUE_STATUS_CHANGED"]),
        (logs.PARKING, "parked", ["GROUP_PARKED"]),
        (logs.PARKING, "released", []),
        (logs.DUPLICATE_BROKER, "seen", ["DUPLICATE_BROKER_SEEN"]),
        (logs.DUPLICATE_BROKER, "over", []),
        (logs.CONVERSATION, "send", []),
        (logs.CONVERSATION, "received_sequenced", []),
        (logs.DAEMON, "ready", []),
    ],
)
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_classes_of_the_log_have_names(
    event: str, subclass: str | None, names: list[str], level: str
) -> None:
    fields: dict[str, object] = {"broker": "main", "queue": "q", "reason": "r"}
    if subclass is not None:
        fields["subclass"] = subclass
    facts = {key: value for key, value in fields.items() if key not in ("broker", "queue")}
    assert told_of(event, level, **fields) == [(name, "main", "q", facts) for name in names]


@pytest.mark.rule("EVT-10")
def test_an_event_that_cannot_be_delivered_is_no_event() -> None:
    fields = {"broker": "main", "subclass": "sequenced"}
    assert told_of(logs.MESSAGE_UNDELIVERABLE, message_type="Order", **fields)
    assert not told_of(logs.MESSAGE_UNDELIVERABLE, message_type=EVENT_NOTIFICATION, **fields)


def test_a_line_of_no_broker_is_told_to_nobody() -> None:
    assert told_of(logs.QUEUE_STATUS, queue="q") == []
    assert told_of(logs.QUEUE_STATUS, broker="main")[0][:3] == (
        "QUEUE_STATUS_CHANGED",
        "main",
        None,
    )


@pytest.mark.rule("VIEW-16", "MON-20")
@pytest.mark.parametrize(
    ("event", "level", "kept"),
    [
        (logs.CONVERSATION, "info", True),
        (logs.CONVERSATION, "debug", False),
        (logs.MESSAGE_CLASSIFY, "info", True),
        (logs.MESSAGE_UNDELIVERABLE, "warning", True),
        (logs.LOST_MESSAGES, "warning", True),
        (logs.HISTORY_LOST, "error", True),
        (logs.DAEMON, "error", False),
    ],
)
def test_what_went_wrong_with_a_dialog_is_kept(event: str, level: str, kept: bool) -> None:
    log = TappedLog(Kept(), ErrorEvents(SystemClock()))
    about = {"conversation_id": bytes(16).hex(), "code": 7, "reason": "no", "broker": "main"}
    about |= {"role": "target", "service": "shop"}
    getattr(log, level)(event, subclass="what", **about)
    getattr(log, level)(event, reason="of no dialog")
    rows = log.errors.rows()
    assert len(rows) == kept
    for row in rows:
        del row["at"]
        assert {name: value for name, value in row.items() if value is not None} == {
            "number": 1,
            "event": event,
            "subclass": "what",
            "broker_name": "main",
            "conversation_id": show(bytes(16)),
            "is_initiator": False,
            "service_name": "shop",
            "code": 7,
            "reason": "no",
        }


@pytest.mark.rule("VIEW-16", "MON-20")
def test_a_description_is_a_reason_where_no_other_is_given() -> None:
    events = ErrorEvents(SystemClock())
    lost: dict[str, object] = {
        "conversation_id": bytes(16).hex(),
        "description": "sold out",
    }
    events.record(logs.LOST_MESSAGES, lost)
    events.record(logs.LOST_MESSAGES, {**lost, "reason": "ended"})
    assert [row["reason"] for row in events.rows()] == ["sold out", "ended"]


@pytest.mark.rule("VIEW-16")
def test_the_latest_are_kept_and_no_more() -> None:
    events = ErrorEvents(SystemClock())
    for _ in range(KEPT + 5):
        events.record(logs.CONVERSATION, {"conversation_id": bytes(16).hex()})
    assert [row["number"] for row in events.rows()] == list(range(6, KEPT + 6))
