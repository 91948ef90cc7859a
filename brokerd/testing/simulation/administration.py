"""Administration: what an administrator does at an instance, on a session of its own.

Calls:  the instance, as a client inside its process: who administers dies with it.
Never:  gives up: what it is asked for it tries until it is done.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from brokerd.client.session import Session
from brokerd.errors import BrokerError, ObjectExists, ObjectNotFound, StoreFault
from brokerd.testing.simulation import objects
from brokerd.testing.simulation.nodes import Node

PATIENCE: Final = 10.0
"""Virtual seconds after which it is tried again."""
Work = Callable[[Session], Coroutine[object, object, object]]


async def administer(node: Node, work: Work) -> bool:
    """Do it; False if the instance, or its broker, was not there to do it."""
    instance, done = node.instance, asyncio.get_running_loop().create_future()
    if not node.holds or instance is None:
        return False

    async def run() -> None:
        try:
            session = await instance.connect_local(objects.BROKER)
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
    """Create an object, unless it is there: who asks again may have been heard before."""

    async def work(session: Session) -> None:
        with suppress(ObjectExists):
            await session.create(kind, name, **declared)

    return work


def altering(kind: str, name: str, **declared: Any) -> Work:  # noqa: ANN401  # as `alter` has them
    """Alter an object; `ObjectNotFound` is one of the refusals after which it is tried again."""

    async def work(session: Session) -> None:
        await session.alter(kind, name, **declared)

    return work


def dropping(kind: str, name: str) -> Work:
    """Drop an object, if it is there."""

    async def work(session: Session) -> None:
        with suppress(ObjectNotFound):
            await session.drop(kind, name)

    return work
