"""Texts: the statements of a store, which are written for SQLite, as PostgreSQL understands them.

Reads:  nothing.      Calls: nothing.
Never:  changes the meaning of a statement, or puts a value into its text.

Most statements mean the same to both engines. The few phrases that do not are in `_PHRASES`; the
contract suite runs every statement on both. Each value gets the type of the Python object that is
bound to it, since PostgreSQL has to know the types before it sees the values.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sqlalchemy import Column, Integer, LargeBinary

_SAME: Final = {
    "BEGIN IMMEDIATE": "BEGIN",
    "PRAGMA defer_foreign_keys = ON": "SET CONSTRAINTS ALL DEFERRED",
}
"""Whole statements with another name."""

_NUMBERS: Final = (
    r"LATERAL (SELECT each_.value::bigint AS value"
    r" FROM json_array_elements_text((\1)::json) AS each_(value)) AS json_each"
)
_EMPTY: Final = (
    r"DO 'BEGIN LOCK TABLE \1 IN ACCESS EXCLUSIVE MODE NOWAIT; TRUNCATE \1;"
    r" EXCEPTION WHEN lock_not_available THEN DELETE FROM \1; END'"
)
"""Empties a table of messages as a whole. While somebody reads it, it is emptied row by row: the
writer must not wait for readers, which may wait for it in turn."""
_PHRASES: Final = tuple(
    (re.compile(phrase), instead)
    for phrase, instead in (
        # The planner chooses the index: it is told not to read whole tables (`connection.py`).
        (r" INDEXED BY \w+", ""),
        (r"CROSS JOIN (\w+(?: AS \w+)?)\s+ON ", r"JOIN \1 ON "),
        (r"^DELETE FROM (shelf_\d+)$", _EMPTY),
        (r"\bsqlite_schema WHERE name\b", "pg_catalog.pg_class WHERE relname"),
        # A list of numbers is one value, a JSON array.
        (r"\bjson_each\(([^()]*)\)", _NUMBERS),
        (
            r"\bjson_group_array\(json_array\(([^()]*)\)\)",
            # U+0000, as it is stored (REL-55), has to be escaped within JSON.
            r"replace(coalesce(json_agg(json_build_array(\1)), '[]')::text,"
            r" U&'\\FDD00', '\\u0000')",
        ),
        (r"\bjson_group_array\((\w+)\)", r"coalesce(json_agg(\1), '[]')::text"),
        # A list without values, which SQLite allows.
        (r"\bIN \(\)", "IN (NULL)"),
        (r"\bmax\(([^(),]+), (-?\d+)\)", r"greatest(\1, \2)"),
        (r"\b(\w+) NOT GLOB '([^'*]*)\*'", r"NOT starts_with(\1, '\2')"),
        # Binary values are joined as what they are.
        (
            r"CAST\(group_concat\(CAST\((\S+) AS TEXT\), ''\) AS BLOB\)",
            r"string_agg(\1, ''::bytea)",
        ),
        # A damaged row may have a value of any type in SQLite; here it cannot.
        (r"CAST\(([\w.]+) AS (?:BLOB|TEXT|VARCHAR)\)", r"\1"),
    )
)
_PLACE: Final = re.compile(r"\?(\d+)?|(?<![:\w]):([a-z_]+)\b")
"""The place of a value: `?`, `?1` or `:name`; `::` before a type is none."""
_ROW: Final = re.compile(r"VALUES \((\?(?:, \?)*)\)")
_ONE: Final = re.compile(r"IN \(\?\)")


class Statement(NamedTuple):
    """A statement for PostgreSQL."""

    text: str
    order: tuple[int | str, ...]
    """For each place in the text, the index or the name of its value."""


@lru_cache(maxsize=2048)
def statement_of(text: str, types: tuple[type, ...] | tuple[tuple[str, type], ...]) -> Statement:
    """Return the statement that means the same as `text`, for values of these types.

    `types`: the types of the values in their order, or names with types.
    """
    same = _SAME.get(text)
    if same is not None:
        return Statement(same, ())
    for phrase, instead in _PHRASES:
        text = phrase.sub(instead, text)
    of_name = dict(types) if types and isinstance(types[0], tuple) else {}
    order: list[int | str] = []

    def place(match: re.Match[str]) -> str:
        number, name = match.groups()
        which: int | str = name or (int(number) - 1 if number else len(order))
        if number or name:  # a value that is bound once, however often it is named
            if which not in order:
                order.append(which)
            at = order.index(which)
        else:
            order.append(which)
            at = len(order) - 1
        kind = of_name[which] if isinstance(which, str) else types[which]
        return f"${at + 1}{_cast(kind)}"  # type: ignore[arg-type]  # one of the two forms

    return Statement(_PLACE.sub(place, text), tuple(order))


def _cast(kind: type) -> str:
    """Return the cast of a value of a Python type; NULL has the type of its surroundings."""
    if issubclass(kind, int):
        return "::bigint"
    if issubclass(kind, str):
        return "::text"
    if issubclass(kind, bytes | bytearray | memoryview):
        return "::bytea"
    return "::double precision" if issubclass(kind, float) else ""


def types_of(values: Sequence[object] | Mapping[str, object]) -> Any:  # noqa: ANN401  # two forms
    """Return the types of values, as `statement_of` wants them."""
    if isinstance(values, Mapping):
        return tuple((name, type(value)) for name, value in values.items())
    return tuple(map(type, values))


@lru_cache(maxsize=256)
def many_rows(text: str, types: tuple[str, ...]) -> str:
    """Return the statement of one row, or key, as one that takes a list for each column.

    `types`: the types of the columns (`column_type`).
    """
    columns = ", ".join(f"?::{kind}[]" for kind in types)
    if (row := _ROW.search(text)) is not None:
        assert row.group(1).count("?") == len(types), text
        return _ROW.sub(lambda _: f"SELECT * FROM unnest({columns})", text)  # noqa: S608  # ours
    found, count = _ONE.subn(lambda _: f"= ANY({columns})", text)
    assert count == 1, text
    return found


def is_plain_insert(text: str) -> bool:
    """Return whether the statement only adds rows, so that they can be copied into the table."""
    return text.startswith("INSERT INTO ") and text.endswith(")") and " ON CONFLICT " not in text


def column_type(column: Column[Any]) -> str:
    """Return the type that a column has in PostgreSQL."""
    if isinstance(column.type, Integer):
        return "bigint"
    return "bytea" if isinstance(column.type, LargeBinary) else "text"
