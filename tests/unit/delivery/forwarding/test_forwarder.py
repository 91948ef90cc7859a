"""Forwarder: what is held, what leaves, what is dropped and who is told (FWD-1 to FWD-17)."""

import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from brokerd.admin.views.columns import COLUMNS
from brokerd.clock import Instant
from brokerd.delivery.boxcars import Boxcars
from brokerd.delivery.forwarding.forwarder import (
    ITEM_COST,
    MOST_NOTIFIED,
    Forwarder,
    ForwarderOptions,
)
from brokerd.delivery.forwarding.report import ForwardReport, ReportOptions
from brokerd.delivery.peers.arrival_routes import ArrivalRouteOptions, ArrivalRoutes
from brokerd.ids import InstanceId
from brokerd.protocol.frames import Hop, Item
from brokerd.protocol.neighbour import Notice
from brokerd.routing.classify import ArrivalKey, Arriving, Local, Remote
from brokerd.telemetry.log import NullLog
from tests.unit.delivery.passing import PEER, ack, arrived, counted, departed, fragment

SPEC = Path(__file__).parents[4] / "docs" / "spec" / "network.md"
X, Y = "tcp://x:4022", "tcp://y:4022"
LOCAL: Any = Local(b"b" * 16, "r", 2)  # type: ignore[arg-type]


class Stand(NullLog):
    """A forwarder, the clock, the routes and all that it says."""

    def __init__(self, *, each: bool = False, **options: Any) -> None:
        self.now = 1000.0
        self.routes: dict[str, Arriving] = {
            "to": Remote(X, "x", 2, hops_used=1),
            "other": Remote(Y, "y", 2, hops_used=1),
            "mine": LOCAL,
        }
        self.forwards: list[bool] = []
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.notices: list[tuple[str, Notice]] = []
        self.refused: list[tuple[int, str, InstanceId]] = []
        self.woken: list[str] = []
        self.online = True
        self.arrival_routes = ArrivalRoutes(
            lambda key, _choice: self.notified(key),
            is_here=lambda _item: False,
            clock=self,  # type: ignore[arg-type]
            options=ArrivalRouteOptions(),
        )
        self.report = ForwardReport(
            clock=self,  # type: ignore[arg-type]
            log=self,
            options=ReportOptions(each=each),
            refuse=lambda item, reason, peer: self.refused.append((item.sequence, reason, peer)),
        )
        self.forwarder = Forwarder(
            router=self,  # type: ignore[arg-type]
            clock=self,  # type: ignore[arg-type]
            options=ForwarderOptions(forwarding=True, **options),
            report=self.report,
            notify=self.woken.append,
            notice=self._send,
        )

    # As router.

    def notified(self, key: ArrivalKey) -> Arriving:
        return self.routes[key.service_name]

    def allow_forwarding(self, allowed: bool) -> None:
        self.forwards.append(allowed)

    # As clock.

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> Instant:
        return Instant(int(self.now * 1_000_000))

    # As log.

    def debug(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    warning = debug

    def _send(self, address: str, notice: Notice) -> bool:
        self.notices.append((address, notice))
        return self.online

    def take(self, *items: Item) -> list[Item]:
        return self.forwarder.accept(*arrived(*items))

    def leave(self, address: str = X, room: int = 128 * 1024, count: int = 512) -> list[Item]:
        return departed(self.forwarder.fill(address, room, count))

    def reasons(self) -> Counter[str]:
        return self.report.dropped


@pytest.mark.rule("FWD-1", "FWD-3", "FWD-5", "RTE-40")
def test_what_is_for_others_leaves_with_its_hop_counted() -> None:
    stand = Stand()
    mine, theirs = fragment(1, to_service="mine"), fragment(2, conversation=b"d" * 16, body=b"x")
    answer = ack(conversation=b"e" * 16)
    assert stand.take(mine, theirs, answer) == [mine]
    assert stand.woken == [X]
    assert stand.forwarder.held == 2
    stand.now += 0.25
    assert stand.leave() == [counted(one, milliseconds=250) for one in (theirs, answer)]
    assert stand.leave() == []
    assert (stand.forwarder.held, stand.forwarder.used) == (0, 0)
    assert (stand.report.received, stand.report.sent, stand.report.messages_sent) == (1, 1, 2)


@pytest.mark.rule("TRN-31", "TRN-32", "TRN-33")
def test_a_boxcar_takes_what_fits_and_something_large_alone() -> None:
    stand = Stand()
    large = [fragment(n, body=bytes(60_000)) for n in range(3)]
    stand.take(*large)
    assert len(stand.leave(room=128 * 1024)) == 2
    assert stand.forwarder.fill(X, 1000, 512, alone=False) == []
    assert len(stand.leave(room=1000)) == 1
    stand.take(*[fragment(n) for n in range(5)])
    assert [len(stand.leave(count=3)) for _ in range(2)] == [3, 2]


@pytest.mark.rule("FWD-11")
def test_what_is_too_large_for_a_frame_is_dropped() -> None:
    stand = Stand(largest_item=2000)
    stand.take(fragment(1, body=bytes(3000)), fragment(2))
    assert [one.sequence for one in stand.leave()] == [2]  # type: ignore[union-attr]
    assert stand.reasons() == {"forward_send_error": 1}


@pytest.mark.rule("FWD-6", "FWD-8", "FWD-10", "FWD-12")
@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (fragment(1, hop=Hop(b"", 0, 60_000, 0)), "hops_exhausted"),
        (fragment(1, hop=Hop(b"", 10, 60_000, 60_000)), "time_to_live_over"),
    ],
)
def test_what_may_not_go_on_is_dropped(item: Item, reason: str) -> None:
    stand = Stand()
    assert stand.take(item) == []
    assert stand.reasons() == {reason: 1}
    assert stand.forwarder.held == 0
    ((event, fields),) = stand.lines
    assert event == "broker.forwarded_message_dropped"
    assert (fields["reason"], fields["sequence"], fields["next_address"]) == (reason, 1, X)


@pytest.mark.rule("FWD-6")
def test_the_last_hop_passes_one_forwarder_and_no_second() -> None:
    first, second = Stand(), Stand()
    first.take(fragment(1, hop=Hop(b"", 1, 60_000, 0)))
    (left,) = first.leave()
    assert left.hop.hops == 0
    second.take(left)
    assert second.forwarder.held == 0
    assert second.reasons() == {"hops_exhausted": 1}


@pytest.mark.rule("FWD-8")
def test_time_spent_here_counts() -> None:
    stand = Stand()
    stand.take(fragment(1, hop=Hop(b"", 10, 60_000, 59_000)), fragment(2))
    stand.now += 1
    assert stand.leave() == [counted(fragment(2), milliseconds=1000)]
    assert stand.reasons() == {"time_to_live_over": 1}


@pytest.mark.rule("FWD-10", "FWD-12")
def test_a_fragment_is_held_once() -> None:
    stand = Stand()
    stand.take(
        fragment(1, 2), fragment(1, 2), fragment(1, 3), fragment(1, 2, conversation=b"d" * 16)
    )
    assert stand.forwarder.fragments_held == 3
    assert stand.reasons() == {"forward_duplicate": 1}
    assert stand.refused == []  # the first copy is on its way
    assert len(stand.leave()) == 3
    stand.take(fragment(1, 2))  # a repeat of what has left goes on
    assert stand.forwarder.fragments_held == 1
    assert stand.lines == []  # duplicates are counted only


@pytest.mark.rule("FWD-10")
def test_the_two_directions_of_a_conversation_have_sequences_of_their_own() -> None:
    stand = Stand()
    stand.take(fragment(1), fragment(2), fragment(1, from_initiator=False))
    assert stand.forwarder.fragments_held == 3
    assert not stand.reasons()


@pytest.mark.rule("FWD-7", "END-9")
def test_the_store_has_a_limit() -> None:
    each = ITEM_COST + 1000
    stand = Stand(limit=10 * each)
    for sequence in range(20):
        stand.take(fragment(sequence, body=bytes(1000)))
    # One next hop leaves a part to the others: what is held stays, the rest is dropped.
    assert stand.forwarder.held == 8
    assert stand.reasons() == {"forward_store_full": 12}
    stand.take(fragment(1, to_service="other", conversation=b"d" * 16, body=bytes(1000)))
    assert stand.forwarder.held == 9
    assert len(stand.leave(Y)) == 1
    assert stand.forwarder.used == 8 * each
    stand.take(fragment(99, body=bytes(20 * each)))
    assert stand.forwarder.held == 8


@pytest.mark.rule("FWD-7")
def test_stalled_next_hops_never_take_it_all() -> None:
    stand = Stand(limit=200 * ITEM_COST)
    for hop in range(5):
        stand.routes[f"hop{hop}"] = Remote(f"tcp://hop{hop}:4022", "r", 2, hops_used=1)
    for hop in range(4):
        named: Any = {"to_service": f"hop{hop}", "conversation": bytes([hop + 1]) * 16}
        stand.take(*[fragment(n, **named) for n in range(300)])
    stand.take(fragment(1, to_service="hop4", conversation=b"z" * 16))
    assert len(stand.leave("tcp://hop4:4022")) == 1


@pytest.mark.rule("FWD-9")
def test_what_is_old_is_dropped_by_the_pass() -> None:
    stand = Stand(max_age=timedelta(seconds=60))
    long = Hop(b"", 10, 10**9, 0)
    stand.take(fragment(1, hop=long))
    stand.now += 30
    stand.take(fragment(2, hop=long))
    stand.now += 29
    assert stand.forwarder.purge() == 0
    stand.now += 1
    assert stand.forwarder.purge() == 1
    assert stand.reasons() == {"forward_age": 1}
    stand.now += 30
    assert stand.forwarder.purge() == 1
    assert (stand.forwarder.held, stand.forwarder.used) == (0, 0)


@pytest.mark.rule("FWD-11", "FWD-17", "END-6")
def test_switching_off_and_stopping_drop_what_is_held() -> None:
    stand = Stand()
    stand.take(fragment(1), fragment(2, to_service="other", conversation=b"d" * 16))
    stand.forwarder.configure(forwarding=True, limit=1)
    assert stand.forwarder.held == 2  # a smaller store keeps what it has
    stand.forwarder.configure(forwarding=False, limit=10**6)
    assert stand.reasons() == {"forwarding_disabled": 2}
    assert stand.forwards == [True, False]
    stand.forwarder.configure(forwarding=True, limit=10**6)
    stand.take(fragment(1))
    stand.forwarder.stop()
    stand.take(fragment(2))
    assert stand.reasons()["transport_stopping"] == 2
    assert (stand.forwarder.held, stand.forwarder.used) == (0, 0)


@pytest.mark.rule("FWD-11")
def test_a_route_that_is_no_more() -> None:
    stand = Stand()
    stand.take(fragment(1), fragment(2, to_service="other", conversation=b"d" * 16))
    stand.routes["to"] = LOCAL
    stand.arrival_routes.clear()
    stand.forwarder.routes_changed()
    assert stand.reasons() == {"route_no_longer_valid": 1}
    assert len(stand.leave(Y)) == 1


@pytest.mark.rule("BI-F9", "FWD-6", "FWD-8", "FWD-9")
def test_the_largest_hops_and_time_to_live_are_held_no_longer_than_others() -> None:
    most = Hop(b"", 255, 2**63 - 1, 0)
    stand = Stand()
    stand.take(fragment(1, hop=most), fragment(2, hop=most))
    (gone, *_) = stand.leave(count=1)
    assert (gone.hop.hops, gone.hop.time_to_live) == (254, 2**63 - 1)
    stand.now += 61
    stand.forwarder.purge()
    assert stand.reasons() == {"forward_age": 1}
    late = Hop(b"", 255, 2**63 - 1, 2**63 - 1)
    stand.take(fragment(3, hop=late))
    assert stand.forwarder.held == 0


# Who is told.


@pytest.mark.rule("NBT-6")
def test_the_neighbour_that_sent_a_fragment_is_told() -> None:
    stand = Stand(limit=0)
    stand.take(fragment(0), ack(conversation=b"d" * 16))
    assert stand.refused == [(0, "forward_store_full", PEER)]


@pytest.mark.rule("NBT-6")
def test_a_notice_is_passed_on_by_the_instance_table() -> None:
    stand = Stand()
    notice = Notice(
        fragment(0).conversation_id, True, 0, "no_route", "why", "to", b"f" * 16, hops=2
    )
    assert stand.forwarder.pass_notice(notice)
    ((address, passed),) = stand.notices
    assert (address, passed.hops, passed.detail) == (X, 1, "why")
    assert not stand.forwarder.pass_notice(Notice(notice.conversation_id, True, 0, "no_route"))
    mine = Notice(notice.conversation_id, True, 0, "no_route", "", "mine", b"f" * 16)
    assert not stand.forwarder.pass_notice(mine)
    tired = Notice(notice.conversation_id, True, 0, "no_route", "", "to", b"f" * 16, hops=0)
    assert not stand.forwarder.pass_notice(tired)
    assert (stand.report.notices_passed, stand.report.notices_dropped) == (1, 2)
    made = Notice(notice.conversation_id, True, 0, "no_route", "", "to", b"f" * 16)
    assert made.hops == 10


@pytest.mark.rule("NBT-6")
def test_a_notice_waits_a_little_for_a_connection() -> None:
    stand = Stand()
    stand.online = False
    notice = Notice(fragment(0).conversation_id, True, 0, "no_route", "", "to", b"f" * 16)
    for _ in range(102):
        assert not stand.forwarder.pass_notice(notice)
    stand.online = True
    stand.notices.clear()
    stand.forwarder.came_online(Y)
    assert stand.notices == []
    stand.forwarder.came_online(X)
    assert len(stand.notices) == 100
    assert (stand.report.notices_passed, stand.report.notices_dropped) == (100, 2)
    stand.online = False
    stand.forwarder.pass_notice(notice)
    stand.forwarder.purge()
    stand.forwarder.came_online(X)
    assert (stand.report.notices_passed, stand.report.notices_dropped) == (100, 3)


@pytest.mark.rule("FWD-12", "MON-11", "MON-16")
def test_a_flood_of_drops_is_two_lines() -> None:
    stand = Stand(limit=0)
    for sequence in range(1000):
        stand.take(fragment(sequence, body=bytes(100)))
    assert len(stand.lines) == 1
    stand.now += 59
    assert stand.report.summarise() == 0
    stand.now += 1
    assert stand.report.summarise() == 1
    _, fields = stand.lines[-1]
    assert (fields["reason"], fields["repeated"]) == ("forward_store_full", 999)
    assert fields["size_bytes"] == 999 * (ITEM_COST + 100)
    assert stand.report.summarise() == 0
    assert stand.reasons() == {"forward_store_full": 1000}
    stand.take(fragment(0))
    assert len(stand.lines) == 3  # at once again


@pytest.mark.rule("FWD-12")
def test_each_reason_and_each_next_hop_has_its_first_line() -> None:
    stand = Stand(limit=0)
    spent = Hop(b"", 0, 60_000, 0)
    for _ in range(3):
        stand.take(fragment(1), fragment(1, to_service="other"), fragment(1, hop=spent))
    assert [(fields["reason"], fields["next_address"]) for _, fields in stand.lines] == [
        ("forward_store_full", X),
        ("forward_store_full", Y),
        ("hops_exhausted", X),
    ]
    stand.now += 60
    assert stand.report.summarise() == 3
    assert [fields["repeated"] for _, fields in stand.lines[3:]] == [2, 2, 2]


@pytest.mark.rule("FWD-12", "MON-16")
def test_at_level_debug_there_is_a_line_for_each() -> None:
    stand = Stand(each=True)
    stand.take(fragment(1), fragment(1), fragment(2, hop=Hop(b"t" * 16, 0, 60_000, 0)))
    stand.leave()
    told = [(event, fields.get("reason"), fields["sequence"]) for event, fields in stand.lines]
    assert told == [
        ("broker.forwarded_message_dropped", "forward_duplicate", 1),
        ("broker.forwarded_message_dropped", "hops_exhausted", 2),
        ("broker.forwarded_message_sent", None, 1),
    ]
    assert stand.lines[-1][1]["hops_remaining"] == 9
    assert stand.lines[0][1]["ssb_code"] == 11288


@pytest.mark.rule("MON-2")
def test_the_view_shows_what_is_held() -> None:
    stand = Stand()
    stand.take(fragment(7, 3, body=bytes(50), hop=Hop(b"t" * 16, 5, 60_000, 100)), ack())
    stand.now += 2
    message, answer = stand.forwarder.rows()
    assert message == {
        "conversation_id": "63636363-6363-6363-6363-636363636363",
        "is_initiator": True,
        "to_service_name": "to",
        "to_broker_instance": "74747474-7474-7474-7474-747474747474",
        "from_service_name": "from",
        "from_broker_instance": "66666666-6666-6666-6666-666666666666",
        "adjacent_broker_address": X,
        "message_sequence_number": 7,
        "message_fragment_number": 3,
        "hops_remaining": 4,
        "time_to_live": 60_000,
        "time_consumed": 2100,
        "message_id": "6d6d6d6d-6d6d-6d6d-6d6d-6d6d6d6d6d6d",
        "arrived_at": 1_000_000_000,
        "size_bytes": ITEM_COST + 50,
    }
    assert tuple(message) == COLUMNS["forwarded_messages"]
    (rule,) = re.findall(r"- MON-2 (.*)$", SPEC.read_text(), re.MULTILINE)
    assert set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", rule)) == set(message) | {"forwarded_messages"}
    assert answer["message_sequence_number"] is answer["to_broker_instance"] is None


# Sharing boxcars with what is sent here.


class Own:
    """A transmitter with items of one level."""

    def __init__(self, level: int | None, count: int) -> None:
        self.at = level
        self.items = [b"own%d" % n for n in range(count)]

    def level(self, _address: str) -> int | None:
        return self.at

    def fill(self, _address: str, _room: int, count: int, *, alone: bool = True) -> list[bytes]:
        taken, self.items = self.items[:count], self.items[count:]
        return taken


Shared = Callable[[int], list[str]]


def shared(stand: Stand, own: Own) -> Shared:
    boxcars = Boxcars(transmitter=own, forwarder=stand.forwarder)  # type: ignore[arg-type]

    def fill(count: int) -> list[str]:
        items = boxcars.fill(X, 10_000, count)
        return ["own" if one.startswith(b"own") else "passing" for one in items]

    return fill


@pytest.mark.rule("TRN-43", "OBJ-58")
@pytest.mark.parametrize(
    ("level", "first"), [(6, "own"), (4, "passing"), (None, "passing"), (10, "own")]
)
def test_forwarded_messages_travel_at_level_5(level: int | None, first: str) -> None:
    stand = Stand()
    stand.take(fragment(1))
    fill = shared(stand, Own(level, 1))
    both = fill(2)
    assert both[0] == first
    assert sorted(both) == ["own", "passing"]


@pytest.mark.rule("TRN-43")
def test_those_of_the_same_level_take_turns() -> None:
    stand = Stand()
    stand.take(*[fragment(n) for n in range(4)])
    fill = shared(stand, Own(5, 4))
    assert [fill(2) for _ in range(4)] == [["passing"] * 2, ["own"] * 2] * 2
    assert fill(2) == []


@pytest.mark.rule("TRN-42", "TRN-43")
def test_what_waits_long_rises() -> None:
    stand = Stand()
    stand.take(fragment(1))
    stand.now += 29
    assert shared(stand, Own(8, 1))(1) == ["own"]
    stand.now += 11
    assert shared(stand, Own(8, 1))(1) == ["passing"]


@pytest.mark.rule("REL-25", "SX-12")
def test_notices_for_addresses_without_end_take_bounded_memory() -> None:
    stand = Stand()
    stand.online = False
    for number in range(1000):
        stand.routes[f"s{number}"] = Remote(f"tcp://x:{number}", "t", 2, hops_used=1)
        to = Notice(fragment(0).conversation_id, True, 0, "no_route", "", f"s{number}", b"f" * 16)
        assert not stand.forwarder.pass_notice(to)
    assert stand.report.notices_dropped == 1000 - MOST_NOTIFIED
    stand.forwarder.purge()
    assert stand.report.notices_dropped == 1000
