"""What a neighbour may try with the items of a secured dialog, and what comes of it (SEC-29)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from brokerd.ids import Incarnation, MessageId
from brokerd.protocol.frames import (
    AckOnly,
    BrokerErrorItem,
    Fragment,
    SecuredAck,
    SecuredError,
    SecuredFragment,
)
from brokerd.protocol.transitions import State
from brokerd.security.credentials import Kind, Purpose
from tests.integration.delivery.secured import bind, secure, trust
from tests.integration.delivery.tap import Tap
from tests.integration.peers import Net, Peer, peers, route

Change = Callable[[Any], Any]


def _flip(data: bytes, at: int = -1) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


class Forwarder(Tap):
    """Changes what passes it."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.change: Change = lambda item: item
        self.changed = 0

    def _arrived(self, items: Any, neighbour: Any = None) -> None:
        changed = [self.change(item) for item in items]
        self.changed += sum(new is not old for new, old in zip(changed, items, strict=True))
        super()._arrived(changed, neighbour)


CHANGES: dict[str, Change] = {
    "message_id": lambda it: replace(it, message_id=MessageId(_flip(it.message_id))),
    "sequence": lambda it: replace(it, sequence=it.sequence + 1),
    "fragment": lambda it: replace(it, fragment=1, fragments=2),
    "fragments": lambda it: replace(it, fragments=it.fragments + 1),
    "flags": lambda it: replace(it, flags=2, message_type=""),
    "from_service": lambda it: replace(it, from_service="urn:other"),
    "to_service": lambda it: replace(it, to_service="urn:east2"),
    "from_broker": lambda it: replace(it, from_broker=_flip(it.from_broker)),
    "contract": lambda it: replace(it, contract="other"),
    "message_type": lambda it: replace(it, message_type="Json"),
    "expires_at": lambda it: replace(it, expires_at=it.expires_at + 1),
    "incarnation": lambda it: replace(it, incarnation=Incarnation(_flip(it.incarnation))),
    "key_id": lambda it: replace(it, key_id=_flip(it.key_id)),
    "body": lambda it: replace(it, body=_flip(it.body, 0)),
    "tag": lambda it: replace(it, body=_flip(it.body)),
    "security": lambda it: replace(it, security=_flip(it.security)) if it.security else it,
    "security_gone": lambda it: replace(it, security=b""),
    "ack": lambda it: (
        replace(it, ack=replace(it.ack, highest_seen=it.ack.highest_seen + 1)) if it.ack else it
    ),
    "ack_code": lambda it: replace(it, ack_code=_flip(it.ack_code)) if it.ack else it,
    "conversation": lambda it: replace(it, conversation_id=_flip(it.conversation_id)),
}


async def _dropped(peer: Peer) -> int:
    dropped = peer.instance.parts.dispatcher.dropped
    return sum(dropped[reason] for reason in ("security_context", "unknown_conversation"))


@pytest.mark.rule("SEC-29", "SEC-33", "SEC-35", "SEC-25", "FWD-14")
@pytest.mark.parametrize("name", sorted(CHANGES))
@pytest.mark.parametrize("first", [True, False], ids=["message 0", "a later message"])
def test_a_fragment_that_was_changed_on_its_way_is_refused_and_counted(
    tmp_path: Path, name: str, first: bool
) -> None:
    @peers("west", "east")
    async def play(net: Net, west: Peer, east: Peer) -> None:
        await east.session.create("service", "urn:east2", queue="box", contracts=["talk"])
        await secure(west, east)
        forwarder = Forwarder(east)
        handle = b""
        if not first:
            handle = await west.talk("urn:east", b"1")
            await net.wait(3)
        forwarder.change = lambda it: CHANGES[name](it) if type(it) is SecuredFragment else it
        if first:
            handle = await west.talk("urn:east", b"1", b"2")
        else:
            await west.session.send(handle, b"2", "Ask")
        await net.wait(1)
        forwarder.change = lambda item: item
        if not forwarder.changed:
            assert name in {"security", "security_gone", "ack", "ack_code"}
        elif (name, first) != ("security_gone", False):
            assert await _dropped(east) >= 1
            assert not west.live(handle).endpoint.first_acked or not first
        await net.wait(70)  # it is sent again, as it was
        assert await east.bodies() == [b"1", b"2"]
        assert west.out(handle).pending == 0

    play(tmp_path)


@pytest.mark.rule("SEC-25", "SEC-29", "NBT-5")
@peers("west", "east")
async def test_what_is_not_authentic_is_reported_and_not_answered(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    forwarder, back = Forwarder(east), Tap(west)
    forwarder.change = lambda it: CHANGES["body"](it) if type(it) is SecuredFragment else it
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    (line,) = east.log.of("broker.corrupted_message")
    assert (line["reason"], line["ssb_code"]) == ("security_context", 11229)
    (audited,) = east.log.of("audit.broker_conversation")
    assert audited["subclass"] == "invalid_signature"
    assert back.items == []
    assert east.other_side(west.live(handle).endpoint.conversation_id) is None
    assert await west.key(handle) == "target_notice"
    assert await west.status(handle) == "the target or a forwarder dropped it: security_context"


@pytest.mark.rule("SEC-20", "SEC-37", "DLP-24")
@peers("west", "east")
async def test_what_is_in_clear_counts_for_nothing_on_a_secured_dialog(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    there = Tap(east)
    there.loses = lambda it: it.sequence == 1
    handle = await west.talk("urn:east", b"1", b"2")
    await net.wait(3)
    kept = next(it for it in there.items if it.sequence == 1)
    fields = asdict(kept)
    for own in ("key_id", "ack_code", "security"):
        del fields[own]
    plain = Fragment(**fields | {"hop": kept.hop, "ack": kept.ack, "body": b"forged"})
    there._take([plain], west.instance.parts.instance_id)
    endpoint = west.live(handle).endpoint
    ack = AckOnly(
        endpoint.conversation_id,
        False,
        "urn:east",
        "urn:west",
        east.broker.broker_id,
        west.out(handle).acks.build(base_sequence=0, broker_id=east.broker.broker_id),
        kept.hop,
    )
    ack = replace(ack, ack=replace(ack.ack, sequence=1, fragment=2**31 - 2, highest_seen=1))
    error = BrokerErrorItem(
        endpoint.conversation_id, False, "urn:east", "urn:west", east.broker.broker_id, -8462,
        "forged", kept.hop,
    )  # fmt: skip
    west.instance.parts.dispatcher.arrived([ack, error], east.instance.parts.instance_id)
    assert west.instance.parts.dispatcher.dropped["plain_on_secured"] == 2
    assert east.instance.parts.dispatcher.dropped["plain_on_secured"] == 1
    assert west.live(handle).endpoint.state is State.CONVERSING
    assert west.out(handle).pending == 1
    there.loses = lambda _item: False
    await net.wait(70)
    assert await east.bodies() == [b"1", b"2"]


@pytest.mark.rule("SEC-36", "SEC-37")
@peers("west", "east")
async def test_sealed_acknowledgements_and_errors_of_another_dialog_count_for_nothing(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    back = Forwarder(west)
    back.loses = lambda it: type(it) is SecuredAck
    one, two = await west.talk("urn:east", b"1"), await west.talk("urn:east", b"2")
    await net.wait(2)
    ids = [west.live(handle).endpoint.conversation_id for handle in (one, two)]
    theirs = next(it for it in back.of(SecuredAck) if it.conversation_id == ids[0])
    take, peer = back._take, east.instance.parts.instance_id
    take([replace(theirs, conversation_id=ids[1])], peer)
    assert west.out(two).pending == 1
    sealed = SecuredError(
        ids[1], False, "urn:east", "urn:west", east.broker.broker_id, b"e" * 40, theirs.hop
    )
    take([sealed], peer)
    assert west.live(two).endpoint.state is State.CONVERSING
    assert west.instance.parts.dispatcher.dropped["security_context"] == 2
    take([theirs], peer)
    await net.wait(1)
    assert west.out(one).pending == 0


@pytest.mark.rule("SEC-29", "SEC-34")
@peers("west", "east")
async def test_a_fragment_of_another_dialog_does_not_pass_for_one_of_this(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    there = Tap(east)
    one, two = await west.talk("urn:east", b"1"), await west.talk("urn:east", b"2")
    await net.wait(2)
    there.items.clear()
    await west.session.send(one, b"3", "Ask")
    await net.wait(1)
    stolen = next(it for it in there.items if isinstance(it, SecuredFragment))
    other = west.live(two).endpoint.conversation_id
    before = east.instance.parts.dispatcher.dropped["security_context"]
    there._take([replace(stolen, conversation_id=other)], west.instance.parts.instance_id)
    assert east.instance.parts.dispatcher.dropped["security_context"] == before + 1
    assert sorted(await east.bodies()) == [b"1", b"2", b"3"]  # type: ignore[type-var]


@pytest.mark.rule("SEC-20")
@peers("west", "east")
async def test_a_dialog_that_began_in_clear_stays_so(net: Net, west: Peer, east: Peer) -> None:
    there = Tap(east)
    handle = await west.talk("urn:east", b"1")
    await net.wait(2)
    await secure(west, east)
    await west.session.send(handle, b"2", "Ask")
    await west.apply(route=[route("east", name="another_way")])  # it is classified again
    await west.session.send(handle, b"3", "Ask")
    await net.wait(2)
    assert all(type(it) in {Fragment, AckOnly} for it in there.items)
    secured = SecuredFragment(
        **asdict(there.of(Fragment)[0]) | {"hop": there.items[0].hop, "ack": None},
        key_id=b"k" * 16,
        ack_code=b"",
    )
    there._take([replace(secured, body=b"x" * 16)], west.instance.parts.instance_id)
    assert east.instance.parts.dispatcher.dropped["secured_on_plain"] == 1
    assert await east.bodies() == [b"1", b"2", b"3"]


@pytest.mark.rule("SEC-33", "DLP-55", "SX-5")
@peers("west", "east")
async def test_a_finished_dialog_that_is_played_again_begins_nothing(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    there = Tap(east)
    handle = await west.talk("urn:east", b"1")
    await west.session.end(handle)
    await net.wait(2)
    for message in await east.messages():
        if message.body is None:
            await east.session.end(message.handle)
    await net.wait(3600)
    assert not east.one.left()
    again = [it for it in there.items if isinstance(it, SecuredFragment)]
    there._take(again, west.instance.parts.instance_id)
    await net.wait(1)
    assert east.instance.parts.dispatcher.dropped["security_context"] == 1  # message 0: too old
    (audited,) = east.log.of("audit.broker_conversation")
    assert audited["problem"].endswith("played again, or the clocks differ")
    assert await east.bodies() == []
    assert timedelta(minutes=30) == east.broker.options.replay_guard


@pytest.mark.rule("SEC-24", "SEC-25", "NBT-5")
@peers("west", "east")
async def test_a_certificate_that_is_not_installed_is_named_to_the_sender(
    net: Net, west: Peer, east: Peer
) -> None:
    await secure(west, east)
    await east.instance.parts.credential_store.remove_principal("peer:west", actor="test")
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    (line,) = east.log.of("broker.corrupted_message")
    own = west.instance.parts.credentials.own_all(Purpose.DIALOG)[0].certificate.id.hex()
    (audited,) = east.log.of("audit.broker_conversation")
    assert (audited["subclass"], audited["certificate_id"]) == ("no_certificate", own)
    assert line["reason"] == "security_context"
    assert await west.status(handle) == (
        f"the target or a forwarder dropped it: security_context ({own})"
    )
    assert await east.bodies() == []


@pytest.mark.rule("SEC-24", "SEC-50", "SEC-54", "SX-7")
@pytest.mark.parametrize("admitted", [0, 1], ids=["before it arrives", "before it is stored"])
@pytest.mark.parametrize("kind", ["full", "anonymous", "none"])
def test_who_may_not_send_is_told_so_if_it_has_proven_itself(
    tmp_path: Path, kind: str, admitted: int
) -> None:
    @peers("west", "east")
    async def play(net: Net, west: Peer, east: Peer) -> None:
        if kind != "none":
            await secure(west, east, anonymous=kind == "anonymous")
        asked: list[str | None] = []

        def refuse(principal: str | None, _service: str) -> bool:
            asked.append(principal)
            return len(asked) <= admitted

        east.instance.parts.dispatcher._writer._admission._may_send = refuse
        await west.talk("urn:east", b"1")
        await net.wait(3)
        errors = [one for one in await west.messages() if one.error is not None]
        assert set(asked) == {"peer:west" if kind == "full" else None}
        assert [one.error.number for one in errors] == ([-8494] if kind == "full" else [])
        assert await east.bodies() == []
        assert east.instance.parts.dispatcher.dropped["no_send_permission"] >= 1
        (line, *_) = east.log.of("audit.broker_conversation")
        assert line["subclass"] == "no_send_permission"

    play(tmp_path)


@pytest.mark.rule("SEC-14", "SEC-22", "DLG-12")
@peers("west", "east")
async def test_without_a_certificate_of_the_target_the_dialog_waits_for_one(
    net: Net, west: Peer, east: Peer
) -> None:
    there = Tap(east)
    store = west.instance.parts.credential_store
    await store.add_principal(Kind.PEER, "east", actor="test")
    await bind(west, "east")
    handle = await west.talk("urn:east", b"1")
    await net.wait(3)
    assert there.items == []
    assert await west.key(handle) == "no_certificate"
    await trust(west, to=east)
    (own,) = east.instance.parts.credentials.own_all(Purpose.DIALOG)
    await store.install("peer:east", Purpose.DIALOG, own.certificate, actor="test")
    await net.wait(70)
    assert await east.bodies() == [b"1"]
