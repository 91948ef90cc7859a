"""East and west, which know the way to each other by an instance in the middle only (FWD).

The three run the real engine on virtual time and simulated streams; `Through` says how many
seconds, what the middle holds, and what its routes and settings are."""

from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import msgspec

from brokerd.config.settings import Dialog, Settings
from brokerd.delivery.forwarding.forwarder import Forwarder
from brokerd.testing.rig import BROKER, PORT, Rig, RigInstance

MIDDLE = "middle"
FORWARDING: dict[str, Any] = {"forwarding": True}
ADDRESS = f"TCP://{MIDDLE}:{PORT}"


class Through(Rig):
    """A rig whose instances send everything for each other to the middle."""

    def __init__(
        self, directory: Path, *, endpoint: dict[str, Any], dialog: dict[str, Any], seed: int
    ) -> None:
        super().__init__(directory, seed=seed)
        self._endpoint = endpoint
        self._dialog = dialog

    @property
    def east(self) -> RigInstance:
        """Who begins, in the tests."""
        return self.instances["east"]

    @property
    def west(self) -> RigInstance:
        """The other end."""
        return self.instances["west"]

    @property
    def middle(self) -> RigInstance:
        """Who is between them."""
        return self.instances[MIDDLE]

    @property
    def forwarder(self) -> Forwarder:
        """What the middle forwards with, in its present boot."""
        return self.middle.instance.parts.forwarder

    def settings(self, name: str) -> Settings:
        """Only the middle forwards."""
        usual = super().settings(name)
        assert usual.endpoint is not None
        endpoint = usual.endpoint
        if name == MIDDLE:
            endpoint = msgspec.structs.replace(endpoint, **self._endpoint)
        return msgspec.structs.replace(usual, endpoint=endpoint, dialog=Dialog(**self._dialog))

    async def route_to(self, one: RigInstance, services: Iterable[str]) -> None:
        """The middle knows where an instance is; the others know the middle."""
        for service in sorted(services):
            route = {"name": f"to_{service}", "service": service}
            for other in self.others(one):
                address = f"TCP://{one.name}:{PORT}" if other.name == MIDDLE else ADDRESS
                kind = "instance_route" if other.name == MIDDLE else "route"
                wanted: dict[str, object] = {
                    "broker": {"name": BROKER},
                    kind: [{**route, "address": address}],
                }
                await other.session.apply(wanted, ensure=True)

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time go by."""
        await self.clock.advance(seconds)


async def _declare(rig: Through) -> None:
    for name in ("east", "west"):
        await rig.instances[name].session.alter("service", name, contracts=["DEFAULT"])


Program = Callable[[Through], Coroutine[Any, Any, None]]


def through(
    *, seed: int = 1, dialog: dict[str, Any] | None = None, **endpoint: Any
) -> Callable[[Program], Callable[[Path], None]]:
    """Run the test with the three of them; `endpoint` holds settings of the middle."""

    def decorate(test: Program) -> Callable[[Path], None]:
        @wraps(test)
        def run(tmp_path: Path) -> None:
            rig = Through(tmp_path, endpoint=FORWARDING | endpoint, dialog=dialog or {}, seed=seed)
            try:
                rig.run(rig.add("east", MIDDLE, "west"))
                rig.run(_declare(rig))
                rig.run(test(rig))
            finally:
                rig.close()

        del run.__wrapped__  # its arguments are not fixtures
        return run

    return decorate
