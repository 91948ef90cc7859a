"""Private files: an instance's files belong to its user and have one name each (SX-24).

Reads:  owners, modes, kinds and link counts.      Calls: the file system.
Never:  follows a symbolic link to a file, or changes a file that it did not make.
Fails:  `UnsafeFile` names the path, the problem, and the command that fixes it.

`survey` is the only list of checks: before a start, in a running daemon, and in `config check`.
Links are refused because they alias: data written to a linked name goes to another user's file, and
SQLite keeps the log of a linked store in the directory of the link's target, where no other program
looks for it.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from brokerd.errors import UnsafeFile
from brokerd.telemetry.status import FileProblem

RESERVE: Final = "reserve"
"""Name of the file that holds room in reserve (REL-26)."""
SERVER_HISTORY: Final = "server-history"
"""Name of the file that notes in which history of its server a daemon was last (REL-59)."""
STORE_FILES: Final = ("", "-wal", "-shm", "-head", "-loss", ".lock")
"""Suffixes to a store's path that give the names of its files."""
_LOOKED_AT: Final = ("*.db*", RESERVE, SERVER_HISTORY)
"""Patterns of checked files in a directory of stores: stores, and files named after a store."""
_SECRETS: Final = ("*.key", "*.pem")
"""Patterns of files in such a directory that no other user may read (SX-6)."""
_PRIVATE_FILE: Final = 0o600
_PRIVATE_DIRECTORY: Final = 0o700
_PARENT: Final = 0o755
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ: Final = stat.S_IRGRP | stat.S_IROTH


def survey(
    directories: Iterable[Path], *, socket: Path | None = None, user: int | None = None
) -> Iterator[FileProblem]:
    """Yield every problem with the files of an instance.

    `directories`: the directories of stores; they, unlike the files in them, may be symbolic links.
    `socket`: the socket where clients connect. `user`: the only user, apart from root, who may own
    the files; None = the user of this process. Files that do not exist, or cannot be inspected, are
    left out.
    """
    user = os.geteuid() if user is None else user
    for directory in directories:
        yield from _about_directory(directory, user)
        for path in _matching(directory, _LOOKED_AT):
            yield from _about_file(path, user, is_secret=False)
        for path in _matching(directory, _SECRETS):
            yield from _about_file(path, user, is_secret=True)
    if socket is not None and socket.parent not in directories:
        yield from _about_directory(socket.parent, user, sticky_will_do=True)


def refuse_unsafe(store: Path, *, user: int | None = None) -> None:
    """Check the files of one store, as far as they exist. `user`: as for `survey`.

    Raises:
        UnsafeFile: a file is a link, belongs to another user, or others may write to it.
    """
    user = os.geteuid() if user is None else user
    for added in STORE_FILES:
        for one in _about_file(store.with_name(store.name + added), user, is_secret=False):
            if one.is_refused:
                raise _unsafe(one)


def owner_of(directory: Path) -> int | None:
    """Return the owner of a directory; None = it does not exist, or cannot be inspected.

    Programs that inspect the files of a stopped daemon need this: they may be run by root, or by
    another user than the daemon's.
    """
    try:
        return directory.stat().st_uid
    except OSError:
        return None


def other_user_of(directory: Path) -> int | None:
    """Return the owner of a directory if it is another user than ours, and neither is root.

    None: otherwise. This process cannot inspect the files of such a user.
    """
    owner, own = owner_of(directory), os.geteuid()
    return None if owner in (None, 0, own) or own == 0 else owner


def open_private(path: Path, *, writable: bool, create: bool = False) -> int:
    """Open a regular file, but not through a link; return the descriptor.

    `writable`: open the file for writing; it must be our own, have only one name, and be writable
    by no other user. `create`: make the file if it does not exist, with mode 0600 whatever the
    umask. Nothing has been written, truncated or locked when this returns.

    Raises:
        UnsafeFile: the file is a link, not a regular file, or not exclusively ours.
        OSError: the file cannot be opened, or does not exist.
    """
    flags = os.O_RDWR if writable else os.O_RDONLY
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in its place must not block
    if create:
        try:
            return _create(path, flags)
        except FileExistsError:
            pass
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _unsafe(_problem(path, *_LINK)) from error
    found = os.fstat(descriptor)
    if writable:
        wrong = _wrong_with(found, os.geteuid(), around=path.parent.stat())
    else:
        wrong = _wrong_kind(found)
    if wrong is not None:
        os.close(descriptor)
        raise _unsafe(_problem(path, *wrong))
    return descriptor


def open_secret(path: Path) -> int:
    """Open a file with a key, for reading, and not through a link; return the descriptor.

    Raises:
        UnsafeFile: the file is not exclusively ours, or others may read it (SX-24).
        OSError: the file cannot be opened, or does not exist.
    """
    descriptor = open_private(path, writable=False)
    found = os.fstat(descriptor)
    wrong = _wrong_with(found, os.geteuid(), around=path.parent.stat()) or _readable(found)
    if wrong is not None:
        os.close(descriptor)
        raise _unsafe(_problem(path, *wrong))
    return descriptor


def make_private_file(path: Path) -> None:
    """Make an empty file with mode 0600, whatever the umask.

    `FileExistsError`: the file exists.
    """
    os.close(_create(path, os.O_RDWR | os.O_CLOEXEC))


def write_private(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600, whatever the umask.

    `FileExistsError`: the file exists, or a link does.
    """
    with os.fdopen(_create(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "wb") as file:
        file.write(content)


def make_private_directory(path: Path) -> None:
    """Make a directory with mode 0700, and its missing parents with 0755 at most.

    The umask does not matter. A directory that exists stays as it is.
    """
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir(mode=_PARENT, exist_ok=True)
    try:
        path.mkdir(mode=_PRIVATE_DIRECTORY)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(_PRIVATE_DIRECTORY)


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    os.fchmod(descriptor, _PRIVATE_FILE)
    return descriptor


# The problem with a file, and the command that fixes it.

_Wrong = tuple[str, str]
_HARD_LINK_MEND: Final = "stop the daemon, then copy it to another name, and move the copy over"
"""The command for a hard link. The daemon must be stopped: replacing the store of a running daemon
stops it (FD-9), and changes that it commits meanwhile are lost."""
_LINK: Final[_Wrong] = (
    "is a symbolic link",
    "stop the daemon, then put the file itself in the place of",
)


def _about_directory(
    path: Path, user: int, *, sticky_will_do: bool = False
) -> Iterator[FileProblem]:
    """Yield the problem with a directory.

    `sticky_will_do`: others may make files in the directory if they cannot replace ours.
    """
    try:
        found = path.stat()
    except OSError:
        return
    if not stat.S_ISDIR(found.st_mode):
        return  # reported by the preflight
    wrong = owner_or_mode_problem(found, user, around=found)
    is_sticky = bool(found.st_mode & stat.S_ISVTX) and found.st_uid in (0, user)
    if wrong is not None and not (sticky_will_do and is_sticky):
        yield _problem(path, *wrong)


def _about_file(path: Path, user: int, *, is_secret: bool) -> Iterator[FileProblem]:
    try:
        found, around = path.lstat(), path.parent.stat()
    except OSError:
        return
    wrong = _wrong_with(found, user, around=around)
    if wrong is not None:
        yield _problem(path, *wrong)
    elif (wrong := _readable(found)) is not None and (is_secret or _lets_in(around, found)):
        yield _problem(path, *wrong, is_refused=is_secret)


def _wrong_with(found: os.stat_result, user: int, *, around: os.stat_result) -> _Wrong | None:
    """Return why a file must not be used; None = it may be used. `around`: its directory."""
    if (wrong := _wrong_kind(found)) is not None:
        return wrong
    if found.st_nlink != 1:
        text = f"has {found.st_nlink} names (hard links), so that it is another file as well"
        return text, _HARD_LINK_MEND
    return owner_or_mode_problem(found, user, around=around)


def _readable(found: os.stat_result) -> _Wrong | None:
    if not found.st_mode & _OTHERS_READ:
        return None
    return f"has mode {_mode(found)}: others may read it", "chmod go="


def _wrong_kind(found: os.stat_result) -> _Wrong | None:
    if stat.S_ISLNK(found.st_mode):
        return _LINK
    return None if stat.S_ISREG(found.st_mode) else ("is no regular file", "remove")


def owner_or_mode_problem(
    found: os.stat_result, user: int, *, around: os.stat_result
) -> tuple[str, str] | None:
    """Return why other users than `user` may write to a path, and the command that fixes it.

    The path is appended to the command. None: only the user and root may write to the path.
    `around`: its directory.
    """
    owner = found.st_uid
    if owner not in (0, user):
        mend = f"chown {user}"
        if user == 0 and around.st_uid == owner:
            # Root runs this for the daemon of another user, who could not open root's files.
            mend = f"run this as user {owner} (sudo -u '#{owner}' ...), who owns"
        return f"belongs to user {owner}, not to {user}", mend
    if found.st_mode & _OTHERS_WRITE:
        return f"has mode {_mode(found)}: others may write to it", "chmod go-w"
    return None


def _lets_in(directory: os.stat_result, found: os.stat_result) -> bool:
    """Return whether users who may read a file can reach it through its directory."""
    by_group = found.st_mode & stat.S_IRGRP and directory.st_mode & stat.S_IXGRP
    by_all = found.st_mode & stat.S_IROTH and directory.st_mode & stat.S_IXOTH
    return bool(by_group or by_all)


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"


def _problem(path: Path, text: str, mend: str, *, is_refused: bool = True) -> FileProblem:
    return FileProblem(path=str(path), problem=text, mend=f"{mend} {path}", is_refused=is_refused)


def _unsafe(one: FileProblem) -> UnsafeFile:
    return UnsafeFile(f"{one.path} {one.problem}", hint=one.mend)


def _matching(directory: Path, patterns: Iterable[str]) -> list[Path]:
    try:
        return sorted({path for pattern in patterns for path in directory.glob(pattern)})
    except OSError:
        return []


def why_unreachable(path: Path | None) -> str:
    """Return why users of the machine cannot reach a socket; empty = its directories let them."""
    for directory in () if path is None else reversed(path.absolute().parents):
        try:
            is_open = directory.stat().st_mode & stat.S_IXOTH
        except OSError:
            return ""
        if not is_open:
            return (
                f"other users cannot reach the socket {path}, because {directory} is closed to "
                "them; set clients.listen to a path elsewhere, such as unix:/run/brokerd/clients"
            )
    return ""
