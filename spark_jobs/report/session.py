"""Spark session of the report, and the redirection of its JVM's error output.

Calls:  pyspark.      Never: sets a master if `spark-submit` has set one.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_THOROUGH_JVM = (
    # No caller waits for a single answer, so total work matters and the longest pause does not.
    "-XX:+UseParallelGC "
    # Ten times the defaults: code that runs for each line reaches them at once, and code that only
    # plans the jobs does not. Half of the thorough compiler's output was never used.
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)

_SETTINGS = {
    "spark.driver.extraJavaOptions": _THOROUGH_JVM,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    # The mark is never read, and a process is started to set the mode of each file.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Nothing in a single process can lose its connection, but the whole process may be suspended,
    # as on a sleeping machine. After two minutes without a heartbeat Spark would drop its only
    # executor, and sixty heartbeats later the Java process would end without a message.
    "spark.network.timeout": "20d",
    # Smaller blocks allow several files to be open at once, so that rows need not be sorted.
    "spark.hadoop.parquet.block.size": str(32 * 1024 * 1024),
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "16",
    # Listing a directory takes less time than starting a task that lists it.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

SMALL_BYTES = 32 * 1024 * 1024
"""Input up to this size gets the settings that start quickly."""

_SMALL = {
    "spark.driver.extraJavaOptions": _QUICK_JVM,
    "spark.driver.memory": "1g",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.shuffle.partitions": "1",
}


def start(scratch: Path, *, small: bool) -> SparkSession:
    """Start a session whose files stay below `scratch`, local with two threads unless submitted.

    With `small` input, most of the time is spent on starting, and less compilation halves it. The
    results are the same.
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
    """Write no checksum file beside each file; pages of Parquet have their own checksums."""
    jvm, context = spark._jvm, spark.sparkContext  # PySpark has no public way to the setting
    assert jvm is not None, "this process has started it"
    local = jvm.org.apache.hadoop.fs.FileSystem.getLocal(context._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)


def death_of(spark: SparkSession) -> str:
    """Return how the session's Java process ended; "" if it runs, or another process started it.

    The exception raised by a call to an ended process does not show this.
    """
    process = getattr(getattr(spark.sparkContext, "_gateway", None), "proc", None)
    status = None if process is None else process.poll()
    if status is None:
        return ""
    if status == -signal.SIGKILL:
        return "Java was killed, as the system does when memory runs out"
    return f"Java ended by itself, with status {status}"


def reason_of(error: BaseException) -> str:
    """Return the root cause of an error in one line; Spark's own text begins with the outermost."""
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
    """Return whether `spark-submit` started this process, so that a JVM is already running."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def errors_into(log: Path) -> Iterator[None]:
    """Redirect standard error of this process, and of the JVM that it starts, to `log`.

    The JVM keeps writing to `log` after the block; this process does not.
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
