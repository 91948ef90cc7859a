"""Where a client may have a backup written: no way out of the named directories (SX-22)."""

import os
import stat
from pathlib import Path

import pytest

from brokerd.config.loading import load
from brokerd.errors import InvalidArgument
from brokerd.storage.files.backup_place import check_place


@pytest.fixture
def named(tmp_path: Path) -> Path:
    directory = tmp_path / "named"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir(mode=0o700)
    return directory


def refusal(target: Path, *directories: Path) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as refused:
        check_place(target, directories)
    return refused.value


@pytest.mark.rule("SX-22")
def test_a_file_below_a_named_directory_may_be_written(named: Path, outside: Path) -> None:
    (named / "a" / "b").mkdir(parents=True, mode=0o700)
    os.chmod(named / "a", 0o755)
    for target in (named / "x.db", named / "a" / "x.db", named / "a" / "b" / "x.db"):
        check_place(target, [outside, named])


@pytest.mark.rule("SX-22")
def test_the_named_directory_itself_may_be_a_link(named: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(named)
    check_place(tmp_path / "link" / "x.db", [tmp_path / "link"])


@pytest.mark.rule("SX-22")
@pytest.mark.parametrize(
    "way", ["named/../outside/x.db", "outside/x.db", "named", "named.db", "named/./../x.db"]
)
def test_there_is_no_way_past_the_named_directory(way: str, named: Path, tmp_path: Path) -> None:
    found = refusal(Path(f"{tmp_path}/{way}"), named)
    assert "store.backup_dirs" in found.message
    assert str(named) in found.hint
    assert "store.backup_dirs" in found.hint


@pytest.mark.rule("SX-22")
def test_a_relative_path_is_refused(named: Path) -> None:
    assert "absolute path" in refusal(Path("x.db"), named).message


@pytest.mark.rule("SX-22")
def test_no_link_below_the_named_directory_is_followed(named: Path, outside: Path) -> None:
    (outside / "deeper").mkdir(mode=0o700)
    (named / "link").symlink_to(outside)
    (named / "file").write_text("")
    for way in ("link/x.db", "link/deeper/x.db", "file/x.db"):
        assert "is a link, or no directory" in refusal(named / way, named).message
    assert "cannot be used: No such file" in refusal(named / "none" / "x.db", named).message


@pytest.mark.rule("SX-22")
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_no_directory_on_the_way_may_be_written_by_others(mode: int, named: Path) -> None:
    below = named / "below"
    below.mkdir()
    os.chmod(below, mode)
    found = refusal(below / "x.db", named)
    assert f"{below} has mode {mode:04o}" in found.message
    if mode & stat.S_ISVTX:
        assert "chmod" not in found.hint
        assert "name it in store.backup_dirs" in found.hint
    else:
        assert found.hint == f"chmod go-w {below}"
    os.chmod(below, 0o755)
    check_place(below / "x.db", [named])
    os.chmod(named, mode)
    assert f"{named} has mode {mode:04o}" in refusal(below / "x.db", named).message


@pytest.mark.rule("SX-22")
def test_no_directory_on_the_way_may_belong_to_others(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() == 0:
        os.chown(named, 54_321, -1)
    else:  # nobody else can give a directory away
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert f"{named} belongs to user" in refusal(named / "x.db", named).message


@pytest.mark.rule("SX-22")
def test_nobody_is_told_to_change_the_mode_of_a_directory_that_is_not_the_daemons(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chmod(named, 0o777)
    own = os.stat(named).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    if own != 0:  # a directory of root's may be used
        fields = os.stat(named)
        as_root = os.stat_result((*fields[:4], 0, *fields[5:]))
        monkeypatch.setattr(os, "fstat", lambda _: as_root)
    found = refusal(named / "x.db", named)
    assert "has mode 0777" in found.message
    assert "chmod" not in found.hint
    assert "name it in store.backup_dirs" in found.hint


@pytest.mark.rule("SX-22")
def test_the_settings_name_the_directories(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text('[instance]\ndata_dir = "d"\n')
    assert load(path, environ={}).settings.backup_dirs == (tmp_path / "d" / "backups",)
    path.write_text('[store]\nbackup_dirs = ["b", "/srv/../mnt/c"]\n')
    assert load(path, environ={}).settings.backup_dirs == (tmp_path / "b", Path("/mnt/c"))
