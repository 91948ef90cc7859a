"""Dialogs secured from end to end, between instances (SEC-13 to SEC-40)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from brokerd.client.session import Session
from brokerd.clock import Instant
from brokerd.ids import Handle, show
from brokerd.protocol.frames import AckOnly, Fragment
from brokerd.security.credentials import Purpose
from tests.engine.simulation.tap import Nonces
from tests.integration.delivery.secured import bind, sealed, secure, trust
from tests.integration.delivery.tap import Tap
from tests.integration.peers import Net, Peer, peers
from tests.integration.shorthand import take
from tests.integration.two_brokers import Wire, between


async def converse(net: Net, west: Peer, east: Peer, *, encryption: bool = True) -> bytes:
    """Let both sides send, and both end; return the initiator's handle."""
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", encryption=encryption)
    await west.session.send(handle, b"question", "Ask")
    await west.session.send(handle, b"x" * 200_000, "Ask")
    await net.wait(2)
    first, second = await east.messages()
    assert (first.body, second.body) == (b"question", b"x" * 200_000)
    await east.session.send(first.handle, b"answer", "Answer")
    await east.session.end(first.handle)
    await net.wait(2)
    assert await west.bodies() == [b"answer", None]
    await west.session.end(handle)
    await net.wait(5)
    return handle


@pytest.mark.rule("SEC-13", "SEC-19", "SEC-26", "SEC-28", "SEC-29", "DLP-24")
@pytest.mark.parametrize("anonymous", [False, True])
def test_a_secured_dialog_is_sealed_for_all_its_life(tmp_path: Path, anonymous: bool) -> None:
    @peers("west", "east")
    async def play(net: Net, west: Peer, east: Peer) -> None:
        await secure(west, east, anonymous=anonymous)
        here, there = Tap(west), Tap(east)
        await converse(net, west, east)
        out, back = sealed(there.items), sealed(here.items)
        assert not any(b"question" in one.body or b"answer" in one.body for one in out + back)
        # The header is on the fragments of message 0 of the initiator, and on no other.
        assert all(bool(one.security) == (one.sequence == 0) for one in out)
        assert not any(one.security for one in back)
        assert not west.one.left()
        assert not east.one.left()

    play(tmp_path)


@pytest.mark.rule("TRN-32", "SEC-26")
@peers("west", "east")
async def test_a_boxcar_holds_as_many_secured_messages_as_its_bytes_allow(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    tap = Tap(east)
    handle = await west.talk("urn:east", b"first")
    await net.wait(2)
    async with west.session.transaction() as tx:
        for _ in range(150):
            await tx.send(handle, b"x" * 256, "Ask")
    await net.wait(2)
    assert len(await east.bodies()) == 151
    assert len(sealed(tap.items)) == 151
    # Room for a security header is kept only where there is one: with it, 99 would be the most.
    assert max(tap.boxcars) == 150


@pytest.mark.rule("SEC-13", "SEC-14", "SEC-16")
@peers("west", "east")
async def test_without_a_binding_a_dialog_leaves_in_clear_only_if_it_may(
    net: Net, west: Peer, east: Peer
) -> None:
    await trust(west, east)
    tap = Tap(east)
    await converse(net, west, east, encryption=False)
    assert all(type(one) is Fragment for one in tap.items if isinstance(one, Fragment))
    await bind(west, "east")
    tap.items.clear()
    await converse(net, west, east, encryption=False)
    assert sealed(tap.items)


@pytest.mark.rule("SEC-38", "SEC-26", "SEC-35", "SX-5", "VIEW-1")
@peers("west", "east")
async def test_keys_survive_a_restart_and_no_restart_uses_a_key_again(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    here, there = Tap(west), Tap(east)
    handle = await west.talk("urn:east", b"1")
    await net.wait(2)
    (first,) = await east.messages()
    await east.session.send(first.handle, b"back", "Answer")
    await net.wait(2)
    out, back = sealed(there.items), sealed(here.items)
    stored = west.live(handle).endpoint.security
    keys = west.live(handle).keys
    assert keys is not None
    assert stored is not None
    (row,) = await west.session.view("conversation_endpoints")
    assert row["far_principal_id"] == "peer:east"
    assert row["outbound_session_key_identifier"] == out[0].key_id.hex()
    assert row["inbound_session_key_identifier"] == back[0].key_id.hex()
    assert keys.kept.secrets.body not in stored
    for one in (west, east):
        await one.one.restart()
        one.listen()
    here, there = Tap(west), Tap(east)
    await west.session.send(handle, b"2", "Ask")
    await east.session.send(first.handle, b"more", "Answer")
    await net.wait(5)
    assert await east.bodies() == [b"2"]
    assert await west.bodies() == [b"back", b"more"]
    before = {one.key_id for one in out + back}
    after = {one.key_id for one in sealed(there.items) + sealed(here.items)}
    assert not before & after


@pytest.mark.rule("SEC-38", "SEC-39", "SX-6")
@peers("west", "east")
async def test_without_the_master_key_secured_dialogs_wait_and_others_go_on(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    handle = await west.talk("urn:east", b"1")
    await net.wait(2)
    key = west.instance.parts.credential_store._path
    kept = key.read_bytes()
    west.one.crash()
    key.unlink()
    await west.one.start()
    west.listen()
    back = Tap(west)
    await west.session.send(handle, b"2", "Ask")
    clear = await west.session.begin_dialog("urn:west", "urn:west", "talk", encryption=True)
    await west.session.send(clear, b"near", "Ask")  # inside the instance no key is needed
    await net.wait(3)
    assert await west.key(handle) == "no_master_key"
    assert await west.bodies() == [b"near"]
    (first,) = await east.messages()
    await east.session.send(first.handle, b"back", "Answer")
    await net.wait(20)
    assert await west.bodies() == []
    assert west.instance.parts.dispatcher.dropped["no_master_key"] >= 1
    assert back.items
    west.one.crash()
    key.touch(0o600)
    key.write_bytes(kept)
    await west.one.start()
    await net.wait(70)
    assert await east.bodies() == [b"2"]
    assert await west.bodies() == [b"back"]


@pytest.mark.rule("DLP-24", "DLG-33")
@pytest.mark.parametrize("anonymous", [False, True])
def test_an_end_is_acknowledged_by_a_side_that_has_forgotten_the_dialog(
    tmp_path: Path, anonymous: bool
) -> None:
    @peers("west", "east")
    async def play(net: Net, west: Peer, east: Peer) -> None:
        await secure(west, east, anonymous=anonymous)
        back = Tap(east)
        handle = await west.talk("urn:east", b"1")
        await net.wait(2)
        (first,) = await east.messages()
        back.loses = lambda it: isinstance(it, AckOnly)  # of the end that east sends now
        await east.session.end(first.handle)
        await net.wait(1)
        await west.session.end(handle)
        await net.wait(1)
        assert west.broker.endpoints.find(Handle(handle)) is None
        assert east.one.left()
        back.loses = lambda _item: False
        await net.wait(70)
        assert not east.one.left()
        assert not west.one.left()

    play(tmp_path)


@pytest.mark.rule("DLP-24", "DLP-48", "SEC-37")
@pytest.mark.parametrize("anonymous", [False, True])
def test_a_target_that_has_forgotten_the_dialog_can_say_so(tmp_path: Path, anonymous: bool) -> None:
    @peers("west", "east")
    async def play(net: Net, west: Peer, east: Peer) -> None:
        await secure(west, east, anonymous=anonymous)
        handle = await west.talk("urn:east", b"1")
        await net.wait(3)
        (first,) = await east.messages()
        await east.session.admin.clean_up(first.handle, "a test", tell_peer=False)
        await net.wait(3600)  # the tombstone has gone, too
        assert east.other_side(west.live(handle).endpoint.conversation_id) is None
        await west.session.send(handle, b"2", "Ask")
        await net.wait(70)
        (error,) = [one.error for one in await west.messages()]
        assert error.number == -8462

    play(tmp_path)


@pytest.mark.rule("SEC-14", "SEC-15", "SEC-19", "DLG-12", "ERR-9727", "ERR-9731")
@peers("west", "east")
async def test_what_the_table_fails_ends_with_an_error_message(
    net: Net, west: Peer, east: Peer
) -> None:
    there = Tap(east)
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", encryption=True)
    await west.session.send(handle, b"secret", "Ask")
    await net.wait(2)
    (told,) = await west.messages()
    assert (told.error.number, told.error.code) == (-9727, "no_binding")
    await secure(west, east)
    credentials = west.instance.parts.credentials
    for one in credentials.own_all(Purpose.DIALOG):
        credentials.remove_certificate(one.certificate.id)
    await west.talk("urn:east", b"secret")
    await net.wait(2)
    (told,) = await west.messages()
    assert (told.error.number, told.error.code) == (-9731, "no_certificate")
    assert there.items == []


@pytest.mark.rule("SEC-17", "SEC-39", "SEC-13")
@peers("west", "east")
async def test_inside_an_instance_nothing_is_encrypted_whatever_was_asked_for(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    handle = await west.session.begin_dialog("urn:west", "urn:west", "talk", encryption=True)
    await west.session.send(handle, b"near", "Ask")
    await net.wait(1)
    assert await west.bodies() == [b"near"]
    assert west.live(handle).endpoint.security is None


@pytest.mark.rule("SEC-40", "SEC-22")
@peers("west", "east")
async def test_a_certificate_that_expires_does_not_end_a_dialog(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk")
    await west.session.send(handle, b"1", "Ask")
    await net.wait(3)
    for one in (west, east):
        credentials = one.instance.parts.credentials
        for certificate in list(credentials.certificates.values()):
            over = replace(certificate.certificate, not_after=Instant(1))
            credentials.certificates[certificate.certificate.id] = replace(
                certificate, certificate=over
            )
        credentials._changed()
    await west.session.send(handle, b"2", "Ask")
    await net.wait(3)
    assert await east.bodies() == [b"1", b"2"]
    new = await west.talk("urn:east", b"3")
    await net.wait(3)
    assert (await west.messages())[0].error.number == -9731
    assert west.live(new).endpoint.security is None


@pytest.mark.rule("SX-5", "REL-15", "SEC-34")
@peers("west", "east")
async def test_a_store_that_was_put_back_seals_nothing_with_a_nonce_that_was_used(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    nonces = Nonces()
    handle = await west.talk("urn:east", b"1")
    await net.wait(2)
    place = west.instance.parts.credential_store._path.parent
    west.one.crash()
    shutil.copytree(place, place.with_name("copy"))
    for body in (b"one history", b"another"):
        await west.one.start()
        there = Tap(east)
        await west.session.send(handle, body, "Ask")
        await net.wait(2)
        (item,) = [it for it in sealed(there.items) if it.sequence == 1][:1]
        assert not nonces.seen(item)
        west.one.crash()
        shutil.rmtree(place)
        shutil.copytree(place.with_name("copy"), place)
    assert not nonces.problems
    await west.one.start()
    await net.wait(70)
    error, *others = await east.messages()
    assert error.error.number == -60001  # by an acknowledgement of what west knows nothing of
    assert [one.body for one in others] == [b"1", b"one history"]


@pytest.mark.rule("SEC-40", "SEC-33")
@peers("west", "east")
async def test_a_first_message_that_is_not_answered_needs_valid_certificates(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    there = Tap(east)
    there.loses = lambda _item: True
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    credentials = west.instance.parts.credentials
    (far,) = [one for one in credentials.certificates.values() if one.principal == "peer:east"]
    credentials.remove_certificate(far.certificate.id)
    await net.wait(400)  # the header has become old
    there.loses = lambda _item: False
    await net.wait(120)
    assert await east.bodies() == []
    assert await west.key(handle) == "no_certificate"
    credentials.put(far)
    await net.wait(120)
    assert await east.bodies() == [b"1"]
    assert await west.key(handle) == ""


@pytest.mark.rule("SEC-33", "SEC-64", "SEC-9")
@peers("west", "east")
async def test_a_first_message_follows_the_target_to_its_next_certificate(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    there = Tap(east)
    there.loses = lambda _item: True
    await west.talk("urn:east", b"1")
    await net.wait(1)
    (old,) = east.instance.parts.credentials.own_all(Purpose.DIALOG)
    await east.session.admin.make_certificates(["dialog"])
    await east.session.admin.switch_certificates(["dialog"], anyway=True)
    (new,) = [
        one
        for one in east.instance.parts.credentials.own_all(Purpose.DIALOG)
        if one.certificate != old.certificate
    ]
    store = west.instance.parts.credential_store
    await store.install("peer:east", Purpose.DIALOG, new.certificate, actor="test")
    await store.remove_certificate(old.certificate.id, actor="test")
    await east.session.admin.drop_certificate(old.certificate.id)
    there.loses = lambda _item: False
    await net.wait(30)  # the header is not old yet
    assert await east.bodies() == [b"1"]


@pytest.mark.rule("SEC-74", "SEC-20")
@peers("west", "east")
async def test_a_clear_dialog_that_a_restart_finds_bound_waits_and_is_not_read(
    net: Net, west: Peer, east: Peer
) -> None:
    await trust(west, east)
    here = Tap(west)
    here.loses = lambda _item: True  # no acknowledgement arrives
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", encryption=False)
    await west.session.send(handle, b"1", "Ask")
    await net.wait(1)
    await bind(west, "east")
    await west.session.send(handle, b"2", "Ask")
    await net.wait(2)
    assert await east.bodies() == [b"1", b"2"]  # its kind does not change while it is in memory
    await west.one.restart()
    await west.session.send(handle, b"3", "Ask")
    await net.wait(30)
    assert await east.bodies() == []
    assert east.instance.parts.dispatcher.dropped["secured_on_plain"] > 0
    await west.session.end(handle, 7, "it waits for ever")
    other = await west.talk("urn:east", b"4")
    await net.wait(5)
    assert await east.bodies() == [b"4"]
    assert west.live(other).endpoint.security is not None


@pytest.mark.rule("SEC-75", "SEC-17", "SEC-14")
@between
async def test_a_dialog_to_be_encrypted_does_not_follow_a_target_out_of_the_instance(
    wire: Wire, main: Session, east: Session
) -> None:
    handles = {}
    for encryption in (True, False):
        handles[encryption] = await main.begin_dialog(
            "urn:desk", "urn:harbour", "talk", encryption=encryption
        )
        await main.send(handles[encryption], b"near", "Ask")
    await wire.daemon.pass_time(1)
    assert [len(await take(east, "harbour")) for _ in handles] == [1, 1]
    far = wire.daemon.instance.brokers["east"].broker_id
    await main.create(
        "route", "away", service="urn:harbour", broker=show(far), address="TCP://far:1"
    )
    await main.send(handles[False], b"far", "Ask")
    await wire.daemon.pass_time(1)
    (error,) = await take(main, "desk")
    assert error.handle == handles[True]
    assert error.error is not None
    assert error.error.number == -9727
    found = await main.transmission_status(handles[False])
    assert found.destination == "tcp://far:1"
