"""Recorded traffic as a schedule: what was committed, when, and what a bad file is told."""

from pathlib import Path

import msgspec
import pytest

from brokerd.bench.schedule import BadTraffic, Schedule, Sending, read_traffic
from brokerd.client.file_recorder import FileRecorder
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


def test_a_line_without_its_end_is_what_a_killed_program_leaves(tmp_path: Path) -> None:
    assert read(tmp_path, send(1, 1) + commit(2, 1) + '{"t":3,"op":"se').messages == 1


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
