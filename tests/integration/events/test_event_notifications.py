"""Event notifications: what happens in a broker, told on dialogs that heal, on virtual time."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.clock import show_instant
from brokerd.errors import (
    ActivationConflict,
    BrokerError,
    InUse,
    ObjectExists,
    ObjectsRefused,
    ReservedMessageType,
    ServiceNotFound,
)
from brokerd.ids import Handle, show
from brokerd.model import END_DIALOG, EVENT_QUEUE, EVENT_SERVICE, POST_EVENT_NOTIFICATION
from brokerd.model import EVENT_NOTIFICATION as TOLD
from brokerd.protocol.transitions import State
from brokerd.telemetry.logs import CONVERSATION, EVENT_NOTIFICATION, QUEUE_DISABLED, QUEUE_STATUS
from tests.integration.one_daemon import OBJECTS, Daemon, play, rows
from tests.integration.scenarios import given, scenario

OPS = {"name": "ops", "queue": "spare", "contracts": [POST_EVENT_NOTIFICATION]}
SERVICES = [*OBJECTS["service"], OPS]


FIELDS = {"conversation_id", "handle", "role", "group", "state", "priority"}
"""What each event about a dialog says of it (EVT-10)."""


def notification(*events: str, **given: Any) -> dict[str, Any]:
    return {"name": "watch", "events": list(events), "service": "ops", **given}


async def declare(daemon: Daemon, session: Session, *told: dict[str, Any], **given: Any) -> None:
    """Make the broker have these notifications."""
    objects = {**OBJECTS, "service": SERVICES, **given, "event_notification": list(told)}
    daemon.objects = objects
    await session.apply(objects)
    await daemon.pass_time(0.1)


async def take(session: Session, queue: str = "spare") -> list[Message]:
    found: list[Message] = []
    while more := await session.receive(queue, autocommit=True):
        found += more
    return found


async def told(session: Session, queue: str = "spare") -> list[dict[str, Any]]:
    """What subscribers of that queue have been told."""
    found = [one for one in await take(session, queue) if one.message_type == TOLD]
    return [orjson.loads(one.body or b"") for one in found]


async def names(session: Session) -> list[str]:
    return [one["event"] for one in await told(session)]


async def view(session: Session) -> list[dict[str, Any]]:
    return [one for one in await session.view("event_notifications") if isinstance(one, dict)]


def activation(daemon: Daemon, queue: str = "shop", ready: int = 1) -> None:
    """What the queue monitor says when another reader would be useful (ACT-34, ACT-38)."""
    daemon.instance.parts.events.happened(
        "QUEUE_ACTIVATION", "main", queue=queue, ready_messages=ready, oldest_ready_at=None
    )


async def fails(kind: type[BrokerError], asked: Awaitable[object]) -> BrokerError:
    with pytest.raises(kind) as caught:
        await asked
    return caught.value


def problems(daemon: Daemon) -> list[dict[str, object]]:
    return [fields for event, fields in daemon.log.lines if event == EVENT_NOTIFICATION]


# Declaring.


@pytest.mark.rule("EVT-1", "EVT-2", "EVT-3", "ACT-35", "ACT-37")
@scenario
async def test_what_a_notification_cannot_be(daemon: Daemon, session: Session) -> None:
    queues = [{"name": "busy", "activation": {"handler": "a:b"}}, *OBJECTS["queue"]]
    for wrong, said in [
        (notification("QUEUE_ACTIVATION"), "name the queue"),
        (notification("DROP_QUEUE", queue="shop"), "not about one queue"),
        (notification("DROP_QUEUE", queue="none"), 'no queue "none"'),
        (notification("DROP_QUEU"), 'did you mean "DROP_QUEUE"'),
        (notification(), "a list of names"),
        (notification("DROP_QUEUE", scope="queue"), "a queue is named exactly"),
        (notification("DROP_QUEUE", scope="server"), "none of instance, broker, queue"),
        (notification("DROP_QUEUE", service="urn:shop"), "does not accept"),
        (notification("DROP_QUEUE", service="nobody"), 'no service "nobody"'),
        (notification("DROP_QUEUE", service=""), "name the service"),
        (notification("DROP_QUEUE", broker="x"), "the id of a broker"),
        (notification("DROP_QUEUE", who="x"), "unknown key"),
        (notification("QUEUE_ACTIVATION", queue="busy"), "excludes this event"),
        (notification("QUEUE_ACTIVATION", queue="shop", activation_timeout="999ms"), "1s to 1d"),
        (notification("QUEUE_ACTIVATION", queue="shop", activation_timeout="25h"), "1s to 1d"),
        (notification("QUEUE_ACTIVATION", queue="shop", activation_timeout="soon"), "a duration"),
        (notification("DROP_QUEUE", activation_timeout="5s"), "goes with QUEUE_ACTIVATION only"),
        ({**notification("DROP_QUEUE"), "name": "urn:brokerd:x"}, "built in"),
    ]:
        asked = declare(daemon, session, wrong, queue=queues)
        assert said in (await fails(ObjectsRefused, asked)).message
    assert await rows(daemon, "event_notifications") == 0


@pytest.mark.rule("ACT-35", "ERR-9717", "SDK-4")
@scenario
async def test_a_queue_is_activated_from_within_or_from_without(
    daemon: Daemon, session: Session
) -> None:
    inside = {"handler": "tests.integration.handlers:idle", "status": "on"}
    told = notification("QUEUE_ACTIVATION", queue="shop")
    await declare(daemon, session)
    await session.alter("queue", "shop", activation={**inside, "status": "off"})
    await session.create("event_notification", **told)
    for asked in (
        session.alter("queue", "shop", activation={"status": "on"}),
        session.alter("queue", "shop", activation=inside),
    ):
        error = await fails(ActivationConflict, asked)
        assert error.ssb_code == 9717
        assert f'"{told["name"]}" is for QUEUE_ACTIVATION' in error.message
    await session.alter("queue", "shop", poison_handling="off")
    await session.drop("event_notification", str(told["name"]))
    await session.alter("queue", "shop", activation={"status": "on"})
    error = await fails(ActivationConflict, session.create("event_notification", **told))
    assert error.ssb_code == 9718
    two = {**daemon.objects, "event_notification": [told]}
    error = await fails(ActivationConflict, session.apply(two, ensure=True))
    assert "queue shop" in error.message
    assert await rows(daemon, "event_notifications") == 0


@pytest.mark.rule("EVT-1", "EVT-4", "VIEW-11")
@scenario
async def test_each_has_a_dialog_of_its_own_from_creation_until_it_is_dropped(
    daemon: Daemon, session: Session
) -> None:
    here = show(daemon.broker.broker_id)
    one = notification("DROP_QUEUE", "TRC_BROKER", broker="Current_Database")
    two = {**notification("QUEUE_ACTIVATION", queue="shop"), "name": "wake", "fan_in": "on"}
    await declare(daemon, session, one, two)
    second, first = await view(session)
    handles = {first["conversation_handle"], second["conversation_handle"]}
    assert len(handles) == 2
    assert first["dialog_state"] == second["dialog_state"] == "SO"
    for key, value in {
        "name": "wake",
        "scope": "queue",
        "queue": "shop",
        "events": ["QUEUE_ACTIVATION"],
        "service_name": "ops",
        "broker_instance": here,
        "fan_in": True,
        "last_sent_at": None,
        "failures": 0,
    }.items():
        assert second[key] == value
    for _ in range(2):
        activation(daemon)
        await daemon.pass_time(1)
    got = await take(session)
    assert [one.sequence for one in got] == [0, 1]
    assert {one.contract for one in got} == {POST_EVENT_NOTIFICATION}
    assert {row["conversation_handle"] for row in await view(session)} == handles
    assert (await view(session))[0]["last_sent_at"] is not None
    assert (await session.apply(daemon.objects)) == []
    await declare(daemon, session, one)
    (ended,) = await take(session)
    assert (ended.message_type, ended.handle) == (END_DIALOG, got[0].handle)
    await session.end(ended.handle)
    assert [row["name"] for row in await view(session)] == ["watch"]
    assert await rows(daemon, "event_dialogs") == 1
    assert await rows(daemon, "conversation_endpoints") == 1


@pytest.mark.rule("EVT-1", "EVT-4")
@scenario
async def test_an_altered_one_is_dropped_and_created_again(
    daemon: Daemon, session: Session
) -> None:
    await declare(daemon, session, notification("DROP_QUEUE"))
    (before,) = await view(session)
    change = notification("DROP_QUEUE", "CREATE_QUEUE")
    answer = await session.apply({**daemon.objects, "event_notification": [change]})
    assert [one["action"] for one in answer if isinstance(one, dict)] == ["replace"]
    await daemon.pass_time(0.1)
    (after,) = await view(session)
    assert after["events"] == ["CREATE_QUEUE", "DROP_QUEUE"]
    assert after["conversation_handle"] != before["conversation_handle"]
    assert await rows(daemon, "event_dialogs") == 1


@pytest.mark.rule("EVT-1", "EVT-4", "CLP-81")
@scenario
async def test_one_is_created_and_dropped_online(daemon: Daemon, session: Session) -> None:
    await declare(daemon, session)
    given = {"queue": "shop", "events": ["QUEUE_STATUS_CHANGED"], "service": "ops"}
    (made,) = await session.create("event_notification", "watch", **given)
    assert isinstance(made, dict)
    said = "event notification watch is created: QUEUE_STATUS_CHANGED of queue shop told to ops"
    assert made["sentence"] == said
    (shown,) = await session.objects("event_notification")
    assert shown == {"kind": "event_notification", "name": "watch", "scope": "queue", **given}
    await fails(ObjectExists, session.create("event_notification", "watch", **given))
    await session.alter("queue", "shop", status="off")
    await daemon.pass_time(1)
    assert await names(session) == ["QUEUE_STATUS_CHANGED"]
    await fails(InUse, session.drop("queue", "shop"))
    (row,) = await view(session)
    await session.alter("event_notification", "watch", fan_in="on")
    await daemon.pass_time(1)
    (after,) = await view(session)
    assert (after["fan_in"], row["fan_in"]) == (True, False)
    assert after["conversation_handle"] != row["conversation_handle"]
    await session.drop("event_notification", "watch")
    await session.alter("queue", "shop", status="on")
    await daemon.pass_time(1)
    assert await names(session) == []
    assert await view(session) == []


@pytest.mark.rule("EVT-3", "OBJ-27", "OBJ-31")
@scenario
async def test_nobody_but_the_broker_tells_of_events(daemon: Daemon, session: Session) -> None:
    await declare(daemon, session, notification("DROP_QUEUE"))
    begin = session.begin_dialog
    await fails(ReservedMessageType, begin("urn:desk", "ops", POST_EVENT_NOTIFICATION))
    await fails(ServiceNotFound, begin(EVENT_SERVICE, "urn:shop", "talk"))


@pytest.mark.rule("EVT-12")
@scenario
async def test_what_the_broker_has_for_itself_is_not_shown_among_the_objects(
    daemon: Daemon, session: Session
) -> None:
    await declare(daemon, session, notification("DROP_QUEUE"))
    assert EVENT_QUEUE in daemon.broker.queues
    for name in ("services", "service_queues", "queue_monitors"):
        shown = str(await session.view(name))
        assert EVENT_QUEUE not in shown
        assert EVENT_SERVICE not in shown
    assert EVENT_QUEUE not in str((await session.status())["queues"])
    assert EVENT_QUEUE not in {row.queue for row in daemon.instance.parts.figures.rows()}
    (dialog,) = await session.view("conversation_endpoints")
    assert isinstance(dialog, dict)
    assert (dialog["service_id"], dialog["is_system"]) == (EVENT_SERVICE, True)


@pytest.mark.rule("EVT-12", "MAN-15")
@scenario
async def test_a_bulk_clean_up_leaves_the_dialogs_of_the_broker_unless_they_are_named(
    daemon: Daemon, session: Session
) -> None:
    await declare(daemon, session, notification("DROP_QUEUE"))
    (before,) = await view(session)
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    await session.send(handle, b"ask", "Ask")
    done = await session.admin.clean_up_endpoints("a test")
    assert sum(done.removed.values()) == 2
    (group,) = await session.view("conversation_groups")
    assert (group["service_id"], group["is_system"]) == (EVENT_SERVICE, True)
    assert (await view(session))[0]["conversation_handle"] == before["conversation_handle"]
    done = await session.admin.clean_up_endpoints("a test", service=EVENT_SERVICE)
    assert sum(done.removed.values()) == 1
    await daemon.pass_time(30)
    (after,) = await view(session)
    assert after["dialog_state"] is not None
    assert after["conversation_handle"] != before["conversation_handle"]


@pytest.mark.rule("MAN-6", "EVT-12")
@scenario
async def test_a_broker_with_a_new_identifier_tells_on_a_new_dialog(
    daemon: Daemon, session: Session
) -> None:
    await declare(daemon, session, notification("QUEUE_ACTIVATION", queue="shop"))
    (before,) = await view(session)
    await session.admin.new_broker()
    await daemon.pass_time(30)
    (after,) = await view(session)
    assert after["conversation_handle"] not in (None, before["conversation_handle"])
    activation(daemon)
    await daemon.pass_time(1)
    assert await names(session) == ["QUEUE_ACTIVATION"]


@pytest.mark.rule("VIEW-11", "CLP-90")
@scenario
async def test_the_view_of_notifications_comes_in_pages_and_by_choice(
    daemon: Daemon, session: Session
) -> None:
    watching = [{**notification("DROP_QUEUE"), "name": f"n{number}"} for number in range(3)]
    await declare(daemon, session, *watching)
    page = await session.view_page("event_notifications", limit=2)
    assert [row["name"] for row in page.rows] == ["n0", "n1"]
    page = await session.view_page("event_notifications", limit=2, after=page.next)
    assert ([row["name"] for row in page.rows], page.next) == (["n2"], None)
    assert len(await session.view("event_notifications", where={"name": "n1"})) == 1


# What is told.


KINDS = (
    "MESSAGE_TYPE",
    "CONTRACT",
    "QUEUE",
    "SERVICE",
    "BROKER_PRIORITY",
    "ROUTE",
    "EVENT_NOTIFICATION",
)


@pytest.mark.rule("EVT-6", "EVT-11")
@scenario
async def test_what_a_broker_is_made_with_is_told_to_others_and_not_to_its_own(
    daemon: Daemon, session: Session
) -> None:
    await declare(daemon, session, notification("CREATE_SERVICE", scope="instance"))
    far = {**daemon.objects, "broker": {"name": "far", "default_encryption": "off"}}
    await session.apply(far)
    await daemon.pass_time(1)
    assert await names(session) == ["CREATE_SERVICE"] * len(SERVICES)
    async with await daemon.session(broker="far") as there:
        assert await names(there) == []
        await there.create("service", "urn:later", queue="shop")
        await daemon.pass_time(1)
        assert await names(there) == ["CREATE_SERVICE"]


@pytest.mark.rule("EVT-6", "EVT-11")
@scenario
async def test_objects_created_altered_and_dropped_are_told_once_that_is_committed(
    daemon: Daemon, session: Session
) -> None:
    watch = notification("DDL_SSB_EVENTS", "DDL_EVENT_NOTIFICATION_EVENTS")
    await declare(daemon, session, watch)
    assert await names(session) == []  # it hears of what came after it
    more: dict[str, Any] = {
        "message_type": [*OBJECTS["message_type"], {"name": "New"}],
        "contract": [*OBJECTS["contract"], {"name": "new", "types": {"New": "any"}}],
        "queue": [*OBJECTS["queue"], {"name": "new_q"}],
        "service": [*SERVICES, {"name": "urn:new", "queue": "new_q"}],
        "route": [{"name": "r", "service": "far", "address": "TCP://far:1"}],
        "priority": [{"name": "p", "level": 7, "contract": "talk"}],
    }
    await fails(ObjectsRefused, session.apply({**daemon.objects, **more, "contract": [{}]}))
    await daemon.pass_time(1)
    assert await names(session) == []
    other = {**notification("DROP_QUEUE"), "name": "other"}
    await declare(daemon, session, watch, other, **more)
    created = await told(session)
    assert [one["event"] for one in created] == [f"CREATE_{kind}" for kind in KINDS]
    assert (created[2]["object_type"], created[2]["object_name"]) == ("QUEUE", "new_q")
    assert created[2]["actor"].startswith("client ")
    assert "is created" in created[2]["change"]
    altered = {
        **more,
        "message_type": [*OBJECTS["message_type"], {"name": "New", "validation": "empty"}],
        "queue": [*OBJECTS["queue"], {"name": "new_q", "status": "off"}],
        "service": [*SERVICES, {"name": "urn:new", "queue": "new_q", "contracts": ["new"]}],
        "route": [{"name": "r", "service": "far", "address": "TCP://far:2"}],
        "priority": [{"name": "p", "level": 8, "contract": "talk"}],
    }
    await declare(daemon, session, watch, other, **altered)
    assert await names(session) == [
        f"ALTER_{kind}" for kind in ("MESSAGE_TYPE", "QUEUE", "SERVICE", "BROKER_PRIORITY", "ROUTE")
    ]
    replaced = {
        **altered,
        "contract": [*OBJECTS["contract"], {"name": "new", "types": {"New": "initiator"}}],
    }
    other = {**notification("DROP_QUEUE", "ALTER_QUEUE"), "name": "other"}
    await declare(daemon, session, watch, other, **replaced)
    assert sorted(await names(session)) == sorted(
        f"{verb}_{kind}"
        for verb in ("DROP", "CREATE")
        for kind in ("CONTRACT", "EVENT_NOTIFICATION")
    )
    await declare(daemon, session, watch)
    assert sorted(await names(session)) == sorted(f"DROP_{kind}" for kind in KINDS)


@pytest.mark.rule("EVT-9", "MON-16")
@scenario
async def test_a_queue_switched_by_hand_is_told_with_who_did_it(
    daemon: Daemon, session: Session
) -> None:
    queue = notification("QUEUE_STATUS_CHANGED", "BROKER_QUEUE_DISABLED", queue="shop")
    await declare(daemon, session, queue)
    await daemon.switch("shop", on=False)
    await daemon.switch("desk", on=False)
    await daemon.pass_time(1)
    (off,) = await told(session)
    for key, value in {
        "event": "QUEUE_STATUS_CHANGED",
        "instance": "daemon",
        "broker": "main",
        "broker_id": show(daemon.broker.broker_id),
        "queue": "shop",
        "status": "off",
        "is_enqueue_enabled": False,
        "is_receive_enabled": False,
    }.items():
        assert off[key] == value
    assert off["actor"].startswith("client ")
    await daemon.switch("shop", on=True)
    await daemon.pass_time(1)
    (on,) = await told(session)
    assert on["status"] == "on"
    logged = [fields for event, fields in daemon.log.lines if event == QUEUE_STATUS]
    assert [(one["queue"], one["status"]) for one in logged] == [
        ("shop", "off"),
        ("desk", "off"),
        ("shop", "on"),
    ]


@pytest.mark.rule("EVT-6", "EVT-9", "ACT-39")
@scenario
async def test_a_queue_disabled_by_the_broker_is_told_with_broker_and_queue(
    daemon: Daemon, session: Session
) -> None:
    queue = notification("BROKER_QUEUE_DISABLED", queue="shop")
    everywhere = {**notification("BROKER_QUEUE_DISABLED", scope="instance"), "name": "all"}
    await declare(daemon, session, queue, everywhere)
    # The line that poison detection writes, whatever becomes of the transaction that caused it.
    daemon.instance.parts.log.warning(QUEUE_DISABLED, broker="main", queue="shop", rollbacks=5)
    daemon.instance.parts.log.warning(QUEUE_DISABLED, broker="msdb", queue="far", rollbacks=5)
    await daemon.pass_time(1)
    got = sorted(await told(session), key=lambda one: (one["queue"], one["posted_at"]))
    assert [(one["broker"], one["queue"], one["rollbacks"]) for one in got] == [
        ("msdb", "far", 5),
        ("main", "shop", 5),
        ("main", "shop", 5),
    ]


@pytest.mark.rule("EVT-8")
@scenario
async def test_those_that_fan_in_yield_one_message(daemon: Daemon, session: Session) -> None:
    here = show(daemon.broker.broker_id)
    shared = [
        {**notification("DROP_QUEUE", fan_in="on"), "name": "a"},
        {**notification("DDL_QUEUE_EVENTS", fan_in="on"), "name": "b"},
        {**notification("DROP_QUEUE", fan_in="on", broker=here), "name": "e"},
    ]
    alone = [{**notification("DROP_QUEUE"), "name": name} for name in ("c", "d")]
    more = [*OBJECTS["queue"], {"name": "new_q"}]
    await declare(daemon, session, *shared, *alone, queue=more)
    await take(session)
    await declare(daemon, session, *shared, *alone)
    assert await names(session) == ["DROP_QUEUE"] * 3


@pytest.mark.rule("EVT-10", "MON-16", "PBT-6")
@scenario
async def test_dialogs_and_groups_are_told_of_but_not_single_messages(
    daemon: Daemon, session: Session
) -> None:
    watch = notification("BROKER_CONVERSATION", "BROKER_CONVERSATION_GROUP")
    await declare(daemon, session, watch)
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    for _ in range(3):
        await session.send(handle, b"x", "Ask")
    got = await take(session, "shop")
    await session.end(handle)
    await session.end(got[0].handle)
    await daemon.pass_time(1)
    seen = await told(session)
    of_dialogs = [one for one in seen if one["event"] == "BROKER_CONVERSATION"]
    assert [(one["subclass"], one["role"]) for one in of_dialogs] == [
        ("begin_dialog", "initiator"),
        ("dialog_created", "initiator"),
        ("dialog_created", "target"),
        ("end", "initiator"),
        ("received_end", "target"),
        ("received_end_ack", "initiator"),
        ("end", "target"),
    ]
    begun = of_dialogs[0]
    assert begun["handle"] == show(handle)
    assert begun["conversation_id"] == show(got[0].conversation_id)
    assert (begun["state"], begun["priority"]) == ("SO", 5)
    for one in of_dialogs:
        assert one.keys() >= FIELDS
    groups = [one for one in seen if one["event"] == "BROKER_CONVERSATION_GROUP"]
    assert [one["subclass"] for one in groups] == ["create", "create", "drop", "drop"]
    assert groups[0]["group"] == begun["group"]


@pytest.mark.rule("EVT-6")
@scenario
async def test_what_was_rolled_back_is_told_to_nobody(daemon: Daemon, session: Session) -> None:
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    await session.send(handle, b"x", "Ask")
    watch = notification("BROKER_CONVERSATION", "BROKER_CONVERSATION_GROUP")
    await declare(daemon, session, watch)
    tx = session.transaction()
    (got,) = await tx.receive("shop")
    await tx.begin_dialog("urn:desk", "urn:shop", "talk")
    await tx.end(got.handle)
    await tx.end(handle, 7, "enough")
    await tx.get_group("spare")  # answered, so all of it is done
    tx.rollback()
    await daemon.pass_time(1)
    assert await told(session) == []
    await session.end(handle)
    await daemon.pass_time(1)
    assert [one["subclass"] for one in await told(session)] == [
        "end",
        "received_end",
        "received_end_ack",
        "drop",
    ]


@pytest.mark.rule("EVT-6", "EVT-9", "PSN-2", "PBT-3")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["BROKER_QUEUE_DISABLED", "QUEUE_STATUS_CHANGED"]),
        ({"poison_mode": "park", "poison_threshold": 5, "poison_backoff": "1ms"}, ["GROUP_PARKED"]),
    ],
)
def test_poison_is_told_though_its_transactions_were_rolled_back(
    tmp_path: Path, options: dict[str, Any], names: list[str]
) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            events = ("BROKER_QUEUE_DISABLED", "QUEUE_STATUS_CHANGED", "GROUP_PARKED")
            await declare(daemon, session, notification(*events, queue="shop"))
            await session.alter("queue", "shop", **options)
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"bad", "Ask")
            for _ in range(5):
                tx = session.transaction()
                assert await tx.receive("shop", wait=5)
                tx.rollback()
            await daemon.pass_time(1)
            got = {one["event"]: one for one in await told(session)}
            assert sorted(got) == names
            for one in got.values():
                assert (one["broker"], one["queue"]) == ("main", "shop")
            if not options:
                assert got["BROKER_QUEUE_DISABLED"]["rollbacks"] == 5
                assert got["QUEUE_STATUS_CHANGED"]["actor"] == "poison handling"

    play(program, tmp_path)


@pytest.mark.rule("EVT-10", "MON-16")
@scenario
async def test_what_ends_a_dialog_before_its_time_is_logged_where_nobody_subscribed(
    daemon: Daemon, session: Session
) -> None:
    wrong = await session.begin_dialog("urn:desk", "urn:shop", "other")
    await session.send(wrong, b"x", "Both")
    failed = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    await session.send(failed, b"x", "Ask")
    (got,) = await take(session, "shop")
    await session.end(got.handle, 7, "broken")
    short = await session.begin_dialog("urn:desk", "urn:shop", "talk", 60)
    assert short
    await daemon.switch("shop", on=False)
    ended = await session.begin_dialog("urn:desk", "urn:shop", "talk", 65)
    await session.send(ended, b"waits", "Ask")
    await session.end(ended)
    await daemon.pass_time(70)
    logged = [fields for event, fields in daemon.log.lines if event == CONVERSATION]
    assert [(one["subclass"], one["role"], one.get("code")) for one in logged] == [
        ("received_broker_error", "initiator", -8408),
        ("end_with_error", "target", 7),
        ("received_error", "initiator", 7),
        ("broker_error", "initiator", -8489),
        ("terminate", "initiator", None),
    ]
    assert logged[1]["handle"] == show(got.handle)
    for one in logged:
        assert one.keys() >= {*FIELDS, "service", "far_service", "contract"}


@pytest.mark.rule("EVT-1", "EVT-10", "MON-16")
@scenario
async def test_messages_that_cannot_be_put_on_a_queue_are_told_of_throughout_the_instance(
    daemon: Daemon, session: Session
) -> None:
    await session.apply(far_broker({"name": "urn:far", "queue": "q"}))
    watch = notification("BROKER_MESSAGE_UNDELIVERABLE", scope="instance")
    await declare(daemon, session, watch)
    handle = await session.begin_dialog(
        "urn:desk", "urn:far", "talk", broker_id=daemon.instance.brokers["far"].broker_id
    )
    await session.send(handle, b"x", "Ask")
    await daemon.pass_time(2)
    (seen,) = await told(session)
    for key, value in {
        "event": "BROKER_MESSAGE_UNDELIVERABLE",
        "broker": "far",
        "role": "target",
        "sequence": 0,
        "fragment": 0,
        "last_acked_sequence": -1,
        "message_type": "Ask",
    }.items():
        assert seen[key] == value
    assert "talk" in seen["reason"]


@pytest.mark.rule("EVT-2", "EVT-10", "MON-16")
@scenario
async def test_readers_that_fail_are_told(daemon: Daemon, session: Session) -> None:
    activated = {"handler": "tests.no_such_module:handler"}
    queues = [{"name": "desk"}, {"name": "shop", "activation": activated}, {"name": "spare"}]
    watch = notification("ACTIVATION_FAILED", queue="shop")
    await declare(daemon, session, watch, queue=queues)
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    await session.send(handle, b"x", "Ask")
    await daemon.pass_time(1)
    (failed,) = await told(session)
    assert (failed["event"], failed["queue"]) == ("ACTIVATION_FAILED", "shop")
    assert "no_such_module" in failed["error"]


@pytest.mark.rule("EVT-10")
@pytest.mark.parametrize(("handler", "ends"), [("idle", "ended"), ("leaves_open", "aborted")])
def test_readers_are_told_of_with_how_many_there_are(
    tmp_path: Path, handler: str, ends: str
) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            await declare(daemon, session, notification("BROKER_ACTIVATION"))
            module = "handlers" if handler == "idle" else "activation.held_readers"
            chosen = {"handler": f"tests.integration.{module}:{handler}", "status": "on"}
            await session.alter("queue", "shop", activation=chosen, poison_handling="off")
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"x", "Ask")
            await daemon.pass_time(1)
            seen = await told(session)
            assert [(one["subclass"], one["active"]) for one in seen[:2]] == [
                ("started", 1),
                (ends, 0),
            ]
            assert {one["queue"] for one in seen} == {"shop"}

    play(program, tmp_path)


# Healing.


@pytest.mark.rule("PBT-15", "EVT-5", "ACT-38")
@scenario
async def test_the_next_activation_arrives_on_a_new_dialog_after_the_target_ended_the_old(
    daemon: Daemon, session: Session
) -> None:
    await declare(daemon, session, notification("QUEUE_ACTIVATION", queue="shop"))
    activation(daemon, ready=3)
    await daemon.pass_time(1)
    (first,) = await take(session)
    await session.end(first.handle)
    await daemon.pass_time(0.1)
    (row,) = await view(session)
    assert (row["dialog_state"], row["failures"], row["status"]) == ("SO", 0, "open")
    assert row["last_error"] == "the target has ended the dialog"
    (problem,) = problems(daemon)
    assert (problem["subclass"], problem["notification"]) == ("broken", "watch")
    activation(daemon, ready=4)
    posted_at = show_instant(daemon.clock.utc())
    await daemon.pass_time(1)
    (second,) = await take(session)
    assert second.conversation_id != first.conversation_id
    body = orjson.loads(second.body or b"")
    assert (body["ready_messages"], body["posted_at"]) == (4, posted_at)
    assert await rows(daemon, "event_dialogs") == 1
    assert len(daemon.broker.endpoints.all()) == 2
    assert await rows(daemon, "queue_messages") == 0


def far_broker(service: dict[str, Any]) -> dict[str, object]:
    """Another broker of the instance, with one service."""
    return {
        "broker": {"name": "far", "default_encryption": "off"},
        "queue": [{"name": "q"}],
        "service": [service],
    }


async def refuse_events(daemon: Daemon, session: Session, *told: dict[str, Any]) -> None:
    """The target service comes to be elsewhere: in a broker where it does not accept events."""
    await session.apply(far_broker({"name": "ops", "queue": "q"}))
    far_id = show(daemon.instance.brokers["far"].broker_id)
    await declare(daemon, session, *({**one, "broker": far_id} for one in told))


@pytest.mark.rule("PBT-15", "EVT-5", "EVT-7", "VIEW-11")
def test_a_target_that_refuses_costs_nothing_but_its_own_events_which_are_kept(
    tmp_path: Path,
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        watch = notification(
            "QUEUE_ACTIVATION", "BROKER_QUEUE_DISABLED", "QUEUE_STATUS_CHANGED", queue="shop"
        )
        await refuse_events(daemon, session, watch)
        starts = []
        for ready in range(1, 5):
            activation(daemon, ready=ready)
            await daemon.switch("shop", on=not ready % 2)
            await daemon.pass_time(0.2)
            starts.append((await view(session))[0]["failures"])
        assert starts == [1, 1, 1, 1]
        daemon.instance.parts.log.warning(QUEUE_DISABLED, broker="main", queue="shop", rollbacks=5)
        daemon.instance.parts.log.warning(QUEUE_DISABLED, broker="main", queue="shop", rollbacks=6)
        await daemon.pass_time(0.2)
        (row,) = await view(session)
        assert (row["status"], row["undelivered"], row["dialog_state"]) == ("backing_off", 7, None)
        assert row["last_error"].startswith("-8408: ")
        assert row["next_attempt_at"] > daemon.clock.utc()
        waits = [one["retry_in"] for one in problems(daemon)]
        await daemon.pass_time(100)
        waits = [one["retry_in"] for one in problems(daemon)]
        assert waits == [5.0, 10.0, 20.0, 40.0, 80.0]
        await session.close()
        await daemon.restart()
        session = await daemon.session()
        assert (await view(session))[0]["undelivered"] == 7
        await session.apply(far_broker({**OPS, "queue": "q"}))
        await daemon.pass_time(30)
        there = await daemon.session(broker="far")
        got = await told(there, "q")
        assert sum(one["event"] == "QUEUE_STATUS_CHANGED" for one in got) == 4
        assert [one["rollbacks"] for one in got if "rollbacks" in one] == [5, 6]
        assert [one["ready_messages"] for one in got if "ready_messages" in one] == [4]
        (row,) = await view(session)
        assert (row["status"], row["undelivered"], row["failures"]) == ("open", 0, 0)
        assert await rows(daemon, "undelivered_events") == 0
        assert await rows(daemon, "event_dialogs") == 1
        await there.close()
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("PBT-15", "EVT-5", "EVT-7")
@scenario
async def test_an_event_refused_within_the_broker_is_told_when_the_service_accepts_it(
    daemon: Daemon, session: Session
) -> None:
    here = show(daemon.broker.broker_id)
    watch = notification("BROKER_QUEUE_DISABLED", queue="shop", service="urn:spare", broker=here)
    await declare(daemon, session, watch)
    for rollbacks in (5, 6):
        daemon.instance.parts.log.warning(
            QUEUE_DISABLED, broker="main", queue="shop", rollbacks=rollbacks
        )
    await daemon.pass_time(1)
    (row,) = await view(session)
    assert (row["undelivered"], row["failures"], row["status"]) == (2, 1, "backing_off")
    assert await rows(daemon, "conversation_endpoints") == 0
    await session.alter("service", "urn:spare", contracts=["talk", POST_EVENT_NOTIFICATION])
    await daemon.pass_time(6)
    assert [one["rollbacks"] for one in await told(session)] == [5, 6]
    assert await rows(daemon, "undelivered_events") == 0


@pytest.mark.rule("PBT-15", "EVT-4")
@scenario
async def test_nothing_is_kept_of_a_notification_that_was_dropped_while_it_could_not_tell(
    daemon: Daemon, session: Session
) -> None:
    await refuse_events(daemon, session, notification("QUEUE_STATUS_CHANGED", queue="shop"))
    for on in (False, True):
        await daemon.switch("shop", on=on)
        await daemon.pass_time(1)
    assert await rows(daemon, "undelivered_events") == 2
    await declare(daemon, session)
    assert await rows(daemon, "undelivered_events") == 0
    assert await rows(daemon, "event_dialogs") == 0
    assert await rows(daemon, "conversation_endpoints") == 0


@pytest.mark.rule("PBT-15", "DLG-27")
@scenario
async def test_what_a_broken_dialog_held_back_is_told_on_the_next(
    daemon: Daemon, session: Session
) -> None:
    far = far_broker({**OPS, "queue": "q"})
    await session.apply(far)
    there = await daemon.session(broker="far")
    watch = notification("BROKER_QUEUE_DISABLED", queue="shop")
    watch["broker"] = show(daemon.instance.brokers["far"].broker_id)
    await declare(daemon, session, watch)
    lost = daemon.instance.parts.log.warning
    lost(QUEUE_DISABLED, broker="main", queue="shop", rollbacks=1)
    await daemon.pass_time(1)
    (first,) = await take(there, "q")
    await session.apply({**far, "queue": [{"name": "q", "status": "off"}]})
    for rollbacks in (2, 3):
        lost(QUEUE_DISABLED, broker="main", queue="shop", rollbacks=rollbacks)
    await daemon.pass_time(1)
    assert await rows(daemon, "transmission_queue") == 2
    await there.end(first.handle, 1, "not this way")
    await daemon.pass_time(1)
    (row,) = await view(session)
    assert row["last_error"] == "1: not this way"
    await session.apply(far)
    await daemon.pass_time(200)
    got = await take(there, "q")
    assert [orjson.loads(one.body or b"")["rollbacks"] for one in got] == [2, 3]
    assert first.conversation_id not in {one.conversation_id for one in got}
    assert await rows(daemon, "transmission_queue") == 0
    await there.close()


@pytest.mark.rule("PBT-15", "EVT-12")
@scenario
async def test_a_dialog_that_went_without_a_word_is_replaced_within_five_ticks(
    daemon: Daemon, session: Session
) -> None:
    await declare(daemon, session, notification("QUEUE_ACTIVATION", queue="shop"))
    (row,) = await view(session)
    live = daemon.broker.endpoints.find(
        Handle(bytes.fromhex(row["conversation_handle"].replace("-", "")))
    )
    assert live is not None
    await clean_up(daemon, live.endpoint.handle)
    await daemon.pass_time(26)
    (after,) = await view(session)
    assert after["conversation_handle"] != row["conversation_handle"]
    assert after["dialog_state"] == "SO"
    activation(daemon)
    await daemon.pass_time(1)
    assert await names(session) == ["QUEUE_ACTIVATION"]


@pytest.mark.rule("PBT-15", "VIEW-11")
@scenario
async def test_what_is_lost_while_something_is_sent_is_counted_for_good(
    daemon: Daemon, session: Session
) -> None:
    await declare(daemon, session, notification("BROKER_CONVERSATION"))
    desk = daemon.instance.parts.events._notifiers["main"]
    commit, more = desk._commit, 1005

    def happens() -> None:
        daemon.instance.parts.events.happened("BROKER_CONVERSATION", "main", subclass="end")

    async def slowly(*given: Any) -> None:
        nonlocal more
        while more:
            happens()
            more -= 1
        await commit(*given)

    desk._commit = slowly  # type: ignore[assignment, method-assign]
    happens()
    await daemon.pass_time(1)
    (row,) = await view(session)
    assert row["lost"] == 5
    assert len(await told(session)) == 1001


@pytest.mark.rule("EVT-10", "DLG-23")
@scenario
async def test_a_clean_up_is_told_with_who_did_it_and_why(daemon: Daemon, session: Session) -> None:
    await declare(daemon, session, notification("BROKER_CONVERSATION"))
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    await session.admin.clean_up(handle, "nobody knows it")
    await daemon.pass_time(1)
    *_, last = await told(session)
    assert (last["subclass"], last["reason"]) == ("end_with_cleanup", "nobody knows it")
    assert last["by"].startswith("client ")
    assert last.keys() >= FIELDS
    assert (last["handle"], last["role"], last["state"]) == (show(handle), "initiator", "SO")
    (row,) = await session.view("error_events")
    assert (row["conversation_handle"], row["is_initiator"]) == (show(handle), True)


async def clean_up(daemon: Daemon, handle: Handle) -> None:
    from brokerd.broker.changeset import Changeset  # noqa: PLC0415
    from brokerd.protocol.dialog import CleanupRequested  # noqa: PLC0415

    live = daemon.broker.endpoints.find(handle)
    assert live is not None
    changeset = Changeset(daemon.broker, daemon.clock.utc())
    changeset.step(live, CleanupRequested())
    await changeset.commit()


# Crashes.


class Boots:
    """Starts the daemon in a scope of the loop, so that it can be killed where it stands."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._name = ""
        self._count = 0

    async def boot(self) -> Session:
        daemon, self._count = self._daemon, self._count + 1
        self._name = f"daemon/{self._count}"
        started = daemon.loop.create_future()

        async def start() -> None:
            await daemon.start(declare=False)
            started.set_result(None)

        daemon.loop.create_task(start(), context=daemon.loop.scope(self._name))
        await started
        return await daemon.session()

    async def kill(self, session: Session) -> None:
        daemon = self._daemon
        daemon.loop.kill(self._name)
        daemon.network.crash("daemon")
        for broker in daemon.instance.brokers.values():
            await broker.store.abandon()
        await session.close()


@asynccontextmanager
async def stopped(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Daemon, Boots]]:
    """A daemon that is down, has told nothing, and is to tell of a queue."""
    session = await daemon.session()
    await declare(daemon, session, notification("QUEUE_STATUS_CHANGED", queue="shop"))
    await session.close()
    await daemon.stop()
    yield daemon, Boots(daemon)


crashing = given(stopped)


@pytest.mark.rule("EVT-6", "EVT-7", "PBT-15")
@crashing
async def test_a_told_event_survives_a_kill_and_the_dialog_goes_on(
    daemon: Daemon, boots: Boots
) -> None:
    session = await boots.boot()
    (before,) = await view(session)
    await daemon.switch("shop", on=False)
    await daemon.pass_time(1)
    await boots.kill(session)
    session = await boots.boot()
    (after,) = await view(session)
    assert after["conversation_handle"] == before["conversation_handle"]
    await daemon.switch("shop", on=True)
    await daemon.pass_time(1)
    got = await take(session)
    assert [orjson.loads(one.body or b"")["status"] for one in got] == ["off", "on"]
    assert len({one.conversation_id for one in got}) == 1
    await session.close()


@pytest.mark.rule("EVT-6", "EVT-7")
@crashing
async def test_a_kill_right_after_the_cause_costs_that_event_and_nothing_else(
    daemon: Daemon, boots: Boots
) -> None:
    session = await boots.boot()
    broker = daemon.broker
    gathering = broker.store.gathering
    daemon.instance.parts.log.info(QUEUE_STATUS, broker="main", queue="shop", status="lost")
    assert broker.store.gathering == gathering  # it is told in a transaction of its own, later
    await boots.kill(session)
    session = await boots.boot()
    await daemon.pass_time(30)
    (row,) = await view(session)
    assert (row["dialog_state"], row["undelivered"], row["failures"]) == ("SO", 0, 0)
    daemon.instance.parts.log.info(QUEUE_STATUS, broker="main", queue="shop", status="told")
    await daemon.pass_time(1)
    assert [one["status"] for one in await told(session)] == ["told"]
    await session.close()


@pytest.mark.rule("EVT-4", "PBT-15")
@crashing
async def test_the_dialog_of_a_dropped_notification_is_ended_also_after_a_kill(
    daemon: Daemon, boots: Boots
) -> None:
    session = await boots.boot()
    await daemon.switch("shop", on=False)
    await daemon.pass_time(1)
    daemon.instance.parts.events.objects_changed = lambda *_: None  # type: ignore[method-assign]
    daemon.instance.parts.administration.objects._notify_subscribers = lambda *_: None
    await session.apply({**daemon.objects, "event_notification": []})
    assert await rows(daemon, "event_dialogs") == 1
    await boots.kill(session)
    session = await boots.boot()
    await daemon.pass_time(1)
    got = await take(session)
    assert [one.message_type for one in got] == [TOLD, END_DIALOG]
    assert await rows(daemon, "event_dialogs") == 0
    states = [live.endpoint.state for live in daemon.broker.endpoints.all()]
    assert states == [State.DISCONNECTED_INBOUND]
    await session.close()


@pytest.mark.rule("EVT-6", "EVT-7")
def test_an_orderly_stop_tells_what_has_happened(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await declare(daemon, session, notification("QUEUE_ACTIVATION", queue="shop"))
        await session.close()
        activation(daemon)
        await daemon.restart()
        session = await daemon.session()
        assert await names(session) == ["QUEUE_ACTIVATION"]
        await session.close()

    play(program, tmp_path)
