"""The examples in config/, run by the commands in their headers and in how-to/forwarding.md."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokerd.resources import config_dir
from tests.acceptance.serving import Place, free_port

PORTS = {"east": "4022", "west": "4023", "middle": "4024"}


class Example(Place):
    """One instance of the examples, in a copy of their directory with other ports."""

    def __init__(self, config: Path, name: str) -> None:
        self.folder = config.parent
        self.settings = config / f"{name}.toml"
        self.objects = config / f"{name}.objects.toml"
        self.data_dir = self.folder / "build" / name

    def must(self, *words: str) -> str:
        done = self.run(*words, "-c", str(self.settings))
        assert done.returncode == 0, done.stderr
        return done.stdout


def pair(inviting: Example, joining: Example, *words: str) -> str:
    """Run both commands of a pairing; return what the second prints."""
    code = json.loads(inviting.must("peer", "pair", "--no-wait", "--json", *words))["code"]
    return joining.must("peer", "pair", code)


def ask(east: Example) -> str:
    order = ("--contract", "orders/v1", "--type", "Order", "--body", '{"number": 7}')
    return east.must(
        *("send", "--from", "shop", "--to", "warehouse", *order, "--wait", "30", "--end")
    )


@pytest.fixture
def examples(tmp_path: Path) -> Iterator[dict[str, Example]]:
    config = tmp_path / "config"
    shutil.copytree(config_dir(), config)
    ports = {old: str(free_port()) for old in PORTS.values()}
    for path in config.glob("*.toml"):
        text = path.read_text()
        for old, new in ports.items():
            text = text.replace(old, new)
        path.write_text(text)
    made = {name: Example(config, name) for name in PORTS}
    with ExitStack() as stack:
        for one in made.values():
            stack.enter_context(one.serving())
        yield made


@pytest.mark.rule("SEC-80", "SEC-81", "END-9")
def test_the_examples_run_as_they_say(examples: dict[str, Example]) -> None:
    east, west, middle = examples["east"], examples["west"], examples["middle"]
    refused: subprocess.CompletedProcess[str] = east.run(
        *("send", "--from", "shop", "--to", "warehouse", "--contract", "orders/v1"),
        *("--type", "Order", "--body", "{}", "--wait", "1", "-c", str(east.settings)),
    )
    assert refused.returncode != 0, "before they are paired, nothing leaves in clear"
    assert "works: " in pair(west, east, "--share", "warehouse")
    assert '"number":7' in ask(east)
    applied = east.must("apply", str(east.objects))
    assert applied == "no changes needed\n"
    for one in (east, west):
        pair(middle, one)
    way = f"address=TCP://127.0.0.1:{_port(middle)}"
    east.must("route", "alter", "west/warehouse", way)
    west.must("route", "alter", "east/shop", way)
    assert '"number":7' in ask(east)
    passed = json.loads(middle.must("forwarder", "show", "--json"))
    assert passed["forwarded_messages_total"] > 0
    for one in examples.values():
        assert "nothing is wrong" in one.must("doctor")


def _port(one: Example) -> str:
    line = next(line for line in one.settings.read_text().splitlines() if line.startswith("port"))
    return line.split("=")[1].split()[0]
