"""The table of figures has every one that the metrics log can write."""

import ast
import inspect

import pytest

from brokerd.admin import metrics_rows
from brokerd.admin.metrics_rows import Figures
from brokerd.telemetry.metric_names import METRICS, Scope, described

METHODS = {
    Scope.QUEUE: ("_queue", "queue_counters", "queue_gauges"),
    Scope.PAIR: ("_pairs",),
    Scope.BROKER: ("_broker", "broker_counters", "broker_gauges", "dialogs"),
    Scope.DESTINATION: (
        *("_to_destination", "destination_counters", "destination_gauges", "destination_times"),
    ),
    Scope.INSTANCE: (
        *("_transport", "_forwarded", "_checks", "instance_counters", "instance_gauges"),
    ),
}


def keys(node: ast.AST) -> set[str]:
    """The keys of all maps, and of items set by name; what is only known at run time is an x."""
    found = [key for one in ast.walk(node) if isinstance(one, ast.Dict) for key in one.keys]
    found += [one.key for one in ast.walk(node) if isinstance(one, ast.DictComp)]
    found += [
        one.targets[0].slice
        for one in ast.walk(node)
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript)
    ]
    names = set()
    for key in found:
        if isinstance(key, ast.Constant):
            names.add(str(key.value))
        elif isinstance(key, ast.JoinedStr):
            parts = [str(one.value) if isinstance(one, ast.Constant) else "x" for one in key.values]
            names.add("".join(parts))
    return names


@pytest.mark.parametrize("scope", Scope)
def test_every_figure_that_is_written_has_a_meaning(scope: Scope) -> None:
    module = ast.parse(inspect.getsource(metrics_rows)).body
    (whole,) = (
        one for one in module if isinstance(one, ast.ClassDef) and one.name == Figures.__name__
    )
    functions = (*module, *whole.body)
    methods = {one.name: one for one in functions if isinstance(one, ast.FunctionDef)}
    written = set().union(*(keys(methods[name]) for name in METHODS[scope]))
    written -= {"transport_x"}  # by the names of the totals, which the metrics log shows whole
    assert written
    assert {name for name in written if described(scope, name) is None} == set()


def test_a_name_stands_for_itself_before_it_stands_for_a_family() -> None:
    for scope, metrics in METRICS.items():
        for one in metrics:
            assert described(scope, one.name.replace("{", "").replace("}", "")) is not None
    assert described(Scope.INSTANCE, "dropped_stale") == described(Scope.INSTANCE, "dropped_over")
    assert described(Scope.INSTANCE, "nothing_of_the_kind") is None
