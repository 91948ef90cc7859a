"""Model: transactions of several clients against the world, and who waits for whom.

PURE.  A request is run to its end or as far as a lock lets it; `settle` lets go on whoever can,
in the order the specification gives (CLP-31, RCV-20, RCV-21). Deadlocks are found when they arise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tests.model.reference.catalog import Catalog
from tests.model.reference.receiving import Receiving, Seen
from tests.model.reference.state import (
    Begin,
    Group,
    Message,
    MustWait,
    Refused,
    Send,
    SetTimer,
    Transaction,
)

ABORTED = "transaction_aborted"
LOCK_TIMEOUT = "lock_timeout"
VICTIM = "deadlock_victim"

Verb = tuple[str, dict[str, Any]]
"""The name of a method of the model, and its arguments."""


@dataclass(eq=False)
class Request:
    """Verbs asked for at once in one transaction, and what becomes of them."""

    tx: Transaction
    verbs: list[Verb]
    commits: bool = False
    """Whether the commit is part of the request."""
    wait: float | None = None
    """Seconds a receive or get_group may wait; infinity is for ever."""
    number: int = 0
    """Place among those who wait."""
    blocked_by: Group | None = None
    deadline: float | None = None
    """When its waiting ends by itself."""
    finished: bool = False
    value: object = None
    codes: tuple[str, ...] = ()
    """Any of these if it has failed."""
    results: list[object] = field(default_factory=list)
    locks: int = 0
    """For how many locks it has waited and got them."""
    upto: int | None = None
    """How many of its verbs may be run by now; None = all."""
    unfinished: bool = False
    """Whether it is not over yet when all of them have been run."""

    def __post_init__(self) -> None:
        self.all_verbs = list(self.verbs)

    @property
    def pauses(self) -> bool:
        """Whether its next verb is not to be run yet."""
        return self.upto is not None and len(self.all_verbs) - len(self.verbs) >= self.upto


@dataclass(frozen=True)
class _Joined:
    """A commit that is not durable yet."""

    hidden: list[Message]
    keeper: Transaction | None
    """Whose locks last until it is."""
    flush: object


class Model(Receiving):
    """The whole model of one broker."""

    def __init__(self, catalog: Catalog, *, lock_timeout: float) -> None:
        super().__init__(catalog)
        self.lock_timeout = lock_timeout
        self.waiting: list[Request] = []
        self.open: list[Transaction] = []
        self.seen: Callable[[Request], Seen] = lambda request: ()
        """What the real answer to a request names, to decide what the specification leaves open."""
        self.answered: Callable[[Request], int | None] = lambda request: None
        """Which answer it was that a request got, the first or a later one; None = none yet."""
        self.went_on: Callable[[Request], int | None] = lambda request: None
        """When a request went on that has to do so next; None = not yet. Where several groups
        become free at once, it decides who is first."""
        self.timers_first: Callable[[], bool] = lambda: False
        """Whether timers that were due before their commit came before anybody else got what the
        commit has freed; the specification says only that they come within a tick (PER-23)."""
        self.flush: Callable[[Transaction], object] = id
        """In which flush the latest commit of that client was: what is flushed together becomes
        visible together, and the specification leaves open what is."""
        self._joined: list[_Joined] = []
        self._is_flushing = False
        self._numbers = 0

    # Transactions.

    def begin(self, client: str, number: int = 0) -> Transaction:
        """Open a transaction."""
        self._numbers += 1
        tx = Transaction(client, number, opened=self._numbers)
        self.open.append(tx)
        return tx

    def ask(self, request: Request, upto: int | None = None, *, commits: bool = True) -> None:
        """Run a request as far as it goes, then whoever can go on because of it.

        `upto`: run so many of its verbs; it is asked again for the others, and what is asked
        meanwhile comes in between. `commits`: if these are all, it is over."""
        request.upto, request.unfinished = upto, not commits
        if not request.finished and request not in self.waiting:
            self._start(request)
        self.settle()

    def _start(self, request: Request) -> None:
        self._try(request)
        if not (request.finished or request.pauses):
            self._wait(request)

    def commit(self, tx: Transaction) -> tuple[str, ...]:
        """Commit; the codes of a refusal, or nothing."""
        if tx.failed:
            self.roll_back(tx)
            return (ABORTED,)
        self._commit(tx)
        self.settle()
        return ()

    def roll_back(self, tx: Transaction) -> None:
        """Undo everything (RCV-15); a request of it that waits fails."""
        self._undo(tx)
        for request in [one for one in self.waiting if one.tx is tx]:
            self._finish(request, codes=(ABORTED,))
        tx.over = True
        if tx in self.open:
            self.open.remove(tx)
        self.settle()

    def savepoint(self, tx: Transaction, number: int) -> None:
        """Set a savepoint (CLP-112)."""
        tx.savepoints[number] = tx.snapshot()

    def roll_back_to(self, tx: Transaction, number: int) -> None:
        """Undo what was done since; locks stay, so nobody can go on but who wants messages."""
        assert not tx.given_up, "it has nothing to go back to"
        for request in [one for one in self.waiting if one.tx is tx]:
            self._finish(request, codes=(ABORTED,))  # CLP-113
        tx.back_to(tx.savepoints[number])
        tx.savepoints = {key: one for key, one in tx.savepoints.items() if key <= number}
        self.settle()

    def cancel(self, request: Request) -> None:
        """CLP-40: what still waits for messages is answered with nothing."""
        if not request.finished and request.blocked_by is None:
            self._finish(request, value=_nothing(request))

    def switch_off(self, queue: str) -> None:
        """Nobody waits any longer for a message of the queue (RCV-19, GRP-17)."""
        self.off.add(queue)
        for request in list(self.waiting):
            if request.blocked_by is None and request.verbs[0][1]["queue"] == queue:
                request.tx.failed = True
                self._finish(request, codes=("queue_disabled",))
                if request.commits:
                    self.roll_back(request.tx)

    def crash(self) -> None:
        """Only what is committed is left (MAN-12)."""
        self.waiting.clear()
        for tx in list(self.open):
            self._undo(tx)
            tx.over = True
        self.open.clear()
        for endpoint in self.endpoints:
            for message in endpoint.messages:
                message.rollbacks = message.doubtful = 0

    def later(self, until: float) -> None:
        """Let time pass, with everything that falls due on the way."""
        while True:
            ends = [one.deadline for one in self.waiting if one.deadline is not None]
            at = min((*ends, *self.deadlines()), default=until)
            at = min(at, until)
            self.pass_time(at)
            for request in list(self.waiting):
                if request.deadline is not None and request.deadline <= at:
                    self._timed_out(request)
            self.settle()
            if at >= until:
                return

    # Requests.

    def _try(self, request: Request) -> None:
        """Run what is left of it."""
        tx = request.tx
        if tx.failed:
            self._finish(request, codes=(ABORTED,))
            return
        try:
            while request.verbs:
                if request.pauses or not self._run(request):
                    return
                request.verbs.pop(0)
        except MustWait as needed:
            request.blocked_by = needed.group
            return
        except Refused as refused:
            tx.failed = True
            self._finish(request, codes=refused.codes)
            if request.commits:
                self.roll_back(tx)
            return
        if request.unfinished:
            return
        self._finish(request, value=request.results[-1] if request.results else None)
        if request.commits:
            self._commit(tx)

    def _run(self, request: Request) -> bool:
        """Run its next verb; False if it has to wait for messages."""
        name, args = request.verbs[0]
        if name in ("receive", "get_group"):
            args = args | {"seen": self.seen(request)}
        value = getattr(self, name)(request.tx, **args)
        if name == "get_group" and value is None and request.wait:
            return False
        if name == "receive" and not value and request.wait and args["limit"] != 0:
            return False
        request.results.append(value)
        if name in _KEEPING or (name in _TAKING and value):
            request.tx.keeps_locks = True
        return True

    def _wait(self, request: Request) -> None:
        self._numbers += 1
        request.number = self._numbers
        self.waiting.append(request)
        if request.blocked_by is not None:
            request.deadline = self.now + self.lock_timeout
            self._break_deadlock(request)
        elif request.wait is not None:
            request.deadline = self.now + request.wait

    def settle(self) -> None:
        """Let go on whoever can, until nobody can."""
        while any(self._go_on(request) for request in self._in_turn()):
            pass

    def _in_turn(self) -> list[Request]:
        """Who went on first in the engine, where that is free; else first come."""

        def turn(one: Request) -> tuple[float, bool, int]:
            went_on = self.went_on(one)
            order = float("inf") if went_on is None else went_on
            return order, one.blocked_by is None, one.number

        return sorted(self.waiting, key=turn)

    def _is_first(self, request: Request) -> bool:
        """Whether nobody who has waited longer would get the same (RCV-21)."""
        earlier = [one for one in self.waiting if one.number < request.number]
        queue = request.verbs[0][1]["queue"]
        return not any(
            one.verbs[0][1]["queue"] == queue and self.would_get(one.tx, queue)
            for one in earlier
            if one.blocked_by is None and not _is_selective(one)
        )

    def _go_on(self, request: Request) -> bool:
        """Try again; whether anything has changed."""
        if request.finished:
            return False
        needed = request.blocked_by
        if needed is None and not self._is_first(request):
            return False
        if needed is not None and needed.holder is not request.tx:
            return False
        request.blocked_by = None
        request.locks += needed is not None
        self._try(request)  # what it was wanted for may be gone by now
        if request in self.waiting and needed is not None:
            self.waiting.remove(request)
            if not request.pauses:
                self._wait(request)  # for another group, or for messages
        return needed is not None or request not in self.waiting

    def _timed_out(self, request: Request) -> None:
        if request.blocked_by is None:
            self._finish(request, value=_nothing(request))  # RCV-18
        else:
            request.tx.failed = True
            self._finish(request, codes=(LOCK_TIMEOUT,))  # GRP-11
            if request.commits:
                self.roll_back(request.tx)

    def _finish(
        self, request: Request, *, value: object = None, codes: tuple[str, ...] = ()
    ) -> None:
        request.finished, request.value, request.codes = True, value, codes
        request.blocked_by = None
        if request in self.waiting:
            self.waiting.remove(request)

    # Ends of transactions.

    def _commit(self, tx: Transaction) -> None:
        """It joins the commit pipeline, and is durable in its turn (GRP-4)."""
        hidden = self.apply(tx)
        tx.taken.clear()
        hands_on = not tx.keeps_locks
        hands_on &= all(isinstance(done, Begin | Send | SetTimer) for done in tx.done)
        if hands_on:
            self._release(tx)
        tx.over = True
        self.open.remove(tx)
        self._joined.append(_Joined(hidden, None if hands_on else tx, self.flush(tx)))
        if not self._is_flushing:
            self._flush()

    def _flush(self) -> None:
        """All that has joined becomes durable, and whatever joins because of that; what is flushed
        together is all in its place before anybody gets something of it (GRP-15)."""
        self._is_flushing = True
        if self._joined[0].keeper is None:
            self.settle()
        while self._joined:
            together = next(list(of) for _, of in groupby(self._joined, lambda one: one.flush))
            del self._joined[: len(together)]
            for message in (message for one in together for message in one.hidden):
                message.durable = True
            for one in together:
                if one.keeper is not None:
                    self._release(one.keeper)
            if self.timers_first():
                self.pass_time(self.now)
            self.settle()
        self._is_flushing = False

    def _undo(self, tx: Transaction) -> None:
        for message in tx.taken:
            message.taker = None
            message.rollbacks += 1
        tx.taken.clear()
        tx.done.clear()
        tx.begun.clear()
        self._release(tx)

    def _release(self, tx: Transaction) -> None:
        freed, tx.locked = tx.locked, []
        for group in freed:
            group.holder = None
            self._hand_over(group)

    def _hand_over(self, group: Group) -> None:
        """Give a released lock to its longest waiter (CLP-31)."""
        line = [one for one in self.waiting if one.blocked_by is group]
        if line:
            self.take_lock(min(line, key=lambda one: one.number).tx, group)

    # Deadlocks.

    def _break_deadlock(self, request: Request) -> None:
        """Abort the youngest transaction of a circle of lock waits (GRP-12)."""
        circle: list[Transaction] = []
        tx: Transaction | None = request.tx
        while tx is not None and tx not in circle:
            circle.append(tx)
            tx = self._awaited_by(tx)
        if tx is not request.tx:
            return
        begun_last = max(circle, key=lambda one: one.opened)
        locked_last = max(circle, key=lambda one: one.age or 0)  # the age of CLP-61
        waiting = {one.tx: one for one in self.waiting}
        victim = begun_last if self.answered(waiting[begun_last]) is not None else locked_last
        waits = waiting[victim]
        self._finish(waits, codes=(VICTIM, ABORTED))
        self._undo(victim)
        victim.failed = victim.given_up = True

    def _awaited_by(self, tx: Transaction) -> Transaction | None:
        for request in self.waiting:
            if request.tx is tx and request.blocked_by is not None:
                return request.blocked_by.holder
        return None


_KEEPING = frozenset({"end", "get_state", "set_state"})
_TAKING = frozenset({"receive", "get_group"})
"""What else than begins, sends and timers a transaction may have done (GRP-4), undone or not."""


def _is_selective(request: Request) -> bool:
    args = request.verbs[0][1]
    return any(args.get(name) is not None for name in ("conversation", "group"))


def _nothing(request: Request) -> object:
    return None if request.verbs[0][0] == "get_group" else []
