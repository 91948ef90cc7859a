"""An instance knows which brokers it has, and misses one whose file is gone (MAN-16 to MAN-18)."""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import brokerd
from brokerd.broker.broker import Broker
from brokerd.client.session import Session
from brokerd.errors import (
    BrokerUnavailable,
    Busy,
    InUse,
    InvalidArgument,
    ObjectNotFound,
    StoreDamaged,
    StoreLocked,
    StoreMissing,
    UnsafeFile,
)
from brokerd.ids import BrokerId, show
from brokerd.instance.preflight import check_start, missing_stores
from brokerd.process.exit_statuses import exit_status
from brokerd.storage.file_checks import read_known_brokers
from brokerd.telemetry.logs import ADMINISTRATION, STORE
from tests.acceptance.serving import tree
from tests.integration.instance.second_broker import EAST, FIVE_TICKS, bodies, settings, view
from tests.integration.mirrored import SHARED, Trio, mirrored
from tests.integration.one_daemon import Daemon, play
from tests.integration.scenarios import given

pytestmark = pytest.mark.of_files("it takes store files away and puts them back")

NEW_ID = bytes(range(16))
LATER_TABLES = (
    *("certificates", "principals", "grants", "audit", "remote_service_bindings"),
    *("idle_dialogs", "dialog_owners"),
)
"""Tables that revision 0022 makes."""


class Place:
    """A daemon with the brokers main and east, whose files can be taken away."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.file = folder / "east.db"
        self.away = folder / "elsewhere"
        self.east_id = b""

    async def declare(self) -> None:
        async with await self.daemon.session() as admin:
            await admin.apply(EAST)
        self.east_id = self.daemon.instance.brokers["east"].broker_id

    async def lose(self, *, declare: bool = True) -> None:
        """Start the daemon again without the file."""
        await self.daemon.stop()
        self.file.rename(self.away)
        await self.daemon.start(declare=declare)

    async def put_back(self) -> None:
        self.away.rename(self.file)
        await self.daemon.pass_time(FIVE_TICKS)

    async def known(self) -> dict[str, BrokerId]:
        """What is on disk; the daemon is down for it."""
        await self.daemon.stop()
        found = read_known_brokers(self.folder / "msdb.db")
        await self.daemon.start()
        return found

    def told(self, subclass: str, event: str = STORE) -> list[dict[str, object]]:
        return [
            fields
            for name, fields in self.daemon.log.lines
            if name == event and fields["subclass"] == subclass
        ]


@asynccontextmanager
async def with_east(daemon: Daemon, folder: Path) -> AsyncIterator[tuple[Place]]:
    place = Place(daemon, folder)
    await place.declare()
    yield (place,)


scenario = given(with_east)


async def row_of(session: Session, name: str) -> dict[str, object]:
    (row,) = [one for one in await view(session, "brokers") if one["name"] == name]
    return row


# What is remembered.


@pytest.mark.rule("MAN-16")
@scenario
async def test_each_broker_but_msdb_is_remembered_once_it_is_made(place: Place) -> None:
    main = place.daemon.broker.broker_id
    assert await place.known() == {"main": main, "east": place.east_id}


@pytest.mark.rule("MAN-16")
@scenario
async def test_it_is_durable_before_the_broker_serves(place: Place) -> None:
    seen: list[dict[str, object]] = []
    take_in = place.daemon.instance.stores._add_broker

    def looking(store: object) -> Broker:
        with sqlite3.connect(f"file:{place.folder}/msdb.db?mode=ro", uri=True) as msdb:
            seen.append(dict(msdb.execute("SELECT name, broker_id FROM known_brokers")))
        msdb.close()
        return take_in(store)  # type: ignore[arg-type]

    place.daemon.instance.stores._add_broker = looking  # type: ignore[method-assign]
    async with await place.daemon.session() as admin:
        await admin.apply({**EAST, "broker": {"name": "west"}})
    west = place.daemon.instance.brokers["west"].broker_id
    assert [one["west"] for one in seen] == [west]


@pytest.mark.rule("MAN-16", "MAN-6")
@scenario
async def test_a_new_identifier_is_remembered(place: Place) -> None:
    async with await place.daemon.session() as admin:
        await admin.admin.new_broker("east", broker_id=NEW_ID)
    assert (await place.known())["east"] == NEW_ID
    assert place.told("replaced") == []


@pytest.mark.rule("MAN-16", "REL-29")
@scenario
async def test_what_an_older_version_left_is_remembered_at_the_first_start(place: Place) -> None:
    await place.daemon.stop()
    for file in place.folder.glob("*.db"):
        connection = sqlite3.connect(file)
        for table in ("known_brokers", "queue_drops", *LATER_TABLES):
            connection.execute(f"DROP TABLE {table}")
        for column in ("max_messages", "max_bytes"):
            connection.execute(f"ALTER TABLE service_queues DROP COLUMN {column}")
        connection.execute("ALTER TABLE conversation_endpoints DROP COLUMN security")
        connection.execute("ALTER TABLE store DROP COLUMN master_key")
        shelves = [f"shelf_{number}" for number in range(2, 18)]
        for table in ("queue_messages", *shelves, "retained_messages"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN flags")
        connection.execute("UPDATE alembic_version SET version_num = '0018_shelves'")
        connection.commit()
        connection.close()
    assert read_known_brokers(place.folder / "msdb.db") == {}
    check_start(settings(place.folder), None)
    await place.daemon.start(declare=False)
    assert (await place.known())["east"] == place.east_id
    assert place.told("replaced") == []


@pytest.mark.rule("MAN-16", "MAN-7", "MAN-8")
@scenario
async def test_a_file_that_is_there_says_who_it_is(place: Place) -> None:
    await place.daemon.stop()
    shutil.copy(place.file, place.away)
    await place.daemon.start()
    async with await place.daemon.session() as admin:
        await admin.admin.new_broker("east", broker_id=NEW_ID)
    await place.daemon.stop()
    place.away.replace(place.file)
    for _ in range(2):
        await place.daemon.start()
        assert place.daemon.instance.brokers["east"].enabled
        await place.daemon.stop()
    (line,) = place.told("replaced")
    assert (line["before"], line["after"]) == (show(NEW_ID), show(place.east_id))
    assert read_known_brokers(place.folder / "msdb.db")["east"] == place.east_id
    await place.daemon.start()


# Missed at a start.


@pytest.mark.rule("MAN-17", "CLK-6", "VIEW-10")
@scenario
async def test_one_whose_file_is_gone_is_absent_and_serves_when_it_is_back(place: Place) -> None:
    async with await place.daemon.session() as session:
        handle = await session.begin_dialog("urn:desk", "urn:harbour", "talk")
        await session.send(handle, b"one", "Ask")
        await place.daemon.pass_time(1)
    await place.lose()
    why = f"{place.file} is not there, and this instance has a broker east ({show(place.east_id)})"
    with pytest.raises(BrokerUnavailable, match="was a mount forgotten, or the file moved") as told:
        await place.daemon.session(broker="east")
    assert told.value.message.startswith(f"broker 'east' cannot be opened: {why}")
    assert "brokerd broker forget east" in told.value.hint
    async with await place.daemon.session() as session:
        await session.send(handle, b"two", "Ask")
        stores = msgspec.convert((await session.status())["stores"], list[dict[str, object]])
        assert [(one["broker"], one["state"]) for one in stores] == [
            ("msdb", "ok"),
            ("main", "ok"),
            ("east", "missing"),
        ]
        assert str(stores[-1]["reason"]).startswith(why)
        row = await row_of(session, "east")
        assert row["broker_id"] == show(place.east_id)
        assert str(row["start_failure"]).startswith(why)
        await place.daemon.pass_time(3 * FIVE_TICKS)
        assert len(place.told("refused")) == 1
        assert not place.file.exists()
        await place.put_back()
        assert place.daemon.instance.brokers["east"].broker_id == place.east_id
        async with await place.daemon.session(broker="east") as there:
            assert await bodies(there, "harbour") == [b"one", b"two"]


@pytest.mark.rule("MAN-17")
@scenario
async def test_nothing_is_made_in_its_place_while_it_is_absent(place: Place) -> None:
    await place.lose()
    async with await place.daemon.session() as admin:
        for dry_run in (True, False):
            with pytest.raises(BrokerUnavailable, match="is not there"):
                await admin.apply(EAST, dry_run=dry_run)
    assert not place.file.exists()


@pytest.mark.rule("MAN-17", "SX-24")
@scenario
async def test_a_link_that_leads_nowhere_is_no_file(place: Place) -> None:
    await place.daemon.stop()
    mount = place.folder / "mount"
    mount.mkdir()
    place.file.rename(mount / "east.db")
    place.file.symlink_to(mount / "east.db")
    mount.rename(place.away)
    await place.daemon.start()
    assert isinstance(place.daemon.instance.parts.absent_brokers.reasons["east"], StoreMissing)
    place.away.rename(mount)
    await place.daemon.pass_time(FIVE_TICKS)
    refusal = place.daemon.instance.parts.absent_brokers.reasons["east"]
    assert isinstance(refusal, UnsafeFile)  # its log would lie beside the other file (SX-24)
    place.file.unlink()
    (mount / "east.db").rename(place.file)
    await place.daemon.pass_time(FIVE_TICKS)
    assert place.daemon.instance.brokers["east"].broker_id == place.east_id


@pytest.mark.rule("MAN-17", "BI-D1")
@scenario
async def test_a_start_for_which_it_is_declared_is_refused(place: Place) -> None:
    await place.daemon.stop()
    main = place.folder / "main.db"
    main.rename(place.away)
    before = tree(place.folder)
    with pytest.raises(StoreMissing, match=r"main\.db is not there") as refused:
        check_start(settings(place.folder), place.daemon.declared())
    assert exit_status(refused.value) == exit_status(StoreDamaged("x")) == 65
    assert tree(place.folder) == before
    with pytest.raises(StoreMissing, match=r"main\.db is not there"):
        await place.daemon.start()
    assert not main.exists()
    check_start(settings(place.folder), None)  # east would serve
    place.away.rename(main)
    await place.daemon.start()


@pytest.mark.rule("MAN-17", "CLK-6")
@scenario
async def test_a_start_that_would_serve_nobody_is_refused(place: Place) -> None:
    await place.daemon.stop()
    for name in ("main", "east"):
        (place.folder / f"{name}.db").rename(place.folder / name)
    assert set(missing_stores(settings(place.folder))) == {"main", "east"}
    with pytest.raises(StoreMissing, match=r"east\.db is not there"):
        check_start(settings(place.folder), None)
    with pytest.raises(StoreMissing, match="is not there"):
        await place.daemon.start(declare=False)
    for name in ("main", "east"):
        (place.folder / name).rename(place.folder / f"{name}.db")
    await place.daemon.start()


@pytest.mark.rule("MAN-17")
def test_who_runs_knows_better_than_who_looks(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        with pytest.raises(StoreLocked):
            missing_stores(settings(tmp_path))

    play(program, tmp_path)


# Gone for good.


@pytest.mark.rule("MAN-18", "CLP-132")
@scenario
async def test_what_is_forgotten_is_missed_no_more_and_its_name_is_free(place: Place) -> None:
    await place.lose()
    async with await place.daemon.session() as admin:
        assert await admin.admin.forget_broker("east") == show(place.east_id)
        (line,) = place.told("forget", ADMINISTRATION)
        assert line["before"] == {"name": "east", "broker_id": show(place.east_id)}
        assert [one["name"] for one in await view(admin, "brokers")] == ["main", "msdb"]
        with pytest.raises(ObjectNotFound, match="no broker 'east' here"):
            await admin.admin.forget_broker("east")
    await place.daemon.restart()
    assert "east" not in place.daemon.instance.parts.absent_brokers.reasons
    async with await place.daemon.session() as admin:
        await admin.apply(EAST)
    assert place.daemon.instance.brokers["east"].broker_id != place.east_id


@pytest.mark.rule("MAN-18", "CLP-132")
@scenario
async def test_what_is_there_is_not_forgotten(place: Place) -> None:
    async with await place.daemon.session() as admin:
        with pytest.raises(InUse, match=r"broker east is here: .*east\.db"):
            await admin.admin.forget_broker("east")
        with pytest.raises(InvalidArgument, match="msdb"):
            await admin.admin.forget_broker("msdb")
        for name in ("esat", "../daemon"):
            with pytest.raises(ObjectNotFound, match=f"there is no broker '{name}'") as refused:
                await admin.admin.forget_broker(name)
            assert refused.value.hint == "there is: east, main"
    await place.daemon.stop()
    good = place.file.read_bytes()
    place.file.write_bytes(b"a shopping list\n")
    await place.daemon.start()
    async with await place.daemon.session() as admin:
        with pytest.raises(InUse, match="broker east is here"):
            await admin.admin.forget_broker("east")
    place.file.write_bytes(good)
    await place.daemon.pass_time(FIVE_TICKS)
    assert (await place.known())["east"] == place.east_id


@pytest.mark.rule("MAN-18")
@scenario
async def test_one_whose_file_was_taken_away_while_it_is_open_is_not_forgotten(
    place: Place,
) -> None:
    place.file.rename(place.away)
    async with await place.daemon.session() as admin:
        with pytest.raises(InUse, match="broker east is here"):
            await admin.admin.forget_broker("east")
    place.away.rename(place.file)


@pytest.mark.rule("MAN-18", "CLP-132")
@scenario
async def test_one_that_is_being_opened_is_not_forgotten_meanwhile(place: Place) -> None:
    await place.lose()
    absent = place.daemon.instance.parts.absent_brokers
    async with await place.daemon.session() as admin:
        absent._trying.add("east")
        with pytest.raises(Busy, match="being opened just now"):
            await admin.admin.forget_broker("east")
        absent._trying.clear()
    await place.put_back()
    assert "east" in place.daemon.instance.brokers


# Files that are shared, and files of programs.


@pytest.mark.rule("MAN-17", "RTE-55")
@mirrored
async def test_a_shared_broker_is_missed_only_where_both_look_for_it(rig: Trio) -> None:
    await rig.left.restart()  # right takes it over, and left finds it held: nobody misses it
    for one in (rig.left, rig.right):
        assert not [
            reason
            for reason in one.instance.parts.absent_brokers.reasons.values()
            if isinstance(reason, StoreMissing)
        ]
    for one in (rig.left, rig.right):
        one.crash()
    file = rig.shared / f"{SHARED}.db"
    file.rename(rig.shared / "away")
    await rig.left.start()
    assert isinstance(rig.left.instance.parts.absent_brokers.reasons[SHARED], StoreMissing)
    assert not file.exists()
    (rig.shared / "away").rename(file)
    await rig.pass_time(10)
    assert (await rig.part(rig.left))[0] == "principal"
    await rig.right.start()


@pytest.mark.rule("MAN-17", "SDK-14")
async def test_who_has_only_files_may_start_over(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    for _ in range(2):
        async with brokerd.connect(f"file:{path}") as session:
            assert [one["name"] for one in await session.objects("queue")] == []
            await session.create("queue", "q")
            await session.admin.new_broker()
        path.unlink()
    async with brokerd.connect(f"file:{tmp_path}/other.db") as session:
        stores = msgspec.convert((await session.status())["stores"], list[dict[str, object]])
        assert [one["broker"] for one in stores] == ["msdb", "other"]
    assert read_known_brokers(tmp_path / "msdb.db") == {}


@pytest.mark.rule("MAN-17", "SDK-14")
def test_a_program_does_not_make_anew_what_a_daemon_has_served(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await Place(daemon, tmp_path).declare()

    play(program, tmp_path)
    (tmp_path / "east.db").rename(tmp_path / "away")
    with pytest.raises(StoreMissing, match=r"east\.db is not there"):
        brokerd.sync.connect(f"file:{tmp_path}/east.db")
    assert not (tmp_path / "east.db").exists()
    with brokerd.sync.connect(f"file:{tmp_path}/main.db") as session:  # another one is not its own
        stores = msgspec.convert(session.status()["stores"], list[dict[str, object]])
        assert [one["broker"] for one in stores] == ["msdb", "main"]
