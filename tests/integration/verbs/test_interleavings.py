"""Random transactions side by side: nothing is lost, doubled, out of order, or left locked.

A handful of clients receive, lock groups, send, move, set savepoints and go back to them, commit,
roll back, give up waiting and drop their connection, each at its own pace, on one real daemon in
virtual time. What the daemon made durable is compared with what the clients were told.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from brokerd.broker.queues import QueueState
from brokerd.broker.state import Taken
from brokerd.broker.window import WindowOptions
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.clock import Instant
from brokerd.errors import BrokerError, OutcomeUnknown
from brokerd.ids import ConversationId
from tests.integration.one_daemon import Daemon, live_of, play

TINY = WindowOptions(window_messages=3, window_bytes=4000, page_messages=2, locked_factor=1000)
CLIENTS = 5
STEPS = 40
DIALOGS = 8


class Dropped(Exception):
    """The client has cut its connection in the middle of a transaction."""


class World:
    """What all clients share: the daemon, the dialogs, and who did what."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.rng = Random(seed)
        self.handles: list[bytes] = []
        self.sent: dict[bytes, bool | None] = {}
        """Body to whether its commit was confirmed; None = nobody can know."""
        self.consumed: list[tuple[ConversationId, bool, int, bytes | None]] = []
        self.told: Counter[bytes] = Counter()
        """Bodies that clients received in transactions whose commit was confirmed."""
        self.done: Counter[str] = Counter()
        self._bodies = 0

    def watch(self) -> None:
        """Write down each receive as it becomes durable."""
        for queue in self.daemon.broker.queues.values():
            self._watch(queue)

    def _watch(self, queue: QueueState) -> None:
        consumed = queue.consumed

        def write_down(taken: Sequence[Taken], now: Instant) -> None:
            for live, messages, *_ in taken:
                side = live.endpoint.conversation_id, live.endpoint.is_initiator
                self.consumed += [(*side, one.sequence, one.body) for one in messages]
            consumed(taken, now)

        queue.consumed = write_down  # type: ignore[method-assign]  # to look on

    def body(self) -> bytes:
        self._bodies += 1
        return b"%d" % self._bodies

    def check_locks(self) -> None:
        """A lock has one holder, which knows of it; nobody is in line for one that is free."""
        held: dict[object, object] = {}
        for group in self.daemon.broker.groups.values():
            if group.holder is None:
                assert not group.line
                continue
            assert group in group.holder.locked
            for other in group.holder.locked:
                assert other.holder is group.holder
                assert held.setdefault(other, group.holder) is group.holder

    def check_nothing_is_held(self) -> None:
        """All transactions are over."""
        for group in self.daemon.broker.groups.values():
            assert group.holder is None
            assert not group.line
        for queue in self.daemon.broker.queues.values():
            assert not queue.line._all()
            assert queue.taken == 0
        assert all(not live.pins for live in self.daemon.broker.endpoints.all())
        assert self.daemon.instance.parts.sessions.waiting == 0
        assert self.daemon.instance.parts.sessions.transactions == 0


class Client:
    """One client and its transactions, one after the other."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.rng = Random(f"{world.rng.random()} {number}")
        self.session: Session
        self.received: list[bytes] = []
        self.sends: list[bytes] = []

    async def run(self) -> None:
        self.session = await self.world.daemon.session()
        for _ in range(STEPS // 4):
            self.received, self.sends = [], []
            await self.one_transaction()
            await self.pause()
        await self.session.close()

    async def pause(self) -> None:
        await self.world.daemon.pass_time(self.rng.choice([0, 0, 0.001, 0.01, 0.2]))
        self.world.check_locks()

    async def one_transaction(self) -> None:
        tx = self.session.transaction()
        try:
            for _ in range(self.rng.randint(1, 6)):
                await self.one_verb(tx, 0)
            if self.rng.random() < 0.3:
                tx.rollback(counts=False)
                self.end(confirmed=False)
                return
            await self.commit(tx)
        except Dropped:
            self.end(confirmed=False)
            self.session = await self.world.daemon.session()
        except BrokerError as error:
            self.world.done[error.code] += 1
            tx.rollback(counts=False)
            self.end(confirmed=False)

    async def commit(self, tx: Transaction) -> None:
        if self.rng.random() < 0.1:  # nobody waits for the answer
            asked = asyncio.create_task(tx.commit())
            await self.world.daemon.pass_time(self.rng.choice([0, 0.001, 0.002]))
            await self.session.close()
            await asyncio.wait([asked])
            self.end(confirmed=None if asked.exception() else True)
            self.session = await self.world.daemon.session()
            self.world.done["commit and drop"] += 1
            return
        try:
            await tx.commit()
        except OutcomeUnknown:
            self.end(confirmed=None)
        else:
            self.end(confirmed=True)
            self.world.done["commit"] += 1

    def end(self, *, confirmed: bool | None) -> None:
        for body in self.sends:
            self.world.sent[body] = confirmed
        if confirmed:
            self.world.told.update(self.received)
        self.received, self.sends = [], []

    async def one_verb(self, tx: Transaction, depth: int) -> None:
        verbs = ["receive", "get_group", "send", "move", "savepoint", "wait", "drop", "state"]
        verb = self.rng.choices(verbs, [8, 3, 7, 2, 3 - depth, 2, 0.4, 1])[0]
        await getattr(self, f"do_{verb}")(tx, depth)
        self.world.done[verb] += 1
        await self.pause()

    def took(self, messages: list[Message]) -> None:
        assert len({one.group_id for one in messages}) <= 1
        self.received += [one.body or b"" for one in messages]

    async def do_receive(self, tx: Transaction, depth: int) -> None:
        queue, limit = self.rng.choice(["shop", "desk"]), self.rng.choice([None, 1, 2])
        if queue == "shop" or self.rng.random() < 0.5:
            self.took(await tx.receive(queue, limit))
            return
        handle = self.rng.choice(self.world.handles)
        wait = self.rng.choice([None, 0.01, 50])
        self.took(await tx.receive(queue, limit, conversation=handle, wait=wait))

    async def do_get_group(self, tx: Transaction, depth: int) -> None:
        queue = self.rng.choice(["shop", "desk"])
        group = await tx.get_group(queue, self.rng.choice([None, 0.01]))
        if group is not None and self.rng.random() < 0.7:
            self.took(await tx.receive(queue, group=group))

    async def do_send(self, tx: Transaction, depth: int) -> None:
        body = self.world.body()
        self.sends.append(body)
        self.world.sent[body] = None
        await tx.send(self.rng.choice(self.world.handles), body, "Both")

    async def do_move(self, tx: Transaction, depth: int) -> None:
        one, other = self.rng.sample(self.world.handles[:DIALOGS], 2)
        await tx.move(one, live_of(self.world.daemon, other).group.group_id)

    async def do_state(self, tx: Transaction, depth: int) -> None:
        handle = self.rng.choice(self.world.handles)
        group = live_of(self.world.daemon, handle).group.group_id
        await tx.state(group, take_lock=True)
        await tx.set_state(group, b"%d" % self.rng.randint(0, 9))

    async def do_savepoint(self, tx: Transaction, depth: int) -> None:
        received, sends = len(self.received), len(self.sends)
        try:
            async with tx.savepoint():
                for _ in range(self.rng.randint(1, 3)):
                    await self.one_verb(tx, depth + 1)
                self.change_its_mind()
        except KeyError:
            self.undone(received, sends)
        except BrokerError:
            self.undone(received, sends)
            raise

    def change_its_mind(self) -> None:
        if self.rng.random() < 0.5:
            raise KeyError

    def undone(self, received: int, sends: int) -> None:
        for body in self.sends[sends:]:
            self.world.sent[body] = False
        del self.received[received:], self.sends[sends:]

    async def do_wait(self, tx: Transaction, depth: int) -> None:
        """Wait for a message, and lose patience."""
        waiting = asyncio.create_task(tx.receive("shop", wait=self.rng.choice([0.05, 5])))
        await asyncio.wait([waiting], timeout=0)
        await self.world.daemon.pass_time(self.rng.choice([0, 0.001, 0.02]))
        if self.rng.random() < 0.5:
            waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            self.took(waiting.result())

    async def do_drop(self, tx: Transaction, depth: int) -> None:
        await self.session.close()
        raise Dropped


@pytest.mark.rule("GRP-4", "GRP-8", "GRP-12", "GRP-21", "RCV-14", "RCV-15", "RCV-22", "RCV-25")
@pytest.mark.parametrize("seed", range(24))
def test_transactions_side_by_side(tmp_path: Path, seed: int) -> None:
    async def program(daemon: Daemon) -> Counter[str]:
        world = World(daemon, seed)
        await begin_dialogs(world)
        world.watch()
        clients = [Client(world, number) for number in range(CLIENTS)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run())
        await daemon.pass_time(2)
        world.check_nothing_is_held()
        await drain(world)
        judge(world)
        return world.done

    window = TINY if seed % 2 else WindowOptions()
    done = play(program, tmp_path, seed=seed, window=window)
    assert done["commit"] > 5


async def begin_dialogs(world: World) -> None:
    """Open dialogs on which both sides have spoken, so that either may send."""
    async with await world.daemon.session() as session:
        mine = [await session.begin_dialog("urn:desk", "urn:shop", "talk") for _ in range(DIALOGS)]
        for handle in mine:
            await session.send(handle, b"first", "Both")
        yours = []
        for _ in mine:
            (first,) = await session.receive("shop", autocommit=True)
            yours.append(first.handle)
        world.handles = mine + yours


async def drain(world: World) -> None:
    """Receive all that is left, so that everything sent is accounted for."""
    async with await world.daemon.session() as session:
        for queue in ("shop", "desk"):
            while got := await session.receive(queue, autocommit=True):
                assert len({one.group_id for one in got}) == 1
        await session.status()
    for queue_state in world.daemon.broker.queues.values():
        assert queue_state.ready_count == 0


def judge(world: World) -> None:
    """Once each, in order, and exactly what was committed."""
    sequences: dict[tuple[ConversationId, bool], list[int]] = defaultdict(list)
    for conversation, side, sequence, _ in world.consumed:
        sequences[conversation, side].append(sequence)
    for numbers in sequences.values():
        begin = numbers[0]
        assert numbers == list(range(begin, begin + len(numbers)))  # gapless, once, in order
    consumed = Counter(body or b"" for *_, body in world.consumed)
    assert max(consumed.values(), default=1) == 1
    for body, confirmed in world.sent.items():
        if confirmed is not None:
            assert consumed[body] == int(confirmed), (body, confirmed)
    assert not world.told - consumed
    assert max(world.told.values(), default=1) == 1
