"""Set-up: makes .venv fit a lock, and says what it is doing; does nothing where it fits already.

Reads:  requirements/<set>.txt and pyproject.toml; a stamp in .venv says what was installed last.
Calls:  uv where it is on PATH, else venv and pip. Everything is installed by hash, the tools that
        build packages first, so that nothing unlocked takes part.
Never:  removes an environment that works, or installs outside .venv.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
INTERPRETER = ENVIRONMENT / "bin" / "python"
LOG = ROOT / "build" / "set-up.log"
COVERED_BY = {
    "run": ("run", "batch", "dev", "fuzz"),
    "batch": ("batch", "dev", "fuzz"),
    "dev": ("dev", "fuzz"),
    "fuzz": ("fuzz",),
}
COMPILED = (
    "tools/build_compiled.py",
    *sorted(
        str(file.relative_to(ROOT)) for file in (ROOT / "brokerd/storage/compiled").glob("*.[ch]")
    ),
)
"""Files that determine the compiled part: its sources and the build hook."""
QUIET_SECONDS = 2.0
WIDTH = 96
IS_BUILT = "import sys; from brokerd.storage.compiled.library import BUILT; sys.exit(not BUILT)"
NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 11))"


class SetUpError(Exception):
    """A step failed; the text is for the user."""


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"set-up: {text}", flush=True)


def digest(name: str) -> str:
    """Return a hash of everything that a .venv of this set in this folder is made from."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    parts = [
        str(ROOT),
        json.dumps([document["project"], document["build-system"], document["tool"]["hatch"]]),
        (ROOT / "requirements" / "build.txt").read_text(encoding="utf-8"),
        (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8"),
        *((ROOT / file).read_text(encoding="utf-8") for file in COMPILED),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def stamp(name: str) -> Path:
    """Return the path of the file with the digest from which this set was installed."""
    return ENVIRONMENT / f".set-up-{name}"


def is_ready(name: str) -> bool:
    """Return whether .venv has an interpreter, and this set or a larger one is up to date in it."""
    return INTERPRETER.exists() and any(
        stamp(larger).is_file() and stamp(larger).read_text(encoding="utf-8") == digest(larger)
        for larger in COVERED_BY[name]
    )


def run(command: Sequence[str], *, doing: str) -> None:
    """Run one step, printing progress every two seconds; its full output goes to the log."""
    say(doing)
    started = time.monotonic()
    recent: deque[str] = deque(maxlen=30)
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        reader = threading.Thread(target=_drain, args=(process.stdout, log, recent), daemon=True)
        reader.start()
        while _still_running(process):
            seconds = time.monotonic() - started
            last = recent[-1] if recent else "waiting for the first answer"
            say(f"  {seconds:3.0f} s  {last}"[:WIDTH])
        reader.join()
        process.stdout.close()
    if process.returncode != 0:
        tail = "\n".join(f"    {line}" for line in recent)
        raise SetUpError(
            f"{doing}: failed with status {process.returncode}\n{tail}\n"
            f"  everything it said: {LOG.relative_to(ROOT)}"
        )


def _still_running(process: subprocess.Popen[str]) -> bool:
    try:
        process.wait(timeout=QUIET_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _drain(output: IO[str], log: IO[str], recent: deque[str]) -> None:
    for line in output:
        log.write(line)
        if line.strip():
            recent.append(line.strip())


class Pip:
    """An installer that uses the pip inside .venv."""

    name = "pip"

    def create(self) -> None:
        """Create .venv, with pip in it."""
        if (
            importlib.util.find_spec("venv") is None
            or importlib.util.find_spec("ensurepip") is None
        ):
            raise SetUpError(
                f"{sys.executable} comes without the venv or ensurepip module\n"
                "  install it (Debian and Ubuntu: python3-venv), or put uv on PATH,\n"
                "  or name another interpreter: make PYTHON=/path/to/python3.11 ..."
            )
        command = [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)]
        run(command, doing=f"creating .venv with {sys.executable}")

    def prepare(self) -> None:
        """Add pip to .venv if it is missing, as it may be if uv made .venv."""
        if not _succeeds([str(INTERPRETER), "-m", "pip", "--version"]):
            run([str(INTERPRETER), "-m", "ensurepip"], doing="adding pip to .venv")

    def install(self, arguments: Sequence[str], *, doing: str) -> None:
        """Install packages, checked by hash and without fetching any build tool."""
        command = [str(INTERPRETER), "-m", "pip", "install", "--disable-pip-version-check"]
        run([*command, "--no-input", "--progress-bar", "off", *arguments], doing=doing)


class Uv:
    """An installer that uses uv."""

    name = "uv"

    def __init__(self, program: str) -> None:
        self._program = program

    def create(self) -> None:
        """Create .venv, with pip in it for users who expect it."""
        command = [self._program, "venv", "--clear", "--seed", "--python", sys.executable]
        run([*command, str(ENVIRONMENT)], doing=f"creating .venv with {sys.executable} and uv")

    def prepare(self) -> None:
        """Do nothing: uv needs nothing inside .venv."""

    def install(self, arguments: Sequence[str], *, doing: str) -> None:
        """Install packages, checked by hash and without fetching any build tool."""
        command = [self._program, "pip", "install", "--python", str(INTERPRETER)]
        run([*command, *arguments], doing=f"{doing} (uv)")


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def set_up(name: str, installer: Pip | Uv) -> None:
    """Make .venv fit the lock.

    Raises:
        SetUpError: a step failed; the text names it.
    """
    if not (INTERPRETER.exists() and _succeeds([str(INTERPRETER), "-c", "pass"])):
        installer.create()
    elif not _succeeds([str(INTERPRETER), "-c", NEW_ENOUGH]):
        raise SetUpError(".venv has a Python older than 3.11; remove the folder and try again")
    installer.prepare()
    build, lock = (f"requirements/{part}.txt" for part in ("build", name))
    # A lock is complete, so nothing is left to resolve. pip would resolve all the same: if a
    # package requires another one with an extra, pip picks the newest release of that one, and
    # fails because no lock has its hash yet.
    locked = ["--require-hashes", "--no-deps", "--no-build-isolation"]
    installer.install([*locked, "-r", build], doing=f"installing {build}")
    if name != "run" and not any(ENVIRONMENT.glob("lib/python*/site-packages/pyspark")):
        say("the Spark archive alone is 0.5 GB; this takes a minute or two, once")
    installer.install([*locked, "-r", lock], doing=f"installing {lock}")
    editable = ["--no-deps", "--no-build-isolation", "--editable", "."]
    installer.install(editable, doing="installing brokerd from this folder")
    if not _succeeds([str(INTERPRETER), "-c", IS_BUILT]):
        say("no C compiler, or no headers of Python's: Python reads and writes stores, and slower")
    stamp(name).write_text(digest(name), encoding="utf-8")


def set_up_by_any_means(name: str) -> None:
    """Use uv if it is on PATH; if it fails, perhaps because it lacks settings, use pip."""
    uv = shutil.which("uv")
    if uv is not None:
        try:
            set_up(name, Uv(uv))
        except SetUpError as error:
            say(f"{error}\nset-up: trying pip instead")
        else:
            return
    set_up(name, Pip())


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of this folder, so that only one set-up runs in it at a time."""
    LOG.parent.mkdir(exist_ok=True)
    with (LOG.parent / "set-up.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up is at work in this folder; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def made_with() -> tuple[str, str] | None:
    """Return the prefix and version of the Python of .venv; None if they are not known."""
    try:
        text = (ENVIRONMENT / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    version = fields.get("version_info") or fields.get("version")  # the names of uv, and of venv
    if version is None or "home" not in fields:
        return None
    return str(Path(fields["home"]).resolve().parent), ".".join(version.split(".")[:2])


def see_to_named() -> None:
    """Warn if .venv was made with a Python other than this one; .venv stays as it is."""
    own = str(Path(sys.base_prefix).resolve()), f"{sys.version_info.major}.{sys.version_info.minor}"
    found = made_with()
    if found is not None and found != own:
        say(f".venv was made with Python {found[1]} of {found[0]}, and stays so")
        say(f"  to have it made with {own[1]} of {own[0]}, remove the folder and try again")


def main(arguments: Sequence[str] | None = None) -> int:
    """Bring .venv up to date with one set of locked packages."""
    parser = argparse.ArgumentParser(prog="setup", description=__doc__.partition("\n")[0])
    parser.add_argument("set", choices=sorted(COVERED_BY))
    parser.add_argument("--named", action="store_true", help="this Python was asked for by name")
    parsed = parser.parse_args(arguments)
    name = parsed.set
    if parsed.named:
        see_to_named()
    if is_ready(name):
        return 0
    os.environ.pop("VIRTUAL_ENV", None)
    started = time.monotonic()
    try:
        with alone():
            if not is_ready(name):
                LOG.write_text("", encoding="utf-8")
                set_up_by_any_means(name)
    except SetUpError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run picks up from here")
        return 130
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
