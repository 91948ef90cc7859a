"""Real files by lines, one dialog each, with a hash of each kept by the far side."""

import json
import sysconfig
from pathlib import Path

import pytest

from brokerd.demo.dialogs import choose_files
from tests.acceptance.running import Demo

pytestmark = pytest.mark.of_files("the demo makes its stores in files")

FILES, LINES = 150, 30_000
"""Enough that both kills come in the midst of it; `make demo-files` sends 1,000 files."""


@pytest.mark.rule("REL-3", "GRP-22")
def test_files_of_every_shape_arrive_whole(demo: Demo, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deeper").mkdir(parents=True)
    (source / "empty").write_bytes(b"")
    (source / "no end").write_bytes(b"one\ntwo")
    (source / "blank").write_bytes(b"\n" * 300)
    (source / "binary").write_bytes(bytes(range(256)) * 1000)
    (source / "long line").write_bytes(b"x" * (3 * 65_536 + 1) + b"\n")
    (source / "deeper" / "ümlaut").write_bytes("größer\n".encode() * 500)
    (source / "link").symlink_to("binary")
    done = demo.run("--input", str(source), "--no-report", "--no-kill", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)["result"]
    assert (result["dialogs"], result["replies"]) == (6, 6)
    assert (result["lost"], result["doubled"]) == (0, 0)


def test_a_directory_without_files_is_refused(demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    done = demo.run("--input", str(tmp_path / "source"))
    assert done.returncode != 0
    assert "there is no file" in done.stderr


@pytest.mark.slow
@pytest.mark.rule("REL-1", "REL-2", "REL-3", "GRP-22")
def test_the_standard_library_across_both_kills(demo: Demo) -> None:
    done = demo.run(
        *("--input", str(_sources()), "--pattern", "*.py", "--limit-files", str(FILES)),
        *("--no-report", "--json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["dialogs"] == result["replies"] == FILES
    assert result["sent"] - result["dialogs"] >= LINES
    assert (result["lost"], result["doubled"]) == (0, 0)
    west, east = result["kills"]
    assert (west["instance"], east["instance"]) == ("west", "east")
    assert 0 < west["answered"] < east["answered"] < result["sent"]
    assert all(0 < peak < 200 * 1024**2 for one in result["memory"] for peak in one["peaks"])


def _sources() -> Path:
    """The sources of the standard library, or of the packages where it is installed in part."""
    for name in ("stdlib", "purelib"):
        folder = Path(sysconfig.get_path(name))
        chosen = choose_files(
            folder, pattern="*.py", limit_files=FILES, limit_lines=None, but=Path("/nowhere")
        )
        if len(chosen.files) == FILES and chosen.messages - FILES >= LINES:
            return folder
    pytest.skip("this Python comes with too few sources")
