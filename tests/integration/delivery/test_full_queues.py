"""Arrivals for a queue with limits: refused, named at their sender, and never lost (REL-42)."""

import pytest

from tests.integration.peers import Net, Peer, peers


@pytest.mark.rule("REL-42", "DSP-11", "NBT-4", "XMT-19")
@peers("west", "east")
async def test_what_a_full_queue_refuses_waits_at_its_sender_and_comes_when_there_is_room(
    net: Net, west: Peer, east: Peer
) -> None:
    await east.session.alter("queue", "box", max_messages=4)
    handle = await west.talk("urn:east", *(b"%d" % one for one in range(10)))
    await net.wait(1)
    assert await west.key(handle) == "peer_queue_full"
    assert str(west.live(handle).endpoint.state) == "CO"
    assert west.out(handle).pending == 6
    (row,) = await east.session.view("service_queues", where={"name": "box"})
    assert (row["ready_count"], row["is_full"]) == (4, True)
    assert row["refused_count"]
    got = []
    for _ in range(3):
        got += await east.bodies()
        await net.wait(0.1)  # and not at the next retransmission, up to 64 s away
    assert got == [b"%d" % one for one in range(10)]
    await net.wait(1)
    assert await west.status(handle) == ""
    (row,) = await east.session.view("service_queues", where={"name": "box"})
    assert (row["ready_count"], row["is_full"]) == (0, False)


@pytest.mark.rule("REL-42", "DLP-11", "DLP-13")
@peers("west", "east")
async def test_messages_in_fragments_wait_for_room_as_a_whole(
    net: Net, west: Peer, east: Peer
) -> None:
    await east.session.alter("queue", "box", max_bytes=10_000)
    handle = await west.talk("urn:east", *(bytes([one]) * 9000 for one in range(5)))
    await net.wait(1)
    assert await west.key(handle) == "peer_queue_full"
    (row,) = await east.session.view("service_queues", where={"name": "box"})
    assert row["message_bytes"] == 18_000  # the limit was not reached before the second
    got = []
    for _ in range(3):
        got += await east.bodies()
        await net.wait(0.1)
    assert got == [bytes([one]) * 9000 for one in range(5)]


@pytest.mark.rule("REL-42")
@peers("west", "east")
async def test_new_dialogs_wait_and_ends_do_not(net: Net, west: Peer, east: Peer) -> None:
    await east.session.alter("queue", "box", max_messages=1)
    first = await west.talk("urn:east", b"1")
    await net.wait(1)
    second = await west.talk("urn:east", b"2")
    await west.session.end(first)
    await net.wait(1)
    assert await west.key(second) == "peer_queue_full"
    got = await east.session.receive("box", autocommit=True)
    assert [one.message_type for one in got] == ["Ask", "urn:brokerd:EndDialog"]
    await net.wait(1)
    assert await east.bodies() == [b"2"]


@pytest.mark.rule("REL-42")
@peers("west", "east")
async def test_a_limit_that_is_raised_lets_the_refused_go_on_at_once(
    net: Net, west: Peer, east: Peer
) -> None:
    await east.session.alter("queue", "box", max_messages=2)
    handle = await west.talk("urn:east", b"1", b"2", b"3")
    await net.wait(100)
    assert await west.key(handle) == "peer_queue_full"
    await east.session.alter("queue", "box", max_messages=5)
    await net.wait(0.1)
    assert await east.bodies() == [b"1", b"2", b"3"]
