"""`brokerd dialog timeline`, at a daemon that has both sides of a dialog."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.cli.main import main
from brokerd.client.session import connect
from brokerd.ids import show
from tests.acceptance.one_process import Served

OBJECTS = {
    "broker": {"name": "main", "default_encryption": "off"},
    "queue": [{"name": "orders"}, {"name": "shop"}],
    "service": [
        {"name": "urn:orders", "queue": "orders", "contracts": ["DEFAULT"]},
        {"name": "urn:shop", "queue": "shop", "contracts": ["DEFAULT"]},
    ],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = Served(tmp_path_factory.mktemp("timeline"), OBJECTS)
    daemon.start()
    yield daemon
    daemon.stop()


async def send(folder: Path, to: str) -> str:
    async with await connect(f"unix:{folder}/s", broker="main") as session:
        handle = await session.begin_dialog("urn:shop", to)
        await session.send(handle, b"secret")
        await session.send(handle, b"secret too")
        return show(handle)


@pytest.mark.rule("MON-52", "MON-55")
def test_both_sides_are_told(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    handle = served.run(send(served.folder, "urn:orders"))
    assert main(["dialog", "timeline", handle, "--address", served.address]) == 0
    told = capsys.readouterr().out
    assert "initiator urn:shop: CO" in told
    assert "target    urn:orders: CO" in told
    assert "waits 2 messages wait at the target to be received" in told
    assert "its first message arrived here" in told
    assert "secret" not in told
    assert main(["dialog", "timeline", handle[:8], "--address", served.address, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["near"]["sent"] == found["far"]["received"] == 2
    assert [one["what"] for one in found["moments"]][:2] == ["begun", "arrived"]


@pytest.mark.rule("MON-52")
def test_a_side_that_cannot_be_asked_is_said(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = served.run(send(served.folder, "urn:nowhere"))
    options = ["--wait", "1", "--address", served.address]
    assert main(["dialog", "timeline", handle, *options]) == 0
    told = capsys.readouterr().out
    assert "target    urn:nowhere: not reached: " in told
    assert "STUCK 2 messages of the initiator cannot leave" in told
    assert main(["dialog", "timeline", "0" * 32, *options]) != 0
