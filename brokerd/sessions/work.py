"""Work on the daemon's side of a connection: verbs run in order within a transaction (CLP-31).

Reads: parsed requests.      Calls: delivery.verbs, broker.transactions.
Never: writes to the client; it tells its session the outcome of each request.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from brokerd.broker.blocked import Blocked
from brokerd.broker.queues import QueuedMessage
from brokerd.broker.transactions import Transaction, TxState
from brokerd.delivery import verbs
from brokerd.errors import BrokerError, DuplicateHandle, QuotaExceeded, TransactionAborted
from brokerd.ids import BrokerId, GroupId, Handle
from brokerd.model import DEFAULT
from brokerd.protocol import client_verbs as wire

if TYPE_CHECKING:
    from brokerd.broker.endpoints import Live
    from brokerd.sessions.session import ClientSession

NOTHING: Final = object()
"""A verb succeeded and has no value."""


def perform(tx: Transaction, verb: wire.PlainVerb) -> Blocked | None:
    """Run a verb without a value in a transaction."""
    if tx.verbs >= tx.broker.options.max_verbs:
        raise QuotaExceeded(f"a transaction has at most {tx.broker.options.max_verbs} verbs")
    blocked: Blocked | None = None
    match verb:
        case wire.Send(handles, message_type, body):
            blocked = _send(tx, handles, message_type or DEFAULT, body)
        case wire.BeginDialog():
            blocked = _begin_dialog(tx, verb)
        case wire.End(handle, code, description):
            blocked = verbs.end(tx, Handle(handle), code, description)
        case wire.SetState(group_id, state):
            verbs.set_state(tx, GroupId(group_id), state)
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
        raise DuplicateHandle(f"the handle at position {twice} is given twice")
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
    )
    return verbs.begin_dialog(
        tx, Handle(verb.handle), verb.from_service, verb.to_service, options
    )


class OneShot:
    """A whole transaction in one request (CLP-34)."""

    __slots__ = ("_at", "_request", "_session", "_token", "_verbs", "tx")

    def __init__(
        self,
        session: ClientSession,
        request: int,
        token: int,
        verbs_: tuple[wire.PlainVerb, ...],
    ) -> None:
        self._session = session
        self._request = request
        self._token = token
        self._verbs = verbs_
        self._at = 0
        self.tx = Transaction(session.broker, session.owner)

    def go_on(self) -> None:
        """Run verbs until one has to wait or all are done, then commit."""
        tx, todo = self.tx, self._verbs
        if tx.state is not TxState.OPEN:
            return
        try:
            while self._at < len(todo):
                blocked = perform(tx, todo[self._at])
                if blocked is not None:
                    self._session.waiting.add(self)
                    blocked.then(self.go_on)
                    return
                self._at += 1
        except BrokerError as error:
            tx.roll_back()
            self._leave()
            self._session.failed(self._request, error)
            return
        self._leave()
        request, session = self._request, self._session
        tx.commit(lambda: session.done(request), client=session.client_id, token=self._token)

    def give_up(self) -> None:
        """The client is gone."""
        self.tx.roll_back()

    def _leave(self) -> None:
        self._session.waiting.discard(self)


class AutoReceive:
    """A receive that is its own transaction (RCV-16): it never waits for a message."""

    __slots__ = ("_receive", "_request", "_session", "_token", "tx")

    def __init__(
        self, session: ClientSession, request: int, receive: verbs.ReceiveRequest, token: int
    ) -> None:
        self._session = session
        self._request = request
        self._receive = receive
        self._token = token
        self.tx = Transaction(session.broker, session.owner)

    def go_on(self) -> None:
        """Receive, then commit under the token; an empty result uses none up (CLP-35)."""
        session, request, tx = self._session, self._request, self.tx
        if tx.state is not TxState.OPEN:
            return
        try:
            taken = verbs.receive(tx, self._receive)
        except BrokerError as error:
            tx.roll_back()
            session.waiting.discard(self)
            session.failed(request, error)
            return
        if isinstance(taken, Blocked):
            session.waiting.add(self)
            taken.then(self.go_on)
            return
        session.waiting.discard(self)
        if not taken:
            tx.roll_back()
            session.answer(request, [])
            return
        values = [message_value(session, live, message) for live, message in taken]
        tx.commit(
            lambda: session.answer(request, values), client=session.client_id, token=self._token
        )

    def give_up(self) -> None:
        """The client is gone."""
        self.tx.roll_back()


class OpenTx:
    """A transaction that lasts over several requests; they run in the order they came."""

    __slots__ = ("_busy", "_receive", "_session", "_todo", "number", "tx", "used_at")

    def __init__(self, session: ClientSession, number: int) -> None:
        self._session = session
        self.number = number
        self.tx = Transaction(session.broker, session.owner)
        self._todo: deque[tuple[int, wire.Verb]] = deque()
        self._busy = False
        self._receive: verbs.ReceiveRequest | None = None
        self.used_at = session.now()

    @property
    def is_waiting(self) -> bool:
        """Whether a receive of it waits."""
        return self._receive is not None

    def add(self, request: int, verb: wire.Verb) -> None:
        """Take the next request."""
        self._todo.append((request, verb))
        self.used_at = self._session.now()
        if not self._busy:
            self.go_on()

    def go_on(self) -> None:
        """Run requests until one has to wait or none is left."""
        self._busy = True
        while self._todo and self.tx.state is not TxState.FINISHED:
            request, verb = self._todo[0]
            if self.tx.state is TxState.FAILED and not isinstance(verb, wire.Rollback):
                self._todo.popleft()
                self._refuse(request, verb)
                continue
            try:
                outcome = self._run(request, verb)
            except BrokerError as error:
                self._todo.popleft()
                self._receive = None
                self.tx.state = TxState.FAILED
                if isinstance(verb, wire.Commit):
                    self._finish_rolled_back()
                self._session.failed(request, error)
                continue
            if isinstance(outcome, Blocked):
                outcome.then(self.go_on)
                return
            self._todo.popleft()
            if outcome is NOTHING:
                self._session.done(request)
            elif outcome is not _LATER:
                self._session.answer(request, outcome)
        self._busy = False
        for request, _ in self._todo:  # written behind the request that ended it
            self._session.no_such_tx(request, self.number)
        self._todo.clear()

    def cancel(self, request: int) -> None:
        """CANCEL: end a waiting receive with the empty list (CLP-40)."""
        if self._receive is not None and self._todo and self._todo[0][0] == request:
            self._receive.give_up()

    def give_up(self) -> None:
        """The client is gone, or the transaction is too old: roll back."""
        queues = self.tx.took_messages
        self._todo.clear()
        self._receive = None
        self.tx.roll_back()
        self._session.forget(self.number)
        self._session.told_rolled_back(queues)

    def _run(self, request: int, verb: wire.Verb) -> object:
        tx, session = self.tx, self._session
        match verb:
            case wire.Receive():
                return self._run_receive(verb)
            case wire.GetState(group_id):
                return verbs.get_state(tx, GroupId(group_id))
            case wire.Commit(token):
                tx.commit(
                    lambda: session.done(request), client=session.client_id, token=token
                )
                session.forget(self.number)
                return _LATER
            case wire.Rollback():
                self._finish_rolled_back()
                return NOTHING
            case wire.Begin():
                return NOTHING
            case wire.Send() | wire.BeginDialog() | wire.End() | wire.SetState():
                blocked = perform(tx, verb)
                return NOTHING if blocked is None else blocked
            case _:
                pass
        raise AssertionError(f"{verb!r} is not for a transaction")

    def _run_receive(self, verb: wire.Receive) -> object:
        session = self._session
        if self._receive is None:
            self._receive = to_receive(verb)
            session.told_receive(self._receive)
        taken = verbs.receive(self.tx, self._receive)
        if isinstance(taken, Blocked):
            return taken
        self._receive = None
        return [message_value(session, live, message) for live, message in taken]

    def _refuse(self, request: int, verb: wire.Verb) -> None:
        if isinstance(verb, wire.Commit):
            self._finish_rolled_back()
        self._session.failed(
            request, TransactionAborted("an earlier request of this transaction failed")
        )

    def _finish_rolled_back(self) -> None:
        queues = self.tx.took_messages
        self.tx.roll_back()
        self._session.forget(self.number)
        self._session.told_rolled_back(queues)


_LATER: Final = object()
"""The answer comes when the commit is durable."""


def to_receive(verb: wire.Receive) -> verbs.ReceiveRequest:
    """The request that the verb asks for."""
    wait: float | None = None
    if verb.wait_ms is not None:
        wait = verbs.FOREVER if verb.wait_ms == wire.FOREVER_MS else verb.wait_ms / 1000
    return verbs.ReceiveRequest(
        verb.queue,
        max_messages=verb.max_messages,
        conversation=None if verb.conversation is None else Handle(verb.conversation),
        group=None if verb.group is None else GroupId(verb.group),
        wait=wait,
    )


def message_value(session: ClientSession, live: Live, message: QueuedMessage) -> list[object]:
    """A received message as it stands in an answer (CLP-36)."""
    endpoint = live.endpoint
    return [
        endpoint.handle,
        endpoint.conversation_id,
        endpoint.group_id,
        message.sequence,
        message.message_type,
        message.body,
        endpoint.service,
        endpoint.contract,
        message.order,
        endpoint.priority,
        message.enqueued_at,
        message.deliveries,
        message.message_id,
        session.validation(message.message_type),
    ]
