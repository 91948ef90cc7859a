"""Shorthand: verbs on the services of `one_daemon`, and what they return, in few words."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import (
    BrokerError,
)
from brokerd.ids import GroupId, Handle
from brokerd.protocol.transitions import State
from tests.integration.one_daemon import Daemon, live_of


async def talk(session: Session, *bodies: bytes, **options: Any) -> bytes:
    """A dialog from the desk to the shop with some messages sent."""
    handle = await session.begin_dialog("urn:desk", "urn:shop", "talk", **options)
    for body in bodies:
        await session.send(handle, body, "Ask")
    return handle


async def take(session: Session, queue: str, *many: int, **options: Any) -> list[Message]:
    return await session.receive(queue, *many, autocommit=True, **options)


@asynccontextmanager
async def undone(session: Session) -> AsyncIterator[Transaction]:
    """A transaction that is rolled back at the end, and is by then."""
    tx = session.transaction()
    await tx.__aenter__()
    yield tx
    tx.rollback()
    await session.status()


def bodies(messages: list[Message]) -> list[bytes | None]:
    return [one.body for one in messages]


def types(messages: list[Message]) -> list[str]:
    return [one.message_type for one in messages]


async def fails(kind: type[BrokerError], asked: Awaitable[object]) -> BrokerError:
    with pytest.raises(kind) as caught:
        await asked
    assert type(caught.value) is kind
    return caught.value


def state(daemon: Daemon, handle: bytes) -> State | None:
    live = daemon.broker.endpoints.find(Handle(handle))
    return None if live is None else live.endpoint.state


async def answered(session: Session) -> tuple[bytes, bytes]:
    """A dialog on which both sides have spoken: the two handles."""
    mine = await talk(session, b"ask")
    (asked,) = await take(session, "shop")
    await session.send(asked.handle, b"answer", "Answer")
    await take(session, "desk")
    return mine, asked.handle


async def pair(session: Session, handle: bytes, body: bytes) -> bytes:
    """Send the first message; the handle of the target."""
    await session.send(handle, body, "Ask")
    (got,) = await take(session, "shop")
    return got.handle


async def receive_all(session: Session, queue: str = "shop") -> list[bytes | None]:
    """Bodies of all that can be received."""
    found: list[bytes | None] = []
    while got := await session.receive(queue, autocommit=True):
        found += [one.body for one in got]
    return found


def group_of(daemon: Daemon, handle: bytes) -> GroupId:
    """The group a conversation is in, as every transaction sees it."""
    return live_of(daemon, handle).endpoint.group_id


async def two_dialogs(session: Session) -> tuple[bytes, bytes, bytes, bytes]:
    """Two dialogs from the desk, each with one message to it: own handles, then the others'."""
    mine = [await talk(session), await talk(session)]
    yours = [await pair(session, one, b"0") for one in mine]
    for number, one in enumerate(yours):
        await session.send(one, b"%d" % number, "Answer")
    return mine[0], mine[1], yours[0], yours[1]


def raise_level(daemon: Daemon, handle: bytes, level: int) -> None:
    """Give an endpoint another level than that of its messages so far (OBJ-53)."""
    live = live_of(daemon, handle)
    live.endpoint = msgspec.structs.replace(live.endpoint, priority=level)
