"""The broker endpoint of a whole instance: states, online changes, what becomes of messages."""

import pytest

from brokerd.errors import InvalidArgument
from brokerd.testing.rig import PORT, Rig, RigClock
from tests.integration.network.conftest import Pair, address_of, only, ready, talk

TWO = address_of("two")


@pytest.mark.rule("END-4", "END-5", "TRN-20", "XMT-19")
@pytest.mark.parametrize("state", ["stopped", "disabled"])
async def test_what_is_sent_meanwhile_waits_and_goes_when_it_is_started_again(
    brokerd_pair: Pair, brokerd_clock: RigClock, state: str
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    assert ready(two) == 1
    assert (await one.session.admin.alter_endpoint(state=state))["state"] == state.upper()
    assert await one.session.view("connections") == []
    await one.session.send(handle, b"2")
    await brokerd_clock.advance(300)
    status = await one.session.transmission_status(handle)
    assert status.status_key == "transport_unavailable"
    assert state in status.transmission_status
    assert ready(two) == 1
    assert (await only(one, "conversation_endpoints"))["state"] == "CO"
    await one.session.admin.alter_endpoint(state="started")
    await brokerd_clock.advance(1)
    assert ready(two) == 2
    assert (await one.session.transmission_status(handle)).status_key == ""


@pytest.mark.rule("END-4", "NBT-20")
async def test_a_stopped_port_is_refused_and_a_disabled_one_says_so(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await two.session.admin.alter_endpoint(state="stopped")
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    status = await one.session.transmission_status(handle)
    assert status.status_key == "connect_failed"
    await two.session.admin.alter_endpoint(state="disabled")
    await one.session.admin.retry_destination(TWO)
    await brokerd_clock.advance(1)
    status = await one.session.transmission_status(handle)
    assert status.status_key == "handshake_failed"
    assert "endpoint_disabled" in status.transmission_status
    assert "phase" in status.transmission_status
    assert (await only(two, "endpoint"))["is_listening"] is True


@pytest.mark.rule("END-5", "TRN-18")
async def test_connections_end_in_an_orderly_way_and_nobody_is_suppressed(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    await two.session.admin.alter_endpoint(state="stopped")
    there = await only(one, "destinations", address=TWO)
    assert (there["state"], there["last_error"], there["losses"]) == ("idle", None, 0)


@pytest.mark.rule("END-6")
async def test_another_port_leaves_connections_up(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    before = await only(one, "connections")
    answer = await two.session.admin.alter_endpoint(port=PORT + 1)
    assert (answer["port"], answer["is_listening"]) == (PORT + 1, True)
    await one.session.send(handle, b"2")
    await brokerd_clock.advance(1)
    assert ready(two) == 2
    after = await only(one, "connections")
    assert after["connection_id"] == before["connection_id"]
    assert after["connect_time"] == before["connect_time"]


@pytest.mark.rule("END-6", "END-9")
async def test_forwarding_options_apply_in_place(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    found = await only(two, "endpoint")
    assert found["is_message_forwarding_enabled"] is False
    assert found["message_forwarding_size"] == 10
    before = await only(two, "connections")
    found = await two.session.admin.alter_endpoint(forwarding=True, forward_size_mb=20)
    assert found["is_message_forwarding_enabled"] is True
    assert found["message_forwarding_size"] == 20
    assert two.instance.parts.router._facts.forwarding is True
    assert (await only(two, "connections"))["connection_id"] == before["connection_id"]
    assert (await only(two, "connections"))["state_desc"] == "LOGGED_IN"


@pytest.mark.rule("END-6", "END-17", "MON-5")
async def test_a_port_that_is_taken_shows_why_and_is_tried_again(
    brokerd_pair: Pair, brokerd_rig: Rig, brokerd_clock: RigClock
) -> None:
    _, two = brokerd_pair
    taken = brokerd_rig.network.for_node("two")
    other = await taken.listen(lambda: None, "TCP://two:4999")  # type: ignore[arg-type, return-value]
    answer = await two.session.admin.alter_endpoint(port=4999)
    assert answer["state"] == "STARTED"
    assert answer["is_listening"] is False
    assert "in use" in str(answer["listen_error"])
    other.close()
    await brokerd_clock.advance(11)
    found = await only(two, "endpoint")
    assert (found["is_listening"], found["listen_error"], found["port"]) == (True, "", 4999)


@pytest.mark.rule("SX-21", "SEC-10", "CLP-96")
async def test_an_altered_endpoint_stays_on_this_machine(
    brokerd_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = brokerd_pair
    before = await only(one, "endpoint")
    administration = one.instance.parts.administration._endpoint
    monkeypatch.setattr(administration, "_allow_plaintext", False)
    for listen in ("all", ["127.0.0.1", "192.0.2.1"]):
        with pytest.raises(InvalidArgument, match="allowed on loopback only"):
            await one.session.admin.alter_endpoint(listen=listen)
    with pytest.raises(InvalidArgument, match="allow_plaintext: there is no such key"):
        await one.session.admin.alter_endpoint(listen="127.0.0.1", allow_plaintext=True)
    assert await only(one, "endpoint") == before


@pytest.mark.rule("SX-21", "END-6")
async def test_an_endpoint_that_is_moved_is_reported_where_it_then_is(brokerd_pair: Pair) -> None:
    one, _ = brokerd_pair
    await one.session.admin.alter_endpoint(port=4999)
    (door,) = one.instance.parts.exposure.open_listeners()
    assert (door.who, door.address) == ("peers", "TCP://one:4999")
    await one.session.admin.alter_endpoint(state="stopped")
    assert (await one.session.status())["open_listeners"] == []


@pytest.mark.rule("END-7")
async def test_an_endpoint_change_does_not_roll_back(brokerd_pair: Pair) -> None:
    one, _ = brokerd_pair
    tx = one.session.transaction()
    await tx.begin_dialog("one", "two")
    assert (await one.session.admin.alter_endpoint(drain=2))["drain"] == 2.0
    tx.rollback()
    assert (await only(one, "endpoint"))["drain"] == 2.0
    assert await one.session.view("conversation_endpoints") == []
    assert (await only(one, "endpoint"))["drain"] == 2.0


@pytest.mark.rule("CLP-96")
async def test_what_is_left_out_stays_and_the_state_is_made_true_last(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, _ = brokerd_pair
    before = await only(one, "endpoint")
    answer = await one.session.admin.alter_endpoint(state="stopped", port=4999, drain=3)
    assert (answer["state"], answer["is_listening"], answer["port"]) == ("STOPPED", False, 4999)
    changed = {key for key, value in answer.items() if value != before[key]}
    assert {"state", "is_listening", "port", "drain"} <= changed
    assert changed <= {"state", "is_listening", "port", "drain", "listener_address"}
    started = await one.session.admin.alter_endpoint(state="started")
    assert (started["is_listening"], started["port"], started["drain"]) == (True, 4999, 3.0)


@pytest.mark.rule("END-10", "END-11", "CLP-96")
async def test_what_may_not_be_changes_nothing(brokerd_pair: Pair) -> None:
    one, _ = brokerd_pair
    before = await only(one, "endpoint")
    with pytest.raises(InvalidArgument, match='is for encryption = "disabled" only'):
        await one.session.admin.alter_endpoint(drain=1, encryption="required")
    assert await only(one, "endpoint") == before
