"""Tables of the lake: their names, schemas and partitions.

Reads:  the schema of a line, and the schemas of the daily tables.
Never:  reads or writes files: `ingest` makes the tables, `lake` keeps them, `delta` has a log of
        each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from spark_jobs import daily
from spark_jobs.schema import LINE

LINES: Final = "lines"
DIALOGS: Final = "dialogs"
ASIDE: Final = "aside"
STRETCHES: Final = "stretches"
FILES: Final = "files"
PLACES: Final = "places"

OF_LINES: Final = (LINES, DIALOGS, ASIDE)
"""The tables that together have every line of a day; partitioned by instance as well."""

STRETCH_SCHEMA: Final = (
    "date string, file string, instance string, boot_id string, lines long, repeated long, "
    "first_seq long, last_seq long, first_at long, last_at long, began_at long, most_at long, "
    "backwards long, intervals long, interval_us long, started_at long, recovered boolean, "
    "stopped boolean"
)
PLACE_SCHEMA: Final = (
    "date string, file string, line long, offset long, fault string, sample string"
)
FILE_SCHEMA: Final = "date string, file string, fault string, lines long, sample string"

_LINE = ", ".join(f"`{name}` {LINE[name].dataType.simpleString()}" for name in LINE.fieldNames())
DIALOG_SCHEMA: Final = f"date string, {_LINE}"
_PLACED = "file string, row long, fault string, jumped boolean"
"""Columns that reading adds to those of a line."""
ROW_SCHEMA: Final = f"{DIALOG_SCHEMA}, {_PLACED}"
"""Schema of a line in the lake."""

_TYPES: Mapping[str, DataType] = {
    "boolean": BooleanType(),
    "double": DoubleType(),
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the lake."""

    name: str
    columns: StructType
    by: tuple[str, ...] = ("date",)
    """The columns by which it is partitioned: their values are names of directories."""


def _flat(schema: str) -> StructType:
    """Return the columns of a schema without nested types."""
    pairs = (column.split() for column in schema.split(", "))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


def _of_lines() -> StructType:
    return StructType(
        [
            StructField("date", StringType()),
            *LINE.fields,
            *_flat(_PLACED).fields,
        ]
    )


_FLAT = {STRETCHES: STRETCH_SCHEMA, FILES: FILE_SCHEMA, PLACES: PLACE_SCHEMA, **daily.SCHEMAS}

TABLES: Final[Mapping[str, Table]] = {
    one.name: one
    for one in (
        *(Table(name, _of_lines(), ("date", "instance")) for name in OF_LINES),
        *(Table(name, _flat(schema)) for name, schema in _FLAT.items()),
    )
}
"""Every table of the lake by name."""
