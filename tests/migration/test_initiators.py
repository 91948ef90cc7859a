"""From a store of revision 0020: closed initiators are due to be purged, and nothing else is."""

import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from brokerd.resources import migrations_dir
from brokerd.storage import schema

ENDPOINT = (
    "INSERT INTO conversation_endpoints (endpoint_key, handle, conversation_id, is_initiator,"
    " service, contract, far_service, encryption, began_at, expires_at, priority, group_id, state,"
    " bound, end_sequence, far_end_sequence, discarded, first_acked, purge_at) VALUES"
    " (?, ?, ?, ?, 'desk', 'talk', 'shop', 0, 1, 900, 5, x'00', ?, 0, -1, -1, 0, 0, ?)"
)


@pytest.mark.rule("REL-29", "DLG-T17", "PBT-5")
def test_closed_initiators_are_due_to_be_purged(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    with engine.connect() as wrapped:
        config.attributes["connection"] = wrapped
        command.upgrade(config, "0020_drops")
    for key, initiator, state, purge_at in (
        (1, 1, "CD", 900),
        (2, 0, "CD", 900),
        (3, 1, "CO", None),
    ):
        values = (key, b"h%d" % key, b"c%d" % key, initiator, state, purge_at)
        connection.execute(ENDPOINT, values)
    if connection.in_transaction:
        connection.execute("COMMIT")
    schema.upgrade(connection, path)
    due = connection.execute("SELECT endpoint_key, purge_at FROM conversation_endpoints")
    assert due.fetchall() == [(1, 0), (2, 900), (3, None)]
    connection.close()
