"""Key file: the file of an instance's master key (SX-6).

Reads, calls: the file system; `private_files` for the checks.
Never:  follows a link, or shows a key in a text (SX-9).
Fails:  `UnsafeFile` if other users can read or change the file, `NoMasterKey` if it is no key file.

The caller has the lock of the instance's store `msdb`, so that no other process makes the file.

The first line has the key. After a rotation a line for each former key follows, the latest first
(SEC-71).
"""

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from brokerd.errors import NoMasterKey
from brokerd.security.master_key import MOST_FORMER, SIZE, Random
from brokerd.storage.files.private_files import open_secret, sync, write_private

NAME: Final = "master.key"
"""Name of the file in `instance.data_dir`."""
_HEAD: Final = b"brokerd-master-key-1 "
_FORMER: Final = b"former "
_LENGTH: Final = len(_HEAD) + 2 * SIZE + 1 + MOST_FORMER * (len(_FORMER) + 2 * SIZE + 1)
"""Length of the longest key file."""


def read_keys(path: Path) -> tuple[bytes, ...] | None:
    """Return the key in a file, then the former ones; None = there is no file.

    Raises:
        UnsafeFile: the file is a link, of another user, or others may read it (SX-24).
        NoMasterKey: the file cannot be read, or is no key file.
    """
    try:
        descriptor = open_secret(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NoMasterKey(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        found = file.read(_LENGTH + 1)
    if (keys := _parse(found)) is None:
        raise NoMasterKey(f"{path} is damaged, or no file of a master key")
    return keys


def make_key(path: Path, random: Random) -> bytes:
    """Make a file with a new key, and return the key; a crash leaves a whole file or none.

    The caller has checked that there is no such file.

    Raises:
        OSError: the file cannot be made.
    """
    key = random(SIZE)
    write_keys(path, (key,))
    return key


def write_keys(path: Path, keys: Sequence[bytes]) -> None:
    """Make or replace a file with these keys; a crash leaves the whole old file or the whole new.

    Raises:
        OSError: the file cannot be made.
    """
    key, *former = (one.hex().encode() for one in keys)
    lines = [_HEAD + key, *(_FORMER + one for one in former)]
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    write_private(aside, b"".join(line + b"\n" for line in lines))
    sync(aside)
    aside.rename(path)
    sync(path.parent)


def set_aside(path: Path) -> Path | None:
    """Give a key file that is of no use another name, and return that; None = there is no file."""
    if not path.exists():
        return None
    number = next(n for n in count(1) if not _lost(path, n).exists())
    path.rename(_lost(path, number))
    sync(path.parent)
    return _lost(path, number)


def _lost(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.lost-{number}")


def _parse(found: bytes) -> tuple[bytes, ...] | None:
    if len(found) > _LENGTH or not found.endswith(b"\n"):
        return None
    first, *others = found[:-1].split(b"\n")
    if not first.startswith(_HEAD) or not all(one.startswith(_FORMER) for one in others):
        return None
    digits = [first.removeprefix(_HEAD), *(one.removeprefix(_FORMER) for one in others)]
    if any(len(one) != 2 * SIZE for one in digits):
        return None
    try:
        return tuple(bytes.fromhex(one.decode("ascii")) for one in digits)
    except ValueError:
        return None
