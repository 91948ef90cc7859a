"""The file of the master key is made whole, for its owner only, and read only if it is as made."""

import os
import stat
from pathlib import Path
from random import Random

import pytest

from brokerd.errors import NoMasterKey, UnsafeFile
from brokerd.storage.files.key_file import NAME, make_key, read_keys
from brokerd.storage.files.private_files import survey


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / NAME


@pytest.mark.rule("SX-6")
def test_a_key_is_read_as_it_was_made_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        key = make_key(path, Random(1).randbytes)
    finally:
        os.umask(before)
    assert read_keys(path) == (key,)
    assert len(key) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == [NAME]


@pytest.mark.rule("SX-6")
def test_what_a_crash_has_left_is_no_key(path: Path) -> None:
    path.with_name(f"{NAME}.new").write_bytes(b"brokerd-master-key-1 00")
    assert read_keys(path) is None
    assert read_keys(path) is None
    make_key(path, Random(1).randbytes)
    assert [one.name for one in path.parent.iterdir()] == [NAME]


@pytest.mark.rule("SX-6")
@pytest.mark.parametrize("text", [b"", b"brokerd-master-key-1 00\n", b"x" * 86, b"\xff" * 86])
def test_another_file_is_not_taken_for_a_key(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(NoMasterKey, match=r"master\.key"):
        read_keys(path)


@pytest.mark.rule("SX-6", "SX-24")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused(path: Path, mode: int) -> None:
    make_key(path, Random(1).randbytes)
    path.chmod(mode)
    with pytest.raises(UnsafeFile, match="others may"):
        read_keys(path)
    assert [one.path for one in survey([path.parent]) if one.is_refused] == [str(path)]


@pytest.mark.rule("SX-6", "SX-24")
def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    make_key(elsewhere, Random(1).randbytes)
    path.symlink_to(elsewhere)
    with pytest.raises(UnsafeFile, match="symbolic link"):
        read_keys(path)
    path.unlink()
    path.hardlink_to(elsewhere)
    with pytest.raises(UnsafeFile, match="hard link"):
        read_keys(path)
