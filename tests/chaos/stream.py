"""Stream: the messages of many dialogs in one order, and what each of them holds.

A stream is a directory: `index` says whose each message is and where its content lies in `bodies`.
`make_stream` draws one from a seed; `history.py` makes one of a repository.

Calls:  the file system.      Never:  sends anything.
"""

import hashlib
import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import BinaryIO, Final, NamedTuple

import msgspec

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


class Writer:
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
    writer = Writer(folder)
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
