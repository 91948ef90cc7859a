"""Database URLs: what is wrong with the URL of a PostgreSQL database, and what may be shown of it.

PURE.   Reads: nothing.      Calls: nothing.
Never:  returns a text with a password.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

_SECRETS: Final = ("password", "sslpassword")
_WRITABLE: Final = ("primary", "read-write")
_FORM: Final = "write postgresql://USER@HOST/DATABASE"


def problems_of(url: str) -> Iterator[str]:
    """Yield what is wrong with the URL of a database."""
    try:
        parts = urlsplit(url)
    except ValueError:
        yield f"cannot be read: {_FORM}"
        return
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme not in {"postgresql", "postgres"}:
        yield f"is not the URL of a PostgreSQL database: {_FORM}"
        return
    user, _, hosts = parts.netloc.rpartition("@")
    if ":" in user or any(query.get(name) for name in _SECRETS):
        yield (
            "has a password, which everyone who can read the settings would see: take it out, and "
            "name a file with it, by passfile= in the URL or PGPASSFILE in the environment"
        )
    if not (parts.path.strip("/") or query.get("dbname") or query.get("database")):
        yield f"names no database: {_FORM}"
    hosts = hosts or query.get("host", "")
    if "," in hosts and query.get("target_session_attrs") not in _WRITABLE:
        yield "names several servers: add target_session_attrs=primary, to use the writable one"


def shown(url: str) -> str:
    """Return the servers and the database of a URL, without user, password and options."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql"
    return f"postgresql://{_hosts(parts)}/{_database(parts)}"


def _hosts(parts: SplitResult) -> str:
    hosts = parts.netloc.rpartition("@")[2]
    return hosts or dict(parse_qsl(parts.query)).get("host", "")


def _database(parts: SplitResult) -> str:
    query = dict(parse_qsl(parts.query))
    return parts.path.strip("/") or query.get("dbname") or query.get("database") or ""
