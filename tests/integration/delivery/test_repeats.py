"""What is sent again between two instances, and what is said about it at once (DLP, REL)."""

from pathlib import Path

import msgspec
import pytest

from brokerd.config.settings import Dialog
from brokerd.protocol.frames import AckOnly, BrokerErrorItem, Fragment, Item
from tests.integration.delivery.tap import Tap
from tests.integration.peers import Net, Peer, peers

AT_ONCE = 0.1
"""Seconds: half of what an acknowledgement waits for something that carries it (DLP-19)."""


def _fixed(item: Fragment) -> Fragment:
    """What of a fragment may not change when it is sent again."""
    return msgspec.structs.replace(item, ack=None, hop=None)


_sizes: dict[str, int] = {}


@pytest.mark.rule("DLP-7", "DLP-10")
@peers("west", "east", dialog=lambda name: Dialog(fragment_size=_sizes.get(name, 1000)))
async def test_a_repeat_is_the_same_fragment_also_after_a_restart(
    net: Net, west: Peer, east: Peer
) -> None:
    tap = Tap(east)
    tap.loses = lambda item: type(item) is Fragment
    await west.talk("urn:east", b"a" * 2000 + b"b" * 1500)
    await net.wait(1)
    first = [_fixed(one) for one in tap.of(Fragment)]
    assert [len(one.body) for one in first] == [1000, 1000, 1000, 500]
    flushes = west.broker.store.metrics.flushes
    tap.items.clear()
    await net.wait(5)
    assert [_fixed(one) for one in tap.of(Fragment)] == first
    assert west.broker.store.metrics.flushes == flushes  # no attempt is written down
    _sizes["west"] = 3000
    try:
        await west.one.restart()
    finally:
        _sizes.clear()
    tap.items.clear()
    await west.talk("urn:east", b"c" * 3500)  # it is for new messages that the size has changed
    await net.wait(1)
    again = [_fixed(one) for one in tap.of(Fragment)]
    old, new = (
        [one for one in again if (one.conversation_id == first[0].conversation_id) is known]
        for known in (True, False)
    )
    assert old == first
    assert [len(one.body) for one in new] == [3000, 500]


@pytest.mark.rule("DLP-9", "DLP-30")
@peers("west", "east", dialog=Dialog(fragment_size=1000))
async def test_a_lost_fragment_costs_that_one_and_no_wait(net: Net, west: Peer, east: Peer) -> None:
    await west.talk("urn:east", b"first")
    await net.wait(1)
    tap = Tap(east)
    lost: list[Item] = []

    def loses(item: Item) -> bool:
        is_it = isinstance(item, Fragment) and item.fragment == 4 and not lost
        if is_it:
            lost.append(item)
        return is_it

    tap.loses = loses
    await west.talk("urn:east", b"x" * 10_000)
    await net.wait(2)  # the timer would send it after 4 s
    assert [one.fragment for one in tap.of(Fragment)] == [*range(10), 4]
    assert await east.bodies() == [b"first", b"x" * 10_000]


async def _opened(net: Net, west: Peer, east: Peer) -> tuple[bytes, bytes]:
    """A dialog on which nothing is owed; its handles."""
    mine = await west.talk("urn:east", b"0")
    await net.wait(1)
    (got,) = await east.messages()
    await net.wait(1)
    return mine, got.handle


@pytest.mark.rule("DLP-19")
@pytest.mark.parametrize(
    ("what", "at_once"),
    [
        ("31 fragments", False),
        ("32 fragments", True),
        ("end", True),
        ("error", True),
        ("first message", True),
        ("the connection closes", True),
    ],
)
def test_what_cuts_the_wait_of_an_acknowledgement_short(
    what: str, at_once: bool, tmp_path: Path
) -> None:
    @peers("west", "east")
    async def test(net: Net, west: Peer, east: Peer) -> None:
        handle, _ = await _opened(net, west, east)
        tap = Tap(west)
        if what == "end":
            await west.session.end(handle)
        elif what == "error":
            await west.session.end(handle, 7, "enough")
        elif what == "first message":
            await west.talk("urn:east", b"1")
        elif what == "the connection closes":
            await west.session.send(handle, b"1", "Ask")
            await net.wait(AT_ONCE / 2)
            assert not tap.of(AckOnly)
            await east.one.stop()
        else:
            async with west.session.transaction() as tx:
                for _ in range(int(what.split(maxsplit=1)[0])):
                    await tx.send(handle, b"x", "Ask")
        await net.wait(AT_ONCE)
        assert bool(tap.of(AckOnly)) is at_once

    test(tmp_path)


@pytest.mark.rule("DLP-33", "DLP-48", "DLP-19")
@pytest.mark.parametrize("state", ["CO", "DI", "DO", "ER", "CD"])
def test_a_duplicate_is_acknowledged_at_once_in_any_state(state: str, tmp_path: Path) -> None:
    @peers("west", "east")
    async def test(net: Net, west: Peer, east: Peer) -> None:
        tap, seen = Tap(west), Tap(east)
        mine, theirs = await _opened(net, west, east)
        conversation = west.live(mine).endpoint.conversation_id
        (first,) = seen.of(Fragment)
        if state in ("DI", "CD"):
            await west.session.end(mine)
        elif state == "ER":
            await west.session.end(mine, 7, "enough")
        elif state == "DO":
            tap.loses = lambda item: type(item) is Fragment
        await net.wait(1)
        if state in ("DO", "CD"):
            await east.session.end(theirs)
            await net.wait(1)
        other = east.other_side(conversation)
        assert other is not None
        assert str(other.endpoint.state) == state
        await east.bodies()
        tap.items.clear()
        east.log.lines.clear()
        east.instance.parts.dispatcher.arrived([first])
        await net.wait(AT_ONCE)
        (said,) = tap.of(AckOnly)
        assert said.ack.sequence == other.endpoint.receive_sequence - 1
        (line,) = east.log.of("broker.message_undeliverable")
        assert (line["reason"], line["ssb_code"]) == ("duplicate", 11218)
        assert east.instance.parts.dispatcher.duplicates == 1
        assert await east.bodies() == []

    test(tmp_path)


@pytest.mark.rule("DLP-5", "DLP-48", "DLP-41")
@pytest.mark.parametrize("opened", [False, True])
def test_a_broker_error_that_was_lost_is_made_again_by_a_repeat(
    opened: bool, tmp_path: Path
) -> None:
    @peers("west", "east")
    async def test(net: Net, west: Peer, east: Peer) -> None:
        if opened:
            handle, _ = await _opened(net, west, east)
        else:
            handle = await west.session.begin_dialog("urn:west", "urn:east", "talk")
        tap = Tap(west)
        tap.loses = lambda item: type(item) is BrokerErrorItem
        await west.session.send(handle, b"{", "Json")
        await net.wait(3)
        assert len(tap.of(BrokerErrorItem)) == 1  # it is not repeated by itself
        assert str(west.live(handle).endpoint.state) == "CO"
        tap.loses = lambda _item: False
        await net.wait(4)
        endpoint = west.live(handle).endpoint
        assert (str(endpoint.state), endpoint.error_code) == ("ER", -8430)
        assert {one.code for one in tap.of(BrokerErrorItem)} == {-8430}

    test(tmp_path)


@pytest.mark.rule("SND-23", "XMT-16", "XMT-17")
@peers("west", "east")
async def test_the_last_acknowledgement_of_a_target_has_a_status(
    net: Net, west: Peer, east: Peer
) -> None:
    handle, theirs = await _opened(net, west, east)
    assert await east.key(theirs) == ""
    await west.session.send(handle, b"1", "Ask")
    await net.wait(AT_ONCE / 2)
    assert east.out(theirs).pending == 0
    assert await east.key(theirs) == "not_attempted"  # owed, and it may still be carried
    west.one.crash()
    await net.wait(1)
    assert east.out(theirs).pending == 0
    assert await east.key(theirs) == "connection_lost"
    await west.one.start()
    await net.wait(70)
    assert await east.key(theirs) == ""


@pytest.mark.rule("DLP-55")
@peers("west", "east")
async def test_each_message_behind_the_acknowledged_first_one_says_so(
    net: Net, west: Peer, east: Peer
) -> None:
    tap, back = Tap(east), Tap(west)
    back.loses = lambda item: type(item) is AckOnly
    handle = await west.talk("urn:east", b"0", b"1")
    await net.wait(1)
    back.loses = lambda _item: False
    await net.wait(9)
    for number in (2, 3):
        await west.session.send(handle, b"%d" % number, "Ask")
        await net.wait(1)
    said: dict[int, set[bool]] = {}
    for one in tap.of(Fragment):
        said.setdefault(one.sequence, set()).add(one.ack is not None and one.ack.first_acked)
    assert said == {0: {False}, 1: {False}, 2: {True}, 3: {True}}


@pytest.mark.rule("DLP-52", "DLG-T14")
@peers("west", "east")
async def test_a_lifetime_ends_at_each_side_by_itself(net: Net, west: Peer, east: Peer) -> None:
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", lifetime=100)
    await west.session.send(handle, b"0", "Ask")
    await net.wait(1)
    there, here = Tap(east), Tap(west)
    there.loses = lambda _item: True
    await west.session.send(handle, b"late", "Ask")
    await net.wait(90)
    (late, *_) = there.of(Fragment)
    here.items.clear()
    there.items.clear()
    await net.wait(60)
    mine = west.live(handle).endpoint
    other = east.other_side(mine.conversation_id)
    assert other is not None
    for endpoint in (mine, other.endpoint):
        assert (str(endpoint.state), endpoint.error_code) == ("ER", -8489)
    assert here.items == there.items == []
    there.loses = lambda _item: False
    east.instance.parts.dispatcher.arrived([late])
    await net.wait(1)
    assert east.instance.parts.dispatcher.dropped == {"over": 1}
    assert {one.code for one in here.of(BrokerErrorItem)} == {-8489}  # its own again
    (_, body) = await east.bodies()  # behind the Error
    assert body == b"0"


@pytest.mark.rule("DLP-40", "DLP-41")
@peers("west", "east")
async def test_a_dialog_that_arrives_after_its_lifetime_does_not_begin(
    net: Net, west: Peer, east: Peer
) -> None:
    there, here = Tap(east), Tap(west)
    there.loses = lambda _item: True
    handle = await west.session.begin_dialog("urn:west", "urn:east", "talk", lifetime=10)
    await west.session.send(handle, b"0", "Ask")
    await net.wait(20)
    there.loses = lambda _item: False
    east.instance.parts.dispatcher.arrived(there.of(Fragment)[:1])
    await net.wait(1)
    assert east.other_side(west.live(handle).endpoint.conversation_id) is None
    assert [one.code for one in here.of(BrokerErrorItem)] == [-8489]
    assert await east.bodies() == []


@pytest.mark.rule("DLP-11", "DSP-11")
@peers("west", "east", dialog=Dialog(fragment_size=1000))
async def test_a_queue_that_is_switched_off_within_a_message_keeps_what_is_stored(
    net: Net, west: Peer, east: Peer
) -> None:
    tap = Tap(east)
    tap.loses = lambda item: type(item) is Fragment and item.fragment > 1
    handle = await west.talk("urn:east", b"x" * 4000)
    await net.wait(1)
    await east.queue(on=False)
    tap.loses = lambda _item: False
    await net.wait(20)
    assert await west.key(handle) == "peer_queue_disabled"
    conversation = west.live(handle).endpoint.conversation_id
    other = east.other_side(conversation)
    assert other is not None
    assert (other.endpoint.receive_sequence, other.endpoint.receive_fragment) == (0, 2)
    tap.items.clear()
    await east.queue(on=True)
    await net.wait(1)
    assert {one.fragment for one in tap.of(Fragment)} == {2, 3}
    assert await east.bodies() == [b"x" * 4000]


@pytest.mark.rule("DLP-16", "DLP-17", "DLG-24")
@peers("west", "east")
async def test_what_went_with_a_clean_up_is_not_called_forgotten(
    net: Net, west: Peer, east: Peer
) -> None:
    """The acknowledgements of the tombstone name no oldest message: there is none any more."""
    tap, seen = Tap(west), Tap(east)
    handle, theirs = await _opened(net, west, east)
    (first,) = seen.of(Fragment)
    tap.loses = lambda item: type(item) is Fragment
    await east.session.send(theirs, b"lost", "Answer")
    await net.wait(1)
    await east.session.admin.clean_up(theirs, "a test")
    await net.wait(1)
    tap.items.clear()
    east.instance.parts.dispatcher.arrived([first])
    await net.wait(1)
    assert [one.ack.base_sequence for one in tap.of(AckOnly)] == [0]
    assert str(west.live(handle).endpoint.state) == "CO"
    assert not west.log.of("broker.history_lost")
