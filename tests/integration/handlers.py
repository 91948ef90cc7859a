"""Handlers for tests of activation."""

from typing import Any


async def idle(session: Any) -> None:
    """Receives once and ends."""
    async with session.transaction() as tx:
        await tx.receive("shop")
