"""The wheel carries everything brokerd needs at run time, and finds it there."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from brokerd import resources

ROOT = Path(__file__).resolve().parents[3]
ASK = """
import json
from brokerd import resources
found = (resources.migrations_dir(), resources.config_dir(), resources.spark_jobs_dir())
print(json.dumps([str(folder) for folder in found]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return (folder / "site").resolve()


def test_an_installed_wheel_finds_its_folders(unpacked: Path) -> None:
    bootstrap = f"import sys; sys.path.insert(0, {str(unpacked)!r})"
    command = [sys.executable, "-I", "-c", f"{bootstrap}\n{ASK}"]
    answer = subprocess.run(command, cwd=unpacked, check=True, capture_output=True, text=True)
    assert json.loads(answer.stdout) == [
        str(unpacked / "brokerd" / "_migrations"),
        str(unpacked / "brokerd" / "_config"),
        str(unpacked / "spark_jobs"),
    ]


@pytest.mark.parametrize(
    ("shipped", "source"),
    [
        ("brokerd/_migrations", "migrations"),
        ("brokerd/_config", "config"),
        ("brokerd/http/page/static", "brokerd/http/page/static"),
    ],
)
def test_the_wheel_ships_each_of_their_files(unpacked: Path, shipped: str, source: str) -> None:
    assert _files(ROOT / source)
    assert _files(unpacked / shipped) == _files(ROOT / source)


@pytest.mark.rule("SDK-16")
def test_the_wheel_names_its_pytest_plugin(unpacked: Path) -> None:
    (told,) = unpacked.glob("*.dist-info/entry_points.txt")
    section = told.read_text().partition("[pytest11]\n")[2]
    assert section.split("\n")[0] == "brokerd.testing.plugin = brokerd.testing.plugin"
    assert (unpacked / "brokerd/testing/plugin.py").is_file()


def test_the_wheel_carries_no_tests_of_this_repository(unpacked: Path) -> None:
    tops = {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"brokerd", "spark_jobs"}
    assert not (unpacked / "brokerd/testing/simulation").exists()


def test_a_checkout_finds_its_own_folders() -> None:
    assert resources.migrations_dir() == ROOT / "migrations"
    assert resources.config_dir() == ROOT / "config"
    assert resources.spark_jobs_dir() == ROOT / "spark_jobs"


def _files(folder: Path) -> set[Path]:
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


BUILT_FROM = ("brokerd", "spark_jobs", "migrations", "config", "tools")


@pytest.mark.rule("SX-18")
def test_the_same_sources_give_the_same_wheel(tmp_path: Path) -> None:
    """Whatever the place, the umask, the time zone, the order of files and their times are."""
    digests = set()
    for folder, umask, zone in (("a", 0o022, "UTC"), ("somewhere/else", 0o077, "Asia/Tokyo")):
        sources = tmp_path / folder
        before = os.umask(umask)
        try:
            for part in BUILT_FROM:
                shutil.copytree(
                    ROOT / part,
                    sources / part,
                    copy_function=shutil.copyfile,  # with other times and modes
                    ignore=shutil.ignore_patterns("__pycache__", "*.so"),
                )
            for name in ("pyproject.toml", "README.md", "LICENSE"):
                shutil.copyfile(ROOT / name, sources / name)
        finally:
            os.umask(before)
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"],
            cwd=sources,
            check=True,
            capture_output=True,
            env={**os.environ, "TZ": zone, "PYTHONHASHSEED": str(umask)},
        )
        (wheel,) = (sources / "dist").glob("*.whl")
        digests.add((wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()))
    assert len(digests) == 1
