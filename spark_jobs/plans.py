"""Plans of small jobs: interpreted rather than compiled, and several jobs at a time.

Calls:  Spark, threads.      Never: changes a result.
Compiling the plan of a job takes a second or more of processor time, once for the plan and once
more for the compiler itself; with some thousands of rows that is nearly all the work. And one job
alone leaves processors idle while it is planned.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from pyspark.sql import SparkSession

AT_ONCE = 3
"""Number of jobs that run at a time, so that some are planned while others run."""

_COMPILED = "spark.sql.codegen.wholeStage"

Key = TypeVar("Key")
Given = TypeVar("Given")
Made = TypeVar("Made")


@contextmanager
def interpreted(spark: SparkSession, *, when: bool = True) -> Iterator[None]:
    """Compile no plan within the block; change nothing unless `when` is true."""
    before = spark.conf.get(_COMPILED)
    assert before is not None, "Spark has a value for it"
    if when:
        spark.conf.set(_COMPILED, "false")
    try:
        yield
    finally:
        spark.conf.set(_COMPILED, before)


def side_by_side(work: Callable[[Key, Given], Made], given: Mapping[Key, Given]) -> dict[Key, Made]:
    """Return the result of `work` for each item; raise the first failure once all have ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(given, pool.map(work, given.keys(), given.values()), strict=True))
