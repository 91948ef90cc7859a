"""Service levels: what is read, what is counted, and when a budget burns too fast."""

import re
from pathlib import Path
from typing import Any

import pytest

from spark_jobs import latency
from spark_jobs.latency import HOUR_US
from spark_jobs.report import build, hourly, page, slo
from spark_jobs.report.alerts import Status, alerts
from spark_jobs.report.data import Data, Kept, KeptHour, Objective
from spark_jobs.report.slo import SloError, levels
from spark_jobs.report.summary import summary
from spark_jobs.report.verdict import judge
from tests.spark.month import day_of, midnight
from tests.spark.segments import NOON, histogram, interval
from tests.spark.test_alerts import HOSTILE, TODAY, day

ORDERS = Objective("shop", "warehouse", "queue", "orders", "wait_us", "", 2_000_000, 0.99)
TEXT = '[[slo]]\nfrom = "shop"\nto = "warehouse"\nqueue = "orders"\nwithin = "2s"\npart = 0.99\n'


def kept(late: dict[int, int], *, each: int = 1_000, objective: Objective = ORDERS) -> Kept:
    """30 days of even traffic; `late` by the hour of the last day, negative for hours before it."""
    first = midnight(TODAY)
    hours = range(-29 * 24, 24)
    return Kept(
        objective,
        tuple(KeptHour(first + at * HOUR_US, each, late.get(at, 0)) for at in hours),
    )


def of(*all_kept: Kept) -> Data:
    return day(kept=all_kept)


def points(*all_kept: Kept) -> list[tuple[Status, str]]:
    return [(one.status, one.text) for one in alerts(of(*all_kept))]


def test_a_file_names_the_levels(tmp_path):
    file = tmp_path / slo.FILE
    assert slo.read(file) == ()
    way = TEXT.replace('queue = "orders"', 'destination = "TCP://west:4022"\ninstance = "east"')
    file.write_text(TEXT + way.replace("2s", "250ms"))
    first, second = slo.read(file)
    assert first == ORDERS
    assert (second.scope, second.measure, second.instance) == ("destination", "wire_us", "east")
    assert second.within_us == 250_000


@pytest.mark.rule("REL-77")
@pytest.mark.parametrize("kind", ["how-to", "reference"])
def test_what_the_documents_show_can_be_read(tmp_path, kind):
    text = (Path(__file__).parents[2] / "docs" / kind / "morning-report.md").read_text()
    (block,) = [one for one in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "slo" in one]
    (tmp_path / slo.FILE).write_text(block)
    assert slo.read(tmp_path / slo.FILE)[0] == ORDERS


@pytest.mark.rule("REL-77")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (("[[slo]]", "[slo]"), "there is only [[slo]]"),
        (('from = "shop"\n', ""), "from is missing"),
        (("part =", "parts ="), "parts is unknown"),
        (('queue = "orders"\n', ""), "either a queue or a destination"),
        (("within =", 'destination = "x"\nwithin ='), "either a queue or a destination"),
        (("2s", "2 parsecs"), "no duration"),
        (("2s", "0s"), "no duration"),
        (("0.99", "99"), "not between 0 and 1"),
        (("0.99", "true"), "not between 0 and 1"),
        (('"orders"', "7"), "queue must be text"),
        (("part = 0.99", "part ="), "Invalid value"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path, changed, reason):
    file = tmp_path / slo.FILE
    file.write_text(TEXT.replace(*changed))
    with pytest.raises(SloError) as refused:
        slo.read(file)
    assert str(refused.value).startswith(str(file))
    assert reason in str(refused.value)


@pytest.mark.rule("REL-77")
def test_a_run_with_such_a_file_changes_nothing(tmp_path):
    (tmp_path / slo.FILE).write_text(TEXT.replace("2s", "soon"))
    nothing: Any = None
    with pytest.raises(SloError, match="no duration"):
        build.build_days(nothing, tmp_path / "in", tmp_path, [day_of(TODAY)], lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == [slo.FILE]


@pytest.mark.rule("REL-75")
def test_the_part_that_was_met_and_the_budget_that_is_left():
    (level,) = levels(day_of(TODAY), [kept({9: 120, -30: 1_680})])
    assert level.met == 1 - 120 / 24_000
    # 720,000 messages in 30 days, of which 7,200 may be late.
    assert level.left == pytest.approx(1 - 1_800 / 7_200)
    assert [burn.hours for burn in level.burns] == [1, 6, 24]
    assert [burn.rate for burn in level.burns] == pytest.approx([12, 2, 0.5])


@pytest.mark.rule("REL-75")
@pytest.mark.parametrize(
    ("late", "status"),
    [
        pytest.param({}, None, id="none late"),
        pytest.param(dict.fromkeys(range(24), 10), None, id="as many as allowed"),
        pytest.param({9: 150}, Status.ACT, id="one hour at fifteen times"),
        pytest.param({9: 130}, None, id="one hour at thirteen times"),
        pytest.param(dict.fromkeys(range(9, 15), 65), Status.ACT, id="six hours at six times"),
        pytest.param(dict.fromkeys(range(24), 35), Status.LOOK, id="a day at three times"),
        pytest.param({-1: 150, 0: 10}, None, id="an hour of yesterday"),
        pytest.param({**dict.fromkeys(range(-5, 0), 65), 0: 65}, Status.ACT, id="over midnight"),
        pytest.param(dict.fromkeys(range(-130, -30), 80), Status.LOOK, id="used up before"),
    ],
)
def test_a_budget_that_burns_fast_needs_action(late, status):
    found = points(kept(late))
    assert [one for one, _ in found] == ([] if status is None else [status]), found


@pytest.mark.rule("REL-75")
def test_a_quiet_night_with_a_few_late_messages_is_no_alarm():
    busy = kept({})
    quiet = [KeptHour(one.hour_at, 12, 12) for one in busy.hours if one.hour_at == midnight(TODAY)]
    others = [one for one in busy.hours if one.hour_at != midnight(TODAY)]
    assert points(Kept(ORDERS, (*others, *quiet))) == []


@pytest.mark.rule("REL-75")
def test_a_handful_of_messages_is_no_alarm_on_a_first_day():
    hours = (KeptHour(midnight(TODAY), 20, 5),)
    assert [one for one, _ in points(Kept(ORDERS, hours))] == []


@pytest.mark.rule("REL-76")
def test_the_point_says_which_part_of_the_messages_was_late_and_when():
    (found,) = alerts(of(kept({9: 150})))
    assert found.text == (
        "Service level of shop → warehouse (queue orders): 15 % of the messages from 09:00 to "
        "10:00 took longer than 2 s; 1 % is allowed. That is 2.08 % of the budget of 30 days."
    )
    assert found.command == "brokerd queue show orders"


@pytest.mark.rule("REL-76")
def test_the_page_and_the_summary_have_every_level():
    data = of(kept({9: 150}))
    text = page.render(data, judge(data))
    section = text[text.index("<h2>Were the service levels kept?") :]
    for expected in ("shop → warehouse", "99 %", "within 2 s", "99.375 %", "97.9 %"):
        assert expected in section
    (said,) = summary(data, judge(data))["service_levels"]  # type: ignore[misc]
    assert (said["to_service"], said["late"], said["burn_1h"]) == ("warehouse", 150, 15.0)
    assert "service levels" not in page.render(day(), judge(day()))


@pytest.mark.rule("BI-L4")
def test_names_of_levels_are_no_markup():
    objective = Objective(HOSTILE, HOSTILE, "queue", HOSTILE, "wait_us", HOSTILE, 1, 0.9)
    data = of(kept({9: 500}, objective=objective))
    assert "<script" not in page.render(data, judge(data))


@pytest.mark.rule("REL-75")
def test_messages_are_counted_by_the_middle_of_their_bucket(rows):
    waits = histogram([1_500_000] * 7 + [2_500_000] * 2 + [9_000_000])

    def line(seq: int, after: int = 0, measure: str = "wait_us", **fields: Any):
        fields |= {"from_at": NOON + after, "at": NOON + after + 1, "seq": seq}
        return interval(histograms={measure: waits}, **fields)

    found = rows(
        line(1, queue="orders"),
        line(2, HOUR_US, queue="orders"),
        line(3, queue="other"),
        line(4, measure="handler_us", queue="orders"),
    )
    other = Objective("shop", "warehouse", "queue", "orders", "wait_us", "nowhere", 1, 0.9)
    counted = hourly.kept(latency.bucket_counts(found), [ORDERS, other]).collect()
    assert sorted((row.number, row.hour_at, row.total, row.late) for row in counted) == [
        (0, NOON, 10, 3),
        (0, NOON + HOUR_US, 10, 3),
    ]
