"""`/metrics` of whole daemons: formats, values, bounds (MON-31 to MON-35)."""

import re
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as classic

from brokerd.config.settings import HttpSettings
from brokerd.http import metrics
from brokerd.http.families import FAMILIES
from brokerd.telemetry.metric_names import MetricKind
from tests.integration.http.conftest import Site, Start

OPEN_METRICS = "application/openmetrics-text;version=1.0.0"


class Later:
    """The clock of a listener, which a test moves."""

    def __init__(self, clock: Any) -> None:
        self.now: float = clock.monotonic()
        self.utc, self.sleep_until = clock.utc, clock.sleep_until

    def monotonic(self) -> float:
        return self.now

    @classmethod
    def than(cls, site: Site) -> "Later":
        """The clock of this listener from now on."""
        reads = site.listener.reads
        if not isinstance(reads.clock, cls):
            reads.clock = cls(reads.clock)
        return reads.clock


async def scrape(site: Site, accept: str = OPEN_METRICS) -> tuple[str, str]:
    async with (
        aiohttp.ClientSession() as caller,
        caller.get(site.url("/metrics"), headers={"Accept": accept}) as answer,
    ):
        assert answer.status == 200
        return await answer.text(), answer.headers["Content-Type"]


async def samples(site: Site) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The values of a fresh scrape, by name and labels."""
    Later.than(site).now += metrics.FRESH
    text, _ = await scrape(site)
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in open_metrics(text)
        for one in family.samples
    }


def of(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


@pytest.mark.rule("MON-31")
async def test_it_speaks_openmetrics_and_the_classic_format(start: Start) -> None:
    site = await start()
    text, kind = await scrape(site)
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    named = {one.name for one in open_metrics(text)}
    old, kind = await scrape(site, "text/plain")
    assert kind.startswith("text/plain")
    assert "# EOF" not in old
    assert {one.name for one in classic(old)} >= {one for one in named if "brokerd_" in one} - {
        "brokerd_info",
        "brokerd",
    }
    (_,) = re.findall(
        r"^brokerd_info{name=\"here\",version=\"[0-9.a-z]+\"} 1.0$", text, re.MULTILINE
    )
    assert "process_cpu_seconds_total" in text


@pytest.mark.rule("MON-31", "MON-35")
async def test_figures_follow_what_happens(start: Start) -> None:
    site = await start()
    before = await samples(site)
    assert of(before, "brokerd_ready") == 1
    box = {"broker": "main", "queue": "box"}
    assert of(before, "brokerd_queue_enqueued_messages_total", **box) == 0
    handle = await site.session.begin_dialog("urn:shop", "urn:shop", "DEFAULT")
    for number in range(3):
        await site.session.send(handle, str(number).encode())
    sent = await samples(site)
    assert of(sent, "brokerd_queue_enqueued_messages_total", **box) == 3
    assert of(sent, "brokerd_queue_ready_messages", **box) == 3
    assert of(sent, "brokerd_queue_oldest_message_age_seconds", **box) > 0
    async with site.session.transaction() as tx:
        assert len(await tx.receive("box", max_messages=10)) == 3
    received = await samples(site)
    assert of(received, "brokerd_queue_received_messages_total", **box) == 3
    assert of(received, "brokerd_queue_ready_messages", **box) == 0
    assert of(received, "brokerd_queue_wait_seconds_count", **box) == 3
    assert of(received, "brokerd_queue_wait_seconds_bucket", le="+Inf", **box) == 3
    site.instance.parts.figures.rows()  # as the metrics log does, which drains the histograms
    drained = await samples(site)
    assert of(drained, "brokerd_queue_wait_seconds_count", **box) == 3
    assert of(drained, "brokerd_broker_sends_total", broker="main") >= 3
    assert of(drained, "brokerd_store_commit_seconds_count", broker="main") > 0


@pytest.mark.rule("MON-33")
async def test_the_number_of_series_does_not_depend_on_the_number_of_queues(start: Start) -> None:
    few = await start(HttpSettings(listen="TCP://127.0.0.1:0", metrics_series=3))
    names = [f"q{number}" for number in range(20)]
    await few.session.apply(
        {"broker": {"name": "main"}, "queue": [{"name": one} for one in names]}, ensure=True
    )
    found = await samples(few)
    queues = {dict(labels).get("queue") for name, labels in found if "_queue_" in name}
    assert len(queues) == 4
    assert "other" in queues
    assert of(found, "brokerd_queue_enqueued_messages_total", broker="", queue="other") == 0
    for name, labels in found:
        assert len(dict(labels)) == len(labels)
        assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}", str(labels)), name


@pytest.mark.rule("MON-34")
async def test_scrapes_within_a_second_get_the_same_answer(start: Start) -> None:
    site = await start()
    clock = Later.than(site)
    first, _ = await scrape(site)
    handle = await site.session.begin_dialog("urn:shop", "urn:shop", "DEFAULT")
    await site.session.send(handle, b"1")
    again, _ = await scrape(site)
    clock.now += metrics.FRESH
    later, _ = await scrape(site)
    assert again == first
    assert later != first


@pytest.mark.rule("MON-34")
async def test_other_work_runs_every_hundred_samples(start: Start) -> None:
    site = await start()
    await site.session.apply(
        {"broker": {"name": "main"}, "queue": [{"name": f"q{number}"} for number in range(60)]},
        ensure=True,
    )
    clock, breaths = Later.than(site), 0
    sleep_until = clock.sleep_until

    async def counted(deadline: float) -> None:
        nonlocal breaths
        breaths += 1
        await sleep_until(deadline)

    clock.sleep_until = counted
    text, _ = await scrape(site)
    lines = text.splitlines()
    assert len([one for one in lines if one.startswith("# TYPE ")]) == len(
        {one for one in lines if one.startswith("# TYPE ")}
    )
    assert breaths >= len(lines) / metrics.STEP
    assert len([one for one in lines if "brokerd_queue_wait_seconds" in one]) > 10 * metrics.STEP


@pytest.mark.rule("MON-32")
async def test_every_family_has_a_text_and_its_type(start: Start) -> None:
    site = await start()
    text, _ = await scrape(site)
    found = {one.name: one for one in open_metrics(text)}
    for listed in FAMILIES.values():
        for family in listed:
            assert found[family.name].documentation == family.meaning
            kind = {MetricKind.HISTOGRAM: "histogram"}.get(family.kind, str(family.kind))
            assert found[family.name].type == kind
