"""Deliveries: a message and its transaction, one after the other or several at once (SDK-8)."""

import asyncio

import pytest

from brokerd import Delivery
from brokerd.errors import ConnectionLost, InvalidArgument, QueueDisabled, RemoteError
from brokerd.testing.rig import RigInstance
from tests.integration.sdk.shop import Order, Packed, declare, orders

pytestmark = pytest.mark.rule("SDK-8")


async def sent(one: RigInstance, *dialogs: str) -> None:
    """A dialog for each word, with an order for each letter."""
    await declare(one)
    for word in dialogs:
        handle = await one.session.begin_dialog("shop", "warehouse", "orders/v1")
        for letter in word:
            await one.session.send(handle, b'{"sku":"%s"}' % letter.encode(), "Order")


async def test_the_block_commits_and_an_exception_rolls_back(
    brokerd_instance: RigInstance,
) -> None:
    await sent(brokerd_instance, "abc")
    bk, seen = brokerd_instance.session, list[object]()
    deliveries = bk.deliveries("warehouse_q", wait=1)

    async def failing(m: Delivery) -> None:
        async with m:
            await m.send(Packed("never"))
            raise ZeroDivisionError

    async for m in deliveries:
        if seen == [Order("a")] and not m.message.delivery_count:
            with pytest.raises(ZeroDivisionError):
                await failing(m)
            continue
        async with m:
            seen.append(m.value())
            await m.send(Packed("x"))
    assert seen == [Order("a"), Order("b"), Order("c")]
    assert len(await bk.receive("shop_q", autocommit=True)) == 3


async def test_so_many_at_once_and_never_two_of_one_group(brokerd_instance: RigInstance) -> None:
    await sent(brokerd_instance, *["ab"] * 6)
    bk, open_now, most = brokerd_instance.session, set[bytes](), 0

    async def work(m: Delivery) -> None:
        nonlocal most
        async with m:
            assert m.group not in open_now
            open_now.add(m.group)
            most = max(most, len(open_now))
            await brokerd_instance._rig.clock.advance(1)
            open_now.remove(m.group)

    async with asyncio.TaskGroup() as tasks:
        async for m in bk.deliveries("warehouse_q", concurrency=3, wait=2):
            tasks.create_task(work(m))
    assert most == 3
    assert await bk.receive("warehouse_q", autocommit=True) == []


@pytest.mark.rule("SDK-9")
async def test_ends_and_errors_are_dealt_with(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    bk, told = brokerd_instance.session, list[str]()

    async def on_error(error: RemoteError, m: Delivery) -> None:
        told.append(str(error.number))

    async def on_end(m: Delivery) -> None:
        told.append("end")

    for why in ((), (9, "no more")):
        async with bk.dialog("warehouse", orders) as d:
            await d.send(Order("A1"))
            await d.end(*why)
    found = bk.deliveries("warehouse_q", wait=1, on_error=on_error, on_end=on_end)
    values = []
    async for m in found:
        async with m:
            values.append(m.value())
    assert values == [Order("A1")]  # the failed dialog's order went with its end
    assert sorted(told) == ["9", "end"]
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-8")
async def test_a_lost_connection_heals_or_raises(brokerd_instance: RigInstance) -> None:
    await sent(brokerd_instance)
    reader = await brokerd_instance.connect()

    async def read() -> list[object]:
        values = []
        async for m in reader.deliveries("warehouse_q", contracts=[orders]):
            async with m:
                values.append(m.value())
            if len(values) == 2:
                break
        return values

    reading = asyncio.ensure_future(read())
    for sku in "ab":
        await brokerd_instance._rig.clock.advance(1)
        await brokerd_instance.restart()
        await sent(brokerd_instance, sku)
    assert [one.sku for one in await reading if isinstance(one, Order)] == ["a", "b"]
    waiting = asyncio.ensure_future(read())
    await brokerd_instance._rig.clock.advance(1)
    await reader.close()
    with pytest.raises(ConnectionLost):
        await waiting


async def test_a_queue_that_is_off_is_told(brokerd_instance: RigInstance) -> None:
    bk = brokerd_instance.session
    await bk.apply({"broker": {"name": "main"}, "queue": [{"name": "q", "status": "off"}]})
    with pytest.raises(QueueDisabled):
        await anext(bk.deliveries("q"))


async def test_bytes_where_no_contract_is_known(brokerd_instance: RigInstance) -> None:
    await sent(brokerd_instance, "a")
    reader = await brokerd_instance.connect()
    async for m in reader.deliveries("warehouse_q", wait=1):
        async with m:
            assert m.body == b'{"sku":"a"}'
            with pytest.raises(InvalidArgument, match="no type is known of Order"):
                m.value()
            with pytest.raises(InvalidArgument, match="no contract is known"):
                await m.send(b"x")
    await reader.close()
