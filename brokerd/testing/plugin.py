"""Pytest plugin: `brokerd_rig`, `brokerd_pair`, `brokerd_instance`, `brokerd_clock` (SDK-16).

The plugin is installed with brokerd (entry point `pytest11`). A test with one of these fixtures
runs on virtual time; an `async def` test needs no other plugin.
Reads:  the option `--brokerd-seed`.      Calls: rig, imported when a test requests a fixture.
Never:  sleeps, or affects a test without these fixtures.
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
    """Add the option for the seed from which the rig draws ids, delays and losses."""
    parser.getgroup("brokerd").addoption(
        "--brokerd-seed", type=int, default=1, help="Seed of the brokerd fixtures (default 1)."
    )


@pytest.fixture
def brokerd_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["Rig"]:
    """Provide a rig on virtual time; `await brokerd_rig.add("a", "b", "c")` starts instances."""
    from brokerd.testing.rig import Rig  # noqa: PLC0415  # other tests do not load the engine

    rig = Rig(tmp_path / "brokerd", seed=request.config.getoption("--brokerd-seed"))
    yield rig
    rig.close()


@pytest.fixture
def brokerd_clock(brokerd_rig: "Rig") -> "RigClock":
    """Provide the clock of all instances: `await brokerd_clock.advance("2h")`."""
    return brokerd_rig.clock


@pytest.fixture
def brokerd_instance(brokerd_rig: "Rig") -> "RigInstance":
    """Provide one instance with a broker, and a session connected to it."""
    (one,) = brokerd_rig.run(brokerd_rig.add("one"))
    return one


@pytest.fixture
def brokerd_pair(brokerd_rig: "Rig") -> tuple["RigInstance", "RigInstance"]:
    """Provide two instances, "one" and "two", and the link between them, which can be cut."""
    one, two = brokerd_rig.run(brokerd_rig.add("one", "two"))
    return one, two


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that uses the rig, on the rig's loop.

    Return None for any other test, so that pytest or another plugin runs it.
    """
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
