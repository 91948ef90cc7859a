"""Messages and endpoints that are not in memory: a tiny daemon answers exactly as a large one."""

from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from brokerd.broker.changeset import Changeset
from brokerd.broker.window import WindowOptions
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import BrokerError, Busy
from brokerd.ids import Handle, show
from brokerd.storage.rows.dialogs import StoredEndpoints
from brokerd.storage.rows.message_counts import MessageCounts
from brokerd.storage.rows.stored_messages import StoredMessages
from brokerd.storage.rows.sweeps import Sweeper
from brokerd.storage.stretches import EVERYWHERE
from brokerd.storage.verifying import verify
from tests.integration.one_daemon import Daemon, play, rows
from tests.integration.telemetry.closing_lines import logging

TINY = WindowOptions(window_messages=3, window_bytes=4000, page_messages=2, locked_factor=1000)
STEPS = 90


class Script:
    """Random verbs by several transactions side by side; writes down all that they answer."""

    def __init__(self, daemon: Daemon, seed: int, *, one_by_one: bool = False) -> None:
        self.daemon = daemon
        self.one_by_one = one_by_one
        self.rng = Random(seed)
        self.told: list[object] = []
        self.open: dict[int, Transaction] = {}
        self.handles: list[bytes] = []
        self.names: dict[bytes, str] = {}
        self.sent = 0

    async def run(self) -> list[object]:
        session = await self.daemon.session()
        for step in range(STEPS):
            verb = self.rng.choices(
                ["begin", "send", "receive", "commit", "rollback", "end", "restart"],
                [3, 14, 12, 5, 3, 3, 0.5],
            )[0]
            answer = await self.perform(session, verb)
            self.told.append((step, verb, answer))
            if verb == "restart":
                await session.close()
                await self.daemon.restart()
                session = await self.daemon.session()
        await self.finish(rollback=False)
        self.told.append(await self.drain(session))
        await session.close()
        return self.told

    async def perform(self, session: Session, verb: str) -> object:
        try:
            if verb == "restart":
                return await self.finish(rollback=self.rng.random() < 0.5)
            if verb in ("commit", "rollback"):
                return await self.close_one(verb)
            return await getattr(self, f"do_{verb}")(session)
        except BrokerError as error:
            return error.code

    async def do_begin(self, session: Session) -> object:
        related = (
            self.rng.choice(self.handles) if self.handles and self.rng.random() < 0.4 else None
        )
        held = any(self.open)
        handle = await session.begin_dialog(
            "urn:desk", "urn:shop", "talk", related_conversation=None if held else related
        )
        self.handles.append(handle)
        self.names[handle] = f"dialog {len(self.names)}"
        await session.send(handle, self.body(), "Ask")
        return self.names[handle]

    async def do_send(self, session: Session) -> object:
        if not self.handles or self.open:
            return None
        for _ in range(self.rng.randint(1, 4)):
            await session.send(self.rng.choice(self.handles[-5:]), self.body(), "Ask")
        return "sent"

    async def do_receive(self, session: Session) -> object:
        number = self.rng.randint(1, 3)
        if number not in self.open:
            tx = session.transaction()
            await tx.__aenter__()
            self.open[number] = tx
        tx = self.open[number]
        limit = self.rng.choice([None, 1, 2, 3])
        queue, groups = self.rng.choice(["shop", "shop", "desk"]), self.rng.choice([1, 1, 3])
        if self.one_by_one:
            messages = await singly(tx, queue, limit, groups)
        else:
            messages = await tx.receive(queue, limit, groups=groups)
        answers = [(one.sequence, one.message_type, self.shown(one)) for one in messages]
        if messages and messages[0].service == "urn:shop" and self.rng.random() < 0.5:
            for one in messages[:2]:
                if not one.is_error and not one.is_end:
                    await tx.send(one.handle, b"to " + (one.body or b"")[:20], "Answer")
        return number, answers

    async def do_end(self, session: Session) -> object:
        if not self.handles or self.open:
            return None
        handle = self.handles.pop(self.rng.randrange(len(self.handles)))
        if self.rng.random() < 0.5:
            await session.end(handle)
        else:
            await session.end(handle, 7, "enough")
        return self.names[handle]

    async def close_one(self, verb: str) -> object:
        if not self.open:
            return None
        number = self.rng.choice(sorted(self.open))
        tx = self.open.pop(number)
        if verb == "rollback":
            tx.rollback(counts=False)
            await self.daemon.pass_time(0.01)  # nobody answers: let it arrive
            return number
        await tx.__aexit__(None, None, None)
        return number

    async def finish(self, *, rollback: bool) -> object:
        for number in sorted(self.open):
            tx = self.open.pop(number)
            if rollback:
                tx.rollback(counts=False)
                continue
            try:
                await tx.__aexit__(None, None, None)
            except BrokerError as error:
                self.told.append(error.code)
        return "finished"

    async def drain(self, session: Session) -> list[object]:
        found: list[object] = []
        for queue in ("shop", "desk"):
            while messages := await session.receive(queue, autocommit=True):
                found.append([(one.sequence, one.message_type) for one in messages])
            assert self.daemon.broker.queues[queue].ready_count == 0
        assert await rows(self.daemon, "queue_messages") == 0
        return found

    def shown(self, message: Message) -> bytes:
        """What of the body both daemons must have alike."""
        return b"" if message.is_error else (message.body or b"")[:24]

    def body(self) -> bytes:
        self.sent += 1
        return b"%d %s" % (self.sent, b"." * self.rng.choice([1, 1, 1, 1500]))


async def singly(tx: Transaction, queue: str, limit: int | None, groups: int) -> list[Message]:
    """What a receive of several groups stands for (RCV-44)."""
    messages: list[Message] = []
    while groups and limit != 0:
        some = await tx.receive(queue, limit)
        if not some:
            break
        messages += some
        groups -= 1
        limit = None if limit is None else limit - len(some)
    return messages


@pytest.mark.rule("RCV-44", "RCV-2")
@pytest.mark.parametrize("seed", range(4))
def test_a_receive_of_several_groups_is_as_many_receives(tmp_path: Path, seed: int) -> None:
    together = play(lambda daemon: Script(daemon, seed).run(), tmp_path / "together")
    singles = play(
        lambda daemon: Script(daemon, seed, one_by_one=True).run(), tmp_path / "one by one"
    )
    assert together == singles


@pytest.mark.rule("RCV-3", "RCV-4", "RCV-7", "RCV-15", "GRP-15", "SND-14")
@pytest.mark.parametrize("seed", range(16))
def test_a_tiny_window_and_few_endpoints_change_no_answer(tmp_path: Path, seed: int) -> None:
    large = play(lambda daemon: Script(daemon, seed).run(), tmp_path / "large")
    tiny = play(
        lambda daemon: Script(daemon, seed).run(), tmp_path / "tiny", window=TINY, endpoints=4
    )
    assert tiny == large


@pytest.mark.rule("FD-10")
def test_reads_that_take_too_long_change_no_answer_and_stop_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(daemon: Daemon) -> Coroutine[object, object, list[object]]:
        return Script(daemon, 3).run()

    quick = play(program, tmp_path / "quick", window=TINY, endpoints=4)
    asked = count()

    def cut_short(read: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def slow(*args: Any) -> object:
            if next(asked) % 3:
                raise Busy("a read of the store took over 5 s")
            return await read(*args)

        return slow

    for reader, name in (
        (StoredEndpoints, "by_names"),
        (StoredEndpoints, "by_keys"),
        (StoredEndpoints, "in_group"),
        (MessageCounts, "tally"),
        (StoredMessages, "page"),
        (StoredMessages, "page_for"),
    ):
        monkeypatch.setattr(reader, name, cut_short(getattr(reader, name)))
    assert play(program, tmp_path / "slow", window=TINY, endpoints=4) == quick
    assert next(asked) > 100


@pytest.mark.rule("DLG-M1", "DLG-T10", "DLG-T16")
def test_an_end_deletes_unread_messages_that_are_not_in_memory(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await logging(daemon, tmp_path / "metrics")
        session = await daemon.session()
        kept = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        ended = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        for number in range(10):
            await session.send([kept, ended], b"%d" % number, "Ask")
        queue = daemon.broker.queues["shop"]
        (first,) = await session.receive("shop", 1, autocommit=True)
        assert (queue.ready_count, queue.beyond > 10) == (19, True)
        mine = kept if first.conversation_id == await conversation(daemon, kept) else ended
        await session.end(first.handle)
        assert queue.ready_count == 10
        assert await rows(daemon, "queue_messages") == 11  # with the EndDialog for the other side
        await session.end(mine)
        (line,) = await closing_lines(daemon, first.conversation_id, is_initiator=False)
        assert (line["received"], line["discarded_unread"]) == (10, 9)
        await session.close()

    play(program, tmp_path, window=TINY)


@pytest.mark.of_files("it verifies the file")
@pytest.mark.rule("REL-35", "DLG-T10", "OBJ-47", "RCV-7")
@pytest.mark.parametrize("restart", [False, True])
def test_what_a_dialog_leaves_unread_is_gone_though_the_file_has_it_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        kept = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        ended = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        for number in range(30):
            await session.send([ended, kept], b"%d" % number, "Ask")
        (first,) = await session.receive("shop", 1, autocommit=True)
        assert first.conversation_id == await conversation(daemon, ended)
        with monkeypatch.context() as held_up:
            held_up.setattr(Sweeper, "resume", lambda _: None)
            await session.end(first.handle)
            if restart:
                await session.close()
                await daemon.restart()
                session = await daemon.session()
            queue = daemon.broker.queues["shop"]
            assert queue.ready_count == 30
            assert await rows(daemon, "queue_messages") == 31  # with the EndDialog
            assert await in_file(daemon) > 50
            seen = [message.body async for message in session.browse("shop")]
            assert seen == [b"%d" % number for number in range(30)]
            (own,) = await session.receive("shop", 1, autocommit=True)
            assert (own.body, queue.ready_count) == (b"0", 29)
        await daemon.pass_time(10)
        assert await in_file(daemon) == 30
        got = [own.body]
        while queue.ready_count:
            got += [one.body for one in await session.receive("shop", 7, autocommit=True)]
        assert got == [b"%d" % number for number in range(30)]
        await daemon.pass_time(30)
        assert (await in_file(daemon), daemon.broker.store.shelves.taken) == (1, [])
        await session.close()
        await daemon.stop()
        assert verify(daemon.broker.store.path) == []

    play(program, tmp_path, window=TINY)


async def in_file(daemon: Daemon) -> int:
    """How many messages the file of the store has, those included that are as good as deleted."""
    count = f"SELECT count(*) FROM ({EVERYWHERE}) AS everywhere"
    return await daemon.broker.store.run(lambda it: int(it.execute(count).fetchone()[0]))


@pytest.mark.rule("PBT-23", "RCV-8", "DLG-37")
@pytest.mark.parametrize("restart", [False, True])
def test_more_timers_of_a_conversation_than_fit_a_page_are_read_all_the_same(
    tmp_path: Path, restart: bool
) -> None:
    """They share one sequence: the daemon read the first page of them again and again."""

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        for number in range(100):
            await session.set_timer(handle, 1, f"timer {number}")
        await daemon.pass_time(10)
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        got = [one.timer_name or "" for one in await session.receive("desk", autocommit=True)]
        assert sorted(got) == sorted(f"timer {number}" for number in range(100))
        await session.end(handle)
        await session.close()

    play(program, tmp_path, window=TINY)


@pytest.mark.rule("RCV-7", "RCV-4")
@pytest.mark.parametrize("restart", [False, True])
def test_conversations_of_a_group_come_whole_although_most_is_not_in_memory(
    tmp_path: Path, restart: bool
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        first = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        second = await session.begin_dialog(
            "urn:desk", "urn:shop", "talk", related_conversation=first
        )
        far = []
        for own in (first, second):
            await session.send(own, b"?", "Ask")
            far += [one.handle for one in await session.receive("shop", autocommit=True)]
        for number in range(6):
            for name, handle in zip((b"x", b"y"), far, strict=True):
                await session.send(handle, b"%s%d" % (name, number), "Answer")
        if restart:
            await session.close()
            await daemon.restart()
            session = await daemon.session()
        got = [one.body for one in await session.receive("desk", 8, autocommit=True)]
        assert got == [b"x0", b"x1", b"x2", b"x3", b"x4", b"x5", b"y0", b"y1"]
        rest = await session.receive("desk", conversation=second, autocommit=True)
        assert [one.body for one in rest] == [b"y2", b"y3", b"y4", b"y5"]
        await session.close()

    play(program, tmp_path, window=TINY, endpoints=4)


async def conversation(daemon: Daemon, handle: bytes) -> bytes | None:
    endpoint = await daemon.broker.store.endpoints.by_handle(Handle(handle))
    return None if endpoint is None else endpoint.conversation_id


async def closing_lines(
    daemon: Daemon, conversation_id: bytes, *, is_initiator: bool
) -> list[dict[str, object]]:
    rows = await daemon.broker.store.endpoints.closing_lines(100)
    lines = [orjson.loads(line) for row in rows for line in row.line.split(b"\n")]
    wanted = (show(conversation_id), is_initiator)
    return [one for one in lines if (one["conversation_id"], one["is_initiator"]) == wanted]


@pytest.mark.rule("RCV-14")
def test_a_round_that_only_removes_messages_from_a_shelf_is_not_empty(tmp_path: Path) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
        await session.send(handle, b"one", "Ask")
        queue = daemon.broker.queues["shop"]
        first = queue.groups.first()
        assert first is not None
        (taken,) = queue.dequeue(first[2], 1, 99)
        for place in range(4):
            taken.messages[0].place = place
            changeset = Changeset(daemon.broker, daemon.clock.utc())
            assert changeset.empty
            changeset.consume(taken.messages)
            assert not changeset.empty
        queue.put_back([taken])
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("RCV-7", "REL-25")
def test_after_a_start_receives_do_not_read_one_conversation_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a page brings in is counted with it, and its groups are known to be whole."""
    dialogs, page = 120, 20
    reads: list[str] = []

    def noted(reader: type, name: str) -> Callable[..., Awaitable[object]]:
        original = getattr(reader, name)

        async def read(*args: object, **given: object) -> object:
            reads.append(name)
            return await original(*args, **given)

        return read

    for reader, name in (
        (MessageCounts, "tally"),
        (MessageCounts, "tallies"),
        (StoredEndpoints, "in_group"),
        (StoredEndpoints, "keys_in_groups"),
        (StoredMessages, "page_for"),
    ):
        monkeypatch.setattr(reader, name, noted(reader, name))

    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        for number in range(dialogs):
            handle = await session.begin_dialog("urn:desk", "urn:shop", "talk")
            await session.send(handle, f"{number}".encode(), "Ask")
        await session.close()
        await daemon.restart()
        session = await daemon.session()
        reads.clear()
        got = [await session.receive("shop", 1, autocommit=True) for _ in range(dialogs)]
        assert [one.body for many in got for one in many] == [
            f"{number}".encode() for number in range(dialogs)
        ]
        await session.close()

    few = WindowOptions(window_messages=2 * page, page_messages=page)
    play(program, tmp_path, window=few)
    assert set(reads) == {"tallies", "keys_in_groups"}
    assert len(reads) <= 2 * (dialogs // page + 1)
