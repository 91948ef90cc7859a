"""What a recorder is told, so that a history can be judged (reliability 7.1)."""

import asyncio
from collections.abc import Awaitable

import pytest

from brokerd.client.session import Session
from brokerd.errors import ContractNotFound, OutcomeUnknown
from tests.unit.client.scripted import HANDLE, Daemon, MovedClock, message, open_session, turns

pytestmark = pytest.mark.rule("HK-12")


class Kept:
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []

    def event(self, **fields: object) -> None:
        self.events.append(fields)

    def short(self) -> list[tuple[object, object, object]]:
        return [(each["op"], each["kind"], each["tx"]) for each in self.events]


async def opened(daemon: Daemon, clock: MovedClock) -> tuple[Session, Kept]:
    kept = Kept()
    return await open_session(daemon, clock, recorder=kept), kept


async def test_sends_and_receives_belong_to_their_commit(daemon: Daemon, clock: MovedClock) -> None:
    session, kept = await opened(daemon, clock)
    await session.send(HANDLE, b"w-1")
    daemon.queues["q"] = [message(4, b"w-2"), message(5, b"w-3")]
    async with session.transaction() as tx:
        await tx.receive("q", 1)
        await tx.send(HANDLE, b"w-4")
    await session.receive("q", autocommit=True)
    async with session.transaction() as tx:
        await tx.receive("q")
    await session.close()
    assert kept.short() == [
        ("send", "invoke", 1),
        ("commit", "invoke", 1),
        ("commit", "ok", 1),
        ("receive", "invoke", 2),
        ("receive", "ok", 2),
        ("send", "invoke", 2),
        ("commit", "invoke", 2),
        ("commit", "ok", 2),
        ("receive", "invoke", 3),
        ("receive", "ok", 3),
        ("commit", "invoke", 3),
        ("commit", "ok", 3),
        ("receive", "invoke", 4),
        ("receive", "ok", 4),
        ("rollback", "ok", 4),
    ]
    assert [each["token"] for each in kept.events if "token" in each] == [0, 1]
    received = kept.events[4]
    assert (received["queue"], received["seq"], received["body"]) == ("q", 4, b"w-2")
    assert received["client"] == session.client_id


async def told(awaitable: Awaitable[object]) -> None:
    with pytest.raises((ContractNotFound, OutcomeUnknown)):
        await awaitable


async def test_a_refused_commit_failed_and_an_unanswered_one_is_unknown(
    daemon: Daemon, clock: MovedClock
) -> None:
    session, kept = await opened(daemon, clock)
    daemon.failing["transact"] = ContractNotFound()
    await told(session.send(HANDLE))
    daemon.failing.clear()
    daemon.hold = {"transact"}
    sent = asyncio.ensure_future(session.send(HANDLE))
    await turns()
    await session.close()
    await told(sent)
    commits = [each for each in kept.events if each["op"] == "commit" and each["kind"] != "invoke"]
    assert [(each["kind"], each["reason"]) for each in commits] == [
        ("fail", "contract_not_found"),
        ("info", "outcome_unknown"),
    ]
