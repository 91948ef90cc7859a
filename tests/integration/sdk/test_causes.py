"""A verb that fails in a transaction shows its cause, and the line that called it."""

import inspect
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from brokerd import App, Ctx
from brokerd.errors import ConversationNotFound, ReceiveTimeout, ServiceNotFound
from brokerd.testing.rig import RigClock, RigInstance
from tests.integration.sdk.shop import Order, Packed, declare, orders

NOWHERE = b"no such identity"


def line_of(function: Callable[..., Any], text: str) -> str:
    """File and line of a line of a function."""
    lines, first = inspect.getsourcelines(function)
    at = next(number for number, line in enumerate(lines, first) if text in line)
    return f"{__file__}:{at}, in "


async def collected(bk: Any) -> None:
    async with bk.transaction() as tx:
        await tx.send(NOWHERE, b"x")  # this one


async def interactive(bk: Any) -> None:
    async with bk.transaction() as tx:
        await tx.receive("shop_q")
        await tx.send(NOWHERE, b"x")  # this one
        await tx.set_state(bytes(16), b"")


async def several(bk: Any) -> None:
    async with bk.transaction() as tx:
        handle = await tx.begin_dialog("shop", "warehouse", "orders/v1")
        await tx.send(handle, b'{"sku":"a"}', "Order")
        await tx.send(NOWHERE, b"x")  # this one


@pytest.mark.rule("SDK-25", "SDK-26")
@pytest.mark.parametrize("program", [collected, interactive, several])
async def test_the_error_of_a_commit_names_the_line_that_called_the_verb(
    brokerd_instance: RigInstance, program: Callable[[Any], Any]
) -> None:
    await declare(brokerd_instance)
    with pytest.raises(ConversationNotFound) as failed:
        await program(brokerd_instance.session)
    text = "".join(traceback.format_exception(failed.value))
    assert line_of(program, "# this one") in text
    assert text.count(f"fix: {failed.value.hint}") == 1
    assert "earlier request" not in text


@pytest.mark.rule("SDK-25", "PBT-3")
async def test_the_log_of_a_handler_and_its_group_give_the_cause(
    brokerd_instance: RigInstance, brokerd_clock: RigClock, caplog: pytest.LogCaptureFixture
) -> None:
    app, by_hand = App("warehouse"), []

    @app.activate(contract=orders)
    async def order(order: Order, ctx: Ctx) -> Packed:
        if order.sku == "by hand":
            by_hand.append(order)
            await ctx.tx.send(NOWHERE, b"x")  # this one
        return Packed(order.sku)

    caplog.set_level("INFO", "brokerd.app")
    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("by hand"))
        while not await bk.view("parked_groups"):
            await brokerd_clock.advance(0.1)
        (held,) = await bk.view("parked_groups")
        assert held["last_error"].startswith("ConversationNotFound: ")
        said = next(one for one in caplog.messages if "handler_failed" in one)
        assert "ConversationNotFound" in said
        assert "earlier request" not in caplog.text
        assert line_of(order, "# this one") in caplog.text


async def ask(bk: Any, service: str) -> None:
    async with bk.dialog(service, orders) as d:
        await d.send(Order("A1"))
        await d.receive(timeout=30)


@pytest.mark.rule("SDK-27")
async def test_a_mistyped_service_gets_the_nearest_name(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    await bk.create("route", "far", service="inventory", address="TCP://10.0.0.7:4022")
    for wrong, right in (("wherehouse", "warehouse"), ("inventroy", "inventory")):
        with pytest.raises(ReceiveTimeout) as failed:
            await ask(bk, wrong)
        assert f'did you mean "{right}"?' in failed.value.message
        receipt = await bk.post(wrong, Order("A1"), contract=orders)
        with pytest.raises(ReceiveTimeout, match=f'did you mean "{right}"'):
            await receipt.processed(timeout=30)
    with pytest.raises(ServiceNotFound, match='did you mean "shop"'):
        await bk.begin_dialog("shpo", "warehouse")
    with pytest.raises(ServiceNotFound, match='did you mean "shop"'):
        await bk.queue_of("shpo")
