"""A side that has forgotten what the other was promised is noticed at the first contact (REL-15).

The forgetting is done to the store itself, with the daemon down: a copy is put back."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from brokerd.protocol.dialog import HISTORY_LOST
from tests.integration.peers import Net, Peer, peers


def _files(net: Net, peer: Peer) -> Path:
    return Path(net._directory) / peer.one.name


async def _copy(net: Net, peer: Peer) -> Path:
    """Stop it, copy its stores, and start it again."""
    peer.one.crash()
    kept = _files(net, peer).with_name(f"{peer.one.name}-kept")
    shutil.copytree(_files(net, peer), kept)
    await peer.one.start()
    peer.listen()
    await net.wait(70)  # its peer connects again
    return kept


async def _put_back(net: Net, peer: Peer, kept: Path) -> None:
    peer.one.crash()
    shutil.rmtree(_files(net, peer))
    shutil.copytree(kept, _files(net, peer))
    await peer.one.start()
    peer.listen()
    await net.wait(70)  # its peer connects again


async def _both_ended(net: Net, west: Peer, east: Peer, handle: bytes) -> None:
    at_west = west.live(handle).endpoint
    other = east.other_side(at_west.conversation_id)
    assert other is not None
    at_east = other.endpoint
    assert (str(at_west.state), at_west.error_code) == ("ER", HISTORY_LOST)
    assert (str(at_east.state), at_east.error_code) == ("ER", HISTORY_LOST)
    told = west.log.of("broker.history_lost") + east.log.of("broker.history_lost")
    assert len(told) == 1
    assert (
        west.instance.parts.dispatcher.history_lost + east.instance.parts.dispatcher.history_lost
        == 1
    )


@pytest.mark.rule("REL-15", "DLP-17", "ERR-B2")
@peers("west", "east")
async def test_a_sender_that_forgot_what_it_sent(net: Net, west: Peer, east: Peer) -> None:
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    kept = await _copy(net, west)
    for body in (b"2", b"3"):
        await west.session.send(handle, body, "Ask")
    await net.wait(1)
    await _put_back(net, west, kept)
    await west.session.send(handle, b"other", "Ask")
    await net.wait(1)
    await _both_ended(net, west, east, handle)
    found = await east.messages()
    assert [one.body for one in found if one.message_type == "Ask"] == [b"1", b"2", b"3"]


@pytest.mark.rule("REL-15")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_sender_that_begins_anew_where_it_forgot(tmp_path: Path, restarted: bool) -> None:
    """As many new messages as were forgotten: only their identity tells, which the receiver keeps
    over a restart of its own."""

    @peers("west", "east")
    async def program(net: Net, west: Peer, east: Peer) -> None:
        await _begin_anew(net, west, east, restarted=restarted)

    program(tmp_path)


async def _begin_anew(net: Net, west: Peer, east: Peer, *, restarted: bool) -> None:
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    kept = await _copy(net, west)
    await west.session.send(handle, b"2", "Ask")
    await net.wait(1)
    if restarted:
        await east.one.restart()
        east.listen()
        await net.wait(70)
    await _put_back(net, west, kept)
    await west.session.send(handle, b"other", "Ask")
    await net.wait(1)
    await _both_ended(net, west, east, handle)
    found = await east.messages()
    assert [one.body for one in found if one.message_type == "Ask"] == [b"1", b"2"]


@pytest.mark.rule("REL-15", "DLP-16")
@peers("west", "east")
async def test_a_receiver_that_forgot_what_it_acknowledged(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    kept = await _copy(net, east)
    for body in (b"2", b"3"):
        await west.session.send(handle, body, "Ask")
    await net.wait(1)
    assert west.out(handle).pending == 0
    await _put_back(net, east, kept)
    await west.session.send(handle, b"4", "Ask")
    await net.wait(1)
    await _both_ended(net, west, east, handle)
    found = await east.messages()
    assert [one.body for one in found if one.message_type == "Ask"] == [b"1"]


@pytest.mark.rule("REL-15")
@peers("west", "east")
async def test_a_store_that_lost_nothing_of_a_dialog_goes_on(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    kept = await _copy(net, east)
    await net.wait(1)
    await _put_back(net, east, kept)
    await west.session.send(handle, b"2", "Ask")
    await net.wait(1)
    assert await east.bodies() == [b"1", b"2"]
    assert not west.log.of("broker.history_lost")


@pytest.mark.rule("REL-15")
@peers("west", "east")
async def test_what_was_withdrawn_is_not_forgotten(net: Net, west: Peer, east: Peer) -> None:
    """An Error takes the place of what was not sent: the gap it leaves is meant (DLG-T11)."""
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    await east.queue(on=False)
    for body in (b"2", b"3"):
        await west.session.send(handle, body, "Ask")
    await net.wait(1)
    assert west.out(handle).pending == 2
    await west.session.end(handle, 7, "no more")
    await east.queue(on=True)
    await net.wait(70)
    found = await east.messages()
    assert {one.message_type for one in found} == {"Ask", "urn:brokerd:Error"}
    assert not east.log.of("broker.history_lost")


def _base(west: Peer, handle: bytes) -> Any:
    return west.out(handle).base_sequence


@pytest.mark.rule("DLP-16")
@peers("west", "east")
async def test_the_base_is_the_oldest_that_is_held(net: Net, west: Peer, east: Peer) -> None:
    handle = await west.talk("urn:east")
    assert _base(west, handle) == 0 if west.live(handle).outgoing else True
    net.cut()
    for n in range(5):
        await west.session.send(handle, b"%d" % n, "Ask")
    await net.wait(1)
    assert _base(west, handle) == 0
    await west.one.restart()  # now all of it is in the store, and read again bit by bit
    assert _base(west, handle) == 0
    net.heal()
    await net.wait(100)
    assert _base(west, handle) == 5
