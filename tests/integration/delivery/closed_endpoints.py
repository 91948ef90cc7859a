"""Dialogs that end, and the endpoints that are left of them."""

from brokerd.client.session import Session
from tests.integration.shorthand import take
from tests.integration.two_brokers import Wire

HALF_HOUR = 30 * 60


async def endpoints(session: Session) -> list[dict[str, object]]:
    return [row for row in await session.view("conversation_endpoints") if isinstance(row, dict)]


async def fire_and_forget(main: Session, east: Session, wire: Wire) -> bytes:
    """One message and both ends; the conversation."""
    async with main.transaction() as tx:
        mine = await tx.begin_dialog("urn:desk", "urn:harbour", "talk")
        await tx.send(mine, b"once", "Ask")
        await tx.end(mine)
    (got,) = await take(east, "harbour", 1, wait=5)
    await wire.daemon.pass_time(1)
    await east.end(got.handle)
    return got.conversation_id
