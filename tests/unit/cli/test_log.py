"""`brokerd log tail`: which lines of which files it prints, across rotations."""

import gzip
import json
import os
from pathlib import Path

import pytest

from brokerd.cli.main import main
from brokerd.telemetry.log_reader import LogReader, rotated

Capture = pytest.CaptureFixture[str]
DIALOG = "01234567-89ab-cdef-0123-456789abcdef"


def line(number: int, **fields: object) -> str:
    base = {"time": f"2026-01-31T09:00:{number:02}.000000Z", "severity": "info"}
    return json.dumps({**base, "event": "broker.daemon", "number": number, **fields}) + "\n"


def tail(path: Path, capsys: Capture, *words: str) -> list[int]:
    """The numbers of the lines that are printed."""
    assert main(["log", "tail", "--file", str(path), "--json", *words]) == 0
    return [json.loads(one)["number"] for one in capsys.readouterr().out.splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of six lines in three files: one compressed, one rotated, one in use."""
    path = tmp_path / "brokerd.log"
    of_dialog = {"conversation_id": DIALOG, "queue": "q"}
    with gzip.open(tmp_path / "brokerd.log.2.gz", "wt") as file:
        file.write(line(1) + line(2, **of_dialog))
    (tmp_path / "brokerd.log.1").write_text(line(3, event="broker.queue_status") + line(4))
    path.write_text(line(5, **of_dialog) + line(6))
    (tmp_path / "brokerd.log.old").write_text("not a rotation")
    return path


@pytest.mark.rule("MAN-23")
def test_the_latest_lines_come_from_the_file_itself(log: Path, capsys: Capture) -> None:
    assert tail(log, capsys) == [5, 6]
    assert tail(log, capsys, "-n", "1") == [6]


@pytest.mark.rule("MAN-23")
def test_the_lines_of_a_dialog_come_from_all_files(log: Path, capsys: Capture) -> None:
    assert tail(log, capsys, "--dialog", DIALOG) == [2, 5]
    assert tail(log, capsys, "--queue", "q", "-n", "1") == [5]
    assert tail(log, capsys, "--event", "queue_status") == [3]
    assert tail(log, capsys, "--since", "2026-01-31T09:00:04") == [4, 5, 6]
    assert tail(log, capsys, "--since", "2026-01-31T10:00:04+01:00") == [4, 5, 6]


@pytest.mark.rule("MAN-23")
def test_rotated_files_are_read_in_their_order(tmp_path: Path) -> None:
    names = ["l-20260101", "l.2.gz", "l.10", "l.1", "l-20260102.gz"]
    for name in names:
        (tmp_path / name).touch()
    assert [one.name for one in rotated(tmp_path / "l")] == [
        *("l.10", "l.2.gz", "l.1"),
        *("l-20260101", "l-20260102.gz"),
    ]


@pytest.mark.rule("MAN-23")
def test_no_line_is_lost_or_doubled_when_the_file_is_rotated(log: Path) -> None:
    reader = LogReader(log)
    writer = log.open("a")
    assert [one["number"] for one in reader.lines()] == [5, 6]
    writer.write(line(7)[:20])
    writer.flush()
    assert list(reader.lines()) == []  # the writer is in the middle of a line
    writer.write(line(7)[20:])
    writer.flush()
    os.rename(log, f"{log}.1")
    writer.write(line(8))  # the daemon has not opened the file anew yet
    writer.flush()
    assert [one["number"] for one in reader.lines()] == [7, 8]
    writer.write(line(9))
    writer.close()
    log.write_text(line(10))
    assert [one["number"] for one in reader.lines()] == [9, 10]
    log.write_text("")  # cut instead of moved
    assert list(reader.lines()) == []
    log.write_text(line(11))
    assert [one["number"] for one in reader.lines()] == [11]
    reader.close()


@pytest.mark.rule("MAN-23")
def test_lines_that_are_no_json_are_counted(log: Path, capsys: Capture) -> None:
    log.write_text("Traceback\n" + line(7))
    assert main(["log", "tail", "--file", str(log)]) == 0
    said = capsys.readouterr()
    assert "number=7" in said.out
    assert "1 line of the log cannot be read" in said.err


@pytest.mark.rule("MAN-23")
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--event", "nothing"), "queue_status"),
        (("--since", "yesterday"), "10min"),
    ],
)
def test_a_wrong_filter_is_refused(
    log: Path, capsys: Capture, words: tuple[str, ...], hint: str
) -> None:
    assert main(["log", "tail", "--file", str(log), *words]) == 64
    assert hint in capsys.readouterr().err


@pytest.mark.rule("MAN-23")
def test_a_log_that_goes_to_standard_error_cannot_be_read(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["log", "tail"]) == 64
    assert "journalctl" in capsys.readouterr().err


@pytest.mark.rule("MAN-23")
def test_a_line_that_is_written_just_before_the_rotation_is_not_lost(log: Path) -> None:
    writer = log.open("a")

    class Racing(LogReader):
        def _has_moved(self) -> bool:
            if not writer.closed:  # the file has been read to its end
                writer.write(line(7))
                writer.close()
                os.rename(log, f"{log}.1")
                log.write_text(line(8))
            return super()._has_moved()

    reader = Racing(log)
    assert [one["number"] for one in reader.lines()] == [5, 6, 7, 8]
    reader.close()
