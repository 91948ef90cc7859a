"""Every statement that the package has as a constant is one that PostgreSQL understands.

The suite runs nearly all of them; this test finds those that it has forgotten."""

import re
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pkgutil import iter_modules

import pytest
from asyncpg import PostgresError
from sqlalchemy import Executable

from brokerd import storage
from brokerd.storage import rows
from brokerd.storage.postgresql.connecting import connect
from brokerd.storage.postgresql.connection import ServerConnection, in_thread
from brokerd.storage.postgresql.texts import _PLACE, column_type, many_rows, statement_of
from brokerd.storage.readers import PageOf, text_of
from brokerd.storage.statements import Texts
from tests.postgresql.stores import READY

OF_FILES = {  # modules that run statements on files alone
    "backup", "connections", "file_checks", "log_check", "log_head", "log_scan",
    "loss_acceptance", "moved_files", "opening", "schema", "space", "writers",
}  # fmt: skip
PARTS = {"ended_dialogs._OF", "stretches._FIRST", "verifying._LIVE"}
"""The beginnings of statements."""
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
_UNKNOWN_TYPE = ("42P18", "42P08")


def constants() -> Iterator[tuple[str, str]]:
    """Yield the name of each statement of a module, and its text for PostgreSQL."""
    folders = (storage, "brokerd.storage."), (rows, "brokerd.storage.rows.")
    found_there = (iter_modules(one.__path__, prefix) for one, prefix in folders)
    for found in chain.from_iterable(found_there):
        name = found.name.rpartition(".")[2]
        if not found.ispkg and name not in OF_FILES:
            for each, value in vars(import_module(found.name)).items():
                texts = () if f"{name}.{each}" in PARTS else texts_in(value, set())
                yield from ((f"{name}.{each}", text) for text in texts)


def texts_in(value: object, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str):
        if STATEMENT.match(value):
            yield plain(value)
    elif isinstance(value, PageOf):
        yield from texts_in(value.rows, seen)  # only SQLite packs a page
    elif isinstance(value, Executable):
        made = text_of(value)
        yield from texts_in(made.bind({key: [None] for key in made._lists})[0], seen)
    elif isinstance(value, Texts):
        yield plain(value[1])
        types = tuple(column_type(one) for one in value.columns)
        yield plain(many_rows(value[1], types))
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts_in(each, seen)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each, seen)
    elif type(value).__module__.startswith("brokerd.storage") and hasattr(value, "__dict__"):
        yield from texts_in(vars(value), seen)


def plain(text: str) -> str:
    """Return the statement with places of which the server finds the types by itself."""
    names = [found.group(2) for found in _PLACE.finditer(text) if found.group(2)]
    types = tuple((name, type(None)) for name in names) or (type(None),) * text.count("?")
    return statement_of(text, types).text


@pytest.mark.rule("HK-3")
def test_every_statement_is_one_that_a_server_understands(ready_tables):
    made = in_thread(connect(ready_tables.url, READY, settings={}, patience=5))
    connection = ServerConnection(made, in_thread)
    refused: list[str] = []
    number = 0
    for name, text in constants():
        number += 1
        try:
            in_thread(connection._connection.prepare(text))
        except PostgresError as error:
            if error.sqlstate not in _UNKNOWN_TYPE:
                refused.append(f"{name}: {error}: {text}")
    connection.close()
    assert not refused, "\n".join(refused)
    assert number > 100, "it looks at statements"
