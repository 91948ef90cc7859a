"""First reply: from an empty environment to the answer of the README's programs, timed.

Reads:  README.md, for the two programs; a folder of wheels, or an index.
Calls:  venv and pip, as a newcomer does; then the installed command.
Never:  uses a package of the environment that it runs in.

    python -m tools.release.first_reply build/trial --wheels dist
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.lock import ROOT, lock_path
from tools.release.build import ReleaseError

_PROGRAM = re.compile(r"```python\n(# (\w+\.py).*?\n)```", re.DOTALL)
ANSWER = "Packed(sku='A1')"
LONGEST = 600


def first_reply(folder: Path, wheels: Path) -> float:
    """Install the wheels into an empty environment and get a reply; return the seconds it took.

    Raises:
        ReleaseError: a step failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.monotonic()
    run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    python = folder / "venv" / "bin" / "python"
    install(python, wheels)
    converse(python, folder)
    return time.monotonic() - started


def install(python: Path, wheels: Path, *, name: str = "brokerd") -> None:
    """Install the locked requirements, and then brokerd from a folder of wheels alone."""
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    run([*pip, "--require-hashes", "-r", str(lock_path("run"))], wheels)
    run([*pip, "--no-index", "--pre", "--find-links", str(wheels), name], wheels)


def converse(python: Path, folder: Path) -> None:
    """Run the README's programs with an installed brokerd.

    Raises:
        ReleaseError: the answer did not come.
    """
    for source, name in _PROGRAM.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        (folder / name).write_text(source, encoding="utf-8")
    command = str(python.parent / "brokerd")
    worker = [command, "worker", "run", "warehouse:app"]
    with _running([command, "serve"], folder) as daemon:
        while daemon.poll() is None and _status([command, "status"], folder):
            pass  # it is being started
        with _running(worker, folder):
            said = run([str(python), "shop.py"], folder)
    if ANSWER not in said:
        raise ReleaseError(f"shop.py says {said!r} instead of {ANSWER}")


@contextmanager
def _running(command: Sequence[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / f"{command[1]}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=_environ(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(LONGEST)


def _status(command: Sequence[str], folder: Path) -> int:
    """Return the exit status of a command that may fail."""
    done = subprocess.run(command, cwd=folder, env=_environ(), capture_output=True, check=False)
    return done.returncode


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command to its end; return what it printed.

    Raises:
        ReleaseError: it failed.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _environ() -> dict[str, str]:
    left_out = ("BROKERD_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Time it, and print the time."""
    parser = argparse.ArgumentParser(prog="first_reply", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a scratch folder, made anew")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    options = parser.parse_args(arguments)
    try:
        seconds = first_reply(options.folder.resolve(), options.wheels.resolve())
    except ReleaseError as error:
        print(f"first reply: {error}", file=sys.stderr)
        return 1
    print(f"first reply: {seconds:.1f} s after the environment was empty")
    return 0


if __name__ == "__main__":
    sys.exit(main())
