"""Private: files and directories of the logs that only their owner may read, whatever the umask.

Reads:  nothing.      Calls: the file system.
Never:  changes the mode of what exists: an administrator may have let a group read it.
"""

import os
from pathlib import Path
from typing import BinaryIO, Final

_FILE: Final = 0o600
_DIRECTORY: Final = 0o700
_PARENT: Final = 0o755


def open_private(path: Path, mode: str, *, buffering: int = -1) -> BinaryIO:
    """Open a file of bytes as `open` does; a new one gets mode 0600.

    Raises:
        OSError: the file cannot be opened.
    """
    return open(path, mode, buffering=buffering, opener=_opener)  # type: ignore[return-value]  # binary


def make_directory(path: Path) -> None:
    """Make a directory with mode 0700, and its missing parents with 0755 at most.

    A directory that exists stays as it is.

    Raises:
        OSError: the directory cannot be made.
    """
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir(mode=_PARENT, exist_ok=True)
    path.mkdir(mode=_DIRECTORY, exist_ok=True)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE)
