"""Workers: what reads the queues of a simulated network and answers.

`warehouse`, `depot` and `audit` are handlers for activation as well: `module:function` of this
module. Run as clients they do the same for ever.
Reads:  its queue, through the SDK.      Calls: nothing of the instance.
Never:  keeps anything between two transactions but in the group's state.
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
from brokerd.testing.simulation.objects import CONTRACT
from brokerd.testing.simulation.recording import INITIATOR, TARGET, Label, make_body, read_label

IDLE: Final = 2.0
"""Seconds without a message after which an activated reader ends (ACT-25)."""
HANDLE: Final = 16
SLOW: Final = 0.1
"""How often a worker takes its time, with what it has received locked."""


class Crew(Protocol):
    """What workers know of their world."""

    rng: Random

    @property
    def clock(self) -> Clock:
        """Virtual time."""
        ...

    def fresh_uid(self, writer: str) -> str:
        """A name for a message that was never used."""
        ...

    @property
    def wait(self) -> float:
        """How long to wait for messages, in seconds."""
        ...

    def body_size(self) -> int:
        """How large a body should be."""
        ...

    def rolls_back(self) -> bool:
        """Whether a transaction is to be rolled back on purpose."""
        ...

    def undoes(self) -> bool:
        """Whether to do something below a savepoint and undo it."""
        ...

    def fails(self, name: str) -> bool:
        """Whether a handler fails at this place (HK-6)."""
        ...

    def dialog_of(self, label: Label, conversation_id: bytes) -> str:
        """The name of the dialog of a message."""
        ...

    def is_loose(self, dialog: str) -> bool:
        """Whether the dialog was ended by somebody before everything was read."""
        ...

    def problem(self, text: str) -> None:
        """Report something that must not happen."""
        ...


CREW: ContextVar[Crew] = ContextVar("crew")


class OnPurpose(Exception):
    """Rolls a transaction back."""


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
    """Send orders on to the depot, and its answers back to the shop."""
    await _handle(session, "warehouse")


async def depot(session: Session) -> None:
    """Answer."""
    await _handle(session, "depot")


async def audit(session: Session) -> None:
    """Answer, in the broker where the question came from."""
    await _handle(session, "audit")


async def _handle(session: Session, service: str) -> None:
    if CREW.get().fails("activation.start_fails"):
        raise OnPurpose
    await work(session, service, idle=IDLE)


async def work(session: Session, service: str, *, idle: float | None = None) -> None:
    """Serve a queue until it stays empty for so long, or for ever."""
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
    """One transaction; whether it received anything. `refused`: groups that failed before."""
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
        if not leaves:  # else the end of its session does it
            tx.rollback()  # nothing, if it committed
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
    """The state of a group: the handle of the dialog from the shop, and that to the depot."""
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
    """What could not be answered, as the other side is gone: end it."""
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
    await tx.send(handle, make_body(label, crew.body_size()), kind)


def _dialog_of(crew: Crew, message: Message) -> str:
    label = read_label(message.body)
    assert label is not None, "orders and replies have a label"
    return crew.dialog_of(label, message.conversation_id)


async def _rest(crew: Crew, seconds: float) -> None:
    await crew.clock.sleep_until(crew.clock.monotonic() + seconds)
