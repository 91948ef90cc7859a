"""Workers: programs that read the queues of a simulated network and answer.

`warehouse`, `depot` and `audit` are also handlers for activation, by `module:function`. As clients
they run for ever.
Reads:  its queue, through the SDK.      Calls: nothing of the instance.
Never:  keeps state between two transactions but that of the group, and reasons of failures.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from random import Random
from typing import Final, Protocol

from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.clock import Clock
from brokerd.errors import BrokerError
from tests.engine.simulation.objects import CONTRACT
from tests.engine.simulation.recording import (
    INITIATOR,
    TARGET,
    Label,
    make_body,
    make_headers,
    read_label,
)

IDLE: Final = 2.0
"""Seconds without a message after which an activated reader ends (ACT-25)."""
HANDLE: Final = 16
SLOW: Final = 0.1
"""Probability that a worker pauses while the group of its messages is locked."""


class Crew(Protocol):
    """The world, as workers see it."""

    rng: Random

    @property
    def clock(self) -> Clock:
        """Virtual time."""
        ...

    def fresh_uid(self, writer: str) -> str:
        """Return a uid that was never used."""
        ...

    @property
    def wait(self) -> float:
        """Longest wait for messages, in seconds."""
        ...

    def body_size(self) -> int:
        """Draw the size of a body, in bytes."""
        ...

    def rolls_back(self) -> bool:
        """Draw whether to roll a transaction back on purpose."""
        ...

    def undoes(self) -> bool:
        """Draw whether to do something below a savepoint and undo it."""
        ...

    def fails(self, name: str) -> bool:
        """Draw whether a handler fails at this failpoint (HK-6)."""
        ...

    def dialog_of(self, label: Label, conversation_id: bytes) -> str:
        """Return the name of the dialog of a message."""
        ...

    def is_loose(self, dialog: str) -> bool:
        """Return whether the dialog may end before all its messages are received."""
        ...

    def problem(self, text: str) -> None:
        """Report something that must not happen."""
        ...


CREW: ContextVar[Crew] = ContextVar("crew")


class OnPurpose(Exception):
    """The error that rolls a transaction, or a part below a savepoint, back on purpose."""


async def undone(
    crew: Crew, tx: Transaction, what: Callable[[], Coroutine[object, object, object]]
) -> None:
    """Do something below a savepoint and undo it, sometimes."""
    if crew.undoes():
        with suppress(OnPurpose):
            async with tx.savepoint():
                await what()
                raise OnPurpose


def change_mind(crew: Crew) -> None:
    """Roll the transaction back on purpose, sometimes."""
    if crew.rolls_back():
        raise OnPurpose


async def warehouse(session: Session) -> None:
    """Forward orders to the depot, and its replies to the shop."""
    await _handle(session, "warehouse")


async def depot(session: Session) -> None:
    """Answer orders."""
    await _handle(session, "depot")


async def audit(session: Session) -> None:
    """Answer orders that come from the worker's own broker."""
    await _handle(session, "audit")


async def _handle(session: Session, service: str) -> None:
    if CREW.get().fails("activation.start_fails"):
        raise OnPurpose
    await work(session, service, idle=IDLE)


async def work(session: Session, service: str, *, idle: float | None = None) -> None:
    """Serve a queue until it has been empty for `idle` seconds; for ever if that is None.

    Errors that a retry may cure are retried; after others the group is in `refused`.
    """
    crew = CREW.get()
    refused: dict[bytes, str] = {}
    while not session.closed:
        try:
            got = await _once(crew, session, service, idle=idle, refused=refused)
            if not got and idle is not None:
                return
        except OnPurpose:
            continue
        except BrokerError as error:
            if error.code == "no_such_tx" and idle is not None:
                return
            if error.retryable or error.code == "queue_disabled":
                await _rest(crew, 0.2)


async def _once(
    crew: Crew, session: Session, service: str, *, idle: float | None, refused: dict[bytes, str]
) -> bool:
    """Run one transaction; return whether it received anything and the worker may continue.

    `refused`: the groups whose messages could not be answered, with the reason. When such a group
    is received again, its dialogs are ended instead.
    """
    tx = session.transaction()
    group, leaves = b"", False
    try:
        many = crew.rng.choice((1, 2, 100))
        await undone(crew, tx, lambda: tx.receive(f"{service}_q", many))
        messages = await tx.receive(f"{service}_q", many, wait=idle or crew.wait)
        if not messages:
            return False
        group = messages[0].group_id
        if crew.rng.random() < SLOW:
            await _rest(crew, crew.rng.uniform(0.01, 2.0))
        why = refused.pop(group, "")
        if why:
            await _drop(crew, tx, messages, why)
        else:
            await undone(crew, tx, lambda: _serve(crew, tx, messages, service))
            await _serve(crew, tx, messages, service)
        leaves = idle is not None and crew.fails("handler.exit_before_commit")
        if leaves:
            return False
        change_mind(crew)
        await tx.commit()
    except BrokerError as error:
        if group and not error.retryable and error.code != "queue_disabled":
            refused[group] = f"{error.code}: {error.message}"
        raise
    finally:
        if not leaves:  # a handler that leaves has its transaction undone by the session's end
            tx.rollback()  # has no effect after a commit
    return True


async def _serve(crew: Crew, tx: Transaction, messages: list[Message], service: str) -> None:
    if service == "warehouse":
        await _pass_on(crew, tx, messages)
    else:
        await _answer(crew, tx, messages, service)


async def _answer(crew: Crew, tx: Transaction, messages: list[Message], service: str) -> None:
    for message in messages:
        if message.is_end or message.is_error:
            await tx.end(message.handle)
        elif message.message_type == "Order":
            await _send(
                crew,
                tx,
                message.handle,
                Label(crew.fresh_uid(service), _dialog_of(crew, message), TARGET),
            )


async def _pass_on(crew: Crew, tx: Transaction, messages: list[Message]) -> None:
    """Forward orders to the depot and replies to the shop.

    The state of a group is two handles: of the dialog from the shop, and of the one to the depot.
    The second is begun with the first order, in the group of the first dialog, so that both share
    one lock; it is all zeros once the depot's side has failed and has been ended.
    """
    group = messages[0].group_id
    state = await tx.state(group) or b""
    from_shop, to_depot = state[:HANDLE], state[HANDLE:]
    for message in messages:
        if message.is_end or message.is_error:
            if state and message.handle == to_depot and message.is_error:
                await tx.end(to_depot)
                await tx.set_state(group, from_shop + bytes(HANDLE))
                continue
            await tx.end(message.handle)
            if any(to_depot) and message.handle == from_shop:
                await tx.end(to_depot)
            await tx.set_state(group, None)
            return
        if message.message_type == "Order":
            dialog = _dialog_of(crew, message)
            if not to_depot:
                from_shop = message.handle
                to_depot = await tx.begin_dialog(
                    "warehouse", "depot", CONTRACT, related_group=group
                )
                state = from_shop + to_depot
                await tx.set_state(group, state)
            if any(to_depot):
                await _send(
                    crew, tx, to_depot, Label(crew.fresh_uid("warehouse"), f"{dialog}+", INITIATOR)
                )
        elif message.message_type == "Reply":
            dialog = _dialog_of(crew, message).removesuffix("+")
            await _send(crew, tx, from_shop, Label(crew.fresh_uid("warehouse"), dialog, TARGET))


async def _drop(crew: Crew, tx: Transaction, messages: list[Message], why: str) -> None:
    """End the dialogs of messages that could not be answered because the far side is gone.

    It is a problem if the dialog is not loose: then nothing could have ended it.
    """
    for message in messages:
        label = read_label(message.body)
        if label is None or message.is_error:
            continue
        dialog = _dialog_of(crew, message)
        if not crew.is_loose(dialog):
            crew.problem(f"{dialog} is whole, yet {label.uid} could not be answered: {why}")
    for handle in dict.fromkeys(message.handle for message in messages):
        await tx.end(handle)


async def _send(crew: Crew, tx: Transaction, handle: bytes, label: Label) -> None:
    kind = "Order" if label.side == INITIATOR else "Reply"
    body = make_body(label, crew.body_size())
    await tx.send(handle, body, kind, headers=make_headers(body))


def _dialog_of(crew: Crew, message: Message) -> str:
    label = read_label(message.body)
    assert label is not None, "orders and replies have a label"
    return crew.dialog_of(label, message.conversation_id)


async def _rest(crew: Crew, seconds: float) -> None:
    await crew.clock.sleep_until(crew.clock.monotonic() + seconds)
