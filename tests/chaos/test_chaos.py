"""Real traffic under faults, the short variant of `make chaos`: one run of each form."""

from itertools import islice, pairwise
from pathlib import Path

import pytest
import uvloop

from tests.chaos.run import Options, run
from tests.chaos.schedule import CREDENTIALS, Form, Kind, faults
from tests.chaos.stream import Ends, Stream, make_stream

FAULTS = 9


@pytest.mark.rule("REL-1", "REL-9", "REL-14", "REL-21", "DLG-T17", "DLP-57", "FWD-2", "ACT-33")
@pytest.mark.parametrize("form", Form)
def test_what_was_sent_arrives_once_and_leaves_nothing(tmp_path: Path, form: Form) -> None:
    said: list[str] = []
    options = Options(form=form, seed=1, seconds=7.0, haste=8.0, rate=25.0, faults=FAULTS)
    report = uvloop.run(run(tmp_path / "x", options, said.append))
    assert not report.problems, "\n".join([*report.problems, *said])
    assert report.faults
    assert report.messages > 100
    assert report.replies > 20


@pytest.mark.rule("REL-1", "REL-9", "REL-54", "REL-57")
@pytest.mark.usefixtures("all_postgresql_servers")  # skipped where there is none
def test_daemons_with_stores_on_a_server_do_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    only = (Kind.KILL, Kind.RESTART, Kind.PAUSE)
    options = Options(
        seed=1, seconds=7.0, haste=8.0, rate=25.0, faults=6, only=only, on_server=True
    )
    report = uvloop.run(run(tmp_path / "x", options, said.append))
    assert not report.problems, "\n".join([*report.problems, *said])
    assert report.faults
    assert report.messages > 50


@pytest.mark.rule("SEC-9", "SEC-64", "SEC-66", "SEC-4", "SEC-8", "SX-6")
def test_rotation_and_revocation_refuse_and_admit_the_right_ones(tmp_path: Path) -> None:
    said: list[str] = []
    only = tuple(sorted(CREDENTIALS))
    options = Options(seed=3, seconds=12.0, haste=4.0, rate=25.0, faults=8, only=only)
    report = uvloop.run(run(tmp_path / "x", options, said.append))
    assert not report.problems, "\n".join([*report.problems, *said])
    assert Kind.ROTATE in report.faults, said
    assert Kind.REVOKE in report.faults, said


def test_the_same_seed_draws_the_same_stream_and_faults(tmp_path: Path) -> None:
    one, same = (make_stream(tmp_path / name, seed=3, messages=2000) for name in "ab")
    other = make_stream(tmp_path / "c", seed=4, messages=2000)
    assert contents(one) == contents(same) != contents(other)
    assert {dialog.ends for dialog in one.dialogs} == set(Ends)
    for form in Form:
        first, second = (list(islice(faults(3, form), 60)) for _ in range(2))
        assert first == second != list(islice(faults(4, form), 60))
        assert {fault.kind for fault in first} == set(Kind)
        assert all(fault.at > 0 for fault in first)


def contents(stream: Stream) -> list[tuple[int, int, bytes]]:
    return [(entry.dialog, entry.number, stream.content(entry)) for entry in stream]


def test_a_stream_has_each_message_of_each_dialog(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, seed=1, messages=1000)
    numbers: dict[int, list[int]] = {}
    for entry in stream:
        numbers.setdefault(entry.dialog, []).append(entry.number)
    for at, dialog in enumerate(stream.dialogs):
        assert numbers[at] == list(range(dialog.messages))
        answered = [number for number in numbers[at] if dialog.is_answered(number)]
        assert len(answered) == dialog.replies
        assert all(later - before <= 5 for before, later in pairwise(answered))
