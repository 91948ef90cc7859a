"""The event `broker.remote_ack`, which the log has at level debug (MON-16)."""

import msgspec
import pytest

from brokerd.config.settings import LogLevel, LogSettings
from brokerd.ids import show
from tests.integration.peers import Net, Peer, peers

DEBUG = LogSettings(level=LogLevel.DEBUG)
EVENT = "broker.remote_ack"


def kinds(peer: Peer) -> list[object]:
    return [line["subclass"] for line in peer.log.of(EVENT)]


async def answer(peer: Peer, body: bytes) -> None:
    """Receive one message and reply to it."""
    async with peer.session.transaction() as tx:
        (asked,) = await tx.receive("box")
        await tx.send(asked.handle, body, "Answer")


@pytest.mark.rule("MON-16", "DLP-18", "DLP-19")
@peers("west", "east", log=DEBUG)
async def test_each_acknowledgement_is_one_line_on_both_sides(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)  # alone, since nothing goes back meanwhile
    assert kinds(east)[:1] == ["ack_sent"]
    assert kinds(west)[:1] == ["ack_received"]
    sent, came = east.log.of(EVENT)[0], west.log.of(EVENT)[0]
    conversation = west.live(handle).endpoint.conversation_id
    for line, role in ((sent, "target"), (came, "initiator")):
        assert (line["role"], line["broker"]) == (role, "main")
        assert line["conversation_id"] == show(conversation)
        assert (line["acked_sequence"], line["sequence"], line["fragment"]) == (0, None, None)
        assert (line["priority"], line["honor_priority"]) == (5, False)
    assert sent["starvation_elevation"] == 0
    assert "starvation_elevation" not in came

    before = len(kinds(east)), len(kinds(west))
    await answer(east, b"2")  # with the message that goes back
    await net.wait(1)
    assert kinds(east)[before[0]] == "message_with_ack_sent"
    assert kinds(west)[before[1]] == "message_with_ack_received"
    carried = east.log.of(EVENT)[before[0]]
    assert (carried["sequence"], carried["fragment"], carried["acked_sequence"]) == (0, 0, 0)


@pytest.mark.rule("MON-16")
@peers("west", "east")
async def test_it_is_not_written_unless_asked_for(net: Net, west: Peer, east: Peer) -> None:
    await west.talk("urn:east", b"1")
    await net.wait(1)
    await answer(east, b"2")
    await net.wait(1)
    assert kinds(west) == kinds(east) == []


@pytest.mark.rule("MON-16", "REL-38")
@peers("west", "east")
async def test_settings_that_are_read_again_turn_it_on_and_off(
    net: Net, west: Peer, east: Peer
) -> None:
    before = west.instance.settings
    for peer in (west, east):
        peer.instance.use_settings(msgspec.structs.replace(peer.instance.settings, log=DEBUG))
    await west.talk("urn:east", b"1")
    await net.wait(1)
    lines = len(kinds(west)), len(kinds(east))
    assert "ack_received" in kinds(west)
    assert "ack_sent" in kinds(east)
    west.instance.use_settings(before)
    await west.talk("urn:east", b"2")
    await net.wait(1)
    assert len(kinds(west)) == lines[0]
    assert len(kinds(east)) > lines[1]


@pytest.mark.rule("TRN-42")
@peers("west", "east", log=DEBUG)
async def test_what_waited_for_its_turn_says_how_many_levels_it_gained(
    net: Net, west: Peer, east: Peer
) -> None:
    await west.talk("urn:east", b"1")
    await net.wait(1)
    net.cut()
    await net.wait(120)  # until the connection is known to be lost
    await answer(east, b"2")
    before = len(kinds(east))
    clock, began = east.broker.clock, east.broker.clock.monotonic()
    await net.wait(40)
    net.heal()
    while len(kinds(east)) == before:
        await net.wait(0.5)
    waited = clock.monotonic() - began
    line = east.log.of(EVENT)[before]
    assert line["subclass"] == "message_with_ack_sent"
    assert line["starvation_elevation"] in (int((waited - 0.5) / 10), int(waited / 10))
    assert waited > 40
