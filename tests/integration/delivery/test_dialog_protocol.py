"""The dialog protocol between two instances, by what each side keeps and what passes (DLP, XMT)."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from brokerd.config.settings import Dialog, Transmitter
from brokerd.ids import ConversationId, show
from brokerd.protocol.frames import Ack, AckOnly, BrokerErrorItem, Fragment, Hop
from tests.integration.delivery.tap import Tap
from tests.integration.peers import TYPES, Net, Peer, peers, route


async def _rows(peer: Peer, table: str) -> int:
    peer.broker.store.sweep()
    found: int = await peer.broker.store.run(
        lambda connection: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    )
    return found


@pytest.mark.rule("DLP-1", "DLP-37", "DLP-47", "DLP-43", "DLG-3", "DLG-4", "DLG-13")
@peers("west", "east")
async def test_both_sides_share_a_conversation_and_the_first_message_makes_the_second(
    net: Net, west: Peer, east: Peer
) -> None:
    net.cut()
    handle = await west.talk("urn:east", b"1")
    mine = west.live(handle).endpoint
    await net.wait(1)
    assert east.other_side(mine.conversation_id) is None
    assert (mine.bound, mine.far_broker) == (False, None)
    net.heal()
    await net.wait(70)
    other = east.other_side(mine.conversation_id)
    assert other is not None
    theirs, mine = other.endpoint, west.live(handle).endpoint
    assert (mine.is_initiator, theirs.is_initiator) == (True, False)
    assert theirs.handle != mine.handle
    assert (theirs.bound, theirs.far_broker) == (True, west.broker.broker_id)
    assert (mine.bound, mine.far_broker) == (True, east.broker.broker_id)
    assert east.broker.endpoints.find_conversation(mine.conversation_id, True) is None


@pytest.mark.rule("DLP-2", "DLG-11")
@peers("west", "east", dialog=Dialog(fragment_size=1000))
async def test_an_end_and_part_of_a_message_survive_a_restart(
    net: Net, west: Peer, east: Peer
) -> None:
    tap = Tap(east)
    tap.loses = lambda item: type(item) is Fragment and item.fragment > 1
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", lifetime=5000)
    await west.session.send(handle, b"1", "Ask")
    await west.session.send(handle, b"x" * 3000, "Ask")
    await west.session.end(handle)
    await net.wait(1)
    mine = west.live(handle).endpoint
    other = east.other_side(mine.conversation_id)
    assert other is not None
    theirs = other.endpoint
    assert (str(mine.state), mine.send_sequence, mine.end_sequence) == ("DO", 3, 2)
    assert (theirs.receive_sequence, theirs.receive_fragment) == (1, 2)
    assert (theirs.far_service, theirs.far_broker) == ("urn:west", west.broker.broker_id)
    assert theirs.expires_at == mine.expires_at == mine.began_at + 5_000_000_000
    for one in (west, east):
        await one.one.restart()
    assert await west.broker.store.endpoints.by_handle(mine.handle) == mine
    assert await east.broker.store.endpoints.by_handle(theirs.handle) == theirs
    await net.wait(70)
    assert await east.bodies() == [b"1", b"x" * 3000, None]


@pytest.mark.rule("DLP-2")
@peers("west", "east")
async def test_what_an_endpoint_knows_survives_a_restart(net: Net, west: Peer, east: Peer) -> None:
    handle = await west.talk("urn:east", b"1", b"2")
    await net.wait(1)
    (first, *_) = await east.messages()
    await east.session.send(first.handle, b"back", "Answer")
    await net.wait(1)
    before = west.live(handle).endpoint
    there = east.live(first.handle).endpoint
    assert (before.send_sequence, before.receive_sequence) == (2, 1)
    assert there.first_acked
    for one in (west, east):
        await one.one.restart()
    assert await west.broker.store.endpoints.by_handle(before.handle) == before
    assert await east.broker.store.endpoints.by_handle(there.handle) == there


@pytest.mark.rule("DLP-3", "DLP-5", "DLP-14", "DLP-20", "DLP-25")
@peers("west", "east")
async def test_acks_are_not_kept_and_a_lost_one_is_made_again(
    net: Net, west: Peer, east: Peer
) -> None:
    tap = Tap(west)
    tap.loses = lambda item: type(item) is AckOnly
    handle = await west.talk("urn:east", b"1", b"2", b"3")
    await net.wait(2)
    assert tap.of(AckOnly)
    assert await _rows(east, "transmission_queue") == 0  # an acknowledgement has no row
    assert await _rows(west, "transmission_queue") == 3
    assert await west.key(handle) == "awaiting_ack"
    sent = len(tap.of(AckOnly))
    await net.wait(1)
    assert len(tap.of(AckOnly)) == sent  # and is not repeated by itself
    tap.loses = lambda _item: False
    await net.wait(4)  # the repeat of the original provokes a new one
    assert len(tap.of(AckOnly)) > sent
    assert await west.status(handle) == ""
    await net.wait(6)
    assert await _rows(west, "transmission_queue") == 0
    assert await east.bodies() == [b"1", b"2", b"3"]


@pytest.mark.rule("DLP-14", "DLP-18", "DLP-19")
@peers("west", "east")
async def test_one_ack_covers_many_and_rides_on_a_reply(net: Net, west: Peer, east: Peer) -> None:
    handle = await west.talk("urn:east", b"0")
    await net.wait(2)
    (first,) = await east.messages()
    tap = Tap(west)
    async with west.session.transaction() as tx:
        for n in range(10):
            await tx.send(handle, b"%d" % n, "Ask")
    await net.wait(0.1)
    await east.session.send(first.handle, b"reply", "Answer")
    await net.wait(1)
    assert west.out(handle).pending == 0
    assert not tap.of(AckOnly)
    (reply,) = tap.of(Fragment)
    assert (reply.ack.sequence, reply.sequence) == (10, 0)
    await west.session.send(handle, b"alone", "Ask")
    await net.wait(0.15)
    assert not tap.of(AckOnly)  # it waits for something to ride on
    await net.wait(0.15)
    (alone,) = tap.of(AckOnly)
    assert alone.ack.sequence == 11
    there = Tap(east)
    await net.wait(600)  # an acknowledgement is not acknowledged
    assert (tap.of(AckOnly), there.items) == ([alone], [])


@pytest.mark.rule("DLP-41", "DLP-42", "DLP-40", "DLG-T6")
@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("contract unknown", -8425),
        ("contract not accepted", -8408),
        ("type unknown", -8428),
        ("type not in the contract", -8498),
        ("type of the other side", -8457),
        ("body not well formed", -8430),
        ("body against the schema", -9615),
        ("too large", -8459),
        ("too large in one fragment", -8459),
    ],
)
def test_a_failure_that_the_sender_can_mend_is_answered(
    case: str, code: int, tmp_path: Any
) -> None:
    @peers("west", "east")
    async def test(net: Net, west: Peer, east: Peer) -> None:
        contract, kind, body = "talk", "Ask", b"{"
        if case == "contract unknown":
            await east.session.alter("service", "urn:east", contracts=["other"])
            await east.session.drop("contract", "talk")
        elif case == "contract not accepted":
            await east.session.alter("service", "urn:east", contracts=["other"])
        elif case == "type unknown":
            contract, kind = "deal", "New"
            await west.session.create("message_type", "New")
            await _agree(west, east, {"New": "any"})
        elif case == "type not in the contract":
            contract, kind = "deal", "Answer"
            await _agree(west, east, {"Answer": "any"})
        elif case == "type of the other side":
            contract = "deal"
            await _agree(west, east, {"Ask": "any"}, {"Ask": "target", "Json": "any"})
        elif case == "body not well formed":
            kind = "Json"
        elif case == "body against the schema":
            contract, kind, body = "deal", "New", b"[]"
            await west.session.create("message_type", "New")
            schema = {"validation": "valid_json", "schema": '{"type": "object"}'}
            await east.session.create("message_type", "New", **schema)
            await _agree(west, east, {"New": "any"}, {"New": "any"})
        else:
            east.broker.options = msgspec.structs.replace(east.broker.options, max_message=50_000)
            body = b"x" * 100_000
            if case == "too large in one fragment":
                east.broker.options = msgspec.structs.replace(east.broker.options, max_message=99)
                body = b"x" * 100
        handle = await west.session.begin_dialog("urn:west", "urn:east", contract)
        await west.session.send(handle, body, kind)
        await net.wait(2)
        endpoint = west.live(handle).endpoint
        assert (str(endpoint.state), endpoint.error_code) == ("ER", code)
        assert east.other_side(endpoint.conversation_id) is None
        messages = await west.messages()
        assert [one.message_type for one in messages] == ["urn:brokerd:Error"]

    test(tmp_path)


BACK = {
    "type unknown": ("New", b"x", -8428, -8428),
    "type not in the contract": ("Answer", b"x", -8498, -8498),
    "type of the other side": ("Json", b"{}", -8437, -8437),
    "body not well formed": ("Both", b"{", -8430, -8430),
    "body against the schema": ("Exact", b"[]", -9615, -9616),
    "too large": ("Ask", b"x" * 100, -8459, -8459),
}
"""Message type, body, and what its sender and its receiver are told."""


@pytest.mark.rule("DLG-43", "DLP-41", "DLP-42", "OBJ-29", "DLG-T15")
@pytest.mark.parametrize(("kind", "body", "told", "struck"), BACK.values(), ids=BACK.keys())
def test_what_a_target_sends_is_checked_alike_and_errors_both_sides(
    kind: str, body: bytes, told: int, struck: int, tmp_path: Path
) -> None:
    @peers("west", "east")
    async def test(net: Net, west: Peer, east: Peer) -> None:
        schema = {"validation": "valid_json", "schema": '{"type": "object"}'}
        await west.session.create("message_type", "Both", validation="well_formed_json")
        await west.session.create("message_type", "Exact", **schema)
        for name in ("New", "Both", "Exact"):
            await east.session.create("message_type", name)
        here = {"Ask": "any", "Json": "initiator", "Both": "any", "Exact": "any"}
        there = {"New": "any", "Answer": "any", "Json": "any", "Both": "any", "Exact": "any"}
        await _agree(west, east, here, {"Ask": "any"} | there)
        west.broker.options = msgspec.structs.replace(west.broker.options, max_message=99)
        mine = await west.talk("urn:east", b"1", contract="deal")
        await net.wait(1)
        (asked,) = await east.messages()
        await east.session.send(asked.handle, body, kind)
        await net.wait(2)
        for one, handle, code in ((east, asked.handle, told), (west, mine, struck)):
            assert str(one.live(handle).endpoint.state) == "ER"
            (error,) = await one.messages()
            assert error.error is not None
            assert (error.handle, error.error.number) == (handle, code)

    test(tmp_path)


@pytest.mark.rule("SND-12", "DLP-13", "DLP-41", "DLG-43", "ERR-8459")
@pytest.mark.parametrize("fragment_size", [999, 1000, 2000])
def test_the_largest_message_arrives_and_one_byte_more_ends_the_dialog(
    fragment_size: int, tmp_path: Path
) -> None:
    @peers("west", "east", dialog=Dialog(fragment_size=fragment_size))
    async def test(net: Net, west: Peer, east: Peer) -> None:
        east.broker.options = msgspec.structs.replace(east.broker.options, max_message=1000)
        for opening in ([b"x" * 1000], [b"first", b"x" * 1000]):
            handle = await west.talk("urn:east", *opening)
            await net.wait(2)
            assert await east.bodies() == opening
            await west.session.send(handle, b"x" * 1001, "Ask")
            await net.wait(2)
            for one in (west, east):
                (told,) = await one.messages()
                assert told.error is not None
                assert told.error.number == -8459

    test(tmp_path)


async def _agree(
    west: Peer, east: Peer, types: dict[str, str], there: dict[str, str] | None = None
) -> None:
    """One contract by its name, which the two sides do not mean alike."""
    await west.session.create("contract", "deal", types=types)
    await east.session.create("contract", "deal", types=there or {"Ask": "any"})
    await east.session.alter("service", "urn:east", contracts=["deal"])


@pytest.mark.rule("DLP-41", "DLP-40", "DSP-4", "DLG-6", "DLG-T6")
@peers("west", "east")
async def test_a_missing_service_of_the_named_broker_is_answered(
    net: Net, west: Peer, east: Peer
) -> None:
    """Another broker of the instance has it, so the one that was named answers (RTE-31)."""
    await west.apply(route=[route("east", "urn:elsewhere", "there")])
    far = east.broker.broker_id
    service = {"name": "urn:elsewhere", "queue": "box", "contracts": ["talk"]}
    objects = {"broker": {"name": "second", "default_encryption": "off"}}
    await east.session.apply({**TYPES, **objects, "queue": [{"name": "box"}], "service": [service]})
    handle = await west.session.begin_dialog("urn:west", "urn:elsewhere", "talk", broker_id=far)
    await west.session.send(handle, b"1", "Ask")
    await net.wait(2)
    assert west.live(handle).endpoint.error_code == -8490


@pytest.mark.rule("DLP-51", "DLG-30")
@peers("west", "east")
async def test_an_error_overtakes_what_waits_and_deletes_nothing(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"1", b"2")
    await net.wait(1)
    await west.session.end(handle, 7, "no more")
    await net.wait(1)
    kinds = [one.message_type for one in await east.messages()]
    assert kinds == ["urn:brokerd:Error", "Ask", "Ask"]


@pytest.mark.rule("DLP-46")
@peers("west", "east", "third")
async def test_conversations_of_a_group_bind_independently(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    for one in (east, third):
        await one.session.create("service", "urn:either", queue="box", contracts=["talk"])
    await west.apply(route=[route("east", "urn:either", "a"), route("third", "urn:either", "b")])
    first = await west.session.begin_dialog("urn:west", "urn:either", "talk")
    second = await west.session.begin_dialog(
        "urn:west", "urn:either", "talk", related_conversation=first
    )
    for handle in (first, second):
        await west.session.send(handle, b"1", "Ask")
    await net.wait(2)
    ends = [west.live(handle).endpoint for handle in (first, second)]
    assert ends[0].group_id == ends[1].group_id
    assert {one.far_broker for one in ends} == {
        east.broker.broker_id,
        third.broker.broker_id,
    }
    named = third.broker.broker_id  # whoever names the broker keeps them together
    await west.apply(route=[route("third", "urn:either", "c") | {"broker": show(named)}])
    for _ in range(3):
        handle = await west.session.begin_dialog(
            "urn:west", "urn:either", "talk", related_conversation=first, broker_id=named
        )
        await west.session.send(handle, b"1", "Ask")
        await net.wait(1)
        assert west.live(handle).endpoint.bound
        assert west.live(handle).endpoint.far_broker == named


@pytest.mark.rule("XMT-4", "XMT-3")
@peers("west", "east")
async def test_only_what_leaves_the_broker_has_a_transmission_object(
    net: Net, west: Peer, east: Peer
) -> None:
    inside = await west.talk("urn:west", b"1")
    outside = await west.talk("urn:east", b"1")
    assert west.live(inside).outgoing is None
    assert west.live(outside).outgoing is not None
    assert await _rows(west, "transmission_queue") == 1


@pytest.mark.rule("XMT-3")
@peers("west", "east", transmitter=Transmitter(max_objects=3))
async def test_what_left_memory_is_read_again_and_sent(net: Net, west: Peer, east: Peer) -> None:
    handles: list[bytes] = []
    for number in range(8):
        handles.append(await west.talk("urn:east", b"%d" % number))
        await net.wait(15)
    assert len(west.broker.endpoints) == 3
    for handle in handles:
        await west.session.send(handle, b"more", "Ask")
    await net.wait(2)
    found = await east.bodies()
    assert (len(found), found.count(b"more")) == (16, 8)


@pytest.mark.rule("XMT-3")
@peers("west", transmitter=Transmitter(max_objects=3))
async def test_what_nothing_needs_any_more_leaves_memory(net: Net, west: Peer) -> None:
    ticker = west.one.instance.parts.ticker

    async def eight_wait_and_are_received() -> int:
        for number in range(8):
            await west.talk("urn:west", b"%d" % number)
        assert len(west.broker.endpoints) >= 8, "their messages are in the window of the queue"
        assert len(await west.bodies()) == 8
        return ticker.ticks

    await eight_wait_and_are_received()
    await net.wait(6)
    assert len(west.broker.endpoints) == 3, "no new one came, and a tick saw to it"
    ticks = await eight_wait_and_are_received()
    await west.talk("urn:west", b"another")
    assert len(west.broker.endpoints) <= 4, "a new one took the place of all that were too many"
    assert ticker.ticks == ticks


@pytest.mark.rule("NBT-2", "XMT-16", "XMT-18")
@peers("west", "east")
async def test_the_status_is_never_blank_while_something_waits(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east")
    seen = [await west.key(handle)]
    net.cut()
    await west.session.send(handle, b"1", "Ask")
    seen.append(await west.key(handle))
    net.heal()
    await net.wait(70)
    assert seen == ["", "not_attempted"]
    assert await west.status(handle) == ""
    tap = Tap(west)
    tap.loses = lambda _item: True
    await west.session.send(handle, b"2", "Ask")
    await net.wait(0.1)
    found = await west.session.transmission_status(handle)
    assert (found.status_key, found.attempts) == ("awaiting_ack", 1)
    assert found.next_attempt_at is not None
    await net.wait(5)
    found = await west.session.transmission_status(handle)
    assert (found.status_key, found.attempts) == ("awaiting_ack", 2)
    east.one.crash()
    await net.wait(0.1)
    assert await west.key(handle) == "connection_lost"
    await net.wait(30)
    assert await west.key(handle) in ("connect_failed", "dns_failed")
    found = await west.session.transmission_status(handle)
    assert found.next_attempt_at is not None
    tap.loses = lambda _item: False
    await east.one.start()
    await net.wait(70)
    assert await west.status(handle) == ""


@pytest.mark.rule("NBT-23", "DLP-28", "DLP-29")
@peers("west", "east")
async def test_after_an_outage_the_first_repeat_leaves_with_the_connection(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"0")
    await net.wait(1)
    east.one.crash()
    await west.session.send(handle, b"1", "Ask")
    await net.wait(3600)
    came: list[float] = []
    events = west.instance.parts.destinations._events
    changed = events.address_changed

    def online(address: str, now: bool) -> None:
        if now:
            came.append(net.sim_clock.monotonic())
        changed(address, now)

    patch.object(events, "address_changed", online).start()
    await east.one.start()
    east.listen()
    tap = Tap(east)
    while not tap.of(Fragment):
        await net.wait(0.01)
    assert net.sim_clock.monotonic() - came[0] <= 0.1
    await net.wait(1)
    assert await west.status(handle) == ""


@pytest.mark.rule("BI-F7", "DLP-17")
@peers("west", "east", "third")
async def test_acks_that_are_late_or_of_another_dialog_or_broker_release_nothing(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    handle = await west.talk("urn:east", b"1", b"2")
    other = await west.talk("urn:east", b"other")
    await net.wait(1)
    tap = Tap(east)
    tap.loses = lambda _item: True
    await west.session.send(handle, b"3", "Ask")
    await west.session.send(other, b"too", "Ask")
    before = west.live(handle).endpoint
    for conversation, broker, sequence in (
        (before.conversation_id, east.broker.broker_id, 0),
        (ConversationId(b"?" * 16), east.broker.broker_id, 2),
        (west.live(other).endpoint.conversation_id, east.broker.broker_id, 0),
        (before.conversation_id, third.broker.broker_id, 2),
    ):
        ack = Ack(sequence, 0, sequence, 0, broker)
        item = AckOnly(conversation, False, "urn:east", "urn:west", broker, ack, _hop(west))
        west.instance.parts.dispatcher.arrived([item])
        await net.wait(0.1)
    assert west.live(handle).endpoint == before
    assert [west.out(one).pending for one in (handle, other)] == [1, 1]
    tap.loses = lambda _item: False
    await net.wait(70)
    assert await east.bodies() == [b"1", b"2", b"3", b"other", b"too"]


@pytest.mark.rule("BI-F10", "REL-9", "REL-14", "CHK-3")
@pytest.mark.parametrize("restart", [False, True])
def test_a_replayed_connection_has_no_effect_but_acks(restart: bool, tmp_path: Any) -> None:
    @peers("west", "east")
    async def test(net: Net, west: Peer, east: Peer) -> None:
        tap = Tap(east)
        ended = await west.talk("urn:east", b"1", b"2")
        going_on = await west.talk("urn:east", b"a")
        await net.wait(1)
        for message in await east.messages():
            if message.body == b"2":
                await east.session.end(message.handle)
        await west.session.end(ended)
        await net.wait(1)
        recorded = list(tap.items)
        assert {type(one) for one in recorded} >= {Fragment, AckOnly}
        if restart:
            await east.one.restart()
            east.listen()
            await net.wait(70)
        await west.session.send(going_on, b"b", "Ask")
        await net.wait(1)
        back = Tap(west)
        endpoints = await east.session.view("conversation_endpoints")
        states = [(row["conversation_id"], row["state"]) for row in endpoints]
        for _ in range(2):
            east.instance.parts.dispatcher.arrived(recorded, west.instance.parts.instance_id)
            await net.wait(300)
        after = await east.session.view("conversation_endpoints")
        assert [(row["conversation_id"], row["state"]) for row in after] == states
        assert await east.bodies() == [b"b"]
        assert {type(one) for one in back.items} <= {AckOnly}
        assert west.out(going_on).pending == 0

    test(tmp_path)


@pytest.mark.rule("DLP-17", "DLP-3", "BI-F7")
@peers("west", "east")
async def test_an_ack_for_what_was_never_sent_changes_nothing(
    net: Net, west: Peer, east: Peer
) -> None:
    """From a broker that has nothing to say: the dialog is not bound yet."""
    net.cut()
    handle = await west.talk("urn:east", b"1")
    before = west.live(handle).endpoint
    ack = Ack(7, 0, 7, 0, east.broker.broker_id)
    west.instance.parts.dispatcher.arrived(
        [
            AckOnly(
                before.conversation_id, False, "urn:east", "urn:west",
                east.broker.broker_id, ack, _hop(west),
            )
        ]
    )  # fmt: skip
    await net.wait(1)
    assert west.live(handle).endpoint == before
    assert west.out(handle).pending == 1
    (line,) = west.log.of("broker.message_undeliverable")
    assert (line["subclass"], line["ssb_code"]) == ("unsequenced", 28010)
    net.heal()


def _hop(to: Peer) -> Any:
    return Hop(to.broker.broker_id, 10, 60_000, 0)


@pytest.mark.rule("DLP-5", "DLP-42", "DLG-T13")
@peers("west", "east")
async def test_a_broker_error_has_no_row_and_no_sequence(net: Net, west: Peer, east: Peer) -> None:
    tap = Tap(west)
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk")
    await west.session.send(handle, b"{", "Json")
    await net.wait(2)
    (error,) = tap.of(BrokerErrorItem)
    assert error.code < 0
    assert await _rows(east, "transmission_queue") == 0
    assert west.live(handle).endpoint.receive_sequence == 0
