"""History: the requests of clients and their answers, one event per line (reliability 7.1).

Simulations, the SDK and the daemon write histories; `brokerd.testing.check` reads them, and its
docstring describes the events.

Reads:  a function that returns the time, history files.
Never:  changes or removes an event.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

VERSION: Final = 1
"""Version of the file format."""


class Kind(StrEnum):
    """The statement that an event makes about its operation."""

    INVOKE = "invoke"
    """The operation was requested."""
    OK = "ok"
    """The operation is known to have happened."""
    FAIL = "fail"
    """The operation is known not to have happened."""
    INFO = "info"
    """The outcome is unknown: the connection broke, the daemon died, or the wait ran out."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line of a history; `brokerd.testing.check` lists the fields that each operation needs."""

    i: int
    """Number of the event in its file; the numbers rise from event to event."""
    t: int
    """Time in microseconds, by a clock that never goes back and that a run's recorders share."""
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
    """Name of the broker where the event happened; it may be recorded elsewhere."""
    savepoint: int | None = None
    stored: int | None = None
    """Durable sequence, allowed number or latest time, depending on the operation."""
    size: int | None = None
    """Size of the body in bytes; for `brokerd bench replay`, not used by the checker."""


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a history file."""

    version: int


class HistoryUnusable(Exception):
    """A history that lacks events, or contradicts itself, so that it allows no conclusion."""


class History:
    """An append-only list of events, which gives each event its number and time."""

    def __init__(self, time: Callable[[], float], *, node: str = "", boot_id: str = "") -> None:
        """Create an empty history.

        `time`: returns seconds, as `Clock.monotonic` does. `node`, `boot_id`: defaults for the
        events.
        """
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
        """All events recorded so far."""
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
        """Record one event at the current time, and return it."""
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
        """Write all events to a file, one JSON object per line."""
        write_events(path, self._events)


def show(event: Event) -> str:
    """Return an event as its line in a history file."""
    return msgspec.json.encode(event).decode()


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Write a history file, whose first line has the version of the format."""
    lines = [msgspec.json.encode(_Head(VERSION)), *map(msgspec.json.encode, events)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def read_events(path: Path) -> list[Event]:
    """Read one history file.

    A last line without a newline comes from a killed writer, and is ignored. Raise
    `HistoryUnusable` if another line does not parse, if the numbers do not rise, if the file has no
    events, or if its version is unknown. A file without a version line has version 1.
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
    """Merge the events of several recorders in the order of their times.

    Of events with equal times, those of the earlier history come first; events of one history keep
    the order of their numbers.
    """
    keyed = [
        (event.t, file, event.i, event) for file, events in enumerate(histories) for event in events
    ]
    keyed.sort(key=lambda found: found[:3])
    return [event for *_, event in keyed]
