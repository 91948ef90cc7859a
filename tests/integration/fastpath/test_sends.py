"""The fast path of sends does what the general path does (`delivery.fastpath.sends`)."""

import asyncio
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.config.settings import Clients
from brokerd.delivery.fastpath import sends
from brokerd.errors import ConversationNotFound, StoreFull, WrongDirection
from brokerd.sessions import fast_requests
from tests.integration.one_daemon import ADDRESS, Daemon, play

ANN, EVE = 4_000_000_001, 4_000_000_002
"""Users whom this machine does not know by name."""
BODIES = [b"", b"a", b"b" * 300, b"c" * 40_000]


def outcome(tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """What a run of sends leaves: messages as received, and endpoints as stored."""
    found: list[Any] = []

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        await converse(daemon, session, found)
        await session.close()

    play(program, tmp_path)
    return found[0], found[1]


async def converse(daemon: Daemon, session: Session, found: list[Any]) -> None:
    there = await session.begin_dialog("urn:desk", "urn:shop", "talk")
    for body in BODIES:
        await session.send(there, body, "Ask")
    async with session.transaction() as tx:
        asked = await tx.receive("shop")
    back = asked[0].handle
    for body in BODIES:
        await session.send(back, body, "Answer")
    async with session.transaction() as tx:
        answered = await tx.receive("desk")
    found.append(
        [(one.message_type, one.sequence, one.body, one.priority) for one in (*asked, *answered)]
    )
    stored = await daemon.broker.store.endpoints.page(10)
    found.append(
        [
            (one.is_initiator, one.state, one.send_sequence, one.receive_sequence, one.bound)
            for one in stored
        ]
    )


def watched(monkeypatch: pytest.MonkeyPatch, *, fast: bool = True) -> list[int]:
    """Numbers of requests that each call sent on the fast path; 0 unless `fast`."""
    taken: list[int] = []
    send_each = sends.send_each

    def counting(*args: Any, **options: Any) -> int:
        taken.append(send_each(*args, **options) if fast else 0)
        return taken[-1]

    monkeypatch.setattr(fast_requests, "send_each", counting)
    return taken


@pytest.mark.rule("SND-14", "SND-5", "DLG-T8", "DLG-T9")
def test_both_paths_leave_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = watched(monkeypatch)
    (tmp_path / "fast").mkdir()
    by_the_fast_path = outcome(tmp_path / "fast")
    assert sum(taken) == 2 * len(BODIES) - 1  # the first message opens the dialog
    watched(monkeypatch, fast=False)
    (tmp_path / "general").mkdir()
    assert outcome(tmp_path / "general") == by_the_fast_path


@pytest.mark.rule("SND-25", "SX-3")
def test_limited_rights_are_checked_on_the_fast_path_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients with a certificate always have limited rights; theirs is the usual case."""
    taken = watched(monkeypatch)
    grants = (f"receive on main/desk to {ANN}", f"send on urn:shop to {ANN}")

    async def program(daemon: Daemon) -> None:
        await daemon.stop()
        clients = Clients(listen=ADDRESS, trust_network=True, grants=grants)
        await daemon.start(declare=False, clients=clients)
        daemon.network.users = {"ann": ANN, "eve": EVE, "owner": os.geteuid()}
        owner, ann = await daemon.session(node="owner"), await daemon.session(node="ann")
        eve = await daemon.session(node="eve")
        there = await ann.begin_dialog("urn:desk", "urn:shop", "talk")
        await ann.send(there, b"first", "Ask")
        taken.clear()
        await ann.send(there, b"second", "Ask")
        assert taken == [1]
        with pytest.raises(ConversationNotFound):  # it may not receive from the queue of the dialog
            await eve.send(there, b"not hers", "Ask")
        assert taken == [1, 0]
        async with owner.transaction() as tx:
            asked = await tx.receive("shop")
            await tx.send(asked[0].handle, b"answer", "Answer")
        assert [one.body for one in asked] == [b"first", b"second"]
        for session in (owner, ann, eve):
            await session.close()

    play(program, tmp_path)


Given = Sequence[tuple[bytes, bytes, str]]


async def in_one(session: Session, messages: Given) -> "asyncio.Future[None]":
    """Ask for all of these in one transaction, and for nothing else; the future is its commit."""
    tx = session.transaction()
    for handle, body, message_type in messages:
        await tx.send(handle, body, message_type)
    asked = tx.ask_commit()
    assert asked is not None
    return asked


@pytest.mark.rule("SND-14", "SND-5", "SND-4", "REL-3")
@pytest.mark.parametrize("fast", [True, False])
def test_a_transaction_of_sends_is_whole_and_in_order_on_either_path(
    fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = watched(monkeypatch, fast=fast)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        near = [await session.begin_dialog("urn:desk", "urn:shop", "talk") for _ in "ab"]
        far = await session.begin_dialog("urn:desk", "urn:elsewhere", "talk")
        for handle in (*near, far):
            await session.send(handle, b"0", "Ask")
        taken.clear()
        turns = [near[0], far, near[1], near[0], far, near[0]]
        asked = [(handle, b"%d" % at, "Ask") for at, handle in enumerate(turns, start=1)]
        sent = await in_one(session, asked)
        again = await in_one(session, [(near[1], b"", "Both"), (near[0], b"c" * 40_000, "Ask")])
        await sent
        await again
        found = {}
        for _ in near:
            async with session.transaction() as tx:
                got = await tx.receive("shop")
            found[got[0].conversation_id] = [
                (one.sequence, one.body, one.message_type) for one in got
            ]
        first, second = found.values()
        assert first == [
            (0, b"0", "Ask"), (1, b"1", "Ask"), (2, b"4", "Ask"), (3, b"6", "Ask"),
            (4, b"c" * 40_000, "Ask"),
        ]  # fmt: skip
        assert second == [(0, b"0", "Ask"), (1, b"3", "Ask"), (2, None, "Both")]
        waiting = await session.view("transmission_queue", bodies=True)
        assert [(one["message_sequence_number"], one["message_body"]) for one in waiting] == [
            (0, b"0"),
            (1, b"2"),
            (2, b"5"),
        ]
        await session.close()

    play(program, tmp_path)
    assert sum(taken) == (2 if fast else 0)


@pytest.mark.rule("REL-3", "SND-3", "CLP-34")
def test_a_transaction_of_sends_that_is_refused_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = watched(monkeypatch)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        first, second = [await session.begin_dialog("urn:desk", "urn:shop", "talk") for _ in "ab"]
        for handle in (first, second):
            await session.send(handle, b"0", "Ask")
        taken.clear()
        refused = await in_one(
            session, [(first, b"no", "Ask"), (second, b"no", "Ask"), (first, b"no", "Answer")]
        )
        behind = await in_one(session, [(second, b"1", "Ask"), (first, b"1", "Ask")])
        with pytest.raises(WrongDirection):
            await refused
        await behind
        for _ in "ab":
            async with session.transaction() as tx:
                got = await tx.receive("shop")
            assert [(one.sequence, one.body) for one in got] == [(0, b"0"), (1, b"1")]
        await session.close()

    play(program, tmp_path)
    assert taken == [0, 1], "the refused one took the general path, the one behind it did not"


@pytest.mark.rule("GRP-4", "CLP-31")
def test_a_transaction_of_sends_waits_for_the_one_lock_that_another_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = watched(monkeypatch)

    async def program(daemon: Daemon) -> None:
        session, other = await daemon.session(), await daemon.session()
        there = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(there, b"0", "Ask")
        async with session.transaction() as tx:
            (asked,) = await tx.receive("shop")
        free = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(free, b"0", "Ask")
        await session.send(asked.handle, b"0", "Answer")
        holder = other.transaction()
        await holder.receive("desk", 1)  # locks the group of `there`
        taken.clear()
        waits = await in_one(session, [(free, b"1", "Ask"), (there, b"1", "Ask")])
        await session.status()
        assert not waits.done()
        holder.rollback()
        await waits
        async with session.transaction() as tx:
            got = [one.body for one in await tx.receive("shop", groups=2)]
        assert sorted(got, key=str) == [b"0", b"1", b"1"]
        await other.close()
        await session.close()

    play(program, tmp_path)
    assert taken[:1] == [0]


@pytest.mark.rule("REL-26")
@pytest.mark.parametrize("service", ["urn:shop", "urn:elsewhere"])
def test_sends_are_refused_while_the_store_is_full_wherever_they_go(
    service: str, tmp_path: Path
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        there = await session.begin_dialog("urn:desk", service, "talk")
        await session.send(there, b"0", "Ask")
        daemon.broker.is_full = True
        with pytest.raises(StoreFull):
            await session.send(there, b"1", "Ask")
        with pytest.raises(StoreFull):
            await (await in_one(session, [(there, b"1", "Ask")] * 2))
        daemon.broker.is_full = False
        await session.send(there, b"1", "Ask")
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("CLP-31", "SND-5")
def test_sends_written_together_keep_their_order_around_one_that_is_not_ordinary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = watched(monkeypatch)

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        first, second = [await session.begin_dialog("urn:desk", "urn:shop", "talk") for _ in "ab"]
        await session.send(first, b"0", "Ask")
        await session.send(second, b"0", "Ask")
        sizes.clear()
        futures = [session.submit_send(one, b"%d" % at, "Ask") for at in (1, 2)
                   for one in (first, second)]  # fmt: skip
        refused = session.submit_send(first, b"no", "Answer")  # the other side alone sends it
        futures += [session.submit_send(one, b"%d" % at, "Ask") for at in (3, 4)
                    for one in (first, second)]  # fmt: skip
        for future in futures:
            await future
        with pytest.raises(WrongDirection):
            await refused
        for _ in "ab":
            async with session.transaction() as tx:
                got = await tx.receive("shop")
            assert [one.body for one in got] == [b"0", b"1", b"2", b"3", b"4"]
        await session.close()

    play(program, tmp_path)
    assert sizes == [4, 0, 4], "those before and those behind the refused one went together"


@pytest.mark.rule("CLP-30")
def test_sends_written_together_are_not_more_than_may_be_outstanding(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        there = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(there, b"", "Ask")
        for future in [session.submit_send(there, b"", "Ask") for _ in range(3000)]:
            await future
        await session.close()
        queue = daemon.broker.queues["shop"]
        assert queue.ready_count == 3001

    play(program, tmp_path)


def test_messages_leave_nothing_to_the_collector(tmp_path: Path) -> None:
    """Circles in the way of every message once cost 100 ms of collecting each second."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        there = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(there, b"first", "Ask")
        await converse_once(session, there)
        gc.collect()
        gc.disable()
        try:
            await converse_once(session, there)
            left = gc.collect()
        finally:
            gc.enable()
        await session.close()
        assert left < SENDS

    play(program, tmp_path)


SENDS = 600


async def converse_once(session: Session, there: bytes) -> None:
    for future in [session.submit_send(there, b"body", "Ask") for _ in range(SENDS)]:
        await future
    while True:
        async with session.transaction() as tx:
            if not await tx.receive("shop", 100):
                return
