"""The page of the figures: those of the metrics log, and the counters in views."""

from brokerd.admin.views.columns import VIEWS
from brokerd.config.field_docs import field_docs
from brokerd.http.families import FAMILIES
from brokerd.http.metrics import labels_of
from brokerd.telemetry.metric_names import METRICS, MetricKind, Scope
from tools.reference.markdown import code, page, prose, sentence, table

FILE = "metrics.md"
COUNTER_VIEWS = (
    "transport_counters",
    "forwarder_counters",
    "broker_statistics",
    "transmission_statistics",
    "activation_counters",
    "counters",
)
_INTRODUCTION = """
brokerd shows its figures in three places. **Prometheus** scrapes totals since the start at
`/metrics` ([how](../how-to/monitor.md)). The **metrics log** (`log.metrics_dir`) has a line of kind
`interval` for each scope and interval (`log.metrics_interval`), with what was counted in between;
`brokerd report run` makes the nightly report from it. **Views** show totals since the daemon
started: `session.view("broker_statistics")`.
"""
_PROMETHEUS = """
A histogram has the series `_bucket`, `_count` and `_sum`. `brokerd_info` has the name and version
of the daemon, and there are the usual `process_*`. Of queues, destinations and brokers, the
`http.metrics_series` in most trouble have series of their own; all others are added up under
`other`. Once published, a name keeps its meaning.
"""


def render() -> str:
    """Return the page."""
    kinds = field_docs(MetricKind)
    parts = [
        "## The metrics log",
        "A line has the fields `counters`, `gauges` and `histograms`, each from name to value.",
        table(
            ("Kind", "What a line has"),
            [(str(kind), sentence(kinds[kind.name])) for kind in MetricKind],
        ),
    ]
    scopes = field_docs(Scope)
    for scope, metrics in METRICS.items():
        rows = [
            (code(one.name), f"{one.kind}, {prose(one.unit)}", prose(one.meaning))
            for one in metrics
        ]
        parts += [
            f"### Scope {scope}",
            sentence(scopes[scope.name]),
            table(("Name", "Kind and unit", "Meaning"), rows),
        ]
    parts += ["## Prometheus", prose(_PROMETHEUS)]
    parts.append(
        table(
            ("Name", "Kind", "Labels", "Meaning"),
            [
                (
                    code(family.full_name),
                    str(family.kind),
                    " ".join(map(code, labels_of(scope, family))) or "-",
                    prose(family.meaning),
                )
                for scope, families in FAMILIES.items()
                for family in families
            ],
        )
    )
    counters = [
        (code(column), prose(meaning), f"[{name}](views.md#{name})")
        for name in COUNTER_VIEWS
        for column, meaning in VIEWS[name].columns.items()
    ]
    parts += [
        "## Counters in views",
        "What ends in `_total` only rises while the daemon runs; the others say how it is now.",
        table(("Name", "Meaning", "View"), counters),
    ]
    return page("Metrics", _INTRODUCTION, *parts)
