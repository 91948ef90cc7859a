"""Backup place: a client's backup is written only below directories named in the settings (SX-22).

Reads:  the directories on the way to the file.      Calls: the file system.
Never:  follows a symbolic link below a named directory, or removes or replaces a file.
Fails:  `InvalidArgument` names the directory or the setting; nothing has been written then.

SQLite opens the copy itself by its path. Only the daemon's user and root can put a link into that
path between this check and the copy, since the named directory, and every directory below it,
belongs to one of these two and is writable by no other user.
"""

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from brokerd.errors import InvalidArgument
from brokerd.storage.files.private_files import owner_or_mode_problem

SETTING: Final = "store.backup_dirs"
_OWN_DIRECTORY: Final = f"make a directory of the daemon's user, and name it in {SETTING}"
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def check_place(target: Path, directories: Sequence[Path]) -> None:
    """Check that a backup may be written to `target`; make its allowed directory if missing.

    Raises:
        InvalidArgument: the target is not below one of the directories, or its path leads
            through a link, or through a directory that others may write to.
    """
    if not target.is_absolute():
        raise InvalidArgument(f"{target}: an absolute path is needed: the daemon writes the file")
    root = next((one for one in directories if one in target.parents), None)
    if root is None or ".." in target.parts:
        raise _refusal(f"{target} is not below a directory that {SETTING} names", directories)
    with suppress(OSError):  # an error shows when the directory is opened
        root.mkdir(mode=0o700, exist_ok=True)
    path, at = root, _open(root, None, directories)
    try:
        _refuse_writable(path, at)
        for name in target.relative_to(root).parts[:-1]:
            path /= name
            below = _open(path, at, directories)
            os.close(at)
            at = below
            _refuse_writable(path, at)
    finally:
        os.close(at)


def _open(path: Path, parent: int | None, directories: Sequence[Path]) -> int:
    """Open the root by its path, or a directory by its name in `parent` if it is not a link."""
    try:
        if parent is None:
            return os.open(path, _DIRECTORY)
        return os.open(path.name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _refusal(f"{path} is a link, or no directory", directories) from error
        raise InvalidArgument(
            f"{path} cannot be used: {error.strerror}",
            hint=f"make the directory, or name another one in {SETTING}",
        ) from error


def _refuse_writable(path: Path, descriptor: int) -> None:
    found = os.fstat(descriptor)
    wrong = owner_or_mode_problem(found, os.geteuid(), around=found)
    if wrong is None:
        return
    problem, mend = wrong
    # Other programs may need to write to a directory such as /tmp.
    is_shared = found.st_mode & stat.S_ISVTX or found.st_uid != os.geteuid()
    raise InvalidArgument(
        f"{path} {problem}, so that a backup in it could be replaced",
        hint=_OWN_DIRECTORY if is_shared else f"{mend} {path}",
    )


def _refusal(text: str, directories: Sequence[Path]) -> InvalidArgument:
    named = ", ".join(map(str, directories))
    return InvalidArgument(
        f"{text}; nothing was written",
        hint=f"give a file below {named}, without links, or name more directories in {SETTING}",
    )
