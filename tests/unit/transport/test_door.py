"""The door: who may connect, at each limit, above it, and once there is room again."""

from typing import Any

import pytest

from brokerd.clock import Instant
from brokerd.telemetry.log import NullLog
from brokerd.transport.door import (
    ADDRESS_FULL,
    ADDRESS_LOGINS,
    DESCRIPTORS,
    DISPLACED,
    FULL,
    PATIENCE,
    Door,
    DoorOptions,
    Seat,
    highest_descriptor,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> Instant:
        return Instant(int(self.now * 1_000_000))


class Log(NullLog):
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: object) -> object:
        self.lines.append({"event": event} | fields)
        return None


class Rig:
    def __init__(self, **limits: int) -> None:
        self.clock, self.log = Clock(), Log()
        limits = {"most": 6, "per_address": 4, "logins": 3, "logins_per_address": 2} | limits
        self.door = Door(
            "peers",
            options=DoorOptions(**limits),
            refusal=str.encode,
            clock=self.clock,  # type: ignore[arg-type]  # the two moments that it reads
            log=self.log,
        )

    def enter(self, host: str = "192.0.2.1", *, is_shared: bool = False, has_room: bool = True):
        return self.door.enter(host, is_shared=is_shared, has_room=has_room)

    def seated(self, host: str, count: int) -> list[Seat]:
        """Connections of that address that have logged in."""
        found = []
        for _ in range(count):
            seat = self.enter(host)
            assert isinstance(seat, Seat)
            seat.log_in()
            found.append(seat)
        return found


def refusals(rig: Rig) -> dict[str, int]:
    return dict(rig.door.refused)


@pytest.mark.rule("END-18")
def test_strangers_of_one_address_are_limited_and_others_are_not() -> None:
    rig = Rig()
    first, second = rig.enter(), rig.enter()
    assert isinstance(rig.enter(), bytes)
    assert refusals(rig) == {ADDRESS_LOGINS: 1}
    assert isinstance(rig.enter("192.0.2.2"), Seat)
    first.log_in()
    assert isinstance(rig.enter(), Seat)
    second.leave()
    assert rig.door.strangers == 2


@pytest.mark.rule("END-18")
def test_connections_of_one_address_are_limited_in_all() -> None:
    rig = Rig()
    seats = rig.seated("192.0.2.1", 4)
    assert isinstance(rig.enter(), bytes)
    assert refusals(rig) == {ADDRESS_FULL: 1}
    assert isinstance(rig.enter("192.0.2.2"), Seat)
    seats[0].leave()
    assert isinstance(rig.enter(), Seat)


@pytest.mark.rule("END-18")
def test_connections_of_all_addresses_are_limited_in_all() -> None:
    rig = Rig()
    seats = rig.seated("192.0.2.1", 3) + rig.seated("192.0.2.2", 3)
    assert isinstance(rig.enter("192.0.2.3"), bytes)
    assert refusals(rig) == {FULL: 1}
    seats[0].leave()
    seats[0].leave()  # a seat is given back once
    assert isinstance(rig.enter("192.0.2.3"), Seat)
    assert isinstance(rig.enter("192.0.2.3"), bytes)


@pytest.mark.rule("END-18")
def test_an_address_that_all_programs_of_the_machine_share_has_no_limit_of_its_own() -> None:
    rig = Rig(logins=7)
    seats = [rig.enter("127.0.0.1", is_shared=True) for _ in range(6)]
    assert all(isinstance(seat, Seat) for seat in seats)
    assert isinstance(rig.enter("127.0.0.1", is_shared=True), bytes)
    assert refusals(rig) == {FULL: 1}


@pytest.mark.rule("END-18")
def test_the_oldest_stranger_makes_room_but_not_before_it_had_a_moment() -> None:
    rig = Rig()
    turned_out: list[str] = []
    for name in ("a", "b", "c"):
        seat = rig.enter(f"192.0.2.{ord(name)}")
        seat.occupied(lambda name=name: turned_out.append(name))
        rig.clock.now += PATIENCE / 8
    assert rig.door.wait() == pytest.approx(PATIENCE * 0.625)
    assert turned_out == []
    rig.clock.now += PATIENCE * 0.625
    assert rig.door.wait() == rig.door.wait() == 0
    assert turned_out == []  # nobody has come yet
    assert isinstance(rig.enter(), Seat)
    assert turned_out == ["a"]
    assert refusals(rig) == {DISPLACED: 1}


@pytest.mark.rule("END-18")
def test_who_is_kept_out_by_the_limits_of_its_address_displaces_nobody() -> None:
    rig = Rig(logins=3, logins_per_address=2)
    for host in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        rig.enter(host)
    rig.clock.now += PATIENCE
    assert rig.door.wait() == 0
    assert isinstance(rig.enter("192.0.2.1"), bytes)
    assert refusals(rig) == {ADDRESS_LOGINS: 1}


@pytest.mark.rule("END-18")
def test_silent_connections_do_not_keep_a_full_door_shut() -> None:
    rig = Rig(most=4, logins=2)
    rig.seated("192.0.2.1", 2)
    for host in ("192.0.2.2", "192.0.2.3"):
        seat = rig.enter(host)
        seat.occupied(seat.leave)
    rig.clock.now += PATIENCE
    assert rig.door.wait() == 0
    assert isinstance(rig.enter("192.0.2.4"), Seat)
    assert refusals(rig) == {DISPLACED: 1}


@pytest.mark.rule("END-18")
def test_each_stranger_that_loses_its_place_leaves_the_next_ones_less_time() -> None:
    rig = Rig(logins=1, most=100)
    waits = []
    for _ in range(6):
        seat = rig.enter(is_shared=True)
        seat.occupied(seat.leave)
        waits.append(rig.door.wait())
        rig.clock.now += waits[-1]
        assert rig.door.wait() == 0
    assert waits == [4.0, 2.0, 1.0, 0.5, 0.25, 0.25]
    rig.enter(is_shared=True).log_in()
    rig.enter(is_shared=True)
    assert rig.door.wait() == 0.5


@pytest.mark.rule("END-18")
@pytest.mark.parametrize("how", ["log_in", "leave"])
def test_whoever_waits_for_room_goes_on_as_soon_as_there_is_some(how: str) -> None:
    rig = Rig()
    seats = [rig.enter(f"192.0.2.{n}") for n in range(3)]
    assert rig.door.wait() > 0
    resumed: list[int] = []
    rig.door.when_room(lambda: resumed.append(1))
    getattr(seats[1], how)()
    assert resumed == [1]
    assert rig.door.wait() == 0
    seats[2].leave()
    assert resumed == [1]


@pytest.mark.rule("REL-27")
def test_a_connection_without_a_descriptor_for_it_is_refused() -> None:
    rig = Rig()
    assert isinstance(rig.enter(has_room=False), bytes)
    assert refusals(rig) == {DESCRIPTORS: 1}
    assert len(rig.door) == 0


@pytest.mark.rule("END-18")
def test_each_refusal_is_counted_logged_and_told_without_a_word_about_others() -> None:
    rig = Rig(most=1)
    rig.enter("192.0.2.1")
    told = rig.enter("192.0.2.2")
    assert told == b"too many connections are open"
    assert rig.door.refused_at == rig.clock.utc()
    (line,) = rig.log.lines
    assert line["event"] == "broker.endpoint"
    assert line["subclass"] == "refused"
    assert (line["listener"], line["reason"], line["remote"]) == ("peers", FULL, "192.0.2.2")


@pytest.mark.rule("END-18")
@pytest.mark.parametrize(("host", "remote"), [("127.0.0.1", "127.0.0.1"), ("", "unix")])
def test_the_log_names_the_address_of_a_connection_that_loses_its_place(
    host: str, remote: str
) -> None:
    rig = Rig(logins=1)
    rig.enter(host, is_shared=True)
    rig.clock.now += PATIENCE
    rig.enter("192.0.2.2")
    (line,) = rig.log.lines
    assert (line["reason"], line["remote"]) == (DISPLACED, remote)


@pytest.mark.rule("REL-27")
@pytest.mark.parametrize(
    ("limit", "local", "network"),
    [(1024, 959, 895), (256, 191, 127), (128, 95, 63), (100_000, 99_935, 99_871)],
)
def test_how_many_descriptors_connections_leave_free(limit: int, local: int, network: int) -> None:
    assert highest_descriptor(limit, is_local=True) == local
    assert highest_descriptor(limit, is_local=False) == network
