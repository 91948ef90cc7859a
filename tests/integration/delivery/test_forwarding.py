"""East - forwarder - west: what passes, what is dropped, what its sender learns (FWD, NBT-6)."""

import asyncio
from datetime import timedelta

import pytest

from brokerd.app.session import Session
from brokerd.testing.mangler import BoxcarMangler
from tests.integration.delivery.secured import sealed, trust
from tests.integration.delivery.tap import Tap
from tests.integration.peers import Log, Peer
from tests.integration.three_instances import Through, through


async def answer(session: Session, count: int) -> list[bytes]:
    """Take so many messages at west and answer each in its own dialog, with its body."""
    taken: list[bytes] = []
    while len(taken) < count:
        async with session.transaction() as tx:
            for message in await tx.receive("west_q", wait=300):
                body = message.body or b""
                taken.append(body)
                await tx.send(message.handle, b"re " + body)
    return taken


async def bodies(session: Session, queue: str, count: int) -> list[bytes]:
    """Take so many messages of a queue."""
    taken: list[bytes] = []
    while len(taken) < count:
        messages = await session.receive(queue, wait=300, autocommit=True)
        taken += [one.body or b"" for one in messages]
    return taken


@pytest.mark.rule("FWD-1", "FWD-3", "FWD-15", "FWD-16", "REL-12", "MON-12", "TRN-43")
@through()
async def test_messages_replies_and_acks_pass(rig: Through) -> None:
    handle = await rig.east.session.begin_dialog("east", "west")
    answering = asyncio.create_task(answer(rig.west.session, 20))
    for number in range(20):
        await rig.east.session.send(handle, b"%d" % number)
    assert await answering == [b"%d" % number for number in range(20)]
    assert await bodies(rig.east.session, "east_q", 20) == [b"re %d" % n for n in range(20)]
    await rig.pass_time(10)
    assert await rig.east.session.view("transmission_queue") == []
    assert await rig.west.session.view("transmission_queue") == []

    for one in (rig.east, rig.west):  # neither knows the other
        (known,) = await one.session.view("destinations")
        assert known["address"] == "tcp://middle:4022"
    report = rig.forwarder.report
    assert report.sent == report.received == 40
    assert not report.discarded
    assert report.messages_sent > 40  # acknowledgements as well
    assert (rig.forwarder.held, rig.forwarder.used) == (0, 0)
    (passed,) = await rig.middle.session.view("forwarder_counters")
    assert passed["fragments_sent_total"] == passed["fragments_received_total"] == 40
    assert passed["forwarded_messages_total"] == report.messages_sent
    assert passed["forwarded_bytes_total"] == report.bytes_sent
    assert (passed["pending_messages"], passed["discarded_by_reason"]) == (0, {})
    (transport,) = await rig.middle.session.view("transport_counters")
    assert transport["fragment_p5_sends_total"] == 40
    (instance,) = [
        one
        for one in rig.middle.instance.parts.figures.rows()
        if one.scope == "instance" and "forward_sent" in one.counters
    ]
    assert instance.counters["forward_sent"] == instance.counters["forward_received"] == 40
    assert instance.counters["forward_messages"] == report.messages_sent
    counters = (await rig.middle.session.view("counters"))[0]
    assert counters["fragments_received"] == counters["acks_sent"] == 0


@pytest.mark.rule("FWD-4")
@through(forward_size_mb=1)
async def test_a_message_larger_than_the_store_passes_in_fragments(rig: Through) -> None:
    handle = await rig.east.session.begin_dialog("east", "west")
    large = bytes(range(256)) * (3 * 4096)  # 3 MiB
    await rig.east.session.send(handle, large)
    (taken,) = await bodies(rig.west.session, "west_q", 1)
    assert taken == large
    assert rig.forwarder.report.sent >= 96


@pytest.mark.rule("FWD-1", "FWD-3")
@through()
async def test_ends_and_errors_pass(rig: Through) -> None:
    first = await rig.east.session.begin_dialog("east", "west")
    second = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send([first, second], b"x")
    for _ in range(2):
        (message,) = await rig.west.session.receive("west_q", wait=60, autocommit=True)
        await rig.west.session.end(message.handle, error=7, description="unlucky")
    for _ in range(2):
        (message,) = await rig.east.session.receive("east_q", wait=60, autocommit=True)
        assert message.error is not None
        assert message.error.number == 7
        await rig.east.session.end(message.handle)
    # An error that a broker makes passes as well: west accepts no such contract.
    for one in (rig.east, rig.west):
        await one.session.create("message_type", "Odd")
        await one.session.create("contract", "odd", types={"Odd": "any"})
    third = await rig.east.session.begin_dialog("east", "west", "odd")
    await rig.east.session.send(third, b"x", "Odd")
    (message,) = await rig.east.session.receive("east_q", wait=60, autocommit=True)
    assert message.error is not None
    assert message.error.number == -8408
    await rig.east.session.end(third)
    await rig.east.assert_settled()
    assert rig.forwarder.held == 0


@pytest.mark.rule("FWD-2", "REL-9")
@through(seed=5)
async def test_a_forwarder_that_crashes_loses_nothing_for_good(rig: Through) -> None:
    """What it held is gone, and comes again from who sent it, once."""
    handle = await rig.east.session.begin_dialog("east", "west")
    answering = asyncio.create_task(answer(rig.west.session, 60))
    for number in range(60):
        await rig.east.session.send(handle, b"%d" % number + bytes(2000))
        if number % 20 == 10:
            await rig.middle.restart()
    taken = await answering
    assert [one.rstrip(b"\0") for one in taken] == [b"%d" % n for n in range(60)]
    assert len(await bodies(rig.east.session, "east_q", 60)) == 60
    await rig.east.session.end(handle)
    await rig.pass_time(100)
    assert await rig.east.session.view("transmission_queue") == []


@pytest.mark.rule("FWD-2", "FWD-7", "FWD-12", "NBT-6", "END-9")
@through(forward_size_mb=0)
async def test_without_memory_nothing_passes_and_the_sender_is_told(rig: Through) -> None:
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x")
    await rig.pass_time(20)
    report = rig.forwarder.report
    assert report.dropped["forward_store_full"] == report.received >= 2  # the repeats as well
    assert report.sent == 0
    assert rig.middle.instance.parts.refusal_notices.sent == 2  # one in ten seconds
    (row,) = await rig.east.session.view("transmission_queue")
    assert row["status_key"] == "target_notice"
    told = "forward_store_full (forwarder middle at TCP://middle:4022)"
    assert row["transmission_status"].endswith(told)
    assert await rig.east.session.view("conversation_endpoints", where={"state": "CO"})
    await rig.middle.session.admin.alter_endpoint(forward_size_mb=1)
    assert await bodies(rig.west.session, "west_q", 1) == [b"x"]


@pytest.mark.rule("FWD-11", "FWD-17", "RTE-24", "END-6")
@through()
async def test_forwarding_is_switched_off_and_on_in_place(rig: Through) -> None:
    rig.network.cut("middle", "west")
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x" * 5000)
    await rig.pass_time(1)
    (row,) = await rig.middle.session.view("forwarded_messages")
    assert (row["from_service_name"], row["to_service_name"]) == ("east", "west")
    assert row["adjacent_broker_address"] == "tcp://west:4022"
    assert (row["hops_remaining"], row["message_sequence_number"]) == (9, 0)
    assert row["size_bytes"] > 5000
    (to_west,) = await rig.middle.session.view("destinations", where={"address": "tcp://west:4022"})
    assert (to_west["pending_fragments"], to_west["pending_bytes"]) == (1, row["size_bytes"])

    (endpoint,) = await rig.middle.session.view("endpoint")
    assert endpoint["forward_bytes_used"] == row["size_bytes"]
    await rig.middle.session.admin.alter_endpoint(forwarding=False)
    assert rig.forwarder.report.dropped == {"forwarding_disabled": 1}
    assert (rig.forwarder.held, rig.forwarder.used) == (0, 0)
    assert await rig.middle.session.view("forwarded_messages") == []
    rig.network.heal("middle", "west")
    log = rig.middle.instance.parts.log._log = Log()
    await rig.pass_time(120)
    dropped = rig.middle.instance.parts.dispatcher.dropped
    assert dropped["forwarding_disabled"] >= 2  # what came meanwhile
    told = log.of("broker.forwarded_message_dropped")
    assert {(line["reason"], line["ssb_code"]) for line in told} == {("forwarding_disabled", 9792)}
    assert "repeated" not in told[0]
    assert (told[0]["from_service"], told[0]["to_service"]) == ("east", "west")
    assert not log.of("broker.message_undeliverable")
    await rig.middle.session.admin.alter_endpoint(forwarding=True)
    assert await bodies(rig.west.session, "west_q", 1) == [b"x" * 5000]


@pytest.mark.rule("FWD-8", "FWD-9", "CLK-5", "PER-16")
@through(dialog={"time_to_live": timedelta(minutes=10)})
async def test_what_cannot_be_passed_on_for_a_minute_is_dropped(rig: Through) -> None:
    rig.network.cut("middle", "west")
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x")
    await rig.pass_time(59)
    assert rig.forwarder.report.dropped["forward_age"] == 0
    await rig.pass_time(27)
    assert rig.forwarder.report.dropped["forward_age"] >= 1
    rig.network.heal("middle", "west")
    assert await bodies(rig.west.session, "west_q", 1) == [b"x"]


@pytest.mark.rule("FWD-11", "RTE-65")
@through()
async def test_what_waits_for_a_route_that_is_no_more_is_dropped(rig: Through) -> None:
    rig.network.cut("middle", "west")
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x")
    await rig.pass_time(1)
    assert rig.forwarder.fragments_held == 1
    elsewhere = {"name": "to_west", "service": "west", "address": "TCP://elsewhere:4022"}
    await rig.middle.session.apply({"broker": {"name": "main"}, "instance_route": [elsewhere]})
    assert rig.forwarder.report.dropped == {"route_no_longer_valid": 1}


@pytest.mark.rule("FWD-11", "RTE-3", "RTE-65")
@through()
async def test_what_waits_for_a_route_that_expires_is_dropped_by_the_next_pass(
    rig: Through,
) -> None:
    await rig.middle.session.alter("instance_route", "to_west", lifetime=25)
    rig.network.cut("middle", "west")
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x")
    await rig.pass_time(24)
    assert rig.forwarder.fragments_held == 1
    await rig.pass_time(11)
    assert rig.forwarder.report.dropped["route_no_longer_valid"] == 1
    rig.network.heal("middle", "west")
    await rig.pass_time(60)
    assert rig.forwarder.report.sent == 0  # and what comes again finds no way either
    status = await rig.east.session.transmission_status(handle)
    assert "local_service_missing" in status.transmission_status


@pytest.mark.rule("FWD-11")
@through()
async def test_a_forwarder_that_stops_drops_what_it_holds(rig: Through) -> None:
    rig.network.cut("middle", "west")
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x")
    await rig.pass_time(1)
    report = rig.forwarder.report
    await rig.middle.stop()
    assert report.dropped == {"transport_stopping": 1}


@pytest.mark.rule("FWD-5", "RTE-V13", "RTE-43")
@through()
async def test_the_hops_of_a_message_are_counted_down(rig: Through) -> None:
    rig.network.cut("middle", "west")
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x")
    await rig.pass_time(7)
    (row, *_) = await rig.middle.session.view("forwarded_messages")
    assert row["hops_remaining"] == 9
    assert row["time_to_live"] == 60_000
    assert 5_000 <= row["time_consumed"] <= 7_000
    # A dialog that begins at the middle passes its own instance table: no hop but that one.
    loop = {"name": "to_west", "service": "west", "address": "TCP://middle:4022"}
    await rig.middle.session.apply({"broker": {"name": "main"}, "route": [loop]}, ensure=True)
    own = await rig.middle.session.begin_dialog("middle", "west")
    await rig.middle.session.send(own, b"mine")
    rig.network.heal("middle", "west")
    assert sorted(await bodies(rig.west.session, "west_q", 2)) == [b"mine", b"x"]


@pytest.mark.rule("RTE-V13", "RTE-41", "XMT-9", "XMT-11")
@through()
async def test_forwarding_moves_what_the_middle_sends_by_way_of_itself(rig: Through) -> None:
    session = rig.middle.session
    await session.alter("service", "middle", contracts=["DEFAULT"])
    loop = {"name": "to_west", "service": "west", "address": "TCP://middle:4022"}
    await session.apply({"broker": {"name": "main"}, "route": [loop]}, ensure=True)
    await session.admin.alter_endpoint(forwarding=False)
    handle = await session.begin_dialog("middle", "west")
    await session.send(handle, b"mine")
    assert (await session.transmission_status(handle)).status_key == "forwarding_disabled"
    runs = rig.middle.instance.parts.ticker.states["transmitter"].runs
    await session.admin.alter_endpoint(forwarding=True)
    await rig.pass_time(0.5)
    assert await bodies(rig.west.session, "west_q", 1) == [b"mine"]
    assert rig.middle.instance.parts.ticker.states["transmitter"].runs == runs  # no pass was needed


@pytest.mark.rule("XMT-10", "PER-12")
@through()
async def test_unused_arrival_routes_are_discarded_by_the_pass(rig: Through) -> None:
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x")
    await rig.pass_time(2)
    arrival_routes = rig.middle.instance.parts.router.arrival_routes
    assert len(arrival_routes._routes) == 2  # there and back
    await rig.pass_time(290)
    assert len(arrival_routes._routes) == 2
    await rig.pass_time(40)  # five minutes, and two passes
    assert len(arrival_routes._routes) == 0


@pytest.mark.rule("FWD-18", "RTE-V6", "RTE-30")
@through()
async def test_a_service_of_the_forwarder_is_served_where_its_instance_routes_say(
    rig: Through,
) -> None:
    """West and the middle both have it; what arrives goes where the table of the middle says."""
    await rig.middle.session.create("service", "west", queue="middle_q", contracts=["DEFAULT"])
    first = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(first, b"for west")
    assert await bodies(rig.west.session, "west_q", 1) == [b"for west"]
    await rig.middle.session.alter("instance_route", "to_west", address="LOCAL")
    second = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(second, b"for the middle")
    assert await bodies(rig.middle.session, "middle_q", 1) == [b"for the middle"]
    await rig.pass_time(5)
    assert rig.forwarder.report.sent == 1


@pytest.mark.rule("FWD-16", "FWD-3", "RTE-2")
@through()
async def test_the_way_back_may_use_another_forwarder(rig: Through) -> None:
    (other,) = await rig.add("other")
    await other.session.admin.alter_endpoint(forwarding=True)
    back = {"name": "back", "service": "east", "address": "TCP://east:4022"}
    await other.session.apply({"broker": {"name": "main"}, "instance_route": [back]}, ensure=True)
    await rig.west.session.alter("route", "to_east", address="TCP://other:4022")
    await rig.middle.session.drop("instance_route", "to_east")

    handle = await rig.east.session.begin_dialog("east", "west")
    answering = asyncio.create_task(answer(rig.west.session, 5))
    for number in range(5):
        await rig.east.session.send(handle, b"%d" % number)
    assert await answering == [b"%d" % number for number in range(5)]
    assert await bodies(rig.east.session, "east_q", 5) == [b"re %d" % n for n in range(5)]
    await rig.pass_time(10)
    for end in (rig.east, rig.west):
        assert await end.session.view("transmission_queue") == []
    assert rig.forwarder.report.sent == other.instance.parts.forwarder.report.sent == 5
    acks = [one.report.messages_sent - 5 for one in (rig.forwarder, other.instance.parts.forwarder)]
    assert all(acks), acks  # those of each end take its own way


@pytest.mark.rule("NBT-15", "DSP-13", "REL-31", "REL-12")
@through(seed=3, forward_size_mb=1)
async def test_the_books_of_a_forwarder_balance(rig: Through) -> None:
    """With losses, repeats, a next hop that comes and goes, and dialogs of the middle itself."""
    for one in ("east", "west"):
        mangler = BoxcarMangler(rig.streams.stream(f"mangle {one}"))
        mangler.set(drop=0.1, duplicate=0.1, reorder=0.1)
        rig.network.mangle(one, "middle", mangler)
    await rig.middle.session.alter("service", "middle", contracts=["DEFAULT"])
    through = [await rig.east.session.begin_dialog("east", "west") for _ in range(4)]
    there = await rig.east.session.begin_dialog("east", "middle")
    for number in range(40):
        if number == 10:
            rig.network.cut("middle", "west")
        await rig.east.session.send(through[number % 4], b"%d" % number + bytes(50_000))
        await rig.east.session.send(there, b"%d" % number)
        await rig.pass_time(0.5)
        if number == 30:
            rig.network.heal("middle", "west")
    assert len(await bodies(rig.west.session, "west_q", 40)) == 40
    assert len(await bodies(rig.middle.session, "middle_q", 40)) == 40
    await rig.pass_time(100)
    instance, report = rig.middle.instance, rig.forwarder.report
    assert report.received == report.sent + report.dropped.total() + rig.forwarder.fragments_held
    dispatcher = instance.parts.dispatcher
    assert dispatcher.received == (
        dispatcher.stored + dispatcher.duplicates + dispatcher.dropped.total() + dispatcher.buffered
    )
    totals = instance.parts.destinations.peers.totals()
    assert totals.fragments_received >= dispatcher.received + report.received
    assert report.dropped["forward_store_full"]
    assert rig.forwarder.used == rig.forwarder.held == 0


@pytest.mark.rule("NBT-1", "NBT-4", "NBT-6", "DSP-11")
@through()
async def test_what_the_target_says_finds_the_sender_behind_a_forwarder(rig: Through) -> None:
    """Why it takes nothing, that it takes it again, and acknowledgements without a way back."""
    await rig.west.session.alter("queue", "west_q", status="off")
    handle = await rig.east.session.begin_dialog("east", "west")
    await rig.east.session.send(handle, b"x")
    await rig.pass_time(5)
    (row,) = await rig.east.session.view("transmission_queue")
    assert row["status_key"] == "peer_queue_disabled"
    assert rig.forwarder.report.notices_passed >= 1
    await rig.pass_time(100)  # by now it repeats once a minute
    await rig.west.session.alter("queue", "west_q", status="on")
    await rig.pass_time(1)
    assert await rig.west.session.receive("west_q", autocommit=True)

    await rig.west.session.drop("route", "to_east")
    await rig.east.session.send(handle, b"y")
    assert await bodies(rig.west.session, "west_q", 1) == [b"y"]
    await rig.pass_time(5)
    assert await rig.east.session.view("transmission_queue") == []


@pytest.mark.rule("FWD-14", "FWD-15", "SEC-29", "SEC-13")
@through()
async def test_a_forwarder_needs_no_keys_and_changes_nothing_of_what_is_sealed(
    rig: Through,
) -> None:
    east, west = Peer(rig.east), Peer(rig.west)
    await trust(east, west)
    await rig.east.session.create(
        "remote_service_binding", "to west", service="west", principal="peer:west"
    )
    taps = Tap(west), Tap(east)
    handle = await rig.east.session.begin_dialog("east", "west")
    answering = asyncio.create_task(answer(rig.west.session, 5))
    for number in range(5):
        await rig.east.session.send(handle, b"%d" % number)
    assert await answering == [b"%d" % number for number in range(5)]
    await rig.east.session.end(handle)
    await rig.pass_time(10)
    assert len(sealed(taps[0].items)) == 6
    assert sealed(taps[1].items)
    report = rig.forwarder.report
    assert report.sent == report.received > 6
    assert not rig.middle.instance.parts.credentials.principals
