"""Acknowledgements and errors where no route leads back, and errors that nobody there made."""

from typing import Any
from unittest.mock import patch

import pytest

from brokerd.config.settings import Dialog
from brokerd.protocol import dialog
from brokerd.protocol.frames import BrokerErrorItem, Hop, encode_item
from tests.integration.peers import Net, Peer, peers, route

NO_WAY = ("no_route", "local_service_missing", "broker_not_here")


async def _forth(net: Net, west: Peer, *bodies: bytes) -> bytes:
    """East knows no way back to west."""
    await west.apply(route=[route("east")])
    handle = await west.talk("urn:east", *bodies)
    await net.wait(1)
    return handle


async def _answer(east: Peer) -> bytes:
    async with east.session.transaction() as tx:
        messages = await tx.receive("box")
    await east.session.send(messages[0].handle, b"reply", "Answer")
    handle: bytes = messages[0].handle
    return handle


@pytest.mark.rule("NBT-1", "DLP-21", "RTE-7")
@peers("west", "east", routes=False)
async def test_an_ack_without_a_route_goes_back_the_way_it_came(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await _forth(net, west, b"1", b"2")
    assert await west.status(handle) == ""
    assert west.out(handle).pending == 0
    back = await _answer(east)
    await net.wait(1)
    assert await east.key(back) in NO_WAY
    await west.session.send(handle, b"3", "Ask")
    await net.wait(1)
    assert west.out(handle).pending == 0
    warned = east.log.of("broker.transmission")
    assert len(warned) == 1  # once for the dialog
    await east.apply(route=[route("west")])
    await net.wait(1)
    assert await east.status(back) == ""
    assert await west.bodies() == [b"reply"]


@pytest.mark.rule("NBT-3", "NBT-1", "XMT-17")
@peers("west", "east", routes=False, dialog=Dialog(ack_on_arrival_path=False))
async def test_an_ack_that_waits_for_a_route_can_be_seen(net: Net, west: Peer, east: Peer) -> None:
    handle = await _forth(net, west, b"1")
    assert await west.key(handle) == "awaiting_ack"
    (row,) = await east.session.view("conversation_endpoints")
    assert row["ack_status"] in NO_WAY
    assert row["ack_pending_since"] is not None
    status = await east.session.transmission_status(
        bytes.fromhex(row["conversation_handle"].replace("-", ""))
    )
    assert status.status_key == row["ack_status"]
    await east.apply(route=[route("west")])
    await net.wait(1)
    assert await west.status(handle) == ""
    (row,) = await east.session.view("conversation_endpoints")
    assert row["ack_status"] is None


@pytest.mark.rule("NBT-1", "DLP-19")
@peers("west", "east", routes=False)
async def test_an_ack_that_the_neighbour_could_not_take_goes_with_what_it_brings_next(
    net: Net, west: Peer, east: Peer
) -> None:
    with patch.object(east.instance.parts.transmitter, "_hand_back", lambda *_: False):
        handle = await _forth(net, west, b"1")
    assert west.out(handle).pending == 1
    await west.session.send(handle, b"2", "Ask")
    await net.wait(1)  # less than a retransmission would take
    assert west.out(handle).pending == 0


@pytest.mark.rule("NBT-1", "DLP-41")
@peers("west", "east", routes=False)
async def test_an_error_without_a_route_goes_back_the_way_it_came(
    net: Net, west: Peer, east: Peer
) -> None:
    await west.apply(
        message_type=[{"name": "Ask"}], contract=[{"name": "west only", "types": {"Ask": "any"}}]
    )
    await west.apply(route=[route("east")])
    handle = await west.talk("urn:east", b"1", contract="west only")
    await net.wait(1)
    assert west.live(handle).endpoint.error_code == -8425


def _spoofed(west: Peer, handle: bytes) -> BrokerErrorItem:
    endpoint = west.live(handle).endpoint
    return BrokerErrorItem(
        endpoint.conversation_id,
        False,
        endpoint.far_service,
        endpoint.service,
        endpoint.far_broker,  # type: ignore[arg-type]
        dialog.PEER_GONE,
        "so says somebody",
        Hop(west.broker.broker_id, 10, 60_000, 0),
    )


def _strict(name: str) -> Dialog:
    return Dialog(strict_error_origin=name == "west")


@pytest.mark.rule("NBT-24")
@pytest.mark.parametrize("strict", [True, False])
def test_errors_count_only_from_where_the_dialog_sends(strict: bool, tmp_path: Any) -> None:
    @peers("west", "east", "third", dialog=_strict if strict else Dialog())
    async def test(net: Net, west: Peer, east: Peer, third: Peer) -> None:
        handle = await west.talk("urn:east", b"1")
        await third.talk("urn:west", b"here")
        await net.wait(1)
        spoofed, here = encode_item(_spoofed(west, handle)), west.instance.parts.instance_id
        third.instance.parts.destinations.hand_back(here, [spoofed])
        await net.wait(1)
        state = str(west.live(handle).endpoint.state)
        audited = west.log.of("audit.broker_conversation")
        if not strict:
            assert state == "ER"
            return
        assert state == "CO"
        assert [line["code"] for line in audited] == [dialog.PEER_GONE]
        east.instance.parts.destinations.hand_back(here, [spoofed])
        await net.wait(1)
        assert str(west.live(handle).endpoint.state) == "ER"

    test(tmp_path)


@pytest.mark.rule("NBT-1", "XMT-9", "DLG-T16")
@peers("west", "east", routes=False)
async def test_a_target_that_is_closed_waits_for_no_route(net: Net, west: Peer, east: Peer) -> None:
    await west.apply(route=[route("east")])
    handle = await west.talk("urn:east", b"1")
    await west.session.end(handle)
    await net.wait(0.5)  # less than a pass over delayed dialogs takes
    async with east.session.transaction() as tx:
        messages = await tx.receive("box")
        await tx.end(messages[0].handle)
    (row,) = await east.session.view("conversation_endpoints")
    assert row["state"] == "CD"
    reclassification = east.instance.parts.transmitter.reclassification
    for _ in range(2):
        reclassification.reclassify()
    assert sum(east.instance.parts.transmitter.delayed_count().values()) == 0
