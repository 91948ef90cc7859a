"""The dynamic routing service that is shipped: a file becomes routes as they are needed."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Never, cast

import pytest

from brokerd.client.session import Session
from brokerd.dynamic_routing.route_service import QUEUE, RouteService, declare, load
from brokerd.errors import ConfigError, ProtocolError
from brokerd.model import CONFIGURATION_SERVICE
from tests.integration.one_daemon import Daemon, play
from tests.integration.routing.asking import FIFTH, TICK, connected, status, waiting

FAR = "01234567-89ab-cdef-0123-456789abcdef"
FILE = f"""
[[service]]
name = "urn:far"
addresses = ["TCP://far:1", "TCP://far:2"]
[[service]]
name = "urn:named"
addresses = ["TCP://named:1"]
broker_id = "{FAR}"
lifetime = 60
"""


@asynccontextmanager
async def served(daemon: Daemon, session: Session, path: Path) -> AsyncIterator[list[str]]:
    said: list[str] = []
    await declare(session)
    own = await daemon.session()
    stop = asyncio.Event()
    task = asyncio.ensure_future(RouteService(path, said.append).run(own, stop))
    try:
        yield said
    finally:
        stop.set()
        await task
        await own.close()


@pytest.mark.rule("BCN-6", "BCN-7", "BCN-13")
def test_a_missing_route_is_made_from_the_file_and_again_when_it_has_changed(
    tmp_path: Path,
) -> None:
    async def program(daemon: Daemon) -> None:
        path = tmp_path / "routes.toml"
        path.write_text(FILE)
        session = await daemon.session()
        async with served(daemon, session, path) as said:
            sent = [await waiting(session) for _ in range(2)]
            named = await waiting(session, "urn:named", bytes.fromhex(FAR.replace("-", "")))
            lost = await waiting(session, "urn:lost")
            await daemon.pass_time(2)
            found = [(await session.transmission_status(one)).destination for one in (*sent, named)]
            assert sorted(map(str, found)) == ["tcp://far:1", "tcp://far:2", "tcp://named:1"]
            assert await status(session, lost) == "bcn_failed"
            assert f"urn:lost: not in {path}" in said

            path.write_text(FILE + '[[service]]\nname = "urn:lost"\naddresses = ["TCP://l:1"]\n')
            os.utime(path, ns=(1, 1))
            await daemon.pass_time(FIFTH + 3 * TICK)
            assert (await session.transmission_status(lost)).destination == "tcp://l:1"
            path.write_text("nonsense =")
            os.utime(path, ns=(2, 2))
            await waiting(session, "urn:more")
            await daemon.pass_time(2)
            assert any(str(path) in line and "nonsense" in line for line in said)
        await declare(session)  # twice changes nothing
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("BCN-5", "BCN-6")
@connected
async def test_a_route_that_fails_goes_once_the_file_says_another(
    daemon: Daemon, session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "routes.toml"
    path.write_text(FILE)
    async with served(daemon, session, path) as said:
        (far, other) = [await waiting(session) for _ in range(2)]
        await daemon.pass_time(2)
        before = {(await session.transmission_status(one)).destination for one in (far, other)}
        assert before == {"tcp://far:1", "tcp://far:2"}
        await daemon.pass_time(200)
        assert {f"urn:far: {one} cannot be reached" for one in before} <= set(said)
        routes = await session.view("routes", where={"remote_service_name": "urn:far"})
        assert len(routes) == 2  # the file says nothing better

        path.write_text(FILE.replace("TCP://far:1", "TCP://near:1"))
        os.utime(path, ns=(1, 1))
        await daemon.pass_time(300)
        after = [(await session.transmission_status(one)).destination for one in (far, other)]
        assert "tcp://far:2" in after  # a dialog stays where it is as long as there is a route
        assert set(after) <= {"tcp://near:1", "tcp://far:2"}
        routes = await session.view("routes", where={"remote_service_name": "urn:far"})
        assert {one["address"] for one in routes} == {"tcp://near:1", "tcp://far:2"}


@pytest.mark.rule("BCN-6")
@pytest.mark.parametrize("gone", [False, True])
def test_it_waits_while_its_queue_is_off_or_gone(tmp_path: Path, gone: bool) -> None:
    async def program(daemon: Daemon) -> None:
        path = tmp_path / "routes.toml"
        path.write_text(FILE)
        session = await daemon.session()
        async with served(daemon, session, path) as said:
            await daemon.pass_time(2)
            if gone:
                await session.drop("service", CONFIGURATION_SERVICE)
                await session.drop("queue", QUEUE)
            else:
                await session.alter("queue", QUEUE, status="off")
            await daemon.pass_time(10)
            (told,) = said
            assert QUEUE in told
            assert "waiting for it" in told
            if gone:
                await declare(session)
            else:
                await session.alter("queue", QUEUE, status="on")
            await daemon.pass_time(3)
            assert said[1:] == [f"reading {QUEUE} again"]
            sent = await waiting(session)
            await daemon.pass_time(FIFTH + 2)
            found = (await session.transmission_status(sent)).destination
            assert found in {"tcp://far:1", "tcp://far:2"}
        await session.close()

    play(program, tmp_path)


@pytest.mark.rule("BCN-6")
async def test_what_ends_a_reader_is_raised_as_it_is(tmp_path: Path) -> None:
    class Broken:
        clock = None

        def transaction(self) -> Never:
            raise ProtocolError("the daemon talks nonsense")

    path = tmp_path / "routes.toml"
    path.write_text(FILE)
    service = RouteService(path, lambda _: None)
    with pytest.raises(ProtocolError, match="nonsense"):
        await service.run(cast("Session", Broken()), asyncio.Event())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[service]]\nname = "a"\n', "addresses"),
        ('[[service]]\nname = "a"\naddresses = []\n', "addresses"),
        ('[[service]]\nname = "a"\naddresses = ["nowhere"]\n', "nowhere"),
        ('[[service]]\nname = "a"\naddresses = ["TCP://a:1"]\nroute = 1\n', "route"),
        (2 * '[[service]]\nname = "a"\naddresses = ["TCP://a:1"]\n', "twice"),
        ("lifetime = 0\nservice = []\n", "lifetime"),
        ('[[service]]\nname = "a"\nsrv = "_a._tcp.b"\naddresses = ["TCP://a:1"]\n', "either"),
        ('[[service]]\nname = "a"\nsrv = "nowhere"\n', "nowhere"),
        ('service = []\n[dns]\nservers = ["localhost"]\n', "dns.servers"),
        ("service = []\n[dns]\ntimeout = 0\n", "timeout"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "routes.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_the_example_can_be_read() -> None:
    found = load(Path("config/routes.toml"))
    assert [one.name for one in found.service] == ["urn:example:billing", "urn:example:ledger"]
