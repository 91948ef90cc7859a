"""The dashboard and the rules are about figures that daemons expose (MON-37)."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from brokerd.http.families import FAMILIES
from brokerd.telemetry.metric_names import MetricKind
from tests.integration.http.conftest import Start
from tests.integration.http.rules import (
    ALERTS,
    DASHBOARD,
    PROMTOOL,
    complaints,
    has_figures,
    needs_promtool,
    now,
    queries_of_dashboard,
)
from tests.integration.http.test_alerts import OPEN, Bench, until_exposed
from tests.integration.http.test_tls import install, made


@needs_promtool
@pytest.mark.rule("MON-37")
async def test_each_query_of_the_dashboard_finds_figures(start: Start, tmp_path: Path) -> None:
    bench = Bench(start, tmp_path)
    site = await bench.open(endpoint=OPEN)
    await install(site, made("till"))
    far = await bench.other()
    await bench.send("urn:far")
    await until_exposed(bench, "brokerd_destination_wire_seconds_count")
    first = await now(site)
    await bench.send("urn:far")
    async with far.session.transaction() as tx:
        await tx.receive("far", wait=30)
    for _ in range(9):  # the time of a handler is measured for every eighth receive
        await bench.send()
        async with site.session.transaction() as tx:
            await tx.receive("box")
    await bench.send("urn:nowhere")
    await until_exposed(bench, "brokerd_destination_wire_seconds_count", above=1)
    await until_exposed(bench, "brokerd_delayed_dialogs")
    counts = await site.instance.brokers["main"].store.endpoints.count_by_state()
    site.instance.parts.figures.dialogs("main", counts)  # once an hour by itself
    last = await now(site)
    found = [has_figures(one, 14) for one in queries_of_dashboard() if "refused_dialogs" not in one]
    assert len(found) > 40
    assert await complaints(tmp_path, [(first, 10), (last, 10)], found) == ""


@pytest.mark.rule("MON-37")
def test_queries_name_figures_that_exist() -> None:
    known = {"up"}
    for listed in FAMILIES.values():
        for family in listed:
            is_histogram = family.kind is MetricKind.HISTOGRAM
            known |= (
                {f"{family.name}_{one}" for one in ("bucket", "count", "sum")}
                if is_histogram
                else {family.full_name}
            )
    texts = [*queries_of_dashboard(), ALERTS.read_text()]
    named = {one for text in texts for one in re.findall(r"\bbrokerd_[a-z_]+", text)}
    assert named - known == set()


@pytest.mark.rule("MON-37")
def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    for one in panels:
        place = one["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        assert one["title"]
        for target in one.get("targets", ()):
            assert "$instance" in target["expr"], one["title"]
            assert target["datasource"]["uid"] == "${datasource}"


@needs_promtool
@pytest.mark.rule("MON-36")
async def test_promtool_accepts_the_rules() -> None:
    run = await asyncio.create_subprocess_exec(
        *(PROMTOOL or "", "check", "rules", str(ALERTS)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await run.communicate()
    assert run.returncode == 0, said.decode()
