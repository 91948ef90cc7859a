"""The page of the lake: its tables and their columns."""

from spark_jobs.lake_columns import ABOUT, meaning, unit
from spark_jobs.lake_tables import TABLES
from tools.reference.markdown import code, codes, page, sentence, table

FILE = "lake.md"
_INTRODUCTION = """
`brokerd report run` with days keeps a *lake* of tables in `<output>/lake`, from which it makes the
pages. [The morning report](../how-to/morning-report.md#read-the-lake-with-other-programs) says how
other programs read it. A later version may add columns and tables; a column keeps its type and
meaning. Columns that partition a table are not in its Parquet files but in names of directories.

Instants are whole microseconds since 1970 in UTC: in DuckDB `make_timestamp(at)`, in pandas
`pandas.to_datetime(at, unit="us")`.
"""


def render() -> str:
    """Return the page."""
    parts = ["\n".join(f"- [{code(name)}](#{name})" for name in TABLES)]
    for name, one in TABLES.items():
        rows = [
            (code(field.name), code(field.dataType.simpleString()), *_about(name, field.name))
            for field in one.columns
        ]
        parts += [
            f"## {name}",
            f"{sentence(ABOUT[name])} Partitioned by {codes(one.by)}.",
            table(("Column", "Type", "Meaning", "Unit"), rows),
        ]
    return page("The lake", _INTRODUCTION, *parts)


def _about(name: str, column: str) -> tuple[str, str]:
    return meaning(name, column), unit(column)
