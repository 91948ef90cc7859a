"""`brokerd report`: what is told before Java is looked for, and what two reports differ in."""

import json
from pathlib import Path

import pytest

from brokerd.cli.main import main
from brokerd.reports import report

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--date", "2026-11-31"], "--date 2026-11-31 is no day"),
        (["--date", "20261118"], "--date 20261118 is no day"),
        (["--date", "2026-11-18", "--to", "tomorrow"], "--to tomorrow is no day"),
        (["--date", "2026-11-18", "--to", "2026-11-17"], "--to 2026-11-17 is before --date"),
        (["--date", "last", "--to", "2026-11-17"], "--to needs --date"),
        (["--landing", "in", "--to", "2026-11-17"], "--to needs --date"),
        (["--forget-removed"], "--forget-removed is about days"),
        (["--keep-days", "400"], "--keep-days is about days"),
        (["--publish", "s3://bucket/reports"], "--publish needs a URL, and --date"),
        (["--date", "last", "--publish", "/srv/www"], "--publish needs a URL"),
        (["--date", "last", "--keep-days", "34"], "34 is not in the range x>=35"),
    ],
)
def test_wrong_words_are_no_verdict_and_told_before_java_is_looked_for(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(report, "find_java", lambda **_: pytest.fail("it is looked for"))
    assert main(["report", "run", "--output", "out", *words]) == 64
    assert said in capsys.readouterr().err


def test_of_reports_that_are_alike_it_is_said_that_nothing_differs(
    tmp_path: Path, capsys: Capture
) -> None:
    lists = dict.fromkeys(("latency", "queues", "failures", "nights"), ())
    summary = {"v": 2, "date": "2026-11-18", "totals": {"sent": 5}, **lists}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert main(["report", "compare", str(tmp_path), str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"nothing differs between {tmp_path} and {tmp_path}\n"


@pytest.mark.rule("BI-L30")
@pytest.mark.parametrize("option", ["--output", "--input"])
def test_a_url_is_refused_where_a_directory_is_meant(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"--output": "out", option: "s3://bucket/reports"}
    assert main(["report", "run", *(word for pair in words.items() for word in pair)]) == 64
    assert "s3://bucket/reports is a URL" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()], "no directory called s3: was made"
