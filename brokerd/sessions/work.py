"""Work that a client has under way, and requests that are their own transaction (CLP-34).

Reads: parsed requests.      Calls: verb_dispatch, fast_requests, verbs.receives, transaction.
Never: writes to the client; it reports the outcome of each request to its client.
Wakes: when the wait of blocked work ends.
Fails: an unforeseen error ends the connection; one in a commit stops the instance (REL-5).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from brokerd.broker.blocked import Blocked
from brokerd.broker.poison import Undone
from brokerd.broker.transaction import Transaction
from brokerd.delivery.fastpath.sends import Message
from brokerd.errors import BrokerError, OutcomeUnknown, TransactionAborted
from brokerd.ids import Handle
from brokerd.model import DEFAULT
from brokerd.protocol import client_verbs as wire
from brokerd.sessions.fast_requests import send_held_up
from brokerd.sessions.ports import Client
from brokerd.sessions.verb_dispatch import message_values, perform, raise_failure
from brokerd.verbs import receives
from brokerd.verbs.body_checks import CHECK
from brokerd.verbs.large_bodies import STORED


class Work(ABC):
    """Work that a client has under way; a callback resumes it where it stopped."""

    __slots__ = ("_client", "_turn", "tx")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turn = 0
        self.tx = Transaction(client.broker, client.owner)
        self.tx.restrict(client.rights)

    def run(self) -> None:
        """Run until the work has to wait or is done; an unforeseen error ends the connection."""
        try:
            self._run_until_blocked()
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self._client.broke(error)

    def give_up(self, how: Undone | None = None) -> None:
        """Roll back without an answer, because the client is disconnected.

        how: what the rollback may mean for poison (PBT-10)."""
        self._turn += 1
        self.tx.roll_back(how)

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the work by decision of the daemon, and answer with the reason (CLP-37)."""

    def next_to_check(self) -> object:
        """Return the next verb whose body may be checked ahead of its turn, each verb once.

        None = no verb can be checked at present."""
        return None

    @abstractmethod
    def _run_until_blocked(self) -> None:
        """Run until the work has to wait or is done."""

    def _wait(self, blocked: Blocked) -> None:
        """Resume once, when the wait ends; a callback of an earlier turn has no effect."""
        self._turn += 1
        turn = self._turn

        def resume() -> None:
            if turn == self._turn:
                self._turn += 1
                self.run()

        blocked.then(resume)

    def _commit(self, done: Callable[[], None], token: int) -> None:
        """Commit; if the commit fails, stop the instance, because memory and store may differ."""
        client = self._client
        try:
            self.tx.commit(done, client=client.client_id, token=token)
        except Exception as error:  # noqa: BLE001  # reported to the instance, which stops
            client.commit_broke(error)

    def _answer_repetition(self, request: int, token: int, *, receives: bool) -> bool:
        """Answer a request whose token was committed already (CLP-51, CLP-52).

        Return False if the token was not committed, and the request has to run."""
        client = self._client
        store = client.broker.store
        if token > store.highest_token(client.client_id):
            return False
        outcome = store.token_outcome(client.client_id, token)
        if outcome == wire.NOT_COMMITTED:
            return False
        if outcome == wire.COMMITTED and not receives:
            client.responses.done(request)
        else:
            client.responses.failed(request, OutcomeUnknown(f"token {token}: {outcome}"))
        return True


def body_size(verb: object) -> int:
    """Return the size in bytes of the body that the verb sends; 0 = no body."""
    return len(verb.body) if type(verb) is wire.Send and verb.body else 0


class Independent(Work):
    """A request that is its own transaction (CLP-34, RCV-16)."""

    __slots__ = ("_request", "_token", "size")

    def __init__(self, client: Client, request: int, token: int, size: int = 0) -> None:
        super().__init__(client)
        self._request = request
        self._token = token
        self.size = size
        """Total size in bytes of the bodies that the request sends."""

    def abort(self, reason: str) -> None:
        """Roll the request back and fail it, because it is too old."""
        self.give_up()
        self._client.line.remove(self)
        self._client.responses.failed(self._request, TransactionAborted(reason))

    def _fail(self, error: BrokerError) -> None:
        self.tx.roll_back()
        self._client.line.remove(self)
        self._client.responses.failed(self._request, error)

    def _hold_up(self, blocked: Blocked) -> None:
        """Wait; if the wait is for a lock, let requests written later start (CLP-31).

        A wait for the check or the storing of a body on an existing dialog counts as a wait for
        a lock, because the group is locked."""
        what = blocked.what
        locked = what == "lock" or (what in {CHECK, STORED} and not self.tx.has_begun)
        if locked:
            self._client.line.unblock_behind(self)
        self._wait(blocked)


class OneShot(Independent):
    """A whole transaction in one request (CLP-34)."""

    __slots__ = ("_at", "_prepared", "_verbs")

    def __init__(
        self,
        client: Client,
        request: int,
        token: int,
        verbs_: tuple[wire.PlainVerb, ...],
    ) -> None:
        super().__init__(client, request, token, sum([body_size(verb) for verb in verbs_]))
        self._verbs = verbs_
        self._at = 0
        self._prepared = 0  # verbs that `next_to_check` has returned or passed over

    def next_to_check(self) -> wire.PlainVerb | None:
        """Return the next verb that has neither run nor been returned; None = no such verb."""
        at = max(self._prepared, self._at)
        if at == len(self._verbs):
            return None
        self._prepared = at + 1
        return self._verbs[at]

    def _run_until_blocked(self) -> None:
        """Run verbs until one has to wait or all are done, then commit."""
        client, request, todo = self._client, self._request, self._verbs
        if not self._at and self._answer_repetition(request, self._token, receives=False):
            self.tx.roll_back()
            client.line.remove(self)
            return
        if self._turn and not self._at and self._send_held_up():
            # Only after a wait and before the first verb has run: `tx` then has nothing but locks,
            # which the fast path may take over.
            client.line.remove(self)
            return
        try:
            while self._at < len(todo):
                raise_failure(self.tx)
                blocked = perform(self.tx, todo[self._at], client)
                if blocked is not None:
                    if not self._turn and (blocked.what != CHECK or len(todo) > 1):
                        self._prepared = self._at  # dialogs it has begun are known only now
                        client.line.checks.begin(self)
                    self._hold_up(blocked)
                    return
                self._at += 1
        except BrokerError as error:
            self._fail(error)
            return
        if self._turn and self._answer_repetition(request, self._token, receives=False):
            # Looked up again after a wait: the token may have been committed meanwhile (CLP-51).
            self.tx.roll_back()
        else:
            self._commit(lambda: client.responses.confirmed((request,)), self._token)
        client.line.remove(self)

    def _send_held_up(self) -> bool:
        """Perform a request that has waited, on the fast path; False = nothing was done."""
        if self.tx.failure is not None:
            return False
        messages: list[Message] = []
        for verb in self._verbs:
            if type(verb) is not wire.Send or type(verb.handles) is not bytes:
                return False
            messages.append((Handle(verb.handles), verb.message_type or DEFAULT, verb.body))
        return send_held_up(self._client, self._request, self._token, messages, self.tx)


class AutoReceive(Independent):
    """A receive that is its own transaction, and never waits for a message (RCV-16)."""

    __slots__ = ("_receive",)

    def __init__(
        self, client: Client, request: int, receive: receives.ReceiveRequest, token: int
    ) -> None:
        super().__init__(client, request, token)
        self._receive = receive

    def _run_until_blocked(self) -> None:
        """Receive, then commit under the token, which an empty result leaves unused (CLP-35)."""
        client, request, tx = self._client, self._request, self.tx
        if self._answer_repetition(request, self._token, receives=True):
            tx.roll_back()
            client.line.remove(self)
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
            client.line.remove(self)
            client.responses.answer(request, [])
            return
        values = message_values(client.broker, taken)
        self._commit(lambda: client.responses.received(request, values), self._token)
        client.line.remove(self)
