"""Histograms, differences, and the metrics log: whole segments, torn ends, full disks."""

import gzip
import json
import math
import os
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.clock import SECOND, Instant
from brokerd.ids import BootId
from brokerd.telemetry.metrics import (
    BOUNDS,
    GROWTH,
    MAX_BUCKET,
    MAX_MICROSECONDS,
    Deltas,
    DialogLine,
    Histogram,
    Row,
    bucket_value,
)
from brokerd.telemetry.metrics_log import MetricsLog

BOOT = BootId(b"\xab" * 16)
LATER_BOOT = BootId(b"\xcd" * 16)
DAY = "2023-11-14"
"""Of the instant that `HandClock` begins with, 22:13:20 UTC."""
QUEUE_ROW = Row(scope="queue", broker="main", queue="shop_q", counters={"enqueued": 3})
DIALOG = DialogLine(
    broker="main",
    state="closed",
    conversation_id="6a8f5a52-3f5c-4a4e-9d0e-0f0e0d0c0b0a",
    is_initiator=True,
    service="shop",
    far_service="warehouse",
    contract="orders/v1",
    sent=3,
    acknowledged=3,
    received=2,
    discarded_unread=0,
    undelivered=0,
    outcome="ended",
    began_at=1,
    ended_at=2,
)


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> Instant:
        return Instant(1_700_000_000 * SECOND + round(self.now * SECOND))

    async def sleep_until(self, deadline: float) -> None:
        self.now = deadline


def make(directory: Path, clock: HandClock, **options: object) -> MetricsLog:
    settings = {"instance": "east", "boot_id": BOOT, "segment_size": 1 << 20} | options
    log = MetricsLog(directory=directory, clock=clock, **settings)  # type: ignore[arg-type]
    log.start()
    return log


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def lines(path: Path) -> list[dict[str, object]]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in raw.splitlines()]


def sealed(directory: Path) -> list[dict[str, object]]:
    return [line for path in sorted(directory.glob("*/*.jsonl.gz")) for line in lines(path)]


def segment(boot: str, first: int) -> str:
    return f"{DAY}/east-{boot * 16}-{first:010}.jsonl.gz"


def below(directory: Path) -> list[str]:
    """Every file but the manifests, which have a test of their own."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(directory)) for path in found if path.suffix != ".manifest")


# Histograms.


@pytest.mark.parametrize("us", [1, 2, 3, 7, 49, 50, 51, 999, 32_767, 32_768, 10**6, 10**12])
def test_a_value_falls_into_the_bucket_of_its_logarithm(us: int) -> None:
    whole, broken = Histogram(), Histogram()
    whole.add(us)
    broken.add(us + 0.25)
    assert whole.drain() == {str(math.floor(math.log(us) / math.log(GROWTH))): 1}
    assert broken.drain() == {str(math.floor(math.log(us + 0.25) / math.log(GROWTH))): 1}


ALIKE = st.one_of(st.floats(0.97, 1.03), st.floats(1 - 1e-8, 1 + 1e-8))


@given(st.integers(1, 1400), st.lists(ALIKE, min_size=1, max_size=50), st.booleans())
def test_many_fall_into_the_buckets_that_they_fall_into_one_by_one(
    edge: int, parts: list[float], whole: bool
) -> None:
    values = [GROWTH**edge * part for part in parts]
    if whole:
        values = [int(value) for value in values]
    together, alone = Histogram(), Histogram()
    together.add_all(values)
    for value in values:
        alone.add(value)
    assert together.drain() == alone.drain()


@pytest.mark.parametrize(
    ("us", "bucket"),
    [
        (0, 0),
        (-5, 0),
        (0.5, 0),
        (math.nan, 0),
        (-math.inf, 0),
        (math.inf, MAX_BUCKET),
        (MAX_MICROSECONDS, MAX_BUCKET),
        (10**300, MAX_BUCKET),
    ],
)
def test_values_out_of_range_are_counted_at_the_ends(us: float, bucket: int) -> None:
    histogram = Histogram()
    histogram.add(us)
    assert histogram.drain() == {str(bucket): 1}


@given(st.lists(st.floats(1, 1e12), min_size=1, max_size=50))
def test_a_quantile_is_within_two_per_cent(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    middle = sorted(values)[math.ceil(len(values) * 0.5) - 1]
    found = histogram.quantile(0.5)
    assert found is not None
    assert abs(found / middle - 1) < 0.021


def test_taking_starts_anew_and_an_empty_one_has_no_quantile() -> None:
    histogram = Histogram()
    histogram.add(100)
    histogram.add(100)
    assert histogram.count == 2
    assert histogram.drain() == {"232": 2}
    assert histogram.drain() == {}
    assert histogram.quantile(0.5) is None
    assert bucket_value(232) == pytest.approx(100, rel=0.011)


def test_differences_leave_out_what_stood_still_and_survive_a_restart_of_the_count() -> None:
    deltas = Deltas()
    assert deltas.since({"sent": 5, "lost": 0}) == {"sent": 5}
    assert deltas.since({"sent": 7, "lost": 0}) == {"sent": 2}
    assert deltas.since({"sent": 3, "lost": 1}) == {"sent": 3, "lost": 1}


# Lines.


def test_an_interval_has_the_common_fields_and_what_the_row_says(tmp_path: Path) -> None:
    clock = HandClock()
    log = make(tmp_path, clock)
    clock.now = 10
    row = Row(
        scope="pair",
        broker="main",
        from_service="shop",
        to_service="warehouse",
        contract="orders/v1",
        counters={"sent": 1},
        gauges={"open": 2},
        histograms={"wait_us": {"232": 2}},
    )
    log.write_interval([row])
    log.seal()
    start = 1_700_000_000 * SECOND
    assert sealed(tmp_path) == [
        {
            "v": 1,
            "kind": "interval",
            "instance": "east",
            "broker": "main",
            "boot_id": "ab" * 16,
            "seq": 0,
            "at": start + 10 * SECOND,
            "from_at": start,
            "scope": "pair",
            "from_service": "shop",
            "to_service": "warehouse",
            "contract": "orders/v1",
            "counters": {"sent": 1},
            "gauges": {"open": 2.0},
            "histograms": {"wait_us": {"232": 2}},
        }
    ]


def test_intervals_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    clock = HandClock()
    log = make(tmp_path, clock)
    for _ in range(3):
        clock.now += 10
        log.write_interval([QUEUE_ROW, QUEUE_ROW])
    log.seal()
    found = sealed(tmp_path)
    assert [line["seq"] for line in found] == list(range(6))
    assert [line["from_at"] for line in found[2:]] == [line["at"] for line in found[:-2]]


def test_dialog_lines_and_marks(tmp_path: Path) -> None:
    log = make(tmp_path, HandClock())
    log.write_mark("started")
    log.write_dialogs([DIALOG])
    log.seal()
    mark, dialog = sealed(tmp_path)
    assert (mark["kind"], mark["what"], mark["broker"]) == ("mark", "started", "")
    assert (dialog["kind"], dialog["seq"]) == ("dialog", 1)
    assert (
        dialog.items()
        >= {
            "state": "closed",
            "broker": "main",
            "is_initiator": True,
            "undelivered": 0,
            "ended_at": 2,
        }.items()
    )


def test_a_row_in_which_nothing_happened_can_be_told() -> None:
    assert Row(scope="queue", queue="q", gauges={"ready": 0}).is_empty
    assert not QUEUE_ROW.is_empty


# Segments.


def test_readers_see_a_segment_only_when_it_is_sealed(tmp_path: Path) -> None:
    log = make(tmp_path, HandClock())
    log.write_interval([QUEUE_ROW])
    assert names(tmp_path) == [f"east-{'ab' * 16}-0000000000.jsonl.open"]
    log.seal()
    assert below(tmp_path) == [segment("ab", 0)]
    log.write_interval([QUEUE_ROW])
    log.seal()
    assert below(tmp_path) == [segment("ab", 0), segment("ab", 1)]


def test_a_segment_is_sealed_by_age(tmp_path: Path) -> None:
    clock = HandClock()
    log = make(tmp_path, clock, segment_age=timedelta(seconds=60))
    log.write_interval([QUEUE_ROW])
    clock.now = 59
    log.write_interval([QUEUE_ROW])
    assert sealed(tmp_path) == []
    clock.now = 60
    log.write_interval([QUEUE_ROW])
    assert len(sealed(tmp_path)) == 3


def test_a_segment_is_sealed_by_size(tmp_path: Path) -> None:
    log = make(tmp_path, HandClock(), segment_size=4096)
    log.write_interval([QUEUE_ROW])
    assert sealed(tmp_path) == []
    log.write_interval([QUEUE_ROW] * 30)
    assert len(sealed(tmp_path)) == 31


def test_no_segment_without_lines(tmp_path: Path) -> None:
    log = make(tmp_path, HandClock())
    log.write_interval([])
    log.seal()
    assert names(tmp_path) == []


def test_slow_work_can_be_done_elsewhere(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []
    log = make(tmp_path, HandClock(), later=waiting.append)
    log.write_interval([QUEUE_ROW])
    log.seal()
    log.write_interval([QUEUE_ROW])
    assert sealed(tmp_path) == []
    waiting.pop()()
    assert [line["seq"] for line in sealed(tmp_path)] == [0]


def test_flush_makes_dialog_lines_safe(tmp_path: Path) -> None:
    log = make(tmp_path, HandClock())
    log.write_dialogs([DIALOG])
    assert names(tmp_path) == []
    assert log.to_sync()()
    assert len(lines(next(tmp_path.iterdir()))) == 1


def test_what_is_made_safe_may_be_sealed_meanwhile(tmp_path: Path) -> None:
    log = make(tmp_path, HandClock())
    log.write_dialogs([DIALOG])
    sync = log.to_sync()
    log.seal()
    assert sync()
    assert [line["kind"] for line in sealed(tmp_path)] == ["dialog"]


# After a crash.


@pytest.mark.rule("BI-L1")
@pytest.mark.parametrize(
    "torn",
    [
        b"",
        b'{"v":1,"kind":"inter',
        b'{"v":1}',
        b"\x00" * 5000,
        b"\x00" * 5000 + b"\n",
        b'{"v":1,"ki\n',
        b"[1]\n",
        b'{"x":"' + b"y" * 200_000,
    ],
)
def test_the_next_boot_seals_what_was_left_open_without_its_torn_end(
    tmp_path: Path, torn: bytes
) -> None:
    log = make(tmp_path, HandClock())
    log.write_interval([QUEUE_ROW, QUEUE_ROW])
    (left,) = tmp_path.iterdir()
    with left.open("ab") as file:
        file.write(torn)
    after = MetricsLog(directory=tmp_path, instance="east", boot_id=LATER_BOOT, clock=HandClock())
    assert after.start() == 1
    assert below(tmp_path) == [segment("ab", 0)]
    assert [line["seq"] for line in sealed(tmp_path)] == [0, 1]


def test_a_segment_with_nothing_whole_in_it_goes(tmp_path: Path) -> None:
    left = tmp_path / f"east-{'ab' * 16}-0000000000.jsonl.open"
    left.write_bytes(b'{"v"')
    MetricsLog(directory=tmp_path, instance="east", boot_id=LATER_BOOT, clock=HandClock()).start()
    assert names(tmp_path) == []


def test_the_segments_of_other_instances_and_of_this_boot_are_left_alone(tmp_path: Path) -> None:
    others = [
        f"west-{'ab' * 16}-0000000000.jsonl.open",
        f"east-2-{'ab' * 16}-0000000000.jsonl.open",
        f"east-{'cd' * 16}-0000000000.jsonl.open",
        "east-notes.open",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"{}\n")
    log = MetricsLog(directory=tmp_path, instance="east", boot_id=LATER_BOOT, clock=HandClock())
    assert log.start() == 0
    assert names(tmp_path) == sorted(others)


# When the disk is full.


@pytest.mark.rule("FD-5")
def test_lines_that_cannot_be_written_are_counted_and_the_next_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make(tmp_path, HandClock())
    log.write_interval([QUEUE_ROW])
    real = os.pwrite

    def full(fd: int, data: memoryview, at: int) -> int:
        if len(data) > 20:
            return real(fd, data[:20], at)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        log.write_interval([QUEUE_ROW] * 2)
    assert log.dropped == 2
    assert next(tmp_path.iterdir()).read_bytes().endswith(b"}\n")
    assert not log.to_sync()()  # something since the last time is not where it should be
    assert log.to_sync()()
    log.write_interval([QUEUE_ROW])
    log.seal()
    assert [line["seq"] for line in sealed(tmp_path)] == [0, 3]


@pytest.mark.rule("FD-5")
def test_a_directory_that_vanished_costs_lines_only(tmp_path: Path) -> None:
    directory = tmp_path / "metrics"
    log = make(directory, HandClock())
    directory.rmdir()
    log.write_dialogs([DIALOG])
    assert not log.to_sync()()
    assert log.dropped == 1
    log.seal()


@pytest.mark.rule("MON-35")
@given(st.lists(st.lists(st.integers(0, 200_000_000_000), max_size=30), max_size=4))
def test_totals_are_those_of_all_values_whether_drained_or_not(rounds: list[list[int]]) -> None:
    histogram, seen = Histogram(), list[int]()
    for values in rounds:
        histogram.drain()
        histogram.add_all(values)
        seen += values
        totals = histogram.totals()
        assert sum(totals.counts) == len(seen)
        assert math.isclose(
            totals.microseconds, sum(max(one, 1) for one in seen), rel_tol=0.011, abs_tol=len(seen)
        )
        below = 0
        for bound, count in zip(BOUNDS, totals.counts[:-1], strict=True):
            below += count
            assert sum(one <= bound / GROWTH for one in seen) <= below
            assert below <= sum(one <= bound * GROWTH for one in seen)


@pytest.mark.rule("MON-35")
def test_bounds_rise_about_threefold_from_100_microseconds_to_a_day() -> None:
    assert (BOUNDS[0], BOUNDS[-1]) == (100, 86_400 * SECOND)
    assert all(2.5 <= b / a <= 6 for a, b in pairwise(BOUNDS))
