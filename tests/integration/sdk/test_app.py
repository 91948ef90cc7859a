"""An App answers by type, in one commit, wherever it runs (SDK-9 to SDK-11)."""

import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from brokerd import App, Ctx, End, Park, Retry
from brokerd.activation.handlers import HandlerError, handler_problems, load_handler
from brokerd.app.contract import END_OF_STREAM
from brokerd.app.session import Session
from brokerd.errors import DialogEnded, InvalidArgument, QueueNotFound, RemoteError
from brokerd.model import END_DIALOG
from brokerd.objects.declarations import parse
from brokerd.telemetry.status import InstanceStatus, concerns
from brokerd.testing.rig import RigClock, RigInstance
from tests.integration.sdk.shop import Cancel, Order, Packed, Rejected, declare, endpoints, orders


async def ask(bk: Session, *values: object) -> list[object]:
    """The answers to these, on one dialog, which is ended."""
    async with bk.dialog("warehouse", orders) as d:
        for value in values:
            await d.send(value)
        return [await d.receive(timeout=60) for _ in values]


@pytest.mark.rule("SDK-10")
async def test_the_type_of_the_value_chooses_the_handler(brokerd_instance: RigInstance) -> None:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed:
        return Packed(order.sku)

    @app.activate(contract=orders)
    async def cancel(cancel: Cancel, ctx: Ctx) -> None:
        await ctx.send(Rejected(f"{cancel.sku} at {ctx.message.sequence}"))

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    assert await ask(bk, Order("A1"), Cancel("A1")) == [Packed("A1"), Rejected("A1 at 1")]
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-10")
@pytest.mark.parametrize("batch", [1, 10])
async def test_reply_state_and_receive_are_one_commit(
    brokerd_instance: RigInstance, batch: int
) -> None:
    app, attempts = App("warehouse"), list[str]()

    @app.activate(contract=orders, batch=batch)
    async def order(order: Order, ctx: Ctx) -> Packed:
        count = int(await ctx.state() or b"0") + 1
        await ctx.set_state(b"%d" % count)
        attempts.append(order.sku)
        if order.sku == "bad" and attempts.count("bad") < 3:
            await ctx.send(Rejected("never seen"))
            raise RuntimeError("the shelf fell over")
        return Packed(f"{order.sku} {count}")

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    got = await ask(brokerd_instance.session, Order("a"), Order("bad"), Order("c"))
    assert got == [Packed("a 1"), Packed("bad 2"), Packed("c 3")]
    assert attempts.count("bad") == 3


@pytest.mark.rule("SDK-10")
async def test_none_sends_nothing(brokerd_instance: RigInstance) -> None:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed | None:
        return Packed(order.sku) if order.qty else None

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    async with brokerd_instance.session.dialog("warehouse", orders) as d:
        await d.send(Order("A1", 0))
        await d.send(Order("A2"))
        assert await d.receive(timeout=60) == Packed("A2")
        (row,) = await brokerd_instance.session.view(
            "conversation_endpoints", where={"service_id": "warehouse"}
        )
        assert row["send_sequence"] == 1


@pytest.mark.rule("SDK-10")
async def test_end_is_an_outcome(brokerd_instance: RigInstance) -> None:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> End:
        return End(Packed(order.sku)) if order.qty else End(error=5, description="nothing asked")

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    assert await ask(bk, Order("A1")) == [Packed("A1")]
    with pytest.raises(RemoteError, match="error 5: nothing asked"):
        await ask(bk, Order("A1", 0))
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-10")
async def test_what_no_handler_takes_ends_the_dialog(brokerd_instance: RigInstance) -> None:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> None: ...

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    with pytest.raises(RemoteError, match="error 1: warehouse has no handler for Cancel"):
        await ask(bk, Cancel("A1"))
    handle = await bk.begin_dialog("shop", "warehouse", "orders/v1")
    await bk.send(handle, b"[]", "Order")
    (error,) = await bk.receive("shop_q", wait=60, autocommit=True)
    assert error.error is not None
    assert error.error.number == 2
    assert "Order cannot be read" in error.error.description


@pytest.mark.rule("SDK-10")
async def test_an_answer_to_who_has_ended_is_left_out(brokerd_instance: RigInstance) -> None:
    app, handled = App("warehouse"), list[str]()

    @app.activate(contract=orders, batch=10)
    async def order(order: Order) -> Packed:
        handled.append(order.sku)
        return Packed(order.sku)

    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with (
        bk.dialog("warehouse", orders) as gone,
        bk.dialog("warehouse", orders) as stays,
    ):
        await gone.send(Order("gone"))
        await stays.send(Order("stays"))
        await gone.end()
        rows = [one for one in await bk.view("conversation_endpoints") if isinstance(one, dict)]
        assert sorted(one["state"] for one in rows) == ["CO", "CO", "DI"]
        await brokerd_instance.run(app)
        assert await stays.receive(timeout=60) == Packed("stays")
    await brokerd_instance.assert_settled()
    assert set(handled) == {"gone", "stays"}


@pytest.mark.rule("SDK-9")
async def test_ends_errors_and_ends_of_streams_by_default(brokerd_instance: RigInstance) -> None:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> None: ...

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with bk.dialog("warehouse", orders) as ended:
        await ended.send(Order("A1"))
    async with bk.dialog("warehouse", orders) as failed:
        await failed.send(Order("A1"))
        await failed.end(9, "changed my mind")
    await (await bk.post("warehouse", Order("A1"))).processed(60)
    await brokerd_instance.assert_settled()


@pytest.mark.rule("SDK-9")
async def test_hooks_for_ends_and_errors(brokerd_instance: RigInstance) -> None:
    app, told = App("warehouse"), list[str]()

    @app.activate(contract=orders)
    async def order(order: Order) -> None: ...

    @app.on_error()
    async def failed(error: RemoteError, ctx: Ctx) -> None:
        told.append(f"error {error.number}")
        await ctx.set_state(None)

    @app.on_end()
    async def ended(ctx: Ctx) -> None:
        told.append("end")

    @app.on_timer()
    async def due(ctx: Ctx) -> None:
        raise AssertionError("no timer was set")

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with bk.dialog("warehouse", orders) as one:
        await one.send(Order("A1"))
    async with bk.dialog("warehouse", orders) as other:
        await other.send(Order("A1"))
        await other.end(9, "changed my mind")
    await brokerd_instance.assert_settled()
    assert sorted(told) == ["end", "error 9"]


@pytest.mark.rule("SDK-9")
async def test_hooks_for_timers_and_ends_of_streams(
    brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    app, told = App("warehouse"), list[str]()

    @app.activate(contract=orders)
    async def order(order: Order, ctx: Ctx) -> None:
        await ctx.tx.set_timer(ctx.dialog, 5, order.sku)

    @app.on_timer()
    async def due(ctx: Ctx) -> None:
        told.append(f"timer {ctx.message.timer_name}")
        await ctx.send(Packed("late"))

    @app.on_end()
    async def ended(ctx: Ctx) -> None:
        told.append(f"end {ctx.message.message_type}")

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("A1"))
        assert await d.receive(Packed, timeout=30) == Packed("late")
        assert await endpoints(brokerd_instance) == [("shop", "CO"), ("warehouse", "CO")]
    await brokerd_clock.advance(1)
    receipt = await bk.post("warehouse", Order("A2"))
    await brokerd_clock.advance(6)
    await receipt.processed(60)
    await brokerd_instance.assert_settled()
    assert told == ["timer A1", f"end {END_DIALOG}", "timer A2", f"end {END_OF_STREAM}"]


@pytest.mark.rule("SDK-9")
async def test_what_stands_behind_a_timer_in_a_batch_is_handled(
    brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    app, handled = App("shop"), list[str]()

    @app.activate(contract=orders, batch=10)
    async def packed(packed: Packed) -> None:
        handled.append(packed.sku)

    @app.on_timer()
    async def due(ctx: Ctx) -> None:
        handled.append("timer")

    await declare(brokerd_instance)
    bk = brokerd_instance.session
    handle = await bk.begin_dialog("shop", "warehouse", "orders/v1")
    await bk.send(handle, b'{"sku":"A1"}', "Order")
    (asked,) = await bk.receive("warehouse_q", autocommit=True)
    await bk.set_timer(handle, 1)
    await brokerd_clock.advance(2)
    await bk.send(asked.handle, b'{"sku":"A1"}', "Packed")
    await brokerd_instance.run(app)
    await brokerd_clock.advance(1)
    assert handled == ["timer", "A1"]
    await bk.end(asked.handle)


@pytest.mark.rule("SDK-11")
async def test_a_failing_handler_costs_its_own_dialogs_growing_pauses(
    brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    app, attempts = App("warehouse"), list[float]()

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed:
        attempts.append(brokerd_clock.now.timestamp())
        raise RuntimeError("always")

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    async with brokerd_instance.session.dialog("warehouse", orders) as d:
        await d.send(Order("A1"))
        await brokerd_clock.advance("10min")
    pauses = [round(later - at) for at, later in pairwise(attempts)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64]  # of the group; then it is parked (PBT-3)
    (parked,) = await brokerd_instance.session.view("parked_groups")
    assert (parked["state"], parked["last_error"]) == ("parked", "RuntimeError: always")


@pytest.mark.rule("SDK-11")
@pytest.mark.parametrize(("in_the_daemon", "longest"), [(False, 30), (True, 5)])
async def test_without_poison_handling_it_is_the_reader_that_pauses(
    brokerd_instance: RigInstance,
    brokerd_clock: RigClock,
    monkeypatch: pytest.MonkeyPatch,
    in_the_daemon: bool,
    longest: int,
) -> None:
    app, attempts = App("warehouse"), list[float]()

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed:
        attempts.append(brokerd_clock.now.timestamp())
        raise RuntimeError("always")

    await declare(brokerd_instance)
    if in_the_daemon:
        module = ModuleType("always_failing")
        module.app = app  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "always_failing", module)
        await brokerd_instance.session.apply(objects("always_failing:app"))
    else:
        await brokerd_instance.run(app)
    await brokerd_instance.session.alter("queue", "warehouse_q", poison_handling="off")
    async with brokerd_instance.session.dialog("warehouse", orders) as d:
        await d.send(Order("A1"))
        await brokerd_clock.advance("10min")
    pauses = [later - at for at, later in pairwise(attempts)]
    assert [round(one, 1) for one in pauses[:5]] == [0, 0.2, 0.4, 0.8, 1.6]
    assert round(max(pauses)) == longest


@pytest.mark.rule("PSN-13", "PSN-17")
@pytest.mark.rule("SDK-10")
@pytest.mark.parametrize("how", ["returned", "raised"])
async def test_retry_park_and_end_as_outcomes(
    how: str, brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    app, attempts = App("warehouse"), list[tuple[str, float]]()
    outcomes = {"retry": Retry(30), "park": Park("ask Ann"), "end": End(Packed("done"))}

    @app.activate(contract=orders)
    async def order(order: Order) -> object:
        attempts.append((order.sku, round(brokerd_clock.now.timestamp())))
        outcome = outcomes[order.sku]
        if order.sku == "retry" and len([1 for sku, _ in attempts if sku == "retry"]) > 1:
            return None
        if how == "raised":
            raise outcome
        return outcome

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    async with bk.dialog("warehouse", orders) as late, bk.dialog("warehouse", orders) as parked:
        await late.send(Order("retry"))
        await parked.send(Order("park"))
        async with bk.dialog("warehouse", orders) as ended:
            await ended.send(Order("end"))
            assert await ended.receive(Packed, timeout=5) == Packed("done")
            with pytest.raises(DialogEnded):
                await ended.receive(Packed, timeout=5)
        await brokerd_clock.advance("2min")
        (row,) = await bk.view("parked_groups")
        assert (row["state"], row["park_reason"]) == ("parked", "ask Ann")
    first, second = (at for sku, at in attempts if sku == "retry")
    assert second - first == 30
    assert [sku for sku, _ in attempts].count("park") == 1


@pytest.mark.rule("SDK-11")
async def test_stopping_takes_nothing_more_and_lets_handlers_finish(
    brokerd_instance: RigInstance, brokerd_clock: RigClock
) -> None:
    app, done = App("warehouse"), list[str]()

    @app.activate(contract=orders, max_readers=2)
    async def order(order: Order) -> None:
        await brokerd_clock.advance(20)
        done.append(order.sku)

    bk = brokerd_instance.session
    await bk.declare(app)
    await declare(brokerd_instance)
    stop = asyncio.Event()
    running = asyncio.ensure_future(app.run(bk, stop=stop))
    async with bk.dialog("warehouse", orders) as d:
        await d.send(Order("first"))
        await brokerd_clock.advance(1)
        await d.send(Order("second"))
        stop.set()
        await running
        assert done == ["first"]
        (left,) = await bk.receive("warehouse_q", autocommit=True)
        assert left.body == b'{"sku":"second","qty":1}'


@pytest.mark.rule("SDK-11")
async def test_it_reads_on_after_a_crash_of_the_daemon(brokerd_instance: RigInstance) -> None:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed:
        return Packed(order.sku)

    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    assert await ask(bk, Order("before")) == [Packed("before")]
    await brokerd_instance.restart()
    assert await ask(bk, Order("after")) == [Packed("after")]
    brokerd_instance.assert_once(Order)


@pytest.mark.rule("SDK-11")
async def test_a_worker_waits_for_a_queue_that_is_off(
    brokerd_instance: RigInstance, brokerd_clock: RigClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed:
        return Packed(order.sku)

    caplog.set_level("INFO", "brokerd.app")
    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    assert await ask(bk, Order("before")) == [Packed("before")]
    for _ in range(2):
        await bk.alter("queue", "warehouse_q", status="off")
        await brokerd_clock.advance("10min")
        await bk.alter("queue", "warehouse_q", status="on")
        assert await ask(bk, Order("after")) == [Packed("after")]
    said = [one for one in caplog.messages if "queue_off" in one or "reads_again" in one]
    assert ["queue_off" in one for one in said] == [True, False] * 2
    assert "brokerd queue show" in said[0]


@pytest.mark.rule("SDK-11")
async def test_what_cannot_run(brokerd_instance: RigInstance) -> None:
    app = App("warehouse")

    @app.activate(contract=orders, max_readers=99)
    async def order(order: Order) -> None: ...

    with pytest.raises(InvalidArgument, match="99 readers, and a session has room for"):
        await app.run(brokerd_instance.session)
    small = App("warehouse")
    small.activate(contract=orders)(order)
    with pytest.raises(QueueNotFound):
        await small.run(brokerd_instance.session)


def test_what_is_no_handler() -> None:
    app = App("warehouse")

    def plain(order: Order) -> None: ...
    async def greedy(order: Order, ctx: Ctx, more: int) -> None: ...
    async def first(body: Order) -> None: ...
    async def unknown(order: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    wrong: dict[str, Any] = {"not an async": plain, "3 arguments": greedy, "Nowhere": unknown}
    for why, handler in wrong.items():
        with pytest.raises(InvalidArgument, match=why):
            app.activate()(handler)
    app.activate()(first)
    with pytest.raises(InvalidArgument, match="DEFAULT has a handler already"):
        app.activate()(first)


SOURCE = """
import brokerd
from tests.integration.sdk.shop import Order, Packed, orders
app = brokerd.App("warehouse")
@app.activate("warehouse_q", contract=orders)
async def order(order: Order) -> Packed:
    return Packed(order.sku)
"""


@pytest.mark.rule("SDK-11")
async def test_an_activated_queue_names_an_app_as_its_handler(
    brokerd_instance: RigInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "activated_app.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    await bk.apply(objects("activated_app:app"))
    assert await ask(bk, Order("A1"), Order("A2")) == [Packed("A1"), Packed("A2")]
    tasks = await bk.view("activated_tasks")
    assert [one["queue_id"] for one in tasks if isinstance(one, dict)] == ["warehouse_q"]
    await brokerd_instance._rig.clock.advance(2)
    assert await bk.view("activated_tasks") == []  # ACT-25
    assert await endpoints(brokerd_instance) == []


def objects(handler: str) -> dict[str, Any]:
    found: dict[str, Any] = {"broker": {"name": "main", "default_encryption": "off"}}
    found |= orders.objects()
    activation = {"handler": handler, "max_readers": 2}
    found["queue"] = [{"name": "shop_q"}, {"name": "warehouse_q", "activation": activation}]
    found["service"] = [
        {"name": "shop", "queue": "shop_q"},
        {"name": "warehouse", "queue": "warehouse_q", "contracts": ["orders/v1"]},
    ]
    return found


HEALTHY = 100
EACH = 3
WORK = 0.03

FAILING = """
import brokerd
from tests.integration.sdk.shop import Order, Packed, orders
app = brokerd.App("warehouse")
@app.activate("warehouse_q", contract=orders)
async def order(order: Order, ctx) -> None:
    if order.sku == "poison":
        raise RuntimeError("the shelf fell over")
    clock = ctx.session.clock
    await clock.sleep_until(clock.monotonic() + 0.03)
"""


@pytest.mark.rule("SDK-11", "ACT-27", "PSN-16", "PBT-3")
async def test_a_reader_of_the_daemon_survives_its_handler_and_others_keep_their_rate(
    brokerd_instance: RigInstance,
    brokerd_clock: RigClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "failing_app.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    bk = brokerd_instance.session
    declared = objects("failing_app:app")
    declared["queue"][1] |= {"poison_mode": "park"}
    declared["queue"][1]["activation"] |= {"max_readers": 1, "status": "off"}
    await declare(brokerd_instance)
    await bk.apply(declared)
    for number in range(HEALTHY):
        async with bk.transaction() as tx:
            dialog = await tx.begin_dialog("shop", "warehouse", "orders/v1")
            for _ in range(EACH):
                await tx.send(dialog, b'{"sku":"A1","qty":1}', "Order")
            if number == HEALTHY // 2:
                poison = await tx.begin_dialog("shop", "warehouse", "orders/v1")
                await tx.send(poison, b'{"sku":"poison","qty":1}', "Order")

    async def left() -> int:
        (row,) = await bk.view("service_queues", where={"name": "warehouse_q"})
        return int(row["ready_count"])

    began = brokerd_clock.now
    await bk.alter("queue", "warehouse_q", activation={"status": "on"})
    while await left():
        await brokerd_clock.advance(0.1)
    took = (brokerd_clock.now - began).total_seconds()
    assert took <= HEALTHY * EACH * WORK / 0.9
    status = msgspec.convert(await bk.status(), InstanceStatus, strict=False)
    (now,) = [one for one in status.queues if one.name == "warehouse_q"]
    assert (now.retrying, now.last_error) == (1, "RuntimeError: the shelf fell over")
    assert not concerns(status)
    await brokerd_clock.advance("5min")
    (parked,) = await bk.view("parked_groups")
    assert (parked["state"], parked["rollback_streak"]) == ("parked", 8)
    assert parked["last_error"] == "RuntimeError: the shelf fell over"
    said = [one for one in caplog.messages if "handler_failed" in one]
    assert len(said) == 8
    assert "RuntimeError: the shelf fell over" in said[0]
    counters = (await bk.view("activation_counters"))[0]
    assert counters["tasks_aborted_total"] == 0


@pytest.mark.rule("SDK-11")
async def test_a_worker_waits_for_a_queue_that_was_dropped(
    brokerd_instance: RigInstance, brokerd_clock: RigClock, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("warehouse")

    @app.activate(contract=orders)
    async def order(order: Order) -> Packed:
        return Packed(order.sku)

    caplog.set_level("INFO", "brokerd.app")
    await brokerd_instance.run(app)
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    assert await ask(bk, Order("before")) == [Packed("before")]
    await bk.drop("service", "warehouse", terminate_existing=True)
    await bk.drop("queue", "warehouse_q")
    await brokerd_clock.advance("10min")
    assert len([one for one in caplog.messages if "queue_missing" in one]) == 1
    await bk.declare(app)
    assert await ask(bk, Order("after")) == [Packed("after")]
    assert len([one for one in caplog.messages if "reads_again" in one]) == 1


@pytest.mark.rule("SDK-11", "ACT-24")
def test_an_app_without_the_queue_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "another_app.py").write_text(SOURCE.replace("warehouse_q", "other_q"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HandlerError, match="app warehouse has no handler for queue warehouse_q"):
        load_handler("another_app:app", "warehouse_q")
    problem, hint = handler_problems(parse(objects("another_app:app")))
    assert "no handler for queue warehouse_q" in problem
    assert "other_q" in hint
