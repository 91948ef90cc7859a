"""Transaction: several verbs that take effect together or not at all (REL-3).

Each verb checks its arguments, hands them to the exchange, and is recorded.

Reads:  answers.     Calls: client.exchange.
Never:  accepts a verb after its end, or commits after one of its verbs has failed.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from brokerd.client.arguments import (
    check_end,
    check_services,
    dialog_options,
    receive_args,
    send_args,
    wire_after,
    wire_body,
    wire_handles,
    wire_headers,
    wire_id,
    wire_name,
    wire_text,
    wire_wait,
)
from brokerd.client.exchange import Exchange
from brokerd.client.link import Link
from brokerd.client.messages import (
    ABSENT,
    Body,
    Message,
    Resent,
    Wait,
    read_messages,
    read_resent,
)
from brokerd.client.outcomes import Park, Retry, rollback_options
from brokerd.client.recorder import Recorder
from brokerd.client.recording import NOT_RECORDED, Recording
from brokerd.client.savepoint import Savepoint
from brokerd.client.tracer import SendSpan, Spans, Tracer
from brokerd.clock import Instant
from brokerd.errors import (
    BrokerError,
    InvalidArgument,
    NoSuchTx,
    ProtocolError,
    TransactionAborted,
)
from brokerd.ids import GroupId, Handle, IdSource
from brokerd.protocol.client_verbs import MAX_STATE
from brokerd.protocol.headers import MAX_BLOCK, Headers


class Transaction:
    """One transaction. Use it as `async with session.transaction() as tx`.

    A verb itself raises the errors that the client can detect: wrong arguments, and `NoSuchTx` once
    the transaction is over. The broker's errors are raised by the commit as long as the verbs are
    only collected, and afterwards by the next verb with an answer, or by the commit (SDK-18).
    After an error the transaction cannot be committed.
    """

    def __init__(
        self,
        *,
        link: Link,
        ids: IdSource,
        number: int,
        client_id: bytes,
        recorder: Recorder | None,
        inspect: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        self._inspect = inspect
        self._spans = None if tracer is None else Spans(tracer)
        self.not_counted: tuple[type[BrokerError], ...] = ()
        """Errors after which a rollback does not count, as the caller retries in another way."""
        self.is_for_handlers = False
        """Whether each received message gets a span of its handler, if the program traces."""
        self.committed = False
        """Whether the transaction is known to be durable."""
        self._link = link
        self._ids = ids
        self._recording = (
            NOT_RECORDED if recorder is None else Recording(recorder, client_id, number)
        )
        self._exchange = Exchange(link, self._recording)

    async def __aenter__(self) -> Self:
        """Return the transaction; nothing is sent to the daemon yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; roll back if the block ended with an exception, or if `inspect` was given.

        Nothing is done if the block has committed or rolled back itself.

        Raises:
            BrokerError: an error that `commit` names, only if it commits.
        """
        if kind is None and not self._inspect:
            if self._exchange.is_open:
                await self.commit()
        else:
            self._undo(rollback_options(error), error)

    # Verbs.

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
        """Begin a dialog and return its handle, which may be used at once (DLG-1).

        `from_service`: a service of this broker. `to_service`: a service of any broker, which need
        not exist yet. `contract`: None = the contract DEFAULT. `lifetime`: whole seconds, or a
        timedelta, until the dialog fails on both sides, 1 to 2147483647 seconds; None = the
        longest. `broker_id`: 16 bytes, the only broker to send to; CURRENT_DATABASE = this broker.
        `related_conversation` (a handle) or `related_group`: the conversation group to join.
        `encryption`: None = as the broker's default_encryption says.

        Raises:
            InvalidName, InvalidLifetime, InvalidArgument: an argument has the wrong form.
            NoSuchTx: the transaction is over.
            ServiceNotFound, ContractNotFound, ConversationNotFound: no such service, contract or
                related conversation exists; raised at the commit at the latest.
            GroupServiceMismatch: the group belongs to another service; raised at the commit at the
                latest.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        options = dialog_options(
            contract=contract,
            lifetime=lifetime,
            broker_id=broker_id,
            related_conversation=related_conversation,
            related_group=related_group,
            encryption=encryption,
        )
        handle = Handle(self._ids.fresh())
        texts = check_services(from_service, to_service)
        size = 4 * (texts + len(contract or ""))
        args = (handle, from_service, to_service, options)
        if not self._exchange.collect("begin_dialog", args, size):
            await self._exchange.write("begin_dialog", args)
        self._recording.event("begin_dialog", handle=handle)
        if self._spans is not None:
            self._spans.tracer.began(handle, to_service)
        return handle

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
        """Send one message on a dialog of its own, and return its handle (PBT-4).

        The receiver ends the dialog, then the broker ends this side. If the dialog fails, an Error
        message arrives on `error_queue` (by default the queue of `from_service`); the program only
        has to receive it. Answers of the receiver arrive on that queue, too, while the dialog
        lasts. The handle is for `transmission_status`.

        Raises:
            QueueNotFound: `error_queue` does not exist; raised at the commit at the latest.
            BrokerError: an error that `begin_dialog` or `send` names.
        """
        options = dialog_options(
            contract=contract,
            lifetime=lifetime,
            broker_id=broker_id,
            related_conversation=None,
            related_group=None,
            encryption=encryption,
        )
        options["error_queue"] = wire_text(error_queue, "error_queue")
        handle = Handle(self._ids.fresh())
        texts = check_services(from_service, to_service)
        size = 4 * (texts + len(contract or "") + len(error_queue))
        args = (handle, from_service, to_service, options)
        if not self._exchange.collect("begin_dialog", args, size):
            await self._exchange.write("begin_dialog", args)
        self._recording.event("begin_dialog", handle=handle)
        if self._spans is not None:
            self._spans.tracer.began(handle, to_service)
        await self.send(handle, body, message_type, headers=headers)
        return handle

    async def send(
        self,
        handle: bytes | list[bytes],
        body: Body = ABSENT,
        message_type: str | None = None,
        *,
        headers: Headers | None = None,
    ) -> None:
        """Send a message on one dialog, or on each of a list: all or none (SND-1, SND-8).

        `handle`: a handle, or a list of at most 10,000 handles. `body`: bytes; left out = no body.
        `message_type`: None = the type DEFAULT. `headers`: at most 64 names with text or bytes, 8
        KiB together (SND-26).

        Raises:
            NullBody, MessageTooLarge, DuplicateHandle, InvalidArgument: an argument has the wrong
                form.
            NoSuchTx: the transaction is over.
            ConversationNotFound, InvalidState: the dialog is not open in this broker, or can no
                longer send; raised at the commit at the latest, as are the errors below.
            MessageTypeNotFound, ReservedMessageType, NotInContract, WrongDirection: this side may
                not send that message type.
            ValidationFailed, CheckUnavailable: the message type checks bodies on send, and this
                body failed or could not be checked.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        handles = wire_handles(handle)
        packed = wire_body(body, self._link.limits.body)
        name = "" if message_type is None else wire_text(message_type, "message_type")
        size = len(packed or b"") + 4 * len(name) + 18 * len(handles)
        given = None if headers is None else wire_headers(headers)
        if self._spans is not None:
            given = self._spans.send(handles, message_type, given)
        if given is not None:
            size += MAX_BLOCK
        args = send_args(handles, message_type, packed, given)
        if not self._exchange.collect("send", args, size):
            await self._exchange.write("send", args)
        self._recording.sends(handles, message_type, packed, given)

    async def end(
        self,
        handle: bytes | list[bytes],
        error: int | None = None,
        description: str | None = None,
    ) -> None:
        """End this side of one dialog, or of each dialog of a list (DLG-18, DLG-47).

        With `error`, a number above 0, and a `description` of at most 3,000 characters, the other
        side receives an Error message (DLG-20). Unread messages of this side are deleted.

        Raises:
            ErrorNeedsCodeAndText: one of `error` and `description` is missing.
            DuplicateHandle, InvalidArgument: an argument has the wrong form.
            NoSuchTx: the transaction is over.
            ConversationNotFound, InvalidState: the dialog is not open in this broker, or this side
                has ended it; raised at the commit at the latest.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        handles = wire_handles(handle)
        check_end(handles, error, description)
        size = 4 * len(description or "") + 18 * len(handles)
        args = (handles, error, description)
        if not self._exchange.collect("end", args, size):
            await self._exchange.write("end", args)
        self._recording.ends(handles)

    async def set_timer(
        self, handle: bytes, after: float | timedelta | None, name: str | None = None
    ) -> None:
        """Set a timer of a dialog to `after` seconds, or cancel it with None (DLG-35, DLG-40).

        A timer of the same name is replaced. When the timer is due, a message with `is_timer`
        arrives on the queue of this side, even if the daemon was down at that time. `name`
        distinguishes several timers of one dialog; the message has it as `timer_name`.

        Raises:
            InvalidArgument: an argument has the wrong form.
            NoSuchTx: the transaction is over.
            ConversationNotFound, InvalidState, TimerBeyondLifetime: the dialog is not open in this
                broker, is ended, or expires before the timer is due; raised at the commit at the
                latest.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        args = (wire_id(handle, "handle"), wire_after(after), wire_name(name))
        if not self._exchange.collect("set_timer", args, 4 * len(name or "")):
            await self._exchange.write("set_timer", args)
        self._recording.event("set_timer", handle=args[0], after=args[1], timer=name)

    async def resend_pending(self, old: bytes, new: bytes) -> list[Resent]:
        """Send on `new`, in order, the messages held back by `old`, an ended or broken dialog.

        Return the messages that were sent. `old` keeps its messages until this side ends it. A
        message that was sent on `old` and not acknowledged may have arrived; `may_have_arrived`
        marks it, and the receiver recognises it by its `message_id` (PBT-12).

        Raises:
            InvalidArgument: a handle is not 16 bytes.
            ConversationNotFound: one of the dialogs is not open in this broker.
            InvalidState: `old` still sends, or `new` cannot send.
            NoSuchTx: the transaction is over.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        args = (wire_id(old, "old"), wire_id(new, "new"))
        resent = read_resent(await self._exchange.ask("resend_pending", args))
        if resent:
            self._exchange.note_effect()
        return resent

    async def move(self, handle: bytes, group: bytes) -> None:
        """Move a conversation, with its messages, to another group of its service (GRP-18).

        Raises:
            InvalidArgument: an id is not 16 bytes.
            NoSuchTx: the transaction is over.
            ConversationNotFound, GroupNotFound, GroupServiceMismatch, InvalidState: the dialog or
                the group does not exist, the group belongs to another service, or this side has
                ended the dialog; raised at the commit at the latest.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        args = (wire_id(handle, "handle"), wire_id(group, "group"))
        if not self._exchange.collect("move", args, 0):
            await self._exchange.write("move", args)
        self._recording.event("move", handle=handle, group=group)

    async def set_state(self, group: bytes, state: bytes | None) -> None:
        """Replace the state of a group that this transaction has locked; None deletes it.

        `state`: at most 256 KiB; it is durable with the commit.

        Raises:
            InvalidArgument: `state` is not bytes, or too large; `group` is not 16 bytes.
            NoSuchTx: the transaction is over.
            GroupNotFound: this transaction has not locked the group; raised at the commit at the
                latest.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        if state is not None and not isinstance(state, bytes):
            raise InvalidArgument(
                f"state is {type(state).__name__}, not bytes", hint="encode it, or None deletes it"
            )
        if state is not None and len(state) > MAX_STATE:
            raise InvalidArgument(
                f"state has {len(state)} bytes, and at most {MAX_STATE} are kept for a group",
                hint="keep what is larger elsewhere, and where it is here",
            )
        args = (wire_id(group, "group"), state)
        if not self._exchange.collect("set_state", args, len(state or b"")):
            await self._exchange.write("set_state", args)

    async def state(self, group: bytes, *, take_lock: bool = False) -> bytes | None:
        """Return the state of a group that this transaction has locked; None = none (GRP-22).

        `take_lock`: lock the group first; this waits for another transaction that holds it.

        Raises:
            GroupNotFound: the group does not exist, or is not locked by this transaction.
            LockTimeout, DeadlockVictim: the group could not be locked.
            InvalidArgument: `group` is not 16 bytes.
            NoSuchTx: the transaction is over.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        args = (wire_id(group, "group"), True) if take_lock else (wire_id(group, "group"),)
        value = await self._exchange.ask("get_state", args)
        if value is not None and not isinstance(value, bytes):
            raise ProtocolError("get_state: bytes or nil are expected")
        return value

    async def receive(
        self,
        queue: str,
        max_messages: int | None = None,
        *,
        conversation: bytes | None = None,
        group: bytes | None = None,
        wait: Wait = None,
        groups: int = 1,
    ) -> list[Message]:
        """Receive messages of one group, which this transaction locks (RCV-1 to RCV-8).

        Return the empty list if no message is available, and none comes within `wait`.
        `max_messages`: maximum number of messages; None = as many as fit. `conversation` or
        `group`: receive only from this one. `wait`: seconds, a timedelta, FOREVER, or None to
        return at once. `groups`: maximum number of groups; the result is that of `groups` calls, of
        which only the first waits (RCV-44), and the messages of each group are adjacent. A
        cancelled call consumes no message (RCV-22); if the answer was on its way already, the
        transaction can only be rolled back (CLP-41).

        Raises:
            QueueNotFound, QueueDisabled: the queue does not exist, or is off.
            ConversationNotFound, GroupNotFound: this broker has no such conversation or group.
            InvalidArgument: an argument has the wrong form.
            NoSuchTx: the transaction is over.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        args = receive_args(
            queue, max_messages, conversation, group, wait_ms=wire_wait(wait), groups=groups
        )
        self._recording.event("receive", queue=queue)
        since = Instant(0) if self._spans is None else self._link.clock.utc()
        messages = read_messages(await self._exchange.ask("receive", args))
        if messages:
            self._exchange.note_effect()
            if self._spans is not None:
                self._spans.tracer.received(
                    queue, messages, since, for_handlers=self.is_for_handlers
                )
        self._recording.received(queue, messages)
        return messages

    async def get_group(self, queue: str, wait: Wait = None) -> GroupId | None:
        """Lock the best group of a queue and return its id; None = no group has messages (GRP-14).

        The best group is the one with the highest priority that is not locked. No message is
        received; `receive` with `group` does that. Each further call locks another group, as long
        as another one has messages (GRP-16). `wait`: as for `receive`.

        Raises:
            QueueNotFound, QueueDisabled: the queue does not exist, or is off.
            InvalidArgument: an argument has the wrong form.
            NoSuchTx: the transaction is over.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        args = (wire_text(queue, "queue"), wire_wait(wait))
        value = await self._exchange.ask("get_group", args)
        return None if value is None else GroupId(wire_id(value, "get_group"))

    def savepoint(self) -> Savepoint:
        """Return a block, to be entered with `async with`, that can be undone alone (GRP-21).

        An exception that leaves the block undoes its work: received messages are back in the queue,
        sends and new dialogs vanish. Groups locked in the block stay locked. The error of a verb is
        undone with the block, and the transaction continues, unless it is lost as a whole (deadlock
        victim, too old, connection lost).

        Raises: nothing.
        """
        return Savepoint(self._exchange)

    # The end.

    async def commit(self) -> None:
        """Make the transaction durable, and end it. Leaving the block does this.

        Raises:
            TransactionAborted: the connection was lost before the commit, or a cancelled receive
                had consumed messages already.
            OutcomeUnknown: the client cannot find out whether the commit took effect (REL-2).
            NoSuchTx: the transaction is over.
            InvalidArgument: the transaction was created with `inspect`.
            BrokerError: the first error of an earlier verb, or one common to all requests; see
                `Session`.
        """
        if not self._exchange.is_open:
            raise NoSuchTx("this transaction is over")
        if self._inspect:
            raise InvalidArgument("a transaction with inspect=True only looks: it rolls back")
        if self._exchange.late and await self._exchange.took_messages_unseen():
            self.rollback(counts=False)
            raise TransactionAborted("a cancelled receive had taken messages already")
        committed = self.ask_commit()
        if committed is None:
            self.committed = True
            return
        try:
            await committed
        except TransactionAborted as error:
            failure = self._exchange.failure
            if failure is not None and failure is not error:
                raise failure from None  # it says why, and the daemon only that there was one
            raise
        except BrokerError as error:
            self._exchange.explain(error)
            raise
        self.committed = True

    def rollback(self, outcome: Retry | Park | None = None, *, counts: bool = True) -> None:
        """Undo everything, without waiting for an answer. An exception in the block does the same.

        If the transaction has received messages, this is one of the consecutive rollbacks that
        switch a queue off or park a group (PSN-2, PBT-3), unless `counts` is False. `outcome`
        decides about the group of the messages: `Retry(after)` or `Park(reason)`.

        Raises:
            InvalidArgument: `outcome` is neither a `Retry` nor a `Park`.
        """
        if outcome is not None and not isinstance(outcome, Retry | Park):
            raise InvalidArgument(
                f"outcome is {outcome!r}, neither a Retry nor a Park",
                hint="rollback(Retry(60)), rollback(Park('why')), or nothing",
            )
        options = rollback_options(outcome)
        if not counts:
            options["counts"] = False
        self._undo(options)

    def ask_commit(self) -> "asyncio.Future[Any] | None":
        """Write the commit, which ends the transaction, and return its future.

        None = nothing is to be committed. Only the SDK itself calls this.

        Raises:
            BrokerError: the first error of an earlier verb.
        """
        exchange = self._exchange
        failure = exchange.failure
        if failure is not None or not exchange.has_effect:
            exchange.roll_back(self._options(rollback_options(failure), failure))
            if failure is not None:
                raise failure
            return None
        committed = exchange.commit([error.code for error in self.not_counted])
        return committed if self._spans is None else self._spans.watch(committed)

    def send_alone(
        self,
        handle: bytes | list[bytes],
        message_type: str | None,
        body: bytes | None,
        headers: dict[str, str | bytes] | None,
        span: SendSpan | None,
    ) -> "asyncio.Future[None]":
        """Write and record a `submit_send`, whose arguments were checked; return its future.

        Raises: nothing.
        """
        if self._spans is not None and span is not None:
            headers = self._spans.add(span)
        self._recording.sends(handle, message_type, body, headers)
        self._recording.event("commit", kind="invoke")
        self._exchange.close()
        sent = self._recording.watched(
            self._link.transact((("send", send_args(handle, message_type, body, headers)),))
        )
        return sent if self._spans is None else self._spans.watch(sent)

    def receive_alone(self, queue: str, asked: "asyncio.Future[object]") -> None:
        """Record a receive that is its own transaction and has been requested already.

        Raises: nothing.
        """
        self._exchange.close()
        self._recording.receives_alone(queue, asked)

    def act_for(self, handler: Callable[..., object] | None) -> None:
        """Name a handler as the caller of the next verbs, whose result they send (SDK-25).

        None: the program calls verbs itself again. Only the SDK itself calls this.

        Raises: nothing.
        """
        self._exchange.on_behalf_of = getattr(handler, "__code__", None)

    @property
    def is_open(self) -> bool:
        """Whether the transaction accepts further verbs."""
        return self._exchange.is_open

    def _undo(self, options: dict[str, object], error: BaseException | None = None) -> None:
        if self._spans is not None:
            self._spans.end(error or TransactionAborted("the transaction was rolled back"))
        if self._exchange.is_open:
            self._exchange.roll_back(self._options(options, error or self._exchange.failure))

    def _options(
        self, options: dict[str, object], error: BaseException | None
    ) -> dict[str, object]:
        """Return the options of a rollback; it does not count if the messages are not its cause."""
        blameless = isinstance(error, self.not_counted)
        return {"counts": False} if self._inspect or blameless else options
