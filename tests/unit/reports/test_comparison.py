"""Two reports beside each other, by their summaries."""

import json
from pathlib import Path

import pytest

from brokerd.cli.main import main
from brokerd.reports.comparison import NoSummary, compare


def summary(directory: Path, **fields: object) -> Path:
    """A report of which only the summary is there."""
    latency = {"span": "all", "name": "orders", "broker": "main", "instance": "west"}
    said = {
        "v": 2,
        "date": "2026-11-18",
        "totals": {"sent": 100, "received": 100},
        "latency": [
            {**latency, "measure": "wait_us", "p95_us": 1000},
            {**latency, "measure": "wait_us", "span": "hour", "p95_us": 5},
        ],
        "queues": [{"name": "orders", "instance": "west", "waiting": 0, "parked": 0}],
        "failures": [],
        "nights": [],
    }
    directory.mkdir()
    (directory / "summary.json").write_text(json.dumps(said | fields))
    return directory


def test_the_largest_change_comes_first(tmp_path: Path) -> None:
    one = summary(tmp_path / "one")
    queues = [{"name": "orders", "instance": "west", "waiting": 7, "parked": 0}]
    other = summary(tmp_path / "other", totals={"sent": 110, "received": 100}, queues=queues)
    found = compare(one, other)
    assert [(row.what, row.where, row.one, row.other) for row in found] == [
        ("messages waiting at the end", "orders at west", 0, 7),
        ("messages sent", "all", 100, 110),
    ]
    assert [row.change for row in found] == [None, 0.1]


def test_to_double_and_to_halve_weigh_the_same_and_are_told_apart(tmp_path: Path) -> None:
    one = summary(tmp_path / "one", totals={"sent": 100, "received": 100, "doubled": 5})
    other = summary(tmp_path / "other", totals={"sent": 200, "received": 50, "doubled": 0})
    found = compare(one, other)
    assert [(row.what, row.change, row.weight) for row in found] == [
        ("messages doubled", -1.0, 1.0),
        ("messages received", -0.5, 0.5),
        ("messages sent", 1.0, 0.5),
    ]


def test_what_only_one_has_is_shown(tmp_path: Path) -> None:
    failure = {"name": "orders", "event": "broker.parking", "fingerprint": "N", "times": 3}
    one, other = summary(tmp_path / "one"), summary(tmp_path / "other", failures=[failure])
    assert [(row.where, row.one, row.other) for row in compare(one, other)] == [
        ("orders: N", None, 3)
    ]


def test_the_same_report_differs_in_nothing(tmp_path: Path) -> None:
    one = summary(tmp_path / "one")
    assert compare(one, one / "summary.json") == []


@pytest.mark.parametrize("text", ["", "{", '{"v": 1}', "[1]"])
def test_what_is_no_summary_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(NoSummary, match=r"summary\.json"):
        compare(tmp_path, tmp_path)


def test_the_command_prints_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = summary(tmp_path / "2026-11-17")
    other = summary(tmp_path / "2026-11-18", totals={"sent": 110, "received": 100})
    assert main(["report", "compare", str(one), str(other)]) == 0
    printed = capsys.readouterr().out
    assert "2026-11-17" in printed
    assert "messages sent" in printed
    assert "+10%" in printed
    assert main(["report", "compare", "--json", str(one), str(other)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["other"] == 110
