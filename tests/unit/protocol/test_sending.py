"""The window of one dialog: what may be outstanding, what an ack lets go, what is sent again."""

from collections.abc import Iterable

import msgspec
import pytest

from brokerd.protocol.dialog import WHOLE
from brokerd.protocol.sending import SendWindow, WindowLimits


class Row(msgspec.Struct, frozen=True):
    sequence: int
    body: bytes | None = b"x"
    fragment_size: int = 10


def window(rows: Iterable[Row], **limits: int) -> SendWindow[Row]:
    made: SendWindow[Row] = SendWindow(msgspec.structs.replace(WindowLimits(), **limits))
    for row in rows:
        made.add(row)
    return made


def take(one: SendWindow[Row], now: float = 0.0) -> list[tuple[int, int]]:
    """Everything that may leave now, as sequence and fragment."""
    taken = []
    while (found := one.next_fragment(now)) is not None:
        taken.append((found[0].sequence, found[1]))
    return taken


def acked(
    one: SendWindow[Row],
    sequence: int,
    fragment: int = WHOLE,
    *,
    seen: int | None = None,
    held: Iterable[tuple[int, int, int, int]] = (),
    now: float = 0.0,
) -> list[int]:
    highest = sequence if seen is None else seen
    return [row.sequence for row in one.acknowledge(sequence, fragment, highest, held, now)]


LONG = Row(0, b"y" * 45)


@pytest.mark.rule("DLP-31")
def test_so_many_fragments_are_outstanding_and_no_more() -> None:
    one = window([Row(number) for number in range(6)], window_fragments=4)
    assert take(one) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert one.outstanding == 4
    assert not one.has_work()
    assert acked(one, 1) == [0, 1]
    assert one.has_work()
    assert take(one) == [(4, 0), (5, 0)]


@pytest.mark.rule("DLP-31")
def test_so_many_bytes_are_outstanding_and_no_more() -> None:
    one = window([Row(number, b"z" * 10) for number in range(6)], window_bytes=25)
    assert take(one) == [(0, 0), (1, 0), (2, 0)]
    assert acked(one, 0) == [0]
    assert take(one) == [(3, 0)]


@pytest.mark.rule("DLP-15", "DLP-20")
def test_an_ack_lets_go_what_it_covers_whole() -> None:
    one = window([LONG, Row(1), Row(2)])
    assert take(one)[:6] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]
    assert acked(one, 0, 2) == []
    assert (len(one), one.outstanding, one.base_sequence) == (3, 4, 0)
    assert acked(one, 0, 4) == [0]
    assert acked(one, 2) == [1, 2]
    assert (len(one), one.outstanding, one.due) == (0, 0, None)


@pytest.mark.rule("DLP-15")
def test_an_old_ack_changes_nothing() -> None:
    one = window([Row(0), Row(1)])
    take(one)
    acked(one, 0)
    assert acked(one, 0) == []
    assert acked(one, -1, -1) == []
    assert (len(one), one.outstanding) == (1, 1)


@pytest.mark.rule("DLP-26", "DLP-27", "DLP-32")
def test_the_waits_double_from_4_to_64_seconds_and_never_end() -> None:
    one = window([Row(0)])
    take(one, now=0.0)
    now, waits = 0.0, []
    for _ in range(8):
        assert one.due is not None
        waits.append(one.due - now)
        now = one.due
        assert one.expire(now) == 1
        assert take(one, now) == [(0, 0)]
    assert waits == [4, 8, 16, 32, 64, 64, 64, 64]


@pytest.mark.rule("DLP-27")
def test_the_oldest_outstanding_fragment_arms_the_timer() -> None:
    one = window([Row(0), Row(1)])
    one.next_fragment(10.0)
    one.next_fragment(13.0)
    assert one.due == 14.0


@pytest.mark.rule("DLP-27")
def test_an_ack_that_advances_the_prefix_resets_the_wait() -> None:
    one = window([Row(0), Row(1)])
    take(one, 0.0)
    one.expire(4.0)
    one.expire(12.0)
    acked(one, 0, now=20.0)
    assert (one.attempts, one.due) == (0, 24.0)
    one = window([LONG])
    take(one, 0.0)
    one.expire(4.0)
    acked(one, 0, 0, now=20.0)
    assert (one.attempts, one.due) == (0, 24.0)


@pytest.mark.rule("DLP-27")
def test_an_ack_that_does_not_leaves_the_timer_alone() -> None:
    one = window([Row(0)])
    take(one, 0.0)
    one.expire(4.0)
    acked(one, -1, -1, now=5.0)
    assert (one.attempts, one.due) == (1, 12.0)


@pytest.mark.rule("DLP-27", "DLP-16", "DLP-9")
def test_an_expired_timer_sends_again_oldest_first_what_is_not_held() -> None:
    one = window([LONG, Row(1), Row(2), Row(3)])
    take(one, 0.0)
    assert one.expire(4.0, held=[(0, 3, 1, 0), (3, 0, 3, 0)]) == 4
    assert take(one, 4.0) == [(0, 0), (0, 1), (0, 2), (2, 0)]
    assert one.expire(12.0) == 8
    assert one.outstanding == 8


@pytest.mark.rule("DLP-28", "DLP-29")
def test_after_a_loss_all_goes_again_and_it_is_no_attempt() -> None:
    one = window([Row(0), Row(1), Row(2)], window_fragments=2)
    take(one, 0.0)
    one.lost()
    assert (one.due, one.attempts) == (None, 0)
    assert take(one, 100.0) == [(0, 0), (1, 0)]
    assert one.due == 104.0
    assert one.outstanding == 2


@pytest.mark.rule("DLP-30")
def test_a_gap_between_ranges_is_sent_again_once() -> None:
    one = window([Row(number) for number in range(8)])
    take(one)
    held = [(2, 0, 3, 0), (5, 0, 5, 0)]
    assert acked(one, 0, seen=5, held=held) == [0]
    assert take(one) == [(1, 0), (4, 0)]
    assert acked(one, 0, seen=5, held=held) == []
    assert take(one) == []
    acked(one, 0, seen=7, held=[*held, (7, 0, 7, 0)])
    assert take(one) == [(6, 0)]


@pytest.mark.rule("DLP-30", "DLP-9")
def test_a_gap_within_a_message_is_sent_again_once() -> None:
    one = window([LONG, Row(1)])
    take(one)
    assert acked(one, 0, 0, seen=0, held=[(0, 3, 0, 4)]) == []
    assert take(one) == [(0, 1), (0, 2)]
    acked(one, 0, 0, seen=0, held=[(0, 3, 0, 4)])
    assert take(one) == []


@pytest.mark.rule("DLP-30")
def test_without_ranges_the_highest_seen_shows_the_gap() -> None:
    one = window([Row(number) for number in range(4)])
    take(one)
    acked(one, 0, seen=2)
    assert take(one) == [(1, 0)]


@pytest.mark.rule("DLP-30")
def test_what_never_left_is_no_gap() -> None:
    one = window([Row(number) for number in range(4)], window_fragments=2)
    assert take(one) == [(0, 0), (1, 0)]
    acked(one, -1, -1, seen=3, held=[(3, 0, 3, 0)])
    assert take(one) == [(0, 0), (1, 0)]


def test_what_was_acknowledged_before_a_restart_is_not_sent_again() -> None:
    one = window([LONG, Row(1), Row(2)])
    assert acked(one, 0, 2) == []
    assert acked(one, 0, 1) == []
    assert take(one) == [(0, 3), (0, 4), (1, 0), (2, 0)]
    assert one.outstanding == 4
    one = window([LONG, Row(1), Row(2)])
    assert acked(one, 1) == [0, 1]
    assert take(one) == [(2, 0)]
    assert acked(one, 2) == [2]
    assert one.outstanding == 0


def test_a_cleared_window_holds_and_sends_nothing() -> None:
    one = window([Row(0), Row(1)])
    one.next_fragment(0.0)
    assert [row.sequence for row in one.clear()] == [0, 1]
    assert (len(one), one.outstanding, one.due, take(one)) == (0, 0, None, [])
