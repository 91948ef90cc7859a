"""Runs `brokerd demo` as a user does, as a process of its own."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


class Demo:
    """One demo in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: list[subprocess.Popen[str]] = []

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "brokerd", "demo", "--dir", str(self.directory), *words]

    def run(self, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env=os.environ | environ,
        )

    def start(self, *words: str) -> "subprocess.Popen[str]":
        running = subprocess.Popen(
            self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._running.append(running)
        return running

    def end(self) -> None:
        """Stop what a failed test has left running."""
        for running in self._running:
            if running.returncode is None:
                running.terminate()
            running.communicate(timeout=60)

    def daemon(self, name: str) -> int:
        """Process id of a daemon, as the lock of its store tells it; 0 if there is none yet."""
        try:
            return int(json.loads((self.directory / name / "main.db.lock").read_text())["pid"])
        except (OSError, ValueError):
            return 0

    def daemons(self) -> dict[str, int]:
        return {name: self.daemon(name) for name in ("east", "west")}

    def left(self) -> list[int]:
        """Process ids of all that was started here, whether or not it has locked its store yet."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended meanwhile
                if os.fsencode(self.directory) in path.read_bytes():
                    found.append(int(path.parent.name))
        return found
