"""Histories keep what they are told, in files too."""

from pathlib import Path

import pytest

from brokerd.testing.history import History, HistoryUnusable, Kind, read_events, show


def small() -> History:
    times = iter([0.5, 1.25])
    history = History(lambda: next(times), node="east", boot_id="b1")
    history.add("send", Kind.INVOKE, client="a", tx=1, uid="m0", dialog="d", side="initiator")
    history.add("commit", Kind.OK, client="a", tx=1, token=7, node="sdk")
    return history


@pytest.mark.rule("CHK-1")
def test_one_json_line_an_event_without_empty_fields() -> None:
    first, second = small()
    assert show(first) == (
        '{"i":0,"t":500000,"op":"send","kind":"invoke","node":"east","boot_id":"b1",'
        '"client":"a","tx":1,"dialog":"d","side":"initiator","uid":"m0"}'
    )
    assert (second.i, second.t, second.node, second.token) == (1, 1_250_000, "sdk", 7)


@pytest.mark.rule("CHK-1")
def test_files_read_back_without_a_torn_last_line(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    history = small()
    history.write(path)
    assert read_events(path) == list(history.events)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert read_events(path) == list(history.events)[:1]


@pytest.mark.rule("CHK-1")
@pytest.mark.parametrize(
    "text",
    [
        "no json\n",
        '{"i":0,"t":0,"op":"send"}\n',
        '{"i":0,"t":0,"op":"send","kind":"maybe"}\n',
        '{"i":0,"t":0,"op":"send","kind":"ok","colour":1}\n',
        '{"i":1,"t":0,"op":"send","kind":"ok"}\n{"i":1,"t":0,"op":"send","kind":"ok"}\n',
    ],
)
def test_bad_files_are_unusable(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(text)
    with pytest.raises(HistoryUnusable, match=r"h\.jsonl"):
        read_events(path)


@pytest.mark.rule("CHK-1")
def test_an_absent_file_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(HistoryUnusable):
        read_events(tmp_path / "absent")
