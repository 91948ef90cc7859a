"""Pytest plugin: `brokerd_pair`, `brokerd_instance`, `brokerd_clock` for tests (SDK-16).

Installed with brokerd (entry point `pytest11`). A test with one of these fixtures runs on virtual
time: `async def` is enough, no other plugin takes part in running it.
Reads:  the option `--brokerd-seed`.      Calls: rig, imported when a test wants it.
Never:  sleeps, or touches a test without these fixtures.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from brokerd.testing.rig import Rig, RigClock, RigInstance

_RIG = "brokerd_rig"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The seed from which the rig draws ids, delays and losses."""
    parser.getgroup("brokerd").addoption(
        "--brokerd-seed", type=int, default=1, help="Seed of the brokerd fixtures (default 1)."
    )


@pytest.fixture
def brokerd_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["Rig"]:
    """Instances on virtual time; `await brokerd_rig.add("a", "b", "c")` makes more."""
    from brokerd.testing.rig import Rig  # noqa: PLC0415  # the engine, for tests that want it

    rig = Rig(tmp_path / "brokerd", seed=request.config.getoption("--brokerd-seed"))
    yield rig
    rig.close()


@pytest.fixture
def brokerd_clock(brokerd_rig: "Rig") -> "RigClock":
    """The time of all instances: `await brokerd_clock.advance("2h")`."""
    return brokerd_rig.clock


@pytest.fixture
def brokerd_instance(brokerd_rig: "Rig") -> "RigInstance":
    """One instance with a broker, and a session on it."""
    (one,) = brokerd_rig.run(brokerd_rig.add("one"))
    return one


@pytest.fixture
def brokerd_pair(brokerd_rig: "Rig") -> tuple["RigInstance", "RigInstance"]:
    """Two instances, "one" and "two", with a link between them that can be cut."""
    one, two = brokerd_rig.run(brokerd_rig.add("one", "two"))
    return one, two


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test of the rig on the loop of the rig."""
    if _RIG not in pyfuncitem.fixturenames:
        return None
    test = getattr(pyfuncitem.parent.obj, pyfuncitem.originalname)  # type: ignore[union-attr]  # a test has a parent
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    rig = cast("Rig", pyfuncitem.funcargs[_RIG])
    rig.run(test(**arguments))
    return True
