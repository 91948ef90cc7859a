"""What the transport shows of itself, in views, on the wire and in the metrics log (MON)."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest

from brokerd.admin.views.columns import COLUMNS
from brokerd.clock import SECOND, Instant
from brokerd.errors import InvalidArgument, ObjectNotFound
from brokerd.testing.clock import SimClock
from brokerd.testing.rig import PORT, Rig, RigClock
from brokerd.transport.door import DISPLACED, FULL
from tests.integration.network.conftest import Pair, address_of, only, talk
from tests.integration.shorthand import undone

TWO = address_of("two")
SPEC = Path("docs/spec/network.md")


@pytest.mark.rule("MON-1", "MON-5", "MON-8", "MON-9", "MON-12", "MON-13", "MON-14")
@pytest.mark.parametrize(
    ("rules", "view"),
    [
        (("MON-1",), "connections"),
        (("MON-5",), "endpoint"),
        (("MON-8",), "destinations"),
        (("MON-9", "MON-12"), "transport_counters"),
        (("MON-9", "MON-13"), "broker_statistics"),
        (("MON-14",), "transmission_statistics"),
    ],
)
def test_columns_are_those_of_the_rule(rules: tuple[str, ...], view: str) -> None:
    spec = SPEC.read_text(encoding="utf-8")
    text = " ".join(spec.partition(f"- {rule} ")[2].partition("\n")[0] for rule in rules)
    words = set(re.findall(r"[a-z_0-9]+", text.replace("(+_desc)", ", encryption_algorithm_desc")))
    others = {*COLUMNS, "gave_up"}
    named = {one for one in words if "_" in one} - others
    words |= {"total_bytes_received", "total_fragments_received", "total_receives"}
    words |= {f"fragment_p{level}_sends_total" for level in range(1, 11)}
    assert set(COLUMNS[view]) <= words
    shared = {"transport_counters", "broker_statistics"}  # MON-9 names columns of both
    shown = [COLUMNS[one] for one in (shared if view in shared else {view})]
    assert named <= {column for columns in shown for column in columns}


@pytest.mark.rule("MON-1", "TRN-5", "TRN-6", "TRN-22", "TRN-31")
async def test_a_connection_shows_its_peer_and_what_it_carried(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    assert await one.session.view("connections") == []
    await talk(one, two, b"1", b"2", b"3")
    await brokerd_clock.advance(5)
    mine, theirs = await only(one, "connections"), await only(two, "connections")
    assert (mine["state"], mine["state_desc"]) == (4, "LOGGED_IN")
    assert (mine["login_state"], mine["login_state_desc"]) == (12, "ONLINE")
    assert (mine["is_accept"], theirs["is_accept"]) == (False, True)
    assert mine["peer_arbitration_id"] == (await two.session.status())["instance_id"]
    assert mine["destinations"] == [TWO]
    assert mine["total_fragments_sent"] == theirs["total_fragments_received"] >= 3
    assert mine["total_bytes_sent"] == theirs["total_bytes_received"] > 0
    assert mine["total_sends"] >= 2  # HELLO, and the boxcars
    assert mine["connect_time"] <= mine["login_time"] <= mine["last_activity_time"]
    assert mine["error"] is None
    assert mine["peer_address"] == f"TCP://two:{PORT}"
    assert mine["total_receives"] >= 2
    assert (mine["receives_posted"], mine["sends_posted"]) == (1, 0)
    assert not mine["is_receive_flow_controlled"]
    assert not mine["is_send_flow_controlled"]
    assert (mine["authentication_method"], mine["encryption_algorithm_desc"]) == ("NONE", "NONE")
    assert mine["transport_stream_id"] == mine["connection_id"]


@pytest.mark.rule("MON-8", "TRN-16", "TRN-20", "NBT-8", "CLP-97")
async def test_a_destination_shows_why_it_waits_and_can_be_tried_at_once(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    await two.session.admin.alter_endpoint(state="stopped")
    await one.session.send(handle, bytes(100_000))
    await brokerd_clock.advance(1)
    there = await only(one, "destinations")
    assert (there["state"], there["suppress_reason"]) == ("suppressed", "connect_failed")
    assert there["suppressed_until"] > there["status_since"]
    assert there["last_error"].startswith("connect_failed: ")
    assert there["last_error_at"] == there["status_since"]
    assert (there["consecutive_failures"], there["failures_by_cause"]) == (1, {"connect_failed": 1})
    assert (there["dialogs"], there["pending_messages"]) == (1, 1)
    assert (there["pending_fragments"], there["pending_bytes"]) == (4, 100_000)
    counters = await only(one, "transport_counters")
    assert counters["suppressed_destinations"] == 1
    assert counters["failures_by_cause"] == {"connect_failed": 1}
    assert counters["pending_fragments_for_send"] == 4
    assert counters["pending_bytes_for_send"] == 100_000
    await two.session.admin.alter_endpoint(state="started")
    assert await one.session.admin.retry_destination("TCP://TWO") == 1
    await brokerd_clock.advance(1)
    there = await only(one, "destinations")
    assert (there["state"], there["pending_messages"]) == ("online", 0)
    assert there["peer_instance"] == (await two.session.status())["instance_id"]
    assert there["last_error"].startswith("connect_failed: ")
    assert await one.session.admin.retry_destination() == 1
    with pytest.raises(ObjectNotFound, match="no destination"):
        await one.session.admin.retry_destination("TCP://elsewhere:1")
    await one.session.admin.alter_endpoint(state="disabled")
    with pytest.raises(InvalidArgument, match="disabled"):
        await one.session.admin.retry_destination()


@pytest.mark.rule("NBT-8")
async def test_a_route_that_is_made_ends_suppression(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await two.session.admin.alter_endpoint(state="stopped")
    await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    assert (await only(one, "destinations"))["state"] == "suppressed"
    await two.session.admin.alter_endpoint(state="started")
    route = {"name": "again", "service": "other", "address": f"TCP://two:{PORT}"}
    await one.session.apply({"broker": {"name": "main"}, "route": [route]}, ensure=True)
    await brokerd_clock.advance(1)
    assert (await only(one, "destinations"))["state"] == "online"


@pytest.mark.rule("NBT-8")
async def test_an_endpoint_that_is_started_again_ends_suppression(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    await two.session.admin.alter_endpoint(state="stopped")
    await talk(one, two, b"1")
    await brokerd_clock.advance(1)
    assert (await only(one, "destinations"))["state"] == "suppressed"
    await two.session.admin.alter_endpoint(state="started")
    await one.session.admin.alter_endpoint(state="stopped")
    await one.session.admin.alter_endpoint(state="started")
    await brokerd_clock.advance(1)
    assert (await only(one, "destinations"))["state"] == "online"


@pytest.mark.rule("MON-12", "MON-9", "TRN-31")
async def test_counters_outlive_connections(
    brokerd_pair: Pair, brokerd_rig: Rig, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    handle = await talk(one, two, b"1", b"2")
    await brokerd_clock.advance(1)
    before = await only(one, "transport_counters")
    assert before["open_connections"] == 1
    assert before["fragment_sends_total"] >= before["fragment_p5_sends_total"] == 2
    assert before["send_ios_total"] >= before["boxcars_sent_total"] >= 1
    assert before["receive_ios_total"] >= before["boxcars_received_total"] >= 1
    assert before["receive_io_bytes_total"] > before["boxcars_received_total"]
    there = await only(two, "transport_counters")
    assert there["fragment_receives_total"] == before["fragment_sends_total"]
    assert there["receive_io_bytes_total"] == before["send_io_bytes_total"]
    one.link.reset()
    await brokerd_clock.advance(1)
    lost = await only(one, "transport_counters")
    assert (lost["open_connections"], lost["losses_total"]) == (0, 1)
    assert lost["send_io_bytes_total"] >= before["send_io_bytes_total"]
    await one.session.send(handle, b"3")
    await brokerd_clock.advance(30)
    after = await only(one, "transport_counters")
    assert (after["connects_total"], after["fragment_p5_sends_total"]) == (2, 3)
    assert after["connect_attempts_total"] == 2
    assert sum(after[f"fragment_p{level}_sends_total"] for level in range(1, 11)) == 3
    rows = [
        row
        for row in one.instance.parts.figures.rows()
        if row.scope == "instance" and not row.broker
    ]
    assert rows[0].counters["transport_fragments_sent"] == after["fragment_sends_total"]
    assert rows[0].counters["sent_p5"] == 3


@pytest.mark.rule("END-18", "MON-9")
async def test_connections_that_are_refused_are_in_the_view_and_the_metrics_log(
    brokerd_pair: Pair,
) -> None:
    one, _ = brokerd_pair
    doors = (one.instance.parts.destinations.endpoint.door, one.instance.parts.sessions.door)
    for door, reason in zip(doors, (FULL, DISPLACED), strict=True):
        door.refused[reason] += 2
    assert (await only(one, "transport_counters"))["refused_connections_total"] == 2
    counters: dict[str, int] = {}
    for row in one.instance.parts.figures.rows():
        if row.scope == "instance" and not row.broker:
            counters |= row.counters
    refused = {name: count for name, count in counters.items() if name.startswith("refused_")}
    assert refused == {"refused_peers_connections": 2, "refused_clients_displaced": 2}


@pytest.mark.rule("MON-13", "MON-14", "MON-9")
async def test_what_brokers_did_is_counted(brokerd_pair: Pair, brokerd_clock: RigClock) -> None:
    one, two = brokerd_pair
    await talk(one, two, b"1", bytes(100_000))
    nowhere = await one.session.begin_dialog("one", "nobody", encryption=False)
    await one.session.send(nowhere, b"waits")
    await brokerd_clock.advance(2)
    async with undone(two.session) as tx:
        assert len(await tx.receive("two_q")) == 2
    sent = await only(one, "broker_statistics")
    assert (sent["sends_total"], sent["rollbacks_total"]) == (3, 0)
    assert sent["transmission_messages_waiting"] == 1
    assert sent["dequeued_transmission_messages_total"] == 2
    assert sum(sent["delayed_dialogs"].values()) == 1
    assert sent["tick_overruns"] == 0
    assert set(sent["reclassified_by_trigger"].values()) == {0}
    assert sent["activation_errors_total"] == 0
    came = await only(two, "broker_statistics")
    assert (came["receives_total"], came["rollbacks_total"]) == (1, 1)
    assert came["enqueued_messages_total"] == came["enqueued_transport_messages_total"] == 2
    assert came["enqueued_local_messages_total"] == 0
    assert came["enqueued_transport_fragments_total"] == 5
    assert came["acks_sent_total"] >= 1
    await one.session.end(nowhere)
    assert (await only(one, "broker_statistics"))["dequeued_transmission_messages_total"] >= 2
    written = await only(one, "transmission_statistics")
    assert written["changesets_total"] >= written["writes_total"]
    assert (written["transmission_objects"], written["transmission_objects_made_total"]) == (2, 2)
    assert written["rows_written_total"] >= written["writes_total"] >= 3
    assert written["write_microseconds_total"] >= 0  # virtual time
    two.instance.brokers["main"].enabled = False
    await talk(one, two, b"2")
    await brokerd_clock.advance(6)
    refused = await only(two, "broker_statistics")
    assert refused["dropped_fragments_total"] == sum(refused["dropped_by_reason"].values()) >= 2
    waits = await only(one, "broker_statistics")
    assert waits["active_dialogs"] >= 1
    assert waits["retransmitted_fragments_total"] >= 1


@pytest.mark.rule("TRN-47", "MON-8")
async def test_the_metrics_log_says_how_far_the_clock_of_a_peer_is_ahead(
    brokerd_pair: Pair, brokerd_clock: RigClock
) -> None:
    one, two = brokerd_pair
    loop = asyncio.get_running_loop()
    start = Instant(int(brokerd_clock.now.timestamp() - loop.time()) * SECOND)
    behind = SimClock(loop, utc_start=start, skew=timedelta(seconds=-7))
    two.instance.parts.destinations.peers._clock = behind
    await talk(one, two, b"1")
    await brokerd_clock.advance(5)
    (row,) = [row for row in one.instance.parts.figures.rows() if row.destination == TWO]
    assert row.gauges["clock_ahead_s"] == pytest.approx(-7, abs=0.1)
    await brokerd_clock.advance(5)
    later = [row for row in one.instance.parts.figures.rows() if row.destination == TWO]
    assert later == [], "a clock alone is not worth a line"
