"""Where dialogs send, decided once, and again only when it has to be (XMT, NBT-10 to NBT-13)."""

from collections import Counter
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from brokerd.clock import SECOND
from brokerd.config.settings import Balance, Routing
from brokerd.ids import show
from brokerd.routing.classify import classify_outgoing
from brokerd.telemetry.status import DestinationStatus
from tests.integration.peers import Net, Peer, peers, route


@pytest.mark.rule("NBT-11", "XMT-11", "XMT-6", "RTE-16", "DLG-6", "PER-13")
@peers("west", "east", routes=False)
async def test_a_route_made_after_send_sends_at_once(net: Net, west: Peer, east: Peer) -> None:
    await east.apply(route=[route("west")])
    handle = await west.talk("urn:east", b"1", b"2")
    await net.wait(1)
    assert await west.key(handle) == "local_service_missing"
    again = west.instance.parts.transmitter.reclassification.reclassified
    tried = again["delayed"]
    await west.apply(route=[route("east")])
    await net.wait(0.5)
    assert await east.bodies() == [b"1", b"2"]
    assert (again["metadata"], again["delayed"]) == (1, tried)  # no pass was needed
    assert not west.instance.parts.transmitter.delayed_count()


@pytest.mark.rule("NBT-10", "XMT-11", "XMT-8")
@peers("west", "east")
async def test_a_route_for_another_service_disturbs_nobody(
    net: Net, west: Peer, east: Peer
) -> None:
    handles = [await west.talk("urn:east", b"0") for _ in range(100)]
    await net.wait(1)
    again = west.instance.parts.transmitter.reclassification.reclassified
    assert again["metadata"] == 0
    sent = 0
    for n in range(1, 4):
        for handle in handles:
            await west.session.send(handle, b"%d" % n, "Ask")
            sent += 1
        await west.apply(route=[route("east", "urn:other", "other")])
        await west.session.drop("route", "other")
    assert again["metadata"] == 0
    await net.wait(1)
    assert len(await east.bodies()) == 400
    assert west.instance.parts.transmitter.retransmitted == 0


@pytest.mark.rule("NBT-10", "XMT-11")
@peers("west", "east", "third")
async def test_the_first_change_after_a_start_concerns_its_own_dialogs_only(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    """The instance has learned where it listens since it looked at its routes first."""
    handles = [await west.talk("urn:east", b"0") for _ in range(7)]
    other = await west.talk("urn:third", b"0")
    await net.wait(1)
    await west.one.restart()
    for handle in (*handles, other):
        await west.session.send(handle, b"1", "Ask")
    await net.wait(1)
    again = west.instance.parts.transmitter.reclassification.reclassified
    assert again["metadata"] == 0
    await west.session.alter("route", "way_to_third", address="TCP://third:4022", lifetime=600)
    assert again["metadata"] == 1
    await west.session.alter("route", "way_to_third", address="TCP://west:4022")
    assert again["metadata"] == 2


@pytest.mark.rule("XMT-7", "XMT-8", "RTE-29")
@peers("west", "east", "third")
async def test_an_altered_route_moves_what_waits_for_a_dead_address(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    """It waits in the line of an address where nobody answers, and is withdrawn from there."""
    await west.session.alter("route", "way_to_east", address="TCP://nowhere:1")
    handle = await west.talk("urn:east", b"1", b"2")
    await net.wait(20)
    assert await west.key(handle) == "dns_failed"
    await west.session.alter("route", "way_to_east", address="TCP://east:4022")
    await net.wait(0.5)
    assert await east.bodies() == [b"1", b"2"]
    await west.session.send(handle, b"3", "Ask")
    await net.wait(0.5)
    assert await east.bodies() == [b"3"]
    assert not west.instance.parts.transmitter._lines["tcp://nowhere:1"].ready


@pytest.mark.rule("XMT-7")
@peers("west", "east", "third")
async def test_what_is_on_the_wire_when_a_route_changes_comes_again_by_its_timer(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    await third.session.create("service", "urn:east", queue="box", contracts=["talk"])
    await west.talk("urn:third", b"0")
    with patch.object(east.instance.parts.dispatcher, "arrived", lambda *_: None):
        handle = await west.talk("urn:east", b"1")
        await net.wait(1)
    assert west.out(handle).window.outstanding == 1
    await west.session.alter("route", "way_to_east", address="TCP://third:4022")
    await net.wait(1)
    assert west.out(handle).route.address == "tcp://third:4022"
    assert await third.bodies() == [b"0"]
    await net.wait(3)  # 4 s after it was sent (DLP-26)
    assert await third.bodies() == [b"1"]
    assert west.instance.parts.transmitter.retransmitted == 1


@pytest.mark.rule("XMT-7", "XMT-11", "NBT-11")
@peers("west", "east")
async def test_what_was_on_the_wire_when_its_route_went_leaves_with_the_next_route(
    net: Net, west: Peer, east: Peer
) -> None:
    """It does not wait for its timer, which may be a minute by now."""
    with patch.object(east.instance.parts.dispatcher, "arrived", lambda *_: None):
        handle = await west.talk("urn:east", b"1")
        await net.wait(65)
    await west.session.drop("route", "way_to_east")
    assert await west.key(handle) == "local_service_missing"
    await west.apply(route=[route("east")])
    await net.wait(0.5)
    assert await east.bodies() == [b"1"]


@pytest.mark.rule("XMT-5", "MON-16")
@peers("west", "east")
async def test_a_dialog_is_classified_once(net: Net, west: Peer, east: Peer) -> None:
    handle = await west.talk("urn:east", b"1")
    for _ in range(5):
        await west.session.send(handle, b"more", "Ask")
        await net.wait(1)
    lines = west.log.of("broker.message_classify")
    assert [(line["subclass"], line["route"]) for line in lines] == [("remote", "way_to_east")]
    assert lines[0]["next_address"] == "tcp://east:4022"
    delayed = await west.talk("urn:nobody", b"1")
    await net.wait(60)
    lines = west.log.of("broker.message_classify")[1:]
    assert [line["subclass"] for line in lines] == ["delayed"]  # however often it is tried
    assert await west.key(delayed) != ""


@pytest.mark.rule("XMT-9", "RTE-6", "RTE-16")
@peers("west", "east")
async def test_delayed_dialogs_are_matched_once_a_name(net: Net, west: Peer, east: Peer) -> None:
    handles = [await west.talk(name, b"1") for name in ("urn:a", "urn:b") for _ in range(20)]
    for _ in range(20):
        one = await west.session.begin_dialog("urn:west", "urn:b", "talk", broker_id=b"n" * 16)
        handles.append(one)
        await west.session.send(handles[-1], b"1", "Ask")
    asked: list[tuple[str, bytes | None]] = []

    def count(key: Any, *rest: Any, **more: Any) -> Any:
        asked.append((key.service_name, key.broker_id))
        return classify_outgoing(key, *rest, **more)

    with patch("brokerd.delivery.peers.router.classify_outgoing", count):
        assert west.instance.parts.transmitter.reclassification.reclassify() == 60
    assert asked == [("urn:a", None), ("urn:b", None), ("urn:b", b"n" * 16)]
    assert {await west.key(handle) for handle in handles[:40]} == {"local_service_missing"}
    assert {await west.key(handle) for handle in handles[40:]} == {"broker_not_here"}


@pytest.mark.rule("XMT-9", "RTE-3", "PER-13")
@peers("west", "east")
async def test_a_route_that_expires_is_left_at_the_next_pass(
    net: Net, west: Peer, east: Peer
) -> None:
    await west.session.drop("route", "way_to_east")
    await west.apply(route=[{**route("east"), "lifetime": 30}])
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    await east.queue(on=False)
    await west.session.send(handle, b"2", "Ask")
    await net.wait(45)
    assert await west.key(handle) == "broker_not_here"
    assert west.out(handle).route.address is None


@pytest.mark.rule("PER-14", "XMT-12")
@peers("west", "east")
async def test_reclassifying_again_and_again_loses_doubles_and_reorders_nothing(
    net: Net, west: Peer, east: Peer
) -> None:
    handle, reclassification = (
        await west.talk("urn:east"),
        west.instance.parts.transmitter.reclassification,
    )
    said = [b"%d" % n for n in range(60)]
    for body in said:
        await west.session.send(handle, body, "Ask")
        reclassification.reroute()
        reclassification.reclassify()
        await net.wait(0.01)
    await net.wait(1)
    assert await east.bodies() == said
    assert await west.status(handle) == ""


@pytest.mark.rule("PER-19")
@peers("west", "east")
async def test_what_was_acknowledged_is_deleted_by_the_next_tick(
    net: Net, west: Peer, east: Peer
) -> None:
    await west.talk("urn:east", *[b"x"] * 20)
    await net.wait(6)
    assert await east.bodies() == [b"x"] * 20
    store = west.broker.store
    count = "SELECT count(*) FROM transmission_queue"
    assert await store.run(lambda at: at.execute(count).fetchone()[0]) == 0


BOTH = [route("east", "urn:either", "a"), route("third", "urn:either", "b")]


async def _offer(*those: Peer) -> None:
    for one in those:
        await one.session.create("service", "urn:either", queue="box", contracts=["talk"])


@pytest.mark.rule("NBT-12", "RTE-29", "DLP-44", "REL-13")
@pytest.mark.parametrize("restart", [False, True])
def test_one_dialog_has_one_target(restart: bool, tmp_path: Any) -> None:
    @peers("west", "east", "third")
    async def test(net: Net, west: Peer, east: Peer, third: Peer) -> None:
        await _offer(east, third)
        await west.apply(route=BOTH)
        with patch.object(type(west.instance.parts.dispatcher), "arrived", lambda *_: None):
            handle = await west.talk("urn:either", b"1")  # nobody takes it, nobody acknowledges
            await net.wait(10)
        chosen = west.live(handle).endpoint.route
        assert chosen in ("a", "b")
        if restart:
            await west.one.restart()
            await net.wait(20)
        await west.session.send(handle, b"2", "Ask")
        await net.wait(100)
        assert west.out(handle).pending == 0
        endpoint = west.live(handle).endpoint
        targets = [
            one for one in (east, third) if one.other_side(endpoint.conversation_id) is not None
        ]
        assert targets == [east if chosen == "a" else third]
        assert await targets[0].bodies() == [b"1", b"2"]

    test(tmp_path)


@pytest.mark.rule("RTE-V5", "RTE-6", "OBJ-5")
@peers("west", "east", "third")
async def test_after_the_first_ack_a_dialog_goes_by_the_broker_it_is_bound_to(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    """The routes have ids, and every dialog begins without one."""
    await _offer(east, third)
    for way, peer in zip(BOTH, (east, third), strict=True):
        await west.apply(route=[{**way, "broker": show(peer.broker.broker_id)}])
    handles = [await west.talk("urn:either", b"0") for _ in range(6)]
    await net.wait(1)
    for number in range(1, 4):
        for handle in handles:
            await west.session.send(handle, b"%d" % number, "Ask")
        await net.wait(1)
    for peer in (east, third):
        assert Counter(await peer.bodies()) == dict.fromkeys([b"0", b"1", b"2", b"3"], 3)
        assert len(peer.broker.endpoints) == 3
    for handle in handles:
        far = west.live(handle).endpoint.far_broker
        there = east if far == east.broker.broker_id else third
        assert west.out(handle).route.address == f"tcp://{there.one.name}:4022"


@pytest.mark.rule("RTE-29")
@peers("west", "east", "third")
async def test_the_choice_is_durable_before_the_first_fragment_leaves(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    await _offer(east, third)
    await west.apply(route=BOTH)
    held: list[Any] = []
    store = west.broker.store
    join = store.join
    handle = await west.session.begin_dialog("urn:west", "urn:either", "talk")
    with patch.object(type(store), "join", lambda _, *rest, **more: held.append((rest, more))):
        sending = net.loop.create_task(west.session.send(handle, b"1", "Ask"))
        await net.wait(1)
        rest, more = held.pop(0)
        join(*rest, **more)  # the send is durable, and the choice is made
        await net.wait(1)
        assert west.live(handle).endpoint.route in ("a", "b")
        assert len(held) == 1
        assert not west.out(handle).window.outstanding  # and nothing has left
    for rest, more in held:
        join(*rest, **more)
    await sending
    await net.wait(1)
    assert west.out(handle).pending == 0


@pytest.mark.rule("RTE-29", "XMT-9")
@peers("west", "east", "third")
async def test_a_route_that_changes_while_the_choice_is_stored_counts(
    net: Net, west: Peer, east: Peer, third: Peer
) -> None:
    await _offer(east, third)
    await west.apply(route=[{**one, "address": "TCP://dead:1"} for one in BOTH])
    await west.session.alter("route", "b", address="TCP://dead:2")
    held: list[Any] = []
    store = west.broker.store
    join = store.join
    handle = await west.session.begin_dialog("urn:west", "urn:either", "talk")
    with patch.object(type(store), "join", lambda _, *rest, **more: held.append((rest, more))):
        sending = net.loop.create_task(west.session.send(handle, b"1", "Ask"))
        await net.wait(1)
        rest, more = held.pop(0)
        join(*rest, **more)
        await net.wait(1)
    assert len(held) == 1  # the choice, not yet durable
    for one in BOTH:
        await west.session.alter("route", str(one["name"]), address=one["address"])
    rest, more = held[0]
    join(*rest, **more)
    await sending
    await net.wait(1)
    assert west.out(handle).pending == 0
    there = {"a": "tcp://east:4022", "b": "tcp://third:4022"}
    assert west.out(handle).route.address == there[str(west.live(handle).endpoint.route)]


@pytest.mark.rule("RTE-25")
@pytest.mark.parametrize("balance", list(Balance))
def test_routes_take_turns_or_are_drawn_as_the_settings_say(
    balance: Balance, tmp_path: Any
) -> None:
    @peers("west", "east", routing=Routing(balance=balance))
    async def test(net: Net, west: Peer, east: Peer) -> None:
        routes = [{"name": n, "service": "urn:either", "address": f"TCP://{n}:1"} for n in "xy"]
        await west.apply(route=routes)
        handles = [await west.talk("urn:either", b"1") for _ in range(40)]
        await net.wait(0.1)  # what was chosen is stored first (RTE-29)
        given = [west.out(one).route.address for one in handles]
        repeats = sum(one == two for one, two in pairwise(given))
        assert set(given) == {"tcp://x:1", "tcp://y:1"}
        assert (repeats == 0) is (balance is Balance.ROUND_ROBIN)

    test(tmp_path)


def _prefer(on: bool) -> Any:
    return Routing(prefer_online=on)


@pytest.mark.rule("NBT-13", "RTE-27")
@pytest.mark.parametrize("on", [True, False])
def test_balancing_may_leave_out_what_is_down(on: bool, tmp_path: Any) -> None:
    @peers("west", "east", routing=_prefer(on))
    async def test(net: Net, west: Peer, east: Peer) -> None:
        await _offer(east)
        dead = {"name": "b", "service": "urn:either", "address": "TCP://dead:1"}
        await west.apply(route=[BOTH[0], dead])
        first = [await west.talk("urn:either", b"1") for _ in range(2)]
        await net.wait(5)  # one of them has found out
        later = [await west.talk("urn:either", b"2") for _ in range(6)]
        await net.wait(2)
        stuck = [one for one in first if west.out(one).pending]
        assert len(stuck) == 1  # what was chosen stays
        waiting = [one for one in later if west.out(one).pending]
        assert len(waiting) == (0 if on else 3)

    test(tmp_path)


async def _resumed(peer: Peer) -> object:
    (row,) = await peer.session.view("broker_statistics")
    return row["resumed_for_resources_total"]


@pytest.mark.rule("XMT-12", "DSP-11", "MON-9", "PER-13", "PER-14")
@peers("west", "east")
async def test_what_a_peer_refused_is_counted_when_it_is_sent_again(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"0")
    await net.wait(1)
    await east.queue(on=False)
    await west.session.send(handle, b"1", "Ask")
    await net.wait(1)
    assert await west.key(handle) == "peer_queue_disabled"
    assert await _resumed(west) == 0
    await east.queue(on=True)
    await net.wait(1)
    assert await _resumed(west) == 1
    assert await east.bodies() == [b"0", b"1"]


@pytest.mark.rule("XMT-15", "XMT-12", "PER-13", "PER-14", "MON-9")
@pytest.mark.parametrize(
    ("error", "code"), [(MemoryError("none left"), 28073), (LookupError("a bug"), 28072)]
)
def test_an_internal_error_pauses_the_transmitter_for_five_seconds(
    error: Exception, code: int, tmp_path: Any
) -> None:
    @peers("west", "east")
    async def test(net: Net, west: Peer, east: Peer) -> None:
        handle = await west.talk("urn:east", b"0")
        await net.wait(1)
        transmitter = west.instance.parts.transmitter
        with patch.object(transmitter, "_dequeue_items", side_effect=error):
            await west.session.send(handle, b"1", "Ask")
            await net.wait(0.5)
        await west.session.send(handle, b"2", "Ask")
        await net.wait(1)
        assert await west.key(handle) == "transmitter_paused"
        assert await east.bodies() == [b"0"]
        (line,) = west.log.of("broker.transmission")
        assert (line["operation"], line["ssb_code"]) == ("fill", code)
        assert await _resumed(west) == 0
        await net.wait(4)
        assert await east.bodies() == [b"1", b"2"]
        assert await west.status(handle) == ""
        assert await _resumed(west) == 1

    test(tmp_path)


@pytest.mark.rule("XMT-18")
@peers("west", "east")
async def test_attempts_write_nothing_and_a_restart_forgets_them(
    net: Net, west: Peer, east: Peer
) -> None:
    handle = await west.talk("urn:east", b"0")
    await net.wait(30)
    with patch.object(type(east.instance.parts.dispatcher), "arrived", lambda *_: None):
        await west.session.send(handle, b"1", "Ask")
        await net.wait(0.5)
        flushes = west.broker.store.metrics.flushes
        await net.wait(100)
        found = await west.session.transmission_status(handle)
        assert found.attempts >= 5
        assert west.broker.store.metrics.flushes == flushes
    net.cut()
    await west.one.restart()
    found = await west.session.transmission_status(handle)
    assert (found.status_key, found.attempts, found.pending) == ("not_attempted", 0, 1)


@pytest.mark.rule(
    "XMT-6", "XMT-9", "XMT-18", "RTE-16", "PBT-2", "CLP-98", "CLP-101", "VIEW-3", "MON-8"
)
@peers("west", "east", routes=False)
async def test_a_dialog_that_waits_for_a_route_says_how_often_and_when_it_is_matched(
    net: Net, west: Peer, east: Peer
) -> None:
    await east.apply(route=[route("west")])
    handle = await west.talk("urn:east", b"1")
    await net.wait(1)
    before = await west.session.transmission_status(handle)
    assert before.attempts >= 1
    assert before.next_attempt_at is not None
    clock, found = west.broker.clock, before
    for more in (1, 2, 3):
        due = (await west.session.transmission_status(handle)).next_attempt_at
        assert due is not None
        assert 0 < due - clock.utc() <= 10 * SECOND
        await net.wait((due - clock.utc()) / SECOND + 0.1)
        found = await west.session.transmission_status(handle)
        assert (found.attempts, found.destination) == (before.attempts + more, None)
        assert found.status_since == before.status_since
    (row,) = await west.session.view("transmission_queue")
    assert (row["attempts"], row["next_attempt_at"]) == (found.attempts, found.next_attempt_at)
    assert clock.utc() - row["last_attempt_at"] < SECOND
    explained = await west.session.admin.explain_route(handle=handle)
    assert explained.outcome == "delayed"
    assert (explained.attempts, explained.next_attempt_at) == (
        row["attempts"],
        found.next_attempt_at,
    )
    status = await west.session.status()
    (waits,) = msgspec.convert(status["destinations"], list[DestinationStatus])
    assert (waits.state, waits.messages, waits.failures) == ("delayed", 1, found.attempts)
    assert (waits.next_attempt_at, waits.since) == (found.next_attempt_at, found.status_since)

    await west.session.admin.disable("main")  # delivery is off: it waits for something else
    off = await west.session.transmission_status(handle)
    assert (off.status_key, off.attempts > found.attempts) == ("sender_disabled", True)
    await west.session.admin.enable("main")
    await west.apply(route=[route("east")])
    await net.wait(1)
    assert await east.bodies() == [b"1"]
    await east.queue(on=False)
    await west.session.send(handle, b"2", "Ask")
    await net.wait(1)
    sent = await west.session.transmission_status(handle)
    assert (sent.attempts, sent.destination is None) == (1, False)  # it begins anew
    (row,) = await west.session.view("transmission_queue")
    assert (row["attempts"], row["next_attempt_at"]) == (1, sent.next_attempt_at)


@pytest.mark.rule("CLP-98", "XMT-5", "RTE-65")
@peers("west", "east")
async def test_a_dialog_is_explained_by_the_decision_that_it_sends_by(
    net: Net, west: Peer, east: Peer
) -> None:
    """A route that has expired is in use until the next pass, for dialogs that have it."""
    handle = await west.talk("urn:east", b"1")
    clock, ticker = west.broker.clock, west.instance.parts.ticker
    await net.wait((ticker.next_run_of("transmitter") - clock.utc()) / SECOND + 0.5)
    await west.session.alter("route", "way_to_east", lifetime=2)
    await net.wait(3)
    explain = west.session.admin.explain_route
    used, fresh = await explain(handle=handle), await explain("urn:east")
    assert (used.outcome, used.where) == ("remote", "tcp://east:4022")
    assert west.out(handle).route.address == used.where
    assert fresh.outcome == "delayed"
    await net.wait(10)
    assert (await explain(handle=handle)).outcome == "delayed"
