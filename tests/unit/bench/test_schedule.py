"""Recorded traffic as a schedule: what was committed, when, and what a bad file is told."""

from pathlib import Path

import msgspec
import pytest

from brokerd.bench.schedule import BadTraffic, Schedule, Sending, TrafficUnreadable, read_traffic
from brokerd.client.file_recorder import FileRecorder
from brokerd.errors import UsageError
from brokerd.process.exit_statuses import IO_ERROR, exit_status
from brokerd.testing.history import read_events
from tests.unit.client.scripted import MovedClock


def line(t: int, op: str, kind: str = "invoke", **more: object) -> str:
    fields = {"t": t, "op": op, "kind": kind, "client": "c", **more}
    return msgspec.json.encode(fields).decode() + "\n"


def send(t: int, tx: int, dialog: str = "d", size: int = 10) -> str:
    return line(t, "send", tx=tx, dialog=dialog, size=size)


def commit(t: int, tx: int, kind: str = "invoke") -> str:
    return line(t, "commit", kind, tx=tx)


def read(tmp_path: Path, *texts: str) -> Schedule:
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_text(text)
    return read_traffic(paths)


def test_the_sends_of_a_transaction_go_together_when_it_asked_to_commit(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '{"version":1}\n'
        + send(1_000_000, 1)
        + commit(1_100_000, 1)
        + send(2_000_000, 2, "e", 20)
        + send(2_500_000, 2, "d", 0)
        + commit(3_100_000, 2)
        + commit(3_200_000, 2, "ok"),
    )
    assert found.sendings == [Sending(0.0, 0, ((0, 10),)), Sending(2.0, 0, ((1, 20), (0, 0)))]
    assert (found.clients, found.dialogs, found.messages, found.bytes) == (1, 2, 3, 30)
    assert (found.seconds, found.longest_pause, found.left_out) == (2.0, 2.0, 0)


def test_what_was_not_committed_is_left_out_and_counted(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        send(1, 1)
        + line(2, "rollback", "ok", tx=1)
        + send(3, 2)
        + commit(4, 2)
        + commit(5, 2, "fail")
        + send(6, 3)
        + commit(7, 3)
        + commit(8, 3, "info")  # nobody can tell: it may have been
        + send(9, 4, "never"),
    )
    assert found.sendings == [Sending(0.0, 0, ((0, 10),))]
    assert (found.left_out, found.dialogs) == (3, 1)


def test_what_a_savepoint_undid_was_not_sent(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        send(1, 1)
        + line(2, "savepoint", tx=1, savepoint=1)
        + send(3, 1, size=99)
        + line(4, "rollback_to", tx=1, savepoint=1)
        + send(5, 1, size=30)
        + line(6, "rollback_to", "ok", tx=1, savepoint=1)
        + commit(7, 1),
    )
    assert found.sendings[0].sends == ((0, 10), (0, 30))
    assert found.left_out == 1


def test_files_of_several_processes_are_merged_by_time(tmp_path: Path) -> None:
    one = send(10, 1) + commit(20, 1) + send(50, 2) + commit(60, 2)
    other = (send(30, 1, "x") + commit(40, 1)).replace('"c"', '"other"')
    found = read(tmp_path, one, other)
    assert [each.client for each in found.sendings] == [0, 1, 0]
    assert (found.clients, found.dialogs) == (2, 2)


def test_a_file_written_by_hand_needs_no_transactions(tmp_path: Path) -> None:
    text = '{"t":5,"op":"send","dialog":"a","size":1}\n{"t":9,"op":"send","dialog":"a","size":2}\n'
    assert [one.sends for one in read(tmp_path, text).sendings] == [((0, 1),), ((0, 2),)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (send(1, 1) + "{oops\n", r"0\.jsonl, line 2: "),
        ('{"t":1,"op":"send","dialog":"d"}\n', "line 1: a send without its size"),
        ('{"t":1,"op":"send","size":1}\n', "line 1: a send without its dialog"),
        ('{"op":"send"}\n', "line 1: .*`t`"),
        (send(9, 1) + send(8, 2), "line 2: its time 8 is before"),
        (send(1, 1, size=-1), r"line 1: .*size"),
        (send(1, 1, size=(16 << 20) + 1), r"line 1: .*<= 16777216.*size"),
        (send(1, 1) + commit(2, 1) + '{"t":3,"op":7}', r"line 3: .*op"),
        ('{"version":7}\n', "version 7"),
        (send(1, 1) + line(2, "rollback", "ok", tx=1), "nothing to play"),
        ("", "nothing to play"),
    ],
)
def test_a_bad_file_is_told_where_and_what_to_do(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadTraffic, match=told) as found:
        read(tmp_path, text)
    assert found.value.hint


def test_a_line_without_its_end_is_what_a_killed_program_leaves_and_is_told(tmp_path: Path) -> None:
    whole = read(tmp_path, send(1, 1) + commit(2, 1))
    assert not whole.lacks
    torn = read(tmp_path, send(1, 1) + commit(2, 1) + '{"t":3,"op":"se')
    assert torn.messages == 1
    (told,) = torn.lacks
    assert "0.jsonl: its last line is not complete and was left out" in told


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((0, 1, 2), None),
        ((17, 18, 19), "17 of its events are missing, the first before line 1;"),
        ((0, 2, 1), None),  # of several files, sorted by time
        ((0, 3, 5), "3 of its events are missing, the first before line 2;"),
    ],
)
def test_events_that_are_missing_are_told(
    tmp_path: Path, numbers: tuple[int, ...], told: str | None
) -> None:
    sends = [line(t, "send", dialog="d", size=1, i=at) for t, at in enumerate(numbers)]
    found = read(tmp_path, "".join(sends))
    assert found.messages == 3
    assert [told is not None and told in one for one in found.lacks] == [True] * bool(told)


def test_a_file_is_named_once(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(send(1, 1) + commit(2, 1))
    with pytest.raises(UsageError, match=r"a\.jsonl is named twice"):
        read_traffic([file, tmp_path / "." / "a.jsonl"])


def test_a_file_that_is_not_there_is_no_bad_one(tmp_path: Path) -> None:
    with pytest.raises(TrafficUnreadable, match="cannot be read") as found:
        read_traffic([tmp_path / "none"])
    assert exit_status(found.value) == IO_ERROR


def test_a_recording_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    with FileRecorder(path, clock=MovedClock()) as recorder:
        recorder.event(op="begin_dialog", kind="invoke")
    there = path.read_bytes()
    with pytest.raises(FileExistsError):
        FileRecorder(path)
    assert path.read_bytes() == there


def test_a_last_line_that_is_whole_counts_though_its_end_is_missing(tmp_path: Path) -> None:
    text = '{"t":5,"op":"send","dialog":"a","size":1}\n{"t":9,"op":"send","dialog":"a","size":2}'
    assert [one.sends for one in read(tmp_path, text).sendings] == [((0, 1),), ((0, 2),)]


def test_what_a_client_records_can_be_played_and_is_a_history(tmp_path: Path) -> None:
    clock, path = MovedClock(), tmp_path / "recorded.jsonl"
    about = {"client": b"\x01" * 16, "tx": 1}
    with FileRecorder(path, clock=clock) as recorder:
        recorder.event(op="begin_dialog", kind="invoke", handle=b"\x02" * 16, **about)
        recorder.event(
            op="send", kind="invoke", handle=b"\x02" * 16, message_type="T", body=b"xyz", **about
        )
        recorder.event(
            op="send", kind="invoke", handle=b"\x02" * 16, message_type="T", body=None, **about
        )
        recorder.event(op="commit", kind="invoke", **about)
        recorder.event(op="commit", kind="ok", token=0, **about)
    assert read_traffic([path]).sendings == [Sending(0.0, 0, ((0, 3), (0, 0)))]
    events = read_events(path)
    assert [(one.i, one.op, one.size) for one in events[1:3]] == [(1, "send", 3), (2, "send", 0)]
    assert b"xyz" not in path.read_bytes()
