"""From a store of revision 0018: what is in it stays, and it knows of no broker yet (MAN-16)."""

import sqlite3
from pathlib import Path

import pytest
from alembic import command

from brokerd.storage import schema
from brokerd.storage.rows import known_brokers


@pytest.mark.rule("REL-29", "MAN-16")
def test_an_older_store_remembers_nobody_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "msdb.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, _head: upgrade(config, "0018_shelves"))
    schema.upgrade(connection, path)
    route = ("out", "shop", b"b" * 16, "tcp://east:4022", None, "")
    connection.execute("INSERT INTO routes VALUES (?, ?, ?, ?, ?, ?)", route)
    connection.execute("INSERT INTO group_states VALUES (?, ?)", (b"g" * 16, b"state"))
    assert known_brokers.load(connection) == {}
    monkeypatch.setattr(command, "upgrade", upgrade)
    schema.upgrade(connection, path)
    assert connection.execute("SELECT * FROM routes").fetchall() == [route]
    assert connection.execute("SELECT state FROM group_states").fetchall() == [(b"state",)]
    assert known_brokers.load(connection) == {}
    known_brokers.remember(connection, "shop", b"b" * 16)  # type: ignore[arg-type]
    assert known_brokers.load(connection) == {"shop": b"b" * 16}
    connection.close()
