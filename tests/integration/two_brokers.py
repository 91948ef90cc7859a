"""Two brokers of one daemon: their dialogs go through the transmission queue and the dispatcher.

What passes between them can be kept, dropped and played again, as a network might."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from brokerd.broker.state import Live
from brokerd.client.session import Session
from brokerd.ids import ConversationId
from brokerd.protocol.frames import Item
from tests.integration.one_daemon import OBJECTS, Daemon, closing
from tests.integration.scenarios import given

EAST: dict[str, Any] = {
    "broker": {"name": "east", "default_encryption": "off"},
    "message_type": OBJECTS["message_type"],
    "contract": OBJECTS["contract"],
    "queue": [{"name": "harbour"}],
    "service": [{"name": "urn:harbour", "queue": "harbour", "contracts": ["talk"]}],
}


class Wire:
    """What lies between the two brokers."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.passed: list[Item] = []
        self.drops: Callable[[Item], bool] = lambda _item: False
        self.tap()

    def tap(self) -> None:
        """Stand between the brokers of the daemon as it now runs."""
        instance = self.daemon.instance
        self.deliver = instance.parts.dispatcher.arrived
        instance.parts.transmitter._deliver_here = self._pass
        instance.parts.orphan_replies.deliver_here = self._pass

    def _pass(self, items: list[Item]) -> None:
        self.passed += items
        self.deliver([item for item in items if not self.drops(item)])

    @property
    def east(self) -> Any:
        return self.daemon.instance.brokers["east"]

    def at_east(self, conversation_id: bytes, *, initiator: bool = False) -> Live | None:
        found: Live | None = self.east.endpoints.find_conversation(
            ConversationId(conversation_id), initiator
        )
        return found


@asynccontextmanager
async def clients(daemon: Daemon, _folder: Path) -> AsyncIterator[tuple[Wire, Session, Session]]:
    """A client of `main` and one of `east`."""
    async with await daemon.session() as admin:
        await admin.apply(EAST)
    main, east = await daemon.session(), await daemon.session(broker="east")
    async with closing(main, east):
        yield Wire(daemon), main, east


between = given(clients)
"""Runs the test with a client of `main` and one of `east`."""
