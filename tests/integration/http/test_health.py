"""`/livez` and `/readyz` of whole daemons (MON-30, MON-24)."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from brokerd.config.settings import HttpSettings, StoreSettings
from brokerd.http.health import CHECKS, Check, checks
from brokerd.storage.executors import Inline
from brokerd.telemetry.status import StoreStatus
from tests.integration.http.conftest import Site, Start

UNIX = HttpSettings()


async def ask(site: Site, path: str, **headers: str) -> tuple[int, Any]:
    socket = str(site.folder / "http.sock")
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as caller,
        caller.get(f"http://localhost{path}", headers=headers) as answer,
    ):
        is_json = answer.content_type == "application/json"
        return answer.status, await (answer.json() if is_json else answer.text())


@pytest.mark.rule("MON-30")
async def test_a_daemon_that_works_is_alive_and_ready(start: Start) -> None:
    site = await start(UNIX)
    assert await ask(site, "/livez") == (200, "alive\n")
    assert await ask(site, "/readyz") == (200, "ready\n")
    status, text = await ask(site, "/readyz?verbose")
    assert status == 200
    assert text.splitlines() == ["ready", *(f"[ok] {name}" for name in CHECKS)]


@pytest.mark.rule("MON-30")
async def test_delivery_that_is_off_is_named_with_its_broker(start: Start) -> None:
    site = await start(UNIX)
    await site.session.admin.disable("main")
    status, text = await ask(site, "/readyz")
    assert status == 503
    assert text.startswith("not ready\ndelivery: main is disabled")
    status, said = await ask(site, "/readyz", Accept="application/json")
    assert status == 503
    assert said["status"] == "not_ready"
    (failed,) = [one for one in said["checks"] if not one["ok"]]
    assert failed["name"] == "delivery"
    assert await ask(site, "/readyz?exclude=delivery") == (200, "ready\n")
    assert (await ask(site, "/livez"))[0] == 200


@pytest.mark.rule("MON-30", "SX-17")
async def test_a_stranger_learns_which_check_failed_and_not_why(
    start: Start, caller: aiohttp.ClientSession
) -> None:
    site = await start()
    await site.session.admin.disable("main")
    async with caller.get(site.url("/readyz?verbose")) as answer:
        text = await answer.text()
    assert answer.status == 503
    assert "delivery" in text
    assert "main" not in text


@pytest.mark.rule("MON-30", "REL-26")
async def test_a_full_disk_is_not_ready(start: Start) -> None:
    site = await start(UNIX, store=StoreSettings(min_free=1))
    site.instance.brokers["main"].is_full = True
    status, text = await ask(site, "/readyz")
    assert status == 503
    assert text.startswith("not ready\ndisk: main is full")
    site.instance.brokers["main"].is_full = False


@pytest.mark.rule("MON-30")
async def test_a_check_that_does_not_exist_is_named(start: Start) -> None:
    site = await start(UNIX)
    status, text = await ask(site, "/readyz?exclude=dsk")
    assert status == 400
    assert "'dsk'" in text
    assert "disk" in text


class Slow(Inline):
    """An executor that opens no store until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()
        self.asked = asyncio.Event()

    async def call(self, work: Any) -> Any:
        self.asked.set()
        await self.may.wait()
        return await super().call(work)


@pytest.mark.rule("MON-24", "MON-30")
async def test_it_is_alive_and_not_ready_while_the_stores_open(tmp_path: Path) -> None:
    site, slow = Site(tmp_path / "d"), Slow()
    starting = asyncio.ensure_future(site.start(UNIX, surroundings={"executor": slow}))
    await asyncio.wait(
        {starting, asyncio.ensure_future(slow.asked.wait())}, return_when="FIRST_COMPLETED"
    )
    assert not starting.done()
    assert (await ask(site, "/livez"))[0] == 200
    status, text = await ask(site, "/readyz?verbose")
    assert status == 503
    assert "[FAILED] condition" in text
    assert "[FAILED] stores" in text
    for path in ("/metrics", "/"):
        status, text = await ask(site, path)
        assert status == 503
        assert text == "the daemon is starting\n"
    slow.may.set()
    await starting
    assert (await ask(site, "/readyz"))[0] == 200
    await site.stop()


@pytest.mark.rule("MON-30")
@pytest.mark.parametrize(
    ("state", "name"),
    [("full", "disk"), ("disabled", "delivery"), ("slow", "stores"), ("refused", "stores")],
)
def test_each_state_of_a_store_belongs_to_a_check(state: str, name: str) -> None:
    stores = [StoreStatus(broker="main", state=state, reason="why"), StoreStatus(broker="b")]
    failed = [one for one in checks("ready", stores, "") if not one.ok]
    assert failed == [Check(name, ok=False, reason=f"main is {state}: why")]


@pytest.mark.rule("MON-30")
def test_an_endpoint_that_does_not_listen_is_not_ready() -> None:
    failed = [one for one in checks("ready", [], "port 4022 is in use") if not one.ok]
    assert failed == [Check("endpoint", ok=False, reason="port 4022 is in use")]
