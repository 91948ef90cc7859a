"""Places: where a store is: a file, or a schema of a PostgreSQL database.

PURE.   Reads: nothing.      Calls: nothing.
Never:  shows a password.

The place of a schema is the URL of its database with the parameter `schema`. A parameter, unlike a
fragment, can stand anywhere among the others and survives every program that handles URLs; other
programs for PostgreSQL name a schema in the same way.
"""

from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from brokerd.errors import UsageError

SCHEMES: Final = ("postgresql", "postgres")
_SECRETS: Final = ("password", "sslpassword")
_FORM: Final = "postgresql://USER@HOST/DATABASE?schema=NAME"


class FilePlace(NamedTuple):
    """A store in a file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


class SchemaPlace(NamedTuple):
    """A store in a schema."""

    url: str
    """The database, without the name of the schema; it may have a password."""
    schema: str

    def __str__(self) -> str:
        """Return the place as text, without a password."""
        return _shown(self.url, [("schema", self.schema)])

    @property
    def database(self) -> str:
        """The database as text, without a password."""
        return _shown(self.url, [])


Place = FilePlace | SchemaPlace


def is_url(text: str) -> bool:
    """Return whether a text means a database, not a file."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def database_of(text: str) -> tuple[str, str | None]:
    """Return the URL of a database without the schema, and the schema; None = none is named.

    Raises:
        UsageError: the text is no such URL.
    """
    if not is_url(text):
        raise UsageError(f"{text!r} is not the URL of a PostgreSQL database", hint=f"write {_FORM}")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UsageError(f"the URL cannot be read: {error}", hint=f"write {_FORM}") from error
    if parts.fragment:
        raise UsageError(
            f"the URL has a part behind #, {parts.fragment!r}, which servers do not get",
            hint=f"name the schema as a parameter: {_FORM}",
        )
    query = _query(parts)
    schemas = [value for key, value in query if key == "schema"]
    if len(schemas) > 1 or "" in schemas:
        raise UsageError("the URL has to name one schema", hint=f"write {_FORM}")
    names = {key: value for key, value in query if key in ("dbname", "database")}
    if not parts.path.strip("/") and not any(names.values()):
        raise UsageError("the URL names no database", hint=f"write {_FORM}")
    others = [pair for pair in query if pair[0] != "schema"]
    return _joined(parts, others), schemas[0] if schemas else None


def place_of(text: str, *, broker: str | None = None) -> Place:
    """Return the place that a text names.

    `broker`: the broker of the store, which names the file in a directory, and the schema where the
    URL names none; None = the text has to name the store itself.

    Raises:
        UsageError: the text names no store.
    """
    if not is_url(text):
        path = Path(text).absolute()
        if broker is not None and path.is_dir():
            path /= f"{broker}.db"
        return FilePlace(path)
    url, schema = database_of(text)
    if schema is None and broker is None:
        raise UsageError("the URL names no schema", hint=f"write {_FORM}, in quotation marks")
    return SchemaPlace(url, schema or str(broker))


def _shown(url: str, more: list[tuple[str, str]]) -> str:
    """Return a URL without a password, and with more parameters."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    query = [(key, value) for key, value in _query(parts) if key not in _SECRETS]
    netloc = f"{user.partition(':')[0]}{at}{hosts}"
    return _joined(parts._replace(netloc=netloc), [*query, *more])


def _joined(parts: SplitResult, query: list[tuple[str, str]]) -> str:
    """Return a URL; the library would leave out the // before an empty host."""
    also = f"?{urlencode(query, safe='/,:')}" if query else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{also}"


def _query(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)
