"""Stream: the messages of many dialogs in one order, and what each of them holds.

A stream is a directory: `index` says whose each message is and where its content lies in `bodies`.
`make_stream` draws one from a seed. From the command line a stream is made of the history of a bare
git repository, one message for each file that a commit touches, on the dialog of that path:

    python -m tests.chaos.stream GITDIR OUT [--commits N] [--first N] [--max-bytes SIZE]

Reads:  git, when asked to.      Calls: the file system.
Never:  sends anything.
"""

import argparse
import hashlib
import json
import mmap
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import BinaryIO, Final, NamedTuple

import msgspec

from brokerd.units import parse_size

REPLY_EVERY: Final = 5
"""A dialog is answered at each fifth message, and at its last."""
ECHOED: Final = range(100_000, 2_000_000)
"""Sizes of contents that come back with the reply."""
_SIZES: Final = (
    (0.80, 0, 600),
    (0.15, 600, 40_000),
    (0.0485, 40_000, 250_000),
    (0.0015, 1_000_000, 5_000_000),
)
"""Shares of contents, each with its smallest and largest size in bytes."""
_LENGTHS: Final = ((0.45, 1, 1), (0.35, 2, 12), (0.17, 13, 60), (0.03, 100, 400))
"""Shares of dialogs, each with its fewest and most messages."""
_OPEN: Final = 40
"""Dialogs of a drawn stream that go on beside one another."""
_LARGEST: Final = 8 * 1024 * 1024


class Ends(StrEnum):
    """Who ends a dialog, and when."""

    CLIENT = "client"
    """Its initiator, once it has the last reply."""
    LEDGER = "ledger"
    """Its target, with the last reply."""
    UNANSWERED = "unanswered"
    """Its initiator, with its last message; there are no replies."""


class Dialog(msgspec.Struct, array_like=True, frozen=True):
    """One dialog of a stream; its name is `d` and its place among them."""

    messages: int
    ends: Ends

    @property
    def replies(self) -> int:
        """How many replies there are to be."""
        return 0 if self.ends is Ends.UNANSWERED else -(-self.messages // REPLY_EVERY)

    def is_answered(self, number: int) -> bool:
        """Whether there is a reply to the message of that number (from 0)."""
        if self.ends is Ends.UNANSWERED:
            return False
        return (number + 1) % REPLY_EVERY == 0 or number + 1 == self.messages


class Entry(NamedTuple):
    """One message: of which dialog, which of its messages, and where its content lies."""

    dialog: int
    number: int
    offset: int
    size: int


class _Index(msgspec.Struct):
    dialogs: list[Dialog]
    entries: list[tuple[int, int, int]]
    """Dialog, offset, size."""


class Stream:
    """A stream that is there."""

    def __init__(self, folder: Path) -> None:
        """Raises `OSError` or `msgspec.MsgspecError` if there is none in that directory."""
        index = msgspec.msgpack.decode((folder / "index").read_bytes(), type=_Index)
        self.dialogs = index.dialogs
        self._entries = index.entries
        with (folder / "bodies").open("rb") as bodies:
            empty = not bodies.seek(0, 2)
            self._bodies = b"" if empty else mmap.mmap(bodies.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        """How many messages there are."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """The messages in their order."""
        numbers: Counter[int] = Counter()
        for dialog, offset, size in self._entries:
            yield Entry(dialog, numbers[dialog], offset, size)
            numbers[dialog] += 1

    @property
    def size(self) -> int:
        """Bytes of all contents."""
        return sum(size for _, _, size in self._entries)

    def content(self, entry: Entry) -> bytes:
        return bytes(self._bodies[entry.offset : entry.offset + entry.size])


def running(before: bytes, content: bytes) -> bytes:
    """The hash of a dialog's contents so far, after one more."""
    return hashlib.sha256(before + content).digest()


def reply_content(count: int, digest: bytes, content: bytes) -> bytes:
    """What a reply says: how many messages were received, their hash, and some contents."""
    echo = content if len(content) in ECHOED else b""
    return b"%d %s\n" % (count, digest.hex().encode()) + echo


class _Writer:
    """Writes a stream, message by message."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._bodies: BinaryIO = (folder / "bodies").open("wb")
        self._entries: list[tuple[int, int, int]] = []
        self.counts: Counter[int] = Counter()
        self.offset = 0

    def add(self, dialog: int, content: bytes) -> None:
        self._bodies.write(content)
        self._entries.append((dialog, self.offset, len(content)))
        self.counts[dialog] += 1
        self.offset += len(content)

    def close(self, rng: Random) -> Stream:
        """Decide who ends which dialog, and write the index."""
        self._bodies.close()
        kinds = rng.choices(list(Ends), k=len(self.counts))
        dialogs = [Dialog(self.counts[number], kind) for number, kind in enumerate(kinds)]
        index = msgspec.msgpack.encode(_Index(dialogs, self._entries))
        (self._folder / "index").write_bytes(index)
        return Stream(self._folder)


def make_stream(folder: Path, *, seed: int, messages: int) -> Stream:
    """Draw a stream with about so many messages; the same seed draws the same one."""
    rng = Random(seed)
    writer = _Writer(folder)
    going: dict[int, int] = {}
    begun = planned = 0
    while planned < messages or going:
        while len(going) < _OPEN and planned < messages:
            going[begun] = _drawn(rng, _LENGTHS)
            planned += going[begun]
            begun += 1
        dialog = rng.choice(list(going))
        writer.add(dialog, rng.randbytes(_drawn(rng, _SIZES)))
        going[dialog] -= 1
        if not going[dialog]:
            del going[dialog]
    return writer.close(rng)


def _drawn(rng: Random, shares: Sequence[tuple[float, int, int]]) -> int:
    """A number from one of several ranges, each of which has its share."""
    (chosen,) = rng.choices(shares, weights=[share for share, _, _ in shares])
    return rng.randint(chosen[1], chosen[2])


# From a repository.


class _Touch(NamedTuple):
    """A file that a commit has touched."""

    commit: str
    path: bytes
    status: str
    blob: str


def stream_of_history(
    repository: Path, folder: Path, *, first: int, commits: int, most: int
) -> Stream:
    """Make a stream of a bare repository's history, oldest first.

    `most` bounds the bytes of all contents: every message has the line about its file, and as many
    have the file itself as there is room for, evenly spread. `subprocess.CalledProcessError` if git
    refuses."""
    touches = _touches(repository, first, commits)
    sizes = _sizes(repository, {one.blob for one in touches})
    whole = sum(min(sizes.get(one.blob, 0), _LARGEST) for one in touches)
    share = min(1.0, most / whole) if whole else 0.0
    rng, writer = Random(commits), _Writer(folder)
    dialogs: dict[bytes, int] = {}
    with _Blobs(repository) as blobs:
        for touch in touches:
            has_file = sizes.get(touch.blob, _LARGEST + 1) <= _LARGEST and rng.random() < share
            line = {
                "commit": touch.commit,
                "path": touch.path.decode("utf-8", "backslashreplace"),
                "status": touch.status,
            }
            content = blobs.read(touch.blob) if has_file else b""
            dialog = dialogs.setdefault(touch.path, len(dialogs))
            writer.add(dialog, json.dumps(line).encode() + b"\n" + content)
    return writer.close(rng)


def _touches(repository: Path, first: int, commits: int) -> list[_Touch]:
    words = ["log", "--reverse", "--no-merges", "--raw", "--no-abbrev", "--no-renames", "-z"]
    told = _git(repository, *words, "--format=commit %H").split(b"\0")
    found: list[_Touch] = []
    commit, number, parts = "", -1, iter(told)
    for part in parts:
        line = part.lstrip(b"\n")
        if line.startswith(b"commit "):
            name, _, line = line.removeprefix(b"commit ").partition(b"\n")
            commit, line = name.decode("ascii").strip(), line.strip()
            number += 1
        if not line.startswith(b":"):
            continue
        _, mode, _, blob, status = line.decode("ascii").split(" ")
        path = next(parts)
        if first <= number < first + commits and mode != "160000":  # a submodule has no file
            found.append(_Touch(commit, path, status, blob))
    return found


def _sizes(repository: Path, blobs: set[str]) -> dict[str, int]:
    told = _git(
        repository,
        "cat-file",
        "--batch-check=%(objectname) %(objectsize)",
        given="\n".join(sorted(blobs)).encode(),
    )
    rows = [line.split() for line in told.decode("ascii").splitlines()]
    return {row[0]: int(row[1]) for row in rows if row[1].isdigit()}


class _Blobs:
    """Reads blobs, one after the other, from one process of git's."""

    def __init__(self, repository: Path) -> None:
        self._git = subprocess.Popen(
            ["git", "-C", str(repository), "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> "_Blobs":
        return self

    def __exit__(self, *_error: object) -> None:
        self._git.communicate()

    def read(self, blob: str) -> bytes:
        assert self._git.stdin is not None
        assert self._git.stdout is not None
        self._git.stdin.write(blob.encode() + b"\n")
        self._git.stdin.flush()
        size = int(self._git.stdout.readline().split()[2])
        return self._git.stdout.read(size + 1)[:size]


def _git(repository: Path, *words: str, given: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(repository), *words], input=given, stdout=subprocess.PIPE, check=True
    )
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.stream",
        description="Make a stream of the history of a bare git repository.",
    )
    parser.add_argument("repository", type=Path, metavar="GITDIR")
    parser.add_argument("folder", type=Path, metavar="OUT", help="a directory for the stream")
    parser.add_argument("--first", type=int, default=0, help="leave so many commits out")
    parser.add_argument("--commits", type=int, default=sys.maxsize, help="take so many at most")
    parser.add_argument("--max-bytes", default="300MiB", help="of all contents (300MiB)")
    options = parser.parse_args()
    made = stream_of_history(
        options.repository,
        options.folder,
        first=options.first,
        commits=options.commits,
        most=parse_size(options.max_bytes),
    )
    lengths = sorted((one.messages for one in made.dialogs), reverse=True)
    sys.stdout.write(
        f"{options.folder}: {len(made)} messages of {len(made.dialogs)} dialogs, "
        f"{made.size / 2**20:.0f} MiB; the longest dialog has {lengths[0]}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
