"""A broker that asks a service for routes, with times that a test can wait for."""

import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from brokerd.client.session import Session
from brokerd.config.settings import Endpoint
from tests.integration.one_daemon import Daemon, play

TICK = 5.0


FIFTH = 25.0
"""Seconds from one pass to the next (BCN-9)."""


async def waiting(
    session: Session, service: str = "urn:far", broker_id: bytes | None = None
) -> bytes:
    handle = await session.begin_dialog("urn:desk", service, "talk", broker_id=broker_id)
    await session.send(handle, b"1", "Ask")
    return handle


async def status(session: Session, handle: bytes) -> str:
    return (await session.transmission_status(handle)).status_key


def connected(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """As `scenario`, with a broker endpoint, so that attempts to connect are made and fail."""
    wanted = inspect.signature(test).parameters.keys() & {"tmp_path"}

    def run(tmp_path: Path) -> None:
        async def program(daemon: Daemon) -> None:
            await daemon.stop()
            await daemon.start(endpoint=Endpoint(listen=("daemon",), port=4022))
            session = await daemon.session()
            await test(daemon, session, **dict.fromkeys(wanted, tmp_path))
            await session.close()

        play(program, tmp_path)

    return run
