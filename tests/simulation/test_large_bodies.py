"""Runs in which nearly every body is large, and so is stored in pieces (REL-33)."""

import msgspec
import pytest

from tests.engine.simulation import runs
from tests.engine.simulation.plan import draw

SEEDS = [(101, 64), (102, 300), (103, 64), (104, 300)]


def with_large(size):
    def drawn(streams):
        plan = draw(streams)
        limits = msgspec.structs.replace(plan.limits, large_body=size)
        return msgspec.structs.replace(plan, limits=limits)

    return drawn


@pytest.mark.rule("REL-33", "REL-8", "REL-9", "REL-10")
@pytest.mark.parametrize(("seed", "size"), SEEDS)
def test_nothing_is_lost_doubled_or_changed(seed, size, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "draw", with_large(size))
    result = runs.Simulator(tmp_path).run(seed)
    assert not result.problems, result.problems
