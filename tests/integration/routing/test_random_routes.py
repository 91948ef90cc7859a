"""Brokers of one daemon with routes drawn at random: each message is where the routes lead.

The routes of the instance are drawn too, and are not asked: they are for what arrives from outside.
What should happen is read from the explanation of the route, what did from the stores.
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.client.admin_answers import RouteExplanation
from brokerd.client.session import Session
from brokerd.ids import Handle, show
from brokerd.model import AUTO_CREATED_LOCAL
from tests.integration.one_daemon import OBJECTS, Daemon, play

NAMES = ("b1", "b2", "b3", "b4")
SERVICES = ("urn:p", "urn:q")
AWAY = "TCP://far:4022"


def declared(name: str, rng: Random) -> dict[str, Any]:
    """A broker with a service of its own and some of those that others may have as well."""
    served = [one for one in SERVICES if rng.random() < 0.6]
    return {
        "broker": {"name": name, "default_encryption": "off"},
        "message_type": OBJECTS["message_type"],
        "contract": OBJECTS["contract"],
        "queue": [{"name": "box"}, {"name": "home"}],
        "service": [
            {"name": f"urn:{name}", "queue": "home"},
            *({"name": one, "queue": "box", "contracts": ["talk"]} for one in served),
        ],
    }


def drawn(rng: Random, ids: dict[str, str]) -> list[dict[str, object]]:
    """The routes of one table."""
    routes: list[dict[str, object]] = []
    for number in range(rng.randrange(4)):
        route: dict[str, object] = {"service": rng.choice(SERVICES), "name": f"r{number}"}
        route["address"] = rng.choice(("LOCAL", "LOCAL", "LOCAL", AWAY))
        if rng.random() < 0.6:
            route["broker"] = ids[rng.choice(NAMES)]
        routes.append(route)
    return routes


class Place:
    """The daemon, and a client of each broker."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.sessions: dict[str, Session] = {}

    async def connect(self) -> None:
        self.sessions = {name: await self.daemon.session(broker=name) for name in NAMES}

    async def restart(self) -> None:
        """Stop in order and start again."""
        await self.close()
        await self.daemon.restart()
        await self.connect()

    async def close(self) -> None:
        for session in self.sessions.values():
            await session.close()

    async def set_up(self, rng: Random) -> None:
        """Brokers, then their routes and those of the instance."""
        async with await self.daemon.session() as admin:
            for name in NAMES:
                await admin.apply(declared(name, rng))
        await self.connect()
        ids = {name: show(self.daemon.instance.brokers[name].broker_id) for name in NAMES}
        for kind, session in [
            *(("route", session) for session in self.sessions.values()),
            ("instance_route", self.sessions["b1"]),
        ]:
            for route in drawn(rng, ids):
                await session.create(kind, str(route.pop("name")), **route)
            if rng.random() < 0.4:
                await session.drop(kind, AUTO_CREATED_LOCAL.name)

    async def begin(self, rng: Random) -> list[tuple[str, bytes, RouteExplanation]]:
        """A dialog of each broker with each service: broker, handle, and where it should go."""
        begun: list[tuple[str, bytes, RouteExplanation]] = []
        for name, session in self.sessions.items():
            for service in SERVICES:
                far = self.daemon.instance.brokers[rng.choice(NAMES)].broker_id
                named = far if rng.random() < 0.3 else None
                found = await session.admin.explain_route(service, broker_id=named)
                handle = await session.begin_dialog(f"urn:{name}", service, "talk", broker_id=named)
                await session.send(handle, handle, "Ask")
                begun.append((name, handle, found))
        return begun

    async def targets(self) -> dict[object, list[str]]:
        """The brokers that hold the target of each conversation."""
        found: dict[object, list[str]] = {}
        for name, session in self.sessions.items():
            for row in await session.view("conversation_endpoints"):
                if not row["is_initiator"]:
                    found.setdefault(row["conversation_id"], []).append(name)
        return found


@pytest.mark.rule("RTE-2", "RTE-4", "RTE-30", "RTE-31", "RTE-32", "REL-13", "CLP-98")
@pytest.mark.parametrize("seed", range(30))
def test_each_dialog_is_where_the_routes_of_its_broker_lead(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)

    async def program(daemon: Daemon) -> None:
        place = Place(daemon)
        await place.set_up(rng)
        begun = await place.begin(rng)
        if rng.random() < 0.5:
            await place.restart()
        await daemon.pass_time(20)
        targets = await place.targets()
        for name, handle, foreseen in begun:
            found = foreseen
            if found.outcome == "delayed":  # each new match may choose another of several
                found = await place.sessions[name].admin.explain_route(handle=handle)
            endpoint = await daemon.instance.brokers[name].store.endpoints.by_handle(Handle(handle))
            assert endpoint is not None
            where = targets.get(show(endpoint.conversation_id), [])
            assert where == ([found.where] if found.outcome == "local" else []), found
            if found.outcome == "refused":
                assert endpoint.error_code == -8490
            elif found.outcome == "local":
                assert endpoint.far_broker == daemon.instance.brokers[found.where].broker_id
            else:
                status = await place.sessions[name].transmission_status(handle)
                reason = found.reason or "transport_unavailable"
                assert (status.pending, status.status_key) == (1, reason)
        await place.close()

    play(program, tmp_path, seed=seed)
