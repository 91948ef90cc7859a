"""Local clients: sessions inside the process, without a socket (design D15).

Reads:  whether the instance has failed.      Calls: the client SDK, the registry of sessions.
Never:  checks permissions, because a local client is the daemon's own user.
"""

import asyncio
from collections.abc import Callable
from random import Random

from brokerd.app.session import Session
from brokerd.client.connecting import open_session
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings
from brokerd.sessions.in_process_stream import connect_local


class LocalClients:
    """The opener of connections and sessions for clients inside the process."""

    def __init__(self, parts: Parts, surroundings: Surroundings) -> None:
        self._parts = parts
        self._with = surroundings

    async def connector(
        self, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Return a client connection without a socket; raise the instance's error if it failed."""
        failed = self._parts.tasks.failed
        if failed.done():
            raise failed.result()
        return connect_local(self._parts.sessions.factory, factory)

    async def open_session(self, broker: str) -> Session:
        """Return a session on a broker, for readers."""
        return await open_session(
            Session,
            None,
            broker,
            connector=self.connector,
            clock=self._with.clock,
            ids=self._with.ids,
            rng=Random(0),  # noqa: S311  # delays before reconnecting
            recorder=self._with.recorder,
        )
