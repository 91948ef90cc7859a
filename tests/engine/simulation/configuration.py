"""Configuration: a dynamic routing service, which answers an instance that lacks routes (BCN).

By the plan it is slow or silent, makes a route to the wrong place or none, makes it after it has
answered, makes it twice, or refuses. In the second phase of the run it answers as it should.
Reads:  requests, through the SDK.      Calls: the verbs of an administrator.
Never:  leaves a wrong route for ever: it expires, and then the broker asks again (BCN-11).
"""

import re
from collections.abc import Callable
from typing import Final

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.errors import BrokerError, ObjectsRefused
from brokerd.model import CONFIGURATION_NOTICE, CONFIGURATION_SERVICE, MISSING_ROUTE
from brokerd.testing.rng import chance
from tests.engine.simulation import objects
from tests.engine.simulation.administration import administer, dropping, making
from tests.engine.simulation.clients import Client
from tests.engine.simulation.features import MIDDLE
from tests.engine.simulation.nodes import Node
from tests.engine.simulation.surround import Surround

QUEUE: Final = "routing_q"
NAME: Final = "configurator"
_SERVICE: Final = re.compile(rb"<SERVICE_NAME>(.*)</SERVICE_NAME>")


class Configuration:
    """The dynamic routing service of one run."""

    def __init__(self, shared: Surround) -> None:
        self._shared = shared
        self._rng = shared.streams.stream("configuration")
        self.hurry = False
        """Whether the service answers as it should, whatever the plan says."""
        self.asker = shared.plan.features.asking
        self._made = 0

    async def set_up(self, holder: Callable[[str], Node]) -> None:
        """Create the objects of the service, and drop the routes that are to be requested."""
        service = {"queue": QUEUE, "contracts": [CONFIGURATION_NOTICE]}
        work = [
            making("queue", QUEUE, poison_handling="off"),
            making("service", CONFIGURATION_SERVICE, **service),
            making("route", "bcn", service=CONFIGURATION_SERVICE, address="LOCAL"),
        ]
        far = objects.far_services(self.asker, self._shared.plan.instances)
        work += [dropping("route", f"to_{name}") for name in far]
        for one in work:
            while not await administer(holder(self.asker), one):
                await self._shared.rest(1.0)

    async def program(self, client: Client, session: Session) -> None:
        """Answer requests for ever, one at a time, as each answer ends its dialog."""
        while not session.closed:
            try:
                async with session.transaction() as tx:
                    for message in await tx.receive(QUEUE, 1, wait=5.0):
                        await self._answer(client, session, tx, message)
            except BrokerError:
                await client.rest(0.2)

    async def _answer(
        self, client: Client, session: Session, tx: Transaction, message: Message
    ) -> None:
        """Answer one message in a drawn manner; end the dialog of anything but a request.

        A silent answer leaves the dialog open; a late one ends it before it makes the route.
        """
        found = _SERVICE.search(message.body or b"")
        if message.message_type != MISSING_ROUTE or found is None:
            await tx.end(message.handle)
            return
        service, manner = found[1].decode(), self._manner()
        self._shared.trace.note(NAME, f"{manner or 'at once'}: {service}")
        self._count(manner or "at once")
        match manner:
            case "silent":
                return
            case "refusing":
                await tx.end(message.handle, 42, "there is no such place")
                return
            case "slow":
                await client.rest(self._rng.uniform(1.0, 20.0))
            case "wrong":
                await self._mislead(session, service)
                await tx.end(message.handle)
                return
            case "late":
                await tx.end(message.handle)
                await client.rest(self._rng.uniform(0.5, 5.0))
            case _:
                pass
        for _ in range(2 if manner == "repeating" else 1):
            await self._make(session, self._right(service))
        if manner != "late":
            await tx.end(message.handle)

    def _manner(self) -> str:
        """Draw the manner of the next answer; an empty string means as it should."""
        manners = self._shared.plan.features.manners
        if self.hurry or not manners or chance(self._rng, 0.2):
            return ""
        return self._rng.choice(manners)

    async def _mislead(self, session: Session, service: str) -> None:
        """Make no route at all, or one to an instance that does not have the service."""
        plan = self._shared.plan
        right = objects.home(service, plan.instances)
        wrong = [name for name in plan.instances if name not in (right, MIDDLE)]
        place = self._rng.choice(["", "nowhere", *wrong])
        if place:
            way = {"service": service, "address": objects.address(place)}
            await self._make(session, {**way, "lifetime": self._rng.randint(2, 10)})

    def _right(self, service: str) -> dict[str, object]:
        shared = self._shared
        if objects.home(service, shared.plan.instances) == self.asker:
            return {"service": service, "address": "LOCAL"}
        way = objects.ways(self.asker, service, shared.plan, shared.broker_id)[0]
        lives = None if self.hurry else self._rng.choice((None, 3, 20))
        return way if lives is None else {**way, "lifetime": lives}

    async def _make(self, session: Session, said: dict[str, object]) -> None:
        self._made += 1
        self._shared.trace.note(NAME, f"makes {said}")
        try:
            await session.create("route", f"made_{self._made}", **said)
        except ObjectsRefused:
            self._count("route refused")
        else:
            self._count("route made")

    def _count(self, what: str) -> None:
        self._shared.counts[f"asked for a route: {what}"] += 1
