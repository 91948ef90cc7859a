"""Failpoints: each is a place that exists, is passed in simulated runs, and does what it says."""

import re
from pathlib import Path

import msgspec
import pytest

from tests.engine.simulation import runs
from tests.engine.simulation.features import POINTS, WIRE, Features
from tests.engine.simulation.plan import FAILPOINTS, draw
from tests.engine.simulation.runs import simulator
from tests.engine.simulation.sometimes import SOMETIMES

SPEC = Path(__file__).parents[2] / "docs/spec/reliability.md"


def named_by_the_rule():
    rule = next(line for line in SPEC.read_text().splitlines() if line.startswith("- **HK-6**"))
    return re.findall(r"`([a-z]+\.[a-z_]+)`", rule.partition("[decision:")[0])


@pytest.mark.rule("HK-6", "HK-7")
def test_the_rule_names_all_failpoints_and_every_batch_must_meet_each():
    assert sorted(named_by_the_rule()) == sorted((*FAILPOINTS, *WIRE, *POINTS))
    counts = {f"crash: {one}" for one in FAILPOINTS} | {f"wire: {one}" for one in WIRE}
    assert counts | {f"point: {one}" for one in POINTS} <= SOMETIMES.keys()


@pytest.mark.rule("HK-6")
@pytest.mark.parametrize("name", [*FAILPOINTS, *WIRE, *POINTS])
def test_what_happens_at_a_failpoint_is_survived(monkeypatch, name):
    """Often, and nothing else with it; both with readers that are activated and with clients."""
    rate = 0.004 if name == "store.read" else 0.1
    calm = {
        "activated": name.startswith(("activation", "handler")),
        "faults": (),
        "nights": (),
        "fragment_size": 256,
        "failpoints": {name: rate} if name in FAILPOINTS else {},
        "features": Features(
            work=("large",),
            wire={name: rate} if name in WIRE else {},
            points={name: rate} if name in POINTS else {},
        ),
    }
    monkeypatch.setattr(runs, "draw", lambda it: msgspec.structs.replace(draw(it), **calm))
    happened = 0
    with simulator() as simulated:
        for seed in range(10, 30):
            result = simulated.run(seed)
            assert result.problems == ()
            happened += sum(
                result.counts.get(f"{kind}: {name}", 0) for kind in ("crash", "wire", "point")
            )
            if happened:
                break
    assert happened
