"""Shipping: at least once, whole files, and nothing changes when it is done twice."""

import sys
from pathlib import Path
from typing import Any

import pytest

from brokerd.cli.main import main
from brokerd.reports.shipping import LandingRefused, LocalLanding, RemoteLanding, landing_at, ship
from tests.unit.telemetry.test_metrics import DAY, QUEUE_ROW, HandClock, make


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


@pytest.fixture
def fsspec() -> Any:
    """The real package; the extra `ship` brings it."""
    return pytest.importorskip("fsspec", reason="fsspec is not installed")


def test_a_landing_in_memory_gets_the_same_files(source: Path, fsspec: Any) -> None:
    landing = landing_at("memory://bucket/brokerd/")
    assert isinstance(landing, RemoteLanding)
    assert ship(source, landing).shipped == 3
    memory = fsspec.filesystem("memory")
    found = {str(path).removeprefix("/bucket/brokerd/"): memory.cat_file(path)
             for path in memory.find("/bucket/brokerd")}  # fmt: skip
    memory.rm("/bucket", recursive=True)
    assert found == sealed_files(source)


def test_a_landing_by_url_is_shipped_to_once_and_mended(
    source: Path, tmp_path: Path, fsspec: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    del fsspec
    there = tmp_path / "store" / "brokerd"
    words = ["ship", f"file://{there}", "--from", str(source)]
    assert main(words) == 0
    assert files(there) == sealed_files(source)
    assert main(words) == 0
    assert "3 segments" in capsys.readouterr().out
    next(there.rglob("*.jsonl.gz")).write_bytes(b"")
    assert main([*words, "--remove"]) == 0
    assert len(files(there)) == 6
    assert not sealed_files(source)


@pytest.mark.parametrize("step", range(6))
def test_a_shipment_to_a_url_that_is_cut_off_is_resumed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsspec: Any, step: int
) -> None:
    local, moves = fsspec.filesystem("file"), 0
    landing, real = RemoteLanding(local, str(tmp_path / "store")), local.mv

    def move(path: str, to: str) -> None:
        nonlocal moves
        moves += 1
        if moves > step:
            raise OSError("cut off")
        real(path, to)

    monkeypatch.setattr(local, "mv", move)
    with pytest.raises(LandingRefused):
        ship(source, landing)
    there = files(tmp_path / "store")
    for name in there:
        if name.endswith(".manifest"):
            assert name.replace(".manifest", ".jsonl.gz") in there
    monkeypatch.undo()
    assert ship(source, landing).shipped == 3 - step // 2
    whole = {name: body for name, body in files(tmp_path / "store").items() if ".part" not in name}
    assert whole == sealed_files(source)


@pytest.mark.parametrize("url", ["gs://bucket/brokerd", "nowhere://bucket"])
def test_a_url_that_no_package_knows_is_refused(url: str, fsspec: Any) -> None:
    del fsspec
    with pytest.raises(LandingRefused, match=url):
        landing_at(url)


def test_a_url_needs_the_package_that_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(LandingRefused, match=r"brokerd\[ship\]"):
        landing_at("s3://bucket/brokerd")
