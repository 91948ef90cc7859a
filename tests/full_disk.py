"""A small file system of its own, and something to fill it with."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Ballast:
    """A file that takes what room there is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "ballast"

    def take(self, *, leaving: int = 0) -> None:
        """Take all but so many bytes."""
        found = os.statvfs(self._folder)
        with self._file.open("ab") as file:
            size = self._file.stat().st_size + found.f_bavail * found.f_frsize - leaving
            os.posix_fallocate(file.fileno(), 0, max(1, size))

    def drop(self) -> None:
        """Give it all back."""
        self._file.unlink(missing_ok=True)


@contextmanager
def mounted(folder: Path, *, size: str = "24m") -> Iterator[Path]:
    """A tmpfs of that size; skips where nothing may be mounted."""
    mount(folder, size=size)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def mount(folder: Path, *, size: str) -> None:
    """Mount a tmpfs that somebody else removes; skips where nothing may be mounted."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
