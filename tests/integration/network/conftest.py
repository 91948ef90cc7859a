"""Whole instances that talk over the simulated network, in virtual time."""

from collections.abc import Callable
from typing import Any

from brokerd.protocol.frames import Fragment
from brokerd.testing.rig import PORT, RigInstance
from brokerd.transport.meeting import Arrival

Pair = tuple[RigInstance, RigInstance]


def address_of(name: str) -> str:
    """The destination that leads to an instance of the rig."""
    return f"tcp://{name}:{PORT}"


async def open_to(one: RigInstance, two: RigInstance, service: str = "") -> bytes:
    """A dialog from one to two on which nothing was sent yet; its handle."""
    await two.session.alter("service", two.name, contracts=["DEFAULT"])
    return bytes(await one.session.begin_dialog(service or one.name, two.name, encryption=False))


async def talk(one: RigInstance, two: RigInstance, *bodies: bytes) -> bytes:
    """One sends to two and does not wait; the handle."""
    handle = await open_to(one, two)
    for body in bodies:
        await one.session.send(handle, body)
    return handle


async def only(at: RigInstance, view: str, **where: Any) -> dict[str, Any]:
    """The one row of a view."""
    (row,) = await at.session.view(view, where=where)
    return dict(row)


def ready(at: RigInstance) -> int:
    """Messages that wait to be received there."""
    return at.instance.brokers["main"].queues[f"{at.name}_q"].ready_count


class Arrivals:
    """What comes to an instance over the network, with when, until it is restarted."""

    def __init__(self, at: RigInstance) -> None:
        self.at: list[tuple[float, Fragment]] = []
        self.boxcars: list[int] = []
        self._clock = at.instance.surroundings.clock
        events: Any = at.instance.parts.destinations._events
        self._hand_on: Callable[[Arrival], None] = events.boxcar_arrived
        events.boxcar_arrived = self._came

    def _came(self, arrival: Arrival) -> None:
        now = self._clock.monotonic()
        found = [item for item in arrival.items if isinstance(item, Fragment)]
        self.at += [(now, item) for item in found]
        self.boxcars.append(len(found))
        self._hand_on(arrival)

    def bodies(self) -> list[bytes]:
        return [bytes(item.body) for _, item in self.at]
