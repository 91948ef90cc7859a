"""Objects of a running broker: created, altered and dropped, one at a time and by declaration."""

import asyncio
import tomllib
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.errors import (
    ActivationIncomplete,
    BrokerError,
    ContractNotFound,
    ContractUnusable,
    InUse,
    InvalidArgument,
    InvalidName,
    MessageTypeNotFound,
    ObjectExists,
    ObjectInvalid,
    ObjectNotFound,
    QueueDisabled,
    QueueNotFound,
    ServiceNotFound,
)
from brokerd.ids import Handle
from brokerd.process.exit_statuses import FAILED, NOT_THERE, REFUSED, USAGE, exit_status
from tests.integration.one_daemon import Daemon, play, rows
from tests.integration.scenarios import scenario
from tests.integration.shorthand import answered, fails, take, talk


async def names(session: Session, kind: str) -> list[object]:
    return [one["name"] for one in await session.objects(kind)]


async def one_of(session: Session, kind: str, name: str) -> dict[str, object]:
    (found,) = [one for one in await session.objects(kind) if one["name"] == name]
    return found


async def monitors(session: Session) -> list[dict[str, Any]]:
    return [row for row in await session.view("queue_monitors") if isinstance(row, dict)]


async def error_at(session: Session, queue: str) -> int:
    """The number of the one Error on the queue."""
    messages: list[Message] = []
    while not messages:
        messages = [one for one in await take(session, queue, wait=30) if one.error is not None]
    (told,) = messages
    assert told.error is not None
    return told.error.number


# One at a time.


@pytest.mark.rule("OBJ-7", "OBJ-9", "OBJ-12", "CLP-80", "CLP-81")
@scenario
async def test_objects_are_created_altered_and_dropped_while_the_broker_runs(
    daemon: Daemon, session: Session
) -> None:
    await session.create("message_type", "N\u00f6te", validation="well_formed_json")
    await session.create("message_type", "No\u0308te")  # renders alike, and is another name
    await session.create("contract", "notes", types={"N\u00f6te": "initiator"})
    await session.create("queue", "notes_q")
    await session.create("queue", "Notes_q")
    (made,) = await session.create("service", "urn:notes", queue="notes_q", contracts=["notes"])
    assert made == {
        "broker": "main",
        "action": "create",
        "kind": "service",
        "name": "urn:notes",
        "sentence": "service urn:notes is created on queue notes_q, target for notes",
    }
    handle = await session.begin_dialog("urn:desk", "urn:notes", "notes")
    await session.send(handle, b"{}", "N\u00f6te")
    (got,) = await take(session, "notes_q")
    assert got.message_type == "N\u00f6te"
    assert await session.alter("message_type", "No\u0308te", validation="none") == []
    await session.alter("message_type", "No\u0308te", validation="empty")
    assert (await one_of(session, "message_type", "No\u0308te"))["validation"] == "empty"
    await session.drop("message_type", "No\u0308te")
    await session.drop("queue", "Notes_q")
    assert "No\u0308te" not in await names(session, "message_type")
    await session.close()
    before = daemon.broker.store.catalog
    await daemon.stop()
    await daemon.start(declare=False)
    assert daemon.broker.store.catalog == before
    session = await daemon.session()
    assert "Notes_q" not in await names(session, "queue")
    assert await one_of(session, "contract", "notes") == {
        "kind": "contract",
        "name": "notes",
        "types": {"N\u00f6te": "initiator"},
    }
    await session.close()


@pytest.mark.rule("OBJ-6", "OBJ-7")
@scenario
async def test_a_dialog_meets_the_names_that_have_the_very_same_bytes(
    daemon: Daemon, session: Session
) -> None:
    composed, decomposed = "N\u00f6te", "No\u0308te"
    await session.create("message_type", composed)
    await session.create("contract", composed, types={composed: "any"})
    await session.create("service", composed, queue="shop", contracts=[composed])
    await fails(ContractNotFound, session.begin_dialog("urn:desk", composed, decomposed))
    await fails(ServiceNotFound, session.begin_dialog(decomposed, composed, composed))
    handle = await session.begin_dialog("urn:desk", composed, composed)
    await fails(MessageTypeNotFound, session.send(handle, b"1", decomposed))
    await session.send(handle, b"1", composed)
    (got,) = await take(session, "shop")
    assert (got.service, got.contract, got.message_type) == (composed,) * 3
    astray = await session.begin_dialog("urn:desk", decomposed, composed)
    await session.send(astray, b"2", composed)
    await daemon.pass_time(1)
    assert await take(session, "shop") == []
    assert (await session.transmission_status(astray)).status_key == "local_service_missing"


@pytest.mark.rule("OBJ-40")
@scenario
async def test_a_queue_that_is_off_gets_nothing_but_the_error_that_ends_a_dialog(
    daemon: Daemon, session: Session
) -> None:
    for body in (b"1", b"2"):
        handle = await talk(session, body)
        (got,) = await take(session, "shop")
        await session.set_timer(handle, 5)
        await session.alter("queue", "desk", status="off")
        (row,) = await session.view("service_queues", where={"name": "desk"})
        assert (row["is_enqueue_enabled"], row["is_receive_enabled"]) == (False, False)
        await session.send(got.handle, b"answer", "Answer")
        await daemon.pass_time(10)
        for queue in (take(session, "desk"), session.receive("desk", wait=60, autocommit=True)):
            await fails(QueueDisabled, queue)
        assert daemon.broker.queues["desk"].ready_count == 0
        await session.alter("queue", "desk", status="on")
        await daemon.pass_time(10)
        found = await take(session, "desk")
        assert sorted((one.is_timer, one.body) for one in found) == [
            (False, b"answer"),
            (True, None),
        ]
    dying = await session.begin_dialog("urn:desk", "urn:shop", "talk", lifetime=20)
    await session.send(dying, b"3", "Ask")
    await session.alter("queue", "desk", status="off")
    await daemon.pass_time(30)
    assert daemon.broker.queues["desk"].ready_count == 1
    await session.alter("queue", "desk", status="on")
    assert await error_at(session, "desk") == -8489


@pytest.mark.rule("OBJ-8", "OBJ-10", "OBJ-12", "OBJ-24", "OBJ-25", "ERR-9613")
@scenario
async def test_what_cannot_be_created_or_altered_says_why(daemon: Daemon, session: Session) -> None:
    before = daemon.broker.store.catalog

    async def refused(kind: type[BrokerError], asked: Awaitable[object], why: str) -> None:
        error = await fails(kind, asked)
        assert why in error.message
        assert daemon.broker.store.catalog is before

    create, alter = session.create, session.alter
    await refused(InvalidName, create("queue", "#q"), "does not begin with #")
    await refused(InvalidName, create("service", "ANY", queue="desk"), "OBJ-11")
    await refused(InvalidName, create("queue", "q" * 129), "128")
    await refused(InvalidName, create("queue", ""), "not empty")
    await refused(ObjectExists, create("queue", "desk"), "'desk' is in broker 'main' already")
    await refused(ContractUnusable, create("contract", "c", types={"Ask": "target"}), "OBJ-24")
    await refused(InvalidArgument, alter("contract", "talk", types={"Ask": "any"}), "OBJ-25")
    await refused(ActivationIncomplete, alter("queue", "desk", activation={}), "handler")
    await refused(ObjectNotFound, alter("queue", "nowhere"), "'nowhere'")
    await refused(ObjectNotFound, create("service", "s", queue="dsk"), 'did you mean "desk"?')
    await refused(ObjectInvalid, create("queue", "q", stat="on"), 'did you mean "status"?')
    await refused(InvalidArgument, create("table", "t"), "no kind of object 'table'")
    bad = create("message_type", "t", validation="valid_json", schema='{"type": "nope"}')
    await refused(ObjectInvalid, bad, "the schema cannot be used")


@pytest.mark.rule("CLP-81", "CLP-117")
@scenario
async def test_what_is_refused_ends_with_the_status_of_its_kind(
    daemon: Daemon, session: Session
) -> None:
    create, alter, admin = session.create, session.alter, session.admin
    kinds: dict[int, list[Awaitable[object]]] = {
        USAGE: [
            create("queue", "q", status="maybe"),
            create("queue", "q", poison_threshold=0, retention="perhaps"),
            create("queue", "q", stat="on"),
            create("queue", "q", activation={"max_readers": 1}),
            create("service", "s"),
            create("contract", "c"),
            create("priority", "p", level=99),
            create("route", "r", address="nowhere"),
            create("event_notification", "e", events=["NOPE"], service="urn:shop"),
            alter("broker", "main", honor_priority="perhaps"),
        ],
        NOT_THERE: [
            create("service", "s", queue="nope"),
            create("service", "s", queue="desk", contracts=["nope"]),
            create("contract", "c", types={"Nope": "any"}),
            create("priority", "p", contract="nope"),
            create("event_notification", "e", events=["DROP_QUEUE"], service="nope"),
            alter("queue", "nope", status="on"),
            session.drop("queue", "nope"),
            admin.drain_queue("nope"),
            admin.cure_queue("nope", 1, "x"),
            admin.release_group(b"g" * 16),
            admin.edit_group(b"g" * 16, b"x"),
        ],
        REFUSED: [create("queue", "desk")],
        FAILED: [admin.cure_queue("desk", 1, "x")],
    }
    for status, asked in kinds.items():
        for one in asked:
            with pytest.raises(BrokerError) as caught:
                await one
            assert exit_status(caught.value) == status, caught.value


@pytest.mark.rule("OBJ-39", "OBJ-41", "OBJ-45")
@scenario
async def test_a_queue_is_prepared_while_it_is_off_and_altered_option_by_option(
    daemon: Daemon, session: Session
) -> None:
    await session.create("queue", "later", status="off", retention="on", poison_handling="off")
    await session.create("service", "urn:later", queue="later", contracts=["talk"])
    queue = daemon.broker.queues["later"].queue
    assert (queue.is_on, queue.retention, queue.poison_handling) == (False, True, False)
    handle = await session.begin_dialog("urn:desk", "urn:later", "talk")
    await session.send(handle, b"1", "Ask")
    await fails(QueueDisabled, take(session, "later"))
    await session.alter("queue", "later", status="on")
    assert daemon.broker.queues["later"].queue.retention
    (got,) = await take(session, "later", wait=30)
    assert got.body == b"1"
    await session.alter("queue", "later", activation={"handler": "a:b", "max_readers": 3})
    activation = daemon.broker.queues["later"].queue.activation
    assert activation is not None
    assert not activation.enabled  # adding the clause does not switch it
    await session.alter("queue", "later", activation={"max_readers": 5, "run_as": "shop"})
    shown = (await one_of(session, "queue", "later"))["activation"]
    assert shown == {"handler": "a:b", "max_readers": 5, "status": "off", "run_as": "shop"}
    await session.alter("queue", "later", activation="drop")
    assert daemon.broker.queues["later"].queue.activation is None


@pytest.mark.rule("OBJ-42", "ACT-Q9", "ACT-5")
@scenario
async def test_a_queue_that_is_dropped_takes_its_monitor_with_it(
    daemon: Daemon, session: Session
) -> None:
    activation = {"handler": "nowhere:app", "status": "on"}
    await session.create("queue", "later", activation=activation)
    assert "later" in [row["queue_id"] for row in await monitors(session)]
    await session.drop("queue", "later")
    await daemon.pass_time(12)  # the pass over all monitors does not stumble over it
    assert not [line for line in daemon.log.lines if line[1].get("subclass") == "pass_failed"]
    assert "later" not in [row["queue_id"] for row in await monitors(session)]
    await session.create("queue", "later", activation=activation)
    assert "later" in [row["queue_id"] for row in await monitors(session)]


# What is in use.


@pytest.mark.rule("OBJ-22", "OBJ-37", "OBJ-38", "OBJ-42", "ERR-B1")
@scenario
async def test_what_another_object_names_cannot_be_dropped(
    daemon: Daemon, session: Session
) -> None:
    await session.create("priority", "fast", contract="other", local_service="urn:spare", level=9)
    before = daemon.broker.store.catalog
    for kind, name in (
        ("message_type", "Ask"),
        ("contract", "talk"),
        ("contract", "other"),
        ("queue", "shop"),
        ("service", "urn:spare"),
    ):
        error = await fails(InUse, session.drop(kind, name))
        assert name in error.message
        assert daemon.broker.store.catalog == before
    assert await talk(session, b"1")  # nothing is closed by a refusal
    await session.drop("priority", "fast")
    await session.drop("contract", "other")
    await session.drop("service", "urn:spare")
    await session.drop("queue", "spare")
    await fails(QueueNotFound, take(session, "spare"))


@pytest.mark.rule("OBJ-37", "OBJ-38", "MAN-14")
@scenario
async def test_what_open_dialogs_need_is_refused_with_their_number(
    daemon: Daemon, session: Session
) -> None:
    handles = [await talk(session, b"1") for _ in range(2)]
    async with session.transaction() as tx:  # one that only memory knows of
        await tx.receive("desk")
        handles.append(await tx.begin_dialog("urn:desk", "urn:shop", "talk"))
        error = await fails(InUse, session.drop("service", "urn:desk"))
        assert "3 open dialogs need service urn:desk" in error.message
        assert "--terminate-existing" in error.hint
    without = {**daemon.objects, "service": daemon.objects["service"][1:]}
    error = await fails(InUse, session.apply(without))
    assert "3 open dialogs" in error.message
    changed = [one for one in daemon.objects["contract"] if one["name"] != "talk"]
    changed.append({"name": "talk", "types": {"Ask": "any"}})
    error = await fails(InUse, session.apply({**daemon.objects, "contract": changed}))
    assert "contract talk" in error.message
    await session.close()
    await daemon.restart()  # counted in the store, too
    session = await daemon.session()
    error = await fails(InUse, session.drop("service", "urn:desk"))
    assert "3 open dialogs" in error.message
    await session.close()


@pytest.mark.rule("OBJ-37", "DLG-M7", "ERR-8469")
@pytest.mark.parametrize("restart", [False, True])
def test_a_dropped_service_takes_its_dialogs_and_their_messages_along(
    tmp_path: Path, restart: bool
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        _, theirs = await answered(session)
        await talk(session, b"unread")
        await daemon.switch("desk", on=False)
        await session.send(theirs, b"untransmitted", "Answer")
        assert await rows(daemon, "transmission_queue") == 1
        other = await session.begin_dialog("urn:spare", "urn:shop", "talk")
        await session.send(other, b"other", "Ask")
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        daemon.objects = {
            **daemon.objects,
            "service": [one for one in daemon.objects["service"] if one["queue"] != "shop"],
            "queue": [one for one in daemon.objects["queue"] if one["name"] != "shop"],
        }
        await session.apply(daemon.objects, terminate_existing=True)
        assert await rows(daemon, "transmission_queue") == 0
        await daemon.switch("desk", on=True)
        await fails(QueueNotFound, take(session, "shop"))
        numbers = [await error_at(session, "desk") for _ in range(2)]
        assert numbers == [-8470, -8470]
        assert await error_at(session, "spare") == -8470
        await daemon.pass_time(1)
        assert {str(row["service_id"]) for row in await endpoints(session)} <= {
            "urn:desk",
            "urn:spare",
        }
        assert await rows(daemon, "queue_messages") == 0
        await session.close()
        await daemon.restart()

    play(program, tmp_path)


async def endpoints(session: Session) -> list[dict[str, Any]]:
    return await session.view("conversation_endpoints")


@pytest.mark.rule("OBJ-38", "ERR-8469", "DLG-T15")
@scenario
async def test_a_dropped_contract_errors_its_dialogs_on_both_sides(
    daemon: Daemon, session: Session
) -> None:
    mine, theirs = await answered(session)
    untouched = await session.begin_dialog("urn:desk", "urn:shop")
    await session.send(untouched, b"x")
    await take(session, "shop")
    daemon.objects = {
        **daemon.objects,
        "contract": [one for one in daemon.objects["contract"] if one["name"] != "talk"],
        "service": [
            {**one, "contracts": ["DEFAULT"]}
            if one["name"] == "urn:shop"
            else {**one, "contracts": []}
            for one in daemon.objects["service"]
        ],
    }
    await fails(InUse, session.apply(daemon.objects))
    await session.apply(daemon.objects, terminate_existing=True)
    assert await error_at(session, "desk") == -8487
    assert await error_at(session, "shop") == -8487
    await session.end(mine)
    await session.end(theirs)
    await session.send(untouched, b"y")
    (got,) = await take(session, "shop")
    assert got.body == b"y"


@pytest.mark.rule("OBJ-38")
@pytest.mark.parametrize("restart", [False, True])
def test_a_dialog_that_is_over_needs_its_contract_no_more(tmp_path: Path, restart: bool) -> None:
    """Ended here, so that only the END is on its way (DO), or in error (ER)."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        ended = await session.begin_dialog("urn:desk", "urn:nowhere", "other")
        failed = await session.begin_dialog("urn:desk", "urn:shop", "other")
        for handle in (ended, failed):
            await session.send(handle, b"1", "Both")
        error = await fails(InUse, session.drop("contract", "other"))
        assert "1 open dialog needs contract other" in error.message
        await session.end(ended)
        assert {str(row["state"]) for row in await endpoints(session)} == {"DO", "ER"}
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        await session.drop("contract", "other")
        await session.end(failed)
        assert [row["state"] for row in await endpoints(session)] == ["DO"]
        await session.close()
        daemon.objects["contract"] = [
            one for one in daemon.objects["contract"] if one["name"] != "other"
        ]

    play(program, tmp_path)


@pytest.mark.rule("OBJ-36", "OBJ-34", "ERR-8469")
@scenario
async def test_a_contract_removed_from_a_service_stops_new_dialogs_only(
    daemon: Daemon, session: Session
) -> None:
    mine, theirs = await answered(session)
    await session.alter("service", "urn:shop", contracts=["DEFAULT"])
    await session.send(mine, b"goes on", "Ask")
    (got,) = await take(session, "shop")
    assert got.body == b"goes on"
    await session.send(theirs, b"both ways", "Answer")
    await take(session, "desk")
    refused = await talk(session, b"new")
    assert await error_at(session, "desk") == -8408
    await session.end(refused)
    spare = await session.begin_dialog("urn:shop", "urn:spare", "talk")  # as initiator it stays
    await session.send(spare, b"1", "Ask")
    await session.alter("service", "urn:shop", contracts=["DEFAULT", "talk"])
    await session.alter("service", "urn:shop", contracts=["DEFAULT"], terminate_existing=True)
    assert await error_at(session, "desk") == -8469
    assert await error_at(session, "shop") == -8469
    await session.send(spare, b"2", "Ask")
    assert [one.body for one in await take(session, "spare")] == [b"1", b"2"]


@pytest.mark.rule("OBJ-37")
@scenario
async def test_termination_waits_for_who_has_the_dialog_locked(
    daemon: Daemon, session: Session
) -> None:
    handle = await talk(session, b"1")
    async with session.transaction() as tx:
        (got,) = await tx.receive("shop")
        dropping = asyncio.ensure_future(
            session.drop("service", "urn:shop", terminate_existing=True)
        )
        await daemon.pass_time(1)
        assert not dropping.done()
        await tx.send(got.handle, b"answer", "Answer")
    await dropping
    assert "urn:shop" not in await names(session, "service")
    messages = await take(session, "desk", wait=30)
    assert messages[0].error is not None
    assert messages[0].error.number == -8470
    await session.end(handle)
    late = await talk(session, b"2")
    await daemon.pass_time(1)
    assert daemon.broker.endpoints.find(Handle(late)) is not None  # delayed, not refused (DLG-6)


@pytest.mark.rule("OBJ-37", "DLG-M7")
def test_a_peer_in_another_broker_is_told_as_well(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        far: dict[str, Any] = {
            "name": "far",
            "default_encryption": "off",
            "queue": [{"name": "far_q"}],
            "service": [{"name": "urn:far", "queue": "far_q", "contracts": ["DEFAULT"]}],
        }
        session = await daemon.session()
        await session.apply({"broker": [far]})
        handle = await session.begin_dialog("urn:desk", "urn:far")
        await session.send(handle, b"1")
        there = await daemon.session(broker="far")
        assert [one.body for one in await take(there, "far_q", wait=30)] == [b"1"]
        await fails(InUse, there.drop("service", "urn:far"))
        await there.drop("service", "urn:far", terminate_existing=True)
        assert await endpoints(there) == []
        assert await error_at(session, "desk") == -8470
        await there.close()
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("OBJ-37", "DLG-33")
@scenario
async def test_endpoints_that_only_recognise_repeats_go_with_their_service(
    daemon: Daemon, session: Session
) -> None:
    """A service whose dialogs are all closed is not in use, and leaves nothing behind."""
    await session.create("queue", "q")
    await session.create("service", "urn:q", queue="q", contracts=["DEFAULT"])
    handle = await session.begin_dialog("urn:desk", "urn:q")
    await session.send(handle, b"1")
    await session.end(handle)
    messages = await take(session, "q")
    await session.end(messages[0].handle)
    await session.drop("service", "urn:q")
    await session.drop("queue", "q")
    assert await rows(daemon, "conversation_endpoints") == 0
    await fails(ServiceNotFound, session.begin_dialog("urn:q", "urn:desk"))


# By declaration.


@pytest.mark.rule("MAN-14", "OBJ-12")
def test_several_brokers_in_one_file_each_whole(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        def broker(name: str, queue: str) -> dict[str, Any]:
            return {
                "name": name,
                "default_encryption": "off",
                "honor_priority": "on",
                "queue": [{"name": queue}],
                "service": [{"name": "urn:same", "queue": queue}],
            }

        session = await daemon.session()
        both = {"broker": [broker("east", "a"), broker("west", "b")]}
        seen = await session.apply(both, dry_run=True)
        assert set(daemon.instance.brokers) == {"msdb", "main"}
        assert await session.apply(both) == seen
        assert {one["broker"] for one in seen} == {"east", "west"}  # type: ignore[index]
        said = [one["sentence"] for one in seen]  # type: ignore[index]
        assert "broker west is created, a new one beside main" in said
        typo = await session.apply({"broker": {"name": "mian"}}, dry_run=True)
        assert typo[0]["sentence"] == (  # type: ignore[index]
            'broker mian is created, a new one beside east, main, west; did you mean "main"?'
        )
        assert await session.apply(both) == []
        assert await session.apply(both, dry_run=True) == []
        assert set(daemon.instance.brokers["west"].queues) == {"b"}
        west = await daemon.session(broker="west")
        handle = await west.begin_dialog("urn:same", "urn:same")
        gone = {"broker": [broker("east", "c"), {"name": "west"}]}
        which = "^broker west: 1 open dialog needs service urn:same; nothing was changed"
        for dry_run in (True, False):  # nothing is done to the other, either
            with pytest.raises(InUse, match=which):
                await session.apply(gone, dry_run=dry_run)
        with pytest.raises(InUse, match=r"^1 open dialog needs"):  # of one only one can be meant
            await session.apply({"broker": {"name": "west"}})
        assert set(daemon.instance.brokers["east"].queues) == {"a"}
        await west.end(handle)
        await session.apply(gone)
        assert set(daemon.instance.brokers["east"].queues) == {"c"}
        assert daemon.instance.brokers["west"].queues == {}
        await west.close()
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("MAN-14", "CLP-82")
def test_options_and_objects_of_a_broker_change_in_one_commit(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await talk(session, b"1")
        declared = {
            **daemon.objects,
            "broker": {"name": "main", "default_encryption": "on", "honor_priority": "on"},
            "service": daemon.objects["service"][1:],
        }
        await fails(InUse, session.apply(declared))
        identity = daemon.broker.store.identity
        assert (identity.default_encryption, identity.honor_priority) == (False, False)
        commits: list[object] = []
        pipeline = daemon.broker.store._pipeline
        run = pipeline.run

        async def counted(job: Any, **how: Any) -> Any:
            commits.append(job)
            return await run(job, **how)

        pipeline.run = counted  # type: ignore[method-assign]
        declared["service"] = [*daemon.objects["service"], {"name": "urn:new", "queue": "desk"}]
        assert len(await session.apply(declared)) == 3
        assert len(commits) == 1
        identity = daemon.broker.store.identity
        assert (identity.default_encryption, identity.honor_priority) == (True, True)
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("OBJ-44", "CLP-82")
@scenario
async def test_two_changes_at_a_time_are_made_one_after_the_other(
    daemon: Daemon, session: Session
) -> None:
    async with await daemon.session() as other:
        made = [who.create("queue", f"q{n}") for n, who in enumerate((session, other) * 5)]
        await asyncio.gather(*made)
        assert {f"q{n}" for n in range(10)} <= set(await names(other, "queue"))


# Identity.


@pytest.mark.rule("OBJ-1", "OBJ-2", "OBJ-4")
def test_each_broker_has_an_identifier_that_stays(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await session.apply({"broker": {"name": "other"}})
        ids = {name: one.broker_id for name, one in daemon.instance.brokers.items()}
        assert len(set(ids.values())) == 3
        assert all(len(one) == 16 for one in ids.values())
        assert all(one.store.identity.is_broker_enabled for one in daemon.instance.brokers.values())
        await session.close()
        await daemon.restart()
        assert {name: one.broker_id for name, one in daemon.instance.brokers.items()} == ids

    play(program, tmp_path)


@pytest.mark.rule("CLP-81", "SDK-18")
@scenario
async def test_a_date_of_toml_is_refused_where_something_else_is_expected(
    daemon: Daemon, session: Session
) -> None:
    day = tomllib.loads("day = 2026-11-21")["day"]
    for asked in (
        session.alter("queue", "desk", retention=day),
        session.create("queue", "new", retention=day),
        session.apply({**daemon.objects, "queue": [{"name": "desk", "retention": day}]}),
    ):
        with pytest.raises(BrokerError, match="2026-11-21") as caught:
            await asked
        assert caught.value.code != "internal_error"


@pytest.mark.rule("SDK-19")
@scenario
async def test_a_start_makes_and_alters_what_its_file_says_and_drops_nothing(
    daemon: Daemon, session: Session
) -> None:
    """What programs have declared is there after a restart, dialogs open or not."""
    own = {
        **{name: daemon.objects[name] for name in ("broker", "message_type", "contract")},
        "queue": [*daemon.objects["queue"], {"name": "own_q"}],
        "service": [
            {"name": "own", "queue": "own_q", "contracts": ["talk"]},
            {"name": "urn:desk", "queue": "desk", "contracts": ["talk"]},
        ],
    }
    await session.apply(own, ensure=True)
    handle = await session.begin_dialog("urn:desk", "own", "talk")
    await session.close()
    daemon.objects["queue"] = [
        {**one, "status": "off"} if one["name"] == "desk" else one
        for one in daemon.objects["queue"]
    ]
    await daemon.restart()
    async with await daemon.session() as again:
        queues = {row["name"]: row for row in await again.view("service_queues")}
        assert "own_q" in queues
        assert not queues["desk"]["is_receive_enabled"]
        services = {one["name"]: one for one in await again.objects("service")}
        assert services["urn:desk"]["contracts"] == ["talk"]
        await again.send(handle, b"1", "Ask")
