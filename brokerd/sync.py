"""Everything without `await`: `with brokerd.sync.connect(…) as bk` (SDK-13).

Reads:  nothing itself.     Calls: client.sync, and the comfortable layer through it.
Never:  has a verb of its own: each is its twin's with the wait in it.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from brokerd.app import deliveries as _deliveries
from brokerd.app.contract import Contract
from brokerd.app.dialog import Dialog as AsyncDialog
from brokerd.app.pool import Receipt as AsyncReceipt
from brokerd.app.session import Session as AsyncSession
from brokerd.client.messages import Message
from brokerd.client.session import Connecting, Options
from brokerd.client.sync import Facade, Thread, Transaction, later, same
from brokerd.client.sync import Session as VerbSession
from brokerd.connecting import connect as _connect

__all__ = ["Delivery", "Dialog", "Receipt", "Session", "Transaction", "connect"]

_T = TypeVar("_T")


class Receipt(Facade[AsyncReceipt]):
    """What `post` returns; see the class of the same name without `sync`."""

    processed = same(AsyncReceipt.processed)


class Dialog(Facade[AsyncDialog]):
    """A dialog, to be used with `with`; see the class of the same name without `sync`."""

    def __enter__(self) -> Self:
        """Nothing is begun before the first send."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End this side; with an error if an exception leaves the block."""
        self.thread.call(self.twin.__aexit__(kind, error, trace))

    end = same(AsyncDialog.end)

    def send(self, value: object, *, tx: Transaction | None = None) -> None:
        """Send a value; durable when this returns, or with the commit of `tx`.

        Raises:
            BrokerError: what the same method without `sync` names.
        """
        self.thread.call(self.twin.send(value, tx=None if tx is None else tx.twin))

    def receive(
        self,
        kinds: Any = object,  # noqa: ANN401  # a union is not a type
        *,
        timeout: float | timedelta | None = None,
        tx: Transaction | None = None,
    ) -> Any:  # noqa: ANN401
        """Return the next message of this dialog, as a value of one of these types.

        Raises:
            BrokerError: what the same method without `sync` names.
        """
        inner = None if tx is None else tx.twin
        return self.thread.call(self.twin.receive(kinds, timeout=timeout, tx=inner))


class Delivery(Facade[_deliveries.Delivery]):
    """One message and its transaction; see the class of the same name without `sync`."""

    def __enter__(self) -> Self:
        """The delivery itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Commit; with an exception roll back, so that the message comes again."""
        return self.thread.call(self.twin.__aexit__(kind, error, trace))

    @property
    def message(self) -> Message:
        """Return the message as it came."""
        return self.twin.message

    @property
    def tx(self) -> Transaction:
        """Return the transaction of the message."""
        return Transaction(self.thread, self.twin.tx)

    def value(self) -> object:
        """Return the body as the type of the contract.

        Raises:
            ValueError: it is not of that type.
            InvalidArgument, UnexpectedMessage: no type is known for the message.
        """
        return self.twin.value()

    send = same(_deliveries.Delivery.send)
    end = same(_deliveries.Delivery.end)
    answer = same(_deliveries.Delivery.answer)
    state = same(_deliveries.Delivery.state)
    set_state = same(_deliveries.Delivery.set_state)


class Session(VerbSession[AsyncSession]):
    """A client of one broker; see the class of the same name without `sync`."""

    declare = same(AsyncSession.declare)

    def dialog(
        self,
        to_service: str,
        contract: Contract | str | None = None,
        **options: Any,  # noqa: ANN401  # those of the twin
    ) -> Dialog:
        """Return a dialog, to be used with `with`; the options are those without `sync`.

        Raises:
            BrokerError: what the same method without `sync` names.
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
        """Send one way and return a receipt; durable when this returns.

        Raises:
            BrokerError: what the same method without `sync` names.
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

        Raises:
            BrokerError: what the same method without `sync` names.
        """
        posted = self.twin.post_many(to_service, values, contract=contract, service=service)
        return [Receipt(self.thread, each) for each in self.thread.call(posted)]

    def deliveries(self, queue: str, **options: Any) -> Iterator[Delivery]:  # noqa: ANN401
        """Yield what comes on a queue: `for m in ...: with m: ...`.

        The options are those without `sync`.

        Raises:
            BrokerError: what the same method without `sync` names.
        """
        found = self.thread.call(later(_of(self.twin.deliveries, queue, **options)))
        while (one := self.thread.call(_next(found))) is not None:
            yield Delivery(self.thread, one)


def _of(function: Callable[..., _T], *args: object, **options: object) -> Callable[[], _T]:
    return lambda: function(*args, **options)


def connect(
    address: str | None = None,
    *,
    broker: str | None = None,
    service: str | None = None,
    **options: Unpack[Options],
) -> Session:
    """Connect and return a session; the arguments are those of `brokerd.connect`.

    Raises:
        BrokerError: what `brokerd.connect` names.
        InvalidState: this thread runs an event loop; use `brokerd.connect`.
    """
    thread = Thread()
    try:
        connecting = _connect(address, broker=broker, service=service, **options)
        session = thread.call(_open(connecting))
    except BaseException:
        thread.stop()
        raise
    return Session(thread, session)


async def _next(found: AsyncIterator[_T]) -> _T | None:
    return await anext(found, None)


async def _open(connecting: Connecting[AsyncSession]) -> AsyncSession:
    return await connecting
