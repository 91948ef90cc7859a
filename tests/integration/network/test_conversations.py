"""Dialogs and the connections that carry them: none, one after another, and never in their way."""

import pytest

from brokerd.testing.rig import Rig, RigClock
from tests.integration.network.conftest import Arrivals, Pair, only, open_to, ready, talk


@pytest.mark.rule("TRN-11", "TRN-12")
async def test_the_first_message_connects_not_the_dialog(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await open_to(one, two)
    await brokerd_clock.advance(60)
    assert await one.session.view("destinations") == []
    assert await one.session.view("connections") == []
    await one.session.send(handle, b"1")
    await brokerd_clock.advance(1)
    assert len(await one.session.view("connections")) == 1
    assert ready(two) == 1


@pytest.mark.rule("TRN-3", "TRN-2", "TRN-20")
async def test_a_conversation_goes_on_over_any_number_of_connections(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"0")
    numbers = set()
    for n in range(1, 5):
        await brokerd_clock.advance(1)
        row = await only(one, "connections")
        numbers.add(row["connection_id"])
        one.link.reset()
        await one.session.send(handle, b"%d" % n)
        await brokerd_clock.advance(1)
        assert (await one.session.transmission_status(handle)).status_key == "connection_lost"
        await brokerd_clock.advance(30)
    assert len(numbers) == 4
    assert (await only(one, "conversation_endpoints"))["state"] == "CO"
    messages = await two.session.receive("two_q", 10, autocommit=True)
    assert [one.body for one in messages] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.rule("TRN-22")
async def test_an_instance_keeps_its_id_over_restarts(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    before = (await only(one, "connections"))["peer_arbitration_id"]
    boot = (await two.session.status())["boot_id"]
    await two.restart()
    await one.session.send(handle, b"2")
    await brokerd_clock.advance(30)
    assert (await only(one, "connections"))["peer_arbitration_id"] == before
    assert (await two.session.status())["instance_id"] == before
    assert (await two.session.status())["boot_id"] != boot


@pytest.mark.rule("NBT-23", "TRN-14", "CLK-5")
async def test_after_an_hours_outage_the_first_message_leaves_with_the_connection(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    one.link.cut()
    for n in range(10):
        await one.session.send(handle, b"%d" % n)
    await brokerd_clock.advance(3600)
    came = Arrivals(two)
    one.link.heal()
    await brokerd_clock.advance(85)
    online_at = (await only(one, "connections"))["login_time"]
    clock = one.instance.surroundings.clock
    first = clock.utc() - int((clock.monotonic() - came.at[0][0]) * 1_000_000)
    assert 0 <= first - online_at <= 100_000
    assert ready(two) == 11


@pytest.mark.rule("TRN-19", "TRN-12", "REL-21")
async def test_a_peer_that_dials_in_after_ten_minutes_gets_the_backlog_at_once(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    mine = await open_to(two, one)
    two.crash()
    for n in range(100):
        await one.session.send(handle, b"%d" % n)
    await brokerd_clock.advance(600)
    assert (await only(one, "destinations"))["state"] in ("suppressed", "connecting")
    await two.start()
    await two.session.send(mine, b"here I am")
    await brokerd_clock.advance(2)
    assert ready(two) == 101
    assert ready(one) == 1


@pytest.mark.rule("CLK-5", "TRN-14", "TRN-16")
@pytest.mark.parametrize("late", [0, 17, 34, 51])
async def test_a_peer_that_returns_in_silence_is_found_by_the_next_attempt(
    brokerd_pair: Pair, brokerd_clock: RigClock, late: int
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    two.crash()
    await one.session.send(handle, b"2")
    await brokerd_clock.advance(600 + late)
    attempts = (await only(one, "destinations"))["connect_attempts"]
    await two.start()
    await brokerd_clock.advance(72)  # 60 to 70 s after the failed attempt, and the way
    assert ready(two) == 2
    assert (await only(one, "destinations"))["connect_attempts"] == attempts + 1


@pytest.mark.rule("NBT-8", "CLP-97")
async def test_a_retry_finds_it_within_a_second(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    two.crash()
    await one.session.send(handle, b"2")
    await brokerd_clock.advance(600)
    await two.start()
    before = (await only(one, "destinations"))["connect_attempts"]
    assert await one.session.admin.retry_destination() == 1
    await brokerd_clock.advance(1)
    assert ready(two) == 2
    assert (await only(one, "destinations"))["connect_attempts"] == before + 1


@pytest.mark.rule("CLK-5", "TRN-28", "PER-15")
async def test_an_idle_connection_is_closed_by_the_pass_after_ninety_seconds(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    for _ in range(13):  # each begins 2 s nearer to the next pass
        await brokerd_clock.advance(11)
        await talk(one, two, b"1")
        await brokerd_clock.advance(1)  # the last acknowledgement has come
        await brokerd_clock.advance(88)
        assert len(await one.session.view("connections")) == 1
        await brokerd_clock.advance(27)
        assert await one.session.view("connections") == []


@pytest.mark.rule("TRN-26", "RTE-41", "RTE-42")
@pytest.mark.parametrize(("address", "dialled"), [("localhost:4022", True), ("one", False)])
async def test_an_address_that_leads_back_is_routed_as_if_it_had_arrived(
    address: str, dialled: bool, brokerd_rig: Rig, brokerd_clock: RigClock
) -> None:
    """What the instance listens at is its own; of any other name the login finds it out."""
    (one,) = await brokerd_rig.add("one")
    route = {"name": "round", "service": "urn:east", "address": f"TCP://{address}"}
    await one.session.apply({"broker": {"name": "main"}, "route": [route]}, ensure=True)
    east = {
        "name": "east",
        "default_encryption": "off",
        "queue": [{"name": "east_q"}],
        "service": [{"name": "urn:east", "queue": "east_q", "contracts": ["DEFAULT"]}],
    }
    await one.session.apply({"broker": [east]})
    handle = await one.session.begin_dialog("one", "urn:east", encryption=False)
    await one.session.send(handle, b"home")
    await brokerd_clock.advance(5)
    there = [
        (row["is_self"], row["dialogs"], row["connect_attempts"])
        for row in await one.session.view("destinations")
    ]
    assert there == ([(True, 0, 1)] if dialled else [])
    assert one.instance.brokers["east"].queues["east_q"].ready_count == 1
    assert (await one.session.transmission_status(handle)).status_key == ""
    assert await one.session.view("connections") == []
