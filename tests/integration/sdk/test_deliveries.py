"""Deliveries: a message and its transaction, one after the other or several at once (SDK-8)."""

import asyncio

import pytest

from brokerd import Delivery, End, Park, Retry
from brokerd.errors import ConnectionLost, InvalidArgument, QueueDisabled, RemoteError
from brokerd.testing.rig import RigClock, RigInstance
from tests.integration.sdk.shop import Order, Packed, declare, endpoints, orders

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


@pytest.mark.rule("SDK-9")
@pytest.mark.parametrize("hooked", [True, False])
async def test_a_timer_is_dealt_with_and_ends_nothing(
    brokerd_instance: RigInstance, hooked: bool
) -> None:
    await declare(brokerd_instance)
    bk, told = brokerd_instance.session, list[tuple[str, bytes]]()

    async def on_timer(m: Delivery) -> None:
        told.append((m.message.timer_name or "", m.dialog))

    handle = await bk.begin_dialog("shop", "warehouse", "orders/v1")
    await bk.set_timer(handle, 5, "late")
    async for m in bk.deliveries("shop_q", wait=10, on_timer=on_timer if hooked else None):
        raise AssertionError(f"{m.message} is not the program's")
    assert told == ([("late", handle)] if hooked else [])
    assert await endpoints(brokerd_instance) == [("shop", "SO")]
    await bk.end(handle)


@pytest.mark.rule("SDK-9")
async def test_a_hook_is_called_in_the_transaction_of_its_message(
    brokerd_instance: RigInstance,
) -> None:
    await declare(brokerd_instance)
    bk, called = brokerd_instance.session, 0

    async def on_error(_error: RemoteError, m: Delivery) -> None:
        nonlocal called
        called += 1
        await m.set_state(b"%d" % called)
        if called == 1:
            raise ZeroDivisionError

    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1"))
        await d.end(9, "no more")
    with pytest.raises(ZeroDivisionError):
        await anext(bk.deliveries("warehouse_q", wait=1, on_error=on_error))
    (row,) = await bk.view("conversation_endpoints", where={"service_id": "warehouse"})
    assert row["state"] == "ER", "the error is still to be received"
    assert await anext(bk.deliveries("warehouse_q", wait=5, on_error=on_error), None) is None
    assert called == 2
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-9")
async def test_an_error_without_a_hook_is_logged(
    brokerd_instance: RigInstance, caplog: pytest.LogCaptureFixture
) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1"))
        await d.end(9, "no more")
    assert await anext(bk.deliveries("warehouse_q", wait=1), None) is None
    (line,) = [one for one in caplog.messages if "received_error" in one]
    for part in ("number=9", "description='no more'", "service='warehouse'"):
        assert part in line
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-10", "PSN-17")
async def test_outcomes_are_raised_in_the_block_of_a_delivery(
    brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    await sent(brokerd_instance, "r", "p", "e")
    bk, attempts = brokerd_instance.session, list[tuple[str, float]]()
    outcomes = {"r": Retry(30), "p": Park("ask Ann"), "e": End(Packed("done"))}
    async for m in bk.deliveries("warehouse_q", wait=60):
        async with m:
            order = m.value()
            assert isinstance(order, Order)
            attempts.append((order.sku, brokerd_clock.now.timestamp()))
            if order.sku != "r" or len(attempts) < 4:
                raise outcomes[order.sku]
    assert [sku for sku, _ in attempts] == ["r", "p", "e", "r"]
    assert attempts[3][1] - attempts[0][1] == pytest.approx(30, abs=1)
    (row,) = await bk.view("parked_groups")
    assert row["park_reason"] == "ask Ann"
    answers = await bk.receive("shop_q", autocommit=True)
    assert [(one.message_type, one.is_end) for one in answers] == [
        ("Packed", False),
        ("urn:brokerd:EndDialog", True),
    ]


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
