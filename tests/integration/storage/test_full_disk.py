"""A COMMIT that really fails: the daemon confirms nothing of it and says how it ended (REL-5)."""

import asyncio
import resource
import sys
from pathlib import Path

import pytest

from brokerd.client.session import connect
from brokerd.clock import SystemClock
from brokerd.errors import BrokerError
from brokerd.ids import RandomIds
from brokerd.storage.executors import Inline
from brokerd.storage.store import Store

SETTINGS = """
[instance]
name = "small"
data_dir = "data"
[store]
reserve = "0B"
"""
OBJECTS = """
[broker]
name = "main"
default_encryption = "off"
[[message_type]]
name = "Line"
[[contract]]
name = "lines"
types = { "Line" = "initiator" }
[[queue]]
name = "q"
[[service]]
name = "reader"
queue = "q"
contracts = ["lines"]
[[service]]
name = "writer"
queue = "q"
"""
LARGEST_FILE = 600_000
"""Bytes after which no file can grow: room for the store and some hundred KB of its log."""
BODY = bytes(8_000)


def no_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


async def send_until_it_fails(address: str) -> tuple[int, BrokerError]:
    """How many sends were confirmed, and what the next one met."""
    confirmed = 0
    async with connect(address, broker="main", wait=20, retry=0) as session:
        handle = await session.begin_dialog("writer", "reader", "lines")
        while True:
            try:
                await session.send(handle, b"%06d" % confirmed + BODY, "Line")
            except BrokerError as error:
                return confirmed, error
            confirmed += 1


@pytest.mark.rule("REL-1", "REL-5")
async def test_failing_commit_ends_the_daemon_with_74_and_confirms_nothing(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SETTINGS)
    (tmp_path / "objects.toml").write_text(OBJECTS)
    command = ["serve", "-c", "small.toml", "--objects", "objects.toml"]
    daemon = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "brokerd", *command),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        preexec_fn=no_room,
    )
    assert daemon.stdout is not None
    output = asyncio.ensure_future(daemon.stdout.read())
    try:
        address = f"unix:{tmp_path}/data/brokerd.sock"
        confirmed, error = await send_until_it_fails(address)
        assert await daemon.wait() == 74, await output
    finally:
        if daemon.returncode is None:
            daemon.kill()
            await daemon.wait()
    said = await output
    assert b"SQLITE_IOERR_WRITE" in said
    assert b"its outcome is not known" in said
    assert confirmed > 0
    assert error.code in {"connection_lost", "outcome_unknown"}
    faults: list[BrokerError] = []
    store = await Store.open(
        tmp_path / "data" / "main.db",
        ids=RandomIds(),
        clock=SystemClock(),
        executor=Inline(),
        on_fault=faults.append,
    )
    page = await store.messages.browse(store.catalog.queues["q"].key, 10_000, 1 << 30)
    await store.close()
    stored = [(row.body or b"")[:6] for row in page.rows]
    assert page.damaged == []
    assert stored[:confirmed] == [b"%06d" % n for n in range(confirmed)]
    assert len(stored) <= confirmed + 1
