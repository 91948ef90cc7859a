"""What a session has under way, and requests that are transactions of their own (CLP-34).

Reads: parsed requests.      Calls: performing, broker.transaction.
Never: writes to the client; it tells its session the outcome of each request.
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
from brokerd.sessions.verb_dispatch import judge, message_values, perform, prepare
from brokerd.verbs import receives
from brokerd.verbs.body_checks import CHECK
from brokerd.verbs.large_bodies import STORED

if TYPE_CHECKING:
    from brokerd.sessions.session import ClientSession


class Work(ABC):
    """Something that a session has under way; it goes on where it was when it is called back."""

    __slots__ = ("_session", "_turn", "tx")

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._turn = 0
        self.tx = Transaction(session.broker, session.owner)
        self.tx.rights = session.rights

    def go_on(self) -> None:
        """Run until it has to wait or is done. An error nobody foresaw costs the connection."""
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
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


def body_size(verb: object) -> int:
    """Bytes of the body that is to be sent, if one is."""
    return len(verb.body) if type(verb) is wire.Send and verb.body else 0


class Alone(Work):
    """A request that is its own transaction (CLP-34, RCV-16)."""

    __slots__ = ("_request", "_token", "size")

    def __init__(self, session: ClientSession, request: int, token: int, size: int = 0) -> None:
        super().__init__(session)
        self._request = request
        self._token = token
        self.size = size
        """Bytes of the bodies that it is to send."""

    def prepare(self) -> None:
        """Begin what it will wait for, as it may be a while until its turn comes."""

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

        So it is while a body is looked into, or stored, of a dialog that others know: its group is
        locked."""
        what = blocked.what
        locked = what == "lock" or (what in {CHECK, STORED} and not self.tx.has_begun)
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
        super().__init__(session, request, token, sum([body_size(verb) for verb in verbs_]))
        self._verbs = verbs_
        self._at = 0

    def prepare(self) -> None:
        """Begin what the verbs still to be run will wait for, all together."""
        for verb in self._verbs[self._at :]:
            prepare(self.tx, verb)

    def _go_on(self) -> None:
        """Run verbs until one has to wait or all are done, then commit."""
        session, request, todo = self._session, self._request, self._verbs
        if not self._at and session.repeated(request, self._token, receives=False):
            self.tx.roll_back()
            session.left(self)
            return
        if self._turn and not self._at and self._send_held_up():
            session.left(self)
            return
        try:
            while self._at < len(todo):
                judge(self.tx)
                blocked = perform(self.tx, todo[self._at])
                if blocked is not None:
                    if not self._turn and (blocked.what != CHECK or len(todo) > 1):
                        self.prepare()
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

    def _send_held_up(self) -> bool:
        """Send on the quick way what has only been held up; False = nothing was done."""
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
