"""What a peer does not take is said to its sender (NBT-4), and taken back when it would be."""

from typing import Any

import pytest

from brokerd.config.settings import Dispatcher
from brokerd.delivery.peers.refusal_notices import _status_of
from brokerd.ids import ConversationId
from brokerd.protocol.neighbour import Notice
from tests.integration.peers import Net, Peer, peers, route


@pytest.mark.rule("PBT-2", "SND-18", "DSP-11", "NBT-4")
@peers("west", "east")
async def test_a_queue_that_is_off_is_named_at_the_sender_and_resumed_at_once(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    await east.queue(on=False)
    await west.session.send(handle, b"2", "Ask")
    await net.wait(1)
    assert await west.key(handle) == "peer_queue_disabled"
    assert str(west.live(handle).endpoint.state) == "CO"
    assert west.out(handle).pending == 1
    await net.wait(200)
    assert await west.key(handle) == "peer_queue_disabled"
    before = west.out(handle).window.attempts
    assert before >= 3
    await east.queue(on=True)
    await net.wait(0.1)  # and not at the next retransmission, up to 64 s away
    assert await east.bodies() == [b"1", b"2"]
    await net.wait(1)
    assert await west.status(handle) == ""


@pytest.mark.rule("SND-18", "DLG-T14")
@peers("west", "east")
async def test_what_waits_for_a_queue_waits_until_the_lifetime_ends(
    net: Net, west: Peer, east: Peer
) -> None:
    await east.queue(on=False)
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", lifetime=300)
    await west.session.send(handle, b"1", "Ask")
    await net.wait(290)
    assert str(west.live(handle).endpoint.state) == "CO"
    assert await west.key(handle) == "peer_queue_disabled"
    await net.wait(20)
    (told,) = await west.messages()
    assert told.error is not None
    assert told.error.number == -8489
    assert west.out(handle).pending == 1  # it can still be copied to another dialog
    await east.queue(on=True)
    await net.wait(100)
    assert await east.bodies() == []


@pytest.mark.rule("DSP-11")
@peers("west", "east")
async def test_every_sender_that_was_refused_resumes(net: Net, west: Peer, east: Peer) -> None:
    await east.queue(on=False)
    handles = [await west.talk("urn:east", b"%d" % n) for n in range(20)]
    await net.wait(100)
    await east.queue(on=True)
    await net.wait(0.2)
    found = await east.bodies()
    assert sorted(int(body or b"") for body in found) == list(range(20))
    await net.wait(1)
    assert {await west.key(handle) for handle in handles} == {""}


@pytest.mark.rule("NBT-4", "DSP-5", "DSP-13")
@peers("west", "east")
async def test_an_unknown_service_is_named_within_one_retry(
    net: Net, west: Peer, east: Peer
) -> None:
    await west.apply(route=[route("east", "urn:nobody", "nowhere")])
    handle = await west.talk("urn:nobody", b"1")
    await net.wait(5)
    assert await west.key(handle) == "target_notice"
    assert "local_service_missing" in await west.status(handle)
    assert str(west.live(handle).endpoint.state) == "CO"
    dispatcher = east.instance.parts.dispatcher
    assert dispatcher.dropped == {"local_service_missing": dispatcher.received}
    lines = east.log.of("broker.message_undeliverable")
    assert len(lines) == dispatcher.received  # one line and one count for each


@pytest.mark.rule("NBT-4")
@peers("west", "east")
async def test_one_notice_of_a_dialog_and_reason_in_ten_seconds(
    net: Net, west: Peer, east: Peer
) -> None:
    await west.apply(route=[route("east", "urn:nobody", "nowhere")])
    first = await west.talk("urn:nobody", b"1")
    await net.wait(1)
    assert east.instance.parts.refusal_notices.sent == 1
    await west.session.send(first, b"2", "Ask")
    await net.wait(7)  # repeats after 4 s
    assert east.instance.parts.dispatcher.received >= 4
    assert east.instance.parts.refusal_notices.sent == 1
    await west.talk("urn:nobody", b"1")
    await net.wait(1)
    assert east.instance.parts.refusal_notices.sent == 2  # of another dialog
    await net.wait(10)
    assert east.instance.parts.refusal_notices.sent > 2


def _silent(name: str) -> Dispatcher:
    return Dispatcher(notices=name != "east")


@pytest.mark.rule("NBT-4")
@peers("west", "east", dispatcher=_silent)
async def test_silence_can_be_chosen(net: Net, west: Peer, east: Peer) -> None:
    await east.queue(on=False)
    handle = await west.talk("urn:east", b"1")
    await net.wait(100)
    assert await west.key(handle) == "awaiting_ack"
    assert east.instance.parts.refusal_notices.sent == 0
    await east.queue(on=True)
    await net.wait(65)
    assert await east.bodies() == [b"1"]


@pytest.mark.rule("XMT-18")
@peers("west", "east")
async def test_a_lost_connection_is_newer_than_a_notice(net: Net, west: Peer, east: Peer) -> None:
    await east.queue(on=False)
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    assert await west.key(handle) == "peer_queue_disabled"
    east.one.crash()
    await net.wait(1)
    assert await west.key(handle) == "connection_lost"
    await east.one.start()


@pytest.mark.rule("DSP-12", "NBT-4")
@peers("west", "east")
async def test_a_broker_whose_delivery_is_off_takes_nothing_and_says_so(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    await east.session.admin.disable()
    await west.session.send(handle, b"2", "Ask")
    await net.wait(1)
    assert await west.key(handle) == "target_notice"
    assert await west.status(handle) != ""
    assert east.instance.parts.dispatcher.dropped.total() >= 1
    await east.session.admin.enable()
    await net.wait(65)
    assert await east.bodies() == [b"1", b"2"]


def test_reasons_are_keys_or_details() -> None:
    def said(reason: str, detail: str = "") -> Any:
        return _status_of(Notice(ConversationId(b"c" * 16), True, 0, reason, detail))

    assert said("peer_queue_disabled") == ("peer_queue_disabled", "")
    assert said("peer_store_full") == ("peer_store_full", "")
    assert said("hops_exhausted") == ("target_notice", "hops_exhausted")
    assert said("no_room", "tcp://here:1") == ("target_notice", "no_room (tcp://here:1)")


@pytest.mark.rule("NBT-4")
@peers("west", "east")
async def test_each_reason_is_told_and_only_the_same_one_is_held_back(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    await east.queue(on=False)
    await west.session.send(handle, b"2", "Ask")
    await net.wait(0.5)
    assert (await west.key(handle), east.instance.parts.refusal_notices.sent) == (
        "peer_queue_disabled",
        1,
    )
    east.instance.brokers["main"].is_full = True
    await east.queue(on=True)
    await west.session.send(handle, b"3", "Ask")
    await net.wait(0.5)
    assert (await west.key(handle), east.instance.parts.refusal_notices.sent) == (
        "peer_store_full",
        2,
    )
