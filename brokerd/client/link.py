"""Link: the requests of one client, over successive connections (CLP-30, CLP-50 to CLP-72).

Reads:  answers.      Calls: client.dialer, client.connection; the futures of requests.
Never:  has a commit performed twice, guesses an outcome, or keeps more requests than its limits.
Wakes:  at a request, at an answer, when the connection is lost.
Fails:  for good if there is no connection for `retry` seconds; every open request fails with it.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from copy import copy
from operator import attrgetter
from random import Random
from typing import Final

from brokerd.client.address import Connector
from brokerd.client.connection import Connection, until
from brokerd.client.dialer import Dialer
from brokerd.client.failures import Interrupted, rebuild
from brokerd.client.requests import Kind, Pending
from brokerd.client.tokens import Tokens
from brokerd.clock import Clock, elapsed_by
from brokerd.errors import (
    BrokerError,
    Busy,
    ConnectionLost,
    InvalidArgument,
    OutcomeUnknown,
)
from brokerd.protocol.client_frames import (
    DRAINING,
    REPLACED,
    Answer,
    DaemonFrame,
    Done,
    Failed,
    Goodbye,
    Limits,
    Welcome,
    encode_cancel,
    encode_request,
)
from brokerd.protocol.client_verbs import COMMITTED, NOT_COMMITTED

RESERVE: Final = 128
"""Requests and tokens kept free for open transactions, whose locks other requests may wait for."""
BACKLOG: Final = 16_384
"""Number of requests that may wait to be written; a further one fails with `Busy`."""
MOST_LOSSES: Final = 10
"""Number of lost connections after which an unanswered request fails, as it may be the cause."""
CLOSE_WITHIN: Final = 1.0
"""Seconds for a closing connection to write its buffered frames."""
_LIVED: Final = 5.0
_KEPT: Final = 24 * 3600 * 1_000_000_000
"""Nanoseconds for which a broker remembers a client after its last commit, at least (REL-2)."""


def _over(error: BrokerError) -> BrokerError:
    """Return the error for a request on a link that has ended: it is not retryable."""
    over = copy(error)
    over.retryable = False  # type: ignore[misc]  # only of this copy
    over.advise("this session is over: connect again")
    return over


class Link:
    """One client of one broker, which outlives its connections."""

    def __init__(
        self,
        *,
        connector: Connector,
        hello: bytes,
        clock: Clock,
        rng: Random,
        retry: float,
    ) -> None:
        self._dialer = Dialer(connector=connector, hello=hello, clock=clock, rng=rng)
        self.clock = clock
        self._elapsed_ns = elapsed_by(clock)
        self._retry = retry
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._ready = False  # new work may be written
        self._task: asyncio.Task[None] | None = None
        self._dead: BrokerError | None = None
        self._waiting: dict[int, Pending] = {}
        self._unsettled: list[Pending] = []
        self._backlog: deque[Pending] = deque()
        self._number = 0
        self._tokens = Tokens()
        self._next_tx = 0
        self._open_txs: set[int] = set()
        # Requests of open transactions overtake the backlog; all others wait until it is written.
        self._tx_waiters: list[asyncio.Future[None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._replaced = False
        self.limits = Limits()
        self._plain_limit = 0
        self.welcome: Welcome | None = None

    # Start and end.

    async def start(self, wait: float) -> None:
        """Connect, trying for `wait` seconds.

        Raises:
            ConnectionLost: the last attempt failed.
            BrokerError: the refusal of the daemon.
        """
        connection, welcome = await self._dialer.connect(
            self.clock.monotonic() + wait, listener=self
        )
        self._tokens.continue_from(welcome.highest_token)
        self._go_online(connection, welcome)
        self._task = self._loop.create_task(self._run(connection))

    async def close(self) -> None:
        """Close the connection. Unanswered requests fail, written commits with `OutcomeUnknown`.

        Raises: nothing.
        """
        self._die(ConnectionLost("the session is closed", hint="connect again"))
        task, self._task = self._task, None
        connection = self._connection
        if connection is not None:
            connection.close()
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if connection is not None:
            await until(self.clock, self.clock.monotonic() + CLOSE_WITHIN, connection.ended)
            connection.abort()
            await asyncio.wait({connection.ended})

    async def settled(self) -> None:
        """Wait until every requested commit has been answered.

        Raises: nothing.
        """
        while self._dead is None and (
            self._backlog or self._unsettled or not self._tokens.are_settled
        ):
            await _woken(self._waiters)

    @property
    def dead(self) -> BrokerError | None:
        """Error that ended the link for good; None = the link accepts requests."""
        return self._dead

    def counts(self) -> tuple[int, int]:
        """Return the number of unanswered requests, and of requests that are not written yet.

        Raises: nothing.
        """
        return len(self._waiting), len(self._backlog) + len(self._unsettled)

    # Requests.

    def transact(self, verbs: Sequence[object]) -> Pending:
        """Request a whole transaction; its future is done when it is durable, or holds the error.

        Raises: nothing.
        """
        pending = Pending(Kind.TRANSACT, "transact", verbs, self._loop.create_future())
        if self.writes_now():
            self._write(pending)
        else:
            self._queue(pending)
        return pending

    def ask(
        self, verb: str, args: Sequence[object], *, token: bool = False
    ) -> "asyncio.Future[object]":
        """Make a request outside any transaction; return the future of its answer or error.

        Raises: nothing.
        """
        kind = Kind.RECEIVE if token else Kind.PLAIN
        pending = Pending(kind, verb, args, self._loop.create_future())
        self._queue(pending)
        self._drain()
        return pending.future

    async def begin(self) -> tuple[int, Pending]:
        """Open an interactive transaction as soon as there is room; return its number and request.

        If that request is refused, so are all later requests of the transaction.

        Raises:
            ConnectionLost: the session is over.
        """
        while not self._ready or not self._may_begin():
            self._check_alive()
            await _woken(self._tx_waiters)
        self._next_tx += 1
        tx = self._next_tx
        self._open_txs.add(tx)
        return tx, self.in_tx(tx, "begin", ())

    def in_tx(self, tx: int, verb: str, args: Sequence[object]) -> Pending:
        """Write a request of an open transaction at once.

        `Interrupted` is set on the future if the transaction has been lost, and `Busy` if too many
        requests are unanswered.

        Raises: nothing.
        """
        pending = Pending(Kind.IN_TX, verb, args, self._loop.create_future(), tx)
        if tx not in self._open_txs:
            pending.fail(Interrupted())
        elif not self.may_write:
            pending.fail(Busy(f"{len(self._waiting)} requests are unanswered"))
        else:
            self._write(pending)
        return pending

    @property
    def may_write(self) -> bool:
        """Whether a request of a transaction may be written now."""
        return len(self._waiting) < self.limits.outstanding

    async def room_in_tx(self, tx: int) -> None:
        """Wait until a request of this transaction may be written, or the transaction is lost.

        Raises:
            ConnectionLost: the session is over.
        """
        while tx in self._open_txs and len(self._waiting) >= self.limits.outstanding:
            self._check_alive()
            await _woken(self._tx_waiters)

    def commit(self, tx: int, not_counted: Sequence[str] = ()) -> Pending:
        """Commit an open transaction; its future is done when it is durable, or holds the error.

        Raises: nothing.
        """
        args = (list(not_counted),) if not_counted else ()
        pending = Pending(Kind.COMMIT, "commit", args, self._loop.create_future(), tx)
        if tx not in self._open_txs:
            pending.fail(Interrupted())
            return pending
        self._write(pending)
        self._finished(tx)
        return pending

    @property
    def open_transactions(self) -> int:
        """Number of transactions that have begun, and are neither committed nor rolled back."""
        return len(self._open_txs)

    def rollback(self, tx: int, options: dict[str, object] | None = None) -> None:
        """Roll back an open transaction, without waiting for the answer.

        Raises: nothing.
        """
        if tx in self._open_txs:
            args = (options,) if options else ()
            self._write(Pending(Kind.IN_TX, "rollback", args, self._loop.create_future(), tx))
            self._finished(tx)

    def cancel(self, pending: Pending) -> None:
        """Ask the daemon to end the wait of a request (CLP-40); its future is still answered.

        Raises: nothing.
        """
        if self._connection is not None and pending.number in self._waiting:
            self._connection.write(encode_cancel(pending.number))

    def writes_now(self) -> bool:
        """Return whether the next request would be written at once.

        Raises: nothing.
        """
        return self._ready and not self._backlog and self._has_room()

    async def room(self) -> None:
        """Wait until the next request would be written at once.

        Raises:
            ConnectionLost: the session is over.
        """
        while not self.writes_now():
            self._check_alive()
            await _woken(self._waiters)

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise _over(self._dead)

    def _queue(self, pending: Pending) -> None:
        if self._dead is not None:
            pending.fail(_over(self._dead))
        elif len(self._backlog) >= BACKLOG:
            pending.fail(Busy(f"{BACKLOG} requests wait to be written"))
        else:
            self._backlog.append(pending)

    def _has_room(self) -> bool:
        if len(self._waiting) >= self._plain_limit:
            return False
        connection = self._connection
        if connection is None or connection.paused:
            return False
        # Open transactions need a token each for their commits.
        is_many = len(self._open_txs) > RESERVE  # `max` would be a call for each commit
        return self._tokens.may_draw(len(self._open_txs) if is_many else RESERVE)

    def _may_begin(self) -> bool:
        open_txs = len(self._open_txs)
        return (
            open_txs < self.limits.transactions
            and self.may_write
            and self._tokens.may_draw(open_txs)
        )

    def _write(self, pending: Pending) -> None:
        connection = self._connection
        assert connection is not None, "nothing is written without a connection"
        self._number = pending.number = number = self._number + 1
        args = self._arguments(pending)
        try:
            frame = encode_request(number, pending.tx, pending.verb, args)
        except (TypeError, ValueError, OverflowError) as error:
            self._tokens.discard(pending.token)
            pending.fail(InvalidArgument(f"{pending.verb}: {error}"))
            return
        self._waiting[number] = pending
        connection.write(frame)

    def _arguments(self, pending: Pending) -> Sequence[object]:
        kind = pending.kind
        if kind is not Kind.TRANSACT and kind is not Kind.COMMIT and kind is not Kind.RECEIVE:
            return pending.args
        token = pending.token
        if token < 0:
            token = pending.token = self._tokens.draw()
            pending.token_at = self._elapsed_ns()
        if kind is Kind.TRANSACT:
            return (token, pending.args)
        if kind is Kind.COMMIT:
            return (token, *pending.args)
        return (*pending.args, token)

    def _drain(self) -> None:
        """Write the waiting requests, in order, as far as there is room."""
        backlog = self._backlog
        while backlog and self._ready and self._has_room():
            pending = backlog.popleft()
            if not pending.future.cancelled():
                self._write(pending)
        if self._tx_waiters and self.may_write:
            _wake(self._tx_waiters)
        if self._waiters and not backlog:
            _wake(self._waiters)

    # Answers.

    def arrived(self, frames: list[DaemonFrame]) -> None:
        """Settle the requests that these frames answer. Called by the connection.

        Raises: nothing.
        """
        try:
            for frame in frames:
                self._accept(frame)
        except LookupError:  # an answer without a request (CLP-5)
            if self._connection is not None:
                self._connection.abort()
        self._drain()
        self._close_if_idle()

    def writable(self) -> None:
        """Write the waiting requests. Called by the connection when it has room again.

        Raises: nothing.
        """
        self._drain()

    def expects(self) -> bool:
        """Return whether an answer is due. Called by the connection.

        Raises: nothing.
        """
        return bool(self._waiting or self._open_txs)

    def _accept(self, frame: DaemonFrame) -> None:
        if type(frame) is Done:
            waiting = self._waiting
            for number in frame.requests:
                self._settle(waiting.pop(number), None)
        elif type(frame) is Answer:
            self._settle(self._waiting.pop(frame.request), frame.value)
        elif type(frame) is Failed:
            pending = self._waiting.pop(frame.request)
            subject = pending.subject or pending
            self._tokens.discard(subject.token)
            subject.fail(rebuild(frame))
        elif type(frame) is Goodbye:
            self._goodbye(frame.reason)

    def _settle(self, pending: Pending, value: object) -> None:
        if pending.token >= 0:
            if pending.kind is Kind.RECEIVE:
                self._tokens.discard(pending.token)
            else:
                self._tokens.confirm(pending.token)
        if pending.kind is Kind.ASK:
            self._resolve(pending, value)
        elif not pending.future.done():
            pending.future.set_result(value)

    def _resolve(self, ask: Pending, outcome: object) -> None:
        """Settle a commit or a receive whose answer was lost (CLP-54)."""
        subject = ask.subject
        assert subject is not None, "a question has a subject"
        self._tokens.discard(subject.token)
        if outcome == COMMITTED and subject.kind is Kind.COMMIT:
            self._tokens.confirm(subject.token)
            subject.succeed(None)
        elif outcome == NOT_COMMITTED and subject.kind is Kind.COMMIT:
            subject.fail(Interrupted("the connection was lost before the commit took effect"))
        elif outcome == NOT_COMMITTED:
            subject.token = -1
            self._backlog.appendleft(subject)
        elif outcome == COMMITTED:
            subject.fail(OutcomeUnknown("the messages were committed and their answer was lost"))
        else:
            subject.fail(OutcomeUnknown())

    def _goodbye(self, reason: str) -> None:
        if reason == DRAINING:
            self._ready = False
        elif reason == REPLACED:
            self._replaced = True

    def _close_if_idle(self) -> None:
        if not self._ready and self._connection is not None and not self.expects():
            self._connection.close()

    def _finished(self, tx: int) -> None:
        self._open_txs.discard(tx)
        self._wake_all()

    # Loss and replacement of connections.

    def lost(self, connection: Connection) -> None:
        """Fail or keep each unanswered request (CLP-54). Called by the connection when it is lost.

        Raises: nothing.
        """
        if connection is not self._connection:
            return
        self._connection = None
        self._ready = False
        unanswered = list(self._waiting.values())
        self._waiting.clear()
        self._open_txs.clear()
        for pending in unanswered:
            if pending.kind is Kind.IN_TX:
                pending.fail(Interrupted())
            else:
                self._unanswered(pending.subject or pending)
        if self._dead is not None:
            self._give_up(self._dead)

    def _unanswered(self, pending: Pending) -> None:
        """Keep a request for the next connection; fail it after too many lost ones (CLP-120)."""
        pending.losses += 1
        if pending.losses < MOST_LOSSES:
            self._unsettled.append(pending)
            return
        what = f"{pending.losses} connections were lost over one {pending.verb}"
        hint = "it may be what ends them: see the log of the daemon"
        known = pending.token < 0
        self._tokens.discard(pending.token)
        pending.fail((ConnectionLost if known else OutcomeUnknown)(what, hint=hint), quiet=True)

    async def _run(self, connection: Connection) -> None:
        try:
            attempt = 0
            while True:
                began_at = self.clock.monotonic()
                await connection.watch()
                self.lost(connection)
                if self._replaced and not self._dialer.replaced_itself():
                    self._die(ConnectionLost("another connection has taken this client id"))
                    return
                self._replaced = False
                ended_at = self.clock.monotonic()
                if ended_at - began_at < _LIVED:  # welcomed and dropped: wait first
                    await self.clock.sleep_until(ended_at + self._dialer.delay(attempt))
                    attempt += 1
                else:
                    attempt = 0
                connection, welcome = await self._dialer.connect(
                    ended_at + self._retry, listener=self
                )
                self._go_online(connection, welcome)
        except BrokerError as error:
            self._die(error)

    def _go_online(self, connection: Connection, welcome: Welcome) -> None:
        known, self.welcome = self.welcome, welcome
        if known is not None and (
            known.broker_id != welcome.broker_id
            or welcome.highest_token < self._tokens.highest_confirmed
            or (welcome.highest_token < 0 and self._may_be_forgotten())
        ):
            self._another_store(welcome)
        self.limits = welcome.limits
        outstanding = welcome.limits.outstanding
        self._plain_limit = outstanding - min(RESERVE, outstanding // 4)
        self._connection = connection
        self._ready = True
        self._number = 0
        connection.opened()
        unsettled, self._unsettled = self._unsettled, []
        unsettled.sort(key=attrgetter("token"))
        for pending in unsettled:
            self._again(pending)
        self._drain()
        self._wake_all()

    def _may_be_forgotten(self) -> bool:
        """Return whether the broker may have performed an unanswered commit and then forgotten it.

        A broker forgets a client a day after its last commit, at the earliest (REL-2). It counts
        by UTC, so the time in which this machine was suspended counts, too.
        """
        forgotten = self._elapsed_ns() - _KEPT
        return any(one.token >= 0 and one.token_at <= forgotten for one in self._unsettled)

    def _again(self, pending: Pending) -> None:
        """Repeat a request whose answer was lost, or ask for its outcome."""
        if pending.kind is Kind.COMMIT or pending.kind is Kind.RECEIVE:
            future: asyncio.Future[object] = self._loop.create_future()
            ask = Pending(Kind.ASK, "tx_outcome", (pending.token,), future)
            ask.subject = pending
            self._write(ask)
        else:
            self._write(pending)

    def _another_store(self, welcome: Welcome) -> None:
        """Fail the unanswered commits, as this store does not know the client's tokens (CLP-55)."""
        unsettled, self._unsettled = self._unsettled, []
        for pending in unsettled:
            if pending.token >= 0:
                pending.fail(OutcomeUnknown("the broker no longer knows this client's commits"))
            else:
                self._unsettled.append(pending)
        self._tokens.continue_from(welcome.highest_token)

    # Failure for good.

    def _die(self, error: BrokerError) -> None:
        if self._dead is not None:
            return
        self._dead = error
        self._ready = False
        self._give_up(error)

    def _give_up(self, error: BrokerError) -> None:
        """Fail every request, a written commit with `OutcomeUnknown` (CLP-56)."""
        asked = [*self._waiting.values(), *self._unsettled]
        unasked = list(self._backlog)
        self._waiting.clear()
        self._unsettled.clear()
        self._backlog.clear()
        self._tokens.discard_all()
        self._open_txs.clear()
        for pending in asked:
            subject = pending.subject or pending
            subject.fail(OutcomeUnknown() if subject.token >= 0 else copy(error), quiet=True)
        for pending in unasked:
            pending.fail(copy(error), quiet=True)
        self._wake_all()

    def _wake_all(self) -> None:
        _wake(self._tx_waiters)
        _wake(self._waiters)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


async def _woken(waiters: list[asyncio.Future[None]]) -> None:
    """Wait until `_wake` is called with this list; the caller then checks its condition again."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    try:
        await waiter
    finally:
        if waiter in waiters:
            waiters.remove(waiter)
