"""What the network parts have running: nothing for a dialog, a message or a destination."""

import asyncio

import pytest

from tests.integration.peers import Net, Peer, peers, route


def _tasks() -> int:
    return sum(not task.done() for task in asyncio.all_tasks())


@pytest.mark.rule("XMT-1", "XMT-2", "DSP-6", "PER-4")
@peers("west", "east", "third")
async def test_many_dialogs_of_several_destinations_need_no_task_of_their_own(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    """Each registers, is classified, and yields what it has: messages, or nothing but an ack."""
    handles = [await west.talk(f"urn:{to}", b"0") for to in ("east", "third") for _ in range(20)]
    await net.wait(5)
    before = _tasks()
    for peer in (east, third):
        peer.instance.parts.destinations.pause_receiving()
    for handle in handles:
        await west.session.send(handle, b"1", "Ask")
    await net.wait(1)
    assert _tasks() <= before
    for peer in (east, third):
        peer.instance.parts.destinations.resume_receiving()
    await net.wait(1)
    assert _tasks() <= before
    assert {west.out(handle).pending for handle in handles} == {0}  # by acks, which are no rows
    assert len(await east.bodies()) == len(await third.bodies()) == 40


@pytest.mark.rule("XMT-1")
@peers("west", "east", routes=False)
async def test_a_dialog_that_owes_nothing_but_an_ack_is_classified_too(
    net: Net, west: Peer, east: Peer
) -> None:
    await west.apply(route=[route("east")])
    await east.apply(route=[route("west")])
    await west.talk("urn:east", b"0")
    await net.wait(1)
    classified = east.log.of("broker.message_classify")
    assert [line["subclass"] for line in classified] == ["remote"]


@pytest.mark.rule("MON-10")
@peers("west", "east")
async def test_no_event_tells_what_is_in_a_message(net: Net, west: Peer, east: Peer) -> None:
    """Whatever happens to it: it arrives, is refused, has no route, ends in an error."""
    secret = b"the-secret-in-the-message"
    handle = await west.talk("urn:east", secret)
    await west.talk("urn:nowhere", secret)
    refused = await west.talk("urn:east", secret)
    await west.session.send(refused, b"{" + secret, "Json")
    await east.queue(on=False)
    await west.session.send(handle, secret, "Ask")
    await net.wait(2)
    await east.queue(on=True)
    await net.wait(30)
    await west.session.end(handle, 7, "an error of the application")
    await net.wait(30)
    lines = west.log.lines + east.log.lines
    told = {event for event, _ in lines}
    assert {"broker.message_undeliverable", "broker.message_classify"} <= told
    assert not [line for line in lines if secret.decode() in repr(line)]
