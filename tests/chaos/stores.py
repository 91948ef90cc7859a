"""Stores: where the store of a daemon's broker is, and what it has.

Reads:  the file with SQLite, or the server over its socket; never through the daemon.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from tests.postgresql.servers import USER, Server

DATABASE: Final = "stores"
_FILLED: Final = frozenset(
    {
        "endpoint_progress",
        "queue_messages",
        "queue_removals",
        "queue_drops",
        "bodies",
        "body_pieces",
        "transmission_queue",
        "group_states",
        "held_groups",
        "conversation_timers",
        "undelivered_events",
        "dialog_log",
    }
)
_STATES: Final = "SELECT 'endpoints ' || state, count(*) FROM {}conversation_endpoints GROUP BY 1"


class Store(Protocol):
    """The store of the broker `main` of one daemon."""

    settings: str
    """The section [store] of the daemon's settings."""
    backs_up: bool
    """Whether the daemon writes backups of it."""

    def __str__(self) -> str:
        """What `brokerd store verify` is given."""

    def exists(self) -> bool: ...

    @property
    def size(self) -> int:
        """Bytes of it, without its log where that belongs to a server."""

    def rows(self) -> dict[str, int]:
        """How many rows each table has that dialogs fill, if any; endpoints by state."""


class FileStore:
    """A store that is a file, or a copy of one."""

    settings = ""
    backs_up = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        return self.path.exists()

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.path.parent.glob(f"{self.path.name}*"))

    def rows(self) -> dict[str, int]:
        uri = f"file:{self.path}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=30)) as store:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1"
            names = [name for (name,) in store.execute(tables)]
            return _rows(names, "", lambda text: store.execute(text).fetchall())


class ServerStore:
    """A store in a schema of a PostgreSQL server."""

    backs_up = False

    def __init__(self, server: Server, prefix: str) -> None:
        self._server = server
        self._schema = f"{prefix}main"
        url = f"postgresql://{USER}@/{DATABASE}?host={quote(str(server.folder))}&port={server.port}"
        self._url = f"{url}&schema={self._schema}"
        self.settings = f'[store]\nurl = "{url}"\nschema_prefix = "{prefix}"\n'

    def __str__(self) -> str:
        return self._url

    def exists(self) -> bool:
        found = f"SELECT FROM pg_tables WHERE schemaname = '{self._schema}' AND tablename = 'store'"
        return bool(self._query(found))

    @property
    def size(self) -> int:
        sizes = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class"
        ((size,),) = self._query(
            f"{sizes} WHERE relkind = 'r' AND relnamespace = '{self._schema}'::regnamespace"
        )
        return int(size or 0)

    def rows(self) -> dict[str, int]:
        tables = f"SELECT tablename FROM pg_tables WHERE schemaname = '{self._schema}' ORDER BY 1"
        names = [str(name) for (name,) in self._query(tables)]
        return _rows(names, f'"{self._schema}".', self._query)

    def _query(self, text: str) -> list[tuple[str | None, ...]]:
        return self._server.query(text, database=DATABASE)


def _rows(names: Iterable[str], schema: str, query: Any) -> dict[str, int]:
    found = {
        name: int(query(f"SELECT count(*) FROM {schema}{name}")[0][0])
        for name in names
        if name in _FILLED or name.startswith("shelf_")
    }
    found |= {state: int(count) for state, count in query(_STATES.format(schema))}
    return {name: count for name, count in found.items() if count}
