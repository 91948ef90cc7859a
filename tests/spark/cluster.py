"""The report on a real standalone cluster, master and two workers on loopback, and locally.

    python -m tests.spark.cluster

Makes a few days of logs, has `spark-submit` make their reports on the cluster and the command make
them here, and compares every file byte for byte. Takes minutes: `make report-cluster`.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from brokerd.reports.java import find_java
from brokerd.reports.report import child_environment
from tests.spark.month import Month, day_of

DAYS = 3
WAIT_S = 120.0
ROOT = Path(__file__).resolve().parents[2]
SPARK = Path(pyspark.__file__).parent


def main() -> int:
    """0 where both gave the same."""
    with tempfile.TemporaryDirectory(prefix="brokerd-cluster-") as name:
        base = Path(name)
        Month(base / "landing").write(range(DAYS))
        environment = surroundings(base)
        say("starting a master and two workers")
        with cluster(base, environment) as master:
            say(f"spark-submit to {master}")
            submitted = report(base, "cluster", environment, master=master)
        say("the same here")
        local = report(base, "local", environment)
        if submitted != local:
            say(f"status {submitted} on the cluster, {local} here")
            return 1
        return compare(base / "cluster", base / "local")


def surroundings(base: Path) -> dict[str, str]:
    """What Spark's scripts need to find: this Python, a Java, loopback."""
    java = find_java(environ=os.environ, state_dir=base)
    found = child_environment(os.environ, java.home)
    return {**found, "SPARK_NO_DAEMONIZE": "1", "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def cluster(base: Path, environment: dict[str, str]) -> Iterator[str]:
    """A standalone cluster; the address of its master."""
    log = base / "master.log"
    with contextlib.ExitStack() as stack:
        name = "org.apache.spark.deploy.master.Master"
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        stack.enter_context(running([name, *options], log, environment))
        master = found(log, r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            name = "org.apache.spark.deploy.worker.Worker"
            options = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1"]
            options += ["--memory", "1g", "--work-dir", str(base / f"work{number}"), master]
            path = base / f"worker{number}.log"
            stack.enter_context(running([name, *options], path, environment))
            found(path, r"Successfully registered with master")
        yield master


@contextlib.contextmanager
def running(words: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    """One process of the cluster, until the block is left."""
    with log.open("wb") as written:
        command = [str(SPARK / "bin" / "spark-class"), *words]
        with subprocess.Popen(command, env=environment, stdout=written, stderr=written) as child:
            try:
                yield
            finally:
                child.terminate()


def found(log: Path, pattern: str) -> str:
    """What the log of a process says, once it does."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        match = re.search(pattern, log.read_text(errors="replace"))
        if match:
            return match[match.lastindex or 0]
        time.sleep(0.2)
    raise TimeoutError(f"{log} does not say {pattern}:\n{log.read_text(errors='replace')[-2000:]}")


def report(base: Path, name: str, environment: dict[str, str], master: str = "") -> int:
    """Make the reports of all days; the exit status."""
    words = ["--landing", str(base / "landing"), "--output", str(base / name)]
    words += ["--date", day_of(0), "--to", day_of(DAYS - 1)]
    if master:
        job = str(ROOT / "spark_jobs" / "nightly.py")
        settings = ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
        settings += ["spark.ui.enabled=false", "spark.sql.shuffle.partitions=4"]
        chosen = [word for one in settings for word in ("--conf", one)]
        command = [str(SPARK / "bin" / "spark-submit"), "--master", master, *chosen, job, *words]
    else:
        command = [sys.executable, "-m", "spark_jobs.report", *words]
    done = subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False)
    return done.returncode


def compare(one: Path, other: Path) -> int:
    """0 where both directories have the same files."""
    first, second = ({p.relative_to(d): p for p in d.glob("2*/*")} for d in (one, other))
    differing = sorted({*first} ^ {*second})
    differing += [
        name
        for name in sorted({*first} & {*second})
        if first[name].read_bytes() != second[name].read_bytes()
    ]
    for name in differing:
        say(f"differs: {name}")
    if not differing:
        say(f"the same bytes: {len(first)} files")
    return 1 if differing or not first else 0


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(f"cluster: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
