"""Trials of mutants in a small repository: noticed, survived, and without a test."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.mutation import timing
from tools.mutation.operators import mutants
from tools.mutation.trials import KILLED, SURVIVED, UNTESTED, Copy, Trials, UnsoundTests

MODULE = Path("shop/prices.py")
SOURCE = """
def total(price, count):
    if count > 100:
        return price * count - 5
    return price * count


def unused(price):
    return price + 1
"""
TESTS = """
from shop.prices import total

def test_a_total():
    assert total(2, 3) == 6

def test_a_large_total():
    assert total(1, 200) == 195
"""


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of a repository with one module and its tests."""
    root = tmp_path / "root"
    for name, text in {
        str(MODULE): SOURCE,
        "shop/__init__.py": "",
        "test_prices.py": TESTS,
        "tools/__init__.py": "",
        "tools/mutation/__init__.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copy(timing.__file__, root / "tools/mutation/timing.py")
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    (tmp_path / "place").mkdir()
    return Copy(root, tmp_path / "place")


def test_each_mutant_is_tried_with_the_tests_that_execute_its_line(copy: Copy) -> None:
    trials = Trials(copy, MODULE, ["test_prices.py"], processes=1)
    found = {one.name: one for one in mutants(SOURCE)}
    less, more = (
        found["price * count - 5 => (price * count + 5)"],
        found["count > 100 => count >= 100"],
    )
    assert trials.of(less) == ["test_prices.py::test_a_large_total"]
    assert trials.try_out(less).outcome == KILLED
    assert (trials.try_out(more).outcome, len(trials.of(more))) == (SURVIVED, 2)
    assert trials.try_out(found["price + 1 => (price - 1)"]).outcome == UNTESTED


def test_tests_that_fail_without_a_mutant_say_nothing_about_mutants(copy: Copy) -> None:
    copy.path("test_prices.py").write_text(TESTS.replace("195", "196"))
    with pytest.raises(UnsoundTests, match="assert 195 == 196"):
        Trials(copy, MODULE, ["test_prices.py"], processes=1)
