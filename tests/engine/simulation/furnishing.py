"""Furnishing: options of queues and of sending that are set before the clients start.

Reads:  the plan.      Calls: administration.
"""

from collections.abc import Callable

from brokerd.client.session import Session
from brokerd.errors import InUse
from brokerd.security.credentials import Kind, Purpose
from tests.engine.simulation import objects
from tests.engine.simulation.administration import Work, administer, altering, making
from tests.engine.simulation.features import MIDDLE, PARTNER
from tests.engine.simulation.nodes import Node
from tests.engine.simulation.surround import Surround


async def furnish(shared: Surround, holder: Callable[[str], Node]) -> None:
    """Set retention of queues, priority levels of services, and the security of dialogs, by the
    plan (OBJ-48, RCV-35, SEC-18)."""
    if shared.plan.security:
        await _secure(shared, holder)
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


async def _secure(shared: Surround, holder: Callable[[str], Node]) -> None:
    """Install the certificate of each instance at all others, and bind its services there."""
    instances = [one for one in shared.plan.instances if one != MIDDLE]
    for node in instances:
        for far in instances:
            if far == node:
                continue
            todo = [_installing(holder, node, far)]
            todo += [
                making(
                    "remote_service_binding",
                    f"to_{service}",
                    service=service,
                    principal=f"peer:{far}",
                    anonymous="on" if shared.plan.security == "anonymous" else "off",
                )
                for service in objects.far_services(node, shared.plan.instances)
                if objects.home(service, shared.plan.instances) == far
            ]
            for one in todo:
                while not await administer(holder(node), one):
                    await shared.rest(1.0)


def _installing(holder: Callable[[str], Node], node: str, far: str) -> Work:
    """Return work that installs the dialog certificate of `far`, unless it is installed."""

    async def work(_session: Session) -> None:
        here, there = holder(node).instance, holder(far).instance
        if here is None or there is None:
            raise InUse(f"{node} or {far} is off")
        own = there.parts.credentials.own_all(Purpose.DIALOG)
        if not own:
            raise InUse(f"{far} has no certificate yet")
        if f"peer:{far}" not in here.parts.credentials.principals:
            await here.parts.credential_store.add_principal(
                Kind.PEER, far, (Purpose.DIALOG, own[0].certificate), actor="simulation"
            )

    return work
