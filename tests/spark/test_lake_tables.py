"""Tables of the lake: the columns that are named are those that Spark reads and writes."""

import pytest
from pyspark.sql.types import StructType

from spark_jobs import daily, lake_columns, lake_tables


@pytest.mark.rule("BI-L31")
def test_the_columns_of_each_table_are_those_of_its_schema(spark):
    schemas = dict.fromkeys(lake_tables.OF_LINES, lake_tables.ROW_SCHEMA) | daily.SCHEMAS
    schemas |= {
        lake_tables.STRETCHES: lake_tables.STRETCH_SCHEMA,
        lake_tables.FILES: lake_tables.FILE_SCHEMA,
        lake_tables.PLACES: lake_tables.PLACE_SCHEMA,
    }
    assert {*schemas} == {*lake_tables.TABLES}
    for name, schema in schemas.items():
        assert lake_tables.TABLES[name].columns == StructType.fromDDL(schema), name


@pytest.mark.rule("BI-L31")
def test_each_table_and_column_has_a_meaning_and_no_meaning_is_left_over():
    assert {*lake_columns.ABOUT} == {*lake_tables.TABLES}
    named = {
        (name, one) for name, table in lake_tables.TABLES.items() for one in table.columns.names
    }
    assert [pair for pair in named if not lake_columns.meaning(*pair)] == []
    assert {*lake_columns.MEANINGS} == {column for _, column in named}
    assert {*lake_columns.OF_TABLE} <= named
