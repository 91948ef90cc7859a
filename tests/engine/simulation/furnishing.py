"""Furnishing: options of queues and of sending that are set before the clients start.

Reads:  the plan.      Calls: administration.
"""

from collections.abc import Callable

from tests.engine.simulation import objects
from tests.engine.simulation.administration import Work, administer, altering, making
from tests.engine.simulation.features import PARTNER
from tests.engine.simulation.nodes import Node
from tests.engine.simulation.surround import Surround


async def furnish(shared: Surround, holder: Callable[[str], Node]) -> None:
    """Set retention of queues, and priority levels of services, by the plan (OBJ-48, RCV-35)."""
    rng = shared.streams.stream("furnishing")
    instances, work = shared.plan.instances, shared.plan.features.work
    for node in instances:
        services = [] if node == PARTNER else objects.services(node, instances)
        todo: list[Work] = []
        if "retention" in work:
            todo += [altering("queue", f"{one}_q", retention="on") for one in services]
        if "priorities" in work and services:
            todo.append(altering("broker", objects.BROKER, honor_priority="on"))
            todo += [
                making("priority", f"of_{one}", local_service=one, level=rng.randint(1, 10))
                for one in services
            ]
        for one in todo:
            while not await administer(holder(node), one):
                await shared.rest(1.0)
