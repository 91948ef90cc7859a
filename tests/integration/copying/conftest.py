"""Stores with rows in every table, in files and in PostgreSQL."""

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.clock import Instant, SystemClock
from brokerd.ids import BrokerId, Incarnation, InstanceId, SeededIds
from brokerd.storage import tables
from brokerd.storage.copying.moving import Mover
from brokerd.storage.copying.places import FilePlace, SchemaPlace
from brokerd.storage.hashes import body_hash
from brokerd.storage.opening import NewStore, make_file
from brokerd.storage.postgresql.opening import ServerOptions
from tests.postgresql.fixtures import Schema

UNSYNCED = ServerOptions(require_durable=False)
"""Options for the servers of tests."""
_ODD = "a'b\"c:d?e \u00e9\u4e2d\U0001f600\n"
"""A text with everything that statements, JSON and sorting may stumble over."""
_BLOB = bytes(range(256))


def fill(path: Path) -> None:
    """Make a store in which each table has rows, NULLs, extremes and odd texts among them."""
    new = NewStore("shop", BrokerId(b"b" * 16), InstanceId(b"i" * 16), host=b"h" * 16)
    make_file(path, new, incarnation=Incarnation(b"n" * 16), now=Instant(1))
    numbers = itertools.count(1000)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA defer_foreign_keys = ON")
        for table in tables.metadata.sorted_tables:
            if table is tables.store:
                continue
            for is_sparse in (False, True):
                row = _row(table, next(numbers), is_sparse=is_sparse)
                places = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {table.name} VALUES ({places})", row)
        _make_sound(connection)


def _row(table: Any, number: int, *, is_sparse: bool) -> list[object]:
    return [
        None if is_sparse and column.nullable else _value(table, column, number)
        for column in table.columns
    ]


def _value(table: Any, column: Any, number: int) -> object:
    for key in column.foreign_keys:
        parent = key.column
        # The second row of a parent has the number after that of the first.
        first = 1000 + 2 * ([t for t in tables.metadata.sorted_tables if t is not tables.store]
                            .index(parent.table))  # fmt: skip
        return _value(parent.table, parent, first + number % 2)
    kind = column.type.python_type
    if kind is int:
        return number if column.primary_key or column.name == "number" else 1
    if kind is bytes:
        is_id = column.name.endswith("_id") or column.name == "handle"
        return number.to_bytes(16) if is_id or column.primary_key else _BLOB
    return f"{_ODD}{number}"


def _make_sound(connection: sqlite3.Connection) -> None:
    """Make the rows agree as `store verify` wants it."""
    execute = connection.execute
    (first,), (second,) = execute("SELECT endpoint_key FROM conversation_endpoints ORDER BY 1")
    (queue,) = execute("SELECT min(queue_key) FROM service_queues").fetchone()
    execute("UPDATE conversation_endpoints SET state = 'CO', end_sequence = -1")
    execute("UPDATE conversation_endpoints SET is_initiator = endpoint_key % 2")
    execute("DELETE FROM endpoint_progress")
    rows = [(first, 9, 9, 0, b"x" * 16), (second, 2**40, 2**40, 0, None)]
    connection.executemany("INSERT INTO endpoint_progress VALUES (?, ?, ?, ?, ?)", rows)
    for name in ("conversation_timers", "retained_messages"):
        execute(f"UPDATE {name} SET endpoint_key = ? WHERE endpoint_key IS NOT NULL", (first,))
    execute("UPDATE queue_removals SET orders = '[]'")
    execute("DELETE FROM queue_drops")
    execute("UPDATE conversation_endpoints SET state = 'CD' WHERE endpoint_key = ?", (second,))
    execute("INSERT INTO queue_drops VALUES (?)", (second,))
    places = [table.name for table in tables.messages_at.values()]
    for table in (*places, "transmission_queue"):
        is_sent = table == "transmission_queue"
        key = "transmission_order" if is_sent else "queuing_order"
        found = execute(f"SELECT {key} FROM {table}").fetchall()
        for (order,) in found:
            sequence = (order - 1000) % 2 if is_sent else -1
            conversation, flag = execute(
                "SELECT conversation_id, is_initiator FROM conversation_endpoints"
                " WHERE endpoint_key = ?", (first,)
            ).fetchone()  # fmt: skip
            from_initiator = bool(flag) is is_sent
            body = _BLOB * (order % 3)
            digest = body_hash(conversation, from_initiator, sequence, body)
            execute(
                f"UPDATE {table} SET endpoint_key = ?, sequence = ?, body = ?, body_hash = ?"
                f" WHERE {key} = ?", (first, sequence, body, digest, order)
            )  # fmt: skip
            if not is_sent:
                execute(f"UPDATE {table} SET queue_key = ? WHERE {key} = ?", (queue, order))
    execute("DELETE FROM body_pieces")
    execute("DELETE FROM bodies")
    execute("INSERT INTO bodies VALUES (7, 0, 7, 4)")  # nobody's, as a crash leaves it
    execute("INSERT INTO body_pieces VALUES (7, 0, x'00', x'0001ff')")
    execute("UPDATE store SET next_endpoint_key = 9000, next_queuing_order = 9000,"
            " next_transmission_order = 9000")  # fmt: skip
    # Keys that were given and are gone must not be given again.
    execute("UPDATE sqlite_sequence SET seq = 5000 WHERE name = 'audit'")


def rows_of(connection: Any) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of a store, by table."""
    return {
        table.name: [
            tuple(row)
            for row in connection.execute(
                f"SELECT * FROM {table.name} ORDER BY "
                + ", ".join(column.name for column in table.primary_key)
            )
        ]
        for table in tables.metadata.sorted_tables
    }


def rows_in_file(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        return rows_of(connection)


@pytest.fixture
def source(tmp_path: Path) -> FilePlace:
    path = tmp_path / "shop.db"
    fill(path)
    return FilePlace(path)


@pytest.fixture
def schema(postgresql_schema: Schema) -> SchemaPlace:
    return SchemaPlace(*postgresql_schema)


@pytest.fixture
def mover() -> Callable[..., Mover]:
    ids = SeededIds(Random(3))

    def make(**given: Any) -> Mover:
        return Mover(ids=ids, clock=SystemClock(), server=UNSYNCED, **given)

    return make
