"""The dialogs of the demo, seen from the client: what is sent, and which replies are right.

PURE but for reading the files that are sent.
Never:  believes a counter: a reply is right if its number, its count and its running hash are
those that follow from the bodies sent. The hash of orders is a chain, H(n) = SHA-256(H(n-1) + body
n), because each reply tells it and the chain is had for one hash a message; that of a file is its
SHA-256, as `sha256sum` prints it.
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
"""Message type and body."""

LINE_LIMIT: Final = 64 * 1024
"""Bytes; longer lines are cut. More than a fragment holds, so that bodies travel in several."""

_SIZES: Final = (2, 1, 3, 5, 1, 4)
"""Orders of one transaction, in turn; the first one begins the dialog and sends two."""
_CHUNK_LINES: Final = 100
_CHUNK_BYTES: Final = 256 * 1024
_AHEAD: Final = 12
"""Orders of one dialog that may be unanswered: the rest is sent as the replies come."""


class Judged(msgspec.Struct):
    """What became of one dialog, counted in messages of the client."""

    sent: int = 0
    answered: int = 0
    doubled: int = 0
    faults: list[str] = []

    @property
    def lost(self) -> int:
        """Sent and not answered."""
        return max(0, self.sent - self.answered)


class Dialog(Protocol):
    """One dialog to be had; `judged` says how far it is."""

    contract: str
    replies: int
    """How many replies it takes until it is over."""
    judged: Judged

    def chunks(self) -> Iterator[list[Sending]]:
        """What to send, a transaction each."""
        ...

    def room(self, chunk: list[Sending]) -> bool:
        """Whether more may be sent before more replies have come."""
        ...

    @property
    def due(self) -> float:
        """Where in the whole, from 0 to 1, what it sends next belongs."""
        ...

    def take(self, reply: Message) -> None:
        """Judge a reply whose receiving has been committed."""
        ...


class Orders:
    """A dialog of orders, each answered with its number, the count and the hash so far."""

    contract = "orders/v1"

    def __init__(self, number: int, orders: int) -> None:
        self.replies = orders
        self.judged = Judged()
        self._number = number
        self._next = 0
        self._hash = b""

    def chunks(self) -> Iterator[list[Sending]]:
        """All orders, a few in each transaction."""
        at = 0
        for size in cycle(_SIZES):
            if at >= self.replies:
                return
            upto = min(self.replies, at + size)
            yield [("Order", self._order(number)) for number in range(at, upto)]
            at = upto

    def room(self, chunk: list[Sending]) -> bool:
        """A dialog keeps a few orders on the way."""
        judged = self.judged
        return judged.sent - judged.answered + len(chunk) <= _AHEAD

    @property
    def due(self) -> float:
        """All such dialogs go on side by side."""
        return self.judged.sent / self.replies

    def take(self, reply: Message) -> None:
        """The next reply must be the next order's, with the hash of all orders up to it."""
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
    """A dialog that sends a file by lines and is answered with their count and hash."""

    contract = FILES
    replies = 1

    def __init__(self, path: Path, due: float) -> None:
        self.judged = Judged()
        self.due = due
        self._path = path
        self._found = path.stat()

    def chunks(self) -> Iterator[list[Sending]]:
        """The lines of the file, as many in each transaction as is handy, and FileEnd."""
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
        """Nothing is answered before the end."""
        return True

    def take(self, reply: Message) -> None:
        """The one reply must be the hash of the file as it can be read now."""
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
    """The file as messages: each line with its end, cut where it is too long."""
    with path.open("rb") as file:
        while line := file.readline(LINE_LIMIT):
            yield line


def digest_of(path: Path) -> tuple[int, str]:
    """Number of messages that a file makes, and its SHA-256."""
    count, whole = 0, hashlib.sha256()
    for line in lines_of(path):
        whole.update(line)
        count += 1
    return count, whole.hexdigest()


def order_dialogs(dialogs: int, orders: int) -> list[Dialog]:
    """So many dialogs that share so many orders, some with few and some with many.

    They end at different times, then, and the kills meet dialogs in every stage.
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
    """The files to be sent, and how many messages they come to, FileEnd included."""

    files: list[tuple[Path, int]]
    """Each with the number of messages before it."""
    messages: int
    skipped: int
    """Files that cannot be read."""

    def dialogs(self) -> Iterator[Dialog]:
        """A dialog for each file, made when it is asked for."""
        for path, before in self.files:
            yield FileLines(path, before / self.messages)


def choose_files(
    source: Path, *, pattern: str, limit_files: int | None, limit_lines: int | None, but: Path
) -> Chosen:
    """The regular files below `source`, by name, until a limit is reached.

    Both limits are for whole files: the one that reaches the limit of lines is the last.
    Nothing below `but` is taken, and links are not followed.
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
