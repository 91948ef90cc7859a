"""What a day's report warns of, of values made by hand; no frame takes part."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.coverage import Boot
from spark_jobs.latency import HOUR_US
from spark_jobs.report import beside, drawings, page, words
from spark_jobs.report.alerts import disk_days
from spark_jobs.report.baseline import slow
from spark_jobs.report.data import (
    Activation,
    Counter,
    Data,
    Failure,
    Gauge,
    Latency,
    Pair,
    Past,
    SetAside,
    Total,
)
from spark_jobs.report.standing import queues
from spark_jobs.report.status import Status
from spark_jobs.report.verdict import judge
from tests.spark.month import day_of, midnight

TODAY = 20
HOSTILE = '<script>alert("1")</script>\u202e=cmd'
BOOT = Boot(
    instance="east",
    boot_id="a0",
    lines=3,
    repeated=0,
    first_seq=0,
    last_seq=2,
    missing=0,
    spoilt=0,
    gaps=(),
    first_at=midnight(TODAY),
    last_at=midnight(TODAY) + HOUR_US,
    intervals=1,
    interval_us=HOUR_US,
    backwards=0,
    started_at=None,
    stopped=False,
    after_crash=False,
)


def day(**fields: Any) -> Data:
    names = ("segments", "places", "marks", "pairs", "findings", "latency", "rates")
    values: dict[str, Any] = dict.fromkeys(names, ())
    values |= {"boots": (BOOT,), "findings_in_all": 0, "step_us": HOUR_US, "date": day_of(TODAY)}
    return Data(**(values | fields))


def gauge(what: str, value: float, /, *, ago: int = 0, hour: int = 23, **fields: Any) -> Gauge:
    number = TODAY - ago
    at = midnight(number) + hour * HOUR_US
    values: dict[str, Any] = {"date": day_of(number), "instance": "east", "broker": "main"}
    values |= {"scope": "queue", "name": "orders", "hour_at": at, "gauge": what}
    values |= {"most": value, "last": value, "last_at": at + HOUR_US - 1}
    return Gauge(**(values | fields))


def latency(hour: int, p95: int, *, ago: int = 0, count: int = 100) -> Latency:
    return Latency(
        instance="east",
        broker="main",
        scope="queue",
        name="orders",
        measure="wait_us",
        span="hour",
        span_at=midnight(TODAY - ago) + hour * HOUR_US,
        count=count,
        p50_us=p95 // 2,
        p95_us=p95,
        p99_us=p95 * 2,
    )


def received(hour: int) -> Counter:
    at = midnight(TODAY) + hour * HOUR_US
    return Counter("east", "main", "queue", "orders", "received", at, 10)


def texts(data: Data) -> list[tuple[Status, str]]:
    """All but what is said of a log without dialogs."""
    found = [(point.status, point.text) for point in judge(data).points]
    return [one for one in found if "no line about a dialog" not in one[1]]


BALANCE = dict.fromkeys(
    (
        *("dialogs", "open", "sent", "received", "discarded_unread", "undelivered"),
        *("waiting", "later", "ahead", "unaccounted", "doubled", "elsewhere"),
    ),
    0,
)
BOOKS = {
    "balanced": ({}, None, ""),
    "lost": ({"unaccounted": 1}, Status.ACT, "1 message is unaccounted for."),
    "doubled": ({"doubled": 2}, Status.ACT, "2 messages arrived more often than sent."),
    "one side": ({"elsewhere": 3}, Status.LOOK, "3 messages cannot be judged"),
    "withdrawn": ({"undelivered": 1}, Status.LOOK, "1 message was withdrawn before delivery"),
    "on their way": ({"waiting": 1, "later": 2, "ahead": 3, "discarded_unread": 4}, None, ""),
}


@pytest.mark.rule("REL-31")
@pytest.mark.parametrize("case", BOOKS)
def test_what_does_not_balance_is_a_point_of_its_own_and_the_verdict(case):
    counts, status, text = BOOKS[case]
    pair = Pair("shop", "warehouse", "ordering", **(BALANCE | counts), undelivered_by=())
    verdict = judge(day(pairs=(pair,)))
    assert [(one.status, one.text[: len(text)]) for one in verdict.points] == (
        [(status, text)] if status is not None else []
    )
    assert verdict.status == (Status.FINE if status is None else status)


@pytest.mark.rule("REL-31")
def test_a_day_without_dialogs_is_not_called_balanced():
    (point,) = judge(day()).points
    assert (point.status, point.text) == (
        Status.LOOK,
        "There is no line about a dialog in these logs.",
    )


WAITING = (gauge("ready", 7.0), gauge("oldest_s", 9.0))
STANDINGS = {
    "works": ((*WAITING,), (received(23),), "OK"),
    "old": ((gauge("ready", 7.0), gauge("oldest_s", 9000.0)), (received(23),), "WARN"),
    "nobody receives": ((*WAITING,), (received(12),), "STALLED"),
    "never received": ((*WAITING,), (), "STALLED"),
    "empty": ((gauge("ready", 0.0),), (), "OK"),
    "switched off": ((gauge("ready", 0.0), gauge("off", 1.0)), (), "STOPPED"),
    "on again": ((gauge("ready", 0.0), gauge("off", 1.0, last_at=midnight(TODAY))), (), "OK"),
}


@pytest.mark.parametrize("case", STANDINGS)
def test_a_queue_stands_as_its_last_hours_say(case: str) -> None:
    gauges, counters, verdict = STANDINGS[case]
    data = day(gauges=gauges, counters=counters)
    assert [one.verdict for one in queues(data)] == [verdict]
    said = [one for one in texts(data) if one[0] is Status.ACT]
    assert bool(said) == (verdict in {"STALLED", "STOPPED"})
    was_off = [text for status, text in texts(data) if status is Status.LOOK]
    assert bool(was_off) == (case == "on again")


SLOW = {
    "three hours in a row": ([8, 9, 10], 50_000, 100, True),
    "three hours apart": ([8, 10, 12], 50_000, 100, False),
    "too few messages": ([8, 9, 10], 50_000, 5, False),
    "within the band": ([8, 9, 10], 35_000, 100, False),
}


@pytest.mark.parametrize("case", SLOW)
def test_slow_is_what_is_out_of_its_band_for_hours(case: str) -> None:
    hours, p95, count, is_slow = SLOW[case]
    before = tuple(latency(hour, 20_000, ago=7) for hour in range(24))
    today = tuple(latency(hour, p95, count=count) for hour in hours)
    found = slow(day(latency=today, baseline=before))
    assert [one.hours for one in found] == ([tuple(hours)] if is_slow else [])
    assert slow(day(latency=today)) == [], "there is nothing to compare with"


def shifted(hours: int) -> Data:
    """A day on which a slow batch at 02:00 and the work from 08:00 to 18:00 come earlier."""
    names = {"instance": "east", "broker": "main", "scope": "queue", "name": "orders"}

    def of_day(number: int, by: int) -> tuple[tuple[Latency, ...], tuple[Counter, ...]]:
        at = midnight(number)
        waits = tuple(
            latency(hour, 2_000_000 if hour == 2 - by else 20_000, ago=TODAY - number)
            for hour in range(24)
        )
        came = tuple(
            Counter(**names, counter="enqueued", hour_at=at + (hour - by) * HOUR_US, total=50)
            for hour in range(8, 18)
        )
        return waits, came

    waits, came = of_day(TODAY, hours)
    waits_before, came_before = of_day(TODAY - 7, 0)
    alive = tuple(gauge("store_bytes", 1.0, hour=hour, scope="instance") for hour in range(24))
    return day(
        latency=waits,
        baseline=waits_before,
        counters=came,
        enqueued_before=(came_before,),
        gauges=alive,
    )


@pytest.mark.rule("BI-L17")
@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_day_of_23_or_25_hours_where_people_live_is_no_alarm(hours: int) -> None:
    assert texts(shifted(hours)) == []


@pytest.mark.rule("BI-L15", "BI-L18")
def test_what_comes_hours_earlier_is_named() -> None:
    quiet, late = (text for _, text in texts(shifted(-4)))
    assert quiet.startswith("No message came for queue orders at east from 08:00 to 12:00, when")
    assert "Waiting in queue orders at east took up to 2 s (p95) from 06:00 to 07:00" in late


def test_what_is_quick_is_never_slow() -> None:
    before = tuple(latency(hour, 100, ago=7) for hour in range(24))
    assert (
        slow(day(latency=tuple(latency(hour, 5_000) for hour in range(24)), baseline=before)) == []
    )


def failure(times: int, *, is_new: bool, name: str = "orders") -> Failure:
    about = ("broker.parking", "parked", name, "ValueError: N", times, 0, "ValueError: 5", "")
    return Failure("east", "main", *about, is_new)


def test_a_new_failure_is_grave_where_it_is_a_hundredth_of_the_messages() -> None:
    counters = (Counter("east", "main", "queue", "orders", "received", 0, 1000),)
    assert texts(day(failures=(failure(100, is_new=False),), counters=counters)) == []
    ((known, _),) = texts(day(failures=(failure(101, is_new=False),), counters=counters))
    assert known is Status.ACT, "it is more than a tenth"
    ((few, _),) = texts(day(failures=(failure(10, is_new=True),), counters=counters))
    ((many, text),) = texts(day(failures=(failure(11, is_new=True),), counters=counters))
    assert (few, many) == (Status.LOOK, Status.ACT)
    assert "11 times" in text


@pytest.mark.rule("BI-L11")
def test_a_known_failure_counts_again_where_it_is_far_more_frequent() -> None:
    def after(usual: float, times: int) -> list[tuple[Status, str]]:
        known = Total("east", "main", "broker.connection", "tcp://west:1", "refused", usual)
        about = ("broker.connection", "connect_failed", "tcp://west:1", "refused", times, 0, "", "")
        one = Failure("east", "main", *about, is_new=False)
        return texts(day(failures=(one,), past=(Past(failures=(known,)),)))

    ((status, text),) = after(20, 200)
    assert (status, "200 times instead of at most 20: connection" in text) == (Status.LOOK, True)
    assert after(21, 200) == []
    assert after(1, 99) == [], "few are no matter"


@pytest.mark.rule("BI-L10")
@pytest.mark.parametrize("event", ["broker.daemon", "audit.broker_login", "broker.certificate"])
def test_what_strikes_no_message_is_no_part_of_them(event: str) -> None:
    one = replace(failure(9, is_new=True, name=""), event=event, subclass="x")
    ((status, text),) = texts(day(failures=(one,)))
    assert (status, text.startswith("New today, 9 times: ")) == (Status.LOOK, True)


@pytest.mark.rule("BI-L4")
def test_a_command_can_be_pasted_whatever_the_name() -> None:
    name = "a; rm -rf ~"
    (point, _) = judge(day(failures=(failure(500, is_new=True, name=name),))).points
    assert shlex.split(point.command) == ["brokerd", "queue", "show", name, "--broker", "main"]


def test_dialogs_that_grow_three_nights_in_a_row_are_said() -> None:
    def nights(*counts: float) -> tuple[Gauge, ...]:
        ages = range(len(counts) - 1, -1, -1)
        return tuple(
            gauge("endpoints", count, ago=ago, scope="instance", name="")
            for ago, count in zip(ages, counts, strict=True)
        )

    ((status, text),) = texts(day(nights=nights(100, 100, 130, 160, 200)))
    assert (status, text) == (Status.LOOK, "Open dialogs at east grow: 100 to 200 in 3 nights.")
    assert texts(day(nights=nights(100, 130, 160))) == []
    assert texts(day(nights=nights(100, 130, 125, 160, 200))) == []
    assert texts(day(nights=nights(1000, 1021, 1042, 1063))) == [], "two in a hundred is no leak"


def test_a_disk_that_fills_within_a_week_is_said() -> None:
    def nights(each: float) -> tuple[Gauge, ...]:
        return tuple(
            gauge("disk_free_bytes", 1e9 - (8 - ago) * each, ago=ago, scope="instance", name="")
            for ago in range(8)
        )

    full = day(nights=nights(1e8))
    assert round(disk_days(full)["east"]) == 2
    ((status, text),) = texts(full)
    assert (status, "in 2.0 days" in text) == (Status.ACT, True)
    assert texts(day(nights=nights(1e6))) == []
    assert disk_days(day(nights=nights(0))) == {}


def test_what_was_shut_for_a_time_is_said_with_its_hours() -> None:
    off = (*(gauge("off", 1.0, hour=hour) for hour in (8, 9)), gauge("ready", 0.0))
    ((status, text),) = texts(day(gauges=off))
    assert status is Status.LOOK
    assert "Queue orders at east was switched off for a time, from 08:00 to 10:00" in text
    ((status, text),) = texts(day(gauges=(gauge("ready", 0.0), gauge("full", 1.0))))
    assert (status, "Queue orders at east is full" in text) == (Status.ACT, True)
    store: dict[str, Any] = {"scope": "instance", "name": ""}
    for last, wanted in ((1.0, Status.ACT), (0.0, Status.LOOK)):
        full = gauge("store_full", 1.0, last=last, **store)
        ((status, text),) = texts(day(gauges=(full, gauge("store_bytes", 1.0, **store))))
        assert status is wanted
        assert "The disk of east " in text
        assert "broker main took no message" in text


def test_clocks_that_differ_or_jump_are_said() -> None:
    there: dict[str, Any] = {"scope": "destination", "name": "tcp://west:4022", "broker": ""}
    assert texts(day(gauges=(gauge("clock_ahead_s", 299.0, **there),))) == []
    for ahead in (-1200.0, 1200.0):
        ((status, text),) = texts(day(gauges=(gauge("clock_ahead_s", ahead, **there),)))
        assert status is Status.LOOK
        assert "The clock of tcp://west:4022 differs from that of east by " in text
    own: dict[str, Any] = {"scope": "instance", "name": "", "broker": ""}
    ((status, text),) = texts(day(gauges=(gauge("clock_jump_s", -86_400.0, **own),)))
    assert (status, "has jumped by" in text) == (Status.LOOK, True)


def test_a_certificate_is_said_two_weeks_before_it_expires() -> None:
    def with_days(days: float) -> Data:
        return day(nights=(gauge("own_certificate_days", days, scope="instance", name=""),))

    ((status, text),) = texts(with_days(13.2))
    assert (status, "expires in 13 days" in text) == (Status.ACT, True)
    assert texts(with_days(15)) == []


def test_more_parked_than_the_night_before_is_said() -> None:
    more = day(nights=(gauge("parked", 2.0, ago=1), gauge("parked", 5.0)))
    ((status, text),) = texts(more)
    assert (status, text[:22]) == (Status.LOOK, "3 messages more parked")
    assert texts(day(nights=(gauge("parked", 5.0, ago=1), gauge("parked", 5.0)))) == []


def test_a_night_without_the_queue_counts_as_none_parked_only_if_its_broker_was_there() -> None:
    """A gauge of zero is left out of a line; without a line nothing is known."""
    parked = gauge("parked", 5.0)
    assert texts(day(nights=(parked,))) == []
    of_another = gauge("store_bytes", 1.0, ago=1, instance="west", scope="instance", name="")
    assert texts(day(nights=(of_another, parked))) == []
    of_this = gauge("store_bytes", 1.0, ago=1, scope="instance", name="")
    ((_, text),) = texts(day(nights=(of_this, parked)))
    assert text.startswith("5 messages more parked")


@pytest.mark.rule("BI-L3")
def test_a_segment_set_aside_whole_is_said() -> None:
    ((status, text),) = texts(day(unusable=(SetAside("east-1.jsonl.gz", "damaged"),)))
    assert (status, "east-1.jsonl.gz (damaged)" in text) == (Status.LOOK, True)


def hostile() -> Data:
    activation = Activation(HOSTILE, "main", HOSTILE, midnight(TODAY), 10, 5, 1, 4.0, 4.0, 9.0)
    return day(
        gauges=(gauge("ready", 7.0, name=HOSTILE), gauge("oldest_s", 9.0, name=HOSTILE)),
        counters=(Counter(HOSTILE, "", "destination", HOSTILE, "connects", 0, 3),),
        failures=(failure(5, is_new=True, name=HOSTILE),),
        activation=(activation,),
        spread=((100, 3), (200, 4)),
        nights=(gauge("endpoints_CO", 5.0, instance=HOSTILE), gauge("endpoints", 5.0)),
        unusable=(SetAside(HOSTILE, "damaged"),),
        latency=tuple(latency(hour, 100) for hour in range(24)),
    )


@pytest.mark.rule("BI-L4")
def test_no_name_can_act_as_markup_on_any_part_of_the_page() -> None:
    data = hostile()
    text = page.render(data, judge(data))
    assert text.count("&lt;script&gt;") > 8
    assert "<script" not in text
    assert "\u202e" not in text
    heat = drawings.heat_map({HOSTILE + '" x="': [1.0] * 24}, str)
    assert heat.count("&lt;script&gt;") == 25
    assert '" x="' not in heat
    flows = drawings.flows([(HOSTILE, HOSTILE, 5), ("a", HOSTILE, 1)])
    assert "<script" not in flows
    assert "\u202e" not in flows


@pytest.mark.rule("BI-L4")
@pytest.mark.parametrize("text", ["=cmd|x", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1"])
def test_no_name_can_act_as_a_formula_in_a_spreadsheet(text: str) -> None:
    shown = beside.harmless(text)
    assert isinstance(shown, str)
    assert shown.startswith("'")
    assert shown.isprintable()


@pytest.mark.rule("BI-L4")
def test_csv_quotes_what_it_must() -> None:
    said = beside.csv_of(
        ["name", "count"], [{"name": 'a,"b"', "count": -1}, {"name": "=1+1", "count": 2}]
    )
    assert said == 'name,count\n"a,""b""",-1\n\'=1+1,2\n'


def test_a_table_without_rows_says_what_it_would_have(tmp_path: Path) -> None:
    beside.write_csv(day(), tmp_path)
    heads = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert len(heads) == 9
    assert heads["groups"].startswith("instance,broker,name,group,messages_at_least,")
    assert heads["failures"].endswith("conversation_id,is_new\n")
    boots = heads.pop("boots")
    assert boots.count("\n") == 2, "a day has one boot at least"
    assert all(head.count("\n") == 1 for head in heads.values())


def busy(hour: int) -> Activation:
    at = midnight(TODAY) + hour * HOUR_US
    return Activation("east", "main", "orders", at, HOUR_US, 0, 0, 2.0, 4.0, 9.0)


def test_readers_are_drawn_over_hours_and_within_the_picture() -> None:
    """The middle of an hour may lie far beyond logs of a few minutes."""
    last = midnight(TODAY) + 4 * HOUR_US + 60_000_000
    short = replace(BOOT, first_at=last - 120_000_000, last_at=last)
    texts = {}
    for hours in (1, 2):
        lines = tuple(busy(hour) for hour in (3, 4)[:hours])
        data = day(date="", boots=(short,), activation=lines)
        texts[hours] = page.render(data, judge(data))
    assert "Readers: orders" not in texts[1]
    (figure,) = re.findall(r'<figure [^>]*aria-label="Readers.*?</figure>', texts[2], re.DOTALL)
    ((width, height),) = re.findall(r'viewBox="0 0 (\S+) (\S+)"', figure)
    dots = re.findall(r'<use [^>]*x="(\S+)" y="(\S+)" style="fill: var\(--c\d\); stroke', figure)
    assert len(dots) == 4
    assert all(0 < float(x) < float(width) and 0 < float(y) < float(height) for x, y in dots)


def test_the_last_figure_below_a_curve_ends_with_the_picture() -> None:
    drawn = drawings.spread([(0, 1), (500, 1)], [], lambda _: "868 ms")
    figures = re.findall(r'<text x="(\S+)" y="211\S*" [^>]*text-anchor="(\w+)"', drawn)
    assert [anchor for _, anchor in figures] == ["start", *["middle"] * 4, "end"]
    ((width, _),) = re.findall(r'viewBox="0 0 (\S+) (\S+)"', drawn)
    assert float(figures[-1][0]) == float(width)


def test_one_night_is_no_curve() -> None:
    for nights, is_drawn in ((1, False), (2, True)):
        counts = tuple(gauge("endpoints_CO", 5.0, ago=ago) for ago in range(nights))
        data = day(nights=counts)
        text = page.render(data, judge(data))
        assert ("Dialog endpoints by state" in text) == is_drawn


def test_on_the_first_night_there_is_no_before() -> None:
    first = day(nights=(gauge("store_bytes", 5e6), gauge("endpoints", 7.0)))
    text = page.render(first, judge(first))
    assert "It is the first night that is known" in text
    assert '<td class="n">5 MB</td><td class="n">-</td>' in text
    assert '<td class="n">7</td>\n<td class="n">-</td>' in text
    second = day(nights=(gauge("store_bytes", 4e6, ago=1), gauge("store_bytes", 5e6)))
    text = page.render(second, judge(second))
    assert "the first night that is known" not in text
    assert '<td class="n">5 MB</td><td class="n">4 MB</td>' in text


def test_sizes_have_three_figures() -> None:
    assert [words.size(value) for value in (5, 999.6e9, 1e12)] == ["5 B", "1 TB", "1 TB"]


def test_hours_in_a_row_are_said_together() -> None:
    assert words.hours_of([8, 9, 10, 13]) == "08:00 to 11:00, 13:00 to 14:00"
