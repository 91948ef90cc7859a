"""Key file: the file of an instance's master key (SX-6).

Reads, calls: the file system; `private_files` for the checks.
Never:  follows a link, overwrites a file that exists, or shows the key in a text (SX-9).
Fails:  `UnsafeFile` if other users can read or change the file, `NoMasterKey` if it is no key file.

The caller has the lock of the instance's store `msdb`, so that no other process makes the file.
"""

import os
from itertools import count
from pathlib import Path
from typing import Final

from brokerd.errors import NoMasterKey
from brokerd.security.master_key import SIZE, Random
from brokerd.storage.private_files import open_secret, sync, write_private

NAME: Final = "master.key"
"""Name of the file in `instance.data_dir`."""
_HEAD: Final = b"brokerd-master-key-1 "
_LENGTH: Final = len(_HEAD) + 2 * SIZE + 1


def read_key(path: Path) -> bytes | None:
    """Return the key in a file; None = there is no file.

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
    if (key := _parse(found)) is None:
        raise NoMasterKey(f"{path} is damaged, or no file of a master key")
    return key


def make_key(path: Path, random: Random) -> bytes:
    """Make a file with a new key, and return the key; a crash leaves a whole file or none.

    The caller has checked that there is no such file.

    Raises:
        OSError: the file cannot be made.
    """
    key = random(SIZE)
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    write_private(aside, _HEAD + key.hex().encode() + b"\n")
    sync(aside)
    aside.rename(path)
    sync(path.parent)
    return key


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


def _parse(found: bytes) -> bytes | None:
    head, digits, end = found[: len(_HEAD)], found[len(_HEAD) : -1], found[-1:]
    if len(found) != _LENGTH or head != _HEAD or end != b"\n":
        return None
    try:
        return bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        return None
