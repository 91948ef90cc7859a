"""Real sockets: daemons in network namespaces survive cuts, flapping, black holes and kill -9."""

import asyncio
from pathlib import Path

import pytest
import uvloop

from tests.netns.faults import survive
from tests.netns.lab import lab, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}


@pytest.mark.rule("REL-1", "TRN-24", "TRN-25", "TRN-30", "FWD-2", "FWD-3")
def test_what_was_sent_arrives_once_whatever_befalls_the_wires(tmp_path: Path) -> None:
    with lab(tmp_path / "lab", ["east", "west"], through="middle") as made:
        assert asyncio.run(survive(made, seed=1, cycles=1, say=print)) == []
