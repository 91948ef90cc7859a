"""Shipping: at least once, whole files, and nothing changes when it is done twice."""

from pathlib import Path
from typing import BinaryIO, cast

import pytest

from brokerd.admin.shipping import LandingRefused, LocalLanding, RemoteLanding, landing_at, ship
from brokerd.cli.main import main
from tests.unit.test_metrics import DAY, QUEUE_ROW, HandClock, make


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three sealed segments of two days, and one that is still written."""
    clock = HandClock()
    log = make(tmp_path / "metrics", clock)
    for hours in (0, 1, 2, 3):
        clock.now = hours * 3600.0
        log.write_interval([QUEUE_ROW])
        if hours < 3:
            log.seal()
    return tmp_path / "metrics"


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def sealed_files(source: Path) -> dict[str, bytes]:
    return {name: body for name, body in files(source).items() if not name.endswith(".open")}


def test_all_that_is_sealed_is_carried_and_nothing_else(source: Path, tmp_path: Path) -> None:
    done = ship(source, LocalLanding(tmp_path / "landing"))
    assert (done.shipped, done.already, done.damaged) == (3, 0, [])
    assert files(tmp_path / "landing") == sealed_files(source)
    assert {name.split("/")[0] for name in sealed_files(source)} == {DAY, "2023-11-15"}


def test_shipping_twice_changes_nothing(source: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    ship(source, LocalLanding(landing))
    before = {path: path.stat().st_mtime_ns for path in landing.rglob("*")}
    done = ship(source, LocalLanding(landing))
    assert (done.shipped, done.already) == (0, 3)
    assert {path: path.stat().st_mtime_ns for path in landing.rglob("*")} == before


@pytest.mark.parametrize("step", range(6))
def test_a_shipment_that_is_cut_off_is_resumed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    landing, real, renames = tmp_path / "landing", Path.replace, 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames > step:
            raise OSError("cut off")
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(LandingRefused):
        ship(source, LocalLanding(landing), remove=True)
    wanted = sealed_files(source) | {
        name: body for name, body in files(landing).items() if not name.endswith(".part")
    }
    for name in files(landing):  # whoever sees a manifest sees the whole segment it is of
        if name.endswith(".manifest"):
            assert name.replace(".manifest", ".jsonl.gz") in files(landing)
    monkeypatch.undo()
    ship(source, LocalLanding(landing), remove=True)
    assert files(landing) == wanted
    assert len(wanted) == 6
    assert not sealed_files(source)


def test_a_segment_that_is_not_its_manifests_stays_and_is_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (damaged, *_) = sorted(source.rglob("*.jsonl.gz"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    landing = tmp_path / "landing"
    assert main(["ship", str(landing), "--from", str(source), "--remove"]) == 1
    printed = capsys.readouterr()
    assert f"not shipped: {damaged}" in printed.err
    assert "2 segments" in printed.out
    assert damaged.exists()
    assert not any(damaged.stem in name for name in files(landing))


def test_one_that_is_damaged_at_the_landing_is_shipped_again(source: Path, tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    ship(source, LocalLanding(landing))
    next(landing.rglob("*.jsonl.gz")).write_bytes(b"")
    assert ship(source, LocalLanding(landing)).shipped == 1
    assert files(landing) == sealed_files(source)


def test_a_landing_that_cannot_be_written_is_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "landing").write_text("a file is in the way")
    assert main(["ship", str(tmp_path / "landing"), "--from", str(source)]) == 74
    assert "after 0 segments" in capsys.readouterr().err


class Bucket:
    """A file system with the calls of `fsspec`, in a directory of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def cat_file(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def makedirs(self, path: str, exist_ok: bool) -> None:
        (self._root / path).mkdir(parents=True, exist_ok=exist_ok)

    def open(self, path: str, mode: str) -> BinaryIO:
        return cast(BinaryIO, (self._root / path).open(mode))

    def mv(self, path: str, to: str) -> None:
        (self._root / path).rename(self._root / to)


def test_a_file_system_of_fsspec_gets_the_same_files(source: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    landing = RemoteLanding(Bucket(tmp_path / "store"), "bucket/brokerd/")
    assert ship(source, landing).shipped == 3
    assert files(tmp_path / "store" / "bucket" / "brokerd") == sealed_files(source)
    assert ship(source, landing).already == 3


def test_a_url_needs_the_package_that_knows_it() -> None:
    with pytest.raises(LandingRefused, match="fsspec"):
        landing_at("s3://bucket/brokerd")
