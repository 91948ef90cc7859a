"""The names under which figures are exposed: complete, described, and as Prometheus wants them."""

import re

import pytest

from brokerd.admin.metrics_totals import Totals
from brokerd.http.families import FAMILIES, LABELS, series_of
from brokerd.http.metrics import families, labels_of
from brokerd.telemetry.metric_names import METRICS, MetricKind, Scope
from brokerd.telemetry.metrics import BOUNDS, HistogramTotals

LEFT_OUT = {
    (Scope.PAIR, "sent"): "peers choose the names of services",
    (Scope.PAIR, "received"): "the same",
    (Scope.QUEUE, "queue_us"): "a part of wait_us, of a sample",
    (Scope.QUEUE, "retry_us"): "the same",
    (Scope.BROKER, "store_full"): "the state `full` of the store",
}
"""Figures of the metrics log that have no family, and why."""
ALL = [(scope, family) for scope, listed in FAMILIES.items() for family in listed]


@pytest.mark.rule("MON-32")
def test_every_figure_of_the_metrics_log_is_exposed_or_left_out_for_a_reason() -> None:
    for scope, listed in METRICS.items():
        for one in listed:
            figure = re.sub(r"\{\w+\}", "x", one.name)
            is_shown = scope in FAMILIES and series_of(scope, figure) is not None
            assert is_shown != ((scope, one.name) in LEFT_OUT), one.name


@pytest.mark.rule("MON-31")
def test_names_are_unique_and_end_with_their_unit() -> None:
    names = [family.full_name for _, family in ALL]
    assert len(set(names)) == len(names)
    for scope, family in ALL:
        assert re.fullmatch(r"brokerd_[a-z_]+", family.full_name)
        assert family.meaning
        assert family.meaning[-1] != "."
        if family.kind is MetricKind.HISTOGRAM:
            assert family.name.endswith("_seconds")
        if family.figure.endswith(("_s", "_us", "_days")):
            assert family.name.endswith("_seconds")
        if "bytes" in family.figure:
            assert family.name.endswith("_bytes")
        labels = labels_of(scope, family)
        assert labels[: len(LABELS[scope])] == list(LABELS[scope])
        assert not {one for one in labels if "id" in one.split("_")}


@pytest.mark.rule("MON-31")
@pytest.mark.parametrize(
    ("figure", "name", "labels"),
    [
        ("dropped_stale", "brokerd_dropped_fragments", {"reason": "stale"}),
        ("dropped_out_of_order", "brokerd_dropped_fragments", {"reason": "out_of_order"}),
        ("sent_p10", "brokerd_sent_fragments", {"level": "10"}),
        (
            "refused_peers_address_logins",
            "brokerd_refused_connections",
            {"listener": "peers", "reason": "address_logins"},
        ),
        ("stored", "brokerd_stored_fragments", {}),
    ],
)
def test_words_in_the_name_of_a_figure_become_labels(
    figure: str, name: str, labels: dict[str, str]
) -> None:
    series = series_of(Scope.INSTANCE, figure)
    assert series is not None
    assert (series.family.name, series.labels) == (name, labels)


@pytest.mark.rule("MON-35")
def test_buckets_have_all_values_below_their_bound() -> None:
    counts = [0] * (len(BOUNDS) + 1)
    counts[0], counts[3], counts[-1] = 2, 1, 4
    totals = Totals(
        scope=Scope.QUEUE,
        labels={"broker": "main", "queue": "box"},
        histograms={"wait_us": HistogramTotals(tuple(counts), 5_000_000.0)},
    )
    (wait,) = (one for one in families([totals]) if one.name == "brokerd_queue_wait_seconds")
    values = {(one.name[len(wait.name) :], one.labels.get("le")): one.value for one in wait.samples}
    assert values["_bucket", "0.0001"] == 2
    assert values["_bucket", "0.001"] == 2
    assert values["_bucket", "0.003"] == 3
    assert values["_bucket", "86400"] == 3
    assert values["_bucket", "+Inf"] == values["_count", None] == 7
    assert values["_sum", None] == 5.0


@pytest.mark.rule("MON-31")
def test_units_are_converted() -> None:
    totals = Totals(scope=Scope.INSTANCE, gauges={"own_certificate_days": 2.0})
    found = {one.name: one for one in families([totals])}
    (sample,) = found["brokerd_own_certificate_expiry_seconds"].samples
    assert sample.value == 2 * 86_400


@pytest.mark.rule("MON-31")
def test_a_counter_without_labels_is_there_from_the_start() -> None:
    found = {one.name: one for one in families([])}
    assert [one.value for one in found["brokerd_retransmitted_fragments"].samples] == [0.0]
    assert found["brokerd_dropped_fragments"].samples == []
