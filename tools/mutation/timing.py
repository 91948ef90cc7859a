"""Pytest plugin of a trial run: writes how long each test took, and whether it passed.

Reads:  the environment variable `MUTATION_TIMES`, the path of the file.
Writes: one JSON line for each test.      Never: runs in the processes of pytest-xdist.
"""

import json
import os
from pathlib import Path

import pytest

PATH_VARIABLE = "MUTATION_TIMES"

_spent: dict[str, float] = {}
_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the time of one phase of a test."""
    _spent[report.nodeid] = _spent.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the times."""
    if hasattr(session.config, "workerinput"):
        return
    with Path(os.environ[PATH_VARIABLE]).open("w", encoding="utf-8") as file:
        for test, seconds in _spent.items():
            line = {"test": test, "seconds": round(seconds, 4), "failed": test in _failed}
            file.write(json.dumps(line) + "\n")
