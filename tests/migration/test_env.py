"""Alembic's entry works over the connection it is given, and only so."""

import shutil
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

from brokerd.resources import migrations_dir
from brokerd.storage.tables import metadata

# It cannot read an index on an expression back; the whole texts are compared elsewhere.
BLIND = pytest.mark.filterwarnings(
    "ignore:autogenerate skipping:UserWarning",
    "ignore:Skipped unsupported reflection of expression:sqlalchemy.exc.SAWarning",
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The shipped environment with no revisions yet, in a folder that may be written to."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations_dir(), folder, ignore=shutil.ignore_patterns("[0-9]*.py"))
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    return config


def test_without_a_connection_nothing_is_opened(config: Config) -> None:
    with pytest.raises(TypeError, match="needs an open connection"):
        command.current(config)


@BLIND
def test_a_generated_revision_makes_the_schema_of_the_tables_module(config: Config) -> None:
    engine = sa.create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.revision(config, "first tables", autogenerate=True, rev_id="0001")
            command.upgrade(config, "head")
            assert set(metadata.tables) <= set(sa.inspect(connection).get_table_names())
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    finally:
        engine.dispose()
