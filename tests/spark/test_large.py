"""A report of 400 instances with 10 queues each: the page stays small, and files have the rest."""

import csv
import json
from dataclasses import replace

import pytest

from spark_jobs.latency import HOUR_US
from spark_jobs.report import beside, glance, page
from spark_jobs.report.data import Counter, Data, Gauge, Latency, Pair, Rate
from spark_jobs.report.summary import summary
from spark_jobs.report.verdict import judge
from tests.spark.month import day_of, midnight
from tests.spark.test_alerts import BOOT, TODAY, day, failure

INSTANCES, QUEUES = 400, 10
FIRST = midnight(TODAY)


def pair(number: int, *, lost: int = 0) -> Pair:
    names = ("dialogs", "open", "sent", "received", "discarded_unread", "undelivered", "waiting")
    counts = dict.fromkeys((*names, "later", "ahead", "doubled", "elsewhere"), 0)
    counts |= {"sent": 100 + number, "received": 100 + number - lost, "unaccounted": lost}
    return Pair(f"shop-{number:03}", "warehouse", "ordering", **counts, undelivered_by=())


def large_day() -> Data:
    """Every queue is stalled, for the findings; one pair among many lost a message."""
    boots, waits, gauges, counters, rates = [], [], [], [], []
    for number in range(INSTANCES):
        instance = f"instance-{number:03}"
        boots.append(replace(BOOT, instance=instance, boot_id=f"{number:032x}"))
        for queue in range(QUEUES):
            subject = (instance, "main", "queue", f"queue-{queue}")
            p95 = 1_000 * (number + 1) + queue
            line = Latency(*subject, "wait_us", "all", None, 100, p95 // 2, p95, p95 * 2)
            waits.append(line)
            waits += [
                replace(line, span="hour", span_at=FIRST + hour * HOUR_US) for hour in range(24)
            ]
            gauges += [
                Gauge(day_of(TODAY), *subject, name, FIRST + 23 * HOUR_US, 9.0, 9.0, FIRST)
                for name in ("ready", "oldest_s")
            ]
            counters.append(Counter(*subject, "received", FIRST, 100))
            rates.append(Rate(*subject, "received", FIRST, 100_000))
    return day(
        boots=tuple(boots),
        latency=tuple(waits),
        gauges=tuple(gauges),
        counters=tuple(counters),
        rates=tuple(rates),
        pairs=tuple(pair(number, lost=number == 7) for number in range(INSTANCES)),
        failures=tuple(failure(5, is_new=True, name=f"queue-{number}") for number in range(900)),
    )


@pytest.fixture(scope="module")
def large() -> Data:
    return large_day()


@pytest.fixture(scope="module")
def text(large: Data) -> str:
    return page.render(large, judge(large))


@pytest.mark.rule("BI-L53")
def test_the_page_stays_small_and_says_where_the_rest_is(large, text):
    assert len(text) < 1_000_000
    for name in ("points", "conservation", "latency", "boots", "failures"):
        assert f'<a href="{name}.csv">' in text, name
    assert "20 of 4,000 are shown" in text


@pytest.mark.rule("BI-L53")
def test_the_worst_are_shown(text):
    balance = text[
        text.index("<h2>Was anything lost or doubled?") : text.index("<h2>Is anybody stuck?")
    ]
    assert "shop-007" in balance, "it lost a message"
    assert "shop-399" in balance, "it sent most"
    assert "shop-001" not in balance
    waits = text[
        text.index("<h2>How long did messages wait?") : text.index("<h2>How much went through?")
    ]
    assert "instance-399" in waits
    assert "instance-001" not in waits


@pytest.mark.rule("BI-L53")
def test_the_sentence_is_a_sentence_however_many_findings_there_are(large):
    verdict = judge(large)
    assert len(verdict.points) > INSTANCES
    assert len(verdict.sentence) < 600
    assert verdict.sentence.startswith("1 message is unaccounted for.")
    assert "more findings need action" in verdict.sentence


@pytest.mark.rule("BI-L53")
def test_files_have_every_row(large, tmp_path):
    beside.write_csv(large, tmp_path, judge(large).points)
    expected = {"latency": INSTANCES * QUEUES, "boots": INSTANCES, "conservation": INSTANCES}
    expected["points"] = len(judge(large).points)
    for name, count in expected.items():
        with (tmp_path / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            assert len([*csv.DictReader(file)]) == count, name


@pytest.mark.rule("BI-L53")
def test_the_summary_has_the_hours_of_the_busiest_only(large):
    said = summary(large, judge(large))
    lines = said["latency"]
    assert isinstance(lines, list)
    assert len([one for one in lines if one["span"] == "all"]) == INSTANCES * QUEUES
    assert len([one for one in lines if one["span"] == "hour"]) == 24 * 100
    assert len(json.dumps(glance.as_said(glance.glance(large, judge(large))))) < 40_000
