"""The same without await, in a file of this process: the same names, the same errors (SDK-13)."""

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import brokerd
from brokerd import sync
from brokerd.app import deliveries, dialog, pool
from brokerd.app.session import Session
from brokerd.client.session import Session as VerbSession
from brokerd.client.transaction import Transaction
from brokerd.errors import (
    InvalidState,
    NotInContract,
    ReceiveTimeout,
    RemoteError,
    WouldWaitForever,
)
from tests.integration.sdk.shop import Cancel, Order, Packed, Rejected, orders

pytestmark = pytest.mark.rule("SDK-13")


@pytest.fixture
def bk(tmp_path: Path) -> Iterator[sync.Session]:
    with sync.connect(f"file:{tmp_path}/shop.db", service="shop") as session:
        session.declare(orders, service="shop")
        session.declare(orders, service="warehouse", target=True)
        yield session


def answer(bk: sync.Session, count: int) -> None:
    """Pack so many orders; what is cancelled is an error."""
    for m in bk.deliveries("warehouse_q", wait=10):
        with m:
            value = m.value()
            if isinstance(value, Order):
                m.send(Packed(value.sku))
                assert m.state() is None
                m.set_state(value.sku.encode())
            else:
                m.end(7, "too late")
            assert m.tx.twin.is_open
            assert m.message.service == "warehouse"
        count -= 1
        if not count:
            return


def test_ask_answer_and_post(bk: sync.Session) -> None:
    worker = threading.Thread(target=answer, args=(bk, 3))
    worker.start()
    with bk.dialog("warehouse", orders) as d:
        d.send(Order("A1"))
        assert d.receive(Packed | Rejected, timeout=30) == Packed("A1")
        d.send(Cancel("A1"))
        with pytest.raises(RemoteError, match="too late"):
            d.receive(timeout=30)
    receipt = bk.post("warehouse", Order("A2"), key="k")
    worker.join()
    for m in bk.deliveries("warehouse_q", wait=1):
        raise AssertionError(f"{m.message} is not the program's")
    with pytest.raises(ReceiveTimeout):
        receipt.processed(0.2)
    for _ in bk.deliveries("warehouse_q", wait=1):
        raise AssertionError("the end of a stream is not the program's")
    receipt.processed(30)
    many = [("a", Order("1")), ("b", Order("2"))]
    assert len(bk.post_many("warehouse", many)) == 2


def test_the_same_errors(bk: sync.Session) -> None:
    with bk.dialog("warehouse", orders) as d:
        with pytest.raises(NotInContract):
            d.send(3)
        with bk.transaction() as tx:
            d.send(Order("A1"), tx=tx)
            with pytest.raises(WouldWaitForever):
                d.receive(tx=tx)
        with bk.transaction() as tx, pytest.raises(ReceiveTimeout):
            d.receive(timeout=0.1, tx=tx)

    def fails() -> None:
        with bk.dialog("warehouse", orders) as d:
            d.send(Order("A1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    received = bk.receive("warehouse_q", autocommit=True)
    received += bk.receive("warehouse_q", autocommit=True)
    assert any(one.is_error for one in received)


async def test_not_inside_a_running_loop(tmp_path: Path) -> None:
    with pytest.raises(InvalidState, match=r"use brokerd\.connect"):
        sync.connect(f"file:{tmp_path}/shop.db")


@pytest.mark.parametrize(
    ("facade", "twin", "without"),
    [
        (
            sync.Session,
            Session,
            {"submit_send", "room", "clock", "closed", "service"}
            | {"welcome", "pool", "new_pool", "queue_of"},
        ),
        (
            sync.Transaction,
            Transaction,
            {"act_for", "ask_commit", "send_alone", "receive_alone", "is_open"},
        ),
        (sync.Dialog, dialog.Dialog, set()),
        (sync.Delivery, deliveries.Delivery, {"body", "dialog", "group"}),
        (sync.Receipt, pool.Receipt, {"handle"}),
    ],
)
def test_the_same_names(facade: type[Any], twin: type[Any], without: set[str]) -> None:
    """`without`: what a program of the facade does without, on purpose."""
    public = {name for name in dir(twin) if not name.startswith("_")}
    assert sorted(public - set(dir(facade))) == sorted(without)
    for name in public & set(dir(facade)):
        verb, other = getattr(facade, name), getattr(twin, name)
        if inspect.iscoroutinefunction(other):
            assert not inspect.iscoroutinefunction(verb)
            assert inspect.getdoc(verb)


@pytest.mark.rule("SDK-1")
def test_every_object_gives_the_verbs(bk: sync.Session) -> None:
    assert issubclass(brokerd.Session, VerbSession)
    with bk.dialog("warehouse", orders) as d:
        d.send(Order("A1"))
        assert d.twin.handle is not None
        bk.send(d.twin.handle, b'{"sku":"A2"}', "Order")
    got = [m for m in bk.receive("warehouse_q", autocommit=True) if not m.is_end]
    assert [orders.read(m) for m in got] == [Order("A1"), Order("A2")]
