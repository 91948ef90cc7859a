"""A copied store that is switched on beside the original: found by peers, and sent nothing."""

from pathlib import Path

import msgspec
import pytest

from brokerd.ids import show
from brokerd.testing.places import Place
from tests.integration.copies import EAST, FOUND, PEER, SHOP, WEST, Copies, copies

pytestmark = pytest.mark.of_files("it copies a store file")


@pytest.mark.rule("PBT-13", "MAN-7", "RTE-71", "RTE-72", "RTE-73", "TRN-46")
@copies
async def test_a_copy_that_is_forced_on_is_seen_and_sent_nothing_until_it_is_cured(
    rig: Copies,
) -> None:
    await rig.route("orders_east", rig.east, broker=rig.shop_id.hex())
    first = await rig.begin(broker_id=rig.shop_id)
    await rig.send(first, b"1")
    await rig.pass_time(2)
    await rig.copy()
    (row,) = await rig.west.session.view("brokers", where={"name": SHOP})
    assert (row["is_broker_enabled"], row["disabled_reason"]) == (False, "foreign_fingerprint")
    await rig.force_on()
    await rig.talk(rig.west)
    assert await rig.duplicates() == []  # not yet: it may be a failover
    await rig.pass_time(FOUND)
    assert rig.seen(rig.peer) == [("seen", EAST, WEST)]
    (told,) = await rig.events()
    assert (told["event"], told["broker"]) == ("DUPLICATE_BROKER_SEEN", "msdb")
    assert told["broker_id"] == show(rig.shop_id)
    assert told["earlier_address"] == "tcp://east:4022"
    assert told["later_address"] == "tcp://west:4022"
    assert "brokerd broker new-id" in told["hint"]

    await rig.route("orders_west", rig.west, broker=rig.shop_id.hex())
    handles = [await rig.begin(broker_id=rig.shop_id) for _ in range(4)]
    for handle in (first, *handles):
        await rig.send(handle, b"2")
    await rig.pass_time(10)
    assert await rig.taken(rig.east) == [b"1"] + [b"2"] * 5  # routes are not taken in turns
    assert await rig.taken(rig.west) == [b"1"]  # as it was copied

    await rig.peer.session.drop("route", "orders_west")
    await rig.west.session.admin.new_broker(SHOP)
    assert rig.seen(rig.peer)[1:] == []
    await rig.pass_time(1)
    assert rig.seen(rig.peer)[1:] == [("over", EAST, WEST)]
    copied = rig.west.instance.brokers[SHOP].broker_id
    await rig.route("orders_copy", rig.west, broker=copied.hex())
    await rig.send(first, b"3")
    await rig.send(await rig.begin(broker_id=copied), b"4")
    await rig.pass_time(10)
    assert (await rig.taken(rig.east), await rig.taken(rig.west)) == ([b"3"], [b"4"])
    assert await rig.events() == []


async def duplicate(rig: Copies, *, routed: bool = True) -> bytes:
    """The copy is on, the peer has found it, and has a dialog with east."""
    if routed:
        await rig.route("orders_east", rig.east, broker=rig.shop_id.hex())
    first = await rig.begin(broker_id=rig.shop_id)
    await rig.send(first, b"1")
    await rig.pass_time(2)
    await rig.copy()
    await rig.force_on()
    await rig.talk(rig.west)
    await rig.pass_time(FOUND)
    assert rig.seen(rig.peer) == [("seen", EAST, WEST)]
    assert await rig.taken(rig.east) == [b"1"]
    return first


@pytest.mark.rule("RTE-72", "PBT-13", "XMT-19")
@copies
async def test_what_has_no_other_way_than_to_the_later_one_waits_and_says_so(rig: Copies) -> None:
    first = await duplicate(rig)
    await rig.peer.session.alter("route", "orders_east", address="TCP://west:4022")
    second = await rig.begin()  # the route names the broker
    for handle in (first, second):
        await rig.send(handle, b"2")
    await rig.pass_time(30)
    for handle in (first, second):
        key, text = await rig.status(handle)
        assert key == "duplicate_broker"
        assert show(rig.shop_id) in text
        assert text.index("tcp://east:4022") < text.index("tcp://west:4022")
    assert await rig.taken(rig.west) == [b"1"]
    explained = await rig.peer.session.admin.explain_route("orders", broker_id=rig.shop_id)
    assert explained.steps[-1].step == "duplicate"
    await rig.west.session.admin.disable(SHOP)
    await rig.pass_time(0.1)
    assert rig.seen(rig.peer)[1:] == [("over", EAST, WEST)]
    assert [(await rig.status(one))[0] for one in (first, second)] == ["target_notice"] * 2
    await rig.peer.session.alter("route", "orders_east", address="TCP://east:4022")
    await rig.pass_time(5)
    assert await rig.taken(rig.east) == [b"2", b"2"]


@pytest.mark.rule("RTE-72")
@copies
async def test_what_was_on_its_way_to_the_later_one_is_held_back(rig: Copies) -> None:
    """Its dialog has begun there, so it is not handed to the other one either."""
    await rig.route("orders_west", rig.west, broker=rig.shop_id.hex())
    await rig.copy()
    async with await rig.at(rig.east) as session:  # the peer hears of east first
        await session.send(await session.begin_dialog("orders", PEER, "DEFAULT"), b"x", "DEFAULT")
    await rig.pass_time(1)
    await rig.force_on()
    handle = await rig.begin(broker_id=rig.shop_id)
    await rig.send(handle, b"1")
    await rig.pass_time(2)
    async with await rig.at(rig.west) as session:
        (message,) = await session.receive("orders_q", wait=0, autocommit=True)
        await rig.pass_time(FOUND)
        assert rig.seen(rig.peer) == [("seen", EAST, WEST)]
        await session.send(message.handle, b"answer", "DEFAULT")
        await rig.pass_time(2)
        waiting = await session.view("transmission_queue")
        assert [row["status_key"] for row in waiting] == ["awaiting_ack"]
    await rig.send(handle, b"2")
    await rig.route("orders_east", rig.east, broker=rig.shop_id.hex())
    await rig.pass_time(30)
    assert (await rig.status(handle))[0] == "duplicate_broker"
    assert (await rig.taken(rig.east), await rig.taken(rig.west)) == ([], [])
    # Who names no broker goes where there is no other way, and prefers another one.
    await rig.route("unnamed_west", rig.west)
    await rig.peer.session.drop("route", "orders_west")
    await rig.peer.session.drop("route", "orders_east")
    await rig.send(await rig.begin(), b"3")
    await rig.pass_time(2)
    assert await rig.taken(rig.west) == [b"3"]
    await rig.route("unnamed_east", rig.east)
    for _ in range(4):
        await rig.send(await rig.begin(), b"4")
    await rig.pass_time(2)
    assert (await rig.taken(rig.east), await rig.taken(rig.west)) == ([b"4"] * 4, [])


@pytest.mark.rule("RTE-72", "NBT-6", "DSP-5")
@copies
async def test_nothing_passes_through_to_the_later_one(rig: Copies) -> None:
    await duplicate(rig)
    await rig.add("far")
    await rig.instances["far"].session.apply(
        {
            "broker": {"name": "main"},
            "route": [{"name": "orders", "service": "orders", "address": "TCP://peer:4022"}],
        },
        ensure=True,
    )
    await rig.peer.session.apply(
        {
            "broker": {"name": "main"},
            "instance_route": [{"name": "on", "service": "orders", "address": "TCP://west:4022"}],
        },
        ensure=True,
    )
    await rig.peer.session.admin.alter_endpoint(forwarding=True)
    far = rig.instances["far"].session
    handle = await far.begin_dialog("far", "orders", "DEFAULT", broker_id=rig.shop_id)
    await far.send(handle, b"through", "DEFAULT")
    await rig.pass_time(5)
    found = await far.transmission_status(handle)
    assert found.status_key == "target_notice"
    assert "duplicate_broker" in found.transmission_status
    await rig.west.session.admin.disable(SHOP)
    await rig.peer.session.alter("instance_route", "on", address="TCP://east:4022")
    await rig.pass_time(140)
    assert await rig.taken(rig.east) == [b"through"]


@pytest.mark.rule("RTE-71", "RTE-72")
@copies
async def test_one_that_has_the_broker_itself_keeps_it(rig: Copies) -> None:
    rig.watch(rig.east)
    await rig.copy()
    await rig.force_on()
    await rig.west.session.send(await rig.west.session.begin_dialog(WEST, EAST), b"hello")
    await rig.pass_time(FOUND + 5)
    assert rig.seen(rig.east) == [("seen", EAST, WEST)]
    (line,) = rig.lines[EAST]
    assert (line["broker"], line["earlier_address"]) == (SHOP, "here")
    (row,) = await rig.duplicates(rig.east)
    assert (row.broker, row.earlier) == (SHOP, "east (here)")
    await rig.talk(rig.east)
    assert len(await rig.peer.session.receive(f"{PEER}_q", wait=0, autocommit=True)) == 1


@pytest.mark.rule("RTE-73", "TRN-28")
@copies
async def test_it_lasts_while_nothing_is_sent_and_while_one_of_the_two_starts_again(
    rig: Copies,
) -> None:
    await duplicate(rig)
    await rig.pass_time(400)  # connections without traffic are closed after 90 s
    assert rig.seen(rig.peer)[1:] == []
    await rig.east.stop()
    rig.east._instance = None
    await rig.pass_time(60)
    await rig.east.start()
    await rig.pass_time(150)
    assert rig.seen(rig.peer)[1:] == []
    assert (await rig.duplicates())[0].later.endswith("tcp://west:4022")
    rig.east.crash()
    await rig.pass_time(160)
    assert rig.seen(rig.peer)[1:] == [("over", EAST, WEST)]
    assert await rig.duplicates() == []
    await rig.east.start()
    await rig.pass_time(5)
    await rig.talk(rig.east)
    await rig.pass_time(FOUND)
    assert rig.seen(rig.peer)[2:] == [("seen", WEST, EAST)]  # now it is the later one


@pytest.mark.rule("RTE-73", "RTE-70")
@copies
async def test_an_observer_that_starts_again_finds_it_again(rig: Copies) -> None:
    first = await duplicate(rig)
    await rig.peer.restart()
    rig.watch(rig.peer)
    await rig.send(first, b"2")  # to east, so that it is the first again
    await rig.pass_time(2)
    await rig.talk(rig.west)
    await rig.pass_time(FOUND)
    assert rig.seen(rig.peer)[1:] == [("seen", EAST, WEST)]


@pytest.mark.rule("RTE-70", "RTE-71")
@copies
async def test_one_that_was_heard_long_ago_is_asked_again(rig: Copies) -> None:
    await rig.talk(rig.east)
    await rig.copy()
    await rig.pass_time(300)
    assert (
        rig.east.instance.parts.instance_id not in rig.peer.instance.parts.destinations.neighbours()
    )
    await rig.force_on()
    await rig.talk(rig.west)
    await rig.pass_time(FOUND + 10)
    assert rig.seen(rig.peer) == [("seen", EAST, WEST)]


@pytest.mark.rule("RTE-71")
@pytest.mark.parametrize("how", ["in order", "killed", "cut off", "moved while idle"])
def test_a_broker_that_has_moved_is_no_duplicate(how: str, tmp_path: Path) -> None:
    @copies
    async def moved(rig: Copies) -> None:
        await rig.talk(rig.east)
        if how == "moved while idle":
            await rig.pass_time(300)
        if how == "cut off":  # its host is gone without a word, and the connection seems to stand
            rig.network.cut(PEER, EAST)
            await rig.copy()
        else:
            await rig.copy()
            if how == "killed":
                rig.east.crash()
            else:
                await rig.east.stop()
                rig.east._instance = None
        await rig.force_on()
        await rig.talk(rig.west)
        await rig.pass_time(400)
        assert rig.seen(rig.peer) == []

    moved(tmp_path)


@pytest.mark.rule("TRN-46", "TRN-10", "RTE-70")
@copies
async def test_a_peer_of_an_earlier_version_is_told_nothing_and_works(rig: Copies) -> None:
    rig.west.instance.parts.destinations.peers.hello = msgspec.structs.replace(
        rig.west.instance.parts.destinations.peers.hello, options={}
    )
    handle = await rig.west.session.begin_dialog(WEST, PEER, "DEFAULT")
    await rig.west.session.send(handle, b"hello", "DEFAULT")
    await rig.pass_time(2)
    (one,) = await rig.peer.session.receive(f"{PEER}_q", wait=0, autocommit=True)
    assert one.body == b"hello"
    assert rig.west.instance.parts.instance_id in rig.peer.instance.parts.destinations.neighbours()
    for here, there in ((rig.peer, rig.west), (rig.west, rig.peer)):
        known = here.instance.parts.duplicate_brokers._namers.known()
        assert there.instance.parts.instance_id not in known


@pytest.mark.rule("RTE-70", "TRN-46")
@copies
async def test_what_a_peer_named_is_forgotten_when_it_comes_back_as_an_earlier_version(
    rig: Copies,
) -> None:
    await rig.west.session.send(await rig.west.session.begin_dialog(WEST, PEER), b"hello")
    await rig.pass_time(2)
    known = rig.peer.instance.parts.duplicate_brokers._namers.known
    assert rig.west.instance.parts.instance_id in known()
    await rig.west.restart()
    assert rig.west.instance.parts.instance_id in known()  # also while it is away
    rig.west.instance.parts.destinations.peers.hello = msgspec.structs.replace(
        rig.west.instance.parts.destinations.peers.hello, options={}
    )
    handle = await rig.west.session.begin_dialog(WEST, PEER, "DEFAULT")
    await rig.west.session.send(handle, b"hello", "DEFAULT")
    await rig.pass_time(2)
    assert rig.west.instance.parts.instance_id in rig.peer.instance.parts.destinations.neighbours()
    assert rig.west.instance.parts.instance_id not in known()


@pytest.mark.rule("RTE-72", "TRN-23")
@copies
async def test_an_address_that_turns_out_to_be_the_later_one_is_sent_nothing(rig: Copies) -> None:
    await duplicate(rig)
    listening = rig.network._listening
    listening[Place(WEST, 5000)] = listening[Place(WEST, 4022)]  # as a gateway would have it
    await rig.route("orders_alias", rig.west, broker=rig.shop_id.hex())
    await rig.peer.session.alter("route", "orders_alias", address="TCP://west:5000")
    await rig.peer.session.drop("route", "orders_east")
    handle = await rig.begin(broker_id=rig.shop_id)
    await rig.send(handle, b"2")
    await rig.pass_time(20)
    assert (await rig.status(handle))[0] == "duplicate_broker"
    assert await rig.taken(rig.west) == [b"1"]


@pytest.mark.rule("RTE-71", "TRN-30")
@copies
async def test_a_copy_that_is_switched_on_while_nobody_says_anything_is_seen(rig: Copies) -> None:
    await rig.copy()
    await rig.talk(rig.east)
    await rig.west.session.send(await rig.west.session.begin_dialog(WEST, PEER), b"hello")
    await rig.pass_time(35)
    assert len(rig.peer.instance.parts.destinations.neighbours()) == 2
    await rig.force_on()
    await rig.pass_time(FOUND)
    assert rig.seen(rig.peer) == [("seen", EAST, WEST)]
