"""Alembic's environment: upgrades one store to this version's schema over a given connection.

Reads:  the connection that the storage package put into `config.attributes["connection"]`.
Calls:  the revisions in versions/, in the transaction of that connection.
Never:  opens a store, commits by itself, or reads an ini file.
"""

from alembic import context
from sqlalchemy import Connection

from brokerd.storage.tables import metadata


def run_migrations() -> None:
    """Run the outstanding revisions; the caller owns the transaction, and commits or rolls back.

    In SQLite tables are altered by copy (`render_as_batch`), because it can change little in place.
    """
    connection = context.config.attributes.get("connection")
    if not isinstance(connection, Connection):
        raise TypeError('a migration needs an open connection in config.attributes["connection"]')
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


run_migrations()
