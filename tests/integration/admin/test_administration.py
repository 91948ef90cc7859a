"""An administrator at work: delivery off and on, errors for all, a new identifier (MAN)."""

import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.broker import sweeps
from brokerd.broker.blocked import Resume
from brokerd.broker.broker import Broker
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import (
    BackupFailed,
    Busy,
    ConversationNotFound,
    DuplicateBroker,
    InvalidArgument,
    ObjectNotFound,
    TransactionAborted,
)
from brokerd.ids import BrokerId, parse
from brokerd.model import END_DIALOG, Queue
from brokerd.storage.opening import StoreIdentity
from brokerd.telemetry.logs import ADMINISTRATION
from tests.integration.instance.second_broker import EAST, arrival
from tests.integration.one_daemon import OBJECTS, Daemon, closing, live_of, play, rows
from tests.integration.scenarios import given

NEW_ID = bytes(range(16))


class Place:
    """A daemon with the brokers main and east, and a client of each."""

    def __init__(self, daemon: Daemon, main: Session, east: Session, folder: Path) -> None:
        self.daemon = daemon
        self.main = main
        self.east = east
        self.folder = folder

    def audited(self, what: str) -> list[dict[str, object]]:
        """Lines of the event log about one operation."""
        return [
            fields
            for event, fields in self.daemon.log.lines
            if event == ADMINISTRATION and fields["subclass"] == what
        ]

    async def statuses(self, session: Session) -> list[str]:
        """Why messages wait in the transmission queue."""
        return [row["status_key"] for row in await session.view("transmission_queue")]

    async def states(self, session: Session) -> list[str]:
        """The endpoints of a broker."""
        return sorted(row["state"] for row in await session.view("conversation_endpoints"))

    async def broker(self, name: str) -> dict[str, object]:
        """Its row in the view."""
        row: dict[str, object]
        (row,) = await self.main.view("brokers", where={"name": name})
        return row

    async def talk(self, *bodies: bytes) -> bytes:
        """A dialog from main to east that has been answered."""
        handle = await self.main.begin_dialog("urn:desk", "urn:harbour", "talk")
        for body in bodies or (b"hello",):
            await self.main.send(handle, body, "Ask")
        await self.daemon.pass_time(1)
        return handle


@asynccontextmanager
async def two_brokers(daemon: Daemon, folder: Path) -> AsyncIterator[tuple[Place]]:
    """A client of each."""
    async with await daemon.session() as session:
        await session.apply(EAST)
    main, east = await daemon.session(), await daemon.session(broker="east")
    async with closing(main, east):
        yield (Place(daemon, main, east, folder),)


scenario = given(two_brokers)


async def bodies(session: Session, queue: str) -> list[bytes | None]:
    return [one.body for one in await session.receive(queue, 10, wait=5, autocommit=True)]


# Delivery off and on.


@pytest.mark.rule("MAN-3", "SND-20", "OBJ-4", "SND-14", "VIEW-10", "RTE-33", "CLP-91")
@scenario
async def test_with_delivery_off_sends_wait_and_local_work_goes_on(place: Place) -> None:
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    await place.main.send(handle, b"before", "Ask")
    state = await place.main.admin.disable()
    assert (state.is_broker_enabled, state.disabled_reason) == (False, "manual")
    await place.main.send(handle, b"local", "Ask")
    far = await place.main.begin_dialog("urn:desk", "urn:harbour", "talk")
    await place.main.send(far, b"far", "Ask")
    assert await place.statuses(place.main) == ["sender_disabled", "sender_disabled"]
    assert [one.body async for one in place.main.browse("shop")] == [b"before"]
    (got,) = await place.main.receive("shop", autocommit=True)
    assert got.body == b"before"
    await place.main.end(got.handle)
    back = await place.east.begin_dialog("urn:harbour", "urn:shop", "talk")
    await place.east.send(back, b"to nobody", "Ask")
    await place.daemon.pass_time(60)
    assert await bodies(place.east, "harbour") == []
    assert await place.statuses(place.east) == ["local_service_missing"]
    assert (await place.broker("main"))["is_broker_enabled"] is False
    stores = (await place.main.status())["stores"]
    assert [(one["broker"], one["state"], one["reason"]) for one in stores][1] == (  # type: ignore[attr-defined]
        ("main", "disabled", "manual")
    )

    state = await place.main.admin.enable()
    assert (state.is_broker_enabled, state.disabled_reason) == (True, None)
    await place.daemon.pass_time(30)
    assert await bodies(place.east, "harbour") == [b"far"]
    assert await bodies(place.main, "shop") == [b"to nobody"]
    (ended,) = await place.main.receive("desk", wait=5, autocommit=True)
    assert ended.message_type == END_DIALOG


@pytest.mark.rule("MAN-3", "SND-15")
@scenario
async def test_what_waited_is_delivered_in_order_when_delivery_is_on(place: Place) -> None:
    handle = await place.talk(b"0")
    await place.main.admin.disable()
    for body in (b"1", b"2"):
        await place.main.send(handle, body, "Ask")
    await place.main.admin.enable()
    await place.main.send(handle, b"3", "Ask")
    got: list[bytes | None] = []
    while len(got) < 4:
        got += await bodies(place.east, "harbour")
    assert got == [b"0", b"1", b"2", b"3"]


@pytest.mark.rule("MAN-3", "DSP-12")
@scenario
async def test_a_disabled_target_takes_nothing_and_acknowledges_nothing(place: Place) -> None:
    handle = await place.talk()
    await place.main.admin.disable("east")
    await place.main.send(handle, b"later", "Ask")
    dispatcher = place.daemon.instance.parts.dispatcher
    item = arrival(place.daemon.instance.brokers["east"].broker_id)
    dispatcher.arrived([item])
    await place.daemon.pass_time(200)
    assert dispatcher.buffered == 0
    assert dispatcher.stored == 1
    assert await place.statuses(place.main) == ["broker_not_here"]
    await place.main.admin.enable("east")
    await place.daemon.pass_time(1)
    assert await bodies(place.east, "harbour") == [b"hello", b"later"]


@pytest.mark.rule("MAN-3", "OBJ-4")
@scenario
async def test_what_was_on_its_way_is_kept_and_sent_again(place: Place) -> None:
    """The target's queue is off, so the message is outstanding and its timer runs."""
    handle = await place.talk()
    east = place.daemon.instance.brokers["east"]
    east.queues["harbour"].queue = replace_enqueue(east, on=False)
    await place.main.send(handle, b"again", "Ask")
    await place.daemon.pass_time(1)
    assert await place.statuses(place.main) == ["peer_queue_disabled"]
    await place.main.admin.disable()
    east.queues["harbour"].queue = replace_enqueue(east, on=True)
    await place.daemon.pass_time(300)
    assert await place.statuses(place.main) == ["sender_disabled"]
    assert await bodies(place.east, "harbour") == [b"hello"]
    await place.main.admin.enable()
    assert await bodies(place.east, "harbour") == [b"again"]


@pytest.mark.rule("MAN-3", "SND-20", "XMT-11")
@scenario
async def test_what_waits_for_a_destination_is_taken_back_from_it(place: Place) -> None:
    address = "tcp://nobody:4022"
    routes = [{"name": "away", "service": "urn:far", "address": address}]
    await place.main.apply({**OBJECTS, "route": routes})
    handle = await place.main.begin_dialog("urn:desk", "urn:far", "talk")
    await place.main.send(handle, b"away", "Ask")
    transmitter = place.daemon.instance.parts.transmitter
    await place.main.admin.disable()
    assert transmitter.fill(address, 65_536, 100) == []
    assert await place.statuses(place.main) == ["sender_disabled"]
    await place.main.admin.enable()
    assert len(transmitter.fill(address, 65_536, 100)) == 1


@pytest.mark.rule("MAN-3", "DLP-28", "DSP-12")
@scenario
async def test_a_target_that_is_disabled_meanwhile_gets_it_when_it_is_enabled(place: Place) -> None:
    handle = await place.talk()
    east = place.daemon.instance.brokers["east"]
    east.queues["harbour"].queue = replace_enqueue(east, on=False)
    await place.main.send(handle, b"again", "Ask")
    await place.daemon.pass_time(1)
    await place.main.admin.disable("east")
    east.queues["harbour"].queue = replace_enqueue(east, on=True)
    await place.daemon.pass_time(300)  # the timer of what was sent expires meanwhile
    assert await place.statuses(place.main) == ["broker_not_here"]
    await place.main.admin.enable("east")
    assert await bodies(place.east, "harbour") == [b"hello", b"again"]


@pytest.mark.rule("MAN-3", "DSP-12")
@scenario
async def test_a_dialog_that_the_dispatcher_knows_is_no_way_in(place: Place) -> None:
    handle = await place.talk()
    conversation = live_of(place.daemon, handle).endpoint.conversation_id
    east = place.daemon.instance.brokers["east"].broker_id
    item = msgspec.structs.replace(arrival(east), conversation_id=conversation, sequence=1)
    await place.main.admin.disable("east")
    dispatcher = place.daemon.instance.parts.dispatcher
    stored = dispatcher.stored
    dispatcher.arrived([item])
    await place.daemon.pass_time(1)
    assert dispatcher.stored == stored
    assert dispatcher.dropped.total() == 1


def replace_enqueue(broker: Broker, *, on: bool) -> Queue:
    queue = broker.queues["harbour"].queue
    return msgspec.structs.replace(queue, enqueue_enabled=on)


@pytest.mark.rule("OBJ-4", "MAN-2")
@scenario
async def test_the_flag_outlives_a_restart(place: Place) -> None:
    await place.main.admin.disable("east")
    await place.daemon.restart()
    row = await place.broker("east")
    assert (row["is_broker_enabled"], row["disabled_reason"]) == (False, "manual")
    await place.main.admin.enable("east")
    assert (await place.broker("east"))["disabled_reason"] is None


@pytest.mark.rule("MAN-4")
@scenario
async def test_a_lifetime_that_ends_meanwhile_is_told_at_enable(place: Place) -> None:
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk", lifetime=60)
    await place.main.send(handle, b"ask", "Ask")
    await place.main.admin.disable()
    await place.daemon.pass_time(120)
    assert await place.states(place.main) == ["CO", "CO"]
    await place.main.admin.enable()
    assert await place.states(place.main) == ["ER", "ER"]
    (told,) = await place.main.receive("desk", autocommit=True)
    assert told.error is not None
    assert told.error.number == -8489


@pytest.mark.rule("MAN-4", "DLG-36")
@scenario
async def test_a_timer_that_is_due_meanwhile_fires_at_enable(place: Place) -> None:
    handle = await place.talk()
    await place.main.set_timer(handle, 60)
    await place.main.admin.disable()
    await place.daemon.pass_time(120)
    assert await place.main.receive("desk", autocommit=True) == []
    await place.main.admin.enable()
    (told,) = await place.main.receive("desk", autocommit=True)
    assert told.is_timer


@pytest.mark.rule("MAN-3", "ACT-5")
@scenario
async def test_activation_stops_with_delivery(place: Place) -> None:
    queue = {"name": "shop", "activation": {"handler": "tests.integration.handlers:idle"}}
    objects = dict(OBJECTS)
    objects["queue"] = [queue if one["name"] == "shop" else one for one in OBJECTS["queue"]]
    await place.main.apply(objects)

    async def absent() -> str:
        (row,) = await place.main.view("service_queues", where={"name": "shop"})
        return str(row["monitor_absent_reason"] or "")

    assert await absent() == ""
    await place.main.admin.disable()
    assert await absent() == "delivery is off in the broker"
    await place.main.apply(OBJECTS)
    await place.main.apply(objects)
    assert await absent() == "delivery is off in the broker"
    await place.main.admin.enable()
    assert await absent() == ""


# Exclusion.


async def hold_open(place: Place, session: Session) -> Transaction:
    """A transaction that has received a message and is open."""
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    await place.main.send(handle, b"ask", "Ask")
    tx = session.transaction()
    (message,) = await tx.receive("shop")
    await tx.send(message.handle, b"answer", "Answer")
    return tx


@pytest.mark.rule("MAN-1")
@scenario
async def test_an_operation_waits_for_open_transactions_and_keeps_new_ones_out(
    place: Place,
) -> None:
    other = await place.daemon.session()
    handle = await place.talk()
    tx = await hold_open(place, other)
    disabling = place.daemon.loop.create_task(place.main.admin.disable())
    await place.daemon.pass_time(1)
    assert not disabling.done()
    waiting = place.daemon.loop.create_task(other.send(handle, b"too late", "Ask"))
    await place.daemon.pass_time(1)
    assert not waiting.done()
    assert len(await place.main.view("brokers")) == 3  # looking is not kept out
    await tx.commit()
    assert (await disabling).is_broker_enabled is False
    await waiting
    assert await place.statuses(place.main) == ["sender_disabled"]  # the answer was in time
    assert await bodies(place.main, "desk") == [b"answer"]
    await other.close()


@pytest.mark.rule("MAN-1")
@scenario
async def test_force_rolls_open_transactions_back(place: Place) -> None:
    other = await place.daemon.session()
    tx = await hold_open(place, other)
    state = await place.main.admin.disable(force=True)
    assert not state.is_broker_enabled
    with pytest.raises(TransactionAborted, match="administrator"):
        await tx.commit()
    assert await bodies(place.main, "desk") == []
    assert await bodies(place.main, "shop") == [b"ask"]
    await other.close()


@pytest.mark.rule("MAN-1")
@scenario
async def test_an_operation_gives_up_and_lets_the_clients_go_on(place: Place) -> None:
    other = await place.daemon.session()
    tx = await hold_open(place, other)
    with pytest.raises(Busy, match="broker 'main' has 1 open transaction") as caught:
        await place.main.admin.disable(wait=3)
    assert "force" in caught.value.hint
    await place.main.send(await place.talk(), b"on it goes", "Ask")
    await tx.commit()
    assert (await place.broker("main"))["is_broker_enabled"] is True
    assert place.audited("disable") == []
    await other.close()


@pytest.mark.rule("MAN-1")
@scenario
async def test_an_operation_waits_for_a_minute_and_names_who_is_in_the_way(place: Place) -> None:
    async with await place.daemon.session() as one, await place.daemon.session() as other:
        admin = place.main.admin
        for operation in (admin.disable, admin.error_conversations, admin.new_broker):
            open_ones = [await hold_open(place, session) for session in (one, other)]
            began = place.daemon.loop.time()
            with pytest.raises(Busy) as caught:
                await operation()
            assert caught.value.message.count("client ") == len(open_ones)
            assert place.daemon.loop.time() - began == pytest.approx(60, abs=1)
            for tx in open_ones:
                tx.rollback()


@pytest.mark.rule("MAN-1", "CLP-61")
@scenario
async def test_an_operation_goes_on_once_the_daemon_has_rolled_back_an_idle_transaction(
    place: Place,
) -> None:
    async with await place.daemon.session() as other:
        tx = await hold_open(place, other)
        await place.daemon.pass_time(30)
        await place.main.admin.disable(wait=50)
        with pytest.raises(TransactionAborted, match="not used for 60 s"):
            await tx.commit()


@pytest.mark.rule("MAN-1")
@scenario
async def test_who_only_waits_for_a_message_is_not_waited_for(place: Place) -> None:
    other = await place.daemon.session()
    tx = other.transaction()
    waiting = place.daemon.loop.create_task(tx.receive("shop", wait=600))
    await place.daemon.pass_time(1)
    began = place.daemon.loop.time()
    await place.main.admin.disable(wait=1)
    assert await waiting == []
    assert place.daemon.loop.time() - began < 1
    tx.rollback()
    await other.close()


@pytest.mark.rule("MAN-1")
@scenario
async def test_an_operation_goes_on_when_a_receive_begins_to_wait_for_a_message(
    place: Place,
) -> None:
    """Before that, the receive is in the way: it waits for the store."""
    other = await place.daemon.session()
    queue = place.daemon.broker.queues["shop"]
    reads: list[Resume | None] = []

    def hold(resume: Resume | None = None) -> None:
        reads.append(resume)

    queue.backlog_may_precede = lambda *_: not reads  # type: ignore[method-assign]
    queue.backlog.fetch = hold  # type: ignore[method-assign]
    tx = other.transaction()
    receiving = place.daemon.loop.create_task(tx.receive("shop", wait=600))
    await place.daemon.pass_time(1)
    disabling = place.daemon.loop.create_task(place.main.admin.disable(wait=30))
    await place.daemon.pass_time(1)
    assert not disabling.done()
    (go_on,) = reads
    assert go_on is not None
    go_on()
    await place.daemon.pass_time(1)
    assert disabling.done()
    assert (await disabling).is_broker_enabled is False
    assert not receiving.done()
    tx.rollback()
    with pytest.raises(TransactionAborted):
        await receiving
    await other.close()


@pytest.mark.rule("MAN-1")
@scenario
async def test_two_operations_do_not_run_at_once(place: Place) -> None:
    other = await place.daemon.session()
    tx = await hold_open(place, other)
    first = place.daemon.loop.create_task(place.main.admin.disable(wait=10))
    await place.daemon.pass_time(1)
    with pytest.raises(Busy, match="administered already"):
        await place.main.admin.new_broker()
    with pytest.raises(Busy):
        await first
    tx.rollback()
    await other.close()


@pytest.mark.rule("MAN-1", "MAN-14")
@scenario
async def test_objects_do_not_change_beside_an_operation(place: Place) -> None:
    other = await place.daemon.session()
    tx = await hold_open(place, other)
    fewer = {**OBJECTS, "service": OBJECTS["service"][:1]}
    disabling = place.daemon.loop.create_task(place.main.admin.disable(wait=10))
    await place.daemon.pass_time(1)
    for forced in (False, True):
        with pytest.raises(Busy, match="administered already"):
            await place.east.apply(fewer, terminate_existing=forced)
    with pytest.raises(Busy):
        await disabling
    assert len(await place.main.view("services")) == len(OBJECTS["service"])
    applying = place.daemon.loop.create_task(place.east.apply(fewer, terminate_existing=True))
    await place.daemon.pass_time(1)
    with pytest.raises(Busy, match="objects of broker 'main' are being changed"):
        await place.main.admin.disable(wait=3, force=False)
    assert not applying.done()
    waiting = place.daemon.loop.create_task(place.main.admin.error_conversations(wait=60))
    await place.daemon.pass_time(1)
    assert not waiting.done()
    tx.rollback()
    await applying
    await waiting
    assert len(await place.main.view("services")) == 1
    assert await place.states(place.main) == ["ER"]
    await other.close()


@pytest.mark.rule("MAN-1", "MAN-14", "SDK-4")
@scenario
async def test_two_apps_that_declare_while_dialogs_are_ended_for_a_third(place: Place) -> None:
    """Who ends dialogs waits for those that are in use, and they for it: each in its turn."""
    other = await place.daemon.session()
    tx = await hold_open(place, other)
    fewer = {**OBJECTS, "service": OBJECTS["service"][:1]}
    applying = place.daemon.loop.create_task(place.main.apply(fewer, terminate_existing=True))
    await place.daemon.pass_time(1)
    assert not applying.done()
    apps = [
        {
            **OBJECTS,
            "queue": [*OBJECTS["queue"], {"name": f"app{number}_q"}],
            "service": [
                *OBJECTS["service"][:1],
                {"name": f"app{number}", "queue": f"app{number}_q", "contracts": ["talk"]},
            ],
        }
        for number in range(2)
    ]
    declaring = [
        place.daemon.loop.create_task(session.apply(app, ensure=True))
        for session, app in zip((other, place.main), apps, strict=True)
    ]
    await place.daemon.pass_time(1)
    assert not any(one.done() for one in (applying, *declaring))
    assert len(await place.main.view("services")) == len(OBJECTS["service"])
    tx.rollback()
    await applying
    assert await place.states(place.main) == ["ER"]
    for one in declaring:
        await one
    services = {row["name"] for row in await place.main.view("services")}
    assert services == {"urn:desk", "app0", "app1"}
    await other.close()


# Errors for all conversations.


@pytest.mark.rule("MAN-5", "ERR-9719", "DLG-T15", "CLP-92")
@scenario
async def test_every_dialog_is_ended_with_an_error_on_both_sides(place: Place) -> None:
    far = await place.talk()
    local = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    await place.main.send(local, b"ask", "Ask")
    await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    before = (await place.broker("main"))["broker_id"]
    state = await place.main.admin.error_conversations()
    assert state.endpoints == {"CO": 3, "SO": 1}
    assert state.is_broker_enabled
    assert state.broker_id == before
    assert await place.states(place.main) == ["ER"] * 4
    await place.daemon.pass_time(1)
    told = await place.east.receive("harbour", autocommit=True)
    assert [one.error.number if one.error else one.body for one in told] == [-9720, b"hello"]
    mine = await place.main.receive("desk", conversation=far, autocommit=True)
    assert [one.error.number for one in mine if one.error] == [-9719]
    # Later traffic of the peer gets the same answer.
    late = await place.talk()
    await place.main.admin.disable()
    state = await place.main.admin.error_conversations()
    assert state.is_broker_enabled
    assert state.endpoints == {"CO": 1}  # the others have their error
    endpoint = next(e for e in place.daemon.broker.endpoints.all() if e.endpoint.handle == late)
    assert endpoint.endpoint.error_code == -9719


@pytest.mark.rule("MAN-5", "MAN-6")
@pytest.mark.parametrize("what", ["error_conversations", f"new_broker {NEW_ID.hex()}"])
def test_what_was_begun_before_a_crash_is_finished(what: str, tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        async with await daemon.session() as session:
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, b"ask", "Ask")
        await daemon.broker.store.change_identity(unfinished=what, is_broker_enabled=False)
        await daemon.restart()
        async with await daemon.session() as session:
            states = [row["state"] for row in await session.view("conversation_endpoints")]
            (row,) = await session.view("brokers", where={"name": "main"})
        if what == "error_conversations":
            assert states == ["ER", "ER"]
        else:
            assert states == []
            assert parse(str(row["broker_id"])) == NEW_ID
        assert row["is_broker_enabled"]
        assert daemon.broker.store.identity.unfinished is None

    play(program, tmp_path)


# A new identifier.


@pytest.mark.rule("MAN-6", "DLG-M8", "OBJ-1", "OBJ-2", "ERR-8462")
@scenario
async def test_a_new_identifier_removes_every_dialog(place: Place) -> None:
    handle = await place.talk(b"one", b"two")
    back = (await place.east.receive("harbour", 1, autocommit=True))[0].handle
    await place.main.send(handle, b"unsent", "Ask")
    local = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    await place.main.send(local, b"unread", "Ask")
    await place.main.admin.disable()
    before = str((await place.broker("main"))["broker_id"])
    state = await place.main.admin.new_broker(broker_id=NEW_ID)
    assert parse(state.broker_id) == NEW_ID
    assert state.endpoints == {"CO": 3}
    assert state.is_broker_enabled
    for table in ("conversation_endpoints", "queue_messages", "transmission_queue"):
        assert await rows(place.daemon, table) == 0
    assert [row["ready_count"] for row in await place.main.view("service_queues")] == [0, 0, 0]
    with pytest.raises(ConversationNotFound):
        await place.main.send(handle, b"late", "Ask")
    # The peer hears nothing until it sends, under the old identifier; then it does not hang.
    await place.daemon.pass_time(60)
    assert await place.states(place.east) == ["CO"]
    await place.east.send(back, b"answer", "Answer")
    await place.daemon.pass_time(1)
    assert await place.states(place.east) == ["ER"]
    (line,) = place.audited("new_broker")
    assert line["before"]["broker_id"] == before  # type: ignore[index]
    assert line["after"]["broker_id"] == state.broker_id  # type: ignore[index]
    assert "client" in str(line["actor"])
    # New dialogs work both ways, also after a restart.
    await place.daemon.restart()
    assert (await place.broker("main"))["broker_id"] == state.broker_id
    fresh = await place.east.begin_dialog("urn:harbour", "urn:shop", "talk")
    await place.east.send(fresh, b"anew", "Ask")
    assert await bodies(place.main, "shop") == [b"anew"]


@pytest.mark.rule("MAN-6")
@scenario
async def test_a_dialog_pinned_to_the_old_identifier_is_refused(place: Place) -> None:
    old = str((await place.broker("main"))["broker_id"])
    await place.main.admin.new_broker()
    pinned = await place.east.begin_dialog("urn:harbour", "urn:shop", "talk", broker_id=parse(old))
    await place.east.send(pinned, b"to whom", "Ask")
    await place.daemon.pass_time(1)
    (told,) = await place.east.receive("harbour", autocommit=True)
    assert told.error is not None
    assert told.error.number == -8462
    assert await bodies(place.main, "shop") == []


@pytest.mark.rule("MAN-6")
@scenario
async def test_the_last_sixteen_identifiers_are_answered_for(place: Place) -> None:
    had = [place.daemon.instance.brokers["main"].broker_id]
    for number in range(17):
        had.append(BrokerId(bytes([number]) * 16))
        await place.main.admin.new_broker(broker_id=had[-1])
    await place.daemon.restart()
    for old in (had[0], had[1], had[-2]):
        pinned = await place.east.begin_dialog("urn:harbour", "urn:shop", "talk", broker_id=old)
        await place.east.send(pinned, b"to whom", "Ask")
    await place.daemon.pass_time(1)
    rows = await place.east.view("conversation_endpoints")
    found = {parse(row["far_broker_instance"]): row["error_code"] for row in rows}
    assert found == {had[0]: None, had[1]: -8462, had[-2]: -8462}


@pytest.mark.rule("MAN-6", "CLP-93")
@scenario
async def test_asking_for_the_same_identifier_again_changes_nothing(place: Place) -> None:
    await place.main.admin.new_broker(broker_id=NEW_ID)
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    state = await place.main.admin.new_broker(broker_id=NEW_ID)
    assert state.endpoints == {}
    await place.main.end(handle)


@pytest.mark.rule("MAN-1", "MAN-2")
@scenario
async def test_msdb_is_left_alone(place: Place) -> None:
    for asked in (
        place.main.admin.enable("msdb"),
        place.main.admin.disable("msdb"),
        place.main.admin.new_broker("msdb"),
        place.main.admin.error_conversations("msdb"),
    ):
        with pytest.raises(InvalidArgument, match="msdb"):
            await asked
    with pytest.raises(ObjectNotFound, match="no broker 'west' here"):
        await place.main.admin.enable("west")


@pytest.mark.rule("CLP-96", "CLP-97")
@scenario
async def test_where_there_is_no_endpoint_none_is_altered_or_tried(place: Place) -> None:
    with pytest.raises(InvalidArgument, match="endpoint"):
        await place.main.admin.alter_endpoint(port=4032)
    with pytest.raises(InvalidArgument, match="endpoint"):
        await place.main.admin.retry_destination()


# Copies.


def copy_store(folder: Path, source: str, target: str, **facts: object) -> None:
    """A copy of a store under the name of another broker, as a careless hand makes it."""
    file = folder / f"{target}.db"
    with sqlite3.connect(folder / f"{source}.db") as there:
        there.execute("VACUUM INTO ?", (str(file),))
    there.close()
    with sqlite3.connect(file) as here:
        for name, value in {"broker_name": target, **facts}.items():
            here.execute(f"UPDATE store SET {name} = ?", (value,))
    here.close()


@pytest.mark.of_files("it copies a store file")
@pytest.mark.rule("OBJ-3", "ERR-9772", "OBJ-2", "RTE-34", "MAN-8")
@scenario
async def test_two_brokers_with_one_identifier_do_not_both_deliver(place: Place) -> None:
    await place.talk()
    await place.daemon.stop()
    copy_store(place.folder, "east", "west")
    await place.daemon.start()
    east, west = await place.broker("east"), await place.broker("west")
    assert east["broker_id"] == west["broker_id"]
    assert east["is_broker_enabled"]
    assert (west["is_broker_enabled"], west["disabled_reason"]) == (False, "duplicate_identifier")
    for asked in (
        place.main.admin.enable("west"),
        place.main.admin.error_conversations("west"),
    ):
        with pytest.raises(DuplicateBroker, match="'east' delivers under") as caught:
            await asked
        assert caught.value.ssb_code == 9772
    # The original works, and the copy sends nothing in its name.
    await place.talk(b"to the original")
    assert (await bodies(place.east, "harbour"))[-1:] == [b"hello"]
    assert await bodies(place.east, "harbour") == [b"to the original"]
    west_session = await place.daemon.session(broker="west")
    handle = await west_session.begin_dialog("urn:harbour", "urn:shop", "talk")
    await west_session.send(handle, b"from the copy", "Ask")
    await place.daemon.pass_time(10)
    assert await place.statuses(west_session) == ["sender_disabled"]
    assert await bodies(place.main, "shop") == []
    await west_session.close()
    state = await place.main.admin.new_broker("west")
    assert state.is_broker_enabled
    assert state.broker_id != east["broker_id"]


@pytest.mark.of_files("it copies a store file")
@pytest.mark.rule("OBJ-3", "MAN-2", "MAN-5", "MAN-6")
@pytest.mark.parametrize("what", ["enable", "error_conversations", "new_broker"])
def test_another_broker_that_got_the_identifier_meanwhile_keeps_it(
    what: str, tmp_path: Path
) -> None:
    """The operation was allowed when it was asked for, and then waits for an open transaction."""

    @scenario
    async def run(place: Place) -> None:
        admin = place.main.admin
        if what != "new_broker":
            await place.daemon.stop()
            copy_store(place.folder, "main", "west")
            await place.daemon.start()
        await admin.disable("main")
        other = await place.daemon.session()
        tx = other.transaction()
        await tx.begin_dialog("urn:desk", "urn:shop", "talk")
        await tx.receive("shop")
        asked = {
            "enable": lambda: admin.enable("main"),
            "error_conversations": lambda: admin.error_conversations("main"),
            "new_broker": lambda: admin.new_broker("main", broker_id=NEW_ID),
        }
        operation = place.daemon.loop.create_task(asked[what]())
        await place.daemon.pass_time(1)
        assert not operation.done()
        if what == "new_broker":
            await admin.new_broker("east", broker_id=NEW_ID)
        else:
            await admin.enable("west")
        rival = "east" if what == "new_broker" else "west"
        tx.rollback()
        with pytest.raises(DuplicateBroker, match=f"'{rival}' delivers under"):
            await operation
        assert not (await place.broker("main"))["is_broker_enabled"]
        assert (await place.broker(rival))["is_broker_enabled"]
        await other.close()

    run(tmp_path)


@pytest.mark.of_files("it copies a store file")
@pytest.mark.rule("OBJ-3", "MAN-5", "MAN-6")
@pytest.mark.parametrize("what", ["error_conversations", "new_broker"])
def test_the_identifier_of_an_operation_that_runs_is_taken(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delivery is off while it runs, and on under that identifier when it is done."""

    @scenario
    async def run(place: Place) -> None:
        await place.daemon.stop()
        copy_store(place.folder, "main", "west")
        await place.daemon.start()
        refused: list[DuplicateBroker] = []
        batch = sweeps.batch

        async def meanwhile(broker: Broker, *arguments: Any) -> Any:
            assert not broker.enabled
            admin = place.east.admin
            asked = partial(admin.enable, "west")
            if what == "new_broker":
                asked = partial(admin.new_broker, "west", broker_id=NEW_ID)
            with pytest.raises(DuplicateBroker) as caught:
                await asked()
            refused.append(caught.value)
            return await batch(broker, *arguments)

        monkeypatch.setattr(sweeps, "batch", meanwhile)
        if what == "new_broker":
            await place.main.admin.new_broker("main", broker_id=NEW_ID)
        else:
            await place.main.admin.error_conversations("main")
        assert len(refused) == 1
        assert (await place.broker("main"))["is_broker_enabled"]
        assert not (await place.broker("west"))["is_broker_enabled"]

    run(tmp_path)


@pytest.mark.of_files("it copies a store file")
@pytest.mark.rule("OBJ-3", "MAN-5")
@scenario
async def test_a_copy_that_is_opened_beside_an_operation_delivers_nothing(place: Place) -> None:
    copy, away = place.folder / "west.db", place.folder / "elsewhere"
    await place.daemon.stop()
    copy_store(place.folder, "main", "west")
    copy.rename(away)
    with sqlite3.connect(place.folder / "msdb.db") as msdb:
        msdb.execute("INSERT INTO known_brokers VALUES ('west', ?)", (bytes(16),))
    msdb.close()
    await place.daemon.start()
    batch = sweeps.batch

    async def meanwhile(broker: Broker, *arguments: Any) -> Any:
        away.rename(copy)
        await place.daemon.instance.parts.absent_brokers.retry()
        return await batch(broker, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "batch", meanwhile)
        await place.main.admin.error_conversations("main")
    assert (await place.broker("main"))["is_broker_enabled"]
    west = await place.broker("west")
    assert (west["is_broker_enabled"], west["disabled_reason"]) == (False, "duplicate_identifier")


@pytest.mark.of_files("it copies a store file")
@pytest.mark.rule("OBJ-3", "MAN-2", "MAN-16")
@scenario
async def test_a_copy_that_is_opened_while_the_original_is_enabled_delivers_nothing(
    place: Place,
) -> None:
    """An enable does not see the copy before it is open; so the copy is compared after that."""
    copy, away = place.folder / "west.db", place.folder / "elsewhere"
    await place.daemon.stop()
    copy_store(place.folder, "main", "west")
    copy.rename(away)
    with sqlite3.connect(place.folder / "msdb.db") as msdb:
        msdb.execute("INSERT INTO known_brokers VALUES ('west', ?)", (bytes(16),))
    msdb.close()
    await place.daemon.start()
    await place.main.admin.disable("main")
    instance = place.daemon.instance
    remember = instance.parts.known_brokers.opened

    async def meanwhile(identity: StoreIdentity) -> None:
        await remember(identity)
        await place.main.admin.enable("main")

    away.rename(copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instance.parts.known_brokers, "opened", meanwhile)
        await instance.parts.absent_brokers.retry()
    assert (await place.broker("main"))["is_broker_enabled"]
    west = await place.broker("west")
    assert (west["is_broker_enabled"], west["disabled_reason"]) == (False, "duplicate_identifier")


@pytest.mark.of_files("it copies a store file")
@pytest.mark.rule("MAN-7", "PBT-13", "REL-30")
@pytest.mark.parametrize(
    "facts", [{"instance_id": b"f" * 16}, {"host": b"h" * 16}], ids=["instance", "machine"]
)
def test_a_copy_from_elsewhere_starts_disabled_and_says_so(
    facts: dict[str, bytes], tmp_path: Path
) -> None:
    async def program(daemon: Daemon) -> None:
        daemon.host = b"H" * 16
        async with await daemon.session() as session:
            await session.apply(EAST)
        await daemon.stop()
        copy_store(tmp_path, "east", "west", broker_id=NEW_ID, **facts)
        (tmp_path / "east.db").unlink()
        daemon.log.lines.clear()
        await daemon.start()
        (line,) = [fields for event, fields in daemon.log.lines if event == ADMINISTRATION]
        assert line["after"] == {
            "is_broker_enabled": False,
            "disabled_reason": "foreign_fingerprint",
        }
        assert "brokerd broker enable" in str(line["hint"])
        async with await daemon.session() as session:
            (row,) = await session.view("brokers", where={"name": "west"})
            assert row["disabled_reason"] == "foreign_fingerprint"
            await session.admin.enable("west")
        await daemon.restart()
        async with await daemon.session() as session:
            (row,) = await session.view("brokers", where={"name": "west"})
        assert (row["is_broker_enabled"], row["disabled_reason"]) == (True, None)

    play(program, tmp_path)


@pytest.mark.of_files("it copies a store file")
@pytest.mark.rule("MAN-7", "MAN-8")
@pytest.mark.parametrize("what", ["enable", "error_conversations", "new_broker"])
def test_each_choice_for_a_copy_from_elsewhere_makes_it_belong_here(
    what: str, tmp_path: Path
) -> None:
    async def program(daemon: Daemon) -> None:
        daemon.host = b"H" * 16
        async with await daemon.session() as session:
            await session.apply(EAST)
        await daemon.stop()
        there = {"host": b"h" * 16, "instance_id": b"f" * 16}
        copy_store(tmp_path, "east", "west", broker_id=NEW_ID, **there)
        await daemon.start()
        async with await daemon.session() as session:
            state = await getattr(session.admin, what)("west")
        assert (state.is_broker_enabled, state.disabled_reason) == (True, None)
        assert (parse(state.broker_id) == NEW_ID) == (what != "new_broker")
        await daemon.restart()
        identity = daemon.instance.brokers["west"].store.identity
        assert (identity.is_broker_enabled, identity.host) == (True, b"H" * 16)
        assert identity.instance_id == daemon.instance.parts.instance_id

    play(program, tmp_path)


@pytest.mark.rule("MAN-7")
def test_a_machine_that_does_not_say_what_it_is_disables_nothing(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        for host in (b"H" * 16, None, b"H" * 16):
            daemon.host = host
            await daemon.restart()
            assert daemon.broker.enabled
        assert daemon.broker.store.identity.host == b"H" * 16

    play(program, tmp_path)


# Cleaning up.


@pytest.mark.rule("MAN-15", "DLG-M3", "DLG-T27", "CLP-94")
@scenario
async def test_bulk_cleanup_removes_what_fits_in_batches(place: Place) -> None:
    for number in range(25):
        handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
        await place.main.send(handle, b"%d" % number, "Ask")
        if number % 5 == 0:
            await place.main.end(handle)
    await place.daemon.pass_time(3600)
    young = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    seen: list[int] = []
    chosen = {"states": ["CO", "SO"], "older_than": 1800, "service": "urn:desk", "batch": 10}
    counted = await place.main.admin.clean_up_endpoints("test", dry_run=True, **chosen)  # type: ignore[arg-type]
    assert counted.matched == {"CO": 20}
    assert counted.removed == counted.locked == {}
    assert len(await place.states(place.main)) == 46
    done = await place.main.admin.clean_up_endpoints(
        "leak of last week",
        progress=lambda so_far: seen.append(sum(so_far.removed.values())),
        **chosen,  # type: ignore[arg-type]
    )
    assert done.removed == {"CO": 20}
    assert seen == sorted(seen)
    assert len(seen) == 5
    assert await place.states(place.main) == ["CO"] * 20 + ["DI"] * 5 + ["SO"]
    await place.main.send(young, b"still here", "Ask")
    lines = place.audited("clean_up")
    assert {str(line["why"]) for line in lines} == {"leak of last week"}
    assert sum(line["endpoints"]["CO"] for line in lines) == 20  # type: ignore[index]
    with pytest.raises(InvalidArgument, match="no state 'XX'"):
        await place.main.admin.clean_up_endpoints("test", states=["XX"])


@pytest.mark.rule("MAN-15")
@scenario
async def test_cleanup_leaves_what_a_transaction_has_locked(place: Place) -> None:
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    await place.main.send(handle, b"ask", "Ask")
    async with place.main.transaction() as tx:
        (message,) = await tx.receive("shop")
        done = await place.main.admin.clean_up_endpoints("test", far_service="urn:desk")
        assert (done.removed, done.locked) == ({}, {"CO": 1})
        await tx.send(message.handle, b"reply", "Answer")
    assert await bodies(place.main, "desk") == [b"reply"]
    other = await place.main.begin_dialog("urn:shop", "urn:spare", "talk")
    for service, far_service in ((None, "urn:nobody"), ("urn:desk", "urn:desk")):
        done = await place.main.admin.clean_up_endpoints(
            "test", service=service, far_service=far_service
        )
        assert (done.removed, done.locked) == ({}, {})
    done = await place.main.admin.clean_up_endpoints("test", far_service="urn:desk")
    assert (done.removed, done.locked) == ({"CO": 1}, {})
    await place.main.send(handle, b"its other side is there", "Ask")
    await place.main.end(other)


@pytest.mark.rule("MAN-15", "PBT-20")
@scenario
async def test_cleanup_counts_what_is_beyond_the_window(place: Place) -> None:
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    for number in range(20):
        await place.main.send(handle, b"%d" % number, "Ask")
    await place.daemon.restart()  # all of it is in the store only
    await place.main.admin.clean_up_endpoints("test")
    (row,) = await place.main.view("service_queues", where={"name": "shop"})
    assert row["ready_count"] == 0
    assert await rows(place.daemon, "queue_messages") == 0
    fresh = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    await place.main.send(fresh, b"anew", "Ask")
    assert await bodies(place.main, "shop") == [b"anew"]


@pytest.mark.rule("MAN-15", "MAN-1")
@scenario
async def test_cleanup_and_others_go_on_side_by_side(place: Place) -> None:
    """Bulk cleanup is no exclusive operation: verbs run between its batches."""
    handles = [await place.main.begin_dialog("urn:desk", "urn:shop", "talk") for _ in range(30)]
    cleaning = place.daemon.loop.create_task(
        place.main.admin.clean_up_endpoints("test", states=["SO"], batch=2)
    )
    other = await place.daemon.session()
    handle = await other.begin_dialog("urn:desk", "urn:shop", "talk")
    await other.send(handle, b"meanwhile", "Ask")
    assert not cleaning.done()
    assert sum((await cleaning).removed.values()) == len(handles)
    assert await bodies(other, "shop") == [b"meanwhile"]
    await other.close()


# Held back, and taken in order.


@pytest.mark.rule("MAN-1", "CLP-31", "CLP-91", "CLP-40")
@scenario
async def test_what_was_held_back_is_taken_in_the_order_it_was_written(place: Place) -> None:
    other = await place.daemon.session()
    tx = await hold_open(place, place.main)
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    await place.main.send(handle, b"first", "Ask")
    disabling = place.daemon.loop.create_task(other.admin.disable())
    await place.daemon.pass_time(1)
    sends = [other.submit_send(handle, b"%d" % number, "Ask") for number in range(5)]
    cancelled = place.daemon.loop.create_task(other.transaction().receive("spare", wait=30))
    await place.daemon.pass_time(1)
    cancelled.cancel()
    held = other.transaction()
    receiving = place.daemon.loop.create_task(held.receive("desk", wait=30))
    await place.daemon.pass_time(1)
    assert not any(one.done() for one in sends)
    await tx.commit()
    assert (await disabling).is_broker_enabled is False
    for one in sends:
        await one
    assert [one.body for one in await receiving] == [b"answer"]
    assert not place.daemon.broker.queues["spare"].waiting, "it was cancelled"
    await held.commit()
    rows = await place.main.view("transmission_queue", where={"message_type_name": "Ask"})
    sequences = [row["message_sequence_number"] for row in rows]
    assert sequences == sorted(sequences)
    await place.main.admin.enable()
    got: list[bytes | None] = []
    while len(got) < 6:
        got += await bodies(place.main, "shop")
    assert got == [b"first", b"0", b"1", b"2", b"3", b"4"]
    await other.close()


# After a crash.


@pytest.mark.rule("MAN-12")
@scenario
async def test_a_crash_leaves_the_committed_state(place: Place) -> None:
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    for body in (b"taken", b"waiting"):
        await place.main.send(handle, body, "Ask")
    tx = place.main.transaction()
    (message,) = await tx.receive("shop", 1)
    await tx.send(message.handle, b"never", "Answer")
    await tx.set_state(message.group_id, b"never")
    instance = place.daemon.instance
    for broker in instance.brokers.values():
        await broker.store.abandon()
    instance._close_listeners()
    instance._tick_task.cancel()
    instance.parts.sessions.end_all()
    await instance.parts.destinations.stop()
    await place.daemon.start()
    async with await place.daemon.session() as session:
        (group,) = await session.view("conversation_groups", where={"service_id": "urn:shop"})
        assert group["locked_by_session"] is None
        async with session.transaction() as again:
            messages = await again.receive("shop")
            assert [one.body for one in messages] == [b"taken", b"waiting"]
            assert await again.state(messages[0].group_id) is None
        assert await bodies(session, "desk") == []


@pytest.mark.of_files("backup is of files")
@pytest.mark.rule("MAN-11", "CLP-95")
@scenario
async def test_the_daemon_writes_a_backup_and_says_so(place: Place) -> None:
    await place.talk()
    target = place.folder / "backups" / "main.db"
    target.parent.mkdir()
    size = await place.main.admin.backup(target)
    assert target.stat().st_size == size
    (line,) = place.audited("backup")
    assert line["path"] == str(target)
    with pytest.raises(BackupFailed, match="is there already"):
        await place.main.admin.backup(target)
    with pytest.raises(InvalidArgument, match="absolute"):
        await place.main.admin.backup("main.db")
    await place.talk()  # a backup that failed stops nothing


@pytest.mark.rule("MAN-11", "CLP-95")
@scenario
async def test_no_backup_is_written_among_the_stores_whatever_its_path_says(place: Place) -> None:
    folder = place.folder
    around = folder.with_name("around")
    around.mkdir()
    (around / "link").symlink_to(folder)
    upkeep = place.daemon.instance.parts.administration._upkeep
    upkeep._backup_dirs = [folder, around / "link"]  # as settings may name them by mistake
    before = sorted(folder.iterdir())
    for target in (
        folder / "copy.db",
        around / "link" / "copy.db",
        folder / "main.db",  # there already, but that is not what is wrong with it
    ):
        with pytest.raises(InvalidArgument) as caught:
            await place.main.admin.backup(target)
        assert f"would lie in {folder}," in caught.value.message
        assert "another directory" in caught.value.hint
    assert sorted(folder.iterdir()) == before
    assert place.audited("backup") == []


@pytest.mark.of_files("backup is of files")
@pytest.mark.rule("SX-22", "CLP-95")
@scenario
async def test_a_client_has_a_backup_written_below_the_named_directories_only(place: Place) -> None:
    elsewhere = place.folder.with_name("elsewhere")
    elsewhere.mkdir()
    backups = place.folder / "backups"
    for target in (
        elsewhere / "copy.db",
        place.folder / "metrics" / "copy.db",
        place.folder / "backups.db",
        backups / ".." / ".." / "elsewhere" / "copy.db",
    ):
        with pytest.raises(InvalidArgument, match=r"store\.backup_dirs") as caught:
            await place.main.admin.backup(target)
        assert str(backups) in caught.value.hint
    assert list(elsewhere.iterdir()) == []
    assert place.audited("backup") == []
    await place.main.admin.backup(backups / "copy.db")  # the directory is made
    assert stat.S_IMODE(backups.stat().st_mode) == 0o700
    assert stat.S_IMODE((backups / "copy.db").stat().st_mode) == 0o600


@pytest.mark.of_files("backup is of files")
@pytest.mark.rule("MAN-8", "MAN-11", "OBJ-2", "REL-15", "REL-30")
@scenario
async def test_a_backup_put_back_in_its_place_keeps_its_identifier(place: Place) -> None:
    handle = await place.main.begin_dialog("urn:desk", "urn:shop", "talk")
    await place.main.send(handle, b"kept", "Ask")
    away = await place.main.begin_dialog("urn:desk", "urn:nowhere", "talk")
    await place.main.send(away, b"waits", "Ask")
    await place.main.set_timer(away, 600)
    await place.main.create("queue", "made")
    before = await place.broker("main")
    target = place.folder / "backups" / "main.db"
    target.parent.mkdir()
    await place.main.admin.backup(target)
    await place.main.send(handle, b"later", "Ask")
    await place.main.send(away, b"later", "Ask")
    await place.main.set_timer(away, None)
    await place.main.drop("queue", "made")
    await place.daemon.stop()
    target.replace(place.folder / "main.db")
    await place.daemon.start(declare=False)
    assert await place.broker("main") == before | {"epoch": 2}  # opened again
    async with await place.daemon.session() as session:
        assert await bodies(session, "shop") == [b"kept"]
        waiting = await session.view("transmission_queue", bodies=True)
        assert [row["message_body"] for row in waiting] == [b"waits"]
        assert "made" in {row["name"] for row in await session.view("service_queues")}
        assert sorted(row["state"] for row in await session.view("conversation_endpoints")) == [
            "CO",
            "CO",
            "CO",
        ]
        (told,) = await session.receive("desk", wait=601, autocommit=True)
        assert (told.handle, told.is_timer) == (away, True)


@pytest.mark.of_files("backup is of files")
@pytest.mark.rule("MAN-5", "MAN-8")
@scenario
async def test_a_broker_that_was_put_back_ends_what_its_peers_know_more_of(place: Place) -> None:
    """Without it the peer would wait for what the broker has forgotten that it sent."""
    handle = await place.talk(b"1")
    target = place.folder / "backups" / "main.db"
    await place.main.admin.backup(target)
    for body in (b"2", b"3"):
        await place.main.send(handle, body, "Ask")
    later = await place.talk(b"only the peer knows of this dialog")
    await place.daemon.stop()
    target.replace(place.folder / "main.db")
    await place.daemon.start()
    state = await place.main.admin.error_conversations()
    assert state.endpoints == {"CO": 1}
    await place.daemon.pass_time(1)
    (mine,) = await place.main.receive("desk", conversation=handle, autocommit=True)
    assert mine.error is not None
    assert mine.error.number == -9719
    told: dict[bytes, list[object]] = {}
    while got := await place.east.receive("harbour", 10, autocommit=True):
        for one in got:
            number = None if one.error is None else one.error.number
            told.setdefault(one.handle, []).append(number or one.body)
    assert [-9720, b"1", b"2", b"3"] in told.values()
    (unknown,) = [one for one in told if -9720 not in told[one]]
    await place.east.send(unknown, b"is anybody there", "Answer")
    await place.daemon.pass_time(1)
    assert await place.states(place.east) == ["ER", "ER"]
    with pytest.raises(ConversationNotFound):
        await place.main.send(later, b"4", "Ask")


@pytest.mark.of_files("backup is of files")
@pytest.mark.rule("MAN-9")
@scenario
async def test_a_backup_of_a_broker_has_nothing_of_the_instance(place: Place) -> None:
    """Not the routes of what arrives, nor what others may do at its endpoint."""
    await place.main.create("instance_route", "in", service="urn:in", address="TCP://next:4023")
    target = place.folder / "backups" / "main.db"
    await place.main.admin.backup(target)
    assert b"tcp://next:4023" not in target.read_bytes()
    await place.main.drop("instance_route", "in")
    await place.daemon.stop()
    target.replace(place.folder / "main.db")
    await place.daemon.start()
    names = [row["name"] for row in await place.main.view("instance_routes")]
    assert names == ["AutoCreatedLocal"]
    await place.main.create("route", "own", service="urn:own", address="TCP://next:4023")
    await place.main.admin.backup(target)
    assert b"tcp://next:4023" in target.read_bytes()
