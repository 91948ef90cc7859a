"""Stores of the daemons of tests: in files, or with `--engine=postgresql` in PostgreSQL.

Whatever starts a daemon asks this module for its executor, or for the section [store] of its
settings. Each directory has a prefix of its own in the database, so that the daemons of a module,
and those that follow each other in a directory, find their own stores.
"""

import zlib
from pathlib import Path

from brokerd.storage.copying.moving import verify_place
from brokerd.storage.copying.places import FilePlace, Place, SchemaPlace
from brokerd.storage.executors import Executor, Inline, Threaded
from brokerd.storage.file_checks import is_moved
from brokerd.storage.postgresql.executor import InlineOnServer, OnServer
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.testing import left
from tests.postgresql.servers import Server


class Database:
    """A database with the stores of all daemons of a module."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._name = name
        self.url = server.url(name)

    def schemas(self, folder: Path) -> list[str]:
        """Return the schemas of a directory that have a store."""
        found = self._server.query(
            "SELECT schemaname FROM pg_tables WHERE tablename = 'alembic_version'"
            f" AND starts_with(schemaname, '{prefix_of(folder)}') ORDER BY 1",
            database=self._name,
        )
        return [str(name) for (name,) in found]


database: Database | None = None
"""Where the stores are; None = in files. Set by the fixture `engine`."""


def prefix_of(folder: Path) -> str:
    """Return how the names of the schemas of a directory begin."""
    return f"p{zlib.crc32(str(folder).encode()):08x}_"


def inline(folder: Path) -> Executor:
    """Return the executor of a daemon in virtual time, whose loop stands still for its stores."""
    return Inline() if database is None else InlineOnServer(database.url, _options(folder))


def threaded(folder: Path) -> Executor:
    """Return the executor of a daemon on the machine's clock."""
    return Threaded() if database is None else OnServer(database.url, _options(folder))


def section(folder: Path) -> str:
    """Return the section [store] of the settings of a daemon with this data directory."""
    if database is None:
        return ""
    return f'[store]\nurl = "{database.url}"\nschema_prefix = "{prefix_of(folder)}"\n'


def stores_of(folder: Path) -> list[Place]:
    """Return the stores of a data directory, except those that go on elsewhere."""
    if database is None:
        return [FilePlace(path) for path in folder.glob("*.db") if not is_moved(path)]
    return [SchemaPlace(database.url, name) for name in database.schemas(folder)]


def place_of(path: Path) -> Place | None:
    """Return the place of a store that a daemon calls by this path; None if there is none."""
    if path.exists():
        return FilePlace(path)
    name = prefix_of(path.parent) + path.stem
    if database is None or name not in database.schemas(path.parent):
        return None
    return SchemaPlace(database.url, name)


def problems(place: Place, *, may_be_over: bool) -> list[str]:
    """Return what is wrong with a store, as `left.in_file` does for one in a file (HK-10)."""
    return left.problems(verify_place(place), str(place), may_be_over=may_be_over)


def _options(folder: Path) -> ServerOptions:
    return ServerOptions(require_durable=False, schema_prefix=prefix_of(folder))
