"""What each stage took: modules put together, two reports held against each other."""

import sys
from pathlib import Path

import pytest

import brokerd
from brokerd.bench.sampled import ELSEWHERE, Report, module_of
from brokerd.bench.stages import REST, STAGES, merged, per_flush, stage_costs, stage_of, staged
from brokerd.telemetry.metrics import Histogram


@pytest.mark.parametrize(
    ("module", "stage"),
    [
        ("sessions.fast_requests", "session"),
        ("protocol.client_readers", "session"),
        ("protocol.dialog", "dialog_step"),
        ("protocol.item_decoding", "wire"),
        ("delivery.fastpath.rows", "changeset"),
        ("delivery.fastpath.sends", "verb"),
        ("delivery.outgoing.transmitter", "delivery"),
        ("broker.queues", "queue_and_wake_up"),
        ("broker.transaction", "verb"),
        ("broker.outgoing", "delivery"),
        ("delivery.incoming.unsealing", "security"),
        ("security.sealing", "security"),
        ("storage.changes", "changeset"),
        ("storage.commits", "flush"),
        ("metrics", REST),
        (ELSEWHERE, REST),
    ],
)
def test_each_module_has_one_stage(module: str, stage: str) -> None:
    assert stage_of(module) == stage


def test_a_stage_names_modules_that_there_are() -> None:
    root = Path(brokerd.__file__).parent
    modules = [
        ".".join(path.relative_to(root).with_suffix("").parts) for path in root.rglob("*.py")
    ]
    for prefixes in STAGES.values():
        for prefix in prefixes:
            assert any(module.startswith(prefix) for module in modules), prefix


def test_nothing_is_lost_between_modules_and_stages() -> None:
    modules = {"sessions.work": 1.0, "sessions.answers": 2.0, "logs": 4.0, "broker.queues": 8.0}
    found = staged(modules)
    assert sum(found.values()) == sum(modules.values())
    assert (found["session"], found[REST], found["queue_and_wake_up"]) == (3.0, 4.0, 8.0)


def test_two_reports_become_microseconds_a_message() -> None:
    before = Report(number=1, at=4.0, loop={"logs": 1.0}, threads={"MainThread": 2.0}, kernel=0.5)
    after = Report(
        number=2,
        at=6.0,
        loop={"logs": 1.5, "sessions.work": 1.0},
        threads={"MainThread": 3.5, "brokerd-writer": 0.5, "watchdog": 0.25},
        kernel=0.75,
    )
    assert stage_costs(before, after, 100_000) == {
        "processor_us_per_message": 22.5,
        "loop_percent": 75.0,
        "loop_us": 15.0,
        "stages_us": {"session": 10.0, REST: 5.0},
        "writer_us": 5.0,
        "other_threads_us": 2.5,
        "kernel_us": 2.5,
        "modules_us": {"sessions.work": 10.0, "logs": 5.0},
    }


def test_a_flush_is_hops_statements_and_a_commit() -> None:
    histograms = {name: Histogram() for name in ("hop_us", "flush_us", "commit_us")}
    for name, us in (("hop_us", 100), ("flush_us", 1000), ("commit_us", 400)):
        histograms[name].add_all([us] * 4)
    half = {name: dict.fromkeys(one.drain(), 2) for name, one in histograms.items()}
    found = per_flush(merged([half, {}, half]), 200)
    assert found["messages"] == 50
    assert found["hops_us"] == pytest.approx(100, rel=0.02)
    assert found["build_us"] == pytest.approx(600, rel=0.04)
    assert found["commit_us"] == pytest.approx(400, rel=0.02)
    nothing = per_flush({}, 1)
    assert nothing.pop("messages") == 1
    assert {name for name, value in nothing.items() if value is None} == {
        *(f"hops_{name}_us" for name in ("p50", "p95", "p99", "p999", "most"))
    }
    assert set(nothing.values()) == {0, None}


def test_the_worst_hops_are_told_beside_the_usual_one() -> None:
    hops = Histogram()
    for us, count in ((100, 9800), (2_000, 150), (30_000, 49), (70_000, 1)):
        hops.add_all([us] * count)
    found = per_flush(merged([{"hop_us": hops.drain()}]), 1)
    for name, us in (("p50", 100), ("p99", 2_000), ("p999", 30_000), ("most", 70_000)):
        assert found[f"hops_{name}_us"] == pytest.approx(us, rel=0.02)


def test_time_in_a_library_belongs_to_the_module_that_called_it() -> None:
    found: list[str] = []

    def look() -> None:
        found.append(module_of(sys._getframe()))

    for name in ("brokerd.storage.commits", "brokerd.bench.load"):
        exec("look()", {"look": look, "__name__": name})  # a module of that name
    assert found[0] == "storage.commits"
    assert found[1] != "bench.load"  # who measures is not measured
    assert module_of(None) == ELSEWHERE
