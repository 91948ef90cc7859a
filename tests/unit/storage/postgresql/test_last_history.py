"""The file that notes in which history of its server a daemon was last."""

import os
from pathlib import Path

import pytest

from brokerd.errors import UnsafeFile
from brokerd.storage.postgresql.last_history import History, note_history, read_history

FIRST = History("7345678901234567890", "00000001")
NINTH = FIRST._replace(timeline="00000009")
TENTH = FIRST._replace(timeline="0000000A")


@pytest.mark.rule("REL-59")
def test_what_is_noted_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "data" / "server-history"
    assert read_history(file) is None
    note_history(file, FIRST)
    assert read_history(file) == FIRST
    (tmp_path / "data" / "server-history.new").write_text("what a kill has left")
    note_history(file, TENTH)
    assert read_history(file) == TENTH
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in file.parent.iterdir()] == ["server-history"]


@pytest.mark.rule("REL-59")
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"system": 1, "timeline": "00000001"}'])
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "server-history"
    file.write_bytes(content)
    assert read_history(file) is None


@pytest.mark.rule("REL-59", "SX-24")
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(UnsafeFile, match="cannot be read: Not a directory"):
        read_history(tmp_path / "file" / "server-history")


@pytest.mark.rule("REL-59", "SX-24")
def test_a_link_is_refused(tmp_path: Path) -> None:
    note_history(tmp_path / "elsewhere", FIRST)
    os.symlink(tmp_path / "elsewhere", tmp_path / "server-history")
    with pytest.raises(UnsafeFile, match="symbolic link"):
        read_history(tmp_path / "server-history")


@pytest.mark.rule("REL-59")
@pytest.mark.parametrize(
    ("one", "other", "is_older"),
    [
        (FIRST, NINTH, True),
        (NINTH, TENTH, True),
        (TENTH, NINTH, False),
        (FIRST, FIRST, False),
        (FIRST, TENTH._replace(system="1"), False),
    ],
)
def test_a_history_is_older_on_the_same_system_alone(
    one: History, other: History, is_older: bool
) -> None:
    assert one.is_older_than(other) is is_older
