"""Seeds: whole instances under faults, in virtual time, each with a clean verdict.

A failure names its seed and the command that repeats it. The batches together must have seen what
they are there for, so that the simulation cannot become toothless without a word (HK-7); the last
of them to be done looks.
"""

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from brokerd.testing.check import CLEAN
from brokerd.testing.check import main as check_main
from tests.engine.simulation import objects
from tests.engine.simulation.command import kept_seeds, main
from tests.engine.simulation.report import repeat, report, sums, total
from tests.engine.simulation.runs import PREFIX, simulator
from tests.engine.simulation.sometimes import never
from tests.engine.simulation.world import Result, World
from tests.simulation.batches import Batches

KEPT = Path(__file__).with_name("seeds.txt")
FIRST, BATCH, BATCHES = 1200, 20, 10


@pytest.fixture(scope="module")
def simulated():
    with simulator() as made:
        yield made


@pytest.fixture(scope="session")
def batches(tmp_path_factory):
    own = tmp_path_factory.getbasetemp()  # each process of a run has one, below one for all
    return Batches((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "seeds", BATCHES)


def judge(results):
    failed = [report(result) for result in results if result.problems]
    assert not failed, "\n".join(failed)


@pytest.mark.rule("HK-8")
def test_seeds_that_once_failed_are_clean(simulated):
    judge([simulated.run(seed) for seed in kept_seeds(KEPT)])


@pytest.mark.slow
@pytest.mark.rule(
    "REL-2", "REL-3", "REL-4", "REL-8", "REL-9", "REL-10", "REL-12", "REL-18", "REL-21", "HK-9"
)
@pytest.mark.rule("HK-7")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_batches_of_seeds_are_clean(simulated, batches, batch):
    first = FIRST + batch * BATCH
    results = [simulated.run(seed) for seed in range(first, first + BATCH)]
    everything = batches.done(batch, results)
    judge(results)
    if everything:
        judge_together(everything)


def judge_together(results):
    """The batches have seen what they are there for."""
    seen = sums(results)
    counts = total(results)
    assert len(results) == BATCHES * BATCH
    assert never(counts) == [], seen
    assert not counts["broker.duplicate_broker/seen"], seen  # no failover is one (RTE-71)
    assert counts["crashes"] > 6 * BATCHES * BATCH, seen
    assert counts["messages received"] > 10 * BATCHES * BATCH, seen


def test_the_last_batch_to_be_done_has_the_results_of_all(tmp_path):
    made = [[Result(seed, (), "", 1.0, {"crashes": seed})] for seed in range(3)]
    batches = [Batches(tmp_path / "seeds", 3) for _ in made]  # as in three processes
    assert [batches[at].done(at, made[at]) for at in (2, 0)] == [[], []]
    assert batches[1].done(1, made[1]) == [one for results in made for one in results]


@pytest.mark.rule("HK-1", "HK-5")
@pytest.mark.parametrize("seed", [3, 14, 24, 1142, 2542, 2902])
def test_a_seed_does_the_same_under_another_hash_seed(simulated, seed):
    here = simulated.run(seed)
    again = simulated.run(seed)
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    there = subprocess.run(
        [sys.executable, "-m", "tests.engine.simulation", "--seed", str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.digest == here.digest
    assert here.digest in there.stdout


@pytest.mark.slow
@pytest.mark.rule("HK-8")
def test_what_a_batch_says_does_not_depend_on_the_number_of_processes(capsys):
    told = []
    for processes in ("1", "2"):
        assert main(["--seeds", "2000-2002", "--processes", processes]) == 0
        told.append([line for line in capsys.readouterr().out.splitlines() if "minute" not in line])
    assert told[0] == told[1]


@pytest.mark.rule("HK-8")
def test_a_failed_seed_leaves_what_it_did_and_says_how_to_repeat_it(monkeypatch, tmp_path):
    monkeypatch.setattr(World, "_judge", lambda self, _stores: self.problem("made up"))
    with simulator(tmp_path) as made:
        result = made.run(5)
    left = tmp_path / "seed-5"
    assert result.artefacts == str(left)
    assert "made up" in (left / "problems.txt").read_text()
    assert check_main([str(left / "history.jsonl"), "--drained"]) == CLEAN
    assert (left / "stores" / "east" / "main.db").exists()
    assert "boot 1" in (left / "trace.txt").read_text()
    assert "--seed 5" in report(result)


@pytest.mark.rule("HK-8")
def test_what_a_killed_run_left_is_removed_and_what_another_uses_is_not(tmp_path):
    stale = tmp_path / f"{PREFIX}killed"
    (stale / "stores").mkdir(parents=True)
    (stale / "in-use").touch()
    other = tmp_path / "somebody-else"
    other.mkdir()
    with simulator(memory=tmp_path):
        using = list(tmp_path.glob(f"{PREFIX}*"))
        assert len(using) == 1
        assert stale not in using
        with simulator(memory=tmp_path):
            assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 2
        assert list(tmp_path.glob(f"{PREFIX}*")) == using
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.rule("HK-8", "REL-25")
def test_a_run_leaves_nothing_of_it_in_memory(simulated):
    worlds: weakref.WeakSet[World] = weakref.WeakSet()
    made = World.__init__

    def remembered(self, *given):
        worlds.add(self)
        made(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "__init__", remembered)
        for seed in (1020, 1022, 1023):  # each leaves transactions of killed boots
            assert simulated.run(seed).problems == ()
            assert len(worlds) == 0


@pytest.mark.rule("HK-8")
def test_a_run_without_the_fast_path_is_clean_and_says_how_to_repeat_it(monkeypatch):
    real, made = objects.settings, []

    def settings(*given):
        made.append(real(*given).instance.fast_paths)
        return real(*given)

    monkeypatch.setattr(objects, "settings", settings)
    with simulator(fast_paths=False) as simulated:
        result = simulated.run(1000)
    assert result.problems == ()
    assert set(made) == {False}
    assert repeat(result).endswith("--seed 1000 --trace --no-fast-paths")


@pytest.mark.rule("HK-9")
def test_different_seeds_do_different_things(simulated):
    assert simulated.run(3).digest != simulated.run(5).digest
