"""Trials of mutants: which test notices a mistake.

Reads:  the files that git knows, and the compiled part.      Calls: pytest, coverage.
Writes: a copy of the sources in a temporary directory, in which a module is replaced by its
        mutants, one after the other.
Never:  changes the working tree.

The tests run once on the sound module, with coverage, which shows the tests that execute each line.
A mutant is tried with those that execute the line of its mistake, the quickest first.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coverage import CoverageData

from tools.mutation.operators import Mutant
from tools.mutation.timing import PATH_VARIABLE

SURVIVED: Final = "survived"
KILLED: Final = "killed"
UNTESTED: Final = "no test executes the line"
ENDLESS: Final = "killed by its time limit"
MOST_TESTS: Final = 400
"""A mutant is tried with at most so many tests."""
LEAST_SECONDS: Final = 60.0
TIMES_AS_LONG: Final = 10
"""A trial may take so many times as long as the same tests on the sound module."""
_NO_TEST_FAILED: Final = 0


class UnsoundTests(Exception):
    """A test fails although nothing was changed, or the tests cannot run."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of one mutant."""

    mutant: Mutant
    outcome: str
    tests: int
    """How many tests execute the line."""


class Copy:
    """A copy of the sources, in which tests run."""

    def __init__(self, root: Path, place: Path) -> None:
        """Copy what git knows below `root` to `place`."""
        listed = _output(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], root
        )
        compiled = (path.relative_to(root) for path in (root / "brokerd").rglob("*.so"))
        for name in (*filter(None, listed.split("\0")), *map(str, compiled)):
            source, target = root / name, place / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self._place = place

    def replace(self, module: Path, source: str) -> None:
        """Give a module another source."""
        path = self._place / module
        path.write_text(source, encoding="utf-8")
        # Two mutants of one length within one tick of the file system's clock would share a
        # compiled file.
        for left in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            left.unlink()

    def run(
        self,
        arguments: Sequence[str],
        *,
        seconds: float | None = None,
        times: Path | None = None,
    ) -> int | None:
        """Run pytest in the copy; return its exit status, None if `seconds` were not enough.

        `times`: where the plugin `timing` writes."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = os.environ | {"PYTHONPATH": str(self._place)}
        if times is not None:
            environment[PATH_VARIABLE] = str(times)
        process = subprocess.Popen(
            command,
            cwd=self._place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self.output = process.communicate(timeout=seconds)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and the processes that the tests have started
            process.wait()
            return None
        return process.returncode

    def path(self, name: str) -> Path:
        """Return a path in the copy."""
        return self._place / name


class Trials:
    """The tests of one module, and the lines that each executes."""

    def __init__(self, copy: Copy, module: Path, tests: Sequence[str], processes: int) -> None:
        """Run the tests on the sound module.

        Raises:
            UnsoundTests: a test fails, or none runs."""
        self._copy, self._module = copy, module
        name = str(module.with_suffix("")).replace("/", ".")
        times = copy.path("mutation-times")
        data = copy.path("mutation-coverage")  # pytest-cov removes what begins with this name
        settings = copy.path("mutation.coveragerc")
        settings.write_text(f"[run]\nbranch = false\nsource_pkgs = {name}\ndata_file = {data}\n")
        status = copy.run(
            [
                *tests,
                *("-n", str(processes), "--dist", "loadgroup", "-p", "tools.mutation.timing"),
                *("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="),
            ],
            times=times,
        )
        if status != _NO_TEST_FAILED:
            raise UnsoundTests(copy.output[-4000:])
        self._seconds = dict(_times(times))
        self._by_line = _contexts(data, copy.path(str(module)))

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the lines of a mutant's mistake, the quickest first."""
        lines = range(mutant.line, mutant.last_line + 1)
        found = {test for line in lines for test in self._by_line.get(line, ())}
        return sorted(found, key=lambda one: (self._seconds.get(one, 0.0), one))[:MOST_TESTS]

    def try_out(self, mutant: Mutant) -> Trial:
        """Return whether a test notices the mistake."""
        tests = self.of(mutant)
        if not tests:
            return Trial(mutant, UNTESTED, 0)
        self._copy.replace(self._module, mutant.source)
        usual = sum(self._seconds.get(one, 0.0) for one in tests)
        status = self._copy.run(
            ["-x", "--timeout", "60", *tests], seconds=LEAST_SECONDS + usual * TIMES_AS_LONG
        )
        outcome = SURVIVED if status == _NO_TEST_FAILED else ENDLESS if status is None else KILLED
        return Trial(mutant, outcome, len(tests))


def _times(path: Path) -> Iterator[tuple[str, float]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        said = json.loads(line)
        yield said["test"].partition("@")[0], said["seconds"]


def _contexts(data: Path, module: Path) -> dict[int, set[str]]:
    """Return the tests that execute each line of a module."""
    measured = CoverageData(str(data))
    measured.read()
    found: dict[int, set[str]] = {}
    for path in measured.measured_files():
        if Path(path).resolve() == module.resolve():
            for line, contexts in measured.contexts_by_lineno(path).items():
                names = {one.rpartition("|")[0].partition("@")[0] for one in contexts if one}
                found.setdefault(line, set()).update(names)
    return found


def _output(command: list[str], place: Path) -> str:
    return subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout
