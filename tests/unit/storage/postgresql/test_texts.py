"""Statements written for SQLite, said to PostgreSQL."""

import pytest

from brokerd.storage.postgresql.texts import is_plain_insert, many_rows, statement_of, types_of


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("SELECT 1", (), "SELECT 1"),
        ("BEGIN IMMEDIATE", (), "BEGIN"),
        ("SELECT a FROM t WHERE b = ?", (1,), "SELECT a FROM t WHERE b = $1::bigint"),
        ("SELECT a FROM t WHERE b = ?", (True,), "SELECT a FROM t WHERE b = $1::bigint"),
        ("SELECT ?, ?, ?", ("x", b"y", 0.5), "SELECT $1::text, $2::bytea, $3::double precision"),
        ("SELECT ?, ?", (None, memoryview(b"")), "SELECT $1, $2::bytea"),
        ("SELECT x FROM t INDEXED BY t_of WHERE y", (), "SELECT x FROM t WHERE y"),
        (
            "SELECT 1 FROM a CROSS JOIN b AS c INDEXED BY b_of ON c.x = a.x",
            (),
            "SELECT 1 FROM a JOIN b AS c ON c.x = a.x",
        ),
        (
            "DELETE FROM shelf_12",
            (),
            "DO 'BEGIN LOCK TABLE shelf_12 IN ACCESS EXCLUSIVE MODE NOWAIT; TRUNCATE shelf_12;"
            " EXCEPTION WHEN lock_not_available THEN DELETE FROM shelf_12; END'",
        ),
        ("DELETE FROM shelf_12 WHERE a = ?", (1,), "DELETE FROM shelf_12 WHERE a = $1::bigint"),
        ("SELECT max(?, -1)", (3,), "SELECT greatest($1::bigint, -1)"),
        ("SELECT max(a) FROM t", (), "SELECT max(a) FROM t"),
        ("WHERE name NOT GLOB 'a:/*'", (), "WHERE NOT starts_with(name, 'a:/')"),
        ("SELECT data::text FROM t", (), "SELECT data::text FROM t"),
    ],
)
def test_a_statement_keeps_its_meaning(text, values, expected):
    assert statement_of(text, types_of(values)).text == expected


def test_a_value_that_is_named_twice_is_bound_once():
    statement = statement_of("SELECT ?1 WHERE a = ?2 AND b = ?1", types_of((1, "x")))
    assert statement.text == "SELECT $1::bigint WHERE a = $2::text AND b = $1::bigint"
    assert statement.order == (0, 1)
    named = statement_of("SELECT :b, :a, :b", types_of({"a": "x", "b": 2}))
    assert named.text == "SELECT $1::bigint, $2::text, $1::bigint"
    assert named.order == ("b", "a")


def test_a_list_of_numbers_is_one_value():
    text = statement_of("DELETE FROM t WHERE a IN (SELECT value FROM json_each(?))", (str,)).text
    assert "json_array_elements_text(($1::text)::json)" in text
    assert "each_.value::bigint" in text


def test_many_rows_are_a_list_for_each_column():
    insert = "INSERT INTO t (a, b) VALUES (?, ?) ON CONFLICT (a) DO UPDATE SET b = excluded.b"
    assert many_rows(insert, ("bigint", "bytea")) == (
        "INSERT INTO t (a, b) SELECT * FROM unnest(?::bigint[], ?::bytea[])"
        " ON CONFLICT (a) DO UPDATE SET b = excluded.b"
    )
    delete = "DELETE FROM t WHERE a IN (?) AND b = 1"
    assert many_rows(delete, ("bigint",)) == "DELETE FROM t WHERE a = ANY(?::bigint[]) AND b = 1"
    assert statement_of(many_rows(delete, ("bigint",)), (list,)).text == (
        "DELETE FROM t WHERE a = ANY($1::bigint[]) AND b = 1"
    )


def test_only_rows_that_replace_none_can_be_copied():
    assert is_plain_insert("INSERT INTO t (a) VALUES (?)")
    assert not is_plain_insert("INSERT INTO t (a) VALUES (?) ON CONFLICT (a) DO NOTHING")
    assert not is_plain_insert("DELETE FROM t WHERE a IN (?)")
