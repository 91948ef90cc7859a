"""Work on the daemon's side of a connection: verbs run in order within a transaction (CLP-31).

Reads: parsed requests.      Calls: delivery.verbs, broker.transactions.
Never: writes to the client; it tells its session the outcome of each request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import astuple

from brokerd.broker.blocked import Blocked
from brokerd.broker.poison import Undone
from brokerd.broker.queues import Taken
from brokerd.broker.rounds import TIMER
from brokerd.broker.transactions import Transaction, TxState
from brokerd.delivery import groups, receives, verbs
from brokerd.delivery.closing import set_timer
from brokerd.delivery.inspecting import CHECK
from brokerd.delivery.resending import resend_pending
from brokerd.errors import (
    BrokerError,
    Busy,
    DeadlockVictim,
    DuplicateHandle,
    LockTimeout,
    QuotaExceeded,
    StoreFault,
    StoreFull,
    TransactionAborted,
)
from brokerd.ids import BrokerId, GroupId, Handle, show
from brokerd.model import DEFAULT
from brokerd.protocol import client_verbs as wire

if TYPE_CHECKING:
    from brokerd.sessions.session import ClientSession

NOTHING: Final = object()
"""A verb succeeded and has no value."""


def perform(tx: Transaction, verb: wire.PlainVerb | wire.Savepoint) -> Blocked | None:
    """Run a verb without a value in a transaction."""
    if tx.verbs >= tx.broker.options.max_verbs:
        raise QuotaExceeded(f"a transaction has at most {tx.broker.options.max_verbs} verbs")
    tx.verb = wire.NAMES[type(verb)]
    blocked: Blocked | None = None
    match verb:
        case wire.Send(handles, message_type, body):
            blocked = _send(tx, handles, message_type or DEFAULT, body)
        case wire.BeginDialog():
            blocked = _begin_dialog(tx, verb)
        case wire.End(handle, code, description):
            blocked = verbs.end(tx, Handle(handle), code, description)
        case wire.SetTimer(handle, after_ms, name):
            blocked = set_timer(tx, Handle(handle), after_ms, name or "")
        case wire.Move(handle, group_id):
            blocked = groups.move(tx, Handle(handle), GroupId(group_id))
        case wire.Savepoint(number):
            tx.set_savepoint(number)
        case wire.SetState(group_id, state):
            groups.set_state(tx, GroupId(group_id), state)
    if blocked is None:
        tx.verbs += 1
    return blocked


def _send(
    tx: Transaction, handles: bytes | list[bytes], message_type: str, body: bytes | None
) -> Blocked | None:
    if isinstance(handles, bytes):
        return verbs.send(tx, (Handle(handles),), message_type, body)
    many = [Handle(one) for one in handles]
    if len(set(many)) != len(many):
        twice = next(at for at, one in enumerate(many) if one in many[:at])
        raise DuplicateHandle(f"handle {show(many[twice])} at position {twice} is given twice")
    return verbs.send(tx, many, message_type, body)


def _begin_dialog(tx: Transaction, verb: wire.BeginDialog) -> Blocked | None:
    given = verb.options
    options = verbs.DialogOptions(
        contract=given.contract,
        broker_id=None if given.broker_id is None else BrokerId(given.broker_id),
        related_conversation=None
        if given.related_conversation is None
        else Handle(given.related_conversation),
        related_group=None if given.related_group is None else GroupId(given.related_group),
        lifetime=given.lifetime,
        encryption=given.encryption,
        error_queue=given.error_queue,
    )
    return verbs.begin_dialog(tx, Handle(verb.handle), verb.from_service, verb.to_service, options)


class Work(ABC):
    """Something that a session has under way; it goes on where it was when it is called back."""

    __slots__ = ("_session", "_turn", "tx")

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._turn = 0
        self.tx = Transaction(session.broker, session.owner)

    def go_on(self) -> None:
        """Run until it has to wait or is done. An error nobody foresaw costs the connection."""
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001  # per connection (house style 8)
            self._session.broke(error)

    def give_up(self) -> None:
        """The client is gone: nobody is answered any more."""
        self._turn += 1
        self.tx.roll_back()

    @abstractmethod
    def abort(self, reason: str) -> None:
        """The daemon ends it by itself, and says so to the client (CLP-37)."""

    @abstractmethod
    def _go_on(self) -> None:
        """Run what can be run now."""

    def _wait(self, blocked: Blocked) -> None:
        """Go on once, when what it waits for is there; later calls mean nothing."""
        self._turn += 1
        turn = self._turn

        def resume() -> None:
            if turn == self._turn:
                self._turn += 1
                self.go_on()

        blocked.then(resume)

    def _commit(self, done: Callable[[], None], token: int) -> None:
        """Commit. If that fails, memory and store are two different things: the daemon ends."""
        session = self._session
        try:
            self.tx.commit(done, client=session.client_id, token=token)
        except Exception as error:  # noqa: BLE001  # told to the instance, which stops
            session.commit_broke(error)


class Alone(Work):
    """A request that is its own transaction (CLP-34, RCV-16)."""

    __slots__ = ("_request", "_token")

    def __init__(self, session: ClientSession, request: int, token: int) -> None:
        super().__init__(session)
        self._request = request
        self._token = token

    def abort(self, reason: str) -> None:
        """Too old: it fails and has no effect."""
        self.give_up()
        self._session.left(self)
        self._session.failed(self._request, TransactionAborted(reason))

    def _fail(self, error: BrokerError) -> None:
        self.tx.roll_back()
        self._session.left(self)
        self._session.failed(self._request, error)

    def _hold_up(self, blocked: Blocked) -> None:
        """Wait; only for locks does what was written later not wait as well (CLP-31).

        So it is while a body is looked into, of a dialog that others know: its group is locked."""
        what = blocked.what
        locked = what == "lock" or (what == CHECK and not self.tx.has_begun)
        self._session.waits(self, orderly=not locked)
        self._wait(blocked)


class OneShot(Alone):
    """A whole transaction in one request (CLP-34)."""

    __slots__ = ("_at", "_verbs")

    def __init__(
        self,
        session: ClientSession,
        request: int,
        token: int,
        verbs_: tuple[wire.PlainVerb, ...],
    ) -> None:
        super().__init__(session, request, token)
        self._verbs = verbs_
        self._at = 0

    def _go_on(self) -> None:
        """Run verbs until one has to wait or all are done, then commit."""
        session, request, todo = self._session, self._request, self._verbs
        if not self._at and session.repeated(request, self._token, receives=False):
            self.tx.roll_back()
            session.left(self)
            return
        try:
            while self._at < len(todo):
                blocked = perform(self.tx, todo[self._at])
                if blocked is not None:
                    self._hold_up(blocked)
                    return
                self._at += 1
        except BrokerError as error:
            self._fail(error)
            return
        if self._turn and session.repeated(request, self._token, receives=False):
            self.tx.roll_back()
        else:
            self._commit(lambda: session.confirmed((request,)), self._token)
        session.left(self)


class AutoReceive(Alone):
    """A receive that is its own transaction (RCV-16): it never waits for a message."""

    __slots__ = ("_receive",)

    def __init__(
        self, session: ClientSession, request: int, receive: receives.ReceiveRequest, token: int
    ) -> None:
        super().__init__(session, request, token)
        self._receive = receive

    def _go_on(self) -> None:
        """Receive, then commit under the token; an empty result uses none up (CLP-35)."""
        session, request, tx = self._session, self._request, self.tx
        if session.repeated(request, self._token, receives=True):
            tx.roll_back()
            session.left(self)
            return
        try:
            taken = receives.receive(tx, self._receive)
        except BrokerError as error:
            self._fail(error)
            return
        if isinstance(taken, Blocked):
            self._hold_up(taken)
            return
        if not taken:
            tx.roll_back()
            session.left(self)
            session.answer(request, [])
            return
        values = message_values(session, taken)
        self._commit(lambda: session.received(request, values), self._token)
        session.left(self)


class Unfit(msgspec.Struct, frozen=True):
    """A request of a transaction that could not be taken: it fails in its place (CLP-37)."""

    error: BrokerError
    answered: bool = False
    """The client was told at once; only those behind it have to learn of it."""


class OpenTx(Work):
    """A transaction that lasts over several requests; they run in the order they came."""

    __slots__ = (
        "_blameless",
        "_busy",
        "_cancelled",
        "_first_failure",
        "_given_up",
        "_receive",
        "_todo",
        "number",
        "used_at",
    )

    def __init__(self, session: ClientSession, number: int) -> None:
        super().__init__(session)
        self.number = number
        self._todo: deque[tuple[int, wire.Verb | Unfit]] = deque()
        self._busy = False
        self._receive: receives.ReceiveRequest | None = None
        self._cancelled: set[int] = set()
        self._given_up: str | None = None
        self._blameless = False  # it failed for what others had, or for want of room (PBT-10)
        self._first_failure = ""
        self.used_at = session.now()

    @property
    def is_idle(self) -> bool:
        """Whether no request of it runs or waits."""
        return not self._busy

    @property
    def in_the_way(self) -> bool:
        """Whether it has done, or is doing, what administration has to wait for (MAN-1).

        One that only waits for a message has not."""
        waits_for_message = self._receive is not None and self.tx.waiting is not None
        return bool(self.tx.locked) or (self._busy and not waits_for_message)

    def add(self, request: int, verb: wire.Verb | Unfit) -> None:
        """Take the next request."""
        self._todo.append((request, verb))
        self.used_at = self._session.now()
        if not self._busy:
            self.go_on()
        elif self._undoes(verb):
            self._interrupt()

    def _undoes(self, verb: wire.Verb | Unfit) -> bool:
        """Whether this undoes the request that waits, once its turn comes (CLP-113)."""
        if isinstance(verb, wire.RollbackTo):
            return verb.number in self.tx.savepoints
        return isinstance(verb, wire.Rollback) and not any(
            isinstance(other, wire.Commit) for _, other in self._todo
        )

    def _interrupt(self) -> None:
        """What waits is to be undone: it fails now, so that nobody waits for what it holds."""
        self._turn += 1
        self.tx.stop_waiting()
        request, verb = self._todo[0]
        self._failed(request, verb, TransactionAborted("it was rolled back while it waited"))
        self.go_on()

    def fail_behind(self, error: BrokerError) -> None:
        """A request was refused and answered at once: what comes after it has failed too."""
        if not (self._todo and isinstance(self._todo[-1][1], Unfit)):
            self.add(-1, Unfit(error, answered=True))

    def cancel(self, request: int) -> None:
        """CANCEL: end a waiting receive with the empty list, also one that waits its turn."""
        if not any(number == request for number, _ in self._todo):
            return
        if self._todo[0][0] == request and self._receive is not None:
            self._receive.give_up()
        else:
            self._cancelled.add(request)

    def give_up(self) -> None:
        """The client is gone: roll back."""
        self._todo.clear()
        self._roll_back(self._session.undone_by_the_end)

    def abort(self, reason: str) -> None:
        """Too old or idle: roll back; what waits, and what comes, is told (CLP-37)."""
        if self._given_up is None:
            self._given_up = reason
            self._roll_back()
            self.go_on()

    @property
    def is_over(self) -> bool:
        """Whether the daemon has given it up."""
        return self._given_up is not None

    def _go_on(self) -> None:
        """Run requests until one has to wait or none is left."""
        self._busy = True
        while self._todo:
            request, verb = self._todo[0]
            try:
                outcome = self._run(request, verb)
            except StoreFault:
                raise  # the daemon stops; nobody knows what was written
            except BrokerError as error:
                self._failed(request, verb, error)
                continue
            if isinstance(outcome, Blocked):
                self._wait(outcome)
                return
            self._todo.popleft()
            if outcome is NOTHING:
                self._session.done(request)
            elif outcome is not _LATER:
                self._session.answer(request, outcome)
            if isinstance(verb, wire.Commit | wire.Rollback):
                break
        self._busy = False
        self.used_at = self._session.now()
        if not self._session.has(self):
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        """What was written behind the request that ended the transaction (CLP-32)."""
        for request, verb in self._todo:
            if not (isinstance(verb, Unfit) and verb.answered):
                self._session.no_such_tx(request, self.number)
        self._todo.clear()

    def _failed(self, request: int, verb: wire.Verb | Unfit, error: BrokerError) -> None:
        """A request failed: so have all behind it (CLP-37)."""
        self._todo.popleft()
        self._stop_receiving()
        if self.tx.state is TxState.OPEN:
            self.tx.state = TxState.FAILED
            self._first_failure = error.code
        if isinstance(error, DeadlockVictim):
            self._given_up = error.message
            self._roll_back()
        self._blameless |= isinstance(error, (LockTimeout, StoreFull, Busy))
        if not (isinstance(verb, Unfit) and verb.answered):
            self._session.failed(request, error)

    def _run(self, request: int, verb: wire.Verb | Unfit) -> object:
        tx, session = self.tx, self._session
        if isinstance(verb, wire.Rollback):
            session.forget(self.number)
            self._roll_back(_undone(verb.options))
            return NOTHING
        if isinstance(verb, wire.RollbackTo) and self._given_up is None:
            tx.roll_back_to(verb.number)
            return NOTHING
        if tx.state is not TxState.OPEN:
            return self._refuse(request, verb)
        if isinstance(verb, Unfit):
            raise verb.error
        if isinstance(verb, wire.Commit):
            self._run_commit(request, verb.token)
            return _LATER
        return self._run_verb(request, verb)

    def _run_verb(self, request: int, verb: wire.Verb) -> object:
        tx = self.tx
        match verb:
            case wire.Receive():
                return self._run_receive(request, verb)
            case wire.GetGroup():
                return self._run_get_group(request, verb)
            case wire.GetState(group_id, take_lock):
                tx.verb = "get_state"
                return groups.get_state(tx, GroupId(group_id), take_lock=take_lock)
            case wire.ResendPending(old, new):
                tx.verb = "resend_pending"
                resent = resend_pending(tx, Handle(old), Handle(new))
                return resent if isinstance(resent, Blocked) else list(map(astuple, resent))
            case wire.Begin():
                return NOTHING
            case (
                wire.Send()
                | wire.BeginDialog()
                | wire.End()
                | wire.Move()
                | wire.SetTimer()
                | wire.SetState()
                | wire.Savepoint()
            ):
                blocked = perform(tx, verb)
                return NOTHING if blocked is None else blocked
            case _:
                raise AssertionError(f"{verb!r} is not for a transaction")

    def _refuse(self, request: int, verb: wire.Verb | Unfit) -> object:
        """Behind a failed request nothing has an effect; a commit ends the transaction."""
        self._cancelled.discard(request)
        reason = self._given_up or "an earlier request of this transaction failed"
        if isinstance(verb, wire.Commit):
            self._session.forget(self.number)
            self._blameless |= self._first_failure in verb.not_counted
            self._roll_back(Undone(error=reason))
            self._session.failed(request, TransactionAborted(reason))
            return _LATER
        raise TransactionAborted(reason)

    def _run_commit(self, request: int, token: int) -> None:
        session = self._session
        session.forget(self.number)
        if session.repeated(request, token, receives=False):  # nothing of this one (CLP-51)
            self._roll_back()
        else:
            self._commit(lambda: session.confirmed((request,)), token)

    def _run_receive(self, request: int, verb: wire.Receive) -> object:
        session = self._session
        receive = self._begin_receiving(request, verb)
        if receive is None:
            return []
        taken = receives.receive(self.tx, receive)
        if isinstance(taken, Blocked):
            return self._may_wait(taken)
        self._stop_receiving()
        return message_values(session, taken)

    def _run_get_group(self, request: int, verb: wire.GetGroup) -> object:
        receive = self._begin_receiving(request, verb)
        if receive is None:
            return None
        group = receives.get_group(self.tx, receive)
        if isinstance(group, Blocked):
            return self._may_wait(group)
        self._stop_receiving()
        return None if group is None else group.group_id

    def _begin_receiving(
        self, request: int, verb: wire.Receive | wire.GetGroup
    ) -> receives.ReceiveRequest | None:
        """The request from its first try on; None = it was cancelled before that, or is to come
        back empty."""
        if self._receive is None:
            self.tx.verb = "receive" if isinstance(verb, wire.Receive) else "get_group"
            self._receive = to_receive(verb)
            if request in self._cancelled:
                self._cancelled.discard(request)
                self._stop_receiving()
                return None
            if not self._session.told_receive(self._receive):
                self._stop_receiving()
                return None
        return self._receive

    def _may_wait(self, blocked: Blocked) -> Blocked:
        if blocked.what == "message":
            self._session.may_wait(self)
        return blocked

    def _stop_receiving(self) -> None:
        if self._receive is not None:
            self._receive.over()
            self._receive = None
        self._session.waits_no_more(self)

    def _roll_back(self, how: Undone | None = None) -> None:
        """`how`: what it may mean for poison; None = it never counts (PBT-10)."""
        self._turn += 1
        self._stop_receiving()
        queues = [] if self.tx.state is TxState.FINISHED else self.tx.took_messages
        if how is not None and queues:
            how = self._session.judged(how, blameless=self._blameless)
        self.tx.roll_back(how)
        self._session.told_rolled_back(queues)


def _undone(options: wire.RollbackOptions) -> Undone:
    return Undone(
        error=options.error,
        counts=options.counts,
        retry_after=None if options.retry_ms is None else options.retry_ms / 1000,
        park=options.park,
    )


_LATER: Final = object()
"""The answer comes when the commit is durable, or has been given."""


def to_receive(verb: wire.Receive | wire.GetGroup) -> receives.ReceiveRequest:
    """The request that the verb asks for."""
    wait: float | None = None
    if verb.wait_ms is not None:
        wait = receives.FOREVER if verb.wait_ms == wire.FOREVER_MS else verb.wait_ms / 1000
    if isinstance(verb, wire.GetGroup):
        return receives.ReceiveRequest(verb.queue, wait=wait)
    return receives.ReceiveRequest(
        verb.queue,
        max_messages=verb.max_messages,
        conversation=None if verb.conversation is None else Handle(verb.conversation),
        group=None if verb.group is None else GroupId(verb.group),
        wait=wait,
    )


def message_values(session: ClientSession, taken: list[Taken]) -> list[list[object]]:
    """Received messages as they stand in an answer (CLP-36)."""
    values: list[list[object]] = []
    codes: dict[str, str] = {}
    for live, messages, *_ in taken:
        endpoint = live.endpoint
        handle, conversation_id, service = (
            endpoint.handle,
            endpoint.conversation_id,
            endpoint.service,
        )
        contract, priority, group_id = endpoint.contract, endpoint.priority, live.group.group_id
        for one in messages:
            kind, body, timer_name = one.message_type, one.body, None
            if one.sequence == TIMER:  # its row keeps the name where others have a body (DLG-42)
                timer_name, body = (body or b"").decode() or None, None
            code = codes.get(kind)
            if code is None:
                code = codes[kind] = session.validation(kind)
            values.append(
                [
                    handle,
                    conversation_id,
                    group_id,
                    one.sequence,
                    kind,
                    body,
                    service,
                    contract,
                    one.order,
                    priority,
                    one.enqueued_at,
                    one.deliveries,
                    one.message_id,
                    code,
                    timer_name,
                ]
            )
    return values
