"""Failovers under load, the short variant of `make soak-failover`; a loss that must be found."""

from pathlib import Path
from random import Random

import pytest
import uvloop

from tests.kills.failovers import Pair, hand_over, kill_daemon, kill_primary, play


@pytest.mark.rule("REL-1", "REL-53", "REL-54", "REL-57", "REL-58")
def test_failovers_lose_double_and_disorder_nothing(tmp_path: Path) -> None:
    faults = (kill_daemon, kill_primary, hand_over)
    found = uvloop.run(play(tmp_path, seed=1, failovers=3, say=print, faults=faults))
    assert found.problems == []
    assert found.orders > 15


async def promote_one_that_lags(pair: Pair, rng: Random) -> None:
    """Cut the standby off, let orders be confirmed without it, and make it the primary."""
    pair.slots[1 - pair.primary].configure({"primary_conninfo": ""})
    await pair.until_alone()
    await pair.timed.until(20)
    await kill_primary(pair, rng)


@pytest.mark.rule("REL-53")
def test_a_standby_that_lags_loses_and_the_judge_says_so(tmp_path: Path) -> None:
    faults = (promote_one_that_lags,)
    found = uvloop.run(
        play(tmp_path, seed=1, failovers=1, say=print, faults=faults, synchronous=False)
    )
    assert any("lost" in one for one in found.problems), found.problems
