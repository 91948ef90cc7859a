"""The locks fit pyproject.toml, and a stale one is noticed."""

import shutil
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import LOCKS, ROOT, inputs_digest, lock_path, stale_locks


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def test_the_locks_of_this_repository_are_fresh() -> None:
    assert stale_locks() == []


def test_every_requirement_in_a_lock_has_a_hash() -> None:
    for name in LOCKS:
        text = lock_path(name).read_text(encoding="utf-8").replace("\\\n", "")
        pins = [line for line in text.splitlines() if "==" in line and not line.startswith("#")]
        assert pins
        assert [pin for pin in pins if "--hash=sha256:" not in pin] == []


def test_the_smaller_locks_pin_what_the_largest_pins() -> None:
    pins = {name: set(_pins(lock_path(name).read_text(encoding="utf-8"))) for name in LOCKS}
    assert pins["run"] < pins["batch"] < pins["dev"]
    assert pins["build"] < pins["dev"]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_all_that_its_packages_want(name: str) -> None:
    """Set-up resolves nothing, so what is missing here would be missing when it is imported."""
    lines = _pins(lock_path(name).read_text(encoding="utf-8"))
    parted = [line.partition("==") for line in lines]
    pins = {canonicalize_name(one): version for one, _, version in parted}
    here = {canonicalize_name(one.name): one for one in distributions() if one.name}
    looked_at = here.keys() & pins.keys()
    assert looked_at
    for one in looked_at:
        for text in here[one].requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                pin = pins.get(canonicalize_name(wanted.name))
                assert pin is not None, f"{one} wants {text}"
                assert wanted.specifier.contains(pin, prereleases=True), f"{one} wants {text}"


def _pins(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if "==" in line and line[0].isalpha()]


def test_a_new_dependency_makes_every_lock_stale(copy: Path) -> None:
    project = copy / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace('"click>=', '"extra>=1",\n  "click>='), encoding="utf-8")
    assert len(stale_locks(copy)) == len(LOCKS)


def test_a_new_lint_setting_leaves_the_locks_fresh(copy: Path) -> None:
    project = copy / "pyproject.toml"
    before = inputs_digest(copy)
    project.write_text(
        project.read_text(encoding="utf-8").replace("line-length = 100", "line-length = 99"),
        encoding="utf-8",
    )
    assert inputs_digest(copy) == before


def test_a_missing_lock_is_named(copy: Path) -> None:
    lock_path("run", copy).unlink()
    assert stale_locks(copy) == ["requirements/run.txt is missing"]


def test_an_address_in_a_lock_is_refused(copy: Path) -> None:
    path = lock_path("run", copy)
    path.write_text("--index-url https://example.org\n" + path.read_text(encoding="utf-8"))
    assert stale_locks(copy) == ["requirements/run.txt names an address"]
