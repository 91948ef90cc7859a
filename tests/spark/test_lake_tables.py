"""Tables of the lake: the columns that are named are those that Spark reads and writes."""

import pytest
from pyspark.sql.types import StructType

from spark_jobs import daily, lake_tables


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
