"""Routes: an administrator who changes routes while they are used (RTE-3, RTE-29, RTE-65).

A route is dropped and created again, expires and is revived, is altered to lead to the forwarder or
to the target itself, or gets a second route beside it. All of these lead to one broker in the end,
so no dialog may get lost or reach a second target (REL-13).
Reads:  the plan.      Calls: administration.
Never:  changes a route to a service with two homes: before the first acknowledgement such a change
        may bring a dialog to the other home (DLP-44).
"""

from collections.abc import Callable
from typing import Final

from brokerd.routing.reasons import Reason
from tests.engine.simulation import objects
from tests.engine.simulation.administration import (
    Work,
    administer,
    altering,
    dropping,
    making,
)
from tests.engine.simulation.features import PARTNER
from tests.engine.simulation.nodes import Node
from tests.engine.simulation.surround import Surround

Holder = Callable[[str], Node]
"""Returns the node that has the broker of an instance open now, or the instance itself."""
DOUBLED: Final = "depot"
"""The service that has two homes in some runs."""
SECOND: Final = "west"
"""The second home of that service; the first is south."""
FROM: Final = "east"
"""The instance with a route to each of the two homes."""
PAUSE: Final = 2.0
"""Mean virtual seconds between two changes."""
LONGEST: Final = 12.0
"""Most virtual seconds for which a route is missing, or has a second one beside it."""
NO_WAY: Final = frozenset({Reason.NO_ROUTE, Reason.LOCAL_SERVICE_MISSING, Reason.BROKER_NOT_HERE})
"""Transmission statuses of a dialog without a route whose service is not local either."""
Way = tuple[str, str]
"""An instance, and the service to which it has a route."""


class Routes:
    """The changes of routes of one run."""

    def __init__(self, shared: Surround, holder: Holder) -> None:
        self._shared = shared
        self._holder = holder
        self._rng = shared.streams.stream("routes")
        self.over = False
        self.slow = 1.0
        """Factor on the time between two changes; it is larger at night."""
        plan = shared.plan
        self._ways: list[Way] = [
            (node, service)
            for node in plan.instances
            if node not in (PARTNER, plan.features.asking)
            for service in objects.far_services(node, plan.instances)
            if not (plan.features.doubled and service == DOUBLED)
        ]

    async def run(self) -> None:
        """Change one route after the other until it is over; finish each change first."""
        while not self.over:
            await self._shared.rest(self.slow * self._rng.expovariate(1 / PAUSE))
            if not self.over:
                way = self._rng.choice(self._ways)
                change = self._rng.choice((self._drop, self._expire, self._turn, self._second))
                name = change.__name__.removeprefix("_")
                self._shared.counts[f"routes: {name}"] += 1
                self._note(f"{name} {' '.join(way)}")
                await change(way)
                self._note("done")

    async def second_home(self) -> None:
        """Create the second home of the depot, and east's route to it, before anything is sent."""
        activated = self._shared.plan.activated
        declared = objects.queue(DOUBLED, activated=activated)
        name = str(declared.pop("name"))
        await self._do(SECOND, making("queue", name, **declared))
        service = {"queue": name, "contracts": [objects.CONTRACT]}
        await self._do(SECOND, making("service", DOUBLED, **service))
        way = {"service": DOUBLED, "address": objects.address(SECOND)}
        await self._do(FROM, making("route", "also_depot", **way))

    def _note(self, text: str) -> None:
        self._shared.trace.note("routes", text)

    # Changes.

    async def _drop(self, way: Way) -> None:
        node, service = way
        kind = objects.kind_of_route(node)
        await self._do(node, dropping(kind, f"to_{service}"))
        await self._lacks(way)
        await self._do(node, making(kind, f"to_{service}", **self._said(way)))

    async def _expire(self, way: Way) -> None:
        node, service = way
        kind, lifetime = objects.kind_of_route(node), self._rng.randint(1, 4)
        await self._do(node, altering(kind, f"to_{service}", lifetime=lifetime))
        await self._shared.rest(lifetime)
        await self._lacks(way)
        await self._do(node, altering(kind, f"to_{service}", lifetime=None))

    async def _turn(self, way: Way) -> None:
        """Alter a route to lead another way to its target, for good."""
        node, service = way
        said = self._said(way)
        said.pop("service")
        await self._do(node, altering(objects.kind_of_route(node), f"to_{service}", **said))

    async def _second(self, way: Way) -> None:
        """Create a second route to the service, for a while."""
        node, service = way
        kind = objects.kind_of_route(node)
        await self._do(node, making(kind, f"also_{service}", **self._said(way)))
        await self._rest()
        await self._do(node, dropping(kind, f"also_{service}"))

    def _said(self, way: Way) -> dict[str, object]:
        shared = self._shared
        return dict(self._rng.choice(objects.ways(*way, shared.plan, shared.broker_id)))

    async def _lacks(self, way: Way) -> None:
        """Wait for a while; count the dialogs that then wait for the missing route."""
        await self._rest()
        node, service = way
        for why in self._holder(node).waits_for(service):
            self._shared.counts["no way for a while"] += why in NO_WAY

    async def _rest(self) -> None:
        if not self.over:
            await self._shared.rest(self._rng.uniform(0.1, LONGEST))

    async def _do(self, node: str, work: Work) -> None:
        while not await administer(self._holder(node), work):
            await self._shared.rest(1.0)
