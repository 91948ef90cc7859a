"""Handlers of the tests beside this file."""

import asyncio
from typing import Any

seen: list[int] = []
"""Open transactions of each session, as its handler began."""


async def waits(session: Any) -> None:
    """Never receives."""
    seen.append(session.open_transactions)
    await asyncio.Event().wait()
