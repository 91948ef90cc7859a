"""Administration: the work of an administrator at an instance, on a session of its own.

Calls:  the instance, as a client inside its process, so that the session dies with it.
Never:  retries by itself: callers repeat `administer` until it returns True.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from brokerd.client.session import Session
from brokerd.errors import BrokerError, ObjectExists, ObjectNotFound, StoreFault
from tests.engine.simulation import objects
from tests.engine.simulation.nodes import Node

PATIENCE: Final = 10.0
"""Virtual seconds after which an attempt counts as failed."""
Work = Callable[[Session], Coroutine[object, object, object]]


async def administer(node: Node, work: Work) -> bool:
    """Do the work on a new session of the node; return whether it was done.

    False also means that the node does not have the broker open, died over it, refused the work,
    or took too long: the work may then have been done all the same.
    """
    # The work runs in the node's own scope: a crash kills it, and only the time-out ends the wait.
    instance, done = node.instance, asyncio.get_running_loop().create_future()
    if not node.holds or instance is None:
        return False

    async def run() -> None:
        try:
            session = await instance.local_clients.open_session(objects.BROKER)
            try:
                await work(session)
            finally:
                await session.close()
            done.set_result(True)
        except (BrokerError, StoreFault):
            done.set_result(False)

    node.run(run())
    await asyncio.wait({done}, timeout=PATIENCE)
    return done.done() and bool(done.result())


def making(kind: str, name: str, **declared: object) -> Work:
    """Return work that creates an object, unless it exists: an earlier attempt may have done it."""

    async def work(session: Session) -> None:
        with suppress(ObjectExists):
            await session.create(kind, name, **declared)

    return work


def altering(kind: str, name: str, **declared: Any) -> Work:
    """Return work that alters an object; `ObjectNotFound` is a refusal like any other."""

    async def work(session: Session) -> None:
        await session.alter(kind, name, **declared)

    return work


def dropping(kind: str, name: str) -> Work:
    """Return work that drops an object, if it exists."""

    async def work(session: Session) -> None:
        with suppress(ObjectNotFound):
            await session.drop(kind, name)

    return work
