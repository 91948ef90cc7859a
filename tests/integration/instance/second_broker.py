"""A second broker beside that of `one_daemon`, and messages from it."""

from datetime import timedelta
from pathlib import Path

import msgspec

from brokerd.client.session import Session
from brokerd.clock import later
from brokerd.config.settings import Clients, Settings
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.ids import BrokerId, ConversationId, Incarnation, MessageId
from brokerd.protocol.frames import Fragment, Hop
from tests.integration.one_daemon import OBJECTS, START

FIVE_TICKS = 26.0


EAST: dict[str, object] = {
    "broker": {"name": "east", "default_encryption": "off"},
    "message_type": OBJECTS["message_type"],
    "contract": OBJECTS["contract"],
    "queue": [{"name": "harbour"}],
    "service": [{"name": "urn:harbour", "queue": "harbour", "contracts": ["talk"]}],
}


async def view(session: Session, name: str) -> list[dict[str, object]]:
    return msgspec.convert(await session.view(name), list[dict[str, object]])


async def bodies(session: Session, queue: str) -> list[bytes | None]:
    return [one.body for one in await session.receive(queue, 10, wait=5, autocommit=True)]


def settings(folder: Path) -> Settings:
    """Settings of an instance with its files there."""
    return Settings(
        instance=InstanceSettings(name="daemon", data_dir=folder),
        clients=Clients(listen=f"unix:{folder}/s"),
    )


def arrival(to_broker: bytes) -> Fragment:
    """Message 0 from a peer."""
    return Fragment(
        conversation_id=ConversationId(b"c" * 16),
        from_initiator=True,
        message_id=MessageId(b"m" * 16),
        sequence=0,
        fragment=0,
        fragments=1,
        flags=0,
        from_service="urn:far",
        to_service="urn:harbour",
        from_broker=BrokerId(b"f" * 16),
        contract="talk",
        message_type="Ask",
        expires_at=later(START, timedelta(hours=1)),
        incarnation=Incarnation(b"i" * 16),
        ack=None,
        hop=Hop(to_broker, 10, 60_000, 0),
        body=b"x",
    )
