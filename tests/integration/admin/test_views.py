"""Every view: its columns, its values, its pages, and that it takes no lock (VIEW, OBJ-47)."""

import re
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from brokerd.admin.views.columns import COLUMNS
from brokerd.broker.window import WindowOptions
from brokerd.client.outcomes import Park, Retry
from brokerd.client.session import Session
from brokerd.clock import SECOND
from brokerd.errors import BrokerError, InvalidArgument
from brokerd.ids import parse, show
from brokerd.maintenance.ticks import Pass
from brokerd.model import CONFIGURATION_NOTICE, END_DIALOG, POST_EVENT_NOTIFICATION
from brokerd.protocol.frames import Fragment
from brokerd.storage.rows import listings
from brokerd.telemetry.status import InstanceStatus, concerns
from tests.integration.instance.second_broker import EAST, arrival
from tests.integration.one_daemon import OBJECTS, START, WAITING, Daemon, live_of, play
from tests.integration.scenarios import scenario
from tests.integration.shorthand import take
from tests.unit.objects.test_validation import XSD

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "programming-model.md"


async def talk(session: Session, *bodies: bytes) -> bytes:
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    for body in bodies:
        await session.send(handle, body, "Ask")
    return handle


async def far(daemon: Daemon, session: Session, *bodies: bytes) -> bytes:
    """A dialog whose messages stay in the transmission queue."""
    handle = await session.begin_dialog("urn:desk", "urn:nowhere", "talk")
    for body in bodies:
        await session.send(handle, body, "Ask")
    await daemon.pass_time(1)
    return handle


# Columns.


def named_in(rule: str) -> set[str]:
    """Words of a rule that look like columns."""
    text = SPEC.read_text()
    (line,) = re.findall(rf"^- \*\*{rule}\*\* (.*)$", text, re.MULTILINE)
    return set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", line))


@pytest.mark.rule("VIEW-1", "MON-7")
def test_columns_of_conversation_endpoints_are_those_of_the_table() -> None:
    table = SPEC.read_text().partition("**VIEW-1**")[2].partition("**VIEW-2**")[0]
    listed = [
        name
        for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"[a-z]+(?:_[a-z]+)*", row.replace("+", ""))
        if row != "Column"
    ]
    assert list(COLUMNS["conversation_endpoints"]) == listed


@pytest.mark.parametrize(
    ("rule", "view", "otherwise"),
    [
        pytest.param("VIEW-2", "conversation_groups", set(), marks=pytest.mark.rule("VIEW-2")),
        pytest.param(
            "VIEW-3", "transmission_queue", set(), marks=pytest.mark.rule("VIEW-3", "MON-4")
        ),
        pytest.param(
            "VIEW-4",
            "service_queues",
            {"activation_procedure", "execute_as_principal_id", "run_as"},
            marks=pytest.mark.rule("VIEW-4"),
        ),
        pytest.param("VIEW-6", "queue_monitors", set(), marks=pytest.mark.rule("VIEW-6")),
        pytest.param("VIEW-7", "activated_tasks", set(), marks=pytest.mark.rule("VIEW-7")),
        pytest.param("VIEW-16", "error_events", set(), marks=pytest.mark.rule("VIEW-16")),
        pytest.param("VIEW-15", "activation_decisions", set(), marks=pytest.mark.rule("VIEW-15")),
        pytest.param("VIEW-9", "conversation_priorities", set(), marks=pytest.mark.rule("VIEW-9")),
        pytest.param("VIEW-10", "brokers", set(), marks=pytest.mark.rule("VIEW-10")),
        pytest.param(
            "VIEW-11",
            "event_notifications",
            {"backing_off", "events", "service_name", "broker_instance"},
            marks=pytest.mark.rule("VIEW-11"),
        ),
    ],
)
def test_columns_are_those_of_the_rule(rule: str, view: str, otherwise: set[str]) -> None:
    several = {name for name in COLUMNS[view] if "_" in name}
    assert named_in(rule) - {view} - otherwise <= several
    text = SPEC.read_text().partition(f"**{rule}**")[2].partition("\n")[0]
    words = set(re.findall(r"[a-z_]+", text))
    unknown = set(COLUMNS[view]) - words - otherwise - {"broker_id", "spid"}
    assert unknown == set()


@pytest.mark.rule("VIEW-2", "VIEW-3", "VIEW-4", "VIEW-8", "VIEW-10", "VIEW-12", "VIEW-13")
@scenario
async def test_every_view_answers_with_its_columns(daemon: Daemon, session: Session) -> None:
    await talk(session, b"ask")
    await far(daemon, session, b"away")
    handler = {"handler": "tests.integration.handlers:idle", "status": "on"}
    await session.alter("queue", "spare", activation=handler)
    for view, columns in COLUMNS.items():
        for row in await session.view(view):
            assert tuple(row) == columns
    assert [view for view in COLUMNS if not await session.view(view)] == [
        "parked_groups",
        "activated_tasks",
        "retained_messages",
        "conversation_priorities",
        "remote_service_bindings",
        "event_notifications",
        "connections",
        "destinations",
        "endpoint",
        "grants",
        "forwarded_messages",
        "principals",
    ]


# Values.


@pytest.mark.rule("VIEW-1", "VIEW-8")
@scenario
async def test_an_endpoint_shows_what_it_is_and_since_when(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"one", b"two")
    await daemon.pass_time(60)
    (mine,) = await session.view(
        "conversation_endpoints", where={"conversation_handle": show(handle)}
    )
    (other,) = await session.view("conversation_endpoints", where={"is_initiator": False})
    assert mine["conversation_id"] == other["conversation_id"]
    assert (mine["state"], mine["state_desc"]) == ("CO", "CONVERSING")
    assert (mine["service_id"], mine["far_service"]) == ("urn:desk", "urn:shop")
    assert mine["service_contract_id"] == "talk"
    assert mine["far_broker_instance"] == show(daemon.broker.broker_id)
    assert (mine["send_sequence"], other["receive_sequence"]) == (2, 2)
    assert (mine["unread_count"], other["unread_count"]) == (0, 2)
    assert mine["created_at"] == pytest.approx(START, abs=SECOND)
    assert mine["end_dialog_sequence"] == mine["system_sequence"] == -1
    (got, _) = await session.receive("shop", autocommit=True)
    await session.end(got.handle)
    (mine,) = await session.view("conversation_endpoints")
    assert mine["state"] == "DI"
    assert mine["state_since"] == mine["last_activity_at"] > mine["created_at"]
    assert mine["unread_count"] == 1  # the EndDialog


@pytest.mark.rule("VIEW-1")
@scenario
async def test_the_values_of_every_column_of_an_endpoint(daemon: Daemon, session: Session) -> None:
    """All of the target's endpoint, and what differs in the initiator's."""
    await session.create("priority", "asked", level=7, local_service="urn:shop")
    began = daemon.clock.utc()
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk", lifetime=3600)
    for body in (b"one", b"two"):
        await session.send(handle, body, "Ask")
    await daemon.pass_time(10)
    (got, _) = await session.receive("shop", autocommit=True)
    await session.set_timer(got.handle, 500)
    await session.send(handle, b"three", "Ask")
    times = ("created_at", "state_since", "last_activity_at", "dialog_timer", "lifetime")
    (row,) = await session.view("conversation_endpoints", where={"service_id": "urn:shop"})
    created, since, active, timer, lifetime = (row.pop(name) for name in times)
    here = show(daemon.broker.broker_id)
    assert row == {
        **{name: None for name in COLUMNS["conversation_endpoints"] if name not in times},
        "conversation_handle": show(got.handle),
        "conversation_id": show(got.conversation_id),
        "is_initiator": False,
        "service_contract_id": "talk",
        "service_id": "urn:shop",
        "conversation_group_id": show(got.group_id),
        "state": "CO",
        "state_desc": "CONVERSING",
        "far_service": "urn:desk",
        "far_broker_instance": here,
        "send_sequence": 0,
        "receive_sequence": 3,
        "receive_sequence_frag": 0,
        "end_dialog_sequence": -1,
        "system_sequence": -1,
        "is_system": False,
        "priority": 7,
        "unread_count": 1,
        "pending_send_count": 0,
    }
    assert created == since == pytest.approx(began, abs=SECOND)
    assert active == pytest.approx(began + 10 * SECOND, abs=SECOND)
    assert timer == pytest.approx(began + 510 * SECOND, abs=SECOND)
    assert lifetime == pytest.approx(began + 3600 * SECOND, abs=SECOND)
    (row,) = await session.view("conversation_endpoints", where={"service_id": "urn:desk"})
    assert (row["conversation_handle"], row["is_initiator"]) == (show(handle), True)
    assert (row["priority"], row["send_sequence"], row["receive_sequence"]) == (5, 3, 0)
    await daemon.switch("shop", on=False)
    await session.end(handle)
    (row,) = await session.view("conversation_endpoints", where={"service_id": "urn:desk"})
    assert (row["state"], row["state_desc"]) == ("DO", "DISCONNECTED_OUTBOUND")
    assert row["end_dialog_sequence"] == row["system_sequence"] == 3
    assert row["pending_send_count"] == 1


@pytest.mark.rule("VIEW-1")
@scenario
async def test_an_endpoint_that_failed_shows_its_error(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"one")
    await session.end(handle, 17, "no stock")
    (other,) = await session.view("conversation_endpoints", where={"state": "ER"})
    assert (other["error_code"], other["error_text"]) == (17, "no stock")


@pytest.mark.rule("VIEW-1", "VIEW-3", "VIEW-10", "XMT-19")
@scenario
async def test_a_message_that_waits_shows_why(daemon: Daemon, session: Session) -> None:
    handle = await far(daemon, session, b"x" * 70_000)
    await session.end(handle, 5, "never mind")
    (row,) = await session.view("transmission_queue")
    assert row["is_conversation_error"]
    assert row["message_type_name"] == "urn:brokerd:Error"
    handle = await far(daemon, session, b"x" * 70_000)
    (row,) = await session.view("transmission_queue", where={"conversation_handle": show(handle)})
    assert (row["status_key"], row["ssb_code"]) == ("local_service_missing", 9796)
    assert row["transmission_status"] == "a route leads to this instance, which has no such service"
    assert row["status_since"] is not None
    assert (row["fragments_total"], row["fragments_acked"]) == (3, 0)
    assert row["to_service_name"] == "urn:nowhere"
    assert row["from_service_name"] == "urn:desk"
    assert row["message_body"] is None
    (row,) = await session.view(
        "transmission_queue", where={"conversation_handle": show(handle)}, bodies=True
    )
    assert row["message_body"] == b"x" * 70_000
    (endpoint,) = await session.view("conversation_endpoints", where={"state": "CO"})
    assert endpoint["pending_send_count"] == 1


@pytest.mark.rule("VIEW-3")
@scenario
async def test_the_values_of_every_column_of_what_waits(daemon: Daemon, session: Session) -> None:
    await session.create("priority", "asks", level=3, local_service="urn:desk")
    began = daemon.clock.utc()
    pinned = show(bytes(range(16)))
    handle = await session.begin_dialog("urn:desk", "urn:nowhere", "talk", broker_id=parse(pinned))
    await session.send(handle, b"ask", "Ask")
    await session.end(handle)
    await daemon.pass_time(1)
    rows = await session.view("transmission_queue", bodies=True)
    times = ("enqueue_time", "status_since", "last_attempt_at", "next_attempt_at", "attempts")
    for row in rows:
        enqueued, since, last, following, attempts = (row.pop(name) for name in times)
        assert enqueued == pytest.approx(began, abs=SECOND)
        assert began <= since <= began + SECOND
        assert attempts > 0
        assert last <= daemon.clock.utc() < following
    said = {
        "conversation_handle": show(handle),
        "to_service_name": "urn:nowhere",
        "to_broker_instance": pinned,
        "from_service_name": "urn:desk",
        "service_contract_name": "talk",
        "is_conversation_error": False,
        "message_headers": None,
        "transmission_status": rows[0]["transmission_status"],
        "status_key": rows[0]["status_key"],
        "ssb_code": rows[0]["ssb_code"],
        "priority": 3,
        "effective_priority": 5,
        "destination": None,
        "fragments_total": 1,
        "fragments_acked": 0,
    }
    ask = {"message_sequence_number": 0, "message_type_name": "Ask", "message_body": b"ask"}
    end = {"message_sequence_number": 1, "message_type_name": END_DIALOG, "message_body": None}
    assert rows == [
        said | ask | {"is_end_of_dialog": False},
        said | end | {"is_end_of_dialog": True},
    ]
    assert rows[0]["transmission_status"]


@pytest.mark.rule("VIEW-3")
@scenario
async def test_a_page_with_bodies_is_bounded(daemon: Daemon, session: Session) -> None:
    await far(daemon, session, *[b"x" * 1_500_000] * 5)
    page = await session.view_page("transmission_queue", bodies=True)
    assert len(page.rows) == 2
    assert len(await session.view("transmission_queue", bodies=True)) == 5


@pytest.mark.rule("VIEW-2")
@scenario
async def test_a_group_shows_who_has_locked_it(daemon: Daemon, session: Session) -> None:
    handle = await talk(session, b"one", b"two")
    group = live_of(daemon, handle).peer.group.group_id  # type: ignore[union-attr]
    chosen = {"conversation_group_id": show(group)}
    (row,) = await session.view("conversation_groups", where=chosen)
    assert (row["service_id"], row["ready_messages"]) == ("urn:shop", 2)
    assert row["locked_by_session"] is row["locked_since"] is None
    await daemon.pass_time(9)
    async with session.transaction() as tx:
        await tx.receive("shop", 1)
        await daemon.pass_time(4)
        (row,) = await session.view("conversation_groups", where=chosen)
        assert row["locked_by_session"].startswith("client ")
        assert row["locked_since"] == pytest.approx(daemon.clock.utc() - 4 * SECOND, abs=SECOND)
        assert row["ready_messages"] == 1


@pytest.mark.rule("VIEW-2", "GRP-15")
@scenario
async def test_a_group_has_the_level_of_those_with_messages(
    daemon: Daemon, session: Session
) -> None:
    for name, level, contract in (("low", 2, "talk"), ("high", 9, "other")):
        await session.create(
            "priority", name, level=level, contract=contract, local_service="urn:desk"
        )
    low = await talk(session, b"one")
    shown = await session.view("conversation_endpoints", where={"conversation_handle": show(low)})
    group = parse(shown[0]["conversation_group_id"])
    await session.begin_dialog("urn:desk", "urn:shop", "other", related_group=group)
    chosen = {"conversation_group_id": show(group)}

    async def shown_level() -> object:
        (row,) = await session.view("conversation_groups", where=chosen)
        return row["effective_priority"]

    assert await shown_level() is None
    (asked,) = await session.receive("shop", autocommit=True)
    await session.send(asked.handle, b"answer", "Answer")
    assert await shown_level() == 2
    async with session.transaction() as tx:
        await tx.receive("desk")
        assert await shown_level() is None
        await tx.send(asked.handle, b"another answer", "Answer")
    await daemon.restart()
    async with await daemon.session() as again:
        (row,) = await again.view("conversation_groups", where=chosen)
        assert row["effective_priority"] == 2


@pytest.mark.rule("VIEW-10", "OBJ-55")
@scenario
async def test_a_broker_shows_whether_it_honors_priorities(
    daemon: Daemon, session: Session
) -> None:
    await session.apply(EAST)

    async def honoring() -> dict[str, object]:
        rows = await session.view("brokers", where={"name": ["main", "east"]})
        return {row["name"]: row["is_honor_broker_priority_on"] for row in rows}

    assert await honoring() == {"main": False, "east": False}
    await session.alter("broker", "main", honor_priority="on")
    assert await honoring() == {"main": True, "east": False}
    await session.alter("broker", "main", honor_priority="off")
    assert await honoring() == {"main": False, "east": False}


@pytest.mark.of_files("it damages a store file")
@pytest.mark.rule("VIEW-10")
def test_the_values_of_every_column_of_a_broker(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.apply({**EAST, "broker": {"name": "east", "default_encryption": "on"}})
            (row,) = await session.view("brokers", where={"name": "east"})
            known = daemon.instance.brokers["east"].broker_id
            said = {"name": "east", "broker_id": show(known), "role": None}
            usual = {"disabled_reason": None, "start_failure": "", "next_start_attempt": None}
            options = {"is_honor_broker_priority_on": False, "is_default_encryption_on": True}
            assert row == said | usual | options | {"epoch": 1, "is_broker_enabled": True}
        await daemon.restart()
        async with await daemon.session() as session:
            rows = await session.view("brokers")
            assert {row["name"]: row["epoch"] for row in rows} == {"msdb": 2, "main": 2, "east": 2}
            flags = {row["name"]: row["is_default_encryption_on"] for row in rows}
            assert (flags["main"], flags["east"]) == (False, True)
        await daemon.stop()
        (tmp_path / "east.db").write_bytes(b"a shopping list")
        await daemon.start()
        async with await daemon.session() as session:
            (row,) = await session.view("brokers", where={"name": "east"})
            assert row.pop("start_failure")
            assert row.pop("next_start_attempt") > daemon.clock.utc()
            assert row == said | dict.fromkeys(("disabled_reason", "epoch", *options)) | {
                "is_broker_enabled": False
            }

    play(program, tmp_path)


@pytest.mark.rule("VIEW-13", "PER-22")
@scenario
async def test_the_values_of_every_column_of_a_pass(daemon: Daemon, session: Session) -> None:
    ticker = daemon.instance.parts.ticker
    at = [one.name for one, _ in ticker._passes].index("removals")

    async def takes_seven_seconds() -> int:
        await daemon.clock.sleep_until(daemon.loop.time() + 7)
        return 3

    passes = ticker._passes
    passes[at] = Pass("removals", 1, takes_seven_seconds, apart=True), passes[at][1]
    began = daemon.clock.utc()
    await daemon.pass_time(19)  # it begins at 5 s, is skipped at 10 s, and begins again at 15 s
    (row,) = await session.view("periodic_tasks", where={"task": "removals"})
    last_start, duration = row.pop("last_start"), row.pop("last_duration")
    assert last_start == pytest.approx(began + 15 * SECOND, abs=SECOND)
    assert duration == pytest.approx(7, abs=0.1)
    assert row == {
        "task": "removals",
        "period": 1,
        "runs": 1,
        "skips": 1,
        "done_total": 3,
        "last_error": "",
    }
    await daemon.pass_time(10)
    passes[at] = Pass("removals", 1, lambda: 0), passes[at][1]


@pytest.mark.rule("VIEW-4", "PBT-20")
@scenario
async def test_a_queue_shows_its_options_and_its_depth(daemon: Daemon, session: Session) -> None:
    await talk(session, b"one", b"two")
    await daemon.switch("spare", on=False)
    rows = {row["name"]: row for row in await session.view("service_queues")}
    assert rows["shop"]["ready_count"] == 2
    assert rows["shop"]["oldest_ready_at"] >= START
    assert rows["spare"]["is_receive_enabled"] is rows["spare"]["is_enqueue_enabled"] is False
    assert rows["desk"]["activation_procedure"] is None


@pytest.mark.rule("VIEW-4")
@scenario
async def test_the_values_of_every_column_of_a_queue(daemon: Daemon, session: Session) -> None:
    handler = {"handler": "tests.integration.handlers:idle", "max_readers": 3, "run_as": "shop"}
    began = daemon.clock.utc()
    await session.create(
        "queue",
        "made",
        status="off",
        retention="on",
        poison_handling="off",
        activation={**handler, "status": "off"},
    )
    (row,) = await session.view("service_queues", where={"name": "made"})
    assert row.pop("status_changed_at") == pytest.approx(began, abs=SECOND)
    actor = str(row.pop("status_changed_by"))
    assert actor.startswith("client ")
    assert row == {
        "name": "made",
        "max_readers": 3,
        "activation_procedure": "tests.integration.handlers:idle",
        "execute_as_principal_id": "shop",
        "is_activation_enabled": False,
        "is_receive_enabled": False,
        "is_enqueue_enabled": False,
        "is_retention_enabled": True,
        "is_poison_message_handling_enabled": False,
        "status_reason": "created_off",
        **dict.fromkeys(
            ("culprit_conversation_id", "culprit_message_id", "last_error", "culprit_rollbacks")
        ),
        **dict.fromkeys(("ready_count", "parked_count", "retained_count", "incomplete_count"), 0),
        **dict.fromkeys(("message_bytes", "max_messages", "max_bytes")),
        "is_full": False,
        "refused_count": 0,
        "oldest_ready_at": None,
        "rollback_streak": 0,
        "monitor_absent_reason": "activation is off",
    }
    await daemon.pass_time(9)
    await session.alter("queue", "made", status="on", activation={"status": "on"})
    (row,) = await session.view("service_queues", where={"name": "made"})
    assert (row["is_activation_enabled"], row["is_receive_enabled"]) == (True, True)
    assert (row["status_reason"], row["status_changed_by"]) == ("manual", actor)
    assert row["status_changed_at"] == pytest.approx(began + 9 * SECOND, abs=SECOND)
    assert row["monitor_absent_reason"] is None


@pytest.mark.rule("VIEW-8", "OBJ-12")
@scenario
async def test_the_catalog_can_be_seen(daemon: Daemon, session: Session) -> None:
    (service,) = await session.view("services", where={"name": "urn:shop"})
    assert service == {
        "name": "urn:shop",
        "service_id": "urn:shop",
        "principal_id": None,
        "service_queue_id": "shop",
    }
    usages = await session.view("service_contract_usages", where={"service_id": "urn:shop"})
    assert [row["service_contract_id"] for row in usages] == ["DEFAULT", "talk"]
    assert [row["name"] for row in await session.view("service_contracts")] == [
        "DEFAULT",
        "other",
        "talk",
        CONFIGURATION_NOTICE,
        POST_EVENT_NOTIFICATION,
    ]
    sent_by = {
        row["message_type_id"]: (row["is_sent_by_initiator"], row["is_sent_by_target"])
        for row in await session.view(
            "service_contract_message_usages", where={"service_contract_id": "talk"}
        )
    }
    assert sent_by == {
        "Ask": (True, False),
        "Answer": (False, True),
        "Both": (True, True),
        "Nudge": (True, True),
    }
    schemas = {"valid_json": "{}", "valid_xml": XSD, "well_formed_json": None}
    for kind, schema in {**schemas, "well_formed_xml": None}.items():
        text = {} if schema is None else {"schema": schema}
        await session.create("message_type", kind, validation=kind, **text)
    kinds = {row["name"]: row for row in await session.view("service_message_types")}
    assert kinds["Ask"] == {
        "name": "Ask",
        "message_type_id": "Ask",
        "principal_id": None,
        "validation": "N",
        "validation_desc": "none",
        "schema_id": None,
    }
    letters = {
        "Nudge": "E",
        "DEFAULT": "N",
        **dict.fromkeys(("valid_json", "well_formed_json"), "J"),
    }
    letters |= dict.fromkeys(("valid_xml", "well_formed_xml"), "X")
    for name, letter in letters.items():
        assert kinds[name]["validation"] == letter
        if name not in ("Nudge", "DEFAULT"):
            assert (kinds[name]["validation_desc"], kinds[name]["schema_id"]) == (name, None)


@pytest.mark.rule("VIEW-12", "VIEW-6", "VIEW-7", "MON-15")
@scenario
async def test_activation_can_be_seen(daemon: Daemon, session: Session) -> None:
    queue = {"name": "shop", "activation": {"handler": "tests.integration.handlers:idle"}}
    objects = dict(OBJECTS)
    objects["queue"] = [queue if one["name"] == "shop" else one for one in OBJECTS["queue"]]
    await session.apply(objects)
    await daemon.pass_time(5)
    await talk(session, b"one")
    await daemon.pass_time(0.5)
    (counters,) = await session.view("activation_counters")
    assert counters["tasks_started_total"] == counters["procedures_invoked_total"] == 1
    await daemon.pass_time(5)
    (counters,) = await session.view("activation_counters")
    assert counters["tasks_started_per_second"] == pytest.approx(0.2, abs=0.01)
    (monitor,) = await session.view("queue_monitors", where={"queue_id": "shop"})
    assert monitor["broker_id"] == show(daemon.broker.broker_id)
    assert monitor["last_activated_time"] is not None


@pytest.mark.rule("PER-19", "DLP-25", "MON-9", "VIEW-13")
@scenario
async def test_each_tick_that_goes_on_with_a_clean_up_is_counted(
    daemon: Daemon, session: Session
) -> None:
    async def seen() -> tuple[object, object]:
        (row,) = await session.view("broker_statistics")
        (removals,) = await session.view("periodic_tasks", where={"task": "removals"})
        return row["clean_ups_resumed_total"], removals["done_total"]

    await daemon.pass_time(6)
    before, removed = await seen()
    for more in (1, 2):
        await talk(session, b"1", b"2", b"3")
        assert len(await take(session, "shop")) == 3
        await daemon.pass_time(6)
        assert await seen() == (before + more, removed + 3 * more)  # type: ignore[operator]
    await daemon.pass_time(30)
    assert await seen() == (before + 2, removed + 6)  # type: ignore[operator]


@pytest.mark.rule("VIEW-6", "VIEW-4", "ACT-3", "ACT-5", "ACT-28")
@scenario
async def test_a_queue_without_monitor_is_not_among_them_and_says_why(
    daemon: Daemon, session: Session
) -> None:
    """Each of the reasons for which a queue has none; the broker's own queues are in no view."""
    handler = {"handler": "tests.integration.handlers:idle"}

    async def seen() -> tuple[list[object], dict[object, object]]:
        queues = await session.view("service_queues")
        return (
            [row["queue_id"] for row in await session.view("queue_monitors")],
            {row["name"]: row["monitor_absent_reason"] for row in queues},
        )

    none = "the queue has no activation"
    assert await seen() == ([], {"desk": none, "shop": none, "spare": none})
    for name in ("desk", "shop", "spare"):
        await session.alter("queue", name, activation={**handler, "status": "on"})
    assert await seen() == (["desk", "shop", "spare"], {"desk": None, "shop": None, "spare": None})
    await session.alter("queue", "desk", activation={**handler, "status": "off"})
    await session.alter("queue", "spare", status="off")
    expected = {"desk": "activation is off", "shop": None, "spare": "the queue is off"}
    assert await seen() == (["shop"], expected)
    await session.admin.disable()
    expected["shop"] = "delivery is off in the broker"
    assert await seen() == ([], expected)


@pytest.mark.rule("PBT-17", "VIEW-13", "PER-21")
@scenario
async def test_periodic_work_that_fails_is_seen(daemon: Daemon, session: Session) -> None:
    def broken() -> int:
        raise RuntimeError("the sweep is broken")

    passes = daemon.instance.parts.ticker._passes
    names = [one.name for one, _ in passes]
    at = names.index("removals")
    passes[at] = Pass("removals", 1, broken), passes[at][1]
    await daemon.pass_time(5.5)
    rows = {row["task"]: row for row in await session.view("periodic_tasks")}
    assert rows["removals"]["last_error"] == "RuntimeError: the sweep is broken"
    every_tick = [row for row in rows.values() if row["period"] == 1]
    assert {row["runs"] for row in every_tick} == {1}
    assert {row["last_error"] for row in every_tick if row["task"] != "removals"} == {""}
    assert rows["transmitter"]["period"] == 2
    assert rows["transmitter"]["last_start"] is None
    assert rows["removals"]["last_start"] is not None
    failed = [f for event, f in daemon.log.lines if f.get("subclass") == "pass_failed"]
    assert [one["pass_name"] for one in failed] == ["removals"]
    status = msgspec.convert(await session.status(), InstanceStatus, strict=False)
    assert concerns(status) == [
        "periodic work removals fails: RuntimeError: the sweep is broken; brokerd periodic ls"
    ]
    assert {one.broker for one in status.queues} == {"main"}


@pytest.mark.of_files("it damages a store file")
@pytest.mark.rule("VIEW-10")
def test_a_broker_that_cannot_be_opened_shows_when_it_is_tried_next(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await session.apply(EAST)
        await daemon.stop()
        (tmp_path / "east.db").write_bytes(b"a shopping list")
        await daemon.start()
        async with await daemon.session() as session:
            await daemon.pass_time(7)
            (row,) = await session.view("brokers", where={"name": "east"})
            assert "east.db is not an SQLite file" in row["start_failure"]
            wait = row["next_start_attempt"] - daemon.clock.utc()
            assert wait == pytest.approx(18 * SECOND, abs=SECOND)

    play(program, tmp_path)


@pytest.mark.rule("VIEW-1", "DLG-35")
@scenario
async def test_the_timer_of_a_dialog_is_shown(daemon: Daemon, session: Session) -> None:
    handle = await talk(session)
    await session.set_timer(handle, 60, "named")
    (row,) = await session.view("conversation_endpoints")
    assert row["dialog_timer"] is None
    now = daemon.broker.clock.utc()
    await session.set_timer(handle, 90)
    (row,) = await session.view("conversation_endpoints")
    assert row["dialog_timer"] - now == pytest.approx(90 * SECOND, abs=SECOND)


# Pages and filters.


@pytest.mark.rule("CLP-90", "VIEW-1", "OBJ-47")
@scenario
async def test_pages_give_every_row_once(daemon: Daemon, session: Session) -> None:
    handles = {show(await talk(session, b"one")) for _ in range(30)}
    seen: list[str] = []
    after, pages = None, 0
    while True:
        page = await session.view_page("conversation_endpoints", limit=7, after=after)
        assert len(page.rows) <= 7
        seen += [row["conversation_handle"] for row in page.rows]
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert pages == 9
    assert len(seen) == len(set(seen)) == 60
    assert handles < set(seen)
    assert len(await session.view("conversation_groups", limit=50)) == 50
    assert len(await session.view("conversation_groups")) == 60
    names = [row["task"] for row in await session.view("periodic_tasks", limit=4)]
    behind = await session.view_page("periodic_tasks", limit=100, after='["dispatcher"]')
    assert names[3] == "closed_endpoints"
    assert behind.rows[0]["task"] == "duplicate_brokers"


@pytest.mark.rule("CLP-90")
@scenario
async def test_rows_are_chosen_by_columns_and_age(daemon: Daemon, session: Session) -> None:
    old = await talk(session, b"one")
    await far(daemon, session, b"away")
    await daemon.pass_time(100)
    await talk(session, b"two")
    await far(daemon, session, b"away")

    async def count(view: str, **chosen: Any) -> int:
        return len(await session.view(view, **chosen))

    assert await count("conversation_endpoints", older_than=50) == 3
    assert await count("conversation_endpoints", where={"service_id": "urn:shop"}) == 2
    assert await count("conversation_endpoints", where={"service_id": ["urn:shop", "no"]}) == 2
    where = {"state": ["CO"], "far_service": "urn:nowhere"}
    assert await count("conversation_endpoints", where=where, older_than=50) == 1
    assert await count("transmission_queue", older_than=50) == 1
    assert await count("transmission_queue", where={"to_service_name": "urn:shop"}) == 0
    assert await count("conversation_endpoints", where={"conversation_handle": show(old)}) == 1


@pytest.mark.rule("CLP-90")
def test_a_page_looks_at_so_many_rows_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listings.SCAN == 100_000
    monkeypatch.setattr(listings, "SCAN", 10)

    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            for _ in range(15):
                await talk(session, b"one")
            await far(daemon, session, b"away")
            where = {"far_service": "urn:nowhere"}
            page = await session.view_page("conversation_endpoints", where=where)
            assert page.rows == []
            assert page.next == "10"
            assert len(await session.view("conversation_endpoints", where=where)) == 1

    play(program, tmp_path)


@pytest.mark.rule("CLP-90")
@scenario
async def test_what_a_view_does_not_have_is_refused(daemon: Daemon, session: Session) -> None:
    for name, options, said in (
        ("nothing", {}, "there is no view 'nothing'"),
        ("services", {"where": {"colour": 1}}, "view services has no column 'colour'"),
        ("services", {"older_than": 1}, "have no age"),
        ("services", {"after": "x"}, "no end of a page"),
        ("conversation_groups", {"older_than": 1}, "have no age"),
        ("conversation_endpoints", {"after": "-1"}, "no end of a page"),
        ("conversation_endpoints", {"where": {"unread_count": 0}}, "cannot be chosen"),
        ("conversation_endpoints", {"where": {"conversation_id": "x"}}, "is not an id"),
        ("conversation_endpoints", {"where": {"state": 1.5}}, "a text or an integer"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            await session.view_page(name, **options)


@pytest.mark.rule("OBJ-47", "VIEW-1")
@scenario
async def test_looking_takes_no_lock_and_sees_what_is_committed(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"one")
    async with session.transaction() as tx:
        (message,) = await tx.receive("shop")
        await tx.end(message.handle)
        for view in COLUMNS:
            await session.view(view)
        states = [row["state"] for row in await session.view("conversation_endpoints")]
        assert states == ["CO", "CO"]
        (row,) = await session.view("service_queues", where={"name": "shop"})
        assert row["ready_count"] == 1
    await session.end(handle)


# Depth.


@pytest.mark.rule("PBT-20")
@pytest.mark.parametrize("seed", range(12))
def test_depth_equals_a_full_scan_at_every_commit(seed: int, tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        rng = Random(seed)
        session = await daemon.session()
        open_ones = [await talk(session) for _ in range(4)]
        for step in range(60):
            with suppress(BrokerError):
                await one_verb(rng, session, open_ones)
            await check_depth(daemon)
            if step % 20 == 19:
                await session.close()
                await daemon.restart()
                session = await daemon.session()
                await check_depth(daemon)
        await session.close()

    play(program, tmp_path, seed=seed, window=WindowOptions(window_messages=6, page_messages=3))


@pytest.mark.rule("PBT-20", "PBT-3", "RCV-34")
@pytest.mark.parametrize("mode", ["park", "disable_queue"])
@pytest.mark.parametrize("seed", range(5))
def test_depth_equals_a_full_scan_while_groups_are_held(
    seed: int, mode: str, tmp_path: Path
) -> None:
    """Parked, waiting for their next attempt, released, discarded or ended; some are larger than
    the window."""

    async def program(daemon: Daemon) -> None:
        queues = [
            {**one, "poison_mode": mode, "poison_threshold": 3 if mode == "park" else 9}
            if one["name"] == "shop"
            else one
            for one in OBJECTS["queue"]
        ]
        daemon.objects = {**OBJECTS, "queue": queues}
        rng = Random(seed)
        session = await daemon.session()
        await session.apply(daemon.objects)
        open_ones = [await talk(session) for _ in range(4)]
        for step in range(60):
            with suppress(BrokerError):
                await one_verb_about_held_groups(rng, daemon, session, open_ones)
            await check_depth(daemon)
            if step % 20 == 19:
                await session.close()
                await daemon.restart()
                session = await daemon.session()
                await check_depth(daemon)
                await session.alter("queue", "shop", status="on")
                await hold(session, 1, Park("before all of it was counted"))
                await check_depth(daemon)
        await session.close()

    play(program, tmp_path, seed=seed, window=WindowOptions(window_messages=6, page_messages=3))


async def move_one(rng: Random, session: Session) -> None:
    """Move a conversation of the shop into the group of another one."""
    there = await session.view("conversation_endpoints", where={"service_id": "urn:shop"})
    if len(there) > 1:
        one, other = rng.sample(there, k=2)
        group = parse(other["conversation_group_id"])
        await session.move(parse(one["conversation_handle"]), group)


async def hold(session: Session, most: int, outcome: Park | Retry | None) -> None:
    """Receive so many messages, and roll back with this outcome."""
    tx = session.transaction()
    await tx.receive("shop", most)
    tx.rollback(outcome)
    await session.status()


async def one_verb_about_held_groups(
    rng: Random, daemon: Daemon, session: Session, open_ones: list[bytes]
) -> None:
    """Something of `one_verb`, or something that holds a group or frees it."""
    what = rng.random()
    held = [group for group, one in daemon.broker.held.by_id.items() if one.holds]
    if what < 0.3:
        outcome = rng.choice([None, Park("by hand"), Retry(rng.randint(1, 9)), Retry(2)])
        await hold(session, rng.randint(1, 4), outcome)
    elif what < 0.4:
        await daemon.pass_time(rng.randint(1, 5))
    elif what < 0.6 and held:
        group, admin = rng.choice(held), session.admin
        await rng.choice(
            [
                lambda: admin.release_group(group),
                lambda: admin.discard_group(group, everything=rng.random() < 0.5),
                lambda: admin.end_group(group, 7, "gone"),
                lambda: admin.edit_group(group, b"edited", as_it_is=True),
            ]
        )()
    elif what < 0.63:
        await session.alter("queue", "shop", status="on")
    elif what < 0.68:
        async with session.transaction() as tx:
            handle = rng.choice(open_ones)
            for number in range(15):  # more than memory has room for
                await tx.send(handle, b"%d" % number, "Ask")
    elif what < 0.76:
        await move_one(rng, session)
    else:
        await one_verb(rng, session, open_ones)


@pytest.mark.rule("PBT-20", "VIEW-4", "DLP-11", "VIEW-1")
@scenario
async def test_messages_of_which_a_part_is_missing_are_counted(
    daemon: Daemon, session: Session
) -> None:
    def part(fragment: int, sequence: int = 0) -> Fragment:
        message = msgspec.structs.replace(
            arrival(daemon.broker.broker_id), to_service="urn:shop", from_service="urn:far"
        )
        return msgspec.structs.replace(message, fragment=fragment, fragments=3, sequence=sequence)

    async def incomplete() -> int:
        (row,) = await session.view("service_queues", where={"name": "shop"})
        return int(row["incomplete_count"])

    daemon.instance.parts.dispatcher.arrived([part(0)])
    await daemon.pass_time(1)
    assert await incomplete() == 1
    await daemon.restart()
    assert await incomplete() == 1
    dispatcher = daemon.instance.parts.dispatcher
    dispatcher.arrived([part(2)])
    dispatcher.arrived([part(1, 4)])
    await daemon.pass_time(1)
    (endpoint,) = await session.view("conversation_endpoints")
    assert endpoint["state"] == "SI"
    assert (endpoint["receive_sequence"], endpoint["receive_sequence_frag"]) == (0, 1)
    assert endpoint["first_out_of_order_sequence"] == 0
    assert endpoint["last_out_of_order_sequence"] == 4
    assert endpoint["last_out_of_order_frag"] == 1
    dispatcher.arrived([part(1)])
    await daemon.pass_time(1)
    assert await incomplete() == 0
    (row,) = await session.view("service_queues", where={"name": "shop"})
    assert row["ready_count"] == 1
    dispatcher.arrived([part(0, 1)])
    await daemon.pass_time(1)
    assert await incomplete() == 1
    await session.admin.clean_up_endpoints("test")
    assert await incomplete() == 0


async def one_verb(rng: Random, session: Session, open_ones: list[bytes]) -> None:
    """Something that a client may do, sometimes rolled back."""
    handle = rng.choice(open_ones)
    what = rng.random()
    if what < 0.45:
        async with session.transaction() as tx:
            for _ in range(rng.randint(1, 3)):
                await tx.send(handle, bytes(rng.randint(0, 9)), "Ask")
    elif what < 0.75:
        tx = session.transaction()
        messages = await tx.receive("shop", rng.randint(1, 4))
        if messages and rng.random() < 0.3:
            await tx.end(messages[0].handle)
        if rng.random() < 0.4:
            tx.rollback()
        else:
            await tx.commit()
    elif what < 0.85:
        await session.end(handle)
        open_ones.remove(handle)
        open_ones.append(await talk(session))
    elif what < 0.92:
        await session.end(handle, 3, "gone")
        open_ones.remove(handle)
        open_ones.append(await talk(session))
    else:
        states = [rng.choice(["CO", "ER", "DI"])]
        await session.admin.clean_up_endpoints("test", states=states, batch=3)


async def check_depth(daemon: Daemon) -> None:
    """What is counted is what is there."""
    await daemon.pass_time(0.01)
    broker = daemon.broker
    broker.store.sweep()
    asked = (
        f"SELECT queue_key, group_id, count(*) FROM {WAITING} JOIN conversation_endpoints"
        " USING (endpoint_key) GROUP BY 1, 2"
    )
    scanned = await broker.store.run(lambda connection: connection.execute(asked).fetchall())
    held = {group for group, one in broker.held.by_id.items() if one.holds}
    for queue in broker.queues.values():
        depth = {True: 0, False: 0}
        for key, group, count in scanned:
            if key == queue.queue.key:
                depth[group in held] += count
        assert (queue.depth.ready, queue.depth.parked) == (depth[False], depth[True]), queue.name


# Routes.


@pytest.mark.rule("MON-3", "RTE-60", "RTE-64", "RTE-65")
@scenario
async def test_routes_of_the_broker_and_of_the_instance(daemon: Daemon, session: Session) -> None:
    far = show(bytes(range(16)))
    await session.create("route", "far", service="urn:far", broker=far, address="TCP://Far")
    await session.create("route", "soon", service="urn:soon", address="TCP://soon", lifetime=60)
    await session.create("instance_route", "on", service="urn:on", address="TCP://next:4023")
    rows = {row["name"]: row for row in await session.view("routes")}
    assert set(rows) == {"AutoCreatedLocal", "far", "soon"}
    assert (rows["far"]["remote_service_name"], rows["far"]["broker_instance"]) == ("urn:far", far)
    assert rows["far"]["address"] == "tcp://far:4022"
    assert rows["far"]["lifetime"] is rows["far"]["mirror_address"] is None
    assert rows["AutoCreatedLocal"]["address"] == "LOCAL"
    lifetime = rows["soon"]["lifetime"]
    assert START < lifetime <= START + 61 * SECOND
    assert not rows["soon"]["is_expired"]
    await daemon.pass_time(61)
    (soon,) = await session.view("routes", where={"name": "soon"})
    assert soon["is_expired"]
    instance = {row["name"]: row["address"] for row in await session.view("instance_routes")}
    assert instance == {"AutoCreatedLocal": "LOCAL", "on": "tcp://next:4023"}
    text = (SPEC.parent / "network.md").read_text()
    (rule,) = re.findall(r"^- MON-3 (.*)$", text, re.MULTILINE)
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", rule))
    assert named == {column for column in COLUMNS["routes"] if "_" in column}
