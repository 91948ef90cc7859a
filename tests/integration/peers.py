"""Instances that are peers, on virtual time: real connections over a simulated network.

Each has the services `urn:<name>` on the queue `box`, and the way to those of the others."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.state import Live
from brokerd.client.session import Session
from brokerd.config.settings import Settings
from brokerd.ids import ConversationId, Handle
from brokerd.testing.rig import BROKER, PORT, Rig, RigInstance

TYPES: dict[str, Any] = {
    "broker": {"name": BROKER, "default_encryption": "off"},
    "message_type": [
        {"name": "Ask"},
        {"name": "Answer"},
        {"name": "Json", "validation": "well_formed_json"},
    ],
    "contract": [
        {"name": "talk", "types": {"Ask": "any", "Answer": "target", "Json": "initiator"}},
        {"name": "other", "types": {"Ask": "any"}},
    ],
}


class Log:
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def _write(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    debug = info = warning = error = _write

    def of(self, event: str) -> list[dict[str, Any]]:
        """The lines of one event."""
        return [fields for name, fields in self.lines if name == event]


class Peer:
    """One instance, by what tests want to know of it."""

    def __init__(self, one: RigInstance) -> None:
        self.one = one
        self.log = Log()

    def listen(self) -> None:
        """Keep what the instance logs from now on."""
        self.one.instance.parts.log._log = self.log

    @property
    def session(self) -> Session:
        return self.one.session

    @property
    def instance(self) -> Any:
        return self.one.instance

    @property
    def broker(self) -> Broker:
        return self.one.instance.brokers[BROKER]

    def live(self, handle: bytes) -> Live:
        found = self.broker.endpoints.find(Handle(handle))
        assert found is not None
        return found

    def out(self, handle: bytes) -> Outgoing:
        found = self.live(handle).outgoing
        assert found is not None
        return found

    def other_side(self, conversation: bytes, *, initiator: bool = False) -> Live | None:
        return self.broker.endpoints.find_conversation(ConversationId(conversation), initiator)

    async def status(self, handle: bytes) -> str:
        """Status key and text of a dialog's transmission."""
        found = await self.session.transmission_status(handle)
        return found.transmission_status

    async def key(self, handle: bytes) -> str:
        found = await self.session.transmission_status(handle)
        return found.status_key

    async def apply(self, **objects: object) -> None:
        await self.session.apply({"broker": {"name": BROKER}, **objects}, ensure=True)

    async def queue(self, *, on: bool) -> None:
        await self.session.alter("queue", "box", status="on" if on else "off")

    async def talk(self, to: str, *bodies: bytes, contract: str = "talk") -> bytes:
        """Begin a dialog and send these."""
        handle = await self.session.begin_dialog(f"urn:{self.one.name}", to, contract)
        for body in bodies:
            await self.session.send(handle, body, "Ask")
        return handle

    async def bodies(self) -> list[bytes | None]:
        """Everything that waits on the queue."""
        found: list[bytes | None] = []
        async with self.session.transaction() as tx:
            while batch := await tx.receive("box"):
                found += [one.body for one in batch]
        return found

    async def messages(self) -> list[Any]:
        found: list[Any] = []
        async with self.session.transaction() as tx:
            while batch := await tx.receive("box"):
                found += batch
        return found


class Net(Rig):
    """The instances of a test."""

    def __init__(self, directory: Path, *, seed: int = 1, **sections: object) -> None:
        super().__init__(directory, seed=seed)
        self._sections = sections
        self.peers: dict[str, Peer] = {}

    def settings(self, name: str) -> Settings:
        chosen = {
            key: value(name) if callable(value) else value for key, value in self._sections.items()
        }
        return msgspec.structs.replace(super().settings(name), **chosen)

    async def join(self, *names: str, routes: bool = True) -> list[Peer]:
        """Start instances that talk to each other."""
        for one in await self.add(*names):
            peer = self.peers[one.name] = Peer(one)
            peer.listen()
            service = {"name": f"urn:{one.name}", "queue": "box", "contracts": ["talk", "other"]}
            await peer.session.apply(
                {**TYPES, "queue": [{"name": "box"}], "service": [service]}, ensure=True
            )
        if routes:
            for peer in self.peers.values():
                for far in self.peers:
                    if far != peer.one.name:
                        await peer.apply(route=[route(far)])
        return [self.peers[name] for name in names]

    async def wait(self, seconds: float) -> None:
        """Let virtual time go by."""
        await self.sim_clock.sleep_until(self.sim_clock.monotonic() + seconds)

    def cut(self) -> None:
        for one in self.instances.values():
            one.link.cut()

    def heal(self) -> None:
        for one in self.instances.values():
            one.link.heal()


def route(to: str, service: str | None = None, name: str | None = None) -> dict[str, object]:
    """The way to a service of an instance."""
    return {
        "name": name or f"way_to_{to}",
        "service": service or f"urn:{to}",
        "address": f"TCP://{to}:{PORT}",
    }


Program = Callable[..., Coroutine[Any, Any, None]]


def peers(
    *names: str, routes: bool = True, **sections: Any
) -> Callable[[Program], Callable[[Path], None]]:
    """Run the test on a net, with its instances as the other arguments."""

    def wrap(test: Program) -> Callable[[Path], None]:
        @wraps(test)
        def run(tmp_path: Path) -> None:
            net = Net(tmp_path, **sections)

            async def program() -> None:
                await test(net, *await net.join(*names, routes=routes))

            try:
                net.run(program())
            finally:
                net.close()

        del run.__wrapped__
        return run

    return wrap
