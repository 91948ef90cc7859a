"""Secrets planted wherever a daemon meets some, and searched in all that it says (SX-9, SX-10)."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import brokerd
from brokerd.admin.views.columns import COLUMNS
from brokerd.client.session import connect
from brokerd.errors import BrokerError
from tests.acceptance.serving import Place

IN_BODY = "kanarienvogel-body"
IN_ENVIRONMENT = "kanarienvogel-environment"
IN_KEY_FILE = "kanarienvogel-key-file"
IN_SETTINGS = "kanarienvogel-settings"
SHOWS_BODIES = {"messages", "queue_messages", "transmission_queue", "retained_messages"}
"""Views whose rows are messages: whoever has CONTROL asked for these (SX-10)."""
HANDLERS = """
async def raises(session):
    async with session.transaction() as tx:
        for message in await tx.receive("failing_q", 1):
            secret = bytes(message.body or b"")
            raise ValueError("the shelf fell over")
"""
XSD = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">'
    '<xs:element name="n" type="xs:int"/></xs:schema>'
)
OBJECTS = f"""
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Order"
[[message_type]]
name = "Json"
validation = "well_formed_json"
[[message_type]]
name = "Typed"
validation = "valid_xml"
schema = '{XSD}'
[[contract]]
name = "orders"
types = {{ "Order" = "any", "Json" = "any", "Typed" = "any" }}
[[queue]]
name = "shop_q"
[[queue]]
name = "warehouse_q"
[[queue]]
name = "failing_q"
[queue.activation]
handler = "stock:raises"
host = "process"
max_readers = 1
[[queue]]
name = "failing_here_q"
[[service]]
name = "shop"
queue = "shop_q"
[[service]]
name = "warehouse"
queue = "warehouse_q"
contracts = ["orders"]
[[service]]
name = "failing"
queue = "failing_q"
contracts = ["orders"]
"""


class Planted(Place):
    """A place with secrets in the daemon's environment, beside its stores and in its messages."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.objects.write_text(OBJECTS)
        (folder / "stock.py").write_text(HANDLERS)
        self.log = folder / "brokerd.log"
        with self.settings.open("a") as settings:
            settings.write(f'[log]\nlevel = "debug"\nfile = "{self.log}"\nformat = "json"\n')
        self.data_dir.mkdir(mode=0o700)
        for name in ("tls.key", "tls.pem", "master.key.old"):
            (self.data_dir / name).touch(mode=0o600)
            (self.data_dir / name).write_text(IN_KEY_FILE)

    def environment(self) -> dict[str, str]:
        """With a variable of Python's own, its processes are not forked from one of the tests."""
        return super().environment() | {"PYTHONUTF8": "1"}

    def said(self, *words: str) -> str:
        done = self.run(*words)
        return done.stdout + done.stderr


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    for name in ("AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "SECRET_TOKEN"):
        monkeypatch.setenv(name, IN_ENVIRONMENT)
    return Planted(tmp_path / "p")


def children(pid: int) -> Iterator[int]:
    """A process and all that it has started, at this moment."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                yield from children(int(child))


def provoke(place: Planted) -> None:
    """Send what fits, what does not, what has no way, and what its handler fails on."""
    with brokerd.sync.connect(place.address, broker="main", wait=60.0) as broker:
        for service in ("warehouse", "failing", "nowhere"):
            handle = broker.begin_dialog("shop", service, contract="orders")
            broker.send(handle, IN_BODY.encode(), "Order")
        for kind, body in (
            ("Json", f'{{"a": {IN_BODY}}}'),
            ("Json", f'{{"a": "{IN_BODY}"'),
            ("Typed", f"<n>{IN_BODY}</n>"),
            ("Typed", f"<n>{IN_BODY}"),
        ):
            handle = broker.begin_dialog("shop", "warehouse", contract="orders")
            with suppress(BrokerError):
                broker.send(handle, body.encode(), kind)
        for _ in range(4):  # the verdicts, as errors of their dialogs
            for message in broker.receive("shop_q", 10, wait=5, autocommit=True):
                assert IN_BODY.encode() not in (message.body or b"")
                if message.is_error:
                    broker.end(message.handle)
        with suppress(BrokerError):
            broker.send(os.urandom(16), IN_BODY.encode(), "Order")


def views(place: Planted) -> dict[str, str]:
    async def rows() -> dict[str, str]:
        found = {}
        async with connect(place.address, broker="main", wait=30) as session:
            for name in COLUMNS:
                with suppress(BrokerError):
                    found[name] = repr(await session.view(name))
        return found

    return asyncio.run(rows())


@pytest.mark.rule("SX-9", "SX-10")
def test_no_secret_and_no_body_is_in_anything_that_a_daemon_says(place: Planted) -> None:
    said: dict[str, str] = {}
    with place.serving() as process:
        provoke(place)
        for pid in children(process.pid):
            with suppress(OSError):
                said[f"argv of {pid}"] = Path(f"/proc/{pid}/cmdline").read_text()
                if pid != process.pid:
                    said[f"environ of {pid}"] = Path(f"/proc/{pid}/environ").read_text()
        said |= {f"view {name}": text for name, text in views(place).items()}
        at = ("--address", place.address)
        for words in (
            ("status", *at, "--json"),
            ("doctor", *at, "--json"),
            ("config", "show", "-c", str(place.settings), "--json", "--explain"),
            ("config", "check", str(place.settings)),
            ("--debug", "dialog", "show", "nosuch", *at),
            ("--debug", "send", *at, "--body", IN_BODY),
            ("queue", "show", "warehouse_q", *at, "--json"),
            ("transmission", "ls", *at),
            ("group", "parked", *at, "--json"),
        ):
            said[" ".join(words[:2])] = place.said(*words)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    said["log"] = place.log.read_text()
    said["stderr"] = (place.folder.parent / f"{place.folder.name}.log").read_text()
    for path in (place.data_dir / "metrics").rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            text = gzip.decompress(raw) if path.suffix == ".gz" else raw
            said[path.name] = text.decode("utf-8", "replace")
    assert len(said) > 40
    assert "the shelf fell over" in said["log"]  # the failures were provoked
    assert r"\"debug\"" in said["config show"]
    found = {
        (name, secret)
        for name, text in said.items()
        for secret in (IN_BODY, IN_ENVIRONMENT, IN_KEY_FILE)
        if secret in text and not (secret == IN_BODY and name.split()[-1] in SHOWS_BODIES)
    }
    assert found == set()


@pytest.mark.rule("SX-9", "BI-C4")
def test_a_secret_in_the_settings_is_refused_and_not_repeated(place: Planted) -> None:
    """No setting holds a secret, so one of them is a key that does not exist."""
    with place.settings.open("a") as settings:
        settings.write(f'password = "{IN_SETTINGS}"\n[clients2]\ntoken = "{IN_SETTINGS}"\n')
    for done in (place.check(), place.serve()):
        assert done.returncode == 78
        assert "password" in done.stderr + done.stdout
        assert IN_SETTINGS not in done.stderr + done.stdout


@pytest.mark.rule("SX-9", "BI-C4")
def test_nor_is_one_in_a_variable(place: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {**os.environ, "BROKERD_CLIENTS__PASSWORD": IN_SETTINGS}
    command: Any = [*place.serve_command()[:2], "brokerd", "config", "check", str(place.settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 78
    assert "BROKERD_CLIENTS__PASSWORD" in done.stderr + done.stdout
    assert IN_SETTINGS not in json.dumps(done.stderr + done.stdout)
