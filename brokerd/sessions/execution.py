"""The work of a session under way, and requests that are their own transaction (CLP-34).

Reads: parsed requests.      Calls: verb_dispatch, fast_requests, verbs.receives, transaction.
Never: writes to the client; it reports the outcome of each request to its session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from brokerd.broker.blocked import Blocked
from brokerd.broker.transaction import Transaction
from brokerd.delivery.fastpath.sends import Message
from brokerd.errors import BrokerError, TransactionAborted
from brokerd.ids import Handle
from brokerd.model import DEFAULT
from brokerd.protocol import client_verbs as wire
from brokerd.sessions.fast_requests import send_held_up
from brokerd.sessions.verb_dispatch import judge, message_values, perform
from brokerd.verbs import receives
from brokerd.verbs.body_checks import CHECK
from brokerd.verbs.large_bodies import STORED

if TYPE_CHECKING:
    from brokerd.sessions.session import ClientSession


class Work(ABC):
    """Work that a session has under way; a callback resumes it where it stopped."""

    __slots__ = ("_session", "_turn", "tx")

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._turn = 0
        self.tx = Transaction(session.broker, session.owner)
        self.tx.rights = session.rights

    def go_on(self) -> None:
        """Run until the work has to wait or is done. An unforeseen error ends the connection."""
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self._session.broke(error)

    def give_up(self) -> None:
        """Roll back, because the client is gone; nothing is answered any more."""
        self._turn += 1
        self.tx.roll_back()

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the work on the daemon's decision, and answer the reason (CLP-37)."""

    def next_to_check(self) -> object:
        """Return the next verb whose body may be checked ahead of its turn, each verb once.

        None = there is none at present."""
        return None

    @abstractmethod
    def _go_on(self) -> None:
        """Run everything that can run now."""

    def _wait(self, blocked: Blocked) -> None:
        """Resume once, when the wait ends; a callback of an earlier turn has no effect."""
        self._turn += 1
        turn = self._turn

        def resume() -> None:
            if turn == self._turn:
                self._turn += 1
                self.go_on()

        blocked.then(resume)

    def _commit(self, done: Callable[[], None], token: int) -> None:
        """Commit. If that fails, memory and store may differ, and the instance stops."""
        session = self._session
        try:
            self.tx.commit(done, client=session.client_id, token=token)
        except Exception as error:  # noqa: BLE001  # reported to the instance, which stops
            session.commit_broke(error)


def body_size(verb: object) -> int:
    """Return the bytes of the body that the verb sends; 0 = none."""
    return len(verb.body) if type(verb) is wire.Send and verb.body else 0


class Alone(Work):
    """A request that is its own transaction (CLP-34, RCV-16)."""

    __slots__ = ("_request", "_token", "size")

    def __init__(self, session: ClientSession, request: int, token: int, size: int = 0) -> None:
        super().__init__(session)
        self._request = request
        self._token = token
        self.size = size
        """Bytes of the bodies that the request sends."""

    def abort(self, reason: str) -> None:
        """Fail the request, without effect, because it is too old."""
        self.give_up()
        self._session.left(self)
        self._session.failed(self._request, TransactionAborted(reason))

    def _fail(self, error: BrokerError) -> None:
        self.tx.roll_back()
        self._session.left(self)
        self._session.failed(self._request, error)

    def _hold_up(self, blocked: Blocked) -> None:
        """Wait; if it is for a lock, let requests written later start (CLP-31).

        Waiting for the check or the storing of a body on an existing dialog counts as such: its
        group is locked."""
        what = blocked.what
        locked = what == "lock" or (what in {CHECK, STORED} and not self.tx.has_begun)
        self._session.waits(self, orderly=not locked)
        self._wait(blocked)


class OneShot(Alone):
    """A whole transaction in one request (CLP-34)."""

    __slots__ = ("_at", "_prepared", "_verbs")

    def __init__(
        self,
        session: ClientSession,
        request: int,
        token: int,
        verbs_: tuple[wire.PlainVerb, ...],
    ) -> None:
        super().__init__(session, request, token, sum([body_size(verb) for verb in verbs_]))
        self._verbs = verbs_
        self._at = 0
        self._prepared = 0  # verbs that `next_to_check` has returned or passed over

    def next_to_check(self) -> wire.PlainVerb | None:
        """Return the next verb that has not run."""
        at = max(self._prepared, self._at)
        if at == len(self._verbs):
            return None
        self._prepared = at + 1
        return self._verbs[at]

    def _go_on(self) -> None:
        """Run verbs until one has to wait or all are done, then commit."""
        session, request, todo = self._session, self._request, self._verbs
        if not self._at and session.repeated(request, self._token, receives=False):
            self.tx.roll_back()
            session.left(self)
            return
        if self._turn and not self._at and self._send_held_up():
            # Only after a wait and before the first verb has run: `tx` then has locks and nothing
            # else, so the fast path may take them over.
            session.left(self)
            return
        try:
            while self._at < len(todo):
                judge(self.tx)
                blocked = perform(self.tx, todo[self._at])
                if blocked is not None:
                    if not self._turn and (blocked.what != CHECK or len(todo) > 1):
                        self._prepared = self._at  # dialogs it has begun are known only now
                        session.checks_ahead.begin(self)
                    self._hold_up(blocked)
                    return
                self._at += 1
        except BrokerError as error:
            self._fail(error)
            return
        if self._turn and session.repeated(request, self._token, receives=False):
            # Looked up again after a wait: the token may have been committed meanwhile (CLP-51).
            self.tx.roll_back()
        else:
            self._commit(lambda: session.confirmed((request,)), self._token)
        session.left(self)

    def _send_held_up(self) -> bool:
        """Perform on the fast path a request that has waited. False = nothing was done."""
        if self.tx.rights is not None or self.tx.failure is not None:
            return False
        messages: list[Message] = []
        for verb in self._verbs:
            if type(verb) is not wire.Send or type(verb.handles) is not bytes:
                return False
            messages.append((Handle(verb.handles), verb.message_type or DEFAULT, verb.body))
        return send_held_up(self._session, self._request, self._token, messages, self.tx)


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
