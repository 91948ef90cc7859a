"""Kills under load, the short variant of `make soak-kill`: one of each kind."""

from pathlib import Path

import pytest
import uvloop

from tests.kills.readers import VICTIMS, place, survive


@pytest.mark.rule("REL-20", "ACT-33", "ACT-45", "PBT-8")
def test_kills_of_readers_daemon_and_activator_lose_and_double_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    with place(tmp_path / "x") as made:
        found = uvloop.run(survive(made, seed=1, kills=len(VICTIMS), pause=0.3, say=said.append))
    assert not found, (found, said)
    assert len(said) == len(VICTIMS) + 1
