"""A broker, a copy of its store in another instance, and a peer that is connected with both.

The three run the real engine on virtual time. The broker is `shop`, born at east; `Copies` puts a
copy of its file to west, switches it on there, and sends orders from the peer."""

import sqlite3
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from brokerd.app.session import Session
from brokerd.client.connecting import open_session
from brokerd.ids import BrokerId, SeededIds, show
from brokerd.model import POST_EVENT_NOTIFICATION
from brokerd.telemetry.logs import DUPLICATE_BROKER
from brokerd.telemetry.status import DuplicateStatus, InstanceStatus, concerns
from brokerd.testing.rig import PORT, Rig, RigInstance

SHOP = "shop"
PEER, EAST, WEST = "peer", "east", "west"
FOUND = 50.0
"""Seconds in which a duplicate is found: a keepalive, and two ticks before and after it."""


class Copies(Rig):
    """The three of them."""

    def __init__(self, directory: Path, *, seed: int = 1) -> None:
        super().__init__(directory, seed=seed)
        self._directory = directory
        self.names: dict[str, str] = {}
        """Instance ids, as text, to names."""
        self.lines: dict[str, list[dict[str, object]]] = {}

    @property
    def peer(self) -> RigInstance:
        return self.instances[PEER]

    @property
    def east(self) -> RigInstance:
        return self.instances[EAST]

    @property
    def west(self) -> RigInstance:
        return self.instances[WEST]

    @property
    def shop_id(self) -> BrokerId:
        return self.east.instance.brokers[SHOP].broker_id

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def at(self, one: RigInstance) -> Session:
        """A session on the broker, or its copy."""
        return await open_session(
            Session,
            None,
            SHOP,
            connector=one._connector,
            clock=self.sim_clock,
            ids=SeededIds(self.streams.stream(f"copies {one.name}")),
            rng=self.streams.stream("copies clients"),
        )

    async def copy(self) -> None:
        """The file of the broker, as it is, in the directory of west, which is started again."""
        there = sqlite3.connect(self._directory / EAST / f"{SHOP}.db")
        there.execute("VACUUM INTO ?", (str(self._directory / WEST / f"{SHOP}.db"),))
        there.close()
        await self.west.restart()
        await self.pass_time(1)

    async def force_on(self) -> None:
        """Switch the copy on, as a careless hand does."""
        await self.west.session.admin.enable(SHOP)

    async def route(self, name: str, to: RigInstance, **given: object) -> None:
        """A route of the peer to the broker."""
        address = f"TCP://{to.name}:{PORT}"
        await self.peer.session.create("route", name, service="orders", address=address, **given)

    async def begin(self, **given: Any) -> bytes:
        """A dialog of the peer with the broker."""
        handle: bytes = await self.peer.session.begin_dialog(PEER, "orders", "DEFAULT", **given)
        return handle

    async def send(self, handle: bytes, *bodies: bytes) -> None:
        for body in bodies:
            await self.peer.session.send(handle, body, "DEFAULT")

    async def status(self, handle: bytes) -> tuple[str, str]:
        found = await self.peer.session.transmission_status(handle)
        return found.status_key, found.transmission_status

    async def taken(self, one: RigInstance) -> list[bytes]:
        """What has come to the broker, or to its copy."""
        found: list[bytes] = []
        async with await self.at(one) as session:
            while messages := await session.receive("orders_q", wait=0, autocommit=True):
                found += [message.body or b"" for message in messages]
        return found

    async def talk(self, one: RigInstance) -> None:
        """Something goes from the broker at this instance to the peer, so that they connect."""
        async with await self.at(one) as session:
            handle = await session.begin_dialog("orders", PEER, "DEFAULT")
            await session.send(handle, b"hello", "DEFAULT")
        await self.pass_time(2)

    async def duplicates(self, one: RigInstance | None = None) -> list[DuplicateStatus]:
        """What an instance says of duplicates in its status, which tells people of each."""
        answer = await (one or self.peer).session.status()
        status = msgspec.convert(answer, InstanceStatus, strict=False)
        told = [
            f"broker {d.broker_id} is at {d.earlier}, and at {d.later}" for d in status.duplicates
        ]
        assert [line for line in concerns(status) if line.startswith("broker ")] == told
        return list(status.duplicates)

    def watch(self, one: RigInstance) -> None:
        """Keep what this boot of an instance logs of duplicates."""
        kept = self.lines.setdefault(one.name, [])
        log = one.instance.parts.log
        write = log._log

        class Kept:
            def debug(self, event: str, **fields: object) -> None:
                if event == DUPLICATE_BROKER:
                    kept.append(fields)
                write.debug(event, **fields)

            info = warning = error = debug

        log._log = Kept()

    def seen(self, one: RigInstance) -> list[tuple[object, object, object]]:
        """What was logged of them since `watch`: what, who was the earlier and who the later."""
        return [
            (line["subclass"], self.names[str(line["earlier"])], self.names[str(line["later"])])
            for line in self.lines[one.name]
        ]

    async def events(self) -> list[dict[str, Any]]:
        """What the subscriber at the peer was told."""
        found = await self.peer.session.receive("told", wait=0, autocommit=True)
        return [orjson.loads(one.body or b"") for one in found]


async def _declare(rig: Copies) -> None:
    rig.names = {show(one.instance.parts.instance_id): one.name for one in rig.instances.values()}
    await rig.east.session.apply(
        {
            "broker": {"name": SHOP, "default_encryption": "off"},
            "queue": [{"name": "orders_q"}],
            "service": [{"name": "orders", "queue": "orders_q", "contracts": ["DEFAULT"]}],
            "route": [{"name": "back", "service": PEER, "address": f"TCP://{PEER}:{PORT}"}],
        }
    )
    session = rig.peer.session
    await session.alter("service", PEER, contracts=["DEFAULT"])
    await session.create("queue", "told")
    await session.create("service", "ops", queue="told", contracts=[POST_EVENT_NOTIFICATION])
    await session.create(
        "event_notification",
        "watch",
        events=["DUPLICATE_BROKER_SEEN"],
        service="ops",
        scope="instance",
    )
    rig.watch(rig.peer)


Program = Callable[[Copies], Coroutine[Any, Any, None]]


def copies(test: Program) -> Callable[[Path], None]:
    """Run the test with the three of them; there is no copy yet."""

    @pytest.mark.of_files("it copies a store file")
    @wraps(test)
    def run(tmp_path: Path) -> None:
        rig = Copies(tmp_path)
        try:
            rig.run(rig.add(PEER, EAST, WEST))
            rig.run(_declare(rig))
            rig.run(test(rig))
        finally:
            rig.close()

    del run.__wrapped__
    return run


__all__ = ["EAST", "FOUND", "PEER", "SHOP", "WEST", "Copies", "copies"]
