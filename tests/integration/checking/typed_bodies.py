"""Message types with checks, and dialogs whose both ends use them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.messages import Message
from brokerd.client.session import Session
from tests.integration.one_daemon import Daemon, play

SCHEMA = '{"type": "object", "required": ["n"]}'


XSD = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">'
    '<xs:element name="n" type="xs:int"/></xs:schema>'
)


TYPES: list[dict[str, Any]] = [
    {"name": "Any"},
    {"name": "Nothing", "validation": "empty"},
    {"name": "Xml", "validation": "well_formed_xml"},
    {"name": "ExactXml", "validation": "valid_xml", "schema": XSD},
    {"name": "Json", "validation": "well_formed_json"},
    {"name": "ExactJson", "validation": "valid_json", "schema": SCHEMA},
]


def objects(broker: str, types: list[dict[str, Any]], service: str, queue: str) -> dict[str, Any]:
    allowed = {one["name"]: "any" for one in types}
    return {
        "name": broker,
        "default_encryption": "off",
        "message_type": types,
        "contract": [{"name": "terms", "types": allowed}],
        "queue": [{"name": queue}],
        "service": [{"name": service, "queue": queue, "contracts": ["terms"]}],
    }


class Ends:
    """A dialog from `here` to `there`, and what each end finds on its queue."""

    def __init__(self, here: Session, there: Session, daemon: Daemon) -> None:
        self.here = here
        self.there = there
        self.daemon = daemon

    async def send(self, body: bytes | None, message_type: str) -> bytes:
        """Begin with this message; the dialog is open from then on if it is good."""
        handle = await self.here.begin_dialog("urn:here", "urn:there", "terms")
        await self.send_on(handle, body, message_type)
        return handle

    async def send_on(self, handle: bytes, body: bytes | None, message_type: str) -> None:
        arguments = (body, message_type) if body is not None else ()
        if body is None:
            await self.here.send(handle, message_type=message_type)
        else:
            await self.here.send(handle, *arguments)

    async def at_here(self) -> list[Message]:
        return await self.here.receive("here_q", wait=30, autocommit=True)

    async def at_there(self, wait: float = 30) -> list[Message]:
        return await self.there.receive("there_q", wait=wait, autocommit=True)


Test = Callable[[Ends], Awaitable[None]]


def both_ways(test: Test) -> Callable[[Path, str], None]:
    """Inside one broker, where a send writes the target queue, and between two of an instance."""

    @pytest.mark.parametrize("way", ["direct", "dispatched"])
    def run(tmp_path: Path, way: str) -> None:
        async def program(daemon: Daemon) -> None:
            far = "main" if way == "direct" else "far"
            here = objects("main", TYPES, "urn:here", "here_q")
            there = objects(far, TYPES, "urn:there", "there_q")
            if way == "direct":
                here["queue"] += there["queue"]
                here["service"] += there["service"]
            brokers = [here] if way == "direct" else [here, there]
            async with await daemon.session() as admin:
                await admin.apply({"broker": brokers})
            one, two = await daemon.session(), await daemon.session(broker=far)
            await test(Ends(one, two, daemon))
            await one.close()
            await two.close()

        play(program, tmp_path, fragment_size=1024, large_body=2048)

    run.__name__ = test.__name__
    return run
