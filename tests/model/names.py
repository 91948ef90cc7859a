"""Names: how a program is told, so that a failure can be read from top to bottom."""

import asyncio
from typing import Any

from brokerd.client.messages import Message, read_messages
from brokerd.errors import BrokerError
from tests.model.reference.state import Endpoint


class Names:
    """Short names of conversations: `dialog7`, and `dialog7'` for its other side."""

    def __init__(self) -> None:
        self._made = 0
        self._known: dict[bytes, str] = {}

    def fresh(self) -> bytes:
        """A new handle."""
        self._made += 1
        handle = b"%016d" % self._made
        self._known[handle] = f"dialog{self._made}"
        return handle

    def learn(self, endpoint: Endpoint) -> None:
        """Name an endpoint that somebody has begun with, or answer on."""
        handle, first = endpoint.handle, endpoint.dialog.initiator
        if handle is None or handle in self._known:
            return
        other = "" if first is None or first.handle is None else self._known[first.handle]
        self._known[handle] = f"{other}'" if other else f"target{len(self._known)}"

    def of(self, thing: bytes) -> str:
        """The name of a conversation, or what is to be seen of another id."""
        return self._known.get(thing, thing.hex()[:8])

    # Answers.

    def show(self, future: "asyncio.Future[Any]") -> str:
        """An answer in short."""
        error = future.exception()
        if error is not None:
            return error.code if isinstance(error, BrokerError) else repr(error)
        value = future.result()
        if isinstance(value, list):
            return f"[{', '.join(map(self._message, read_messages(value)))}]"
        if isinstance(value, bytes) and len(value) == 16:
            return f"group {self.of(value)}"
        return "done" if value is None else repr(value)

    def _message(self, message: Message) -> str:
        short = message.message_type.removeprefix("urn:brokerd:")
        said = message.body if message.error is None else message.error.number
        return f"{self.of(message.handle)} #{message.sequence} {short} {said!r}"
