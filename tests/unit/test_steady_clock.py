"""UTC that jumps is not followed before time, or somebody, has confirmed it (REL-24)."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.clock import HOLD, LEAP, SECOND, ClockState, Instant, MachineClock, SteadyClock

START = Instant(1_700_000_000 * SECOND)
DAYS = timedelta(days=3)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Machine:
    """A machine whose clocks a test moves; a process on it sees time since the boot."""

    def __init__(self, *, booted: str = "first", utc: Instant = START, up: float = 1000.0) -> None:
        self.machine_boot, self._utc, self._up = booted, utc, up

    def monotonic(self) -> float:
        return self._up

    def elapsed_ns(self) -> int:
        return round(self._up * 1_000_000_000)

    def utc(self) -> Instant:
        return self._utc

    async def sleep_until(self, deadline: float) -> None:
        self._up = max(self._up, deadline)

    def set(self, by: timedelta) -> None:
        self._utc = Instant(self._utc + by // timedelta(microseconds=1))

    def run(self, seconds: float) -> None:
        self._up += seconds
        self._utc = Instant(self._utc + round(seconds * SECOND))


def passed(clock: SteadyClock) -> timedelta:
    """How far UTC has got since the beginning."""
    clock.compare_with_utc()
    return timedelta(microseconds=clock.utc() - START)


def what(clock: SteadyClock) -> list[str]:
    return [name for name, _ in clock.events()]


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> SteadyClock:
    return SteadyClock(machine)


def test_the_machine_that_tests_move_is_one(machine):
    assert isinstance(machine, MachineClock)


@pytest.mark.rule("REL-24", "FC-1")
@pytest.mark.parametrize("by", [MINUTE, HOUR, -MINUTE, -HOUR])
def test_a_step_is_followed_at_once(machine, clock, by):
    machine.set(by)
    assert passed(clock) == by
    assert clock.jump is None
    assert what(clock) == []


@pytest.mark.rule("REL-24", "FC-1")
@pytest.mark.parametrize(
    "by", [DAYS, -DAYS, timedelta(days=3650), -timedelta(days=3650), HOUR + timedelta(seconds=1)]
)
def test_a_jump_is_held_and_time_goes_on(machine, clock, by):
    machine.set(by)
    assert passed(clock) == timedelta()
    assert clock.jump == by
    machine.run(HOLD.total_seconds() - 1)
    assert passed(clock) == HOLD - timedelta(seconds=1)
    assert clock.held_for == HOLD.total_seconds() - 1
    assert clock.events() == [("jumped", by)]
    machine.run(1)
    assert passed(clock) == HOLD + by
    assert clock.jump is None
    assert clock.held_for == 0.0
    assert what(clock) == ["confirmed"]


@pytest.mark.rule("REL-24")
def test_twelve_seconds_three_days_ahead_leave_no_trace(machine, clock):
    machine.set(DAYS)
    for _ in range(12):
        clock.compare_with_utc()
        machine.run(1)
    machine.set(-DAYS)
    assert passed(clock) == timedelta(seconds=12)
    assert what(clock) == ["jumped", "returned"]
    machine.run(1000)
    assert passed(clock) == timedelta(seconds=1012)


@pytest.mark.rule("REL-24")
def test_what_is_slewed_while_a_jump_is_held_is_still_that_jump(machine, clock):
    machine.set(DAYS)
    clock.compare_with_utc()
    machine.run(HOLD.total_seconds() - 1)
    machine.set(MINUTE)
    clock.compare_with_utc()
    machine.run(1)
    assert passed(clock) == HOLD + DAYS + MINUTE


@pytest.mark.rule("REL-24")
def test_another_jump_begins_the_hold_anew(machine, clock):
    machine.set(DAYS)
    clock.compare_with_utc()
    machine.run(HOLD.total_seconds() - 1)
    machine.set(DAYS)
    assert passed(clock) == HOLD - timedelta(seconds=1)
    machine.run(HOLD.total_seconds() - 1)
    assert clock.jump == 2 * DAYS
    machine.run(1)
    clock.compare_with_utc()
    assert what(clock) == ["jumped", "jumped", "confirmed"]


@pytest.mark.rule("REL-24")
def test_a_look_is_taken_twenty_times_a_second_at_most(machine, clock):
    clock.utc()
    machine.set(MINUTE)
    assert clock.utc() == START
    machine.run(0.05)
    assert clock.utc() == START + 60_050_000


@pytest.mark.rule("REL-24")
def test_an_administrator_confirms_a_jump(machine, clock):
    assert clock.confirm() is None
    machine.set(DAYS)
    assert clock.confirm() == DAYS
    assert passed(clock) == DAYS
    assert clock.confirm() is None


@pytest.mark.rule("REL-24", "FC-3")
def test_a_machine_that_was_suspended_has_not_jumped(machine, clock):
    machine.run(timedelta(hours=8).total_seconds())
    assert passed(clock) == timedelta(hours=8)
    assert what(clock) == []


# Across a start.


def again(machine: Machine, before: ClockState | None) -> SteadyClock:
    assert before is not None
    clock = SteadyClock(machine)
    clock.resume(before)
    return clock


@pytest.mark.rule("REL-24")
@pytest.mark.parametrize("boot", ["first", "second"])
def test_three_days_without_a_daemon_are_no_jump(machine, clock, boot):
    before = clock.state()
    machine.run(DAYS.total_seconds())
    machine.machine_boot = boot
    machine._up = machine._up if boot == "first" else 30.0
    later = again(machine, before)
    assert passed(later) == DAYS
    assert what(later) == []


@pytest.mark.rule("REL-24")
@pytest.mark.parametrize("by", [DAYS, -DAYS])
def test_a_jump_while_no_daemon_runs_is_held(machine, clock, by):
    before = clock.state()
    machine.run(5000)
    machine.set(by)
    later = again(machine, before)
    assert passed(later) == timedelta(seconds=5000)
    assert later.events() == [("jumped", by)]


@pytest.mark.rule("REL-24")
def test_a_jump_that_is_held_is_held_across_a_start_and_no_longer(machine, clock):
    machine.set(DAYS)
    clock.compare_with_utc()
    machine.run(400)
    later = again(machine, clock.state())
    assert passed(later) == timedelta(seconds=400)
    machine.run(HOLD.total_seconds() - 400)
    assert passed(later) == HOLD + DAYS
    assert what(later) == ["confirmed"]


@pytest.mark.rule("REL-24")
def test_a_boot_with_a_clock_that_was_reset_is_held(machine, clock):
    machine.run(500)
    before = clock.state()
    reset = Machine(booted="second", utc=Instant(0), up=20.0)
    later = again(reset, before)
    assert passed(later) == timedelta(seconds=500)
    assert what(later) == ["jumped"]
    reset.set(timedelta(microseconds=START) + timedelta(seconds=600))
    assert passed(later) == timedelta(seconds=600)
    assert what(later) == ["returned"]


def test_a_machine_that_does_not_name_its_boot_keeps_nothing(clock, machine):
    assert SteadyClock(Machine(booted="")).state() is None
    unnamed = Machine(booted="", utc=Instant(START + DAYS // timedelta(microseconds=1)))
    assert passed(again(unnamed, clock.state())) == DAYS


moves = st.lists(
    st.tuples(
        st.sampled_from(["run", "set", "start", "confirm"]),
        st.integers(-400_000, 400_000),
    ),
    max_size=30,
)


@pytest.mark.rule("REL-24")
@given(moves=moves)
def test_utc_leaps_only_by_what_was_confirmed(moves):
    """Whatever happens: between two looks it moves by what passed, a step, or a confirmed jump."""
    machine = Machine()
    clock = SteadyClock(machine)
    for kind, seconds in moves:
        before, up = clock.utc(), machine.monotonic()
        clock.events()
        if kind == "run":
            machine.run(abs(seconds) / 400)
        elif kind == "set":
            machine.set(timedelta(seconds=seconds))
        elif kind == "start":
            clock = again(machine, clock.state())
        else:
            clock.confirm()
        clock.compare_with_utc()
        moved = timedelta(microseconds=clock.utc() - before)
        drift = moved - timedelta(seconds=machine.monotonic() - up)
        assert abs(drift) <= LEAP + timedelta(milliseconds=1) or what(clock) == ["confirmed"]
