"""A broker in a file, in this process: its sessions share it, the last one closes it."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

import brokerd
from brokerd import App, Session
from brokerd.errors import (
    BrokerUnavailable,
    ConnectionLost,
    InvalidArgument,
    StoreFault,
    StoreLocked,
)
from brokerd.instance import embedded
from brokerd.instance.instance import Surroundings
from brokerd.storage.files.lock import refuse_if_held
from tests.integration.sdk.shop import Order, Packed, orders

pytestmark = pytest.mark.rule("SDK-14")


def warehouse() -> App:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed:
        return Packed(order.sku)

    return app


async def test_the_whole_comfort_without_a_daemon(tmp_path: Path) -> None:
    async with brokerd.connect(f"file:{tmp_path}/shop.db", service="shop") as bk:
        assert isinstance(bk, Session)
        assert bk.welcome.broker == "shop"
        app = warehouse()
        await bk.declare(app, service="shop")
        running = asyncio.ensure_future(app.run(bk))
        async with bk.dialog("warehouse", orders) as d:
            await d.send(Order("A1"))
            assert await d.receive(Packed, timeout=30) == Packed("A1")
        receipt = await bk.post("warehouse", Order("A2"))
        await receipt.processed(30)
        running.cancel()
    assert [name for name in sorted(os.listdir(tmp_path)) if name.endswith(".db")] == [
        "msdb.db",
        "shop.db",
    ]
    refuse_if_held(tmp_path / "shop.db")
    assert embedded._engines == {}


async def test_sessions_of_a_loop_share_the_engine(tmp_path: Path) -> None:
    where = f"file:{tmp_path}/shop.db"
    first, second = await asyncio.gather(brokerd_session(where), brokerd_session(where))
    assert len(embedded._engines) == 1
    await first.close()
    await second.declare(service="shop")
    with pytest.raises(StoreLocked, match="another event loop of this process"):
        await asyncio.to_thread(brokerd.sync.connect, where)
    await second.close()
    with await asyncio.to_thread(brokerd.sync.connect, where) as third:
        assert await asyncio.to_thread(third.view, "services")
        await asyncio.to_thread(third.close)


async def brokerd_session(where: str) -> Session:
    return await brokerd.connect(where)


async def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.db").write_bytes(b"not a store at all")
    async with brokerd.connect(f"file:{tmp_path}/shop.db") as bk:
        stores = (await bk.status())["stores"]
        assert isinstance(stores, list)
        assert sorted(one["broker"] for one in stores) == ["msdb", "shop"]
        async with brokerd.connect(f"file:{tmp_path}/shop.db", broker="shop"):
            pass
    assert (tmp_path / "mine.db").read_bytes() == b"not a store at all"


@pytest.mark.rule("CLP-39")
@pytest.mark.parametrize("broker", [{}, {"broker": {"default_encryption": "off"}}])
async def test_a_declaration_that_names_no_broker_is_of_this_one(
    tmp_path: Path, broker: dict[str, object]
) -> None:
    async with brokerd.connect(f"file:{tmp_path}/shop.db") as bk:
        await bk.apply({**broker, "queue": [{"name": "q"}]}, ensure=True)
        assert "q" in [one["name"] for one in await bk.objects("queue")]
        assert not (tmp_path / "main.db").exists()


@pytest.mark.rule("CLP-39")
@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("ensure", [True, False])
async def test_what_another_file_holds_is_not_made_to_match(
    tmp_path: Path, ensure: bool, dry_run: bool
) -> None:
    async with brokerd.connect(f"file:{tmp_path}/other.db") as bk:
        await bk.create("queue", "kept")
    async with brokerd.connect(f"file:{tmp_path}/shop.db") as bk:
        with pytest.raises(BrokerUnavailable, match=r"'other' is not open here.*other\.db"):
            await bk.apply({"broker": {"name": "other"}}, ensure=ensure, dry_run=dry_run)
    async with brokerd.connect(f"file:{tmp_path}/other.db") as bk:
        assert [one["name"] for one in await bk.objects("queue")] == ["kept"]


@pytest.mark.parametrize(
    ("name", "broker", "why"),
    [
        ("shop", None, "NAME.db"),
        ("msdb.db", None, "NAME.db"),
        ("no name.db", None, "NAME.db"),
        ("shop.db", "main", "is broker shop, not main"),
        ("gone/shop.db", None, "there is no directory .*/gone"),
    ],
)
async def test_what_is_no_file_of_a_broker(
    tmp_path: Path, name: str, broker: str | None, why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        await brokerd.connect(f"file:{tmp_path}/{name}", broker=broker)
    assert os.listdir(tmp_path) == []


async def test_files_of_one_directory_exclude_each_other_and_say_so(tmp_path: Path) -> None:
    async with brokerd.connect(f"file:{tmp_path}/shop.db"):
        with pytest.raises(StoreLocked) as caught:
            await brokerd.connect(f"file:{tmp_path}/other.db")
        told = caught.value.message
        assert told.startswith(f"{tmp_path}/other.db cannot be opened: {tmp_path}/shop.db is open")
        assert f"process {os.getpid()}" in told
        assert "share its msdb.db" in told
        assert "directory of its own" in caught.value.hint
    async with brokerd.connect(f"file:{tmp_path}/other.db") as bk:
        assert bk.welcome.broker == "other"


@pytest.mark.rule("REL-5")
async def test_a_fault_of_the_store_ends_the_sessions_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[str] = []

    def fault(name: str) -> None:
        if name == "store.begin" and broken:
            raise OSError(5, "Input/output error")

    plain = Surroundings

    def around(**parts):
        return plain(**parts, fault=fault)

    monkeypatch.setattr(embedded, "Surroundings", around)
    where = f"file:{tmp_path}/shop.db"
    bk = await brokerd_session(where)
    await bk.declare(orders, service="shop")
    await bk.declare(orders, service="warehouse", target=True)
    handle = await bk.begin_dialog("shop", "warehouse", "orders/v1")
    broken.append("now")
    with caplog.at_level(logging.CRITICAL, logger="brokerd"):
        with pytest.raises(brokerd.BrokerError):
            await bk.send(handle, b'{"sku":"lost"}', "Order")
        with pytest.raises((StoreFault, ConnectionLost)):
            await bk.status()
        await bk.close()
    broken.clear()
    async with brokerd.connect(where) as again:
        await again.send(handle, b'{"sku":"kept"}', "Order")
        (came,) = await again.receive("warehouse_q", autocommit=True)
        assert came.body == b'{"sku":"kept"}'
