"""Workload: dialogs of every kind between `shop` and `warehouse`, and the history of them.

Some messages are small and some take many fragments, some share a transaction and some are
pipelined; the warehouse answers each order, sometimes after a roll-back. What clients asked and
were told is recorded, so that the checker can judge it.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Final

from brokerd.client.session import Session
from brokerd.errors import BrokerError
from brokerd.testing.check import Violation, check
from brokerd.testing.history import History
from brokerd.testing.trace import Trace
from tests.engine.simulation.recording import (
    INITIATOR,
    TARGET,
    Label,
    Recording,
    make_body,
    read_label,
)
from tests.netns.lab import Lab

SIZES: Final = (60, 60, 60, 2_000, 40_000, 300_000)
WRITERS: Final = 3
BACKLOG: Final = 300
"""Orders without an answer at which writers wait."""


class Workload:
    """Runs until it is told to finish; then everything sent has been answered and read."""

    def __init__(self, lab: Lab, rng: Random) -> None:
        loop = asyncio.get_running_loop()
        self._lab = lab
        self._rng = rng
        self.counts: Counter[str] = Counter()
        self.history = History(loop.time)
        self._recording = Recording(self.history, Trace(loop.time), self.counts)
        self._uids = 0
        self._hurry = False
        self._open: dict[bytes, set[str]] = {}
        """Handle of a dialog to the uids of its orders that have no answer yet."""
        self.answered = 0
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Work, until `finish` and everything is answered."""
        east, west = list(self._lab.nodes.values())[:2]
        shop = await self._lab.connect(east, recorder=self._recording)
        warehouse = await self._lab.connect(west, recorder=self._recording)
        async with shop, warehouse, asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(self._answer(warehouse))
            reading = tasks.create_task(self._read(shop))
            async with asyncio.TaskGroup() as writers:
                for number in range(WRITERS):
                    writers.create_task(self._write(shop, number))
            while any(self._open.values()):
                await self.progress()
            answering.cancel()
            reading.cancel()

    async def progress(self) -> None:
        """Wait for the next answer."""
        self._moved.clear()
        await self._moved.wait()

    def finish(self) -> None:
        """Begin nothing new."""
        self._hurry = True

    def judge(self) -> list[Violation]:
        """What the history says; nothing is stored any more."""
        assert not self._recording.problems, self._recording.problems
        return check(self.history, stores=())

    def left(self) -> str:
        """What has not been answered, in words."""
        missing = [uid for uids in self._open.values() for uid in uids]
        return f"{len(missing)} orders have no answer: {', '.join(sorted(missing)[:10])}"

    async def _write(self, session: Session, number: int) -> None:
        rng = Random(self._rng.random())
        dialogs = 0
        while not self._hurry:
            dialogs += 1
            name = f"writer{number}-{dialogs}"
            handle = await session.begin_dialog("shop", "warehouse", "orders", encryption=False)
            self._open[handle] = set()
            for _ in range(rng.randint(1, 20)):
                while sum(map(len, self._open.values())) > BACKLOG:
                    await self.progress()
                bodies = [self._body(rng, name, INITIATOR) for _ in range(rng.choice((1, 1, 4)))]
                labels = [read_label(body) for body in bodies]
                self._open[handle] |= {one.uid for one in labels if one is not None}
                if rng.random() < 0.5:
                    async with session.transaction() as tx:
                        for body in bodies:
                            await tx.send(handle, body, "Order")
                else:
                    await asyncio.gather(
                        *[session.submit_send(handle, body, "Order") for body in bodies]
                    )
                await asyncio.sleep(rng.uniform(0.0, 0.2))

    async def _read(self, session: Session) -> None:
        """The answers."""
        while True:
            with suppress(BrokerError):
                async with session.transaction() as tx:
                    messages = await tx.receive("shop_q", 50, wait=1.0)
                    handles = [(one.handle, read_label(one.body)) for one in messages]
                for handle, label in handles:
                    if label is not None:
                        self.answered += 1
                        self._moved.set()
                        self._open[handle].discard(
                            label.uid.removeprefix("re-").partition("-try")[0]
                        )

    async def _answer(self, session: Session) -> None:
        """One answer an order; what was rolled back is answered again, by the same names."""
        rng = Random(self._rng.random())
        tries: Counter[str] = Counter()
        while True:
            with suppress(BrokerError, _OnPurpose):
                async with session.transaction() as tx:
                    for message in await tx.receive("warehouse_q", 20, wait=1.0):
                        label = read_label(message.body)
                        assert label is not None
                        tries[label.uid] += 1
                        again = f"-try{tries[label.uid]}" if tries[label.uid] > 1 else ""
                        answer = Label(f"re-{label.uid}{again}", label.dialog, TARGET)
                        await tx.send(message.handle, make_body(answer, rng.choice(SIZES)), "Reply")
                    if rng.random() < 0.05:
                        raise _OnPurpose

    def _body(self, rng: Random, dialog: str, side: str) -> bytes:
        self._uids += 1
        return make_body(Label(f"o{self._uids}", dialog, side), rng.choice(SIZES))


class _OnPurpose(Exception):
    """Rolls a transaction back."""
