"""One client connection on the daemon's side: frames in, verbs run, answers out (CLP).

Reads: bytes of one client.      Calls: execution, open_transaction, client_frames, client_verbs.
Never: waits; blocked work calls back. No answer is written before its commit is durable (REL-1).
Fails: a client that breaks the protocol loses its connection, nobody else is affected (CLP-5).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.groups import ends_by_itself
from brokerd.broker.poison import Undone
from brokerd.broker.queues import QueueState
from brokerd.broker.transaction import Transaction
from brokerd.errors import BrokerError, Busy, NoSuchTx, OutcomeUnknown
from brokerd.ids import ClientId, show
from brokerd.protocol import client_frames as frames
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.client_readers import RequestReader
from brokerd.security.grants import Rights
from brokerd.sessions.admin_gate import HeldBack
from brokerd.sessions.early_body_checks import ChecksAhead
from brokerd.sessions.execution import Alone, AutoReceive, OneShot, Work
from brokerd.sessions.fast_requests import send_at_once
from brokerd.sessions.open_transaction import OpenTx, Unfit
from brokerd.sessions.response_buffer import Answers
from brokerd.sessions.verb_dispatch import to_receive
from brokerd.transport.door import Seat
from brokerd.verbs.receives import ReceiveRequest

if TYPE_CHECKING:
    from brokerd.sessions.registry import Sessions

UNSENT_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of answers unsent to a client at which its requests are no longer read (CLP-62)."""
_MOST_GROUPS: Final = 20
"""Groups that a log line about a transaction names."""
_LINGER: Final = 10.0
"""Seconds that a client may take to read what was written before its connection closes."""


_ENDING_VERBS: Final = frozenset({"commit", "rollback"})
"""Verbs that end a transaction. Always taken, because a refused one would leave locks (CLP-30)."""
_WRITER: Final = "writer"
_TURN: Final = "turn"
"""Reasons for pausing the reading of requests."""


class ClientSession(asyncio.Protocol):
    """One connection of one client."""

    broker: Broker
    client_id: ClientId
    known_as: bytes
    """The id by which activation knows the client: the token of a child it started, else the client
    id."""
    owner = "a client before HELLO"
    rights: Rights | None = None
    """Rights of the client's user; None = everything is allowed."""
    seat: Seat | None = None
    """Place at the door, if the connection was accepted from a socket (END-18)."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(span_limit=sessions.span_limit)
        self._transport: asyncio.Transport | None = None
        self._unread: deque[frames.ClientFrame] = deque()
        self._welcomed = False
        self._transactions: dict[int, OpenTx] = {}
        self._highest_tx = 0
        self._untaken: set[int] = set()
        self._outstanding = 0
        self.waiting_bytes = 0
        """Bytes of the bodies of requests that were taken and are not done."""
        self.checks_ahead = ChecksAhead(self.broke)
        self._starting: deque[Alone] = deque()
        self._under_way: dict[Alone, None] = {}
        self._receiving: set[OpenTx] = set()
        self._answers = Answers()
        self._is_taking = False
        self._paused: set[str] = set()
        self._draining = False
        self._held_back: HeldBack | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._login: asyncio.TimerHandle | None = None
        """Ends a connection whose HELLO does not come (CLP-10)."""
        self._works = False
        """Whether the client has asked for work that the writer does. A client that only reads is
        answered however far behind the writer is (REL-34)."""
        self.heard_at = sessions.clock.monotonic()
        self.undone_by_the_end: Undone | None = None
        """Meaning for poison of the rollback of transactions that the end leaves open (PBT-10)."""
        self.closed = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the wait for HELLO, before which the client may ask for nothing (CLP-10)."""
        self._transport = self._answers.transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_LIMIT)
        self.rights = self._sessions.principals.rights(transport)
        if self.seat is not None:
            self.seat.occupied(self._turned_out)
        limit = self._sessions.options.login_timeout
        self._login = self._loop.call_later(limit, self._too_slow)
        self._sessions.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Roll back the client's transactions at once, because it is gone (REL-18)."""
        if self._ending is not None:
            self._ending.cancel()
        if self.seat is not None:
            self.seat.leave()
        self._transport = self._answers.transport = None
        if not self._draining and not self.closed:
            self.undone_by_the_end = _CUT
        self._end()

    def pause_writing(self) -> None:
        """Stop reading requests, because the client does not read its answers (CLP-62)."""
        self.pause("answers")

    def resume_writing(self) -> None:
        """Read requests again: the client reads its answers."""
        self.resume("answers")
        self._read_on()

    def data_received(self, data: bytes) -> None:
        """Take the requests that arrived, and stop reading if the writer is behind."""
        self.heard_at = self._sessions.clock.monotonic()
        if self._welcomed:
            self.broker.store.breathe()
        try:
            self._unread.extend(self._reader.feed(data))
            self._take_frames()
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self.broke(error)
            return
        # One call takes a bounded number of frames; the rest waits a turn, so that one client that
        # writes much does not hold up the others (REL-32).
        if self._reader.has_more and not self.closed:
            self.pause(_TURN)
            self._loop.call_soon(self._next_turn)
        if self._works and not self.closed and self._sessions.is_congested(self):
            self._sessions.hold(self)

    def _next_turn(self) -> None:
        """Go on with what was read, now that the other connections had their turn (REL-32)."""
        if not self.closed:
            self.resume(_TURN)
            self.data_received(b"")

    def broke(self, error: Exception) -> None:
        """End this connection after an unforeseen error; nobody else is affected."""
        self._sessions.log.error(
            "broker.daemon", subclass="client_failed", client=self.owner, exc_info=error
        )
        self.close(None)

    def commit_broke(self, error: Exception) -> None:
        """Stop the instance: a commit was begun and could not be handed over (REL-5)."""
        self.close(None)
        self._sessions.stop_for(error)

    # Frames.

    def _take_frames(self) -> None:
        """Act on what was read, until the client has to read its answers first (CLP-62)."""
        self._is_taking = True
        try:
            self._take_each()
        finally:
            self._is_taking = False
        # A client at its limit may be waiting for these answers before it asks for more (CLP-30).
        unanswered = self._outstanding + self._answers.unheard
        self._answers.settle(at_once=2 * unanswered >= self._sessions.options.outstanding)

    def _take_each(self) -> None:
        unread = self._unread
        while unread and not self.closed and "answers" not in self._paused:
            frame = unread[0]
            if type(frame) is not frames.Request:
                unread.popleft()
                self._other(frame)
                continue
            if frame.verb == "transact" and self._may_send_at_once:
                room = self._sessions.options.outstanding - self._outstanding
                sent = send_at_once(self, unread, room)
                if sent:
                    self._works = True
                    self._outstanding += sent
                    for _ in range(sent):
                        unread.popleft()
                    continue
            unread.popleft()
            self._request(frame)

    @property
    def _may_send_at_once(self) -> bool:
        """Whether no earlier request has to come first, so that the fast path is open (CLP-31,
        CLP-71)."""
        free = not self._starting and self._held_back is None and self.rights is None
        return self._welcomed and free and not self._draining and not self.is_loaded

    def _read_on(self) -> None:
        try:
            self._take_frames()
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self.broke(error)

    def _other(self, frame: frames.ClientFrame) -> None:
        if isinstance(frame, frames.Violation):
            self.close(f"{frames.VIOLATION}: {frame.reason}")
        elif isinstance(frame, frames.Hello):
            self._stop_login()
            self._sessions.greet(self, frame)  # once: a second HELLO is a Violation
        elif not self._welcomed:
            self.close(f"{frames.VIOLATION}: a frame before WELCOME")
        else:
            self._small(frame)

    def _small(self, frame: frames.ClientFrame) -> None:
        match frame:
            case frames.Ping(number):
                self._answers.write(frames.encode_pong(number))
            case frames.Cancel(request):
                for one in self.open_transactions:
                    one.cancel(request)
                if self._held_back is not None:  # its receive may be held back
                    self._held_back.frames.append(frame)
            case frames.Unreadable(request, error, tx):
                self._outstanding += 1
                self._unfit(request, tx, error)
            case _:
                raise AssertionError("the reader gives nothing else")

    def _stop_login(self) -> None:
        if self._login is not None:
            self._login.cancel()
            self._login = None

    def _too_slow(self) -> None:
        self.close(f"{frames.LATE}: no HELLO within {self._sessions.options.login_timeout:g} s")

    def _turned_out(self) -> None:
        """Close a connection that has not logged in, to make room for another (END-18)."""
        self.close(f"{frames.LATE}: no HELLO while others waited")

    def admitted(self) -> None:
        """Notify the door that HELLO was accepted."""
        if self.seat is not None:
            self.seat.log_in()

    def welcome(self, welcome: frames.Welcome) -> None:
        """Write WELCOME: the client may ask from now on."""
        self._welcomed = True
        self._reader.login_done()
        self._answers.soon = self.broker.store.soon
        self._answers.write(frames.encode_welcome(welcome))

    def refuse(self, error: BrokerError) -> None:
        """Answer HELLO with an error and close (CLP-12)."""
        self._answers.write(frames.encode_failed(0, error))
        self.close(None)

    def _request(self, frame: frames.Request) -> None:
        if not self._welcomed:
            self.close(f"{frames.VIOLATION}: a request before WELCOME")
            return
        if self._draining and self._starts_something(frame):
            return  # neither taken nor answered: the client asks again elsewhere (CLP-71)
        if self._held_back is not None and self._held_back.takes(frame):
            return  # taken when the administration has ended (MAN-1)
        tx, request = frame.tx, frame.request
        # Counted before anything can fail: `failed` and `answer` uncount it in every case.
        # A refused `begin` uses its number up, too: later ones must be above it (CLP-32).
        self._outstanding += 1
        opens = frame.verb == "begin" and tx is not None and tx > self._highest_tx
        if opens and tx is not None:
            self._highest_tx = tx
        try:
            full = self._outstanding > self._sessions.options.outstanding
            if full and frame.verb not in _ENDING_VERBS:
                raise Busy(f"{self._sessions.options.outstanding} requests are unanswered")
            if tx is None:
                self._alone(frame)
            else:
                self._in_tx(frame, tx, opens=opens)
        except BrokerError as error:
            self._unfit(request, tx, error)

    def _unfit(self, request: int, tx: int | None, error: BrokerError) -> None:
        """Fail a request that cannot be taken, and with it the rest of its transaction (CLP-37)."""
        open_tx = None if tx is None else self._transactions.get(tx)
        if open_tx is None:
            self.failed(request, error)
        elif isinstance(error, Busy):  # answered now: queuing it would make the backlog unbounded
            self.failed(request, error)
            open_tx.fail_behind(error)
        else:
            open_tx.add(request, Unfit(error))

    def _starts_something(self, frame: frames.Request) -> bool:
        if frame.tx is not None and frame.verb == "begin":
            self._untaken.add(frame.tx)
        return frame.tx is None or frame.tx in self._untaken

    def _alone(self, frame: frames.Request) -> None:
        request = frame.request
        verb = wire.parse_request(None, frame.verb, frame.args)
        match verb:
            case wire.Transact(token, verbs):
                self._works = True
                self._start(OneShot(self, request, token, verbs))
            case wire.Receive():
                assert verb.token is not None, "checked when it was parsed"
                receive = to_receive(verb)
                self.told_receive(receive)
                self._works = True
                self._start(AutoReceive(self, request, receive, verb.token))
            case wire.TxOutcome(token):
                outcome = self.broker.store.token_outcome(self.client_id, token)
                self.answer(request, outcome)
            case _:
                self._sessions.administer(self, request, verb)

    def repeated(self, request: int, token: int, *, receives: bool) -> bool:
        """Answer a token that was committed already (CLP-51, CLP-52). False = it was not."""
        store = self.broker.store
        if token > store.highest_token(self.client_id):
            return False
        outcome = store.token_outcome(self.client_id, token)
        if outcome == wire.NOT_COMMITTED:
            return False
        if outcome == wire.COMMITTED and not receives:
            self.done(request)
        else:
            self.failed(request, OutcomeUnknown(f"token {token}: {outcome}"))
        return True

    def _in_tx(self, frame: frames.Request, number: int, *, opens: bool) -> None:
        open_tx = self._transactions.get(number)
        if opens:
            self._open(frame, number)
        elif frame.verb == "begin":
            error = NoSuchTx(f"transaction {number} is not above {self._highest_tx}")
            self.failed(frame.request, error)
        elif open_tx is None:
            self.no_such_tx(frame.request, number)
        elif not open_tx.do_at_once(frame):
            open_tx.add(frame.request, wire.parse_request(number, frame.verb, frame.args))

    def _open(self, frame: frames.Request, number: int) -> None:
        if frame.args:
            wire.parse_request(number, frame.verb, frame.args)  # raises: begin has no arguments
        self._sessions.may_open(self)
        open_tx = self._transactions[number] = OpenTx(self, number)
        self._works = True
        self._sessions.transactions += 1
        open_tx.begin(frame.request)

    # Administration of the broker (MAN-1).

    def hold_back(self) -> None:
        """Begin nothing new until `go_on`; open transactions that hold locks may finish."""
        if self._held_back is None:
            most = self._sessions.options.outstanding
            self._held_back = HeldBack(
                self._transactions, full=lambda: self.pause("administration"), most=most
            )

    def go_on(self) -> None:
        """Take the requests that were held back, in the order in which they were written."""
        held, self._held_back = self._held_back, None
        self.resume("administration")
        if held is not None:
            self._unread.extendleft(reversed(held.frames))
            self._read_on()

    @property
    def in_the_way(self) -> list[Work]:
        """Work of this client that has to end before its broker can be administered."""
        open_ones = [one for one in self.open_transactions if one.in_the_way]
        return [*open_ones, *dict.fromkeys((*self._under_way, *self._starting))]

    def abort_all(self, reason: str) -> None:
        """Roll back begun work that keeps an administrative operation waiting."""
        begun = [one for one in self.open_transactions if one.in_the_way]
        for work in (*begun, *self._under_way):
            work.abort(reason)

    def freed(self) -> None:
        """Notify an operation that keeps this client out: a transaction has ended, or is idle or
        waits, and may not be in the way any more (MAN-1)."""
        if self._held_back is not None:
            self._sessions.exclusive.finished()

    # Work under way.

    def _start(self, work: Alone) -> None:
        """Begin independent requests in the order in which they were written (CLP-31)."""
        self.add_waiting(work.size)
        if self._starting:
            self._starting.append(work)
            self.checks_ahead.begin(work)
        else:
            self._starting.append(work)
            self._start_first()

    def _start_first(self) -> None:
        while self._starting:
            first = self._starting[0]
            self._under_way[first] = None
            first.go_on()
            if self._starting and self._starting[0] is first:
                return  # blocked, and with it the requests behind it

    def waits(self, work: Alone, *, orderly: bool) -> None:
        """Record that work is blocked; unless `orderly`, let the requests behind it start."""
        if not orderly and self._starting and self._starting[0] is work:
            self._starting.popleft()
            self._loop.call_soon(self._start_next)

    def left(self, work: Alone) -> None:
        """Remove work that has ended, and start the next request."""
        self._under_way.pop(work, None)
        self.checks_ahead.drop(work)
        self.waiting_bytes -= work.size
        if self._starting and self._starting[0] is work:
            self._starting.popleft()
            if self._starting:
                self._loop.call_soon(self._start_next)
        self.freed()

    def _start_next(self) -> None:
        if self._starting and self._starting[0] not in self._under_way and not self.closed:
            self._start_first()

    def add_waiting(self, size: int) -> None:
        """Add the bytes of a request's bodies to those of the requests that wait.

        They count until the request is done, as they stay in memory so long.

        Raises:
            Busy: the request has a body, and too many bytes of bodies wait already (CLP-30).
        """
        if size and self.is_loaded:
            raise Busy(f"requests of this client wait with {self.waiting_bytes} bytes of bodies")
        self.waiting_bytes += size

    @property
    def is_loaded(self) -> bool:
        """Whether the bodies of waiting requests exceed what one transaction may have; further
        requests with a body are refused then (CLP-30)."""
        return self.waiting_bytes > self.broker.options.max_bytes

    def waits_no_longer(self, size: int) -> None:
        """Uncount the bytes of a request that is done or has failed."""
        self.waiting_bytes -= size

    @property
    def is_worked_on(self) -> bool:
        """Whether some of its work ends without a further request of the client."""
        return any(ends_by_itself(tx) for tx in self.transactions)

    @property
    def transactions(self) -> list[Transaction]:
        """Transactions of the client: the open ones, and those of single requests under way."""
        return [work.tx for work in (*self._under_way, *self._transactions.values())]

    def may_wait(self, one: OpenTx) -> None:
        """Count a receive that is about to wait for a message; raise `Busy` if too many wait."""
        if one not in self._receiving:
            self._sessions.may_wait(len(self._receiving))
            self._receiving.add(one)
            self._sessions.waiting += 1

    def waits_no_more(self, one: OpenTx) -> None:
        """Uncount a receive that no longer waits."""
        if one in self._receiving:
            self._receiving.discard(one)
            self._sessions.waiting -= 1

    # Outcomes, from the work.

    def done(self, request: int) -> None:
        """Report that a request without a value succeeded."""
        self.done_all((request,))

    def done_all(self, requests: Sequence[int]) -> None:
        """Report that requests without a value succeeded."""
        self._answers.done(requests)
        self._outstanding -= len(requests)
        if self._draining:
            self._close_if_done()

    def done_inside(self, request: int, transaction: OpenTx) -> None:
        """Report that a request without a value succeeded in an open transaction.

        Outside `_take_frames` the request was resumed by a callback, and no `settle` follows: write
        its answer now."""
        if not self._is_taking or self._draining:
            self.done(request)
            return
        self._answers.done_inside(request, transaction)
        self._outstanding -= 1

    def confirmed(self, requests: Sequence[int]) -> None:
        """Report that the commits that these requests asked for are durable.

        Never raises: the same flush confirms commits of other clients."""
        try:
            self.done_all(requests)
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self._confirm_broke(requests, error)

    def received(self, request: int, messages: list[list[object]]) -> None:
        """Report that a receive with its own transaction is durable. Never raises, as above."""
        try:
            self.answer(request, messages)
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self._confirm_broke((request,), error)

    def _confirm_broke(self, requests: Sequence[int], error: Exception) -> None:
        """Answer `outcome_unknown`: the commit stands, but its answer failed (CLP-120)."""
        self._sessions.log.error(
            "broker.daemon", subclass="client_failed", client=self.owner, exc_info=error
        )
        told = OutcomeUnknown(
            f"it is committed, but the answer failed with {type(error).__name__}: {error}",
            hint="the log of the daemon has the traceback: please report it",
        )
        try:
            for request in requests:
                self.failed(request, told)
        except Exception as again:  # noqa: BLE001  # per connection, as above
            self.broke(again)

    def answer(self, request: int, value: object) -> None:
        """Report that a request succeeded, with its value."""
        if type(value) is frames.Bulky:
            self._answers.write_large(frames.encode_bulky(request, value))
        else:
            self._answers.write(frames.encode_answer(request, value))
        self._outstanding -= 1
        if self._draining:
            self._close_if_done()

    def failed(self, request: int, error: BrokerError) -> None:
        """Report that a request failed."""
        self._answers.write(frames.encode_failed(request, error))
        self._outstanding -= 1
        if self._draining:
            self._close_if_done()

    def no_such_tx(self, request: int, number: int) -> None:
        """Fail a request that names a transaction that is finished or was never begun (CLP-32)."""
        self.failed(request, NoSuchTx(f"transaction {number} is finished or was never begun"))

    def forget(self, number: int) -> None:
        """Remove a finished transaction."""
        if self._transactions.pop(number, None) is not None:
            self._sessions.transactions -= 1
        if self._draining:
            self._close_if_done()
        self.freed()

    def has(self, one: OpenTx) -> bool:
        """Return whether the transaction is still open."""
        return self._transactions.get(one.number) is one

    def told_receive(self, receive: ReceiveRequest) -> bool:
        """Report that a receive begins executing (ACT-6b, ACT-30).

        Return False, and make the receive come back empty, if the session belongs to a reader that
        was asked to end (PBT-25)."""
        if self._sessions.on_receive(self, receive.queue):
            return True
        receive.max_messages = 0
        return False

    def told_rolled_back(self, queues: list[QueueState]) -> None:
        """Report that a transaction that received from these queues rolled back (ACT-6c)."""
        for queue in queues:
            self._sessions.on_rollback(self.broker, queue.name)

    def judged(self, how: Undone, *, blameless: bool) -> Undone | None:
        """Return what a rollback of this client means for poison; None = nothing (PBT-10)."""
        if self._draining:
            return None
        if blameless:
            how = msgspec.structs.replace(how, counts=False)
        return self._sessions.judge(self, how)

    def validation(self, message_type: str) -> str:
        """Return the validation code of a message type as it is declared now (RCV-29)."""
        return self.broker.validation_code(message_type)

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return self._sessions.clock.monotonic()

    # Reading.

    def pause(self, reason: str) -> None:
        """Read no further requests for now."""
        if not self._paused and self._transport is not None:
            self._transport.pause_reading()
        self._paused.add(reason)

    @property
    def is_held(self) -> bool:
        """Whether reading is stopped because the writer is behind; silence means nothing then."""
        return _WRITER in self._paused

    def hold(self) -> None:
        """Read no further until the writer has caught up."""
        self.pause(_WRITER)

    def let_go(self) -> None:
        """Read again: the writer has caught up. The time of the pause does not count as silence."""
        self.heard_at = self.now()
        self.resume(_WRITER)

    def resume(self, reason: str) -> None:
        """Remove one reason for the pause, and read again if it was the last."""
        self._paused.discard(reason)
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # Ending.

    @property
    def holds(self) -> bool:
        """Whether the client has a transaction open or a request waiting (CLP-61)."""
        return bool(self._transactions or self._under_way)

    @property
    def not_ending(self) -> int:
        """Number of open transactions whose end was not requested yet."""
        return sum([not one.is_ending for one in self._transactions.values()])

    @property
    def open_transactions(self) -> list[OpenTx]:
        """Open transactions that last over several requests."""
        return list(self._transactions.values())

    def abort_old(self, now: float) -> int:
        """Roll back transactions that are too old or unused for too long (CLP-61).

        Return their number."""
        options, ended = self._sessions.options, 0
        for one in self.open_transactions:
            if one.is_over:
                continue
            if one.is_idle and now - one.used_at > options.transaction_idle:
                one.abort(f"it was not used for {options.transaction_idle:.0f} s")
                ended += 1
            elif _age(one, now) > options.transaction_age:
                self._too_old(one, now)
                ended += 1
        for work in list(self._under_way):
            if _age(work, now) > options.transaction_age:
                self._too_old(work, now)
                ended += 1
        return ended

    def _too_old(self, work: Work, now: float) -> None:
        """Roll back a transaction, and log the groups that it kept from others (PBT-18)."""
        tx, limit = work.tx, self._sessions.options.transaction_age
        self._sessions.log.warning(
            "broker.daemon",
            subclass="transaction_too_old",
            broker=self.broker.name,
            client=self.owner,
            age_seconds=round(_age(work, now), 3),
            groups=[show(group.group_id) for group in tx.locked[:_MOST_GROUPS]],
            locked=len(tx.locked),
            verbs=tx.summary(),
        )
        work.abort(f"it held locks for {limit:.0f} s")

    def drain(self) -> None:
        """Ask the client to finish and to come back later (CLP-70, CLP-71)."""
        self._answers.write(frames.encode_goodbye(frames.DRAINING))
        self._draining = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self._outstanding and not self._transactions:
            self._loop.call_soon(self._close_drained)

    def _close_drained(self) -> None:
        if not self._outstanding and not self._transactions:
            self.close(None)

    def close(self, reason: str | None) -> None:
        """End the connection, after what is written; open transactions roll back."""
        if self.closed:
            return
        if reason is not None:
            self._answers.write(frames.encode_goodbye(reason))
        self._answers.flush()
        if self._transport is not None:
            self._transport.close()
            self._ending = self._loop.call_later(_LINGER, self._transport.abort)
        self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._stop_login()
        self._unread.clear()
        for one in self.open_transactions:
            self.forget(one.number)
            one.give_up()
        # Requests that have not begun may have checks under way, whose bodies must be forgotten.
        for work in (*self._under_way, *self._starting):
            work.give_up()
        self.checks_ahead.clear()
        self._starting.clear()
        self._under_way.clear()
        self._sessions.ended(self)
        self.freed()

    def describe(self, client_id: ClientId, info: dict[str, str | int]) -> str:
        """Return the name of the client for logs and lock time-outs."""
        return f"client {show(client_id)[:8]} (pid {info.get('pid', '?')})"


_CUT: Final = Undone(disconnect=True, error="its connection was cut in the middle")


def _age(work: Work, now: float) -> float:
    """Return the seconds since the work took its first lock; 0 without a lock."""
    locked_at = work.tx.locked_at
    return 0.0 if locked_at is None else now - locked_at
