"""Another master key takes over; a crash at any step loses nothing (SEC-71 to SEC-73)."""

import asyncio
from pathlib import Path

import pytest

from brokerd.errors import InUse
from brokerd.ids import Handle
from brokerd.security.master_key import MOST_FORMER
from brokerd.storage.files.key_file import NAME, read_keys
from brokerd.telemetry.status import way_to_master_key
from tests.integration.admin.pairing.machines import Machine, two_machines
from tests.integration.shorthand import fails


class Crash(Exception):
    """The machine has failed at a point."""


def key_file(at: Machine) -> Path:
    return at.folder / at.name / NAME


def keys(at: Machine) -> tuple[bytes, ...]:
    found = read_keys(key_file(at))
    assert found is not None
    return found


def fail_at(at: Machine, point: str) -> None:
    def fault(name: str) -> None:
        if name == point:
            raise Crash(name)

    at.fault = fault
    at.instance.parts.key_rotation._fault = fault


async def again(at: Machine) -> None:
    await at.stop()
    await at.start(at.folder)


async def pair(east: Machine, west: Machine) -> None:
    shown = await east.session.admin.invite_peer(shares=["urn:east"])
    await west.session.admin.join_peer(shown.code, shares=["urn:west"])


async def begin(east: Machine) -> bytes:
    """Begin a dialog that is secured, and exchange a message."""
    return await east.session.begin_dialog("urn:east", "urn:west", "talk")


async def exchange(at: Machine, handle: bytes, body: bytes, other: Machine) -> bytes:
    """Send on a dialog, and return the handle of the side that receives it."""
    await at.session.send(handle, body, "Ask")
    async with other.session.transaction() as tx:
        (message,) = await tx.receive("box", wait=60.0)
        assert message.body == body
    return message.handle


def wrapped(at: Machine, handle: bytes) -> bytes:
    live = at.broker.endpoints.find(Handle(handle))
    assert live is not None
    assert live.endpoint.security is not None
    return live.endpoint.security


def is_current(at: Machine) -> bool:
    """Whether all private keys, and the store of the broker, are of the present key alone."""
    master = at.instance.parts.credential_store.key()
    rotation = at.instance.parts.key_rotation
    return not rotation._renewed(master) and (
        at.broker.store.identity.master_key == master.fingerprint
    )


@pytest.mark.rule("SEC-71", "CLP-173")
@two_machines
async def test_dialogs_go_on_under_another_key(east: Machine, west: Machine) -> None:
    await pair(east, west)
    mine = await begin(east)
    theirs = await exchange(east, mine, b"1", west)
    before = keys(east), wrapped(east, mine)
    for one in (east, west):
        assert await one.session.admin.rotate_master_key() == ["main"]
        present, former = keys(one)
        assert present != former
    assert keys(east)[1:] == before[0]
    assert await exchange(west, theirs, b"2", east) == mine
    await asyncio.gather(again(east), again(west))
    assert is_current(east)
    assert is_current(west)
    assert await exchange(east, mine, b"3", west) == theirs
    assert await exchange(west, theirs, b"4", east) == mine
    assert wrapped(east, mine) != before[1]
    # what is stored needs no former key any more
    for one in (east, west):
        await one.stop()
        first, *_ = key_file(one).read_bytes().splitlines(keepends=True)
        key_file(one).write_bytes(first)
        await one.start(one.folder)
        assert not one.instance.parts.key_rotation.why_no_key()
    assert await exchange(east, mine, b"5", west) == theirs


@pytest.mark.rule("SEC-71")
@pytest.mark.parametrize("point", ["rotate.file", "rotate.private_keys", "rotate.dialogs"])
def test_a_crash_at_any_step_loses_nothing(tmp_path: Path, point: str) -> None:
    @two_machines
    async def play(east: Machine, west: Machine) -> None:
        await pair(east, west)
        mine = await begin(east)
        theirs = await exchange(east, mine, b"1", west)
        fail_at(east, point)
        try:
            await east.instance.parts.key_rotation.rotate(actor="me")
        except Crash:
            assert point != "rotate.dialogs"
        await east.stop()
        try:
            await east.start(east.folder)
        except Crash:
            assert point == "rotate.dialogs"
            east.fault = None
            await east.start(east.folder)
        assert is_current(east)
        assert len(keys(east)) == 2
        assert await exchange(west, theirs, b"2", east) == mine
        assert await exchange(east, mine, b"3", west) == theirs

    play(tmp_path)


@pytest.mark.rule("SEC-72")
@two_machines
async def test_what_an_initiator_has_forgotten_is_answered_after_a_rotation(
    east: Machine, west: Machine
) -> None:
    await pair(east, west)
    mine = await begin(east)
    theirs = await exchange(east, mine, b"1", west)
    await east.session.admin.rotate_master_key()
    await east.session.admin.clean_up(mine, reason="a test")
    await west.session.send(theirs, b"2", "Ask")
    async with west.session.transaction() as tx:
        (message,) = await tx.receive("box", wait=600.0)
    assert message.message_type == "urn:brokerd:Error"


@pytest.mark.rule("SEC-71")
@two_machines
async def test_only_so_many_former_keys_are_kept(east: Machine, west: Machine) -> None:
    assert west.name
    for _ in range(MOST_FORMER + 2):
        await east.session.admin.rotate_master_key()
        await fails(InUse, east.session.admin.rotate_master_key())
        await again(east)
        assert is_current(east)
    assert len(keys(east)) == 1 + MOST_FORMER


@pytest.mark.rule("SEC-71")
@two_machines
async def test_no_key_goes_that_an_absent_broker_may_need(east: Machine, west: Machine) -> None:
    assert west.name
    for _ in range(MOST_FORMER):
        await east.session.admin.rotate_master_key()
        await again(east)
    await east.session.apply({"broker": {"name": "north"}})
    await east.stop()
    store = next((east.folder / east.name).glob("**/north.db"))
    content = store.read_bytes()
    store.write_bytes(b"a shopping list\n" * 20)
    await east.start(east.folder)
    before = keys(east)
    error = await fails(InUse, east.session.admin.rotate_master_key())
    assert "dialogs of north" in error.message
    assert keys(east) == before
    await east.stop()
    store.write_bytes(content)
    await east.start(east.folder)
    await east.session.admin.rotate_master_key()


@pytest.mark.rule("SEC-73", "SEC-38")
@two_machines
async def test_a_store_of_another_key_is_named_and_left_alone(east: Machine, west: Machine) -> None:
    await pair(east, west)
    mine = await begin(east)
    theirs = await exchange(east, mine, b"1", west)
    await east.broker.store.change_identity(master_key=b"another one's it")
    await again(east)
    status = await east.session.status()
    assert "'main' are encrypted by another master key" in str(status["no_master_key"])
    assert east.broker.store.identity.master_key == b"another one's it"
    other = await begin(east)
    await east.session.send(other, b"2", "Ask")
    found = await east.session.transmission_status(other)
    assert found.status_key == "no_master_key"
    master = east.instance.parts.credential_store.key()
    await east.broker.store.change_identity(master_key=master.fingerprint)
    await again(east)
    assert await exchange(west, theirs, b"3", east) == mine


@pytest.mark.rule("SEC-73", "RTE-50")
@two_machines
async def test_a_mirror_is_warned_before_it_takes_over(east: Machine, west: Machine) -> None:
    assert west.name
    rotation = east.instance.parts.key_rotation
    mine = east.instance.parts.credential_store.key().fingerprint
    owners = {"shared": mine}
    rotation._owners = lambda: owners
    assert rotation.why_no_key() == ""
    owners["shared"] = b"another one's it"
    assert "broker 'shared'" in rotation.why_no_key()
    assert "copy master.key" in way_to_master_key(rotation.why_no_key())
