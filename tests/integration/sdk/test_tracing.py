"""Spans of what programs send, receive and handle, over two instances (MON-60 to MON-67)."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import brokerd
from brokerd import App, Ctx, Reply, Tracing
from brokerd.client.messages import Message
from brokerd.errors import ConversationNotFound, InvalidArgument
from brokerd.testing.rig import RigClock, RigInstance
from tests.integration.sdk.shop import Order, Packed, orders

Pair = tuple[RigInstance, RigInstance]


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> dict[str, list[ReadableSpan]]:
        found: dict[str, list[ReadableSpan]] = {}
        for span in self._exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.all()[name]
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def identity(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def tracing(spans: Spans, at: RigInstance, **options: Any) -> Tracing:
    clock = at.instance.surroundings.clock
    return Tracing(spans.provider, clock=clock, **options)


async def converse(pair: Pair, clock: RigClock, *, traced: list[Tracing]) -> None:
    """An order over two instances, and its reply, each program with a tracing of its own."""
    shop, warehouse = pair
    app = App("warehouse", tracing=traced[1])

    @app.activate(contract=orders)
    async def pack(order: Order, ctx: Ctx) -> Reply:
        return Reply(Packed(order.sku), headers={"note": "packed"})

    await warehouse.run(app)
    shop.session.tracing = traced[0]
    await shop.declare(orders, service="shop")
    async with shop.session.dialog("warehouse", orders, service="shop") as dialog:
        await dialog.send(Order("A1"), headers={"correlation-id": "7"})
        assert await dialog.receive(Packed, timeout=60) == Packed("A1")
        assert dialog.headers["note"] == "packed"
    await clock.advance("10s")


@pytest.mark.rule("MON-60", "MON-61", "MON-62", "MON-64", "MON-65", "SDK-20", "SDK-21")
async def test_a_dialog_over_two_machines_is_one_picture(
    brokerd_pair: Pair, brokerd_clock: RigClock, spans: Spans
) -> None:
    shop, warehouse = brokerd_pair
    traced = [tracing(spans, one, parent=True) for one in (shop, warehouse)]
    await converse(brokerd_pair, brokerd_clock, traced=traced)
    sent = spans.one("send warehouse")
    there, back = spans.all()["transmit warehouse"], spans.all()["transmit shop"]
    handled, replied = spans.one("process warehouse"), spans.one("reply")
    received = spans.one("receive shop_q")
    assert "receive warehouse_q" not in spans.all(), "the handler's span shows the same message"
    every = [sent, *there, handled, replied, *back, received]
    assert len({identity(span)[0] for span in every}) == 1, "one trace"
    assert [parent(span) for span in every] == [
        None,
        identity(sent)[1],
        identity(sent)[1],
        identity(handled)[1],
        identity(replied)[1],
        identity(replied)[1],
    ]
    kinds = [span.kind.name for span in (sent, handled, replied, received)]
    assert kinds == ["PRODUCER", "CONSUMER", "PRODUCER", "CLIENT"]
    for span in every:
        assert span.attributes is not None
        assert span.attributes["messaging.system"] == "brokerd"
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
    assert handled.attributes is not None
    assert handled.attributes["messaging.destination.name"] == "warehouse"
    assert handled.attributes["messaging.operation.type"] == "process"
    assert handled.attributes["brokerd.attempt"] == 1


@pytest.mark.rule("MON-62", "MON-63")
async def test_by_default_each_side_has_its_trace_and_a_link(
    brokerd_pair: Pair, brokerd_clock: RigClock, spans: Spans
) -> None:
    traced = [tracing(spans, one) for one in brokerd_pair]
    await converse(brokerd_pair, brokerd_clock, traced=traced)
    sent, handled, replied = (
        spans.one(name) for name in ("send warehouse", "process warehouse", "reply")
    )
    assert handled.parent is None
    assert [(one.context.trace_id, one.context.span_id) for one in handled.links] == [
        identity(sent)
    ]
    assert identity(handled)[0] != identity(sent)[0]
    assert parent(replied) == identity(handled)[1]
    received = spans.one("receive shop_q")
    assert [(one.context.trace_id, one.context.span_id) for one in received.links] == [
        identity(replied)
    ]


@pytest.mark.rule("MON-66")
async def test_what_is_not_sampled_carries_nothing(
    brokerd_pair: Pair, brokerd_clock: RigClock, spans: Spans
) -> None:
    shop, _ = brokerd_pair
    await converse(brokerd_pair, brokerd_clock, traced=[tracing(spans, shop, sample=0.0)] * 2)
    assert spans.all() == {}
    off = TracerProvider(sampler=ALWAYS_OFF)
    shop.session.tracing = Tracing(off)
    handle = await shop.session.begin_dialog("shop", "warehouse", "orders/v1")
    await shop.session.send(handle, b"{}", "Cancel")
    drawn = tracing(spans, shop, sample=0.3, random=Random(1))
    shop.session.tracing = drawn
    for _ in range(200):
        await shop.session.send(handle, b"{}", "Cancel")
    assert 30 < len(spans.all()["send"]) < 90, "by the share that was asked for"
    await brokerd_clock.advance("10s")


@pytest.mark.rule("MON-66")
async def test_a_trace_that_is_going_on_is_followed(
    brokerd_instance: RigInstance, spans: Spans
) -> None:
    one = brokerd_instance
    await one.session.declare(orders, service="shop")
    await one.session.declare(orders, service="warehouse", target=True)
    one.session.tracing = tracing(spans, one, sample=0.0)
    handle = await one.session.begin_dialog("shop", "warehouse", "orders/v1")
    tracer = trace.get_tracer("test", tracer_provider=spans.provider)
    with tracer.start_as_current_span("request") as request:
        await one.session.send(handle, b"1", "Cancel")
    quiet = trace.get_tracer("test", tracer_provider=TracerProvider(sampler=ALWAYS_OFF))
    one.session.tracing = tracing(spans, one)
    with quiet.start_as_current_span("not sampled") as unrecorded:
        await one.session.send(handle, b"2", "Cancel")
    sent = spans.one("send warehouse")
    assert parent(sent) == request.get_span_context().span_id
    one.session.tracing = None
    found = await one.session.receive("warehouse_q", autocommit=True)
    carried = [str(message.headers["traceparent"]) for message in found]
    assert [int(each[-2:], 16) & 1 for each in carried] == [1, 0]
    assert carried[1][3:35] == f"{unrecorded.get_span_context().trace_id:032x}"


@pytest.mark.rule("MON-113")
async def test_what_is_not_recorded_has_no_spans_and_goes_on_with_the_replies(
    brokerd_instance: RigInstance, spans: Spans
) -> None:
    one = brokerd_instance
    await one.session.declare(orders, service="shop")
    await one.session.declare(orders, service="warehouse", target=True)
    handle = await one.session.begin_dialog("shop", "warehouse", "orders/v1")
    unrecorded = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    headers: dict[str, str | bytes] = {"traceparent": unrecorded, "tracestate": "other=1"}
    for body in (b'{"sku": "A1"}', b'{"sku": "A2"}'):
        await one.session.send(handle, body, "Order", headers=headers)
    one.session.tracing = tracing(spans, one)
    async for delivery in one.session.deliveries("warehouse_q", contracts=[orders]):
        async with delivery:
            await delivery.send(Packed("A1"))
        break
    await one.session.receive("warehouse_q", autocommit=True)
    assert spans.all() == {}
    one.session.tracing = None
    (reply,) = await one.session.receive("shop_q", autocommit=True)
    assert str(reply.headers["traceparent"]) == unrecorded
    assert "other=1" in str(reply.headers["tracestate"])


_TRACE, _SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.rule("MON-118")
@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": f"00-{_TRACE}-{_SPAN}-01", "tracestate": "brokerd=1700000000000000"},
        {"traceparent": f"00-{_TRACE}-{_SPAN}-03", "tracestate": "brokerd=1,other=2, third=3"},
        {"traceparent": f" 00-{_TRACE}-{_SPAN}-01 ", "tracestate": "other=2,brokerd=1,third=3"},
        {"traceparent": f"00-{_TRACE}-{_SPAN}-01", "tracestate": "other=2,,bad,=,UPPER=1"},
        {"traceparent": f"00-{_TRACE}-{_SPAN}-01", "tracestate": "a=" + "x" * 512},
        {"traceparent": f"00-{_TRACE}-{_SPAN}-01-more"},
        {"traceparent": f"01-{_TRACE}-{_SPAN}-01-more"},
        {"traceparent": f"01-{_TRACE}-{_SPAN}-01more"},
        {"traceparent": f"ff-{_TRACE}-{_SPAN}-01"},
        {"traceparent": f"00-{'0' * 32}-{_SPAN}-01"},
        {"traceparent": f"00-{_TRACE}-{'0' * 16}-01"},
        {"traceparent": f"00-{_TRACE.upper()}-{_SPAN}-01"},
        {"traceparent": ""},
    ],
)
def test_a_context_is_read_as_opentelemetry_reads_it(headers: dict[str, str], spans: Spans) -> None:
    sender = trace.get_current_span(
        TraceContextTextMapPropagator().extract(headers)
    ).get_span_context()
    fields: dict[str, Any] = dict.fromkeys(Message.__struct_fields__, b"")
    fields |= {"service": "warehouse", "message_type": "Order", "delivery_count": 1}
    with Tracing(spans.provider, parent=True).processing(
        "warehouse_q", Message(**fields | {"headers": headers})
    ):
        pass
    handled = spans.one("process warehouse")
    if not sender.is_valid:
        assert (handled.parent, list(handled.links)) == (None, [])
        return
    assert handled.parent is not None
    assert handled.parent.trace_id == sender.trace_id
    assert handled.parent.span_id == sender.span_id
    assert handled.parent.trace_flags == sender.trace_flags
    assert handled.parent.is_remote
    assert handled.parent.trace_state == sender.trace_state.delete("brokerd")


@pytest.mark.rule("MON-61", "MON-65")
async def test_what_failed_says_so(brokerd_instance: RigInstance, spans: Spans) -> None:
    one = brokerd_instance
    await one.session.declare(orders, service="shop")
    await one.session.declare(orders, service="warehouse", target=True)
    one.session.tracing = tracing(spans, one)
    handle = await one.session.begin_dialog("shop", "warehouse", "orders/v1")
    tx = one.session.transaction()
    await tx.send(handle, b"{}", "Cancel")
    tx.rollback()
    undone = spans.one("send warehouse")
    assert undone.status.status_code is StatusCode.ERROR
    await one.session.send(handle, b'{"sku": "A1"}', "Cancel")
    async for delivery in one.session.deliveries("warehouse_q", contracts=[orders]):
        assert delivery.headers["traceparent"]
        with suppress(KeyError):
            async with delivery:
                raise KeyError("A1")
        break
    handled = spans.one("process warehouse")
    assert handled.status.status_code is StatusCode.ERROR
    assert [event.name for event in handled.events] == ["exception"]
    await one.session.end(handle)
    with pytest.raises(ConversationNotFound):
        await one.session.send(handle, b"{}", "Cancel")
    last = spans.all()["send warehouse"][-1]
    assert last.status.status_code is StatusCode.ERROR


@pytest.mark.rule("MON-67")
async def test_a_context_of_the_program_is_left_alone(
    brokerd_instance: RigInstance, spans: Spans
) -> None:
    one = brokerd_instance
    await one.session.declare(orders, service="shop")
    await one.session.declare(orders, service="warehouse", target=True)
    one.session.tracing = tracing(spans, one)
    handle = await one.session.begin_dialog("shop", "warehouse", "orders/v1")
    own: dict[str, str | bytes] = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    }
    full: dict[str, str | bytes] = {str(number): "" for number in range(64)}
    bad: dict[str, str | bytes] = {"traceparent": "nonsense", "tracestate": b"\xff"}
    for headers in (own, full, bad):
        await one.session.send(handle, b"{}", "Cancel", headers=headers)
    found = await one.session.receive("warehouse_q", autocommit=True)
    assert [message.headers for message in found] == [own, full, bad]


@pytest.mark.rule("MON-60")
def test_no_tracing_is_imported_unless_it_is_asked_for() -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    program = (
        "import sys, brokerd; assert not [n for n in sys.modules if n.startswith('opentelemetry')];"
        "brokerd.Tracing(); assert 'opentelemetry.sdk' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.rule("MON-60")
def test_a_wrong_share_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        Tracing(sample=1.5)


@pytest.mark.rule("MON-60", "SDK-13")
def test_without_await_it_is_the_same(tmp_path: Path, spans: Spans) -> None:
    traced = Tracing(spans.provider, parent=True)
    with brokerd.sync.connect(f"file:{tmp_path}/shop.db", service="shop", tracing=traced) as bk:
        bk.declare(orders, service="shop")
        bk.declare(orders, service="warehouse", target=True)
        with bk.dialog("warehouse", orders) as dialog:
            dialog.send(Order("A1"))
            for delivery in bk.deliveries("warehouse_q", contracts=[orders]):
                with delivery:
                    delivery.send(Packed("A1"))
                break
            assert dialog.receive(Packed, timeout=30) == Packed("A1")
    sent, handled = spans.one("send warehouse"), spans.one("process warehouse")
    assert parent(handled) == identity(sent)[1]
