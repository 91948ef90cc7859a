"""From a store of revision 0007: state of groups that were over is gone, the rest is there."""

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
    " bound, end_sequence, far_end_sequence, discarded, first_acked) VALUES"
    " (?, ?, ?, 1, 'desk', 'talk', 'shop', 0, 1, 9, 5, ?, ?, 0, -1, -1, 0, 0)"
)


@pytest.mark.rule("REL-29", "GRP-2")
def test_state_that_outlived_its_group_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    with engine.connect() as wrapped:
        config.attributes["connection"] = wrapped
        command.upgrade(config, "0007_admin")
    for key, group, state in ((1, b"open", "CO"), (2, b"closed", "CD"), (3, b"open", "CD")):
        connection.execute(ENDPOINT, (key, b"h%d" % key, b"c%d" % key, group, state))
    for group in (b"open", b"closed", b"nobody"):
        connection.execute("INSERT INTO group_states VALUES (?, x'01')", (group,))
    if connection.in_transaction:
        connection.execute("COMMIT")
    schema.upgrade(connection, path)
    left = connection.execute("SELECT group_id FROM group_states").fetchall()
    assert left == [(b"open",)]
    connection.close()
