"""The Spark session of the report, and where its JVM may grumble.

Calls:  pyspark.      Never: sets a master when `spark-submit` has brought one.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_THOROUGH_JVM = (
    # Nobody waits for one answer, so what counts is all the work and not the longest pause.
    "-XX:+UseParallelGC "
    # Ten times the usual: what runs for each line gets there at once, and what only plans the jobs
    # does not; half of what the thorough compiler did was never used.
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

_SETTINGS = {
    "spark.driver.extraJavaOptions": _THOROUGH_JVM,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Nobody reads that mark, and a process is started for the mode of each file that is made.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # In one process nothing is out of reach, but all of it may be stopped for a while, as a machine
    # that is asleep is. After two minutes without a heartbeat Spark would drop the only executor
    # there is, and sixty heartbeats later the Java process would end without a word.
    "spark.network.timeout": "20d",
    # Several files open at once need less memory each, and nothing has to be sorted for them.
    "spark.hadoop.parquet.block.size": str(32 * 1024 * 1024),
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "16",
    # To look at a directory takes less time than to start a task that does.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

SMALL_BYTES = 32 * 1024 * 1024
"""Input up to this size takes the settings that start quickly."""

_SMALL = {
    "spark.driver.extraJavaOptions": _QUICK_JVM,
    "spark.driver.memory": "1g",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.shuffle.partitions": "1",
}


def start(scratch: Path, *, small: bool) -> SparkSession:
    """A session whose files stay below `scratch`; local with two threads unless submitted.

    `small` input spends its time in starting, not in computing: compiling less halves it. What
    comes out is the same.
    """
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.appName("brokerd report")
    if not submitted():
        if small:
            os.environ["SPARK_LAUNCHER_OPTS"] = _QUICK_JVM
        settings = _SETTINGS | _SMALL if small else _SETTINGS
        builder = builder.master("local[2]").config(map=dict(settings))
        builder = builder.config("spark.local.dir", str(scratch / "local"))
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    spark = builder.getOrCreate()
    if not submitted():
        _without_checksums(spark)
    return spark


def _without_checksums(spark: SparkSession) -> None:
    """Write no second file beside each file; pages of Parquet have their own checksums."""
    jvm, context = spark._jvm, spark.sparkContext  # no other way leads there
    assert jvm is not None, "this process has started it"
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)


def death_of(spark: SparkSession) -> str:
    """How its Java process ended, if it has: what a call of it raises then does not say so."""
    process = getattr(getattr(spark.sparkContext, "_gateway", None), "proc", None)
    status = None if process is None else process.poll()
    if status is None:
        return ""
    if status == -signal.SIGKILL:
        return "Java was killed, as the system does when memory runs out"
    return f"Java ended by itself, with status {status}"


def reason_of(error: BaseException) -> str:
    """In one line, of what Spark raises the cause of all: it begins with where that came out."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        said = str(error).strip() or type(error).__name__
        return said.splitlines()[0]
    while (deeper := cause.getCause()) is not None:
        cause = deeper
    name = cause.getClass().getSimpleName()
    said = (cause.getMessage() or "").strip()
    return f"{name}: {said.splitlines()[0]}" if said else str(name)


def submitted() -> bool:
    """Whether `spark-submit` started this process, so that a JVM is there already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def errors_into(log: Path) -> Iterator[None]:
    """Send what this process and the JVM it starts write to standard error into `log`.

    The JVM keeps writing there after the block; this process does not.
    """
    keep = os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(keep, 2)
        os.close(keep)
        os.close(target)
