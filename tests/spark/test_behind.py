"""From a finding to the dialogs behind it: two clicks, without a script."""

import re
from dataclasses import replace
from typing import Any

import pytest

from spark_jobs.report import page
from spark_jobs.report.behind import SHOWN, behind
from spark_jobs.report.data import Data, Finding, Held
from spark_jobs.report.verdict import judge
from tests.spark.month import midnight
from tests.spark.test_alerts import HOSTILE, TODAY, day, failure, gauge
from tests.spark.test_large import pair

NINE = midnight(TODAY) + 9 * 3_600_000_000


def finding(name: str) -> Finding:
    return Finding("lost", 1, name, "shop", "warehouse", "east", "west", 10, 10, 9, "ended")


def held(name: str) -> Held:
    by = "reader 1, client 0badcafe"
    return Held("west", "second", "orders", "group", NINE, NINE + 5_000_000, by, name)


def failed(name: str, **fields: Any):
    values = {"event": "broker.connection", "conversation_id": name, "broker": "main"} | fields
    return replace(failure(5, is_new=True), **values)


def shown(**fields: Any) -> tuple[Data, str]:
    data = day(**fields)
    return data, page.render(data, judge(data))


@pytest.mark.rule("BI-L54")
def test_a_finding_leads_to_its_dialogs_and_each_of_them_to_its_commands():
    _, text = shown(pairs=(pair(7, lost=1),), findings=(finding("0a-lost"),))
    (point,) = re.findall(r"<li .*?</li>", text, re.DOTALL)
    assert '<a href="#dialogs-books">' in point
    assert '<a href="#books">Was anything lost or doubled?</a>' in point
    (group,) = re.findall(r'<div class="card" id="dialogs-books">.*?\n</div>', text, re.DOTALL)
    assert "lost: 1 message" in group
    for verb in ("show", "timeline"):
        assert f"<code>brokerd dialog {verb} 0a-lost</code>" in group


@pytest.mark.rule("BI-L54")
def test_dialogs_are_those_that_do_not_balance_hold_a_group_or_failed():
    found = behind(
        day(
            findings=(finding("0a"), finding("0a"), finding("0b")),
            held=(held("0c"), held("")),
            failures=(
                failed("0d"),
                failed("0e", event="broker.parking", is_new=False),
                failed("0f", event="broker.activation"),
            ),
        )
    )
    assert {kind: [one.conversation_id for one in dialogs] for kind, dialogs in found.items()} == {
        "books": ["0a", "0b"],
        "queues": ["0c", "0f", "0e"],
        "failures": ["0d", "0f", "0e"],
    }
    assert found["queues"][0].commands[0] == "brokerd dialog show 0c --broker second"


@pytest.mark.rule("BI-L54")
def test_every_link_within_the_page_leads_somewhere():
    data, text = shown(
        pairs=(pair(7, lost=1),),
        findings=(finding("0a"),),
        failures=(failed("0d"),),
        gauges=(gauge("ready", 7.0), gauge("oldest_s", 9.0)),
        nights=(
            gauge("disk_free_bytes", 1.0),
            *(gauge("disk_free_bytes", 9e9, ago=one) for one in range(1, 5)),
        ),
    )
    links = set(re.findall(r'href="#([^"]*)"', text))
    assert links <= set(re.findall(r'id="([^"]*)"', text))
    assert {point.about for point in judge(data).points} >= {"books", "queues", "failures", "soon"}
    assert links >= {"books", "queues", "failures", "soon", "dialogs-books", "dialogs-failures"}
    for name, title in page.SECTIONS.items():
        if name != "levels":  # none is promised here
            assert f'<section id="{name}">\n<h2>{title}</h2>' in text


@pytest.mark.rule("BI-L54")
def test_a_list_of_dialogs_is_short_and_its_names_are_no_markup():
    many = tuple(failed(f"{HOSTILE}{number}", fingerprint=HOSTILE) for number in range(90))
    data, text = shown(failures=many)
    assert len(behind(data)["failures"]) == SHOWN
    assert "<script" not in text
    assert "\u202e" not in text


def test_a_day_without_such_dialogs_has_no_list_of_them():
    assert 'id="dialogs"' not in shown()[1]
