"""The SDK without `await`: `with brokerd.sync.connect(…) as bk` (SDK-13).

Reads:  nothing itself.     Calls: the classes of the same names, on a loop in a private thread.
Never:  shares its loop with the caller, or waits for ever because of misuse, which raises an error
        (BI-R8).
Any number of threads may share one session; a process made by fork must connect again.
Each class is the `Facade` of its twin, the asynchronous class of the same name, and has no verb of
its own. To add a verb, write `verb = same(Twin.verb)`; name, arguments and docstring are those of
the twin.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from brokerd.app import deliveries as _deliveries
from brokerd.app.contract import Contract
from brokerd.app.dialog import Dialog as AsyncDialog
from brokerd.app.pool import Receipt as AsyncReceipt
from brokerd.app.session import Session as AsyncSession
from brokerd.app.tracing import Tracing
from brokerd.client.admin import Admin as AsyncAdmin
from brokerd.client.connecting import Connecting, Options
from brokerd.client.groups import LockedGroup as AsyncLockedGroup
from brokerd.client.messages import Message
from brokerd.client.outcomes import Park, Retry
from brokerd.client.savepoint import Savepoint as AsyncSavepoint
from brokerd.client.transaction import Transaction as AsyncTransaction
from brokerd.connecting import connect as _connect
from brokerd.errors import ConnectionLost, InvalidState
from brokerd.ids import GroupId
from brokerd.protocol.headers import Headers

__all__ = ["Delivery", "Dialog", "Receipt", "Session", "Transaction", "connect"]

T = TypeVar("T")
P = ParamSpec("P")
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Thread:
    """A thread that only runs an event loop, for the process that started it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self.closed = False
        self._thread = threading.Thread(target=self._run, name="brokerd-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop of the thread and return its result.

        If the wait for the result is interrupted, `work` is cancelled.

        Raises:
            InvalidState: the caller's thread runs an event loop, or the process was forked since.
            ConnectionLost: the session is closed.
            BrokerError: an error of `work`.
        """
        try:
            self._check()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread.

        Raises: nothing.
        """
        self.closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise InvalidState("this session belongs to the parent process: connect after fork")
        if self.closed or sys.is_finalizing() or not self._thread.is_alive():
            raise ConnectionLost("the session is closed", hint="connect again")
        if _loop_runs_here():
            raise InvalidState("inside a running event loop use brokerd.connect, not brokerd.sync")


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Facade(Generic[A_co]):
    """A blocking stand-in for an asynchronous object, its twin, whose loop runs in `thread`."""

    def __init__(self, thread: Thread, twin: A_co) -> None:
        self.thread = thread
        self._twin = twin

    @property
    def twin(self) -> A_co:
        """The asynchronous object behind this one, which only its own loop may touch."""
        return self._twin


def same(
    verb: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[A], P], T]:
    """Return the blocking form of an asynchronous verb, as a method of the facade.

    Raises: nothing.
    """

    @wraps(verb)
    def call(facade: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade.thread.call(verb(facade.twin, *args, **kwargs))

    return call


class Transaction(Facade[AsyncTransaction]):
    """A transaction; see the asynchronous class of this name."""

    def __enter__(self) -> Self:
        """Return the transaction; nothing is sent to the daemon yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; roll back if the block ended with an exception.

        Raises:
            BrokerError: an error that `commit` names.
        """
        self.thread.call(self.twin.__aexit__(kind, error, trace))

    begin_dialog = same(AsyncTransaction.begin_dialog)
    post_one = same(AsyncTransaction.post_one)
    send = same(AsyncTransaction.send)
    end = same(AsyncTransaction.end)
    set_timer = same(AsyncTransaction.set_timer)
    resend_pending = same(AsyncTransaction.resend_pending)
    state = same(AsyncTransaction.state)
    set_state = same(AsyncTransaction.set_state)
    receive = same(AsyncTransaction.receive)
    get_group = same(AsyncTransaction.get_group)
    move = same(AsyncTransaction.move)
    commit = same(AsyncTransaction.commit)

    def savepoint(self) -> "Savepoint":
        """Return a block, to be entered with `with`, that can be undone alone.

        Raises: nothing.
        """
        return Savepoint(self.thread, self.twin.savepoint())

    def rollback(self, outcome: Retry | Park | None = None, *, counts: bool = True) -> None:
        """Undo everything; an exception in the block does the same.

        The arguments are those of the asynchronous method of this name.

        Raises:
            InvalidArgument: `outcome` is neither a `Retry` nor a `Park`.
            ConnectionLost: the session is closed.
            InvalidState: this thread runs an event loop, or the process was forked since.
        """
        self.thread.call(_run(partial(self.twin.rollback, outcome, counts=counts)))


class Savepoint(Facade[AsyncSavepoint]):
    """A part of a transaction that can be undone alone; see the asynchronous class of this name."""

    def __enter__(self) -> Self:
        """Set the savepoint: one round trip, in which errors of earlier verbs surface."""
        self.thread.call(self.twin.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep the work of the block if all of it succeeded; otherwise undo it."""
        self.thread.call(self.twin.__aexit__(kind, error, trace))

    undo = same(AsyncSavepoint.undo)


class LockedGroup(Facade[AsyncLockedGroup]):
    """A transaction that begins by locking one group; see the asynchronous class of this name."""

    def __enter__(self) -> Self:
        """Lock the group, and return this object."""
        self.thread.call(self.twin.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; roll back if the block ended with an exception."""
        self.thread.call(self.twin.__aexit__(kind, error, trace))

    @property
    def group_id(self) -> GroupId:
        """Id of the group."""
        return self.twin.group_id

    @property
    def tx(self) -> Transaction:
        """The transaction, for all other verbs."""
        return Transaction(self.thread, self.twin.tx)

    @property
    def state(self) -> bytes | None:
        """State of the group, as read under the lock or set since; None = it has none."""
        return self.twin.state

    set_state = same(AsyncLockedGroup.set_state)


class Receipt(Facade[AsyncReceipt]):
    """The result of `post`; see the asynchronous class of this name."""

    processed = same(AsyncReceipt.processed)


class Dialog(Facade[AsyncDialog]):
    """A dialog, to be used with `with`; see the asynchronous class of this name."""

    def __enter__(self) -> Self:
        """Return the dialog, which begins with its first send."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End this side of the dialog, with an error if an exception leaves the block."""
        self.thread.call(self.twin.__aexit__(kind, error, trace))

    end = same(AsyncDialog.end)

    @property
    def headers(self) -> Headers:
        """Headers of the message that was received last; empty if it had none."""
        return self.twin.headers

    def send(
        self, value: object, *, headers: Headers | None = None, tx: Transaction | None = None
    ) -> None:
        """Send a value; it is durable when this returns, or with the commit of `tx`.

        Raises:
            BrokerError: an error that the asynchronous method of this name names.
        """
        inner = None if tx is None else tx.twin
        self.thread.call(self.twin.send(value, headers=headers, tx=inner))

    def receive(
        self,
        kinds: Any = object,  # noqa: ANN401  # a union is not a type
        *,
        timeout: float | timedelta | None = None,
        tx: Transaction | None = None,
    ) -> Any:  # noqa: ANN401
        """Return the next message of this dialog, as a value of one of the types in `kinds`.

        The arguments are those of the asynchronous method of this name.

        Raises:
            BrokerError: an error that the asynchronous method of this name names.
        """
        inner = None if tx is None else tx.twin
        return self.thread.call(self.twin.receive(kinds, timeout=timeout, tx=inner))


class Delivery(Facade[_deliveries.Delivery]):
    """One message and its transaction; see the asynchronous class of this name."""

    def __enter__(self) -> Self:
        """Return the delivery itself."""
        self.twin._enter_span()  # in this thread, whose code handles the message
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Commit; after an exception roll back, so that the message is received again."""
        try:
            return self.thread.call(self.twin._finish(kind, error, trace))
        finally:
            self.twin._leave_span(kind, error, trace)

    @property
    def message(self) -> Message:
        """The message as it was received."""
        return self.twin.message

    @property
    def headers(self) -> Headers:
        """The headers of the message; empty if it has none (SND-26)."""
        return self.twin.headers

    @property
    def tx(self) -> Transaction:
        """The transaction of the message."""
        return Transaction(self.thread, self.twin.tx)

    def value(self) -> object:
        """Return the body as a value of the type that the contract has for it.

        Raises:
            ValueError: the body is not a value of that type.
            InvalidArgument, UnexpectedMessage: no type is known for the message.
        """
        return self.twin.value()

    send = same(_deliveries.Delivery.send)
    end = same(_deliveries.Delivery.end)
    answer = same(_deliveries.Delivery.answer)
    state = same(_deliveries.Delivery.state)
    set_state = same(_deliveries.Delivery.set_state)


class Admin(Facade[AsyncAdmin]):
    """The verbs of an administrator, `session.admin`; see the asynchronous class of this name."""

    release_group = same(AsyncAdmin.release_group)
    discard_group = same(AsyncAdmin.discard_group)
    end_group = same(AsyncAdmin.end_group)
    edit_group = same(AsyncAdmin.edit_group)
    cure_queue = same(AsyncAdmin.cure_queue)
    drain_queue = same(AsyncAdmin.drain_queue)
    purge_queue = same(AsyncAdmin.purge_queue)
    enable = same(AsyncAdmin.enable)
    disable = same(AsyncAdmin.disable)
    error_conversations = same(AsyncAdmin.error_conversations)
    new_broker = same(AsyncAdmin.new_broker)
    clean_up = same(AsyncAdmin.clean_up)
    clean_up_endpoints = same(AsyncAdmin.clean_up_endpoints)
    backup = same(AsyncAdmin.backup)
    alter_endpoint = same(AsyncAdmin.alter_endpoint)
    retry_destination = same(AsyncAdmin.retry_destination)
    confirm_clock = same(AsyncAdmin.confirm_clock)
    hand_over = same(AsyncAdmin.hand_over)
    forget_broker = same(AsyncAdmin.forget_broker)
    explain_route = same(AsyncAdmin.explain_route)
    ping = same(AsyncAdmin.ping)
    timeline = same(AsyncAdmin.timeline)
    grant = same(AsyncAdmin.grant)
    revoke = same(AsyncAdmin.revoke)
    who_can = same(AsyncAdmin.who_can)
    install_principal = same(AsyncAdmin.install_principal)
    revoke_principal = same(AsyncAdmin.revoke_principal)
    own_certificates = same(AsyncAdmin.own_certificates)
    make_certificates = same(AsyncAdmin.make_certificates)
    switch_certificates = same(AsyncAdmin.switch_certificates)
    rotate_master_key = same(AsyncAdmin.rotate_master_key)
    drop_certificate = same(AsyncAdmin.drop_certificate)
    replace_master_key = same(AsyncAdmin.replace_master_key)
    invite_peer = same(AsyncAdmin.invite_peer)
    await_pairing = same(AsyncAdmin.await_pairing)
    cancel_pairing = same(AsyncAdmin.cancel_pairing)
    join_peer = same(AsyncAdmin.join_peer)


class Session(Facade[AsyncSession]):
    """A client of one broker; see the asynchronous class of this name.

    Every method may also raise `InvalidState` in a thread that runs an event loop, or in a process
    forked since, and `ConnectionLost` once the session is closed.
    """

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
        self.close()

    def close(self) -> None:
        """Close the connection and end the private thread. A second call does nothing.

        Raises:
            InvalidState: this thread runs an event loop, or the process was forked since.
        """
        if self.thread.closed:
            return
        self.thread.call(self.twin.close())
        self.thread.stop()

    def transaction(self, *, inspect: bool = False) -> Transaction:
        """Return a transaction, to be used with `with`; `inspect`: it always rolls back (PSN-12).

        Raises: nothing.
        """
        return Transaction(self.thread, self.twin.transaction(inspect=inspect))

    def group(self, group: bytes) -> LockedGroup:
        """Return a transaction that begins by locking a group, to be entered with `with`.

        Raises:
            InvalidArgument: `group` is not 16 bytes.
        """
        return LockedGroup(self.thread, self.twin.group(group))

    @property
    def open_transactions(self) -> int:
        """Number of transactions that the daemon holds open for this session."""
        return self.twin.open_transactions

    def browse(self, queue: str, *, bodies: bool = True) -> Iterator[Message]:
        """Yield all messages in a queue in the order of arrival, without locks, page by page.

        Raises:
            BrokerError: an error that the asynchronous method of this name names.
        """
        after: tuple[int, int] | None = None
        while True:
            page = self.browse_page(queue, after, bodies=bodies)
            yield from page.messages
            if page.after is None:
                return
            after = page.after

    @property
    def admin(self) -> Admin:
        """The verbs of an administrator, such as clean-up and backups (DLG-23)."""
        return Admin(self.thread, self.twin.admin)

    def dialog(
        self,
        to_service: str,
        contract: Contract | str | None = None,
        **options: Any,  # noqa: ANN401  # those of the twin
    ) -> Dialog:
        """Return a dialog, to be used with `with`; it begins with the first send.

        The options are those of the asynchronous method of this name.

        Raises:
            BrokerError: an error that the asynchronous method of this name names.
        """
        return Dialog(self.thread, self.twin.dialog(to_service, contract, **options))

    def post(
        self,
        to_service: str,
        value: object,
        *,
        key: str = "",
        contract: Contract | None = None,
        service: str | None = None,
    ) -> Receipt:
        """Send a value one way and return a receipt; durable when this returns.

        The arguments are those of the asynchronous method of this name.

        Raises:
            BrokerError: an error that the asynchronous method of this name names.
        """
        posted = self.twin.post(to_service, value, key=key, contract=contract, service=service)
        return Receipt(self.thread, self.thread.call(posted))

    def post_many(
        self,
        to_service: str,
        values: Iterable[tuple[str, object]],
        *,
        contract: Contract | None = None,
        service: str | None = None,
    ) -> list[Receipt]:
        """Post several values, each with its key, in one commit: all or none.

        Return a receipt for each value.

        Raises:
            BrokerError: an error that the asynchronous method of this name names.
        """
        posted = self.twin.post_many(to_service, values, contract=contract, service=service)
        return [Receipt(self.thread, each) for each in self.thread.call(posted)]

    def deliveries(self, queue: str, **options: Any) -> Iterator[Delivery]:  # noqa: ANN401
        """Yield the messages of a queue: `for m in ...: with m: ...`.

        The options are those of the asynchronous method of this name.

        Raises:
            BrokerError: an error that the asynchronous method of this name names.
        """
        found = self.thread.call(_run(partial(self.twin.deliveries, queue, **options)))
        while (one := self.thread.call(_next(found))) is not None:
            yield Delivery(self.thread, one)

    declare = same(AsyncSession.declare)
    begin_dialog = same(AsyncSession.begin_dialog)
    post_one = same(AsyncSession.post_one)
    send = same(AsyncSession.send)
    end = same(AsyncSession.end)
    set_timer = same(AsyncSession.set_timer)
    resend_pending = same(AsyncSession.resend_pending)
    receive = same(AsyncSession.receive)
    move = same(AsyncSession.move)
    browse_page = same(AsyncSession.browse_page)
    status = same(AsyncSession.status)
    apply = same(AsyncSession.apply)
    objects = same(AsyncSession.objects)
    create = same(AsyncSession.create)
    alter = same(AsyncSession.alter)
    drop = same(AsyncSession.drop)
    transmission_status = same(AsyncSession.transmission_status)
    view = same(AsyncSession.view)
    view_page = same(AsyncSession.view_page)


def connect(
    address: str | None = None,
    *,
    broker: str | None = None,
    service: str | None = None,
    tracing: Tracing | None = None,
    **options: Unpack[Options],
) -> Session:
    """Connect and return a session; the arguments are those of `brokerd.connect`.

    Raises:
        BrokerError: an error that `brokerd.connect` names.
        InvalidState: this thread runs an event loop; use `brokerd.connect`.
    """
    thread = Thread()
    try:
        connecting = _connect(address, broker=broker, service=service, tracing=tracing, **options)
        session = thread.call(_open(connecting))
    except BaseException:
        thread.stop()
        raise
    return Session(thread, session)


async def _run(action: Callable[[], T]) -> T:
    """Run an action that does not wait, on the loop that runs this coroutine."""
    return action()


async def _next(found: AsyncIterator[T]) -> T | None:
    return await anext(found, None)


async def _open(connecting: Connecting[AsyncSession]) -> AsyncSession:
    return await connecting
