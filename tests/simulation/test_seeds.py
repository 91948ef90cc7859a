"""Seeds: whole instances under faults, in virtual time, each with a clean verdict.

A failure names its seed and the command that repeats it. The batch as a whole must have seen what
it is there for, so that the simulation cannot become toothless without a word (HK-7).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.testing.simulation.command import report, sums, total
from brokerd.testing.simulation.runs import simulator
from brokerd.testing.simulation.world import Result

KEPT = Path(__file__).with_name("seeds.txt")
FIRST, BATCH, BATCHES = 1000, 20, 10
SOMETIMES = (
    "boxcars dropped",
    "boxcars duplicated",
    "boxcars reordered",
    "client crashes",
    "crash: kill -9",
    "crash: start.recover",
    "crash: store.after_commit",
    "crash: store.before_commit",
    "dropped: peer_queue_disabled",
    "duplicates suppressed",
    "duplicates suppressed after a restart",
    "fault: cut",
    "fault: queue_off",
    "fault: restart",
    "fragments retransmitted",
    "rolled back on purpose",
    "store errors",
    "unknown commit: committed",
    "unknown commit: not committed",
    "unknown commit: repeated",
)
"""What must have happened at least once in the batch."""

seen: list[Result] = []


@pytest.fixture(scope="module")
def simulated():
    with simulator() as made:
        yield made


def kept_seeds():
    return [int(found) for found in re.findall(r"^(\d+)", KEPT.read_text(), re.MULTILINE)]


def judge(results):
    seen.extend(results)
    failed = [report(result) for result in results if result.problems]
    assert not failed, "\n".join(failed)


@pytest.mark.rule("HK-8")
def test_seeds_that_once_failed_are_clean(simulated):
    judge([simulated.run(seed) for seed in kept_seeds()])


@pytest.mark.slow
@pytest.mark.rule(
    "REL-2", "REL-3", "REL-4", "REL-8", "REL-9", "REL-10", "REL-12", "REL-18", "REL-21", "HK-9"
)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_batches_of_seeds_are_clean(simulated, batch):
    first = FIRST + batch * BATCH
    judge([simulated.run(seed) for seed in range(first, first + BATCH)])


@pytest.mark.slow
@pytest.mark.rule("HK-7")
def test_the_batch_has_seen_what_it_is_there_for(capsys):
    if len(seen) < BATCHES * BATCH:
        pytest.skip("only some of the seeds were run")
    with capsys.disabled():
        sys.stdout.write(f"\n{sums(seen)}\n")
    counts = total(seen)
    assert [name for name in SOMETIMES if not counts[name]] == []
    assert counts["crashes"] > 2 * BATCHES * BATCH
    assert counts["messages received"] > 20 * BATCHES * BATCH


@pytest.mark.rule("HK-1", "HK-5")
@pytest.mark.parametrize("seed", [3, 14, 24])
def test_a_seed_does_the_same_under_another_hash_seed(simulated, seed):
    here = simulated.run(seed)
    again = simulated.run(seed)
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    there = subprocess.run(
        [sys.executable, "-m", "brokerd.testing.simulation", "--seed", str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.digest == here.digest
    assert here.digest in there.stdout


@pytest.mark.rule("HK-9")
def test_different_seeds_do_different_things(simulated):
    assert simulated.run(3).digest != simulated.run(5).digest
