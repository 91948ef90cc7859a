"""A sender, and two partners that share the file of one broker (RTE-50 to RTE-59).

The three run the real engine on virtual time; who of the partners has the file open is decided by
the real lock. `Trio` sends numbered orders to the shared broker and looks at what was answered."""

from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokerd.app.session import Session
from brokerd.client.connecting import open_session
from brokerd.config.settings import Mirroring, Settings
from brokerd.testing.rig import BROKER, PORT, Rig, RigInstance

SHARED = "app"
SENDER, LEFT, RIGHT = "sender", "left", "right"
TAKEN_OVER = 6.0
"""Seconds in which a mirror notices that the lock is free: one tick, and a little."""


class Trio(Rig):
    """The three of them."""

    def __init__(self, directory: Path, *, seed: int = 1) -> None:
        super().__init__(directory, seed=seed)
        self.shared = directory / "shared"
        self.shared.mkdir()
        self.handle = b""
        self.sent = 0

    def settings(self, name: str) -> Settings:
        """The partners name the same file."""
        mirroring = Mirroring() if name == SENDER else Mirroring(brokers=(SHARED,))
        if mirroring.brokers:
            mirroring = msgspec.structs.replace(mirroring, directory=self.shared)
        return msgspec.structs.replace(super().settings(name), mirroring=mirroring)

    @property
    def sender(self) -> RigInstance:
        return self.instances[SENDER]

    @property
    def left(self) -> RigInstance:
        return self.instances[LEFT]

    @property
    def right(self) -> RigInstance:
        return self.instances[RIGHT]

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def at(self, one: RigInstance) -> Session:
        """A session on the shared broker."""
        return await open_session(
            Session,
            None,
            SHARED,
            connector=one._connector,
            clock=self.sim_clock,
            ids=self.streams_ids(one.name),
            rng=self.streams.stream("mirrored clients"),
        )

    def streams_ids(self, name: str) -> Any:
        from brokerd.ids import SeededIds  # noqa: PLC0415

        return SeededIds(self.streams.stream(f"mirrored {name}"))

    async def part(self, one: RigInstance) -> tuple[str, int]:
        """Role and epoch in the shared broker, as the view of the instance shows them."""
        rows = {row["name"]: row for row in await one.session.view("brokers")}
        return rows[SHARED]["role"], rows[SHARED]["epoch"]

    async def route(self) -> dict[str, Any]:
        """The row of the mirrored route at the sender."""
        rows = await self.sender.session.view("routes")
        return next(dict(row) for row in rows if row["mirror_address"])

    async def status(self) -> str:
        return (await self.sender.session.transmission_status(self.handle)).status_key

    async def send(self, count: int) -> None:
        """Orders with rising numbers, on one dialog."""
        session = self.sender.session
        if not self.handle:
            self.handle = await session.begin_dialog(SENDER, "orders", "DEFAULT")
        for _ in range(count):
            self.sent += 1
            await session.send(self.handle, b"%d" % self.sent, "DEFAULT")

    async def work(self, one: RigInstance) -> list[int]:
        """Answer what waits in the shared broker at this partner: each order by its number."""
        session, seen = await self.at(one), []
        async with session:
            while True:
                async with session.transaction() as tx:
                    messages = await tx.receive("orders_q", wait=0)
                    for message in messages:
                        seen.append(int(message.body or b"0"))
                        await tx.send(message.handle, message.body or b"", "DEFAULT")
                if not messages:
                    return seen

    async def answers(self) -> list[int]:
        """What the sender was answered, in order."""
        found = []
        while messages := await self.sender.session.receive(f"{SENDER}_q", wait=0, autocommit=True):
            found += [int(one.body or b"0") for one in messages]
        return found


async def _declare(rig: Trio) -> None:
    await rig.left.session.apply(
        {
            "broker": {"name": SHARED, "default_encryption": "off"},
            "queue": [{"name": "orders_q"}],
            "service": [{"name": "orders", "queue": "orders_q", "contracts": ["DEFAULT"]}],
            "route": [{"name": "back", "service": SENDER, "address": f"TCP://{SENDER}:{PORT}"}],
        }
    )
    broker_id = rig.left.instance.brokers[SHARED].broker_id
    await rig.sender.session.create(
        "route",
        "to_orders",
        service="orders",
        broker=broker_id.hex(),
        address=f"TCP://{LEFT}:{PORT}",
        mirror=f"TCP://{RIGHT}:{PORT}",
    )
    await rig.pass_time(TAKEN_OVER)  # the other one finds the file, and that it is taken


Program = Callable[[Trio], Coroutine[Any, Any, None]]


def mirrored(test: Program) -> Callable[[Path], None]:
    """Run the test with the three of them, left being principal."""

    @pytest.mark.of_files("partners share the file of a broker")
    @wraps(test)
    def run(tmp_path: Path) -> None:
        rig = Trio(tmp_path)
        try:
            rig.run(rig.add(SENDER, LEFT, RIGHT))
            rig.run(_declare(rig))
            rig.run(test(rig))
        finally:
            rig.close()

    del run.__wrapped__
    return run


__all__ = ["BROKER", "LEFT", "RIGHT", "SENDER", "TAKEN_OVER", "Trio", "mirrored"]
