"""From a filled store of revision 0002: what was there is there, and has no retention."""

import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from brokerd.resources import migrations_dir
from brokerd.storage import schema
from brokerd.storage.rows import catalog

ENDPOINT = (
    "INSERT INTO conversation_endpoints (endpoint_key, handle, conversation_id, is_initiator,"
    " service, contract, far_service, encryption, began_at, expires_at, priority, group_id, state,"
    " bound, end_sequence, far_end_sequence, discarded, first_acked) VALUES"
    " (1, x'01', x'02', 1, 'desk', 'talk', 'shop', 0, 1, 9, 5, x'03', 'CO', 0, -1, -1, 0, 0)"
)
QUEUE = (
    "INSERT INTO service_queues (queue_key, name, is_enqueue_enabled, is_receive_enabled,"
    " max_readers, is_activation_enabled) VALUES (7, 'desk', 1, 1, 0, 0)"
)


@pytest.mark.rule("REL-29")
def test_a_filled_store_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    with engine.connect() as wrapped:
        config.attributes["connection"] = wrapped
        command.upgrade(config, "0002")
    connection.execute(ENDPOINT)
    connection.execute(QUEUE)
    connection.execute("INSERT INTO endpoint_progress VALUES (1, 3, 2, 0)")
    if connection.in_transaction:
        connection.execute("COMMIT")
    schema.upgrade(connection, path)
    found = connection.execute("SELECT state, error_queue FROM conversation_endpoints").fetchall()
    assert found == [("CO", None)]
    moved = connection.execute("SELECT * FROM endpoint_progress").fetchall()
    assert moved == [(1, 3, 2, 0, None)]  # which message came last is not known (REL-15)
    queue = catalog.load(connection).queues["desk"]
    assert (queue.key, queue.retention, queue.retention_limit.max_rows) == (7, False, 0)
    for table in ("retained_messages", "conversation_timers"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.close()
