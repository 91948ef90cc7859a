"""What a batch of seeds must have come to."""

import subprocess
import sys

import pytest

from tests.engine.simulation import many
from tests.engine.simulation.sometimes import SOMETIMES, never
from tests.engine.simulation.whole import Batch, shortfalls
from tests.engine.simulation.world import Result

BATCH = Batch(seeds=2, hours=1.0, crashes=3)


def result(seed=1, *, seconds=3600.0, **counts):
    return Result(
        seed=seed,
        problems=(),
        digest="",
        seconds=seconds,
        counts={**dict.fromkeys(SOMETIMES, 1), "crashes": 3, **counts},
    )


@pytest.mark.rule("HK-7")
def test_nothing_is_missing_where_everything_was_seen():
    assert shortfalls(BATCH, [result()]) == []


@pytest.mark.rule("HK-7")
@pytest.mark.parametrize("name", SOMETIMES)
def test_what_no_seed_has_seen_is_named(name):
    assert shortfalls(BATCH, [result(**{name: 0})]) == [f"never seen: {name}"]
    assert shortfalls(BATCH, [result(**{name: 0}), result(2)]) == []


def test_a_batch_must_be_long_enough_and_meet_crashes():
    assert shortfalls(BATCH, [result(seconds=3000.0, crashes=2)]) == [
        "1 virtual hours are fewer than 1",
        "2 crashes are fewer than 3",
    ]


def test_a_name_that_nobody_counted_is_never_seen():
    assert never({}) == list(SOMETIMES)


DIES = """
import os, signal, sys
for line in sys.stdin:
    if int(line) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    print('{"seed": %d, "problems": [], "digest": "", "seconds": 1.0, "counts": {}}' % int(line))
    sys.stdout.flush()
"""


@pytest.mark.rule("HK-8")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_dies_fails_its_seed_alone_and_the_others_are_run(monkeypatch, processes):
    def child(self, _hash_seed, _artefacts):
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", DIES]
        made = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._children.append(made)
        return made

    monkeypatch.setattr(many._Batch, "_child", child)
    results = list(many.run_many(range(1, 6), processes=processes))
    assert [one.seed for one in results] == [1, 2, 3, 4, 5]
    assert [one.problems for one in results if one.problems] == [
        ("the process that ran it was ended by SIGKILL",)
    ]
    assert results[1].problems
