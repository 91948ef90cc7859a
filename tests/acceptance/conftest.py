"""A demo to run, of which no daemon is left afterwards."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.running import Demo, lives


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """Whatever a test does, no daemon is left."""
    made = Demo(tmp_path / "demo")
    yield made
    made.end()
    left = {name: pid for name, pid in made.daemons().items() if pid and lives(pid)}
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
    assert not left, "the demo left daemons behind"
