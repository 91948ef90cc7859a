"""Bodies in pieces (large ones, and those of incomplete messages): statements, reading.

Reads:  bodies, body_pieces.      Calls: the connection it is given.
Never:  returns a piece that is not as it was written (REL-6), or deletes many pieces at once: all
        other users of the writer would have to wait.

A large body is written before its message, piece by piece; meanwhile it has no owner through which
it could be read. The flush with the message names the owner, and only this makes the body visible.
A message that is received, acknowledged or given up leaves its body without an owner, and such
bodies are swept, some pieces at a time. So a crash in between only leaves bodies without an owner,
or owned by a transaction that no longer exists.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Table, case, cast, func, literal_column, select
from sqlalchemy import LargeBinary as Bytes
from sqlalchemy import Text as Characters

from brokerd.ids import BodyKey, EndpointKey
from brokerd.storage.changes import BodyRow, Owner, PieceRow
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.hashes import is_piece_sound, piece_hash
from brokerd.storage.shelves import NO_SHELF, PLACES
from brokerd.storage.statements import Inserts, Script
from brokerd.storage.stretches import among, table_at
from brokerd.storage.tables import PAGED, bodies, body_pieces

SWEEP: Final = 64
"""Most pieces that a flush, or a step of the sweep, deletes."""
SWEEP_BYTES: Final = 512 * 1024
"""Most bytes of pieces that a flush, or a step of the sweep, deletes, unless it deletes a single
piece. Each page is read before it is freed: 16 MiB took 20 to 30 ms, for which the small messages
of the same flush waited."""

_put = Inserts(bodies, replace=True)
_put_piece = Inserts(body_pieces)
_TO_NOBODY: Final = "UPDATE bodies SET owner = 0, number = body_key"
_LISTED: Final = "IN (SELECT value FROM json_each(?))"
_LEAVE: Final = f"{_TO_NOBODY} WHERE owner = ? AND number {_LISTED}"


def leaving(owner: Owner, found: str) -> str:
    """Return the statement that disowns the bodies of the owners whose numbers `found` selects."""
    return f"{_TO_NOBODY} WHERE owner = {int(owner)} AND number IN ({found})"


def _leaving_of(owner: Owner, number: str, table: str, of: str, also: str) -> str:
    return leaving(owner, f"SELECT {number} FROM {table} WHERE endpoint_key {of}{also}")  # noqa: S608


_LEAVE_OUTGOING: Final = _leaving_of(
    Owner.OUTGOING,
    "transmission_order",
    "transmission_queue",
    "= ?",
    f" AND sequence <= ? AND {PAGED}",
)
_LEAVE_WAITING: Final = {
    place: _leaving_of(
        Owner.WAITING, "queuing_order", table_at(place), _LISTED, f" AND {among(place)}"
    )
    for place in PLACES
}
_RETAIN: Final = (
    f"UPDATE bodies SET owner = 4 WHERE owner = 2 AND number {_LISTED}"  # noqa: S608
    " AND EXISTS (SELECT 1 FROM retained_messages WHERE queuing_order = number)"
)
_NOBODYS: Final = (  # all pieces are as long as the first, except the last one
    "SELECT body_key, (SELECT length(data) FROM body_pieces AS it"
    " WHERE it.body_key = bodies.body_key ORDER BY piece LIMIT 1)"
    " FROM bodies WHERE owner = 0 ORDER BY number LIMIT ?"
)
_DELETE_PIECES: Final = (
    "DELETE FROM body_pieces WHERE body_key = ?1 AND piece IN"
    " (SELECT piece FROM body_pieces WHERE body_key = ?1 ORDER BY piece LIMIT ?2)"
)
_FORGET: Final = "DELETE FROM bodies WHERE body_key = ?"
_ANY: Final = "SELECT 1 FROM bodies LIMIT 1"
_FIND: Final = "SELECT body_key, size FROM bodies WHERE owner = ? AND number = ?"
_PIECES: Final = "SELECT piece, hash, data FROM body_pieces WHERE body_key = ? ORDER BY piece"
_GIVE_UP: Final = f"{_TO_NOBODY} WHERE owner = {int(Owner.ASIDE)}"
_ADOPT: Final = (
    "INSERT INTO bodies (body_key, owner, number, size) SELECT DISTINCT body_key, 0, body_key, 0"
    " FROM body_pieces WHERE body_key NOT IN (SELECT body_key FROM bodies)"
)
_HIGHEST: Final = "SELECT max(body_key) FROM bodies"
_MESSAGE: Final = {
    Owner.WAITING: " UNION ALL ".join(
        f"SELECT 1 FROM {table_at(place)} WHERE queuing_order = ?1"  # noqa: S608
        for place in PLACES
    ),
    Owner.OUTGOING: "SELECT 1 FROM transmission_queue WHERE transmission_order = ?",
}


# Writes of a flush.


def put(script: Script, rows: Sequence[BodyRow]) -> None:
    """Write the owners of bodies."""
    _put.add(script, rows)


def put_pieces(script: Script, rows: Iterable[PieceRow]) -> None:
    """Write pieces."""
    _put_piece.add(
        script,
        [(key, piece, piece_hash(key, piece, data), data) for key, piece, data in rows],
    )


def leave(script: Script, owner: Owner, numbers: Sequence[int]) -> None:
    """Disown the bodies of the owners with these numbers, because the owners are deleted."""
    if numbers:
        script.add(_LEAVE, (int(owner), json.dumps(numbers)))


def leave_outgoing(script: Script, ends: Sequence[tuple[EndpointKey, int]]) -> None:
    """Disown the bodies of outgoing messages, found by index, up to a sequence per endpoint.

    Call this before the messages are deleted.
    """
    script.add(_LEAVE_OUTGOING, *ends)


def leave_waiting(script: Script, keys: Sequence[EndpointKey], taken: Sequence[int]) -> None:
    """Disown the bodies of the endpoints' waiting messages, found by index.

    `taken`: shelves that may have messages.
    """
    if keys:
        for place in (NO_SHELF, *taken):
            script.add(_LEAVE_WAITING[place], (json.dumps(keys),))


def retain(script: Script, numbers: Sequence[int]) -> None:
    """Give the bodies of messages to their retained copies, which keep the numbers (RCV-31)."""
    script.add(_RETAIN, (json.dumps(numbers),))


def sweep(connection: Connection) -> bool:
    """Delete some pieces of bodies without an owner; return whether there are more."""
    pieces, size = SWEEP, SWEEP_BYTES
    for key, each in connection.execute(_NOBODYS, (SWEEP,)).fetchall():
        most = max(1, min(pieces, size // (each or 1)))
        count = connection.execute(_DELETE_PIECES, (key, most)).rowcount
        pieces, size = pieces - count, size - count * (each or 0)
        if count == most or pieces <= 0 or size <= 0:
            return True
        connection.execute(_FORGET, (key,))
    return connection.execute(_NOBODYS, (1,)).fetchone() is not None


# Jobs that run in a transaction of their own.


class Swept(NamedTuple):
    """The state after a step of the sweep."""

    more: bool
    """Whether there are more bodies without an owner."""
    some: bool
    """Whether any body is in pieces."""


def sweep_on(connection: Connection) -> Swept:
    """Run a step of the sweep, in a transaction of its own."""
    with transaction(connection):
        more = sweep(connection)
        return Swept(more, connection.execute(_ANY).fetchone() is not None)


def recover(connection: Connection) -> tuple[bool, BodyKey]:
    """Disown the bodies that no transaction can claim after a start.

    Return whether any body is in pieces, and the next key. Pieces without a row in `bodies` get
    one: otherwise they would never be swept, and their keys would be used again.
    """
    connection.execute(_GIVE_UP)
    connection.execute(_ADOPT)
    highest = connection.execute(_HIGHEST).fetchone()[0]
    return highest is not None, BodyKey((highest or 0) + 1)


# Reading.


class Missing(Enum):
    """The reason why a body cannot be read."""

    GONE = "gone"
    """The message no longer exists either."""
    DAMAGED = "damaged"


class Body(NamedTuple):
    """A body joined from its pieces."""

    key: BodyKey
    data: bytes


class DamagedPieceError(Exception):
    """Error for a piece that is missing or not as it was written. Stays inside the package."""


def sound(key: BodyKey, pieces: Iterable[tuple[int, bytes, bytes]]) -> Iterator[bytes]:
    """Yield the data of the given pieces in order; each comes with its number and hash.

    `DamagedPieceError`: one is not as it was written (REL-6).
    """
    for expected, (piece, digest, data) in enumerate(pieces):
        if piece != expected or not is_piece_sound(key, piece, data, digest):
            raise DamagedPieceError
        yield data


def read(connection: Connection, owner: Owner, number: int) -> Body | Missing:
    """Return the body of a message, joined from checked pieces (REL-6), in one read transaction."""
    connection.execute("BEGIN")
    try:
        found = connection.execute(_FIND, (int(owner), number)).fetchone()
        if found is None:
            there = connection.execute(_MESSAGE[owner], (number,)).fetchone()
            return Missing.DAMAGED if there else Missing.GONE
        key, size = BodyKey(found[0]), found[1]
        body = b"".join(sound(key, connection.execute(_PIECES, (key,))))
    except DamagedPieceError:
        return Missing.DAMAGED
    finally:
        connection.execute("ROLLBACK")
    return Body(key, body) if len(body) == size else Missing.DAMAGED


def size_of(table: Table, owner: Owner) -> ColumnElement[Any]:
    """Return SQL for the size of a message's body, in pieces or not; 0 = it has no body."""
    found = select(bodies.c.size).where(*_whose(table, owner)).correlate(table)
    elsewhere = found.scalar_subquery()
    own = func.length(table.c.body)
    size = case((_is_elsewhere(table), elsewhere), else_=own)
    return func.coalesce(size, literal_column("0"))


def body_of(table: Table, owner: Owner) -> ColumnElement[Any]:
    """Return SQL for a message's body for views, in pieces or not; pieces are not checked."""
    key = select(bodies.c.body_key).where(*_whose(table, owner)).correlate(table)
    pieces = select(body_pieces.c.data).where(body_pieces.c.body_key == key.scalar_subquery())
    ordered = pieces.order_by(body_pieces.c.piece).subquery()
    # CAST keeps the bytes as they are, between binary and text, zeros included.
    whole = func.group_concat(cast(ordered.c.data, Characters), literal_column("''"))
    joined = select(cast(whole, Bytes)).scalar_subquery()
    return case((_is_elsewhere(table), joined), else_=table.c.body)


def _whose(table: Table, owner: Owner) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    (number,) = table.primary_key.columns
    return bodies.c.owner == literal_column(str(int(owner))), bodies.c.number == number


def _is_elsewhere(table: Table) -> ColumnElement[bool]:
    """Return SQL that is true if the body is in pieces.

    Such a message has a hash but no body in its own row; a retained one has neither.
    """
    absent = table.c.body.is_(None)
    return absent & table.c.body_hash.is_not(None) if "body_hash" in table.c else absent
