"""Metrics: `/metrics` for Prometheus, as OpenMetrics or in the classic text format (MON-31).

Reads:  the totals of the instance.      Calls: `families`, prometheus-client's exposition.
Never:  holds the loop up: a hundred samples are written, then other work runs. Answers
        a second scrape within a second with new figures: so many scrapers cost as much as one.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from brokerd.admin.metrics_totals import Totals
from brokerd.http.families import FAMILIES, LABELS, Family, series_of
from brokerd.http.reads import Reads
from brokerd.rule_ids import without_rules
from brokerd.telemetry.metric_names import MetricKind, Scope
from brokerd.telemetry.metrics import BOUNDS, HistogramTotals

FRESH: Final = 1.0
"""Seconds for which the figures of a scrape are given to others."""
STEP: Final = 100
"""Number of samples after which other work runs."""
_END: Final = b"# EOF\n"
"""Last line of OpenMetrics."""
_LE: Final = tuple(f"{bound / 1e6:g}" for bound in BOUNDS)
_Labelled = tuple[tuple[str, ...], float | HistogramTotals]


class Rendered(msgspec.Struct, frozen=True):
    """The answer to a scrape in one format."""

    at: float
    body: bytes


class Exposition:
    """The answers to scrapes."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._process = ProcessCollector(registry=None)
        self._collecting = asyncio.Lock()
        self._rendered: dict[str, Rendered] = {}

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return the figures, and their content type, in a format that the scraper accepts."""
        encode, content_type = choose_encoder(accept)
        async with self._collecting:
            now = self._reads.clock.monotonic()
            known = self._rendered.get(content_type)
            if known is None or now - known.at >= FRESH:
                body = await self._render(encode)
                if len(self._rendered) >= len(MetricKind) * 4:  # formats that clients make up
                    self._rendered.clear()
                known = self._rendered[content_type] = Rendered(now, body)
            return known.body, content_type

    async def _render(self, encode: Callable[[Any], bytes]) -> bytes:
        totals = await self._reads.opened.scrape.collect()
        pieces = []
        for family in self._families(totals):
            samples = family.samples
            for at in range(0, len(samples) or 1, STEP):
                await self._reads.clock.sleep_until(0)
                family.samples = samples[at : at + STEP]
                piece = encode(_One(family)).removesuffix(_END)
                pieces.append(_without_head(piece) if at else piece)
        return b"".join(pieces) + encode(_One())

    def _families(self, totals: Sequence[Totals]) -> Iterator[Metric]:
        info = InfoMetricFamily("brokerd", "the daemon that answers")
        info.add_metric([], {"name": self._reads.instance, "version": self._reads.version})
        yield info
        yield from self._process.collect()
        yield from families(totals)


def _without_head(text: bytes) -> bytes:
    """Return the samples of a family without its text and type, which stand above the first."""
    while text.startswith(b"# "):
        text = text[text.index(b"\n") + 1 :]
    return text


class _One:
    """A registry of one family, or of none, in which case the end of the text is left."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the family."""
        return self._families


def families(totals: Iterable[Totals]) -> Iterator[Metric]:
    """Yield the families of the totals, in the order of `FAMILIES`; a family may have no series."""
    by_name: dict[str, list[_Labelled]] = {}
    for one in totals:
        own = tuple(one.labels.values())
        for figures in (one.counters, one.gauges, one.histograms):
            for figure, value in figures.items():
                series = series_of(one.scope, figure)
                if series is not None:
                    labels = (*own, *series.labels.values())
                    by_name.setdefault(series.family.name, []).append((labels, value))
    for scope, listed in FAMILIES.items():
        for family in listed:
            yield _family(scope, family, by_name.get(family.name, []))


def labels_of(scope: Scope, family: Family) -> list[str]:
    """Return the names of the labels of a family."""
    inside = family.figure.split("{")[1:]
    return [*LABELS[scope], *(one.partition("}")[0] for one in inside)]


def _family(scope: Scope, family: Family, found: Sequence[_Labelled]) -> Metric:
    labels, text = labels_of(scope, family), without_rules(family.meaning)
    if not found and not labels and family.kind is MetricKind.COUNTER:
        found = [((), 0.0)]  # so that an increase from nothing is seen
    if family.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, text, labels=labels)
        for values, each in found:
            assert isinstance(each, HistogramTotals)
            histogram.add_metric(values, _buckets(each), each.microseconds * family.factor)
        return histogram
    is_counter = family.kind is MetricKind.COUNTER
    made = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
        family.name, text, labels=labels
    )
    for values, value in found:
        assert not isinstance(value, HistogramTotals)
        made.add_metric(values, value * family.factor)
    return made


def _buckets(totals: HistogramTotals) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each with all values below its bound."""
    below, buckets = 0, []
    for bound, count in zip((*_LE, "+Inf"), totals.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets


def routes(reads: Reads) -> list[web.RouteDef]:
    """Return the path for Prometheus."""
    exposition = Exposition(reads)

    async def metrics(request: web.Request) -> web.Response:
        body, content_type = await exposition.render(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    return [web.get("/metrics", metrics)]
