"""A dialog as a block: begun with the first send, ended when the block is left (SDK-5 to SDK-7)."""

import asyncio

import pytest

from brokerd import App, Contract, End, Timer
from brokerd.app.dialog import Dialog
from brokerd.app.session import Session
from brokerd.errors import (
    DialogEnded,
    InvalidArgument,
    NotInContract,
    ReceiveTimeout,
    RemoteError,
    ServiceNotFound,
    UnexpectedMessage,
    WouldWaitForever,
)
from brokerd.testing.rig import RigClock, RigInstance
from tests.integration.sdk.shop import Cancel, Order, Packed, Rejected, declare, endpoints, orders


async def answering(one: RigInstance) -> Session:
    """A warehouse that packs, rejects what is cancelled, ends at qty 0, fails at qty 13."""
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed | End | None:
        match order.qty:
            case 0:
                return End()
            case 13:
                return End(error=7, description="unlucky")
            case 99:
                return None
            case _:
                return Packed(order.sku)

    @app.activate(contract=orders)
    async def cancel(cancel: Cancel) -> Rejected:
        return Rejected(f"{cancel.sku} is packed")

    await one.run(app)
    await declare(one)
    return one.session


@pytest.mark.rule("SDK-5", "SDK-6")
async def test_ask_and_be_answered(brokerd_instance: RigInstance) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehouse", orders) as d:
        assert d.handle is None
        await d.send(Order("A1", 2))
        assert await d.receive(Packed, timeout=30) == Packed("A1")
        await d.send(Cancel("A1"))
        assert await d.receive(Packed | Rejected, timeout=30) == Rejected("A1 is packed")
        assert await endpoints(brokerd_instance) == [("shop", "CO"), ("warehouse", "CO")]
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-5")
async def test_an_exception_ends_the_dialog_with_that_error(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session

    async def fails() -> None:
        async with bk.dialog("warehouse", orders) as d:
            await d.send(Order("A1"))
            raise KeyError("no such customer")

    with pytest.raises(KeyError):
        await fails()
    error, _order = await bk.receive("warehouse_q", autocommit=True)
    assert error.error is not None
    assert error.error.number == 1
    assert "KeyError: 'no such customer'" in error.error.description


@pytest.mark.rule("SDK-5")
async def test_a_cancelled_block_ends_the_dialog_too(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    sent = asyncio.Event()

    async def waits() -> None:
        async with bk.dialog("warehouse", orders) as d:
            await d.send(Order("A1"))
            sent.set()
            await d.receive()

    task = asyncio.ensure_future(waits())
    await sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    error, _order = await bk.receive("warehouse_q", autocommit=True)
    assert error.is_error


@pytest.mark.rule("SDK-5")
async def test_nothing_sent_nothing_begun(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    async with brokerd_instance.session.dialog("warehouse", orders) as d:
        with pytest.raises(NotInContract):
            await d.send(3)
    assert await endpoints(brokerd_instance) == []


@pytest.mark.rule("SDK-5")
async def test_a_rolled_back_beginning_has_not_begun(brokerd_instance: RigInstance) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehouse", orders) as d:
        tx = bk.transaction()
        await d.send(Order("lost"), tx=tx)
        tx.rollback()
        with pytest.raises(WouldWaitForever, match="nothing has been sent"):
            await d.receive(timeout=1)
        async with bk.transaction() as tx:
            await d.send(Order("kept"), tx=tx)
        assert await d.receive(Packed, timeout=30) == Packed("kept")


@pytest.mark.rule("SDK-5")
async def test_a_whole_dialog_in_one_transaction(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with bk.transaction() as tx, bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1"), tx=tx)
    taken = await bk.receive("warehouse_q", autocommit=True)
    assert [one.is_end for one in taken] == [False, True]


@pytest.mark.rule("SDK-5", "SDK-6")
async def test_an_end_that_is_rolled_back_is_made_up_for_when_the_block_is_left(
    brokerd_instance: RigInstance,
) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 0))
        with pytest.raises(DialogEnded):
            async with bk.transaction() as tx:
                await d.receive(timeout=30, tx=tx)
        assert await endpoints(brokerd_instance) == [("shop", "DI")]
    await brokerd_instance.assert_settled()

    async def rolled_back(d: Dialog) -> None:
        async with bk.transaction() as tx:
            await d.send(Order("A2", 99), tx=tx)
            await d.end()
            await d.end()  # it is over, should this commit
            raise ZeroDivisionError

    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 99))
        with pytest.raises(ZeroDivisionError):
            await rolled_back(d)
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-5")
async def test_a_side_that_is_over_is_not_ended_twice(brokerd_instance: RigInstance) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 0))
        async with bk.transaction() as tx:
            with pytest.raises(DialogEnded):
                await d.receive(timeout=30, tx=tx)
            await d.end()  # would wait for the lock of that transaction
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 99))
        assert d.handle is not None
        await bk.end(d.handle)  # by hand
        await d.end()
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-3")
async def test_a_dialog_has_the_lifetime_of_its_contract_unless_it_is_said(
    brokerd_instance: RigInstance,
) -> None:
    short = Contract("short/v1", initiator=[Order], lifetime=5)
    bk = brokerd_instance.session
    await bk.declare(short, service="shop")
    for said, number in ((None, -8489), (500, None)):
        async with bk.dialog("nowhere", short, lifetime=said) as d:
            await d.send(Order("A1"))
            with pytest.raises(RemoteError if number else ReceiveTimeout) as caught:
                await d.receive(timeout=30)
            assert getattr(caught.value, "number", None) == number


@pytest.mark.rule("SDK-6")
@pytest.mark.parametrize("in_tx", [False, True])
async def test_a_timer_is_skipped_unless_it_is_asked_for(
    brokerd_instance: RigInstance, brokerd_clock: RigClock, in_tx: bool
) -> None:
    bk = await answering(brokerd_instance)

    async def receive(d: Dialog, *kinds: object) -> object:
        if not in_tx:
            return await d.receive(*kinds, timeout=10)
        async with bk.transaction() as tx:
            return await d.receive(*kinds, timeout=10, tx=tx)

    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 99))
        assert d.handle is not None
        await bk.set_timer(d.handle, 6)
        assert isinstance(await receive(d, Packed | Timer), Timer)
        await bk.set_timer(d.handle, 6)
        began = brokerd_clock.now
        with pytest.raises(ReceiveTimeout):
            await receive(d, Packed)
        assert (brokerd_clock.now - began).total_seconds() == pytest.approx(10, abs=0.5)


@pytest.mark.rule("SDK-6")
async def test_in_time_or_not_at_all(
    brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 99))
        began = brokerd_clock.now
        with pytest.raises(ReceiveTimeout) as caught:
            await d.receive(timeout=400)
        assert caught.value.retryable
        assert 400 <= (brokerd_clock.now - began).total_seconds() < 401


@pytest.mark.rule("SDK-6", "PBT-2")
async def test_a_wrong_name_is_told_where_it_is_waited_for(brokerd_instance: RigInstance) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehuose", orders) as d:
        await d.send(Order("A1"))
        with pytest.raises(ReceiveTimeout) as caught:
            await d.receive(timeout=10)
    assert "; what was sent waits: a route leads to this instance" in caught.value.message
    assert caught.value.hint.startswith("brokerd route explain warehuose")


@pytest.mark.rule("SDK-6", "SDK-17")
async def test_the_other_side_ends(brokerd_instance: RigInstance) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 0))
        with pytest.raises(DialogEnded):
            await d.receive(timeout=30)
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 13))
        with pytest.raises(RemoteError) as caught:
            await d.receive(timeout=30)
    assert (caught.value.number, caught.value.description) == (7, "unlucky")
    assert caught.value.ssb_code is None
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-6", "ERR-1")
async def test_an_error_of_the_broker_says_whether_a_new_dialog_helps(
    brokerd_instance: RigInstance,
) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with bk.dialog("warehouse", orders, lifetime=2) as d:
        await d.send(Order("A1"))
        with pytest.raises(RemoteError) as caught:
            await d.receive(timeout=30)
    assert (caught.value.number, caught.value.ssb_code) == (-8489, 8489)
    assert caught.value.retryable
    assert "new dialog" in caught.value.hint
    async with bk.dialog("shop", orders) as d:  # no target of this contract
        await d.send(Order("A1"))
        with pytest.raises(RemoteError) as caught:
            await d.receive(timeout=30)
    assert (caught.value.number, caught.value.retryable) == (-8408, False)


@pytest.mark.rule("SDK-6")
async def test_what_was_not_asked_for_stays(brokerd_instance: RigInstance) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Cancel("A1"))
        with pytest.raises(UnexpectedMessage, match="Rejected came"):
            await d.receive(Packed, timeout=30)
        assert await d.receive(Rejected, timeout=30) == Rejected("A1 is packed")
        assert d.handle is not None
        await bk.send(d.handle, b"{}", "Cancel")  # not what a Cancel looks like
        with pytest.raises(RemoteError, match=r"Cancel cannot be read.*sku"):
            await d.receive(timeout=30)


@pytest.mark.rule("SDK-6")
async def test_it_waits_through_a_crash_of_the_daemon(brokerd_instance: RigInstance) -> None:
    bk = await answering(brokerd_instance)
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 99))
        waiting = asyncio.ensure_future(d.receive(Packed, timeout=600))
        await brokerd_instance._rig.clock.advance(1)
        await brokerd_instance.restart()
        await d.send(Order("A2"))
        assert await waiting == Packed("A2")


@pytest.mark.rule("SDK-7")
async def test_waiting_in_the_transaction_that_asks_fails_at_once(
    brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    bk = await answering(brokerd_instance)
    began = brokerd_clock.now
    async with bk.dialog("warehouse", orders) as d:
        async with bk.transaction() as tx:
            await d.send(Order("A1"), tx=tx)
            with pytest.raises(WouldWaitForever, match="has sent the question") as caught:
                await d.receive(Packed, tx=tx)
            assert "commit" in caught.value.hint
            with pytest.raises(WouldWaitForever):
                await d.receive(Packed)
        assert (brokerd_clock.now - began).total_seconds() < 1
        async with bk.transaction() as tx:  # the question is out: any transaction may wait
            assert await d.receive(Packed, timeout=30, tx=tx) == Packed("A1")


async def test_what_it_needs_to_be_told(brokerd_instance: RigInstance) -> None:
    bk = brokerd_instance.session
    with pytest.raises(InvalidArgument, match="types of contract what are not known"):
        bk.dialog("warehouse", "what")
    bk.service = None
    with pytest.raises(InvalidArgument, match="which service"):
        bk.dialog("warehouse", orders)
    await declare(brokerd_instance)
    assert bk.dialog("warehouse", "orders/v1").contract is orders
    async with bk.dialog("warehouse", orders, service="nobody") as d:
        with pytest.raises(ServiceNotFound):
            await d.send(Order("A1"))


async def test_dialogs_of_one_group_are_received_together(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with (
        bk.dialog("warehouse", orders, group="customer 7") as first,
        bk.dialog("warehouse", orders, group="customer 7") as second,
    ):
        await first.send(Order("A1"))
        await second.send(Order("A2"))
        rows = await bk.view("conversation_endpoints")
        groups = {
            row["conversation_group_id"]
            for row in rows
            if isinstance(row, dict) and row["service_id"] == "shop"
        }
        assert len(groups) == 1
