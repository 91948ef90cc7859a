"""Set-up does nothing where all is ready, and a failing step says what failed."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools import setup


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what set-up reads, with an environment whose interpreter works."""
    shutil.copy(setup.ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(setup.ROOT / "requirements", tmp_path / "requirements")
    for file in setup.COMPILED:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(setup.ROOT / file, tmp_path / file)
    environment = tmp_path / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    monkeypatch.setattr(setup, "ENVIRONMENT", environment)
    monkeypatch.setattr(setup, "INTERPRETER", environment / "bin" / "python")
    monkeypatch.setattr(setup, "LOG", tmp_path / "set-up.log")
    return tmp_path


def install(name: str) -> None:
    setup.stamp(name).write_text(setup.digest(name), encoding="utf-8")


@pytest.mark.parametrize(
    ("installed", "ready"),
    [
        ("dev", {"run", "batch", "dev"}),
        ("fuzz", {"run", "batch", "dev", "fuzz"}),
        ("batch", {"run", "batch"}),
        ("run", {"run"}),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_larger_set_serves_a_smaller_one(installed: str, ready: set[str]) -> None:
    install(installed)
    assert {name for name in setup.COVERED_BY if setup.is_ready(name)} == ready


@pytest.mark.usefixtures("project")
def test_nothing_is_ready_at_first() -> None:
    assert not any(setup.is_ready(name) for name in setup.COVERED_BY)


def test_another_lock_asks_for_another_set_up(project: Path) -> None:
    install("dev")
    lock = project / "requirements" / "dev.txt"
    lock.write_text(lock.read_text(encoding="utf-8") + "# moved\n", encoding="utf-8")
    assert not setup.is_ready("dev")


def test_another_source_of_what_is_compiled_does(project: Path) -> None:
    install("dev")
    file = project / setup.COMPILED[0]
    file.write_text(file.read_text(encoding="utf-8") + "/* more */\n", encoding="utf-8")
    assert not setup.is_ready("dev")


def test_another_lint_setting_does_not(project: Path) -> None:
    install("dev")
    file = project / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("line-length = 100", "line-length = 99"), encoding="utf-8")
    assert setup.is_ready("dev")


def test_another_entry_point_does(project: Path) -> None:
    install("dev")
    file = project / "pyproject.toml"
    file.write_text(
        file.read_text(encoding="utf-8").replace("brokerd.__main__:main", "brokerd.cli.main:main"),
        encoding="utf-8",
    )
    assert not setup.is_ready("dev")


def test_an_environment_that_was_moved_is_not_ready(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("dev")
    moved = project.with_name("moved")
    project.rename(moved)
    monkeypatch.setattr(setup, "ROOT", moved)
    monkeypatch.setattr(setup, "ENVIRONMENT", moved / ".venv")
    monkeypatch.setattr(setup, "INTERPRETER", moved / ".venv" / "bin" / "python")
    assert not setup.is_ready("dev")


@pytest.mark.usefixtures("project")
def test_a_broken_interpreter_is_not_ready() -> None:
    install("dev")
    setup.INTERPRETER.unlink()
    setup.INTERPRETER.symlink_to("/nowhere/python")
    assert not setup.is_ready("dev")


@pytest.mark.usefixtures("project")
def test_a_failing_step_names_itself_its_status_and_its_last_words() -> None:
    command = [sys.executable, "-c", "print('no such package'); raise SystemExit(3)"]
    with pytest.raises(setup.SetUpError, match=r"(?s)installing x: .*status 3.*no such package"):
        setup.run(command, doing="installing x")


def test_a_long_step_shows_signs_of_life(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "QUIET_SECONDS", 0.05)
    gate = project / "gate"
    # The child ends only when the gate stands; the first sign of life puts it there.
    wait = (
        "import pathlib; print('halfway', flush=True)\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): pass"
    )
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        if "halfway" in text:
            gate.touch()

    monkeypatch.setattr(setup, "say", hear)
    setup.run([sys.executable, "-c", wait], doing="a long step")
    assert heard[0] == "a long step"
    assert [line for line in heard if "halfway" in line]


def test_a_step_leaves_its_output_in_the_log(project: Path) -> None:
    setup.run([sys.executable, "-c", "print('all of it')"], doing="a step")
    assert "all of it" in (project / "set-up.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("home", "version", "says"),
    [
        (Path(sys.base_prefix) / "bin", sys.version.split()[0], False),
        (Path("/elsewhere/bin"), sys.version.split()[0], True),
        (Path(sys.base_prefix) / "bin", "3.99.1", True),
    ],
)
def test_a_python_that_is_named_in_vain_is_told(
    home: Path, version: str, says: bool, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = f"home = {home}\ninclude-system-site-packages = false\nversion = {version}\n"
    (project / ".venv" / "pyvenv.cfg").write_text(config, encoding="utf-8")
    install("dev")
    assert setup.main(["dev", "--named"]) == 0
    assert ("stays so" in capsys.readouterr().out) is says
    assert setup.main(["dev"]) == 0
    assert not capsys.readouterr().out


class Noting(setup.Pip):
    """Notes what it would install."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def install(self, arguments: Sequence[str], *, doing: str) -> None:
        """Keep what was asked for."""
        self.asked.append([doing, *arguments])


@pytest.mark.usefixtures("project")
def test_only_what_is_locked_is_installed_and_nothing_is_resolved() -> None:
    installer = Noting()
    setup.set_up("dev", installer)
    *locks, itself = installer.asked
    assert [asked[-1] for asked in locks] == ["requirements/build.txt", "requirements/dev.txt"]
    assert all("--require-hashes" in asked for asked in locks)
    assert itself[-1] == "."
    assert all("--no-deps" in asked for asked in installer.asked)
