"""Query: answers questions about the lake of the nightly report, in SQL.

Reads:  the records of the days, the list of tables, and Parquet files of a lake.   Calls: `duckdb`.
Never:  changes the lake or any other file, reads outside the lake, or uses Spark or Java.
Fails:  `LakeUnreadable` if there is no lake, `QueryFailed` with what the database says of the SQL.

A query sees each day as its record names it when the query begins (BI-L36).
"""

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from brokerd.errors import Refusal

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LAKE: Final = "lake"
TABLES: Final = "tables.json"

_TYPES: Final = {
    "bigint": "BIGINT",
    "boolean": "BOOLEAN",
    "double": "DOUBLE",
    "int": "INTEGER",
    "string": "VARCHAR",
}
_SETTINGS: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
}


class QueryExtraMissing(Refusal):
    """The package that queries need is not installed."""

    code = "query_extra_missing"
    hint = "install it with: pip install 'brokerd[lake]'"


class LakeUnreadable(Refusal):
    """There is no lake to query, or it cannot be read."""

    code = "lake_unreadable"
    hint = "name the directory that `brokerd report run --date DAY --output` was given"


class QueryFailed(Refusal):
    """The SQL of a query is wrong, or does more than read."""

    code = "query_failed"
    hint = "the tables and their columns: brokerd report query REPORTS --tables"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `type` is that of Spark, and `unit` may be empty."""

    name: str
    type: str
    meaning: str
    unit: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a lake."""

    name: str
    about: str
    by: Sequence[str]
    columns: Sequence[Column]


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of an answer, and the names of their columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def tables(reports: Path) -> Mapping[str, Table]:
    """Return the tables of the lake of a directory of reports, by name.

    Raises:
        LakeUnreadable: there is no lake, or one of a version without the list of tables.
    """
    path = reports / LAKE / TABLES
    try:
        said = json.loads(path.read_bytes())["tables"]
        return {
            name: Table(name, one["about"], one["by"], [Column(**each) for each in one["columns"]])
            for name, one in said.items()
        }
    except FileNotFoundError:
        if not (reports / LAKE / "current").is_dir():
            raise LakeUnreadable(f"there is no lake in {reports}") from None
        hint = f"run once: brokerd report run --date last --output {reports}"
        raise LakeUnreadable(f"{path} is missing, as in older versions", hint=hint) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LakeUnreadable(f"{path} cannot be read: {error}") from error


def ask(
    reports: Path,
    sql: str,
    *,
    given: Mapping[str, str] | None = None,
    first: str = "",
    last: str = "",
) -> Answer:
    """Return the answer to one SELECT over the tables; `given` has values for its parameters.

    `first` and `last` limit the days, and are days such as 2026-11-18; "" means no limit.

    Raises:
        QueryExtraMissing: the package duckdb is not installed.
        LakeUnreadable: there is no lake, or it cannot be read.
        QueryFailed: the SQL is wrong, or more than one SELECT.
    """
    if importlib.util.find_spec("duckdb") is None:
        raise QueryExtraMissing("queries need the package duckdb")
    import duckdb  # noqa: PLC0415  # only installed with brokerd[lake]

    known = tables(reports)
    days = {
        date: generation
        for date, generation in _days(reports / LAKE)
        if date >= first and (not last or date <= last)
    }
    connection = duckdb.connect(config=dict(_SETTINGS))
    with connection:
        try:
            _check(connection, sql)
            for table in known.values():
                if re.search(rf"\b{re.escape(table.name)}\b", sql, re.IGNORECASE):
                    _view(connection, reports / LAKE, table, days)
            _lock(connection, reports / LAKE)
            found = connection.execute(sql, dict(given or {}) or None)
            return Answer([one[0] for one in found.description or ()], found.fetchall())
        except duckdb.IOException as error:
            raise LakeUnreadable(
                f"the lake cannot be read: {_first_line(error)}",
                hint="if a run has just replaced a day, ask again",
            ) from error
        except duckdb.Error as error:
            raise QueryFailed(str(error).strip()) from error


def _days(lake: Path) -> Iterator[tuple[str, str]]:
    """Return each day of the lake with the name of its valid generation."""
    for path in sorted((lake / "current").glob("*.json")):
        try:
            yield path.stem, str(json.loads(path.read_bytes())["generation"])
        except FileNotFoundError:
            continue  # a run has removed the day
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LakeUnreadable(f"{path} cannot be read: {error}") from error


def _check(connection: "DuckDBPyConnection", sql: str) -> None:
    """Refuse whatever is not one SELECT: a COPY writes files, and an ATTACH opens others."""
    from duckdb import StatementType  # noqa: PLC0415

    statements = connection.extract_statements(sql)
    if [one.type for one in statements] != [StatementType.SELECT]:
        raise QueryFailed("a query is one SELECT; nothing else is done with a lake")


def _view(
    connection: "DuckDBPyConnection", lake: Path, table: Table, days: Mapping[str, str]
) -> None:
    """Make a view of a table over these days.

    An empty table with all columns is part of it: so there is a view of a table without files, and
    columns that files of older versions lack are null.
    """
    name, empty = _quoted(table.name), _quoted(f"no {table.name}")
    columns = ", ".join(f"{_quoted(one.name)} {_type(one.type)}" for one in table.columns)
    connection.execute(f"CREATE TABLE {empty} ({columns})")
    select = f"SELECT * FROM {empty}"  # noqa: S608  # the lake's own names, quoted
    files = [
        str(path)
        for date, generation in days.items()
        for path in sorted(
            (lake / table.name / f"date={date}" / f"generation={generation}").rglob("*.parquet")
        )
    ]
    if files:
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in files)
        types = ", ".join(f"{_quoted(one)}: VARCHAR" for one in table.by)
        select += (
            f" UNION ALL BY NAME SELECT * EXCLUDE (generation) FROM read_parquet([{listed}], "  # noqa: S608
            f"union_by_name = true, hive_partitioning = true, hive_types = {{{types}}})"
        )
    connection.execute(f"CREATE VIEW {name} AS {select}")


def _lock(connection: "DuckDBPyConnection", lake: Path) -> None:
    """Let the connection read files of the lake only, and keep its settings from now on."""
    connection.execute("SET allowed_directories = [?]", [f"{lake}/"])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _type(text: str) -> str:
    """Return the database's name of a type of Spark."""
    kind, _, inner = text.partition("<")
    if not inner:
        return _TYPES[kind]
    parts = _split(inner[:-1])
    if kind == "map":
        return f"MAP({', '.join(map(_type, parts))})"
    if kind == "array":
        return f"{_type(inner[:-1])}[]"
    fields = (part.split(":", 1) for part in parts)
    return f"STRUCT({', '.join(f'{_quoted(name)} {_type(each)}' for name, each in fields)})"


def _split(text: str) -> list[str]:
    """Split the text of a nested type at the commas outside of its brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
