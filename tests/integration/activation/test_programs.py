"""An activator and programs it really starts, without a broker: what runs, and how it ends."""

import asyncio
import json
import os
import select
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brokerd.activator.activator import Activator
from brokerd.activator.config import load
from brokerd.clock import SystemClock
from brokerd.telemetry.log import NullLog

STAYS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = os.fork()
if other:
    print(os.getpid(), other, flush=True)
time.sleep(600)
"""


class Recorded(NullLog):
    """A log that can be waited on."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []
        self._grown = asyncio.Event()

    def info(self, event: str, **fields: object) -> None:
        self.lines.append(fields)
        self._grown.set()

    warning = info

    def of(self, subclass: str) -> list[dict[str, object]]:
        return [one for one in self.lines if one["subclass"] == subclass]

    async def until(self, subclass: str) -> dict[str, object]:
        async with asyncio.timeout(30):
            while not self.of(subclass):
                self._grown.clear()
                await self._grown.wait()
        return self.of(subclass)[0]


@asynccontextmanager
async def running(tmp_path: Path, *applications: str, service: str = "") -> AsyncIterator[Recorded]:
    """An activator with these applications; it is stopped at the end."""
    path = tmp_path / "activator.toml"
    path.write_text(
        '[activator]\ngrace = "200ms"\n[[notification_service]]\nname = "ops"\n'
        f'address = "unix:{tmp_path}/nobody"\nqueue = "activations"\n{service}\n'
        + "\n".join(applications)
    )
    log = Recorded()
    activator = Activator(load(path), clock=SystemClock(), log=log)
    task = asyncio.create_task(activator.run())
    try:
        yield log
    finally:
        activator.stop()
        async with asyncio.timeout(30):
            await task


def application(name: str, code: str, more: str = "") -> str:
    command = json.dumps([sys.executable, "-c", code])
    return (
        f'[[application]]\nname = "{name}"\n{more}\n[application.trigger]\nqueue = "q"\n'
        f"[application.launch]\ncommand = {command}\n[application.instances]\nmin = 1\n"
    )


@pytest.mark.rule("ACT-40")
async def test_what_is_not_enabled_is_neither_started_nor_listened_to(tmp_path: Path) -> None:
    runs = application("runs", "print('here', flush=True); import time; time.sleep(600)")
    off = application("off", "import time; time.sleep(600)", "enabled = false")
    async with running(tmp_path, off, runs, service="enabled = false") as log:
        await log.until("output")
    assert [one["application"] for one in log.of("started")] == ["runs"]
    assert log.of("lost") == []


@pytest.mark.rule("ACT-46")
async def test_one_that_ignores_sigterm_is_killed_with_its_group_after_the_grace(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, application("stays", STAYS)) as log:
        line = str((await log.until("output"))["line"])
    for pid in line.split():
        assert _ends(int(pid))
    (ended,) = log.of("ended")
    assert "killed by SIGKILL" in str(ended["error"])
    assert len(log.of("started")) == 1


def _ends(pid: int) -> bool:
    """Whether a process has ended, or does within moments: a killed one needs some to go."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 10)[0])
    finally:
        os.close(process)
