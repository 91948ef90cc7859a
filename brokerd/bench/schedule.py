"""Recorded traffic as a schedule of transactions and their messages. PURE except for reading files.

Reads:  histories that clients recorded (`brokerd.FileRecorder`), one JSON event a line.
Never:  plays transactions that were rolled back, have failed, or never asked to commit.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from brokerd.bench.measuring import MOST_BODY
from brokerd.client.file_recorder import VERSION
from brokerd.errors import Refusal, UsageError

_RECORD = "record anew with brokerd.connect(..., recorder=brokerd.FileRecorder(FILE))"


class BadTraffic(Refusal):
    """A file of recorded traffic cannot be played."""

    code = "bad_traffic"


class TrafficUnreadable(Refusal):
    """A file of recorded traffic cannot be read."""

    code = "traffic_unreadable"
    hint = "name files that brokerd.FileRecorder has written"


class _Line(msgspec.Struct, frozen=True):
    """The fields of an event that matter here; `client.file_recorder.Line` has all of them."""

    t: Annotated[int, Meta(ge=0)]
    op: str
    kind: str = "invoke"
    client: str = ""
    tx: int | None = None
    dialog: str | None = None
    side: str = ""
    size: Annotated[int, Meta(ge=0, le=MOST_BODY)] | None = None
    savepoint: int | None = None
    i: int | None = None
    """The number of the event in its file; None = it was not recorded."""


class Place(NamedTuple):
    """The file and line of an event."""

    path: Path
    line: int


class Sending(msgspec.Struct, frozen=True, array_like=True):
    """One transaction that sent messages."""

    due: float
    """Seconds since the first transaction of the schedule."""
    client: int
    sends: tuple[tuple[int, int], ...]
    """Number of the dialog and size of the body in bytes, for each message in order."""


class Schedule(msgspec.Struct, frozen=True):
    """All sending transactions to be played, in the order of time."""

    clients: int
    dialogs: int
    sendings: list[Sending]
    left_out: int = 0
    """Number of sends that are not played: rolled back, refused, or never committed."""
    lacks: tuple[str, ...] = ()
    """Descriptions of recorded events that are missing in the files."""

    @property
    def messages(self) -> int:
        """The number of messages."""
        return sum(len(one.sends) for one in self.sendings)

    @property
    def seconds(self) -> float:
        """Seconds from the first to the last transaction."""
        return self.sendings[-1].due

    @property
    def longest_pause(self) -> float:
        """The longest time in seconds without a send."""
        dues = [one.due for one in self.sendings]
        return max((b - a for a, b in pairwise(dues)), default=0.0)

    @property
    def bytes(self) -> int:
        """Bytes of all bodies together."""
        return sum(size for one in self.sendings for _, size in one.sends)


def read_traffic(paths: Sequence[Path]) -> Schedule:
    """Return the schedule of all files; `BadTraffic` names file, line and cure."""
    if twice := [
        path for path, count in Counter(one.resolve() for one in paths).items() if count > 1
    ]:
        raise UsageError(f"{twice[0]} is named twice", hint="name each file once")
    lacks: list[str] = []
    placed = [(place, line) for path in paths for place, line in _lines(path, lacks)]
    placed.sort(key=lambda found: found[1].t)  # stable: each file's own order is kept
    schedule = plan(placed, name=", ".join(map(str, paths)))
    return msgspec.structs.replace(schedule, lacks=tuple(lacks))


def plan(placed: Iterable[tuple[Place, _Line]], *, name: str = "the recording") -> Schedule:
    """Group the sends by committed transaction, at the time when it asked to commit."""
    gathering = _Gathering()
    for place, line in placed:
        gathering.add(place, line)
    schedule = gathering.schedule()
    if not schedule.sendings:
        raise BadTraffic(f"{name}: no send in it was committed, so there is nothing to play",
                         hint=_RECORD)  # fmt: skip
    return schedule


class _Open:
    """A transaction under way."""

    def __init__(self) -> None:
        self.sends: list[tuple[int, int]] = []
        self.savepoints: dict[int, int] = {}
        self.undone: tuple[int, int] | None = None


class _Gathering:
    """The transactions and dialogs that have been read so far."""

    def __init__(self) -> None:
        self._clients: dict[str, int] = {}
        self._dialogs: dict[tuple[str, str], int] = {}
        self._open: dict[tuple[str, int], _Open] = {}
        """Transactions that have not requested to commit; most that never do were rolled back."""
        self._asked: dict[tuple[str, int] | int, tuple[int, str, _Open]] = {}
        """Transactions that requested to commit, with the time, the client and the messages."""
        self._alone = 0
        self._left_out = 0

    def add(self, place: Place, line: _Line) -> None:
        """Add one event."""
        if line.op == "send" and line.kind == "invoke":
            self._send(place, line)
        if line.tx is None:
            return
        key = (line.client, line.tx)
        match line.op, line.kind:
            case "commit", "invoke":
                if (found := self._open.pop(key, None)) is not None and found.sends:
                    self._asked[key] = (line.t, line.client, found)
            case "commit", "fail":
                self._left_out += len(self._asked.pop(key, (0, "", _Open()))[2].sends)
            case "savepoint" | "rollback_to", _ if line.savepoint is not None:
                self._savepoint(self._open.setdefault(key, _Open()), line, line.savepoint)

    def _send(self, place: Place, line: _Line) -> None:
        if line.dialog is None or line.size is None:
            lacks = "dialog" if line.dialog is None else "size"
            raise BadTraffic(
                f"{place.path}, line {place.line}: a send without its {lacks}", hint=_RECORD
            )
        dialog = self._dialogs.setdefault((line.dialog, line.side), len(self._dialogs))
        if line.tx is None:
            alone = _Open()
            alone.sends.append((dialog, line.size))
            self._alone += 1
            self._asked[self._alone] = (line.t, line.client, alone)
        else:
            found = self._open.setdefault((line.client, line.tx), _Open())
            found.sends.append((dialog, line.size))

    def _savepoint(self, found: _Open, line: _Line, number: int) -> None:
        if line.op == "savepoint":
            found.savepoints[number] = len(found.sends)
        elif line.kind == "invoke":
            found.undone = (found.savepoints.get(number, 0), len(found.sends))
        elif line.kind == "ok" and found.undone is not None:
            since, until = found.undone
            self._left_out += until - since
            del found.sends[since:until]

    def schedule(self) -> Schedule:
        """Return the schedule; dialogs and clients are numbered by their first send."""
        left_out = self._left_out + sum(len(one.sends) for one in self._open.values())
        asked = sorted(self._asked.values(), key=lambda one: one[0])
        first = asked[0][0] if asked else 0
        dialogs: dict[int, int] = {}
        sendings = [
            Sending(
                due=(at - first) / 1e6,
                client=self._clients.setdefault(client, len(self._clients)),
                sends=tuple(
                    (dialogs.setdefault(dialog, len(dialogs)), size) for dialog, size in one.sends
                ),
            )
            for at, client, one in asked
        ]
        return Schedule(len(self._clients), len(dialogs), sendings, left_out)


def _lines(path: Path, lacks: list[str]) -> Iterator[tuple[Place, _Line]]:
    """Yield the events of a file; append descriptions of missing events to `lacks`.

    A killed program leaves an incomplete last line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TrafficUnreadable(f"{path} cannot be read: {error.strerror}") from None
    decode, before, numbers = msgspec.json.Decoder(_Line).decode, 0, _Numbers()
    torn = lines.pop() if _is_torn(lines[-1]) else b""
    for number, text in enumerate(lines, 1):
        if number == 1 and (version := _version(text)) is not None:
            if version != VERSION:
                raise BadTraffic(
                    f"{path} has version {version} of the form, not {VERSION}", hint=_RECORD
                )
            continue
        try:
            line = decode(text)
        except msgspec.MsgspecError as error:
            raise BadTraffic(
                f"{path}, line {number}: {error}", hint=f"take the line out, or {_RECORD}"
            ) from None
        if line.t < before:
            raise BadTraffic(
                f"{path}, line {number}: its time {line.t} is before that of the line above",
                hint="sort the lines by t, or give what each process recorded as a file of its own",
            )
        before = line.t
        numbers.see(number, line.i)
        yield Place(path, number), line
    if numbers.missing:
        lacks.append(
            f"{path}: {numbers.missing} of its events are missing, the first before line "
            f"{numbers.first}; sends among them are not played"
        )
    if torn:
        lacks.append(f"{path}: its last line is not complete and was left out")


class _Numbers:
    """Check of the event numbers of a file, which counts missing events."""

    def __init__(self) -> None:
        self.missing = 0
        self.first = 0
        """The first line before which an event is missing."""
        self._next = 0
        self._mixed = False

    def see(self, line: int, number: int | None) -> None:
        """Check the number of the next event; events written by hand have no number."""
        if number is None or self._mixed:
            return
        if number < self._next:  # the file was put together from several
            self._mixed, self.missing = True, 0
        elif number > self._next:
            self.missing += number - self._next
            self.first = self.first or line
        self._next = number + 1


def _is_torn(text: bytes) -> bool:
    """Return whether the text after the last line end is empty or not an event."""
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return True
    return False


class _Head(msgspec.Struct, frozen=True):
    version: int


def _version(text: bytes) -> int | None:
    try:
        return msgspec.json.decode(text, type=_Head).version
    except msgspec.MsgspecError:
        return None
