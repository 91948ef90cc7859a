"""`AutoCreatedLocal`, the route that every broker is born with: altered, dropped, made again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.session import Session
from brokerd.errors import ObjectNotFound
from tests.integration.one_daemon import OBJECTS, Daemon, play
from tests.integration.peers import Net, Peer, peers
from tests.integration.scenarios import scenario
from tests.integration.shorthand import bodies, take, talk

BORN = "AutoCreatedLocal"


async def tables(session: Session) -> dict[str, str]:
    """Both routing tables, as they are listed."""
    return {
        f"{kind} {route['name']}": str(route["address"])
        for kind in ("route", "instance_route")
        for route in await session.objects(kind)
    }


async def applied(session: Session, more: Mapping[str, Any]) -> list[tuple[str, str]]:
    made: list[Any] = await session.apply({**OBJECTS, **more})
    return [(str(one["action"]), str(one["kind"])) for one in made]


@pytest.mark.rule("RTE-68", "RTE-V1")
@scenario
async def test_it_is_altered_dropped_and_made_again(daemon: Daemon, session: Session) -> None:
    local = {f"route {BORN}": "LOCAL", f"instance_route {BORN}": "LOCAL"}
    assert await tables(session) == local
    await session.alter("route", BORN, address="TCP://far:1")
    first = await talk(session, b"1")
    assert (await session.transmission_status(first)).destination == "tcp://far:1"
    await session.drop("route", BORN)
    second = await session.begin_dialog("urn:desk", "urn:lost", "talk")
    await session.send(second, b"2", "Ask")
    assert (await session.transmission_status(second)).status_key == "no_route"
    assert await tables(session) == {f"instance_route {BORN}": "LOCAL"}
    with pytest.raises(ObjectNotFound):
        await session.drop("route", BORN)
    await session.create("route", BORN, address="LOCAL")
    assert await tables(session) == local
    await daemon.pass_time(11)
    assert bodies(await take(session, "shop")) == [b"1"]


@pytest.mark.rule("RTE-68")
@scenario
async def test_without_that_of_the_instance_what_arrives_needs_a_route(
    daemon: Daemon, session: Session
) -> None:
    explained = await session.admin.explain_route("urn:shop", arriving=True)
    assert explained.outcome == "local"
    await session.drop("instance_route", BORN)
    explained = await session.admin.explain_route("urn:shop", arriving=True)
    assert (explained.outcome, explained.reason) == ("dropped", "no_route")
    await session.create("instance_route", "shop", service="urn:shop", address="LOCAL")
    explained = await session.admin.explain_route("urn:shop", arriving=True)
    assert (explained.outcome, explained.route) == ("local", "shop")


@pytest.mark.rule("RTE-1", "RTE-68")
@peers("west", "east")
async def test_what_arrives_does_not_go_by_the_routes_of_the_broker_it_is_for(
    net: Net, west: Peer, east: Peer
) -> None:
    """Its own table leads to every service that is here, and it is not asked."""
    await east.session.drop("instance_route", BORN)
    assert f"route {BORN}" in await tables(east.session)
    handle = await west.talk("urn:east", b"1")
    await net.wait(60)
    assert await west.key(handle) == "target_notice"
    assert "no_route" in await west.status(handle)
    assert await east.bodies() == []
    await east.session.create("instance_route", "opened", service="urn:east", address="LOCAL")
    await net.wait(70)
    assert await east.bodies() == [b"1"]


@pytest.mark.rule("RTE-68", "MAN-14")
def test_a_file_leaves_it_alters_it_or_drops_it_and_so_it_stays_over_a_restart(
    tmp_path: Path,
) -> None:
    async def program(daemon: Daemon) -> None:
        session = await daemon.session()
        assert await applied(session, {}) == []
        declared = {"route": [{"name": BORN, "address": "TRANSPORT"}]}
        assert await applied(session, declared) == [("alter", "route")]
        assert await applied(session, declared) == []
        assert await applied(session, {}) == []  # what does not name it leaves it as it is
        dropped = {kind: [{"name": BORN, "drop": True}] for kind in ("route", "instance_route")}
        assert await applied(session, dropped) == [("drop", "instance_route"), ("drop", "route")]
        assert await applied(session, dropped) == []
        await session.close()
        await daemon.stop()
        await daemon.start()  # which declares the objects again, without a word of routes
        session = await daemon.session()
        assert await tables(session) == {}
        await session.close()

    play(program, tmp_path)
