"""Runs rules and queries of Prometheus on what real daemons expose, with promtool.

A timeline is a list of scrapes, each of which holds for some minutes; promtool evaluates rules and
queries on it in virtual time. Nothing waits."""

import asyncio
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.http.conftest import Site
from tests.integration.http.test_metrics import Later, scrape

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "brokerd.json"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not there: apt install prometheus"
)
JOB = {"job": "brokerd", "instance": "127.0.0.1:8022"}

Labels = tuple[tuple[str, str], ...]
Values = dict[tuple[str, Labels], float]


async def now(site: Site) -> Values:
    """What a daemon exposes now, with the labels that Prometheus adds."""
    Later.than(site).now += 1.0
    text, _ = await scrape(site, "text/plain")
    return {
        (one.name, tuple(sorted((one.labels | JOB).items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    } | {("up", tuple(sorted(JOB.items()))): 1.0}


GONE: Values = {("up", tuple(sorted(JOB.items()))): 0.0}
"""What Prometheus has of a daemon that does not answer."""


def promtool(folder: Path, timeline: Sequence[tuple[Values, int]], tests: list[Any]) -> str:
    """The complaints of promtool about expectations on a timeline: scrapes, each with minutes."""
    names = sorted({name for values, _ in timeline for name in values})
    series = []
    for name, labels in names:
        shown = [values.get((name, labels)) for values, _ in timeline]
        text = [
            f"_x{minutes - 1}" if value is None else f"{value!r}+0x{minutes - 1}"
            for value, (_, minutes) in zip(shown, timeline, strict=True)
        ]
        inside = ",".join(f"{key}={json.dumps(value)}" for key, value in labels)
        series.append({"series": f"{name}{{{inside}}}", "values": " ".join(text)})
    file = folder / "test.yml"
    file.write_text(
        json.dumps(
            {
                "rule_files": [str(ALERTS)],
                "evaluation_interval": "1m",
                "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
            }
        )
    )
    return file.as_posix()


async def complaints(folder: Path, timeline: Sequence[tuple[Values, int]], tests: list[Any]) -> str:
    """What promtool has to say of expectations; empty = they are met."""
    assert PROMTOOL is not None
    file = promtool(folder, timeline, tests)
    run = await asyncio.create_subprocess_exec(
        PROMTOOL,
        "test",
        "rules",
        file,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await run.communicate()
    return "" if run.returncode == 0 else said.decode()


def firing(minute: int, *alerts: str) -> dict[str, Any]:
    """The expectation that exactly these alerts fire at a minute."""
    return {
        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in sorted(alerts)],
    }


def has_figures(query: str, minute: int) -> dict[str, Any]:
    """The expectation that a query finds figures at a minute."""
    found = f"(({query}) >= 0 or ({query}) < 0)"  # which NaN is not
    return {
        "expr": f"count({found}) > bool 0",
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }


def queries_of_dashboard() -> list[str]:
    """The queries of all panels, as Grafana sends them."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [one.replace("$__rate_interval", "5m").replace("$instance", ".*") for one in found]


def alerts() -> list[str]:
    """The names of all alerts."""
    return re.findall(r"^ +- alert: (\w+)$", ALERTS.read_text(), re.MULTILINE)
