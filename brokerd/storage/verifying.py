"""Verifying a store: whether its rows agree with each other (HK-10, BI-D3).

This is the half of the checker that needs no history: every row has the rows it refers to, numbers
are in their range and without gaps, every body is as it was written. It reads one state of the
file, so a daemon may have the file open.

Reads:  the whole file, on a connection that only queries.      Calls: SQLite.
Never:  changes anything, runs code stored in the file (BI-D4), or stops at the first finding.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from brokerd.errors import StoreDamaged
from brokerd.ids import BodyKey, ConversationId
from brokerd.protocol.transitions import State
from brokerd.storage import file_checks, schema
from brokerd.storage.changes import Owner
from brokerd.storage.connections import Connection
from brokerd.storage.files.lock import is_held
from brokerd.storage.files.log_check import find_loss, what_is_unknown
from brokerd.storage.hashes import is_large_sound, is_sound
from brokerd.storage.rows import bodies
from brokerd.storage.rows.deferred_drops import DROPPED
from brokerd.storage.rows.deferred_removals import NOTED
from brokerd.storage.rows.ended_dialogs import ENDED, OUTGOING_LEFT, RETAINED_LEFT
from brokerd.storage.stretches import EVERYWHERE
from brokerd.units import counted

MOST: Final = 100
"""Most findings of one kind that are reported; the file may be full of them."""


class Finding(msgspec.Struct, frozen=True):
    """A contradiction in the store."""

    table: str
    where: str
    """The keys of the row, or of the object to which the row belongs."""
    problem: str
    is_left_over: bool = False
    """Whether nothing is damaged: the next start deletes the rows, or the daemon that has the store
    open is deleting them (REL-36)."""
    is_unknown: bool = False
    """Whether nothing is damaged, but the existing files cannot tell whether anything is missing
    (REL-41)."""
    cure: str = ""
    """The remedy, if one is known."""

    @property
    def is_damage(self) -> bool:
        """Whether the store is not whole."""
        return not self.is_left_over and not self.is_unknown


class Rows(Protocol):
    """The rows that a query returned."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows that are left."""
        ...

    def fetchone(self) -> Any:  # noqa: ANN401  # as sqlite3 has it
        """Return the next row; None = there are no more."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        ...


class Queries(Protocol):
    """A connection that only reads."""

    def execute(self, text: str, values: Sequence[Any] = (), /) -> Rows:
        """Run a query."""
        ...


def refuse_damaged(path: Path, *, name: str) -> None:
    """Raise `StoreDamaged` if a store is not whole; leftover rows do no harm.

    `name`: the name of the file in the error, which also names the first contradiction.
    """
    damage = [one for one in verify(path) if one.is_damage]
    if damage:
        first = damage[0]
        raise StoreDamaged(
            f"{name} is not whole: {counted(len(damage), 'thing')} in it cannot be, the first in"
            f" {first.table or 'the file'}, {first.where}: {first.problem}"
        )


def verify(path: Path) -> list[Finding]:
    """Return all contradictions in the store at `path`, and its leftover rows.

    `StoreDamaged`, `StoreVersion`: the file is not a store, or not one of this version;
    `StoreDamaged` also if SQLite cannot read the rest of the file.
    """
    file_checks.check_header(path)
    loss = find_loss(path, is_in_use=is_held(path))
    if loss is not None:  # findings of SQLite with such a log would say little about the store
        return [Finding("", "its log", loss.show(), cure=loss.ways_on(path))]
    schema.refuse_older(path, file_checks.check_schema(path))
    unknown = what_is_unknown(path)
    beside = [Finding("", "its log", unknown, is_unknown=True)] if unknown else []
    with file_checks.reading(path) as connection:
        connection.execute("BEGIN")
        try:
            return [*beside, *_pages(connection), *findings_of_rows(connection)]
        except sqlite3.DatabaseError as error:
            raise file_checks.unreadable(path, error) from error


def findings_of_rows(connection: Queries) -> Iterator[Finding]:
    """Yield what the rows of a store show, whichever engine has them (HK-10)."""
    yield from _rows(connection)
    yield from _bodies(connection)
    yield from _left_over(connection)


def _pages(connection: Connection) -> Iterator[Finding]:
    for (text,) in connection.execute(f"PRAGMA integrity_check({MOST})"):
        if text != "ok":
            yield Finding("", "the file", str(text))
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield Finding(table, f"row {row}", f"names something of {parent} that is not there")


def _rows(connection: Queries) -> Iterator[Finding]:
    for table, problem, keys, rest in _WRONG:
        query = f"{_LIVE} SELECT {', '.join(keys)} FROM {rest} LIMIT {MOST}"  # noqa: S608  # ours
        for row in connection.execute(query).fetchall():
            columns = [f"{key.split()[-1]} {value}" for key, value in zip(keys, row, strict=True)]
            yield Finding(table, ", ".join(columns), problem)


def _left_over(connection: Queries) -> Iterator[Finding]:
    """Count the rows that ended dialogs have left, as there may be very many (REL-36)."""
    for table, where in _LEFT_OVER:
        query = f"SELECT count(*), count(DISTINCT endpoint_key) FROM {table} WHERE {where}"  # noqa: S608  # ours
        rows, dialogs = connection.execute(query).fetchone()
        if rows:
            amount = f"{counted(rows, 'row')} of {counted(dialogs, 'dialog')}"
            yield Finding(table, amount, "are over: the next start deletes them", is_left_over=True)


def _bodies(connection: Queries) -> Iterator[Finding]:
    """Find bodies that are not as they were written (REL-6), in one piece or in several."""
    for table, messages, key, owner in _BODIES:
        query = (
            f"{_LIVE} SELECT m.{key}, conversation_id, is_initiator, sequence, body, body_hash,"  # noqa: S608  # ours
            f" body_key, size FROM {messages} AS m JOIN conversation_endpoints USING (endpoint_key)"
            f" LEFT JOIN bodies AS b ON b.owner = {int(owner)} AND b.number = m.{key}"
        )
        found = 0
        for number, conversation, flag, sequence, body, stored, *there in connection.execute(query):
            # A queue has messages from the peer, the transmission queue those of this side.
            from_initiator = bool(flag) is (owner is Owner.OUTGOING)
            place = ConversationId(conversation), from_initiator, sequence
            if body is None and stored is not None:
                sound = _is_whole(connection, place, stored, *there)
            else:
                sound = is_sound(*place, body, stored)
            if not sound:
                yield Finding(table, f"{key} {number}", _NOT_WRITTEN)
                found += 1
            if found == MOST:
                break
    yield from _other_pieces(connection)


def _is_whole(
    connection: Queries,
    place: tuple[ConversationId, bool, int],
    stored: bytes,
    key: BodyKey | None,
    size: int,
) -> bool:
    """Return whether a body in pieces is as it was written."""
    if key is None or not is_large_sound(place, key, size, stored):
        return False
    return size == _size(connection, key)


def _size(connection: Queries, key: BodyKey) -> int | None:
    """Return the size in bytes of a body in pieces; None = a piece is not as it was written."""
    pieces = "SELECT piece, hash, data FROM body_pieces WHERE body_key = ? ORDER BY piece"
    try:
        return sum(map(len, bodies.sound(key, connection.execute(pieces, (key,)))))
    except bodies.DamagedPieceError:
        return None


def _other_pieces(connection: Queries) -> Iterator[Finding]:
    """Find damaged bodies in pieces of messages that do not wait: incomplete and retained ones."""
    rows = connection.execute(
        "SELECT body_key, owner, size FROM bodies WHERE owner IN (?, ?)",
        (int(Owner.ARRIVING), int(Owner.RETAINED)),
    )
    found = 0
    for key, owner, size in rows:
        stored = _size(connection, BodyKey(key))
        if stored is None or (owner == Owner.RETAINED and stored != size):
            yield Finding("body_pieces", f"body_key {key}", _NOT_WRITTEN)
            found += 1
        if found == MOST:
            break


_NOT_WRITTEN: Final = "has a body that is not the one that was written"
# Received messages are deleted later (`deferred_removals.py`), and so are the many unread ones of
# an ended dialog (`deferred_drops.py`): such rows count as deleted.
_LIVE: Final = (
    f"WITH waiting AS ({EVERYWHERE}),"  # noqa: S608
    f" live AS (SELECT * FROM waiting WHERE queuing_order NOT IN ({NOTED})"
    f" AND endpoint_key NOT IN ({DROPPED})),"
    f" sending AS (SELECT * FROM transmission_queue WHERE NOT ({OUTGOING_LEFT}))"
)
_LEFT_OVER: Final = (
    ("transmission_queue", OUTGOING_LEFT),
    ("retained_messages", RETAINED_LEFT),
)
_STATES: Final = ", ".join(f"'{state.value}'" for state in State)
_NO_ENDPOINT: Final = "endpoint_key NOT IN (SELECT endpoint_key FROM conversation_endpoints)"
_FROM_TO: Final = ("endpoint_key", "min(sequence) AS first", "max(sequence) AS last")
_SEVERAL: Final = "WHERE sequence >= 0 GROUP BY endpoint_key, sequence HAVING count(*) > 1"
_WITH_GAP: Final = (
    "WHERE sequence >= 0 GROUP BY endpoint_key"
    " HAVING count(DISTINCT sequence) <= max(sequence) - min(sequence)"
)
_WRONG: Final = (
    # Table, problem, the columns that identify the row, and the rest of the query that finds the
    # row.
    (
        "conversation_endpoints",
        "has a state that does not exist",
        ("endpoint_key", "state"),
        f"conversation_endpoints WHERE state NOT IN ({_STATES})",
    ),
    (
        "conversation_endpoints",
        "has numbers out of range",
        ("endpoint_key",),
        "conversation_endpoints WHERE priority NOT BETWEEN 1 AND 10 OR end_sequence < -1"
        " OR far_end_sequence < -1 OR discarded < 0 OR length(handle) <> 16"
        " OR length(conversation_id) <> 16 OR length(group_id) <> 16",
    ),
    (
        "endpoint_progress",
        "is missing",
        ("endpoint_key",),
        "conversation_endpoints WHERE endpoint_key NOT IN"
        " (SELECT endpoint_key FROM endpoint_progress)",
    ),
    (
        "endpoint_progress",
        "belongs to no endpoint, or is below zero",
        ("endpoint_key",),
        f"endpoint_progress WHERE {_NO_ENDPOINT} OR send_sequence < 0 OR receive_sequence < 0"
        " OR receive_fragment < 0",
    ),
    (
        "queue_messages",
        "belongs to no endpoint",
        ("queuing_order", "endpoint_key"),
        f"live WHERE {_NO_ENDPOINT}",
    ),
    (
        "queue_messages",
        "is in a queue that does not exist",
        ("queuing_order", "queue_key"),
        "live WHERE queue_key NOT IN (SELECT queue_key FROM service_queues)",
    ),
    (
        "queue_messages",
        "has numbers out of range",
        ("queuing_order", "sequence", "priority"),
        "live WHERE sequence < -2 OR priority NOT BETWEEN 0 AND 10",
    ),
    (
        "queue_messages",
        "is not the only one of its sequence",
        ("endpoint_key", "sequence"),
        f"live {_SEVERAL}",
    ),
    (
        "queue_messages",
        "is ahead of what its endpoint has received",
        ("queuing_order", "sequence"),
        "live JOIN endpoint_progress USING (endpoint_key) WHERE sequence >= receive_sequence",
    ),
    (
        "queue_drops",
        "gives up the messages of a dialog that goes on",
        ("endpoint_key", "state"),
        "queue_drops JOIN conversation_endpoints USING (endpoint_key)"
        f" WHERE state NOT IN ({ENDED})",
    ),
    (
        "conversation_endpoints",
        "waits for the acknowledgement of an end that nobody sends",
        ("endpoint_key", "end_sequence"),
        f"conversation_endpoints WHERE state = '{State.DISCONNECTED_OUTBOUND.value}'"  # noqa: S608
        " AND endpoint_key NOT IN (SELECT endpoint_key FROM sending JOIN conversation_endpoints"
        " USING (endpoint_key) WHERE sequence = end_sequence)",
    ),
    (
        "transmission_queue",
        "is not the only one of its sequence",
        ("endpoint_key", "sequence"),
        f"sending {_SEVERAL}",
    ),
    (
        "transmission_queue",
        "is ahead of what its endpoint has sent",
        ("transmission_order", "sequence"),
        "sending JOIN endpoint_progress USING (endpoint_key) WHERE sequence >= send_sequence",
    ),
    (
        "transmission_queue",
        "has a gap between its sequences",
        _FROM_TO,
        f"sending {_WITH_GAP}",
    ),
    (
        "bodies",
        "belongs to nobody that is there",
        ("body_key", "owner", "number"),
        "bodies WHERE owner = 1 AND number NOT IN (SELECT endpoint_key FROM endpoint_progress)"
        " OR owner = 2 AND number NOT IN (SELECT queuing_order FROM waiting)"
        " OR owner = 3 AND number NOT IN (SELECT transmission_order FROM transmission_queue)"
        " OR owner = 4 AND number NOT IN (SELECT queuing_order FROM retained_messages)",
    ),
    (
        "body_pieces",
        "belongs to no body",
        ("body_key", "piece"),
        "body_pieces WHERE body_key NOT IN (SELECT body_key FROM bodies)",
    ),
    (
        "conversation_timers",
        "belongs to no endpoint",
        ("endpoint_key", "name"),
        f"conversation_timers WHERE {_NO_ENDPOINT}",
    ),
    (
        "store",
        "gives out numbers that are taken already",
        ("next_endpoint_key", "next_queuing_order", "next_transmission_order"),
        "store WHERE next_queuing_order <= (SELECT max(queuing_order) FROM waiting)"
        " OR next_endpoint_key <= (SELECT max(endpoint_key) FROM conversation_endpoints)"
        " OR next_transmission_order <= (SELECT max(transmission_order) FROM transmission_queue)",
    ),
)
_BODIES: Final = (
    # Name of the table, its messages, their key, the owner of their bodies in pieces.
    ("queue_messages", "live", "queuing_order", Owner.WAITING),
    ("transmission_queue", "transmission_queue", "transmission_order", Owner.OUTGOING),
)
