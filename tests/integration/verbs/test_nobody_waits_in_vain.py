"""Whoever waits for a message is told of each that it can have, whoever comes and goes (RCV-20).

python -m tests.integration.verbs.test_nobody_waits_in_vain 5000    # that many random programs
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from brokerd.broker.window import WindowOptions
from brokerd.client.messages import FOREVER
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import BrokerError
from tests.integration.one_daemon import Daemon, play

STEPS: Final = 60
READERS: Final = 5
LEVELS: Final = {"talk": 9, "DEFAULT": 3}
WINDOWS: Final = {
    "all": WindowOptions(),
    "tiny": WindowOptions(
        window_messages=3, window_bytes=4000, page_messages=2, locked_factor=1000
    ),
}


class Reader:
    """A client that has at most one transaction open, and at most one verb of it under way."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.tx: Transaction | None = None
        self.asks: asyncio.Task[Any] | None = None
        self.groups: list[bytes] = []
        self.handles: list[bytes] = []
        self.selects: bytes | None = None
        """The group it waits for a message of, if it wants no other."""

    def ask(self, verb: Callable[[Transaction], Coroutine[Any, Any, Any]]) -> None:
        if self.tx is None:
            self.tx, self.groups, self.handles = self.session.transaction(), [], []
        self.asks = asyncio.create_task(verb(self.tx))

    def hears(self) -> None:
        """Take the answer, if there is one; a transaction that has failed is rolled back."""
        if self.asks is None or not self.asks.done():
            return
        answered, self.asks, self.selects = self.asks, None, None
        try:
            found = answered.result()
        except BrokerError:
            self.undo()
            return
        if isinstance(found, list):
            self.groups += [one.group_id for one in found]
            self.handles += [one.handle for one in found]
        elif found is not None:
            self.groups.append(found)

    def undo(self) -> None:
        if self.tx is not None and self.tx.is_open:
            self.tx.rollback(counts=False)
        self.tx = None

    async def leave(self) -> None:
        """Give up what it waits for, and end."""
        if self.asks is not None:
            self.asks.cancel()
            with suppress(asyncio.CancelledError, BrokerError):
                await self.asks
        self.asks = self.selects = None
        self.undo()


class Program:
    """Random things that happen, one after the other."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.daemon = daemon
        self.rng = Random(seed)
        self.handles: dict[bytes, str | None] = {}
        """Of dialogs, with the type of message that can be sent on them."""
        self.groups: list[bytes] = []
        """That somebody has received from."""
        self.said: list[str] = []

    async def run(self) -> None:
        self.sender = await self.daemon.session()
        for contract, level in LEVELS.items():
            await self.sender.create("priority", contract, contract=contract, level=level)
        self.readers = [Reader(await self.daemon.session()) for _ in range(READERS)]
        for _ in range(STEPS):
            await self.step()
            await self.daemon.pass_time(0.05)
            for reader in self.readers:
                reader.hears()
            await self.daemon.pass_time(0.05)  # for those that were rolled back
            for reader in self.readers:
                self.groups += [one for one in reader.groups if one not in self.groups]
            await self.look()
        for reader in self.readers:
            await reader.leave()
            await reader.session.close()
        await self.sender.close()

    async def step(self) -> None:
        number = self.rng.randrange(READERS)
        reader = self.readers[number]
        if self.rng.random() < 0.3:
            await self.send()
        elif reader.asks is not None:
            if self.rng.random() < 0.1:
                self.said.append(f"{number}: gives up")
                await reader.leave()
        elif reader.tx is None or self.rng.random() < 0.3:
            self.wait(number, reader)
        else:
            await self.go_on(number, reader)

    async def send(self) -> None:
        rng, numbered = self.rng, list(self.handles)
        chosen = rng.sample(numbered, min(len(numbered), rng.randrange(4)))
        async with self.sender.transaction() as tx:
            for _ in range(rng.randrange(3) if chosen else 2):
                contract = rng.choice(list(LEVELS))
                handle: bytes = await tx.begin_dialog("urn:desk", "urn:shop", contract)
                self.handles[handle] = "Both" if contract == "talk" else None
                numbered.append(handle)
                chosen.append(handle)
            rng.shuffle(chosen)
            self.said.append(f"sends on {[numbered.index(one) for one in chosen]}")
            for handle in chosen:
                for _ in range(rng.choice((1, 1, 3))):
                    await tx.send(handle, b"x", self.handles[handle])
            with suppress(BrokerError):  # a reader has ended one of them
                await tx.commit()

    def wait(self, number: int, reader: Reader) -> None:
        rng = self.rng
        kind = rng.choice(("receive", "receive", "get_group", "of a group"))
        self.said.append(f"{number}: {kind}")
        if kind == "get_group":
            reader.ask(lambda tx: tx.get_group("shop", wait=FOREVER))
        elif kind == "of a group" and self.groups:
            group = reader.selects = rng.choice(self.groups)
            reader.ask(lambda tx: tx.receive("shop", group=group, wait=FOREVER))
        else:
            most, groups = rng.choice((1, 2, None)), rng.choice((1, 1, 3))
            reader.ask(lambda tx: tx.receive("shop", most, groups=groups, wait=FOREVER))

    async def go_on(self, number: int, reader: Reader) -> None:
        tx, kind = reader.tx, self.rng.choice(("commit", "commit", "roll back", "end", "move"))
        assert tx is not None
        self.said.append(f"{number}: {kind}")
        if kind == "commit":
            reader.tx = None
            with suppress(BrokerError):
                await tx.commit()
        elif kind == "end" and reader.handles:
            reader.ask(lambda tx: tx.end(self.rng.choice(reader.handles)))
        elif kind == "move" and reader.handles and len(reader.groups) > 1:
            handle, group = self.rng.choice(reader.handles), self.rng.choice(reader.groups)
            reader.ask(lambda tx: tx.move(handle, group))
        else:
            reader.undo()

    async def look(self) -> None:
        """Nobody waits while somebody who came now would get something."""
        selected = [one.selects for one in self.readers if one.selects is not None]
        if self.daemon.broker.queues["shop"].line.unselective:
            await self.try_for(None)
        for group in selected:
            with suppress(BrokerError):  # it has gone, and whoever waits for it is told so
                await self.try_for(group)

    async def try_for(self, group: bytes | None) -> None:
        tx = self.sender.transaction()
        try:
            found = await tx.receive("shop", 1, group=group)
        finally:
            tx.rollback(counts=False)
        assert not found, "\n".join(["somebody waits beside a message:", *self.said])


def run_one(seed: int, window: WindowOptions, folder: Path) -> None:
    async def program(daemon: Daemon) -> None:
        await Program(daemon, seed).run()

    play(program, folder, window=window, seed=seed)


@pytest.mark.rule("RCV-20", "RCV-21")
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(5))
def test_nobody_waits_in_vain(seed: int, window: str, tmp_path: Path) -> None:
    run_one(seed, WINDOWS[window], tmp_path)


def main(number: int) -> None:
    for seed in range(number):
        for name, window in WINDOWS.items():
            with tempfile.TemporaryDirectory() as folder:
                try:
                    run_one(seed, window, Path(folder))
                except AssertionError as error:
                    sys.stdout.write(f"seed {seed}, window {name}: {error}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
