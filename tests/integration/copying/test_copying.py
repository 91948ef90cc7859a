"""Copying a store between engines: equal row for row, one history, never two or none (REL-61)."""

import sqlite3
from contextlib import closing

import pytest

from brokerd.storage import tables
from brokerd.storage.copying.moving import Pair, verify_place
from brokerd.storage.copying.places import FilePlace
from brokerd.storage.verifying import verify
from tests.integration.copying.conftest import rows_in_file


def go(mover, source, target):
    return mover.move([Pair(source, lambda _facts: target)])[0]


def without_host(rows):
    at = [column.name for column in tables.store.columns].index("host")
    (facts,) = rows["store"]
    return rows | {"store": [facts[:at] + facts[at + 1 :]]}


def version_of(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]


def test_the_store_of_these_tests_is_whole_and_has_rows_in_every_table(source):
    assert [one for one in verify(source.path) if one.is_damage] == []
    assert all(rows_in_file(source.path).values())


@pytest.mark.rule("REL-61", "REL-62")
def test_there_and_back_again_every_row_is_the_same(source, schema, mover, tmp_path):
    before = rows_in_file(source.path)
    there = go(mover(), source, schema)
    assert there.rows == sum(map(len, before.values()))
    assert verify_place(schema) == []
    back = FilePlace(tmp_path / "back.db")
    assert go(mover(), schema, back).tables == there.tables
    assert without_host(rows_in_file(back.path)) == without_host(before)
    with closing(sqlite3.connect(back.path)) as connection:
        sequence = dict(connection.execute("SELECT * FROM sqlite_sequence"))
    assert sequence["audit"] == 5000
