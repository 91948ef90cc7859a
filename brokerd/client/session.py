"""Session: a program's client of one broker: single verbs, and transactions (verb map).

Reads:  arguments.     Calls: client.link, client.transaction, client.autocommit.
Never:  receives outside a transaction unless the caller accepts losses in a crash (RCV-16).
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
    send_args,
    wire_body,
    wire_handles,
    wire_headers,
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
from brokerd.client.requests import read_list, read_map
from brokerd.client.tracer import Tracer
from brokerd.client.transaction import Transaction
from brokerd.client.views import ViewPage
from brokerd.clock import Clock
from brokerd.errors import InvalidArgument
from brokerd.ids import ClientId, GroupId, Handle, IdSource
from brokerd.protocol.admin_verbs import DEFAULT_ROWS
from brokerd.protocol.client_frames import Welcome
from brokerd.protocol.headers import Headers
from brokerd.telemetry.status import TransmissionStatus

DRAIN_WAIT: Final = 0.5
"""Seconds without a message after which a reader that was started by activation ends (ACT-25)."""


class Session:
    """A client of one broker, made by `connect`; any number of tasks of one loop may share it.

    Errors common to all requests, in addition to those that a verb names: `ConnectionLost` when
    the daemon could not be reached again for `retry` seconds; `AccessDenied` without the permission
    for the request (CLP-130); `Busy` when too many requests are unanswered; `BrokerUnavailable`
    while the broker cannot be opened; `InternalError`. A request that changes dialogs may also
    raise `LockTimeout` or `DeadlockVictim` when another transaction holds the conversation group,
    `StoreFull` or `QuotaExceeded` when there is no room, and `OutcomeUnknown` when the connection
    was lost and the client cannot find out whether the commit took effect (REL-2).
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
            link, self.transaction, is_recorded=recorder is not None, tracer=lambda: self.tracing
        )
        self.tracing: Tracer | None = None
        self.client_id = client_id
        self.drain_wait = DRAIN_WAIT
        """Seconds without a message after which a reader of an App ends, if activation has started
        it (ACT-25, PBT-7)."""

    async def __aenter__(self) -> Self:
        """Return the session itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the answers to all commits, unless the block failed, and close the session.

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
        """The daemon's WELCOME on the latest connection: instance, broker, limits."""
        assert self._link.welcome is not None, "a session is made after the first WELCOME"
        return self._link.welcome

    @property
    def open_transactions(self) -> int:
        """Number of transactions that the daemon holds open for this session."""
        return self._link.open_transactions

    @property
    def closed(self) -> bool:
        """Whether the session is over, so that it accepts no further requests."""
        return self._link.dead is not None

    @property
    def clock(self) -> Clock:
        """Clock that the session uses for its waits."""
        return self._clock

    # Verbs that are a transaction each.

    def transaction(self, *, inspect: bool = False) -> Transaction:
        """Return a transaction, to be entered with `async with`.

        `inspect`: the transaction only inspects messages by receiving them; it always rolls back,
        which does not count as a rollback for the queue (PSN-12).

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
            tracer=self.tracing,
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
        """Begin a dialog and return its handle; the dialog is durable when this returns (DLG-1).

        The arguments are those of `Transaction.begin_dialog`.

        Raises:
            ServiceNotFound, ContractNotFound: this broker has no such service or contract.
            InvalidName, InvalidLifetime, InvalidArgument: an argument has the wrong form.
            ConversationNotFound: `related_conversation` is not open in this broker.
            GroupServiceMismatch: the group belongs to another service (DLG-8).
            BrokerError: an error common to all requests; see `Session`.
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
        headers: Headers | None = None,
    ) -> Handle:
        """Send one message on a dialog of its own; return the dialog's handle once durable (PBT-4).

        The arguments are those of `Transaction.post_one`.

        Raises:
            QueueNotFound: the queue `error_queue` does not exist.
            BrokerError: an error that `begin_dialog` or `send` names.
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
                headers=headers,
            )

    async def send(
        self,
        handle: bytes | list[bytes],
        body: Body = ABSENT,
        message_type: str | None = None,
        *,
        headers: Headers | None = None,
    ) -> None:
        """Send a message on one dialog, or on each of a list; durable when this returns (SND-1).

        The arguments are those of `Transaction.send`. The call waits while too many requests are
        unanswered. A cancelled call may have sent the message or not.

        Raises:
            InvalidState: the other side has ended the dialog, or it is broken.
            ConversationNotFound: this broker has no open dialog with this handle.
            MessageTypeNotFound, ReservedMessageType, NotInContract, WrongDirection: this side may
                not send that message type.
            ValidationFailed, CheckUnavailable: the message type checks bodies on send, and this
                body failed or could not be checked.
            NullBody, MessageTooLarge, DuplicateHandle, InvalidArgument: an argument has the wrong
                form.
            BrokerError: an error common to all requests; see `Session`.
        """
        if not self._link.writes_now():
            await self._link.room()
        await self.submit_send(handle, body, message_type, headers=headers)

    def submit_send(
        self,
        handle: bytes | list[bytes],
        body: Body = ABSENT,
        message_type: str | None = None,
        *,
        headers: Headers | None = None,
    ) -> "asyncio.Future[None]":
        """Send without waiting, and return a future that is done when the message is durable.

        Sends on one conversation take effect in the order of the calls. Sends that cannot be
        written yet are kept; beyond a limit the future fails with `Busy`, so await `room()` first.

        Raises:
            NullBody, MessageTooLarge, DuplicateHandle, InvalidArgument: an argument has the wrong
                form; every other error of `send` is set on the future.
        """
        if type(handle) is not bytes or len(handle) != 16:  # noqa: PLR2004
            handle = wire_handles(handle)
        packed = wire_body(body, self._link.limits.body)
        if type(message_type) is not str and message_type is not None:
            wire_text(message_type, "message_type")
        given = None if headers is None else wire_headers(headers)
        tracing = self.tracing
        span = None if tracing is None else tracing.begin_send(handle, message_type, given)
        if self._recorder is None and span is None:
            args = send_args(handle, message_type, packed, given)
            return self._link.transact((("send", args),)).future
        return self.transaction().send_alone(handle, message_type, packed, given, span)

    async def room(self) -> None:
        """Wait until the next send would be written at once.

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
        """End this side of one dialog, or of each of a list; durable when this returns (DLG-18).

        With `error`, a number above 0, and a `description`, the other side receives an Error
        message.

        Raises:
            ConversationNotFound: this broker has no open dialog with this handle.
            InvalidState: this side has ended the dialog already.
            ErrorNeedsCodeAndText: one of `error` and `description` is missing (DLG-20).
            DuplicateHandle, InvalidArgument: an argument has the wrong form.
            BrokerError: an error common to all requests; see `Session`.
        """
        async with self.transaction() as tx:
            await tx.end(handle, error, description)

    async def set_timer(
        self, handle: bytes, after: float | timedelta | None, name: str | None = None
    ) -> None:
        """Set a timer of a dialog to `after` seconds, or cancel it with None (DLG-35).

        The timer is durable when this returns. `name`: see `Transaction.set_timer`.

        Raises:
            ConversationNotFound: this broker has no open dialog with this handle.
            InvalidState: this side has ended the dialog.
            TimerBeyondLifetime: the dialog expires before the timer is due (DLG-38).
            InvalidArgument: an argument has the wrong form.
            BrokerError: an error common to all requests; see `Session`.
        """
        async with self.transaction() as tx:
            await tx.set_timer(handle, after, name)

    async def resend_pending(self, old: bytes, new: bytes) -> list[Resent]:
        """Send on `new` the messages that `old` holds back; return them once durable (PBT-12).

        Raises:
            ConversationNotFound: one of the dialogs is not open in this broker.
            InvalidState: `old` still sends, or `new` cannot send.
            BrokerError: an error common to all requests; see `Session`.
        """
        async with self.transaction() as tx:
            return await tx.resend_pending(old, new)

    async def move(self, handle: bytes, group: bytes) -> None:
        """Move a conversation to another group of its service; durable when this returns (GRP-18).

        Raises:
            ConversationNotFound, GroupNotFound: this broker has no such dialog or group.
            GroupServiceMismatch: the group belongs to another service.
            InvalidState: this side has ended the dialog.
            BrokerError: an error common to all requests; see `Session`.
        """
        async with self.transaction() as tx:
            await tx.move(handle, group)

    def group(self, group: bytes) -> LockedGroup:
        """Return a transaction that begins by locking a group, for `async with` (GRP-22).

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
        """Receive and commit: the messages have left the queue when this returns (RCV-16).

        A program that crashes before it has used the messages loses them, so `autocommit=True` must
        be given. The other arguments are those of `Transaction.receive`.

        Raises:
            InvalidArgument: `autocommit=True` is missing, or an argument has the wrong form.
            QueueNotFound, QueueDisabled: the queue does not exist, or is off.
            ConversationNotFound, GroupNotFound: this broker has no such conversation or group.
            OutcomeUnknown: messages may have been lost with the connection.
            BrokerError: an error common to all requests; see `Session`.
        """
        if not autocommit:
            raise InvalidArgument(
                "receive outside a transaction loses messages in a crash",
                hint="use `async with session.transaction() as tx`, or say autocommit=True",
            )
        wait_ms = wire_wait(wait)
        receive_args(queue, max_messages, conversation, group, wait_ms=None)
        return await self._autocommit.receive((queue, conversation, group), max_messages, wait_ms)

    # Requests to the instance.

    async def status(self) -> dict[str, object]:
        """Return the state of the instance, as `brokerd status --json` shows it.

        Raises:
            BrokerError: an error common to all requests; see `Session`.
        """
        return read_map(await self._link.ask("status", ()))

    async def apply(
        self,
        objects: Mapping[str, object],
        *,
        dry_run: bool = False,
        terminate_existing: bool = False,
        ensure: bool = False,
    ) -> list[object]:
        """Make brokers match a declaration of objects, and return the changes (design D9).

        `dry_run`: only return the changes. `terminate_existing`: end the dialogs that need an
        object to be altered or dropped (OBJ-36). `ensure`: only add missing objects (SDK-4).

        Raises:
            ObjectsRefused: the declaration cannot be applied; nothing was changed. The subclass
                says why: `InUse` = a dialog or another object needs an object to be dropped.
            InvalidName: a name is not allowed.
            InvalidArgument: `objects` is not a mapping.
            BrokerError: an error common to all requests; see `Session`.
        """
        if not isinstance(objects, Mapping):
            raise InvalidArgument(
                f"objects is {type(objects).__name__}, not a map",
                hint='as a file declares them: {"queue": [{"name": "orders_q"}]}',
            )
        asked: list[object] = [as_wire(dict(objects)), dry_run, terminate_existing, ensure]
        while len(asked) > 2 and not asked[-1]:  # noqa: PLR2004  # older daemons accept two
            asked.pop()
        return read_list(await self._link.ask("apply", tuple(asked)))

    async def objects(self, kind: str | None = None) -> list[dict[str, object]]:
        """Return the objects of this broker as maps: the keys of a file of objects, and the kind.

        `kind`: only objects of this kind; None = of all kinds.

        Raises:
            InvalidArgument: `kind` is not a kind of object.
            BrokerError: an error common to all requests; see `Session`.
        """
        asked = (kind,) if kind else ()
        return [read_map(one) for one in read_list(await self._link.ask("objects", asked))]

    async def create(self, /, kind: str, name: str, **declared: object) -> list[object]:
        """Create an object and return the changes: `create("queue", "orders_q", status="off")`.

        `kind` is message_type, contract, queue, service, priority, route, instance_route or
        event_notification, and the keys are those of a file of declared objects. The object is
        durable when this returns.

        Raises:
            ObjectExists: an object of that kind and name exists already.
            ObjectsRefused: the object cannot be created as declared; the subclass says why.
            InvalidName, InvalidArgument: the name or the kind is not allowed.
            BrokerError: an error common to all requests; see `Session`.
        """
        asked = (kind, as_wire({**declared, "name": name}))
        return read_list(await self._link.ask("create", asked))

    async def alter(
        self, /, kind: str, name: str, *, terminate_existing: bool = False, **declared: object
    ) -> list[object]:
        """Alter an object and return the changes; a key that is not given keeps its value.

        The value None resets a key to its default. `kind` may also be broker, for the options of
        the broker. `terminate_existing`: end the dialogs that would no longer be allowed.

        Raises:
            ObjectNotFound: no object of that kind and name exists.
            InUse: dialogs, or another object, need the object as it is.
            ObjectsRefused: the object cannot be altered like this; the subclass says why.
            InvalidArgument: `kind` is not a kind of object.
            BrokerError: an error common to all requests; see `Session`.
        """
        asked = (kind, as_wire({**declared, "name": name}), terminate_existing)
        return read_list(await self._link.ask("alter", asked))

    async def drop(self, kind: str, name: str, *, terminate_existing: bool = False) -> list[object]:
        """Drop an object and return the changes.

        `terminate_existing`: end the dialogs that need the object.

        Raises:
            ObjectNotFound: no object of that kind and name exists.
            InUse: dialogs, or another object, need the object; the message names them.
            InvalidArgument: `kind` is not a kind of object.
            BrokerError: an error common to all requests; see `Session`.
        """
        return read_list(await self._link.ask("drop", (kind, name, terminate_existing)))

    async def transmission_status(self, handle: bytes) -> TransmissionStatus:
        """Return the state of a dialog's transmission, and why its messages wait (SND-23).

        The key of the status is empty only if no message waits to be sent or acknowledged.

        Raises:
            ConversationNotFound: this broker has no open dialog with this handle.
            InvalidArgument: `handle` is not 16 bytes.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = read_map(await self._link.ask("transmission_status", (wire_id(handle, "handle"),)))
        return msgspec.convert(answer, TransmissionStatus)

    async def view(self, /, name: str, limit: int | None = None, **chosen: Any) -> list[Any]:  # noqa: ANN401  # as `view_page` has them
        """Return the rows of a view, as maps: at most `limit`; None = all rows.

        The other arguments are those of `view_page`.

        Raises:
            InvalidArgument: the view or a column does not exist, or a value does not fit a column.
            BrokerError: an error common to all requests; see `Session`.
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
        """Return a page of a view: at most `limit` rows (CLP-90).

        `where`: a map from columns to the value required, or to a list of allowed values.
        `older_than`: only endpoints that have been in their state, or messages in the transmission
        queue, for at least this long (seconds, or a timedelta). `after`: `next` of the previous
        page. `bodies`: whether the rows of messages include their bodies.

        Raises:
            InvalidArgument: the view or a column does not exist, or a value does not fit a column.
            BrokerError: an error common to all requests; see `Session`.
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
        """The verbs of an administrator, such as clean-up and backups (DLG-23)."""
        return Admin(self._link, self._ids, self.welcome.broker)

    async def browse(self, queue: str, *, bodies: bool = True) -> AsyncIterator[Message]:
        """Yield all messages in a queue in the order of arrival, without locks (OBJ-47).

        No message is received. The queue is read a page at a time, as far as the caller iterates;
        messages committed or received meanwhile may be included or not. Each message has its state
        in `status`. Without `bodies` all bodies are None.

        Raises:
            QueueNotFound: the queue does not exist.
            BrokerError: an error common to all requests; see `Session`.
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
        """Return one page of the messages in a queue: at most `limit`, which is at most 1,000.

        `after`: that of the previous page; None = the first page. A page may have fewer messages,
        or none, and still not be the last; the last page has `after` None.

        Raises:
            QueueNotFound: the queue does not exist.
            BrokerError: an error common to all requests; see `Session`.
        """
        return read_page(await self._link.ask("browse", (queue, after, limit, bodies)))


def connect(
    address: str | None = None, *, broker: str, **options: Unpack[Options]
) -> Connecting[Session]:
    """Connect to a broker of a daemon: `await connect(...)` or `async with connect(...)`.

    `address`: unix:/path or TCP://host:port, by default BROKERD_ADDRESS, else
    unix:/run/brokerd/brokerd.sock. `wait`: seconds for which the first connection is tried;
    `retry`: seconds for which each later connection is tried. `client_id`: 16 bytes, drawn if not
    given; no two sessions may use the same id at a time (CLP-13). `pid`: the process id that the
    daemon shows for this client.

    Raises, when it is awaited or entered:
        DaemonUnreachable: no daemon answered for `wait` seconds.
        TooManyOpenFiles: this process or machine may open no further file for a connection.
        InvalidArgument: the address or an option has the wrong form, or there is no such option.
        ObjectNotFound, BrokerUnavailable, AccessDenied: the daemon does not let this client in.
    """
    return Connecting(partial(open_session, Session, address, broker, **options))
