"""The closing lines of a metrics log, read back."""

import gzip
import json
from pathlib import Path
from typing import Any

from brokerd.ids import BootId
from brokerd.telemetry.metric_names import Scope, described
from brokerd.telemetry.metrics_log import MetricsLog
from brokerd.telemetry.segments import manifests, read_manifest
from tests.integration.one_daemon import Daemon

Line = dict[str, Any]


def lines_by_day(directory: Path) -> dict[str, list[Line]]:
    """All sealed lines, in their order."""
    found: dict[str, list[Line]] = {}
    for path in manifests(directory):
        manifest = read_manifest(path)
        packed = path.with_name(manifest.segment).read_bytes()
        lines = [json.loads(line) for line in gzip.decompress(packed).splitlines()]
        for line in lines:
            if line["kind"] == "interval":
                assert_described(line)
        found.setdefault(manifest.day, []).extend(lines)
    return found


def assert_described(line: Line) -> None:
    """Every figure of an interval is in the table of them."""
    scope = Scope.BROKER if line.get("broker") and line["scope"] == "instance" else line["scope"]
    for names in ("counters", "gauges", "histograms"):
        for name in line.get(names, {}):
            assert described(Scope(scope), name) is not None, (scope, name)


async def logging(daemon: Daemon, directory: Path, **settings: Any) -> None:
    """Start the daemon again, with a metrics log."""

    def make(boot_id: BootId) -> MetricsLog:
        return MetricsLog(
            directory=directory, instance="daemon", boot_id=boot_id, clock=daemon.clock
        )

    daemon.metrics = make
    await daemon.stop()
    await daemon.start(**settings)
