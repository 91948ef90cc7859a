"""History: what clients asked and what they were told, one event a line (reliability 7.1).

Written by simulations, the SDK and the daemon; read by `brokerd.testing.check`. The vocabulary is
in the docstring of that module.

Reads:  a function for the time, history files.
Never:  changes or forgets an event.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

VERSION: Final = 1
"""Of the format of files."""


class Kind(StrEnum):
    """What an event says about the operation it belongs to."""

    INVOKE = "invoke"
    """It was asked for."""
    OK = "ok"
    """It is known to have happened."""
    FAIL = "fail"
    """It is known not to have happened."""
    INFO = "info"
    """Nobody can tell: the connection broke, the daemon died, or the wait ran out."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a history; which fields an operation needs stands in `brokerd.testing.check`."""

    i: int
    """Number of the event in its file, rising by one."""
    t: int
    """Microseconds of a clock that never goes back and that all recorders of a run share."""
    op: str
    kind: Kind
    node: str = ""
    boot_id: str = ""
    client: str = ""
    tx: int | None = None
    token: int | None = None
    dialog: str | None = None
    side: str | None = None
    seq: int | None = None
    uid: str | None = None
    hash: str | None = None
    group: str | None = None
    queue: str | None = None
    reason: str | None = None
    broker: str | None = None
    """Where it happened, which need not be where it was recorded (`node`)."""
    savepoint: int | None = None
    stored: int | None = None
    """What was durable, or allowed, at that moment: see the operation."""
    size: int | None = None
    """Bytes of the body; `brokerd bench replay` needs it, nothing is judged by it."""


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a file."""

    version: int


class HistoryUnusable(Exception):
    """The history does not say enough, or contradicts itself; nothing can be concluded."""


class History:
    """An append-only list of events, with numbers and times put in."""

    def __init__(self, time: Callable[[], float], *, node: str = "", boot_id: str = "") -> None:
        """`time` gives seconds, as `Clock.monotonic` does; node and boot are defaults."""
        self._time = time
        self._node = node
        self._boot_id = boot_id
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything recorded so far."""
        return tuple(self._events)

    def add(
        self,
        op: str,
        kind: Kind,
        *,
        node: str | None = None,
        boot_id: str | None = None,
        client: str = "",
        tx: int | None = None,
        token: int | None = None,
        dialog: str | None = None,
        side: str | None = None,
        seq: int | None = None,
        uid: str | None = None,
        hash: str | None = None,
        group: str | None = None,
        queue: str | None = None,
        reason: str | None = None,
        broker: str | None = None,
        savepoint: int | None = None,
        stored: int | None = None,
    ) -> Event:
        """Record one event, now."""
        event = Event(
            i=len(self._events),
            t=round(self._time() * 1_000_000),
            op=op,
            kind=kind,
            node=self._node if node is None else node,
            boot_id=self._boot_id if boot_id is None else boot_id,
            client=client,
            tx=tx,
            token=token,
            dialog=dialog,
            side=side,
            seq=seq,
            uid=uid,
            hash=hash,
            group=group,
            queue=queue,
            reason=reason,
            broker=broker,
            savepoint=savepoint,
            stored=stored,
        )
        self._events.append(event)
        return event

    def write(self, path: Path) -> None:
        """Write all events to a file, one JSON object a line."""
        write_events(path, self._events)


def show(event: Event) -> str:
    """Return the line of an event."""
    return msgspec.json.encode(event).decode()


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Write a history file; its first line says in which version of the format."""
    lines = [msgspec.json.encode(_Head(VERSION)), *map(msgspec.json.encode, events)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def read_events(path: Path) -> list[Event]:
    """Read one history file.

    A last line without its newline is the trace of a killed writer and is left out; anything
    else that does not parse, numbers that do not rise, a file without events and one of a version
    not known here are `HistoryUnusable`. A file that does not say its version has the first.
    """
    try:
        *lines, _torn = path.read_bytes().split(b"\n")
    except OSError as error:
        raise HistoryUnusable(f"{path}: {error.strerror}") from error
    decoder = msgspec.json.Decoder(Event)
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        if number == 1 and _is_head(path, line):
            continue
        try:
            events.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise HistoryUnusable(f"{path}, line {number}: {error}") from error
    if any(after.i <= before.i for before, after in pairwise(events)):
        raise HistoryUnusable(f"{path}: the numbers of the events do not rise")
    if not events:
        raise HistoryUnusable(f"{path}: there are no events in it")
    return events


def _is_head(path: Path, line: bytes) -> bool:
    try:
        found = msgspec.json.decode(line, type=_Head).version
    except msgspec.MsgspecError:
        return False
    if found != VERSION:
        raise HistoryUnusable(
            f"{path} has version {found} of the format; this program reads version {VERSION}"
        )
    return True


def merge(histories: Iterable[Iterable[Event]]) -> list[Event]:
    """Put the events of several recorders in the order of their times.

    Each recorder's own order is kept; of equal times the earlier file comes first.
    """
    keyed = [
        (event.t, file, event.i, event) for file, events in enumerate(histories) for event in events
    ]
    keyed.sort(key=lambda found: found[:3])
    return [event for *_, event in keyed]
