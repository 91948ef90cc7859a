"""Who of another instance may begin a dialog: what is granted, and silence for strangers."""

import pytest

from brokerd.config.settings import Dispatcher
from brokerd.ids import show
from brokerd.routing.reasons import DropReason
from brokerd.telemetry.audit import Action, Outcome
from brokerd.telemetry.logs import AUDIT_CONVERSATION
from tests.integration.delivery.secured import secure
from tests.integration.peers import Net, Peer, peers, route

REFUSED = DropReason.NO_SEND_PERMISSION


async def granted(peer: Peer, *texts: str) -> None:
    """Grant these as an administrator would, without installing whom they are for."""
    for text in texts:
        await peer.session.admin.grant(text)


def dropped(peer: Peer) -> int:
    found: int = peer.instance.parts.dispatcher.dropped[REFUSED]
    return found


async def refusals(peer: Peer) -> list[tuple[str, str]]:
    found = await peer.instance.brokers["msdb"].store.audit.page(before=2**62, limit=100)
    return [
        (one.actor, one.subject)
        for one in found
        if one.action is Action.ACCESS and one.outcome is Outcome.REFUSED
    ]


@pytest.mark.rule("SEC-50", "SEC-54", "SX-17", "SX-15", "MON-84")
@peers("west", "east")
async def test_a_stranger_without_the_permission_is_met_with_silence(
    net: Net, west: Peer, east: Peer
) -> None:
    await granted(east, "send on urn:other to public")
    handle = await west.talk("urn:east", b"1")
    await net.wait(30)
    assert await west.key(handle) == "awaiting_ack"
    assert str(west.live(handle).endpoint.state) == "CO"
    assert dropped(east) > 1
    assert east.instance.parts.refusal_notices.sent == 0
    assert east.other_side(west.live(handle).endpoint.conversation_id) is None
    lines = east.log.of(AUDIT_CONVERSATION)
    assert {one["subclass"] for one in lines} == {"no_send_permission"}
    assert {one["reason"] for one in lines} == {"public may not send to main/urn:east"}
    (told,) = (await east.session.status())["failed_dialogs"]
    assert (told["service"], told["far_service"]) == ("urn:east", "urn:west")
    assert (told["principal"], told["is_initiator"]) == ("public", False)
    assert told["count"] == len(lines)
    assert told["is_of_dialogs"] is False
    assert await refusals(east) == [("public", "main/urn:east")]
    await granted(east, "send on urn:east to public")
    await net.wait(70)
    assert await east.bodies() == [b"1"]
    await net.wait(1)
    assert await west.status(handle) == ""


@pytest.mark.rule("SEC-50", "SEC-10")
@peers("west", "east")
async def test_an_open_endpoint_admits_all_until_something_is_granted_or_it_authenticates(
    net: Net, west: Peer, east: Peer
) -> None:
    first = await west.talk("urn:east", b"1")
    await net.wait(1)
    assert await east.bodies() == [b"1"]
    east.instance.parts.grants.authenticates = True
    await west.talk("urn:east", b"2")
    await net.wait(1)
    assert dropped(east) == 1
    east.instance.parts.grants.authenticates = False
    await net.wait(70)
    assert await east.bodies() == [b"2"]
    await granted(east, "control on main to root")
    await west.talk("urn:east", b"3")
    await west.session.send(first, b"of a dialog that has begun", "Ask")
    await net.wait(1)
    assert await east.bodies() == [b"of a dialog that has begun"]


@pytest.mark.rule("SEC-50", "SEC-53")
@peers("west", "east")
async def test_replies_and_dialogs_within_the_instance_need_no_grant(
    net: Net, west: Peer, east: Peer
) -> None:
    await granted(west, "send on urn:other to public")
    handle = await west.talk("urn:east", b"ask")
    await net.wait(1)
    (asked,) = await east.messages()
    await east.session.send(asked.handle, b"answer", "Answer")
    await net.wait(1)
    assert await west.bodies() == [b"answer"]
    assert str(west.live(handle).endpoint.state) == "CO"
    here = await west.session.apply(
        {
            "broker": {"name": "second", "default_encryption": "off"},
            "message_type": [{"name": "Ask"}],
            "contract": [{"name": "talk", "types": {"Ask": "any"}}],
            "queue": [{"name": "box"}],
            "service": [{"name": "urn:second", "queue": "box", "contracts": ["talk"]}],
        }
    )
    assert here
    await west.talk("urn:second", b"from a broker beside it")
    await net.wait(1)
    second = west.instance.brokers["second"]
    assert second.queues["box"].ready_count == 1
    assert dropped(west) == 0


@pytest.mark.rule("SEC-54", "SEC-24", "DLP-41", "ERR-8494", "MON-84")
@peers("west", "east")
async def test_a_sender_that_is_proven_gets_the_error_or_what_it_was_granted(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    await granted(east, "send on urn:e* to public", "send on urn:other to peer:west")
    await east.session.admin.revoke("send on urn:e* to public")
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    (told,) = await west.messages()
    assert told.handle == handle
    assert (told.error.number, told.error.code) == (-8494, "access_denied")
    assert "peer:west has no send permission on service 'urn:east'" in str(told.error)
    (failed,) = (await west.session.status())["failed_dialogs"]
    assert failed["example"] == show(west.live(handle).endpoint.conversation_id)
    await west.session.end(handle)
    await net.wait(1)
    (failed,) = (await west.session.status())["failed_dialogs"]
    assert failed["example"] == ""
    (refused,) = (await east.session.status())["failed_dialogs"]
    assert (refused["principal"], refused["service"]) == ("peer:west", "urn:east")
    assert await refusals(east) == [("peer:west", "main/urn:east")]
    await granted(east, "send on urn:e* to peer:west")
    handle = await west.talk("urn:east", b"2")
    await net.wait(1)
    assert await east.bodies() == [b"2"]
    await east.session.admin.revoke("send on urn:e* to peer:west")
    await west.session.send(handle, b"3", "Ask")
    await net.wait(1)
    assert await east.bodies() == [b"3"]


@pytest.mark.rule("SEC-54", "SEC-19")
@peers("west", "east")
async def test_an_anonymous_sender_is_public_although_its_dialog_is_secured(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east, anonymous=True)
    await granted(east, "send on urn:east to peer:west")
    handle = await west.talk("urn:east", b"1")
    await net.wait(10)
    assert await west.key(handle) == "awaiting_ack"
    assert await refusals(east) == [("public", "main/urn:east")]
    await granted(east, "send on urn:east to public")
    await net.wait(70)
    assert await east.bodies() == [b"1"]


def silent(name: str) -> Dispatcher:
    return Dispatcher(notices=name != "east")


@pytest.mark.rule("SX-17", "SX-15", "DLP-41")
@peers("west", "east", dispatcher=silent)
async def test_a_stranger_cannot_tell_a_service_that_is_closed_to_it_from_none(
    net: Net, west: Peer, east: Peer
) -> None:
    """Where the broker is named, it answers those who may send that it has no such service (8490).

    Peers that are believed get a NOTICE (NBT-4), which is switched off here."""
    await granted(east, "send on urn:other to public")
    services = ["urn:east", *(f"urn:guessed{n}" for n in range(50))]
    await west.apply(route=[route("east", one, f"to_{n}") for n, one in enumerate(services)])
    handles = []
    for one in services:
        handle = await west.session.begin_dialog(
            "urn:west", one, "talk", broker_id=east.broker.broker_id
        )
        await west.session.send(handle, b"1", "Ask")
        handles.append(handle)
    await net.wait(20)
    assert {await west.key(handle) for handle in handles} == {"awaiting_ack"}
    assert await west.messages() == []
    assert await refusals(east) == [("public", "main/urn:east")]


@pytest.mark.rule("SEC-50", "DLG-T30")
@peers("west", "east")
async def test_what_a_stranger_withdraws_leaves_no_trace_either(
    net: Net, west: Peer, east: Peer
) -> None:
    await granted(east, "send on urn:other to public")
    net.cut()
    handle = await west.talk("urn:east", *[b"%d" % n for n in range(3)])
    conversation = west.live(handle).endpoint.conversation_id
    await west.session.end(handle, 7, "withdrawn")
    net.heal()
    await net.wait(100)
    assert dropped(east) > 0
    assert east.other_side(conversation) is None
