"""Local clients: sessions inside the process, without a socket (design D15).

Reads:  whether the instance has failed.      Calls: the client SDK, the registry of sessions.
Never:  checks permissions: a local client is the daemon's own user, or it works for a principal
        whose rights the registry applies.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

from brokerd.app.session import Session
from brokerd.client.connecting import RETRY, open_session
from brokerd.instance.parts import Parts
from brokerd.instance.surroundings import Surroundings
from brokerd.sessions.in_process_stream import connect_local
from brokerd.sessions.principals import ON_BEHALF, Who


class LocalClients:
    """The opener of connections and sessions for clients inside the process."""

    def __init__(self, parts: Parts, surroundings: Surroundings) -> None:
        self._parts = parts
        self._with = surroundings

    async def connector(
        self, factory: Callable[[], asyncio.Protocol], *, who: Who | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Return a client connection without a socket; raise the instance's error if it failed.

        `who`: the principal for whom it works; None = the daemon's own user."""
        failed = self._parts.tasks.failed
        if failed.done():
            raise failed.result()
        extra = {} if who is None else {ON_BEHALF: who}
        return connect_local(self._parts.sessions.factory, factory, extra=extra)

    async def open_session(self, broker: str, who: Who | None = None) -> Session:
        """Return a session on a broker, for readers.

        `who`: the principal for whom it works; None = the daemon's own user."""
        return await open_session(
            Session,
            None,
            broker,
            connector=self.connector if who is None else partial(self.connector, who=who),
            retry=RETRY if who is None else 0,  # who asks over HTTP asks again
            clock=self._with.clock,
            ids=self._with.ids,
            rng=Random(0),  # noqa: S311  # delays before reconnecting
            recorder=self._with.recorder,
        )
