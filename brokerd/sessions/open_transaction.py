"""Transactions that last over several requests, which run in the order they came (CLP-31).

Reads: parsed requests.      Calls: fast_requests, verb_dispatch, verbs.receives, transaction.
Never: writes to the client; it reports the outcome of each request to its client.
Wakes: when a request is added, or when the wait of the first request ends.
Fails: a failed request fails the requests behind it, until a rollback or commit (CLP-37).
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec
from msgspec.structs import astuple

from brokerd.broker.blocked import Blocked
from brokerd.broker.poison import Undone
from brokerd.broker.transaction import TxState
from brokerd.errors import (
    BrokerError,
    Busy,
    DeadlockVictim,
    LockTimeout,
    NoSuchTx,
    QueueFull,
    StoreFault,
    StoreFull,
    TransactionAborted,
)
from brokerd.ids import GroupId, Handle
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.client_frames import Request
from brokerd.sessions.fast_requests import perform_ordinary
from brokerd.sessions.ports import TransactionClient
from brokerd.sessions.verb_dispatch import (
    message_values,
    perform,
    raise_failure,
    to_receive,
    to_undone,
)
from brokerd.sessions.work import Work, body_size
from brokerd.verbs import groups, receives
from brokerd.verbs.resends import resend_pending

_FAILED: Final = "an earlier request of this transaction failed"
_NOTHING: Final = object()
"""Marker: a verb succeeded and has no value."""
_LATER: Final = object()
"""Marker: the answer comes when the commit is durable, or was written already."""
_ENDINGS: Final = frozenset({wire.Commit, wire.Rollback})


def no_such_transaction(number: int) -> NoSuchTx:
    """Return the error of a request for a transaction that is not open (CLP-32)."""
    return NoSuchTx(f"transaction {number} is finished or was never begun")


class Unfit(msgspec.Struct, frozen=True):
    """A request that was not accepted; its error is reported when its turn comes (CLP-37)."""

    error: BrokerError
    answered: bool = False
    """Whether the client already has the error, so that only later requests fail with it."""


class OpenTx(Work):
    """A transaction that lasts over several requests; they run in the order they came."""

    _client: TransactionClient
    __slots__ = (
        "_blameless",
        "_cancelled",
        "_cause",
        "_first_failure",
        "_given_up",
        "_has_only_begun",
        "_is_committing",
        "_is_removed",
        "_prepared",
        "_receive",
        "_todo",
        "number",
        "used_at",
    )

    def __init__(self, client: TransactionClient, number: int) -> None:
        super().__init__(client)
        self.number = number
        self._todo: deque[tuple[int, wire.Verb | Unfit]] = deque()
        self._prepared = 0  # requests at the head of `_todo` that `next_to_check` has returned
        self.tx.become_idle()
        self._receive: receives.ReceiveRequest | None = None
        self._cancelled: set[int] = set()
        self._given_up: str | None = None
        self._blameless = False  # it failed for others' locks, or for lack of room (PBT-10)
        self._first_failure = self._cause = ""
        self._has_only_begun = self._is_committing = False
        self._is_removed = False  # its commit or rollback ran, or the client is gone
        self.used_at = client.now()

    @property
    def is_idle(self) -> bool:
        """Whether no request of the transaction runs or waits."""
        return self.tx.idle

    @property
    def answers_by_itself(self) -> bool:
        """Whether one more answer comes without a further request (CLP-9).

        It is the answer of the commit, or of a receive directly after `begin` (which comes with a
        message, or when the wait ends)."""
        return self._is_committing or (self._has_only_begun and self._receive is not None)

    @property
    def blocks_administration(self) -> bool:
        """Whether administration waits for this transaction: it holds a lock or is at work (MAN-1).

        A transaction that holds no lock and only waits for a message does not block."""
        waits_for_message = self._receive is not None and self.tx.waiting is not None
        return bool(self.tx.locked) or (not self.is_idle and not waits_for_message)

    def begin(self, request: int) -> None:
        """Report success of the request that opened the transaction."""
        self._has_only_begun = True
        self._client.responses.done_inside(request, self)

    def add(self, request: int, verb: wire.Verb | Unfit) -> None:
        """Append the next request, and run it if no earlier request is pending.

        Raises `Busy` if too many bytes of bodies wait already (CLP-30)."""
        size = body_size(verb)
        if size:
            self._client.line.add_bytes(size)
        self._todo.append((request, verb))
        if self.is_idle:
            self.run()
        elif self._undoes(verb):
            self._interrupt()
        else:
            self._client.line.checks.begin(self)

    def next_to_check(self) -> wire.Verb | Unfit | None:
        """Return the verb of the next request that has neither run nor been returned before.

        None = no such request."""
        if self._prepared >= len(self._todo):
            return None
        self._prepared += 1
        return self._todo[self._prepared - 1][1]

    def _undoes(self, verb: wire.Verb | Unfit) -> bool:
        """Return whether the verb, once its turn comes, undoes the waiting request (CLP-113)."""
        if isinstance(verb, wire.RollbackTo):
            return verb.number in self.tx.savepoints
        return isinstance(verb, wire.Rollback) and not any(
            isinstance(other, wire.Commit) for _, other in self._todo
        )

    def _interrupt(self) -> None:
        """Fail the waiting request, which will be undone and must not keep locks (CLP-113)."""
        # The number of the turn makes the callback of the wait void: it must not resume this
        # request.
        self._turn += 1
        self.tx.stop_waiting()
        request, verb = self._todo[0]
        self._failed(request, verb, TransactionAborted("it was rolled back while it waited"))
        self.run()

    def run_ordinary(self, frame: Request) -> bool:
        """Perform an ordinary request on the fast path, if no earlier request is pending.

        Return False if nothing was done."""
        is_first = self.tx.idle and not self._todo
        if not is_first or self._given_up is not None or self._client.line.is_loaded:
            return False
        if not perform_ordinary(self.tx, frame.verb, frame.args):
            return False
        self._has_only_begun = False
        self.used_at = self._client.now()  # the request may have been held back since it came
        self._client.responses.done_inside(frame.request, self)
        return True

    def fail_behind(self, error: BrokerError) -> None:
        """Make later requests fail with `error`, already sent for a refused request (CLP-37)."""
        if not (self._todo and isinstance(self._todo[-1][1], Unfit)):
            self.add(-1, Unfit(error, answered=True))

    def cancel(self, request: int) -> None:
        """End a receive that waits for a message or for its turn (CANCEL).

        It returns an empty list."""
        if not any(number == request for number, _ in self._todo):
            return
        if self._todo[0][0] == request and self._receive is not None:
            self._receive.give_up()
        else:
            self._cancelled.add(request)

    def give_up(self, how: Undone | None = None) -> None:
        """Roll back, because the client is disconnected.

        how: what the rollback may mean for poison (PBT-10)."""
        self._is_removed = True
        self._todo.clear()
        self._roll_back(how)

    def abort(self, reason: str) -> None:
        """Roll back, because of age or idleness; fail pending and later requests (CLP-37)."""
        if self._given_up is None:
            self._given_up = reason
            self._roll_back()
            self.run()

    @property
    def is_ending(self) -> bool:
        """Whether the commit or rollback of the transaction is pending."""
        return bool(self._todo) and type(self._todo[-1][1]) in _ENDINGS

    @property
    def is_over(self) -> bool:
        """Whether the daemon has given the transaction up."""
        return self._given_up is not None

    def _run_until_blocked(self) -> None:
        """Run requests until one has to wait or all have run."""
        self.tx.become_busy()
        # The request stays first in `_todo` while it runs: a wait resumes it, and CANCEL and
        # CLP-113 find it in `_todo`.
        while self._todo:
            request, verb = self._todo[0]
            try:
                outcome = self._run(request, verb)
            except StoreFault:
                raise  # the daemon stops: it is unknown which rows were written
            except BrokerError as error:
                self._failed(request, verb, error)
                continue
            if isinstance(outcome, Blocked):
                self._wait(outcome)
                # It may wait for a message now, and no longer block administration (MAN-1).
                self._client.gate.work_changed()
                return
            self._remove_first()
            self._has_only_begun = False
            if outcome is _NOTHING:
                self._client.responses.done_inside(request, self)
            elif outcome is not _LATER:
                self._client.responses.answer(request, outcome)
            if type(verb) in _ENDINGS:
                break
        if self._is_removed:  # refuse the requests behind the commit or rollback (CLP-32)
            self._refuse_rest()
        else:
            self.used_at = self._client.now()
            self.tx.become_idle()
            self._client.gate.work_changed()

    def _remove_first(self) -> wire.Verb | Unfit:
        """Remove the first request and return its verb."""
        _, verb = self._todo.popleft()
        self._prepared = max(0, self._prepared - 1)
        size = body_size(verb)
        if size:
            self._client.line.remove_bytes(size)
        return verb

    def _remove(self) -> None:
        """Accept no further requests, because the commit or rollback runs."""
        self._is_removed = True
        self._client.remove_transaction(self.number)

    def _refuse_rest(self) -> None:
        """Fail the requests written after the commit or rollback (CLP-32)."""
        while self._todo:
            request, _ = self._todo[0]
            verb = self._remove_first()
            if not (isinstance(verb, Unfit) and verb.answered):
                self._client.responses.failed(request, no_such_transaction(self.number))

    def _failed(self, request: int, verb: wire.Verb | Unfit, error: BrokerError) -> None:
        """Fail the first request, and with it the transaction (CLP-37)."""
        self._remove_first()
        self._stop_receiving()
        if self.tx.state is TxState.OPEN:
            self.tx.fail()
            self._first_failure = error.code
            self._cause = f"{type(error).__name__}: {error.message}"
        # A deadlock victim rolls back now, not at its ROLLBACK request: the other transactions wait
        # for its locks (GRP-12). A failure caused by others' locks or by lack of room keeps the
        # rollback from counting (PBT-10).
        if isinstance(error, DeadlockVictim):
            self._given_up = error.message
            self._roll_back()
        self._blameless |= isinstance(error, (LockTimeout, StoreFull, QueueFull, Busy))
        if not (isinstance(verb, Unfit) and verb.answered):
            self._client.responses.failed(request, error)

    def _run(self, request: int, verb: wire.Verb | Unfit) -> object:
        tx = self.tx
        if type(verb) is wire.Rollback:
            self._remove()
            self._roll_back(to_undone(verb.options))
            return _NOTHING
        if type(verb) is wire.RollbackTo and self._given_up is None:
            tx.roll_back_to(verb.number)
            self._blameless = False
            return _NOTHING
        if tx.state is not TxState.OPEN:
            return self._refuse(request, verb)
        if isinstance(verb, Unfit):
            raise verb.error
        if type(verb) is wire.Commit:
            self._run_commit(request, verb.token)
            return _LATER
        return self._run_verb(request, verb)

    def _run_verb(self, request: int, verb: wire.Verb) -> object:
        tx = self.tx
        raise_failure(tx)
        match verb:
            case wire.Receive():
                return self._run_receive(request, verb)
            case wire.GetGroup():
                return self._run_get_group(request, verb)
            case wire.GetState(group_id, take_lock):
                tx.begin_verb("get_state")
                return groups.get_state(tx, GroupId(group_id), take_lock=take_lock)
            case wire.ResendPending(old, new):
                tx.begin_verb("resend_pending")
                resent = resend_pending(tx, Handle(old), Handle(new))
                return resent if isinstance(resent, Blocked) else list(map(astuple, resent))
            case (
                wire.Send()
                | wire.BeginDialog()
                | wire.End()
                | wire.Move()
                | wire.SetTimer()
                | wire.SetState()
                | wire.Savepoint()
            ):
                blocked = perform(tx, verb, self._client)
                return _NOTHING if blocked is None else blocked
            case _:
                raise AssertionError(f"{verb!r} is not for a transaction")

    def _refuse(self, request: int, verb: wire.Verb | Unfit) -> object:
        """Refuse a request that follows a failed one; a commit also ends the transaction."""
        self._cancelled.discard(request)
        reason = self._given_up or _FAILED
        if self._given_up is None and self._cause:
            reason = f"{_FAILED}: {self._cause}"
        if isinstance(verb, wire.Commit):
            self._remove()
            self._blameless |= self._first_failure in verb.not_counted
            self._roll_back(Undone(error=self._cause or reason))
            self._client.responses.failed(request, TransactionAborted(reason))
            return _LATER
        raise TransactionAborted(reason)

    def _run_commit(self, request: int, token: int) -> None:
        client = self._client
        self._is_committing = True
        self._remove()
        if self._answer_repetition(request, token, receives=False):  # committed before (CLP-51)
            self._roll_back()
        else:
            self._commit(lambda: client.responses.confirmed((request,)), token)

    def _run_receive(self, request: int, verb: wire.Receive) -> object:
        receive = self._begin_receiving(request, verb)
        if receive is None:
            return []
        taken = receives.receive(self.tx, receive)
        if isinstance(taken, Blocked):
            return self._may_wait(taken)
        self._stop_receiving()
        return message_values(self.tx.broker, taken)

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
        """Return the receive, which is created at its first try and kept while it waits.

        None = answer with an empty list, because the receive was cancelled before its turn, or
        its reader was asked to end."""
        if self._receive is None:
            self.tx.begin_verb("receive" if isinstance(verb, wire.Receive) else "get_group")
            self._receive = to_receive(verb)
            if request in self._cancelled:
                self._cancelled.discard(request)
                self._stop_receiving()
                return None
            if not self._client.report_receive(self._receive.queue):
                self._stop_receiving()
                return None
        return self._receive

    def _may_wait(self, blocked: Blocked) -> Blocked:
        if blocked.what == "message":
            self._client.start_waiting(self.number)
        return blocked

    def _stop_receiving(self) -> None:
        if self._receive is not None:
            self._receive.over()
            self._receive = None
        self._client.stop_waiting(self.number)

    def _roll_back(self, how: Undone | None = None) -> None:
        """Roll back. `how`: what the rollback may mean for poison; None = it never counts
        (PBT-10)."""
        self._turn += 1
        self._stop_receiving()
        queues = [] if self.tx.state is TxState.FINISHED else self.tx.took_messages
        if how is not None and queues:
            how = self._client.evaluate_rollback(how, blameless=self._blameless)
        self.tx.roll_back(how)
        self._client.report_rollback(queues)
