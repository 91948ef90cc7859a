"""How jobs over few rows run: plans interpreted, and several at a time.

Calls:  Spark, threads.      Never: changes what comes out.
To compile the plan of a job takes a second or more of processors, once for the plan and once more
for the compiler itself; for some thousands of rows that is nearly all there is to do. And one job
alone leaves processors idle while it is planned.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from pyspark.sql import SparkSession

AT_ONCE = 3
"""So many jobs; some of them are planned while others are at work."""

_COMPILED = "spark.sql.codegen.wholeStage"

Key = TypeVar("Key")
Given = TypeVar("Given")
Made = TypeVar("Made")


@contextmanager
def interpreted(spark: SparkSession, *, when: bool = True) -> Iterator[None]:
    """Compile no plan within; leave all as it is unless `when`."""
    before = spark.conf.get(_COMPILED)
    assert before is not None, "Spark has a value for it"
    if when:
        spark.conf.set(_COMPILED, "false")
    try:
        yield
    finally:
        spark.conf.set(_COMPILED, before)


def side_by_side(work: Callable[[Key, Given], Made], given: Mapping[Key, Given]) -> dict[Key, Made]:
    """What `work` makes of each; the first failure is raised once all others have ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(given, pool.map(work, given.keys(), given.values()), strict=True))
