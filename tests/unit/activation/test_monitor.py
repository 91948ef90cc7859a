"""The queue monitor, cell by cell, then its examples and its bound."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.activation.monitor import (
    Altered,
    Arrived,
    Disabled,
    Enabled,
    Event,
    Limits,
    Monitor,
    MonitorState,
    QueueFacts,
    ReaderExited,
    ReceiveEmpty,
    ReceiveIssued,
    RolledBack,
    StartFailed,
    StartReader,
    Ticked,
    Why,
    changes_nothing,
    necessity,
    step,
)

INACTIVE = MonitorState.INACTIVE
NOTIFIED = MonitorState.NOTIFIED
RECEIVES = MonitorState.RECEIVES_OCCURRING
BACKOFF = MonitorState.FAILED_BACKOFF
DROPPED = MonitorState.DROPPED

NOW = 1000.0
READY = QueueFacts(ready=True, youngest_ready_at=NOW - 1)
EMPTY = QueueFacts(ready=False)
LIMITS = Limits(max_readers=3)
FIRST, NEXT = Arrived(was_empty=True), Arrived(was_empty=False)
DONE = ReaderExited(received=True, generation=0)
USELESS = ReaderExited(received=False, generation=0)
FAILED = StartFailed(generation=0, error="no such module")
LOOKED = ReceiveEmpty()


def monitor(state: MonitorState, **fields: Any) -> Monitor:
    """As it is shortly after a start: the clock of B has just begun."""
    given = {"clock_from": NOW - 1, "last_activated_at": NOW - 1, "backoff_until": NOW + 4}
    failures = 1 if state is BACKOFF else 0
    return Monitor(**{"state": state, "failures": failures, **given, **fields})


def run(
    before: Monitor,
    event: Event,
    facts: QueueFacts = READY,
    running: int = 1,
    *,
    now: float = NOW,
    limits: Limits = LIMITS,
) -> tuple[Monitor, list[Why]]:
    after, starts = step(before, event, facts, running, now=now, limits=limits)
    assert after is not None
    return after, [start.why for start in starts]


CELLS = [
    # state, event, facts, running, state after, starts, rule
    (INACTIVE, Enabled(), EMPTY, 0, INACTIVE, [], pytest.mark.rule("ACT-Q1")),
    (INACTIVE, Enabled(), READY, 0, NOTIFIED, [Why.ENABLED], pytest.mark.rule("ACT-Q2")),
    (INACTIVE, Enabled(), READY, 2, NOTIFIED, [Why.ENABLED], pytest.mark.rule("ACT-33")),
    (INACTIVE, Enabled(), READY, 3, RECEIVES, [], pytest.mark.rule("ACT-33")),
    (INACTIVE, FIRST, READY, 0, NOTIFIED, [Why.ARRIVAL], pytest.mark.rule("ACT-Q3")),
    (INACTIVE, FIRST, READY, 1, RECEIVES, [], pytest.mark.rule("ACT-Q10")),
    (INACTIVE, Ticked(), EMPTY, 0, INACTIVE, [], pytest.mark.rule("ACT-28")),
    (INACTIVE, Ticked(), READY, 0, NOTIFIED, [Why.FOUND], pytest.mark.rule("ACT-6")),
    (INACTIVE, RolledBack(), READY, 0, NOTIFIED, [Why.FOUND], pytest.mark.rule("ACT-6")),
    (INACTIVE, RolledBack(), READY, 1, RECEIVES, [], pytest.mark.rule("ACT-6")),
    (INACTIVE, ReceiveIssued(), EMPTY, 1, INACTIVE, [], pytest.mark.rule("ACT-28")),
    (INACTIVE, LOOKED, EMPTY, 1, INACTIVE, [], pytest.mark.rule("ACT-28")),
    (INACTIVE, Altered(), READY, 0, NOTIFIED, [Why.ENABLED], pytest.mark.rule("ACT-7")),
    (INACTIVE, DONE, EMPTY, 0, INACTIVE, [], pytest.mark.rule("ACT-6")),
    (INACTIVE, DONE, READY, 0, NOTIFIED, [Why.CONTINUED], pytest.mark.rule("ACT-6")),
    (INACTIVE, USELESS, EMPTY, 0, BACKOFF, [], pytest.mark.rule("ACT-31")),
    (INACTIVE, FAILED, READY, 0, BACKOFF, [], pytest.mark.rule("ACT-32")),
    (NOTIFIED, ReceiveIssued(), READY, 1, RECEIVES, [], pytest.mark.rule("ACT-Q4")),
    (NOTIFIED, ReceiveIssued(), READY, 0, RECEIVES, [], pytest.mark.rule("ACT-29")),
    (NOTIFIED, FIRST, READY, 1, NOTIFIED, [], pytest.mark.rule("ACT-Q5")),
    (NOTIFIED, NEXT, READY, 1, NOTIFIED, [], pytest.mark.rule("ACT-Q5")),
    (NOTIFIED, Ticked(), READY, 1, NOTIFIED, [], pytest.mark.rule("ACT-Q5")),
    (NOTIFIED, RolledBack(), READY, 1, NOTIFIED, [], pytest.mark.rule("ACT-29")),
    (NOTIFIED, LOOKED, READY, 1, NOTIFIED, [], pytest.mark.rule("ACT-29")),
    (NOTIFIED, Altered(), READY, 1, NOTIFIED, [], pytest.mark.rule("ACT-29")),
    (NOTIFIED, Altered(), READY, 0, NOTIFIED, [Why.ENABLED], pytest.mark.rule("ACT-7")),
    (NOTIFIED, Ticked(), EMPTY, 1, INACTIVE, [], pytest.mark.rule("ACT-Q8")),
    (NOTIFIED, DONE, READY, 1, NOTIFIED, [], pytest.mark.rule("ACT-29")),
    (NOTIFIED, USELESS, READY, 0, BACKOFF, [], pytest.mark.rule("ACT-31")),
    (NOTIFIED, FAILED, READY, 0, BACKOFF, [], pytest.mark.rule("ACT-32")),
    (RECEIVES, ReceiveIssued(), READY, 1, RECEIVES, [], pytest.mark.rule("ACT-Q6")),
    (RECEIVES, NEXT, READY, 0, RECEIVES, [], pytest.mark.rule("ACT-9")),
    (RECEIVES, FIRST, READY, 0, NOTIFIED, [Why.ARRIVAL], pytest.mark.rule("ACT-9")),
    (RECEIVES, FIRST, READY, 1, RECEIVES, [], pytest.mark.rule("ACT-9")),
    (RECEIVES, DONE, READY, 0, NOTIFIED, [Why.CONTINUED], pytest.mark.rule("ACT-Q7")),
    (RECEIVES, DONE, READY, 1, RECEIVES, [], pytest.mark.rule("ACT-Q7")),
    (RECEIVES, DONE, EMPTY, 0, INACTIVE, [], pytest.mark.rule("ACT-Q8")),
    (RECEIVES, Ticked(), EMPTY, 1, INACTIVE, [], pytest.mark.rule("ACT-Q8")),
    (RECEIVES, Ticked(), READY, 1, RECEIVES, [], pytest.mark.rule("ACT-14")),
    (RECEIVES, RolledBack(), READY, 1, RECEIVES, [], pytest.mark.rule("ACT-14")),
    (RECEIVES, Altered(), READY, 1, RECEIVES, [], pytest.mark.rule("ACT-14")),
    (RECEIVES, Altered(), READY, 0, NOTIFIED, [Why.ENABLED], pytest.mark.rule("ACT-7")),
    (RECEIVES, USELESS, READY, 1, BACKOFF, [], pytest.mark.rule("ACT-31")),
    (RECEIVES, FAILED, READY, 1, BACKOFF, [], pytest.mark.rule("ACT-32")),
    (BACKOFF, FIRST, READY, 0, BACKOFF, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, Ticked(), READY, 0, BACKOFF, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, Ticked(), EMPTY, 0, BACKOFF, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, RolledBack(), READY, 0, BACKOFF, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, LOOKED, READY, 0, BACKOFF, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, DONE, READY, 0, BACKOFF, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, ReceiveIssued(), READY, 0, RECEIVES, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, ReceiveIssued(), EMPTY, 0, INACTIVE, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, Altered(), READY, 0, NOTIFIED, [Why.ENABLED], pytest.mark.rule("PBT-6")),
    (BACKOFF, Altered(), EMPTY, 0, INACTIVE, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, USELESS, READY, 0, BACKOFF, [], pytest.mark.rule("PBT-6")),
    (BACKOFF, FAILED, READY, 0, BACKOFF, [], pytest.mark.rule("PBT-6")),
]


Cell = tuple[MonitorState, Event, QueueFacts, int, MonitorState, list[Why]]


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(tuple(cell), marks=rule, id=f"{rule.args[0]}-{cell[0]}-{number}")
        for number, (*cell, rule) in enumerate(CELLS)
    ],
)
def test_cell(cell: Cell) -> None:
    state, event, facts, running, after, starts = cell
    moved, whys = run(monitor(state), event, facts, running)
    assert moved.state is after
    assert whys == starts


@pytest.mark.rule("ACT-28")
def test_every_state_meets_every_event() -> None:
    kinds = {type(cell[1]) for cell in CELLS}
    for state in (NOTIFIED, RECEIVES, BACKOFF):
        met = {type(cell[1]) for cell in CELLS if cell[0] is state}
        assert kinds - met <= {Enabled, ReceiveEmpty}


@pytest.mark.rule("ACT-Q9")
@pytest.mark.parametrize("state", [INACTIVE, NOTIFIED, RECEIVES, BACKOFF])
def test_disabled_is_dropped_while_readers_run_then_gone(state: MonitorState) -> None:
    dropped, starts = run(monitor(state), Disabled(), READY, 2)
    assert dropped.state is DROPPED
    assert not starts
    for event in (FIRST, Ticked(), Altered(), ReceiveIssued(), DONE):
        after, whys = run(dropped, event, READY, 1)
        assert after.state is DROPPED
        assert not whys
    assert step(dropped, DONE, READY, 0, now=NOW, limits=LIMITS) == (None, ())
    assert step(monitor(state), Disabled(), READY, 0, now=NOW, limits=LIMITS) == (None, ())


@pytest.mark.rule("ACT-6")
@pytest.mark.rule("ACT-10")
@pytest.mark.parametrize(
    "event", [Ticked(), NEXT, ReceiveIssued(), RolledBack(), Altered(), DONE, FIRST]
)
def test_each_trigger_checks_condition_b(event: Event) -> None:
    before = monitor(RECEIVES, clock_from=NOW - 5)
    after, starts = run(before, event, READY, running=1)
    assert starts == [Why.BACKLOG]
    assert after.state is RECEIVES
    assert after.clock_from == NOW
    assert after.last_activated_at == NOW


@pytest.mark.rule("ACT-10")
@pytest.mark.rule("ACT-11")
@pytest.mark.rule("ACT-14")
@pytest.mark.parametrize(
    ("since", "facts", "running", "starts"),
    [
        (5.0, READY, 1, 1),
        (5.0, READY, 0, 1),
        (4.5, READY, 1, 0),
        (5.0, msgspec.structs.replace(READY, waiting=1), 1, 0),
        (5.0, EMPTY, 1, 0),
        (5.0, READY, 3, 0),
    ],
)
def test_condition_b(since: float, facts: QueueFacts, running: int, starts: int) -> None:
    before = monitor(RECEIVES, clock_from=NOW - since)
    _, whys = run(before, Ticked(), facts, running)
    assert whys == [Why.BACKLOG] * starts
    necessary = necessity(before, facts, running, now=NOW, limits=LIMITS)
    assert (necessary == "B") == (starts == 1 or running == LIMITS.max_readers)


@pytest.mark.rule("ACT-12")
def test_a_selective_receive_does_not_restart_the_clock() -> None:
    before = monitor(RECEIVES, clock_from=NOW - 4)
    after, _ = run(before, ReceiveEmpty(selective=True))
    assert after.clock_from == NOW - 4
    assert after.last_empty_at is None
    after, _ = run(before, ReceiveEmpty())
    assert after.clock_from == after.last_empty_at == NOW


@pytest.mark.rule("ACT-Q10", "ACT-14")
@pytest.mark.parametrize(
    ("empty_at", "started_at", "clock_from"),
    [
        (NOW - 3, NOW - 9, NOW - 3),
        (NOW - 3, None, NOW - 3),
        (NOW - 9, NOW - 3, NOW - 3),
        (None, NOW - 3, NOW),
    ],
)
def test_the_clock_goes_on_from_the_last_empty_result_or_start(
    empty_at: float | None, started_at: float | None, clock_from: float
) -> None:
    before = monitor(INACTIVE, last_empty_at=empty_at, last_activated_at=started_at)
    after, _ = run(before, FIRST, running=1)
    assert after.clock_from == clock_from


@pytest.mark.rule("ACT-14", "ACT-Q10")
def test_the_ramp_holds_though_the_queue_is_empty_now_and_then() -> None:
    """Readers that end after one message, long after one of them had nothing to do."""
    at, running, started = monitor(INACTIVE, last_empty_at=0, last_activated_at=0), 2, list[float]()
    limits = Limits(max_readers=50)
    for half_seconds in range(40):
        now = NOW + half_seconds / 2
        for event, facts in ((FIRST, READY), (NEXT, READY), (ReceiveIssued(), READY)):
            at, starts = run(at, event, facts, running, now=now, limits=limits)
            running += len(starts)
            started += [now] * len(starts)
        at, _ = run(at, DONE, EMPTY, running - 1, now=now, limits=limits)
    assert started == [NOW, NOW + 5, NOW + 10, NOW + 15]


@pytest.mark.rule("ACT-17")
@pytest.mark.rule("ACT-14")
def test_at_the_limit_a_wanted_start_is_counted_once_a_ramp() -> None:
    at = monitor(RECEIVES, clock_from=NOW - 5)
    at, starts = run(at, Ticked(), running=3)
    assert (at.limit_reached, starts) == (1, [])
    for _ in range(10):
        at, starts = run(at, ReceiveIssued(), running=3, now=NOW + 1)
    assert at.limit_reached == 1
    at, starts = run(at, Ticked(), running=3, now=NOW + 5)
    assert (at.limit_reached, starts) == (2, [])


@pytest.mark.rule("OBJ-43")
def test_no_reader_is_ever_started_where_none_is_allowed() -> None:
    at, starts = run(monitor(INACTIVE), FIRST, running=0, limits=Limits(max_readers=0))
    assert (at.limit_reached, starts) == (1, [])
    at, starts = run(at, Altered(), running=0, limits=Limits(max_readers=1))
    assert starts == [Why.ENABLED]


@pytest.mark.rule("ACT-48")
@pytest.mark.parametrize(
    ("empty_at", "youngest", "starts"),
    [
        (None, NOW - 2, [Why.CONTINUED]),
        (NOW - 3, NOW - 2, [Why.CONTINUED]),
        (NOW - 2, NOW - 2, [Why.CONTINUED]),
        (NOW - 1, NOW - 2, []),
        (NOW - 1, None, []),
        (None, None, [Why.CONTINUED]),
    ],
)
def test_the_last_exit(empty_at: float | None, youngest: float | None, starts: list[Why]) -> None:
    facts = QueueFacts(ready=True, youngest_ready_at=youngest)
    before = monitor(RECEIVES, last_empty_at=empty_at)
    after, whys = run(before, DONE, facts, running=0)
    assert whys == starts
    assert after.state is (NOTIFIED if starts else RECEIVES)


@pytest.mark.rule("ACT-48")
def test_after_an_empty_look_condition_b_takes_over() -> None:
    before = monitor(RECEIVES, last_empty_at=NOW, clock_from=NOW)
    at, _ = run(before, DONE, running=0)
    _, starts = run(at, Ticked(), running=0, now=NOW + 4)
    assert not starts
    _, starts = run(at, Ticked(), running=0, now=NOW + 5)
    assert starts == [Why.BACKLOG]


@pytest.mark.rule("ACT-15")
def test_one_conversation_never_gets_a_third_reader() -> None:
    """1000 messages of one conversation; reader A is busy with the first."""
    at, starts = run(Monitor(), FIRST, running=0, now=0)
    assert starts == [Why.ARRIVAL]
    at, _ = run(at, ReceiveIssued(), running=1, now=0.1)
    at, starts = run(at, Ticked(), running=1, now=3)
    assert not starts
    at, starts = run(at, Ticked(), running=1, now=5.1)
    assert starts == [Why.BACKLOG]  # reader B
    at, _ = run(at, ReceiveIssued(), running=2, now=5.2)
    b_waits = msgspec.structs.replace(READY, waiting=1)
    for tick in range(10, 70, 5):
        at, starts = run(at, Ticked(), b_waits, running=2, now=tick)
        assert not starts
    at, _ = run(at, ReceiveEmpty(), running=2, now=70)
    at, _ = run(at, DONE, running=1, now=70)
    at, starts = run(at, Ticked(), running=1, now=74)
    assert not starts
    at, starts = run(at, Ticked(), running=1, now=75)
    assert starts == [Why.BACKLOG]


@pytest.mark.rule("ACT-14")
def test_the_ramp_is_one_reader_each_interval_up_to_the_limit() -> None:
    at, _ = run(Monitor(), FIRST, running=0, now=0)
    at, _ = run(at, ReceiveIssued(), running=1, now=0)
    readers = 1
    seen = []
    for tick in range(5, 30, 5):
        at, starts = run(at, Ticked(), running=readers, now=tick, limits=LIMITS)
        readers += len(starts)
        seen.append(readers)
    assert seen == [2, 3, 3, 3, 3]


@pytest.mark.rule("PBT-6")
def test_a_reader_that_exits_at_once_is_started_at_0_5_15_35() -> None:
    at, starts = run(Monitor(), FIRST, running=0, now=0)
    started = [0.0]
    assert starts
    at, _ = run(at, USELESS, running=0, now=0)
    for tick in range(5, 160, 5):
        at, starts = run(at, Ticked(), running=0, now=tick)
        if starts:
            assert starts == [Why.RETRIED]
            started.append(tick)
            at, _ = run(at, USELESS, running=0, now=tick)
    assert started == [0, 5, 15, 35, 75, 155]
    at, starts = run(at, Altered(), running=0, now=161)
    assert starts == [Why.ENABLED]
    assert at.failures == 0


@pytest.mark.rule("ACT-32")
def test_readers_that_receive_and_raise_are_spaced_out_from_the_fifth_on() -> None:
    raised = ReaderExited(received=True, generation=0, error="ValueError: seven")
    at, starts = run(Monitor(), FIRST, running=0, now=0)
    started = [0.0]
    for now in range(100):
        if starts:
            at, _ = run(at, ReceiveIssued(), running=1, now=now)
            at, starts = run(at, raised, running=0, now=now)
        else:
            at, starts = run(at, Ticked(), running=0, now=now)
        started += [now] * len(starts)
    assert started == [0, 0, 1, 2, 3, 9, 20, 41, 82]
    assert at.last_failure == "ValueError: seven"
    at, _ = run(at, ReceiveIssued(), running=1, now=100)
    at, _ = run(at, DONE, running=0, now=100)
    assert at.errors == 0


@pytest.mark.rule("PBT-6")
def test_back_off_is_capped() -> None:
    assert Limits().backoff(1) == 5
    assert Limits().backoff(7) == 300
    assert Limits().backoff(10_000) == 300


@pytest.mark.rule("PBT-6")
def test_no_receive_within_30_s_backs_off() -> None:
    before = monitor(NOTIFIED, last_activated_at=NOW - 29)
    assert run(before, Ticked())[0].state is NOTIFIED
    after, _ = run(before, Ticked(), now=NOW + 1)
    assert after.state is BACKOFF
    assert "30 s" in after.last_failure
    full, starts = run(after, Ticked(), running=3, now=NOW + 6)
    assert (full.limit_reached, starts) == (1, [])
    _, starts = run(after, Ticked(), running=2, now=NOW + 6)
    assert starts == [Why.RETRIED]


@pytest.mark.rule("PBT-6")
def test_readers_that_fail_together_are_one_step() -> None:
    at = monitor(NOTIFIED)
    for _ in range(4):
        at, _ = run(at, USELESS, running=0)
    assert at.failures == 1
    assert at.backoff_until == NOW + 5


@pytest.mark.rule("PBT-6")
def test_failures_outlast_an_emptied_queue_until_somebody_receives() -> None:
    at = monitor(BACKOFF, failures=3, backoff_until=NOW)
    at, _ = run(at, Ticked(), EMPTY, running=0, now=NOW + 1)
    assert at.state is INACTIVE
    at, starts = run(at, FIRST, running=0, now=NOW + 2)
    assert starts
    failed, _ = run(at, FAILED, running=0, now=NOW + 2)
    assert failed.failures == 4
    received, _ = run(at, ReceiveIssued(), running=1, now=NOW + 2)
    assert received.failures == 0


@pytest.mark.rule("ACT-33")
def test_a_reader_of_an_earlier_monitor_is_no_failure_of_this_one() -> None:
    before = monitor(NOTIFIED, generation=2)
    after, _ = run(before, ReaderExited(received=False, generation=1), running=1)
    assert after == before


@pytest.mark.rule("PBT-7")
@pytest.mark.parametrize(
    ("groups", "initial", "limit", "count"),
    [(4, 4, 8, 4), (2, 4, 8, 2), (9, 4, 3, 3), (0, 1, 1, 1)],
)
def test_initial_readers(groups: int, initial: int, limit: int, count: int) -> None:
    facts = QueueFacts(ready=True, ready_groups=groups)
    limits = Limits(max_readers=limit, initial_readers=initial)
    _, starts = run(Monitor(), FIRST, facts, running=0, limits=limits)
    assert len(starts) == count


@pytest.mark.rule("ACT-50")
def test_condition_a_does_not_look_at_waiting_sessions() -> None:
    _, starts = run(Monitor(), FIRST, QueueFacts(ready=True, waiting=3), running=0)
    assert starts == [Why.ARRIVAL]


@pytest.mark.rule("VIEW-6")
@pytest.mark.parametrize(
    ("before", "facts", "running", "text"),
    [
        (monitor(INACTIVE), READY, 0, "A"),
        (monitor(INACTIVE), EMPTY, 0, "none: no messages"),
        (monitor(NOTIFIED), READY, 1, "none: the reader started last"),
        (monitor(BACKOFF), READY, 0, "none: backing off"),
        (monitor(RECEIVES), READY, 1, "none: the clock"),
        (monitor(RECEIVES, clock_from=0), QueueFacts(ready=True, waiting=1), 1, "none: a session"),
        (monitor(RECEIVES, clock_from=0), READY, 1, "B"),
    ],
)
def test_necessity_names_the_failing_clause(
    before: Monitor, facts: QueueFacts, running: int, text: str
) -> None:
    assert necessity(before, facts, running, now=NOW, limits=LIMITS).startswith(text)


events = st.one_of(
    st.builds(Arrived, st.booleans()),
    st.builds(ReceiveEmpty, st.booleans()),
    st.sampled_from([Enabled(), Altered(), ReceiveIssued(), RolledBack(), Ticked(), Disabled()]),
    st.builds(ReaderExited, st.booleans(), st.integers(0, 1)),
    st.builds(StartFailed, st.integers(0, 1), st.just("x")),
)


@pytest.mark.rule("ACT-17")
@pytest.mark.rule("ACT-19")
@pytest.mark.rule("PBT-8")
@given(
    history=st.lists(
        st.tuples(events, st.floats(0, 40), st.booleans(), st.integers(0, 2), st.integers(0, 5)),
        max_size=60,
    ),
    limits=st.builds(Limits, st.integers(0, 4), initial_readers=st.integers(1, 4)),
)
def test_never_more_than_max_readers(
    history: list[tuple[Event, float, bool, int, int]], limits: Limits
) -> None:
    at: Monitor | None = Monitor()
    now, running, generation = 0.0, 0, 0
    for happened, wait, ready, waiting, groups in history:
        event = happened
        now += wait
        if isinstance(event, ReaderExited | StartFailed):
            if not running:
                continue
            running -= 1
        if at is None or at.state is DROPPED:  # switched on again, old readers still there
            generation += 1
            at, event = Monitor(generation), Enabled()
        facts = QueueFacts(ready, now - 1, waiting, groups)
        if changes_nothing(at, event, now=now, limits=limits):
            _, skipped = step(at, event, facts, running, now=now, limits=limits)
            assert not skipped
        at, starts = step(at, event, facts, running, now=now, limits=limits)
        running += len(starts)
        assert running <= limits.max_readers
        assert all(isinstance(start, StartReader) for start in starts)


@pytest.mark.rule("ACT-1")
@pytest.mark.rule("ACT-2")
@pytest.mark.parametrize("event", [FIRST, NEXT, Ticked(), DONE, ReceiveIssued()])
@pytest.mark.parametrize("state", [INACTIVE, NOTIFIED, RECEIVES])
def test_how_much_waits_makes_no_difference(state: MonitorState, event: Event) -> None:
    before = monitor(state, clock_from=NOW - 6)
    one = msgspec.structs.replace(READY, ready_groups=1)
    many = msgspec.structs.replace(READY, ready_groups=1_000_000)
    assert run(before, event, one, 1) == run(before, event, many, 1)


@pytest.mark.rule("ACT-1")
def test_what_is_necessary_need_not_occur() -> None:
    before = monitor(RECEIVES, clock_from=NOW - 6)
    assert necessity(before, READY, 3, now=NOW, limits=LIMITS) == "B"
    after, starts = run(before, Ticked(), READY, running=3)
    assert (starts, after.limit_reached) == ([], 1)


# External activation: the same monitor orders notifications, and knows of no reader.

OUTSIDE = Limits(external=True, max_readers=0)


@pytest.mark.rule("ACT-36", "ACT-37")
@pytest.mark.parametrize(
    ("before", "event", "facts", "state", "why"),
    [
        (monitor(INACTIVE), FIRST, READY, NOTIFIED, Why.ARRIVAL),
        (monitor(INACTIVE), Enabled(), READY, NOTIFIED, Why.ENABLED),
        (monitor(INACTIVE), RolledBack(), READY, NOTIFIED, Why.FOUND),
        (monitor(NOTIFIED), FIRST, READY, NOTIFIED, None),
        (monitor(NOTIFIED, last_activated_at=NOW - 9), Ticked(), READY, NOTIFIED, None),
        (monitor(NOTIFIED, last_activated_at=NOW - 10), Ticked(), READY, NOTIFIED, Why.UNHEARD),
        (monitor(NOTIFIED, last_activated_at=NOW - 99), NEXT, READY, NOTIFIED, Why.UNHEARD),
        (
            monitor(NOTIFIED, last_activated_at=NOW - 99),
            Ticked(),
            QueueFacts(ready=True, waiting=1),
            NOTIFIED,
            None,
        ),
        (monitor(NOTIFIED), ReceiveIssued(), READY, RECEIVES, None),
        (monitor(RECEIVES), Ticked(), READY, RECEIVES, None),
        (monitor(RECEIVES, clock_from=NOW - 5), Ticked(), READY, NOTIFIED, Why.BACKLOG),
        (
            monitor(RECEIVES, clock_from=NOW - 5),
            Ticked(),
            QueueFacts(ready=True, waiting=1),
            RECEIVES,
            None,
        ),
        (monitor(RECEIVES), LOOKED, EMPTY, INACTIVE, None),
    ],
)
def test_whoever_starts_readers_is_notified_once_until_somebody_receives(
    before: Monitor,
    event: Event,
    facts: QueueFacts,
    state: MonitorState,
    why: Why | None,
) -> None:
    after, orders = step(before, event, facts, 0, now=NOW, limits=OUTSIDE)
    assert after is not None
    assert after.state is state
    assert orders == (() if why is None else (StartReader(why),))


@pytest.mark.rule("ACT-36")
def test_what_holds_a_further_notification_back_is_said() -> None:
    said = necessity(monitor(NOTIFIED), READY, 0, now=NOW, limits=OUTSIDE)
    assert said == "none: nobody received since the last notification"
