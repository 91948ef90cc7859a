"""`store verify` on stores that another version has written: it names the versions and the way."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from brokerd.cli.main import main
from brokerd.resources import migrations_dir
from brokerd.storage.schema import REVISIONS
from brokerd.storage.tables import APPLICATION_ID

NEWER = "9999"


def store_of(path: Path, revision: str) -> None:
    """A store as that version made it."""
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as wrapped:
        config.attributes["connection"] = wrapped
        command.upgrade(config, REVISIONS[-1] if revision == NEWER else revision)
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))


@pytest.mark.rule("HK-10", "REL-29")
@pytest.mark.parametrize("revision", [*REVISIONS[:-1], NEWER])
def test_a_store_of_another_version_is_not_called_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], revision: str
) -> None:
    path = tmp_path / "main.db"
    store_of(path, revision)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    assert main(["store", "verify", str(path)]) == 78
    said = capsys.readouterr().err
    assert revision in said
    assert REVISIONS[-1] in said
    assert "backup in its place" not in said
    assert ("restore a backup" if revision == NEWER else "start this version") in said
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [one.name for one in tmp_path.iterdir()] == ["main.db"]
