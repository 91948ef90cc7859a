import math
from collections import defaultdict

import pytest

from spark_jobs.latency import latency
from spark_jobs.throughput import fitting_step, throughput
from tests.spark.segments import NOON, SECOND, histogram, interval

HOUR = 3600 * SECOND


THOUSANDS = list(range(1, 10_001))
SPREAD = [int(1.1**n) for n in range(20, 120)]


def waiting(queue, values, *, after=0, **fields):
    from_at = NOON + after
    buckets = {"wait_us": histogram(values)}
    return interval(queue=queue, from_at=from_at, at=from_at + 1, histograms=buckets, **fields)


@pytest.fixture(scope="module")
def waits(rows):
    """Percentiles of several queues at once: {(queue, instance, span): rows in order of time}."""
    lines = [
        waiting("thousands", THOUSANDS),
        waiting("whole", SPREAD),
        *(waiting("parts", SPREAD[n::4], after=n * HOUR // 4) for n in range(4)),
        waiting("apart", [100], after=HOUR - 1),
        waiting("apart", [200], after=HOUR),
        waiting("apart", [300], instance="east"),
        interval(queue="odd", histograms={"wait_us": {"x": 5, "10": 1}}),
    ]
    numbered = [line | {"seq": seq} for seq, line in enumerate(lines)]
    found = defaultdict(list)
    for row in latency(rows(*numbered), step_us=HOUR).orderBy("span_at").collect():
        found[row.name, row.instance, row.span].append(row)
    return found


def test_percentiles_are_right_to_within_the_bucket(waits):
    (row,) = waits["thousands", "west", "all"]
    assert row["count"] == 10_000
    for percent, found in ((50, row.p50_us), (95, row.p95_us), (99, row.p99_us)):
        assert math.isclose(found, percent * 100, rel_tol=0.011)


@pytest.mark.parametrize("span", ["all", "hour"])
def test_merging_parts_is_the_same_as_counting_the_whole(waits, span):
    keys = ("span_at", "count", "p50_us", "p95_us", "p99_us")
    (whole,), (parts,) = waits["whole", "west", span], waits["parts", "west", span]
    assert [whole[key] for key in keys] == [parts[key] for key in keys]
    assert whole["count"] == len(SPREAD)


def test_hours_and_instances_stay_apart(waits):
    west = [(row.span_at, round(row.p50_us, -2)) for row in waits["apart", "west", "hour"]]
    east = [(row.span_at, round(row.p50_us, -2)) for row in waits["apart", "east", "hour"]]
    assert (west, east) == ([(NOON, 100), (NOON + HOUR, 200)], [(NOON, 300)])


@pytest.mark.rule("BI-L2")
def test_a_bucket_that_is_no_number_is_left_out(waits):
    assert [row["count"] for row in waits["odd", "west", "all"]] == [1]


@pytest.mark.parametrize(
    ("span_s", "interval_s", "step_s"),
    [(40, 1, 1), (40, 10, 10), (600, 1, 10), (86_400, 10, 900), (86_400 * 365, 10, 86_400)],
)
def test_the_step_fits_the_span_and_the_interval(span_s, interval_s, step_s):
    assert fitting_step(span_s * SECOND, interval_s * SECOND) == step_s * SECOND


@pytest.fixture(scope="module")
def rates(rows):
    """Thousandths of messages in steps of a second: {(scope, name, counter): {second: amount}}."""
    way = {"from_service": "shop", "to_service": "warehouse", "queue": None}
    half_past = NOON + SECOND // 2
    lines = [
        interval(queue="shared", from_at=half_past, at=half_past + 2 * SECOND),
        interval(queue="at once", from_at=NOON, at=NOON, counters={"enqueued": 2}),
        interval(scope="pair", counters={"sent": 5, "received": 0}, **way),
        interval(scope="instance", queue=None, counters={"flushes": 7}),
    ]
    found: dict[tuple[str, str, str], dict[int, int]] = defaultdict(dict)
    for row in throughput(rows(*lines), step_us=SECOND).collect():
        second = (row.step_at - NOON) // SECOND
        found[row.scope, row.name, row.counter][second] = row.thousandths
    return found


def test_an_interval_is_shared_among_the_steps_it_covers(rates):
    assert rates["queue", "shared", "enqueued"] == {0: 2500, 1: 5000, 2: 2500}


def test_an_interval_of_no_time_still_counts(rates):
    assert rates["queue", "at once", "enqueued"] == {0: 2000}


def test_pairs_and_queues_are_counted_and_nothing_else(rates):
    assert rates["pair", "shop → warehouse", "sent"] == {0: 5000}
    assert {scope for scope, _, _ in rates} == {"queue", "pair"}
    assert ("pair", "shop → warehouse", "received") not in rates
