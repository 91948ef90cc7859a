"""The dialogs of the demo, from the client's side: its messages, and the correct replies.

Pure, except that it reads the files to send.
Never:  trusts a counter alone: a reply is correct if its number, its count and its running hash
follow from the bodies sent. The hash of orders is a chain, H(n) = SHA-256(H(n-1) + body n): each
reply contains it, and the chain costs only one hash per message. The hash of a file is its SHA-256,
as `sha256sum` prints it.
"""

import hashlib
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final, Protocol

import msgspec
import orjson

from brokerd.client.messages import ABSENT, Body, Message
from brokerd.demo.workers import FILES, chained

Sending = tuple[str, Body]
"""A message type and a body."""

LINE_LIMIT: Final = 64 * 1024
"""Longest line, in bytes; longer lines are cut. The limit exceeds a fragment, so that some bodies
need several fragments."""

_SIZES: Final = (2, 1, 3, 5, 1, 4)
"""Numbers of orders per transaction, used in turn; the first transaction also begins the dialog."""
_CHUNK_LINES: Final = 100
_CHUNK_BYTES: Final = 256 * 1024
_AHEAD: Final = 12
"""Most unanswered orders of one dialog; the others are sent as replies come in."""


class Judged(msgspec.Struct):
    """The state of one dialog, counted in messages of the client."""

    sent: int = 0
    answered: int = 0
    doubled: int = 0
    faults: list[str] = []

    @property
    def lost(self) -> int:
        """Number of messages sent and not answered."""
        return max(0, self.sent - self.answered)


class Dialog(Protocol):
    """One dialog of the client; `judged` has its progress."""

    contract: str
    replies: int
    """Number of replies after which the dialog is over."""
    judged: Judged

    def chunks(self) -> Iterator[list[Sending]]:
        """Yield the messages to send, one list for each transaction."""
        ...

    def room(self, chunk: list[Sending]) -> bool:
        """Return whether the chunk may be sent before further replies arrive."""
        ...

    @property
    def due(self) -> float:
        """The place of the next messages among all messages of the demo, 0 to 1 (`open_gate`)."""
        ...

    def check(self, reply: Message) -> None:
        """Check a reply that was received in a committed transaction."""
        ...


class Orders:
    """A dialog of orders, each answered with its number, the count and the running hash."""

    contract = "orders/v1"

    def __init__(self, number: int, orders: int) -> None:
        self.replies = orders
        self.judged = Judged()
        self._number = number
        self._next = 0
        self._hash = b""

    def chunks(self) -> Iterator[list[Sending]]:
        """Yield all orders, a few for each transaction."""
        at = 0
        for size in cycle(_SIZES):
            if at >= self.replies:
                return
            upto = min(self.replies, at + size)
            yield [("Order", self._order(number)) for number in range(at, upto)]
            at = upto

    def room(self, chunk: list[Sending]) -> bool:
        """Return whether at most `_AHEAD` orders would be unanswered after this chunk."""
        judged = self.judged
        return judged.sent - judged.answered + len(chunk) <= _AHEAD

    @property
    def due(self) -> float:
        """The share of the orders sent so far: all dialogs of orders progress side by side."""
        return self.judged.sent / self.replies

    def check(self, reply: Message) -> None:
        """Check that the reply is to the next order, with the hash of all orders up to it."""
        if reply.is_error or reply.is_end:
            self._fault(f"the dialog was ended from the far side: {reply.error or 'EndDialog'}")
            return
        said = orjson.loads(reply.body or b"{}")
        number = said.get("number")
        if not isinstance(number, int) or not 0 <= number < self.replies:
            self._fault(f"a reply to order {number} came, which was never sent")
        elif number < self._next:
            self.judged.doubled += 1
            self._fault(f"order {number} was answered again")
        else:
            self._check(said, number)

    def _check(self, said: dict[str, object], number: int) -> None:
        if number > self._next:
            self._fault(f"the reply to order {number} came where order {self._next} was due")
        while self._next <= number:
            self._hash = chained(self._hash, self._order(self._next))
            self._next += 1
        if said.get("count") != number:
            self._fault(f"order {number} was processed as the {said.get('count')}th")
        elif said.get("sha256") != self._hash.hex():
            self._fault(f"the hash of the orders up to {number} differs")
        self.judged.answered += 1

    def _order(self, number: int) -> bytes:
        order = {
            "dialog": self._number,
            "number": number,
            "article": f"A{(self._number * 31 + number * 7) % 9973:04}",
            "pieces": number % 9 + 1,
            "remark": "to be left at the gate " * (number % 5),
        }
        return orjson.dumps(order)

    def _fault(self, text: str) -> None:
        self.judged.faults.append(f"dialog {self._number}: {text}")


class FileLines:
    """A dialog that sends a file line by line; the reply has the number of lines and the hash."""

    contract = FILES
    replies = 1

    def __init__(self, path: Path, due: float) -> None:
        self.judged = Judged()
        self.due = due
        self._path = path
        self._found = path.stat()

    def chunks(self) -> Iterator[list[Sending]]:
        """Yield the lines of the file, in chunks limited by count and bytes, and then FileEnd."""
        chunk: list[Sending] = []
        size = 0
        for line in lines_of(self._path):
            chunk.append(("Line", line))
            size += len(line)
            if len(chunk) >= _CHUNK_LINES or size >= _CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        yield [*chunk, ("FileEnd", ABSENT)]

    def room(self, chunk: list[Sending]) -> bool:
        """Return True, because no reply comes before FileEnd."""
        return True

    def check(self, reply: Message) -> None:
        """Check that the only reply has the line count and hash of the file as it is now."""
        if reply.is_error or reply.is_end:
            self._fault(f"the dialog was ended from the far side: {reply.error or 'EndDialog'}")
            return
        if self.judged.answered:
            self.judged.doubled += 1
            self._fault("it was answered again")
            return
        said = orjson.loads(reply.body or b"{}")
        lines, digest = digest_of(self._path)
        if said.get("lines") != lines:
            self._fault(f"it has {lines} lines, of which {said.get('lines')} were added up")
        elif said.get("sha256") != digest:
            self._fault("its hash differs")
        else:
            self.judged.answered = lines + 1  # FileEnd is one more

    def _fault(self, text: str) -> None:
        now = self._path.stat()
        if (now.st_size, now.st_mtime_ns) != (self._found.st_size, self._found.st_mtime_ns):
            text += "; the file was changed meanwhile"
        self.judged.faults.append(f"{self._path}: {text}")


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the bodies of a file: each line with its newline, cut at `LINE_LIMIT` bytes."""
    with path.open("rb") as file:
        while line := file.readline(LINE_LIMIT):
            yield line


def digest_of(path: Path) -> tuple[int, str]:
    """Return the number of `Line` messages of a file, and its SHA-256."""
    count, whole = 0, hashlib.sha256()
    for line in lines_of(path):
        whole.update(line)
        count += 1
    return count, whole.hexdigest()


def order_dialogs(dialogs: int, orders: int) -> list[Dialog]:
    """Return `dialogs` dialogs that share `orders` orders, some with few and some with many.

    The dialogs therefore end at different times, and the kills interrupt them at every stage.
    Each dialog gets at least one order.
    """
    weights = [1 + number % 7 for number in range(dialogs)]
    total = sum(weights)
    made: list[Dialog] = []
    given, so_far = 0, 0
    for number, weight in enumerate(weights):
        so_far += weight
        upto = max(given + 1, min(orders * so_far // total, orders - (dialogs - number - 1)))
        made.append(Orders(number, upto - given))
        given = upto
    return made


class Chosen(msgspec.Struct):
    """The files to send, and the number of their messages, FileEnd included."""

    files: list[tuple[Path, int]]
    """The files, each with the number of messages before it."""
    messages: int
    skipped: int
    """Files that cannot be read."""

    def dialogs(self) -> Iterator[Dialog]:
        """Yield a dialog for each file, created only when it is needed."""
        for path, before in self.files:
            yield FileLines(path, before / self.messages)


def choose_files(
    source: Path, *, pattern: str, limit_files: int | None, limit_lines: int | None, but: Path
) -> Chosen:
    """Choose the regular files below `source`, in the order of their names, up to the limits.

    Files are sent whole; the file that reaches `limit_lines` is the last. Files below `but` are
    excluded, and symbolic links are not followed.
    """
    chosen = Chosen([], 0, 0)
    for path in _walk(source, but.absolute()):
        if limit_files is not None and len(chosen.files) >= limit_files:
            break
        if limit_lines is not None and chosen.messages - len(chosen.files) >= limit_lines:
            break
        if not path.match(pattern):
            continue
        try:
            messages = sum(1 for _ in lines_of(path)) + 1
        except OSError:
            chosen.skipped += 1
        else:
            chosen.files.append((path, chosen.messages))
            chosen.messages += messages
    return chosen


def _walk(folder: Path, but: Path) -> Iterator[Path]:
    try:
        inside = sorted(folder.iterdir())
    except PermissionError:
        return
    for path in inside:
        if path.is_symlink():
            continue
        if path.is_dir():
            if path.absolute() != but:
                yield from _walk(path, but)
        elif path.is_file():
            yield path
