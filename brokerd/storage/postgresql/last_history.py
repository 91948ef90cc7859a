"""Last history: a file that says in which history of its server a daemon was last (REL-59).

Reads, writes: the file `server-history` in the data directory.      Calls: the file system.
Never:  follows a link; leaves a part of a file.
Fails:  a file that is lost or damaged counts as none: the daemon then takes any server, as at its
        first start.

A server that was the primary, and comes back after its standby has been promoted, takes changes
as before. No row in it shows that it is behind. The data directory is on another machine, and so
it knows.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from brokerd.errors import UnsafeFile
from brokerd.storage.files.private_files import (
    make_private_directory,
    open_private,
    sync,
    write_private,
)

_LONGEST: Final = 4096


class History(NamedTuple):
    """A server and the timeline of its log."""

    system: str
    """The system identifier, which a primary shares with its standbys."""
    timeline: str
    """Eight hexadecimal digits; a promotion raises the number, and so the text sorts later."""

    def show(self) -> str:
        """Return the history as text."""
        return f"timeline {int(self.timeline, 16)} of system {self.system}"

    def is_older_than(self, other: "History") -> bool:
        """Return whether the other history has begun from this one, or from one before it."""
        return self.system == other.system and self.timeline < other.timeline


class _Note(msgspec.Struct, frozen=True):
    """The content of the file."""

    system: str
    timeline: str


def read_history(path: Path) -> History | None:
    """Return the history that a file notes; None = there is no file, or it is damaged.

    Raises:
        UnsafeFile: the file is a link, or no regular file, or cannot be read.
    """
    try:
        descriptor = open_private(path, writable=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnsafeFile(
            f"{path} cannot be read: {error.strerror}",
            hint="give it to the user of the daemon",
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(_LONGEST)
    try:
        note = msgspec.json.decode(content, type=_Note)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return History(note.system, note.timeline)


def note_history(path: Path, history: History) -> None:
    """Note a history durably; a crash leaves the whole old file or the whole new one.

    Raises:
        OSError: the file cannot be made.
    """
    make_private_directory(path.parent)
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    write_private(aside, msgspec.json.encode(_Note(*history)) + b"\n")
    sync(aside)
    aside.rename(path)
    sync(path.parent)
