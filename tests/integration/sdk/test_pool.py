"""Posts: one way, in order by key, on dialogs that are used again (SDK-12, PBT-22)."""

import asyncio
from collections import defaultdict
from datetime import timedelta
from random import Random

import pytest

from brokerd import App, Contract, DialogPool, PoolOptions
from brokerd.app.contract import END_OF_STREAM
from brokerd.app.pool import Stream
from brokerd.client.messages import Message
from brokerd.errors import (
    BrokerError,
    ContractNotFound,
    InvalidArgument,
    NotInContract,
    ReceiveTimeout,
    RemoteError,
)
from brokerd.testing.rig import RigClock, RigInstance
from tests.integration.sdk.shop import Order, declare, endpoints, orders

Pair = tuple[RigInstance, RigInstance]


async def consuming(one: RigInstance) -> list[str]:
    """A warehouse that takes what comes; the orders in the order of their commits."""
    app, taken = App("warehouse"), list[str]()

    @app.activate(contract=orders, max_readers=4, batch=50)
    async def order(order: Order) -> None:
        taken.append(order.sku)

    await one.run(app)
    await declare(one)
    return taken


@pytest.mark.rule("SDK-12")
async def test_a_key_keeps_its_dialog(brokerd_instance: RigInstance) -> None:
    taken = await consuming(brokerd_instance)
    bk = brokerd_instance.session
    first = await bk.post("warehouse", Order("a1"), key="a")
    second = await bk.post("warehouse", Order("a2"), key="a")
    other = await bk.post("warehouse", Order("b1"), key="b")
    assert first.handle == second.handle != other.handle
    assert (first.number, second.number, other.number) == (0, 1, 0)
    await second.processed()
    assert [one for one in taken if one[0] == "a"] == ["a1", "a2"]
    third = await bk.post("warehouse", Order("a3"), key="a")
    assert third.handle != first.handle
    await third.processed()
    await other.processed(30)
    await brokerd_instance.assert_settled()
    brokerd_instance.assert_once(Order)


@pytest.mark.rule("PBT-22")
@pytest.mark.parametrize("change", ["age", "count"])
async def test_a_dialog_gives_way_by_age_and_by_count(
    brokerd_instance: RigInstance, brokerd_clock: RigClock, change: str
) -> None:
    await consuming(brokerd_instance)
    by_count = PoolOptions(messages=3)
    by_age = PoolOptions(age=timedelta(seconds=25))
    async with brokerd_instance.session.new_pool(by_age if change == "age" else by_count) as pool:
        streams = []
        for number in range(7):
            receipt = await pool.send("shop", "warehouse", orders, Order(str(number)))
            streams.append(receipt.handle)
            await brokerd_clock.advance(10)
    assert [streams.count(one) for one in dict.fromkeys(streams)] == (
        [4, 3] if change == "age" else [3, 3, 1]
    )
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-12")
async def test_by_default_a_dialog_lasts_10_minutes_or_10000_messages(
    brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    await consuming(brokerd_instance)
    bk = brokerd_instance.session
    first = await bk.post("warehouse", Order("1"))
    await brokerd_clock.advance(598)
    assert (await bk.post("warehouse", Order("2"))).handle == first.handle
    await brokerd_clock.advance(3)
    assert (await bk.post("warehouse", Order("3"))).handle == first.handle  # the last on it
    assert (await bk.post("warehouse", Order("4"))).handle != first.handle
    assert PoolOptions().messages == 10_000  # see `test_a_dialog_gives_way_by_age_and_by_count`


@pytest.mark.rule("PBT-22")
async def test_each_pair_contract_and_partition_has_a_dialog_of_its_own(
    brokerd_instance: RigInstance,
) -> None:
    other = Contract("other/v1", initiator=[Order])
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    await bk.declare(other, service="kiosk")
    await bk.declare(orders, other, service="store", target=True)
    await bk.declare(other, service="warehouse", target=True)
    async with bk.new_pool(PoolOptions()) as pool:

        async def handle(key: tuple[str, str, Contract], partition: str = "") -> bytes:
            (receipt,) = await pool.send_many(*key, [(partition, Order("A1"))])
            return receipt.handle

        keys = [
            ("shop", "warehouse", orders),
            ("shop", "warehouse", other),
            ("shop", "store", orders),
            ("kiosk", "warehouse", orders),
        ]
        first = [await handle(key) for key in keys]
        first.append(await handle(keys[0], "b"))
        assert len(set(first)) == len(first)
        again = [await handle(key) for key in keys]
        assert again == first[:4]
        for queue in ("warehouse_q", "store_q"):
            while got := await bk.receive(queue, autocommit=True):
                await bk.end(got[0].handle)


@pytest.mark.rule("PBT-22")
async def test_the_target_ends_first(brokerd_pair: Pair) -> None:
    shop, warehouse = brokerd_pair
    await shop.declare(orders, service="shop")
    await warehouse.declare(orders, service="warehouse", target=True)
    receipt = await shop.session.post("warehouse", Order("A1"), service="shop")
    finishing = asyncio.ensure_future(receipt.processed())
    bk = warehouse.session
    seen: list[Message] = []
    while len(seen) < 2:
        seen += await bk.receive("warehouse_q", wait=60, autocommit=True)
    assert [one.message_type for one in seen] == ["Order", END_OF_STREAM]
    await shop._rig.clock.advance(100)
    assert await endpoints(shop) == [("shop", "CO")]
    assert not finishing.done()
    await bk.end(seen[0].handle)
    await finishing
    await shop.assert_settled()


@pytest.mark.slow
@pytest.mark.rule("PBT-22")
async def test_concurrent_senders_and_recycling(brokerd_instance: RigInstance) -> None:
    """10,000 rounds of eight senders on shared keys, with several keys in one commit."""
    await declare(brokerd_instance)
    session = brokerd_instance.session
    came: dict[bytes, list[str]] = defaultdict(list)
    sent: dict[str, list[str]] = defaultdict(list)
    rounds = 10_000

    async def read() -> None:
        reader = await brokerd_instance.connect()
        while True:
            async with reader.transaction() as tx:
                for one in await tx.receive("warehouse_q", wait=60):
                    came[one.conversation_id].append(one.message_type)
                    if one.message_type == END_OF_STREAM:
                        await tx.end(one.handle)

    async def write(name: int, pool: DialogPool) -> None:
        rng = Random(name)
        for number in range(rounds // 8):
            keys = rng.sample("abc", k=1 if rng.random() < 0.7 else 2)
            values = [(key, Order(f"{name}-{number}")) for key in keys]
            for receipt in await pool.send_many("shop", "warehouse", orders, values):
                sent[receipt.stream.key[3]].append(f"{name}-{number}")
                if rng.random() < 0.01:
                    await pool.finish(receipt.stream)

    readers = [asyncio.ensure_future(read()) for _ in range(2)]
    async with session.new_pool(PoolOptions(messages=40)) as pool:
        await asyncio.gather(*(write(name, pool) for name in range(8)))
    for reader in readers:
        reader.cancel()
    assert pool.refused == []
    assert all(types.index(END_OF_STREAM) == len(types) - 1 for types in came.values())
    assert sum(len(types) - 1 for types in came.values()) == sum(map(len, sent.values()))
    assert len(came) > rounds / 40


@pytest.mark.rule("PBT-22", "SDK-12")
async def test_order_holds_over_recycling_and_a_bad_link(brokerd_pair: Pair) -> None:
    shop, warehouse = brokerd_pair
    taken = await consuming(warehouse)
    await shop.declare(orders, service="shop")
    shop.link.lossy(drop=0.2, duplicate=0.2, reorder=0.2)
    for number in range(30):
        await shop.session.post("warehouse", Order(f"{number}"), key="k")
    await (await shop.session.post("warehouse", Order("30"), key="k")).processed()
    assert taken == [str(number) for number in range(31)]
    warehouse.assert_once(Order)
    await shop.session.pool.close()
    await shop.assert_settled()


@pytest.mark.rule("SDK-12")
async def test_a_refusal_is_told_and_the_key_goes_on(brokerd_instance: RigInstance) -> None:
    bk = brokerd_instance.session
    await bk.declare(orders, service="shop")
    told: list[tuple[Stream, BrokerError]] = []
    pool = bk.new_pool(on_refused=lambda stream, error: told.append((stream, error)))
    await bk.declare(service="warehouse")  # no target of the contract
    receipt = await pool.send("shop", "warehouse", orders, Order("A1"))
    with pytest.raises(RemoteError) as caught:
        await receipt.processed()
    assert caught.value.number == -8408
    assert [one for one, _ in told] == [receipt.stream] == [one for one, _ in pool.refused]
    await bk.declare(orders, service="warehouse", target=True)
    again = await pool.send("shop", "warehouse", orders, Order("A2"))
    assert again.handle != receipt.handle
    assert not await pool.close(1)  # nobody has read it
    assert again.stream.over.result() is not None


@pytest.mark.rule("SDK-12")
async def test_a_target_that_ends_early_is_no_success(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    receipt = await bk.post("warehouse", Order("A1"))
    (asked,) = await bk.receive("warehouse_q", autocommit=True)
    await bk.end(asked.handle)
    await brokerd_instance._rig.clock.advance(1)
    with pytest.raises(RemoteError, match="ended before the stream did"):
        await receipt.processed()
    other = await bk.post("warehouse", Order("A2"))
    assert other.handle != receipt.handle


@pytest.mark.rule("SDK-12")
async def test_another_reader_of_the_queue_may_take_the_end(brokerd_instance: RigInstance) -> None:
    await consuming(brokerd_instance)
    bk = brokerd_instance.session
    shop = App("shop")

    @shop.activate(contract=orders)
    async def nothing(value: object) -> None: ...

    await brokerd_instance.run(shop)
    for number in range(5):
        receipt = await bk.post("warehouse", Order(f"{number}"))
        await receipt.processed(60)
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-12")
async def test_not_processed_in_time(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    receipt = await brokerd_instance.session.post("warehouse", Order("A1"))
    with pytest.raises(ReceiveTimeout, match="warehouse has not handled it"):
        await receipt.processed(timedelta(seconds=3))


@pytest.mark.rule("SDK-12")
async def test_which_contract(brokerd_instance: RigInstance) -> None:
    bk = brokerd_instance.session
    with pytest.raises(NotInContract, match="declared here: none"):
        await bk.post("warehouse", Order("A1"))
    with pytest.raises(ContractNotFound):
        await bk.post("warehouse", Order("A1"), contract=orders)
    with pytest.raises(InvalidArgument, match=END_OF_STREAM):
        await bk.post("warehouse", b"raw", contract=Contract.default())
    assert await bk.post_many("warehouse", []) == []
    await consuming(brokerd_instance)
    many = [("a", Order("1")), ("b", Order("2")), ("a", Order("3"))]
    receipts = await bk.post_many("warehouse", many)
    assert [one.number for one in receipts] == [0, 0, 1]
