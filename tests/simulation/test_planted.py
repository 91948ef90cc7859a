"""The simulation finds bugs that are planted: each with a seed known to find it (reliability 8).

Where the plan of seeds has changed, `python -m tests.simulation.planted --search 40` finds others.
"""

import pytest

from tests.engine.simulation.chaos import MOST_FAILURES
from tests.engine.simulation.runs import simulator
from tests.simulation.planted import PLANTED, RARE, SEEDS, finds, with_bug

OTHERS = range(1000, 1040)
"""Looked through where the known seed has come to do something else: each change of the engine or
of the plan may do that to it."""


@pytest.mark.slow
@pytest.mark.rule("HK-8", "REL-4", "REL-9", "REL-21", "REL-22", "REL-31", "SX-5")
@pytest.mark.parametrize("name", SEEDS)
def test_a_planted_bug_is_found(name):
    assert finds(name, [SEEDS[name], *OTHERS]) is not None


def test_every_planted_bug_has_a_seed():
    assert sorted([*SEEDS, *RARE]) == sorted(PLANTED)


@pytest.mark.rule("HK-8")
def test_an_instance_that_always_fails_by_itself_stays_off_and_the_run_ends():
    with simulator() as simulated, with_bug("removals_forgotten_at_start"):
        result = simulated.run(1002)
    failed = [one for one in result.problems if one.startswith("west failed: StoreFault")]
    assert len(failed) == MOST_FAILURES
