"""Session: the object of a program; verbs that are a transaction each, and transactions (verb map).

Reads:  arguments.     Calls: client.link, client.transaction, client.autocommit.
Never:  receives outside a transaction unless the caller accepts the loss in a crash (RCV-16).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, Unpack

import msgspec

from brokerd.client import views
from brokerd.client.admin import Admin
from brokerd.client.arguments import (
    as_wire,
    receive_args,
    wire_body,
    wire_handles,
    wire_id,
    wire_text,
    wire_wait,
)
from brokerd.client.autocommit import AutocommitReceiver
from brokerd.client.connecting import Connecting, Options, open_session
from brokerd.client.groups import LockedGroup
from brokerd.client.link import Link
from brokerd.client.messages import ABSENT, Body, Message, Page, Resent, Wait, read_page
from brokerd.client.recorder import Recorder
from brokerd.client.transaction import Transaction
from brokerd.client.views import ViewPage
from brokerd.clock import Clock
from brokerd.errors import InvalidArgument, ProtocolError
from brokerd.ids import ClientId, GroupId, Handle, IdSource
from brokerd.protocol.admin_verbs import DEFAULT_ROWS
from brokerd.protocol.client_frames import Welcome
from brokerd.telemetry.status import TransmissionStatus

DRAIN_WAIT: Final = 0.5
"""Seconds without a message after which a reader that was started by activation ends (ACT-25)."""


class Session:
    """A client of one broker. Made by `connect`; good for any number of tasks of one loop.

    Besides the errors that a verb names, every request may raise: `ConnectionLost` when the daemon
    could not be reached again for `retry` seconds; `AccessDenied` without the permission for it
    (CLP-130); `Busy` when too much is unanswered; `BrokerUnavailable` while the broker cannot be
    opened; `InternalError`. A request that changes dialogs may also raise `LockTimeout` or
    `DeadlockVictim` when another transaction holds the conversation group, `StoreFull` and
    `QuotaExceeded` when there is no room, and `OutcomeUnknown` when the connection was lost and it
    cannot be learned whether the commit took effect (REL-2).
    """

    def __init__(
        self, *, link: Link, client_id: ClientId, ids: IdSource, recorder: Recorder | None
    ) -> None:
        self._link = link
        self._ids = ids
        self._recorder = recorder
        self._clock = link.clock
        self._transactions = 0
        self._autocommit = AutocommitReceiver(
            link, self.transaction, is_recorded=recorder is not None
        )
        self.client_id = client_id
        self.drain_wait = DRAIN_WAIT
        """Seconds that an App waits here for a further message before a reader that was started by
        activation ends (ACT-25, PBT-7)."""

    async def __aenter__(self) -> Self:
        """The session itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the answers to what was asked, unless the block failed, and close.

        Raises: nothing.
        """
        if kind is None:
            await self._link.settled()
        await self.close()

    async def close(self) -> None:
        """Close the connection. Open transactions roll back, unanswered requests fail.

        Raises: nothing.
        """
        await self._link.close()

    @property
    def welcome(self) -> Welcome:
        """Return what the daemon said of itself when it was connected: instance, limits."""
        assert self._link.welcome is not None, "a session is made after the first WELCOME"
        return self._link.welcome

    @property
    def open_transactions(self) -> int:
        """Return how many transactions the daemon holds open for this session."""
        return self._link.open_transactions

    @property
    def closed(self) -> bool:
        """Return whether the session is over: no request can be made any more."""
        return self._link.dead is not None

    @property
    def clock(self) -> Clock:
        """Return the clock by which the session waits."""
        return self._clock

    # Verbs that are a transaction each.

    def transaction(self, *, inspect: bool = False) -> Transaction:
        """Return a transaction, to be entered with `async with`.

        With `inspect` it is for looking at messages by receiving them: it always rolls back, and
        that does not count as a rollback for the queue (PSN-12).

        Raises: nothing.
        """
        self._transactions += 1
        return Transaction(
            link=self._link,
            ids=self._ids,
            number=self._transactions,
            client_id=self.client_id,
            recorder=self._recorder,
            inspect=inspect,
        )

    async def begin_dialog(
        self,
        from_service: str,
        to_service: str,
        contract: str | None = None,
        lifetime: float | timedelta | None = None,
        *,
        broker_id: bytes | str | None = None,
        related_conversation: bytes | None = None,
        related_group: bytes | None = None,
        encryption: bool | None = None,
    ) -> Handle:
        """Begin a dialog and return its handle; durable when this returns (DLG-1).

        The arguments are those of `Transaction.begin_dialog`.

        Raises:
            ServiceNotFound, ContractNotFound: this broker has no such service or contract.
            InvalidName, InvalidLifetime, InvalidArgument: an argument has the wrong form.
            ConversationNotFound: `related_conversation` is not open here.
            GroupServiceMismatch: the group belongs to another service (DLG-8).
            BrokerError: what every request may raise; see `Session`.
        """
        async with self.transaction() as tx:
            return await tx.begin_dialog(
                from_service,
                to_service,
                contract,
                lifetime,
                broker_id=broker_id,
                related_conversation=related_conversation,
                related_group=related_group,
                encryption=encryption,
            )

    async def post_one(
        self,
        from_service: str,
        to_service: str,
        body: Body = ABSENT,
        message_type: str | None = None,
        *,
        contract: str | None = None,
        lifetime: float | timedelta | None = None,
        error_queue: str = "",
        broker_id: bytes | str | None = None,
        encryption: bool | None = None,
    ) -> Handle:
        """Send one message on a dialog of its own, and return its handle; durable then (PBT-4).

        The arguments are those of `Transaction.post_one`.

        Raises:
            QueueNotFound: there is no queue `error_queue`.
            BrokerError: those of `begin_dialog` and `send`.
        """
        async with self.transaction() as tx:
            return await tx.post_one(
                from_service,
                to_service,
                body,
                message_type,
                contract=contract,
                lifetime=lifetime,
                error_queue=error_queue,
                broker_id=broker_id,
                encryption=encryption,
            )

    async def send(
        self,
        handle: bytes | list[bytes],
        body: Body = ABSENT,
        message_type: str | None = None,
    ) -> None:
        """Send a message on a dialog, or on each of a list; durable when this returns (SND-1).

        Waits while too much is unanswered. A call that is cancelled may have sent the message or
        not.

        Raises:
            InvalidState: the other side has ended the dialog, or it is broken.
            ConversationNotFound: no dialog with this handle is open here.
            MessageTypeNotFound, ReservedMessageType, NotInContract, WrongDirection: this side may
                not send that message type.
            ValidationFailed, CheckUnavailable: the type checks bodies on send, and this one failed
                or could not be checked.
            NullBody, MessageTooLarge, DuplicateHandle, InvalidArgument: an argument has the wrong
                form.
            BrokerError: what every request may raise; see `Session`.
        """
        if not self._link.writes_now():
            await self._link.room()
        await self.submit_send(handle, body, message_type)

    def submit_send(
        self,
        handle: bytes | list[bytes],
        body: Body = ABSENT,
        message_type: str | None = None,
    ) -> "asyncio.Future[None]":
        """Send without waiting, and return a future that is done when the message is durable.

        Sends on one conversation take effect in the order of the calls. What cannot be written yet
        is kept; beyond a limit the future fails with `Busy`, so await `room()` before more.

        Raises:
            NullBody, MessageTooLarge, DuplicateHandle, InvalidArgument: an argument has the wrong
                form; every other error of `send` is set on the future.
        """
        if type(handle) is not bytes or len(handle) != 16:  # noqa: PLR2004
            handle = wire_handles(handle)
        packed = wire_body(body, self._link.limits.body)
        if type(message_type) is not str and message_type is not None:
            wire_text(message_type, "message_type")
        verbs = ("send", (handle, message_type, packed))
        if self._recorder is None:
            return self._link.transact((verbs,)).future
        return self.transaction().send_alone(handle, message_type, packed)

    async def room(self) -> None:
        """Wait until what is sent next would be written at once.

        Raises:
            ConnectionLost: the session is over.
        """
        await self._link.room()

    async def end(
        self,
        handle: bytes | list[bytes],
        error: int | None = None,
        description: str | None = None,
    ) -> None:
        """End this side of a dialog, or of each of a list; durable when this returns (DLG-18).

        With `error`, a number above 0, and a `description` the other side receives an Error
        message.

        Raises:
            ConversationNotFound: no dialog with this handle is open here.
            InvalidState: this side has ended it already.
            ErrorNeedsCodeAndText: one of `error` and `description` is missing (DLG-20).
            DuplicateHandle, InvalidArgument: an argument has the wrong form.
            BrokerError: what every request may raise; see `Session`.
        """
        async with self.transaction() as tx:
            await tx.end(handle, error, description)

    async def set_timer(
        self, handle: bytes, after: float | timedelta | None, name: str | None = None
    ) -> None:
        """Set a timer of a dialog to `after` seconds, or cancel it with None (DLG-35).

        It is durable when this returns.

        Raises:
            ConversationNotFound: no dialog with this handle is open here.
            InvalidState: this side has ended the dialog.
            TimerBeyondLifetime: the dialog expires before the timer is due (DLG-38).
            InvalidArgument: an argument has the wrong form.
            BrokerError: what every request may raise; see `Session`.
        """
        async with self.transaction() as tx:
            await tx.set_timer(handle, after, name)

    async def resend_pending(self, old: bytes, new: bytes) -> list[Resent]:
        """Send on `new` what `old` holds back, and return it; durable when this returns (PBT-12).

        Raises:
            ConversationNotFound: one of the dialogs is not open here.
            InvalidState: `old` still sends, or `new` cannot send.
            BrokerError: what every request may raise; see `Session`.
        """
        async with self.transaction() as tx:
            return await tx.resend_pending(old, new)

    async def move(self, handle: bytes, group: bytes) -> None:
        """Put a conversation into another group of its service; durable when this returns (GRP-18).

        Raises:
            ConversationNotFound, GroupNotFound: the dialog or the group does not exist here.
            GroupServiceMismatch: the group belongs to another service.
            InvalidState: this side has ended the dialog.
            BrokerError: what every request may raise; see `Session`.
        """
        async with self.transaction() as tx:
            await tx.move(handle, group)

    def group(self, group: bytes) -> LockedGroup:
        """Return a transaction that begins by locking this group: `async with` it (GRP-22).

        Raises:
            InvalidArgument: `group` is not 16 bytes.
        """
        return LockedGroup(self.transaction, GroupId(wire_id(group, "group")))

    async def receive(
        self,
        queue: str,
        max_messages: int | None = None,
        *,
        conversation: bytes | None = None,
        group: bytes | None = None,
        wait: Wait = None,
        autocommit: bool = False,
    ) -> list[Message]:
        """Receive in a transaction of its own: the messages are gone when this returns (RCV-16).

        A program that crashes before it has used them has lost them, so `autocommit=True` has to be
        said. The other arguments are those of `Transaction.receive`.

        Raises:
            InvalidArgument: without `autocommit=True`, or an argument has the wrong form.
            QueueNotFound, QueueDisabled: the queue does not exist, or is off.
            ConversationNotFound, GroupNotFound: no such conversation or group exists here.
            OutcomeUnknown: messages may have been lost with the connection.
            BrokerError: what every request may raise; see `Session`.
        """
        if not autocommit:
            raise InvalidArgument(
                "receive outside a transaction loses messages in a crash",
                hint="use `async with session.transaction() as tx`, or say autocommit=True",
            )
        wait_ms = wire_wait(wait)
        receive_args(queue, max_messages, conversation, group, wait_ms=None)
        return await self._autocommit.receive((queue, conversation, group), max_messages, wait_ms)

    # Asking the instance.

    async def status(self) -> dict[str, object]:
        """Return the state of the instance, as `brokerd status --json` shows it.

        Raises:
            BrokerError: what every request may raise; see `Session`.
        """
        return _map(await self._link.ask("status", ()))

    async def apply(
        self,
        objects: Mapping[str, object],
        *,
        dry_run: bool = False,
        terminate_existing: bool = False,
        ensure: bool = False,
    ) -> list[object]:
        """Make brokers match a declaration of objects, and return the changes (design D9).

        `dry_run` only returns them. `terminate_existing` ends the dialogs that need what is to go
        (OBJ-36 to OBJ-38). With `ensure` only what is missing is added (SDK-4).

        Raises:
            ObjectsRefused: the declaration cannot be applied; nothing was changed. Its subclasses
                say more: `InUse` that an object or a dialog needs what is to go.
            InvalidName: a name is not allowed.
            InvalidArgument: `objects` is not a mapping.
            BrokerError: what every request may raise; see `Session`.
        """
        if not isinstance(objects, Mapping):
            raise InvalidArgument(
                f"objects is {type(objects).__name__}, not a map",
                hint='as a file declares them: {"queue": [{"name": "orders_q"}]}',
            )
        asked: list[object] = [as_wire(dict(objects)), dry_run, terminate_existing, ensure]
        while len(asked) > 2 and not asked[-1]:  # noqa: PLR2004  # an older daemon knows these two
            asked.pop()
        return _list(await self._link.ask("apply", tuple(asked)))

    async def objects(self, kind: str | None = None) -> list[dict[str, object]]:
        """Return the declared objects of this broker, each as a file declares it, with its kind.

        Raises:
            InvalidArgument: there is no such kind of object.
            BrokerError: what every request may raise; see `Session`.
        """
        found = _list(await self._link.ask("objects", (kind,) if kind else ()))
        return [_map(one) for one in found]

    async def create(self, /, kind: str, name: str, **declared: object) -> list[object]:
        """Create an object and return the changes: `create("queue", "orders_q", status="off")`.

        `kind` is message_type, contract, queue, service, priority, route, instance_route or
        event_notification, and the keys are those of a file of declared objects. It takes effect
        with its commit.

        Raises:
            ObjectExists: there is an object of that kind and name.
            ObjectsRefused: it cannot be created as it is declared; its subclasses say why.
            InvalidName, InvalidArgument: the name or the kind is not allowed.
            BrokerError: what every request may raise; see `Session`.
        """
        return _list(await self._link.ask("create", (kind, as_wire({**declared, "name": name}))))

    async def alter(
        self, /, kind: str, name: str, *, terminate_existing: bool = False, **declared: object
    ) -> list[object]:
        """Alter an object and return the changes: only the keys that are named change.

        None sets a key to its default again. `kind` may also be broker, for its own options;
        `terminate_existing` ends the dialogs that would no longer be allowed.

        Raises:
            ObjectNotFound: there is no object of that kind and name.
            InUse: dialogs, or another object, need it as it is.
            ObjectsRefused: it cannot be altered so; its subclasses say why.
            InvalidArgument: there is no such kind of object.
            BrokerError: what every request may raise; see `Session`.
        """
        asked = (kind, as_wire({**declared, "name": name}), terminate_existing)
        return _list(await self._link.ask("alter", asked))

    async def drop(self, kind: str, name: str, *, terminate_existing: bool = False) -> list[object]:
        """Drop an object and return the changes.

        `terminate_existing` ends the dialogs that need it.

        Raises:
            ObjectNotFound: there is no object of that kind and name.
            InUse: dialogs, or another object, need it; the message says which.
            InvalidArgument: there is no such kind of object.
            BrokerError: what every request may raise; see `Session`.
        """
        return _list(await self._link.ask("drop", (kind, name, terminate_existing)))

    async def transmission_status(self, handle: bytes) -> TransmissionStatus:
        """Return how the transmission of a dialog stands, and why its messages wait (SND-23).

        The key of the status is empty only if nothing waits to be sent or acknowledged.

        Raises:
            ConversationNotFound: no dialog with this handle is open here.
            InvalidArgument: `handle` is not 16 bytes.
            BrokerError: what every request may raise; see `Session`.
        """
        answer = _map(await self._link.ask("transmission_status", (wire_id(handle, "handle"),)))
        return msgspec.convert(answer, TransmissionStatus)

    async def view(self, /, name: str, limit: int | None = None, **chosen: Any) -> list[Any]:  # noqa: ANN401  # as `view_page` has them
        """Return the rows of a view, a map each: all of them, or at most `limit`.

        The other arguments are those of `view_page`.

        Raises:
            InvalidArgument: there is no such view or column, or a value does not fit its column.
            BrokerError: what every request may raise; see `Session`.
        """
        return [row async for row in views.rows(self._link, name, limit, **chosen)]

    async def view_page(
        self,
        name: str,
        *,
        where: Mapping[str, object] | None = None,
        older_than: float | timedelta | None = None,
        limit: int = DEFAULT_ROWS,
        after: str | None = None,
        bodies: bool = False,
    ) -> ViewPage:
        """Return a page of the rows of a view: at most `limit`, from `after` on (CLP-90).

        `where`: columns, each with the value that it has or a list of such values. `older_than`:
        seconds that an endpoint has been in its state, or a message in the transmission queue.
        `bodies`: whether rows of messages have their bodies.

        Raises:
            InvalidArgument: there is no such view or column, or a value does not fit its column.
            BrokerError: what every request may raise; see `Session`.
        """
        return await views.page(
            self._link,
            name,
            where=where,
            older_than=older_than,
            limit=limit,
            after=after,
            bodies=bodies,
        )

    @property
    def admin(self) -> Admin:
        """Return the verbs of an administrator, such as clean-up and backups (MAN, DLG-23)."""
        return Admin(self._link, self._ids, self.welcome.broker)

    async def browse(self, queue: str, *, bodies: bool = True) -> AsyncIterator[Message]:
        """Yield all that is in a queue in the order of arrival, without locks (OBJ-47).

        Nothing is received. The queue is read a page at a time, as far as the caller iterates; what
        is committed or received meanwhile may be seen or not. `status` says what each message is.
        Without `bodies` these are None.

        Raises:
            QueueNotFound: there is no such queue.
            BrokerError: what every request may raise; see `Session`.
        """
        after: tuple[int, int] | None = None
        while True:
            page = await self.browse_page(queue, after, bodies=bodies)
            for message in page.messages:
                yield message
            if page.after is None:
                return
            after = page.after

    async def browse_page(
        self,
        queue: str,
        after: tuple[int, int] | None = None,
        limit: int = 100,
        *,
        bodies: bool = True,
    ) -> Page:
        """Return one page of what is in a queue: up to `limit` messages from `after` on.

        `limit` is at most 1,000.

        A page may have fewer messages, or none, and still not be the last: the last one has `after`
        None.

        Raises:
            QueueNotFound: there is no such queue.
            BrokerError: what every request may raise; see `Session`.
        """
        return read_page(await self._link.ask("browse", (queue, after, limit, bodies)))


def connect(
    address: str | None = None, *, broker: str, **options: Unpack[Options]
) -> Connecting[Session]:
    """Connect to a broker of a daemon: `await connect(...)` or `async with connect(...)`.

    `address` is unix:/path or tcp://host:port, by default BROKERD_ADDRESS, else
    unix:/run/brokerd/brokerd.sock.
    `wait`: seconds for which the first connection is tried; `retry`: the same for each later one.
    `client_id` is drawn if it is not given; the same one must not be in use twice (CLP-13). `pid`
    is what the daemon shows of this process.

    Raises, when it is awaited or entered:
        DaemonUnreachable: nobody answered for `wait` seconds.
        TooManyOpenFiles: this process may open no file for a connection.
        InvalidArgument: the address or an option has the wrong form.
        ObjectNotFound, BrokerUnavailable, AccessDenied: the daemon does not let this client in.
    """
    return Connecting(partial(open_session, Session, address, broker, **options))


def _map(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ProtocolError("a map is expected")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ProtocolError("a list is expected")
    return value
