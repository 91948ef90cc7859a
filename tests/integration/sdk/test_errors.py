"""Every error that can be met today is provoked through the SDK, and reads well (SDK-17)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import brokerd
from brokerd import ABSENT, errors
from brokerd.app.session import Session
from brokerd.client import session
from brokerd.errors import BrokerError, InvalidArgument, RemoteError
from brokerd.model import END_DIALOG
from brokerd.testing.rig import RigInstance
from tests.integration.sdk.shop import declare

NOWHERE = b"no such identity"
Provoke = Callable[[Session], Awaitable[object]]


async def begun(bk: Session, **options: Any) -> bytes:
    return await bk.begin_dialog("shop", "warehouse", "orders/v1", **options)


async def sent(bk: Session) -> bytes:
    handle = await begun(bk)
    await bk.send(handle, b'{"sku":"A1"}', "Order")
    return handle


async def no_service(bk: Session) -> None:
    await bk.begin_dialog("Shop", "warehouse")


async def no_contract(bk: Session) -> None:
    await bk.begin_dialog("shop", "warehouse", "orders/v2")


async def no_queue(bk: Session) -> None:
    await bk.receive("shop_queue", autocommit=True)


async def no_conversation(bk: Session) -> None:
    await bk.send(NOWHERE, b"", "Order")


async def one_of_many_is_unknown(bk: Session) -> None:
    await bk.send([await begun(bk), NOWHERE], b"", "Order")


async def no_group(bk: Session) -> None:
    await bk.receive("shop_q", group=NOWHERE, autocommit=True)


async def sending_after_the_end(bk: Session) -> None:
    handle = await sent(bk)
    (came,) = await bk.receive("warehouse_q", autocommit=True)
    await bk.end(came.handle)
    await bk.send(handle, b"{}", "Order")


async def too_short_a_life(bk: Session) -> None:
    await begun(bk, lifetime=0)


async def no_message_type(bk: Session) -> None:
    await bk.send(await begun(bk), b"", "order")


async def not_in_contract(bk: Session) -> None:
    await bk.send(await begun(bk), b"", "DEFAULT")


async def wrong_direction(bk: Session) -> None:
    await bk.send(await begun(bk), b"", "Packed")


async def reserved(bk: Session) -> None:
    await bk.send(await begun(bk), ABSENT, END_DIALOG)


async def null_body(bk: Session) -> None:
    await bk.send(await begun(bk), None, "Order")  # type: ignore[arg-type]  # on purpose


async def handle_twice(bk: Session) -> None:
    handle = await begun(bk)
    await bk.send([handle, handle], b"", "Order")


async def too_large(bk: Session) -> None:
    await bk.send(await begun(bk), bytes(17 * 2**20), "Order")


async def an_error_without_a_text(bk: Session) -> None:
    await bk.end(await sent(bk), 7)


async def group_of_another_service(bk: Session) -> None:
    handle = await bk.begin_dialog("warehouse", "shop", "orders/v1")
    await begun(bk, related_conversation=handle)


async def queue_is_off(bk: Session) -> None:
    await bk.apply({"broker": {"name": "main"}, "queue": [{"name": "off_q", "status": "off"}]})
    await bk.receive("off_q", autocommit=True)


async def lock_held(bk: Session) -> None:
    handle = await sent(bk)
    async with bk.transaction() as tx:
        await tx.send(handle, b"{}", "Order")
        await tx.receive("shop_q", conversation=handle)
        await bk.send(handle, b"{}", "Order")


async def deadlock(bk: Session) -> None:
    one, other = await sent(bk), await sent(bk)

    async def both(first: bytes, second: bytes) -> None:
        async with bk.transaction() as tx:
            await tx.send(first, b"{}", "Order")
            await tx.receive("shop_q", conversation=first)
            await bk.clock.sleep_until(bk.clock.monotonic() + 1)
            await tx.send(second, b"{}", "Order")
            await tx.receive("shop_q", conversation=second)

    await asyncio.gather(both(one, other), both(other, one))


async def finished(bk: Session) -> None:
    tx = bk.transaction()
    tx.rollback()
    await tx.send(NOWHERE)


async def without_saying_so(bk: Session) -> None:
    await bk.receive("shop_q")


async def too_much_at_once(bk: Session) -> None:
    handle = await begun(bk)
    async with bk.transaction() as tx:
        for _ in range(5):
            await tx.send(handle, bytes(15 * 2**20), "Order")


@pytest.mark.rule("SDK-17")
@pytest.mark.parametrize(
    ("provoke", "code", "number", "words"),
    [
        pytest.param(
            no_service,
            "service_not_found",
            8423,
            "'Shop'.*did you mean \"shop\"",
            marks=pytest.mark.rule("ERR-8423"),
        ),
        pytest.param(
            no_contract,
            "contract_not_found",
            8425,
            "'orders/v2'.*did you mean \"orders/v1\"",
            marks=pytest.mark.rule("ERR-8425"),
        ),
        (no_queue, "queue_not_found", None, "'shop_queue'.*did you mean \"shop_q\""),
        pytest.param(
            no_conversation,
            "conversation_not_found",
            8426,
            "no conversation 6e6f2073",
            marks=pytest.mark.rule("ERR-8426"),
        ),
        pytest.param(
            one_of_many_is_unknown,
            "conversation_not_found",
            8435,
            "position 1",
            marks=pytest.mark.rule("ERR-8426"),
        ),
        pytest.param(
            no_group,
            "group_not_found",
            8436,
            "on queue 'shop_q'",
            marks=pytest.mark.rule("ERR-8436"),
        ),
        pytest.param(
            sending_after_the_end,
            "invalid_state",
            None,
            "send is not allowed in state DI",
            marks=pytest.mark.rule("ERR-8427"),
        ),
        pytest.param(
            too_short_a_life,
            "invalid_lifetime",
            8411,
            "lifetime",
            marks=pytest.mark.rule("ERR-8411"),
        ),
        pytest.param(
            no_message_type,
            "message_type_not_found",
            8428,
            "'order'.*did you mean \"Order\"",
            marks=pytest.mark.rule("ERR-8428"),
        ),
        pytest.param(
            not_in_contract,
            "not_in_contract",
            8431,
            "'orders/v1' has no type 'DEFAULT'",
            marks=pytest.mark.rule("ERR-8431"),
        ),
        pytest.param(
            wrong_direction,
            "wrong_direction",
            8432,
            "'Packed'",
            marks=pytest.mark.rule("ERR-8432"),
        ),
        pytest.param(
            reserved,
            "reserved_message_type",
            None,
            END_DIALOG,
            marks=pytest.mark.rule("ERR-B1"),
        ),
        pytest.param(null_body, "null_body", 8433, "None", marks=pytest.mark.rule("ERR-8433")),
        pytest.param(
            handle_twice,
            "duplicate_handle",
            8451,
            "position 1",
            marks=pytest.mark.rule("ERR-8451"),
        ),
        pytest.param(
            too_large,
            "message_too_large",
            8459,
            "17825792 bytes",
            marks=pytest.mark.rule("ERR-8459"),
        ),
        pytest.param(
            an_error_without_a_text,
            "error_needs_code_and_text",
            8419,
            "description",
            marks=pytest.mark.rule("ERR-8419"),
        ),
        pytest.param(
            group_of_another_service,
            "group_service_mismatch",
            9610,
            "service",
            marks=pytest.mark.rule("ERR-9610"),
        ),
        pytest.param(
            queue_is_off,
            "queue_disabled",
            9617,
            "'off_q' is off",
            marks=pytest.mark.rule("ERR-9617"),
        ),
        pytest.param(
            lock_held, "lock_timeout", None, "held by client", marks=pytest.mark.rule("ERR-B1")
        ),
        pytest.param(
            deadlock, "deadlock_victim", None, "circle of waits", marks=pytest.mark.rule("ERR-B1")
        ),
        pytest.param(finished, "no_such_tx", None, "over", marks=pytest.mark.rule("ERR-B1")),
        pytest.param(
            without_saying_so,
            "invalid_argument",
            None,
            "loses messages in a crash",
            marks=pytest.mark.rule("ERR-B1"),
        ),
        pytest.param(
            too_much_at_once, "quota_exceeded", None, "bytes", marks=pytest.mark.rule("ERR-B1")
        ),
    ],
)
async def test_it_can_be_provoked_and_reads_well(
    brokerd_instance: RigInstance, provoke: Provoke, code: str, number: int | None, words: str
) -> None:
    await declare(brokerd_instance)
    with pytest.raises(BrokerError, match=words) as caught:
        await provoke(brokerd_instance.session)
    error = caught.value
    assert error.code == code
    assert number is None or error.ssb_code == number
    assert error.hint
    assert error.message


async def answer_to(bk: Session, handle: bytes) -> RemoteError:
    """The error with which a broker answers on this dialog."""
    (came,) = await bk.receive("shop_q", conversation=handle, wait=60, autocommit=True)
    assert came.error is not None
    return came.error


@pytest.mark.rule("ERR-8408", "ERR-8489", "SDK-17")
async def test_errors_that_come_on_the_dialog(brokerd_instance: RigInstance) -> None:
    await declare(brokerd_instance)
    bk = brokerd_instance.session
    refused = await bk.begin_dialog("shop", "shop", "orders/v1")
    await bk.send(refused, b"{}", "Order")
    short = await begun(bk, lifetime=2)
    await bk.send(short, b"{}", "Order")
    for handle, number, retryable in ((refused, 8408, False), (short, 8489, True)):
        error = await answer_to(bk, handle)
        assert (error.number, error.ssb_code, error.retryable) == (-number, number, retryable)
        assert error.description


@pytest.mark.rule("ERR-B3", "SDK-17")
@pytest.mark.parametrize(
    "kind",
    [
        errors.WouldWaitForever,
        errors.DialogEnded,
        errors.ReceiveTimeout,
        errors.UnexpectedMessage,
    ],
)
def test_those_of_the_comfortable_layer(kind: type[BrokerError]) -> None:
    """They are provoked in test_dialog.py."""
    error = kind()
    assert error.code == "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__)[1:]
    assert error.hint
    assert error.message


@pytest.mark.rule("SDK-17")
async def test_an_option_that_does_not_exist_is_refused_with_the_nearest() -> None:
    wrong: dict[str, Any] = {"trasing": None}
    with pytest.raises(InvalidArgument, match="no option 'trasing'; did you mean \"tracing\""):
        await brokerd.connect("unix:/nowhere", **wrong)
    wrong = {"wiat": 1}
    for address in ("unix:/nowhere", "file:/nowhere/x.db"):
        with pytest.raises(InvalidArgument, match="no option 'wiat'; did you mean \"wait\""):
            await brokerd.connect(address, **wrong)
    wrong = {"tracing": None}
    with pytest.raises(InvalidArgument, match="no option 'tracing'"):
        await session.connect("unix:/nowhere", broker="main", **wrong)
