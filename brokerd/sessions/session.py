"""One client connection on the daemon's side: requests in, responses out, and its end (CLP).

Requests run as `OpenTx`, `OneShot` and `AutoReceive`, which report to `Responses`. Three parts
decide when they run: flow_control stops reading the client's bytes, request_line puts independent
requests in order, and admin_gate holds requests back during administration.

Reads: bytes of one client.      Calls: the requests, client_frames, client_verbs, the registry.
Never: waits; blocked work calls back. No answer is written before its commit is durable (REL-1).
Fails: a client that breaks the protocol loses its connection; others keep theirs (CLP-5).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, cast

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.deadlock import ends_by_itself
from brokerd.broker.poison import Undone
from brokerd.broker.queues import QueueState
from brokerd.broker.transaction import Transaction
from brokerd.clock import Clock
from brokerd.errors import AccessDenied, BrokerError, Busy, NoSuchTx
from brokerd.ids import ClientId, show
from brokerd.protocol import client_frames as frames
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.client_readers import RequestReader
from brokerd.security.grants import PUBLIC, Rights
from brokerd.sessions.admin_gate import ClientGate, Exclusive
from brokerd.sessions.fast_requests import perform_leading
from brokerd.sessions.flow_control import ANSWERS, TURN, Congestion, Reading
from brokerd.sessions.open_transaction import OpenTx, Unfit, no_such_transaction
from brokerd.sessions.options import SessionOptions
from brokerd.sessions.principals import Names, Principals, is_stranger
from brokerd.sessions.request_line import RequestLine
from brokerd.sessions.responses import Responses
from brokerd.sessions.verb_dispatch import to_receive
from brokerd.sessions.work import AutoReceive, OneShot
from brokerd.telemetry.audit import Action, Audit, Outcome
from brokerd.telemetry.log import Log
from brokerd.transport.door import Seat

UNSENT_LIMIT: Final = 4 * 1024 * 1024
"""Number of unsent bytes of answers above which a client's requests are not read (CLP-62)."""
_LINGER: Final = 10.0
"""Seconds that a client may take to read the last answers before its connection is aborted."""


REVOKED: Final = "an administrator has revoked a permission of the client"
_ENDING_VERBS: Final = frozenset({"commit", "rollback"})
"""Verbs that end a transaction. Never refused: a refused one would leave locks (CLP-30)."""


class Clients(Protocol):
    """All clients of an instance, as a session sees them."""

    clock: Clock
    log: Log
    audit: Audit
    options: SessionOptions
    principals: Principals
    exclusive: Exclusive
    congestion: Congestion
    on_receive: Callable[[ClientSession, str], bool]
    """Called with (session, queue) when a receive begins; False = let the receive return empty."""
    on_rollback: Callable[[Broker, str], None]
    """Called with (broker, queue) when a transaction that received from the queue rolls back."""
    evaluate_rollback: Callable[[ClientSession, Undone], Undone | None]
    """Called with (session, meaning for any client); returns what a rollback means for poison
    (PBT-10)."""

    @property
    def span_limit(self) -> int:
        """Largest size of a request in bytes (CLP-22)."""

    def opened(self, session: ClientSession) -> None:
        """Register an accepted connection."""

    def greet(self, session: ClientSession, hello: frames.Hello) -> None:
        """Answer HELLO, now or soon."""

    def ended(self, session: ClientSession) -> None:
        """Unregister a connection that has ended."""

    def add_transaction(self, session: ClientSession) -> None:
        """Count a transaction about to open; raise `Busy` if too many are open."""

    def remove_transaction(self) -> None:
        """Uncount a transaction that is no longer open."""

    def start_waiting(self, own: int) -> None:
        """Count one more waiting receive of a client; raise `Busy` if too many wait.

        `own`: the number of receives of this client that wait already."""

    def stop_waiting(self) -> None:
        """Uncount a receive that no longer waits."""

    def administer(self, session: ClientSession, request: int, verb: wire.Verb) -> None:
        """Begin an administrative verb."""

    def stop_for(self, error: Exception) -> None:
        """Stop the instance with an error (REL-5)."""


class ClientSession(asyncio.Protocol):
    """One connection of one client."""

    broker: Broker
    client_id: ClientId
    known_as: bytes
    """Id of the client in activation: the token of a reader process that activation started, else
    the client id."""
    owner = "a client before HELLO"
    names: Names = ()
    """Names to which the client's rights are granted."""
    rights: Rights | None = None
    """Present rights of the client; None = all rights."""
    user = ""
    """Name of the client's user; empty = it is in this process."""
    seat: Seat | None = None
    """Seat among the limited connections, if this one was accepted from a socket (END-18)."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(span_limit=clients.span_limit)
        self._transport: asyncio.Transport | None = None
        self._unread: deque[frames.ClientFrame] = deque()
        self._welcomed = False
        self.open_transactions: dict[int, OpenTx] = {}
        """Transactions that last over several requests, by their numbers."""
        self._highest_tx = 0
        self._untaken: set[int] = set()
        self._receiving: set[int] = set()
        """Numbers of the transactions whose receive waits for a message."""
        self.responses = Responses(self, most=clients.options.outstanding)
        self.reading = Reading(clients.clock)
        self.gate = ClientGate(
            self, on_change=clients.exclusive.work_changed, most=clients.options.outstanding
        )
        self.line = RequestLine(broke=self.broke, on_end=self.gate.work_changed)
        self._draining = False
        self._ending: asyncio.TimerHandle | None = None
        self._login: asyncio.TimerHandle | None = None
        """Timer that ends the connection if HELLO does not arrive (CLP-10)."""
        self._works = False
        """Whether the client has requested work of the writer. A client that only reads is answered
        no matter how far the writer is behind (REL-34)."""
        self.closed = False

    # asyncio.Protocol

    @property
    def is_stranger(self) -> bool:
        """Whether nothing is known of the client, which may be anybody (SX-17)."""
        return is_stranger(self._transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the wait for HELLO, before which the client may send no request (CLP-10)."""
        self._transport = cast("asyncio.Transport", transport)
        self.responses.transport = self.reading.transport = self._transport
        self._transport.set_write_buffer_limits(high=UNSENT_LIMIT)
        self.names = self._clients.principals.names(transport)
        self.rights = self._clients.principals.rights(self.names)
        self.user = self._clients.principals.user(transport)
        if self.seat is not None:
            self.seat.occupied(self._turned_out)
        limit = self._clients.options.login_timeout
        self._login = self._loop.call_later(limit, self._too_slow)
        self._clients.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Roll back the transactions of the disconnected client at once (REL-18)."""
        if self._ending is not None:
            self._ending.cancel()
        if self.seat is not None:
            self.seat.leave()
        self._transport = self.responses.transport = self.reading.transport = None
        self._end(None if self._draining else _CUT)

    def pause_writing(self) -> None:
        """Stop reading requests, because the client does not read its answers (CLP-62)."""
        self.reading.pause(ANSWERS)

    def resume_writing(self) -> None:
        """Read requests again, because the client reads its answers again."""
        self.reading.resume(ANSWERS)
        self._process_unread()

    def data_received(self, data: bytes) -> None:
        """Process the requests that arrived, and stop reading if the writer is behind."""
        self.reading.record_activity()
        if self._welcomed:
            self.broker.store.breathe()
        try:
            self._unread.extend(self._reader.feed(data))
            self._process()
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self.broke(error)
            return
        # One call reads a bounded number of frames; the rest waits a turn, so that one client that
        # writes much does not hold up the others (REL-32).
        if self._reader.has_more and not self.closed:
            self.reading.pause(TURN)
            self._loop.call_soon(self._next_turn)
        if self._works and not self.closed:
            self._clients.congestion.check(self)

    def _next_turn(self) -> None:
        """Process further bytes, now that the other connections had their turn (REL-32)."""
        if not self.closed:
            self.reading.resume(TURN)
            self.data_received(b"")

    def broke(self, error: Exception) -> None:
        """End this connection, and no other, after an unforeseen error."""
        self.log_failure(error)
        self.close(None)

    def log_failure(self, error: Exception) -> None:
        """Log an unforeseen error."""
        self._clients.log.error(
            "broker.daemon", subclass="client_failed", client=self.owner, exc_info=error
        )

    def audit_refusal(self, error: AccessDenied) -> None:
        """Record that a request was refused for want of a permission (SX-15)."""
        who = self.names[-1] if self.names else PUBLIC
        self._clients.audit.record(
            Action.ACCESS,
            actor=who,
            subject=self.broker.name,
            outcome=Outcome.REFUSED,
            client=self.owner,
            why=error.message,
        )

    def commit_broke(self, error: Exception) -> None:
        """Stop the instance: a begun commit could not be handed to the store (REL-5)."""
        self.close(None)
        self._clients.stop_for(error)

    # Frames.

    def _process(self) -> None:
        """Process received frames, until the client has to read its answers first (CLP-62)."""
        responses = self.responses
        responses.gathers = True
        try:
            self._process_each()
        finally:
            responses.gathers = False
        responses.settle()

    def _process_each(self) -> None:
        unread, paused = self._unread, self.reading.reasons
        while unread and not self.closed and ANSWERS not in paused:
            frame = unread[0]
            if type(frame) is not frames.Request:
                unread.popleft()
                self._other(frame)
                continue
            if frame.verb == "transact" and self._may_take_fast_path:
                room = self._clients.options.outstanding - self.responses.outstanding
                sent = perform_leading(self, unread, room)
                if sent:
                    self._works = True
                    self.responses.expect(sent)
                    for _ in range(sent):
                        unread.popleft()
                    continue
            unread.popleft()
            self._request(frame)

    @property
    def _may_take_fast_path(self) -> bool:
        """Whether the next request may take the fast path (CLP-31, CLP-71).

        No earlier request has to come first, and the client is not draining.
        """
        line = self.line
        free = not line.is_waiting and not self.gate.is_closed
        return self._welcomed and free and not self._draining and not line.is_loaded

    def _process_unread(self) -> None:
        try:
            self._process()
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self.broke(error)

    def _other(self, frame: frames.ClientFrame) -> None:
        if isinstance(frame, frames.Violation):
            self.close(f"{frames.VIOLATION}: {frame.reason}")
        elif isinstance(frame, frames.Hello):
            self._stop_login()
            self._clients.greet(self, frame)  # once: a second HELLO is a Violation
        elif not self._welcomed:
            self.close(f"{frames.VIOLATION}: a frame before WELCOME")
        else:
            self._small(frame)

    def _small(self, frame: frames.ClientFrame) -> None:
        match frame:
            case frames.Ping(number):
                self.responses.write(frames.encode_pong(number))
            case frames.Cancel(request):
                for one in [*self.open_transactions.values()]:
                    one.cancel(request)
                if self.gate.is_closed:
                    self.gate.hold_back_cancel(frame)
            case frames.Unreadable(request, error, tx):
                self.responses.expect(1)
                self._unfit(request, tx, error)
            case _:
                raise AssertionError("the reader gives nothing else")

    def _stop_login(self) -> None:
        if self._login is not None:
            self._login.cancel()
            self._login = None

    def _too_slow(self) -> None:
        self.close(f"{frames.LATE}: no HELLO within {self._clients.options.login_timeout:g} s")

    def _turned_out(self) -> None:
        """Close a connection that has not logged in, to make room for another (END-18)."""
        self.close(f"{frames.LATE}: no HELLO while others waited")

    def admit(
        self, broker: Broker, client_id: ClientId, token: bytes, info: Mapping[str, str | int]
    ) -> None:
        """Log the client in, because HELLO was accepted.

        token: the token of a reader process (ACT-20); empty = the client is not a reader."""
        self.broker, self.client_id = broker, client_id
        self.known_as = token or client_id
        who = self.names[-1] if self.names else self.user
        user = f", {who}" if who else ""
        self.owner = f"client {show(client_id)[:8]} (pid {info.get('pid', '?')}{user})"
        self.line.body_limit = broker.options.max_bytes
        if self.seat is not None:
            self.seat.log_in()

    def welcome(self, welcome: frames.Welcome) -> None:
        """Write WELCOME; from now on the client may send requests."""
        self._welcomed = True
        self._reader.login_done()
        self.responses.soon = self.broker.store.soon
        self.responses.write(frames.encode_welcome(welcome))

    def refuse(self, error: BrokerError) -> None:
        """Answer HELLO with an error and close (CLP-12)."""
        self.responses.write(frames.encode_failed(0, error))
        self.close(None)

    def _request(self, frame: frames.Request) -> None:
        if not self._welcomed:
            self.close(f"{frames.VIOLATION}: a request before WELCOME")
            return
        if self._draining and self._starts_something(frame):
            return  # neither run nor answered: the client repeats it on a new connection (CLP-71)
        if self.gate.is_closed and self.gate.hold_back(frame):
            return  # it runs when the administration has ended (MAN-1)
        tx, request = frame.tx, frame.request
        # Counted before anything can fail: a response uncounts it in every case.
        # A refused `begin` uses its number up, too: later ones must be above it (CLP-32).
        self.responses.expect(1)
        opens = frame.verb == "begin" and tx is not None and tx > self._highest_tx
        if opens and tx is not None:
            self._highest_tx = tx
        try:
            full = self.responses.outstanding > self._clients.options.outstanding
            if full and frame.verb not in _ENDING_VERBS:
                raise Busy(f"{self._clients.options.outstanding} requests are unanswered")
            if tx is None:
                self._independent(frame)
            else:
                self._in_tx(frame, tx, opens=opens)
        except BrokerError as error:
            self._unfit(request, tx, error)

    def _unfit(self, request: int, tx: int | None, error: BrokerError) -> None:
        """Fail a request that cannot run, and with it the rest of its transaction (CLP-37)."""
        open_tx = None if tx is None else self.open_transactions.get(tx)
        if open_tx is None:
            self.responses.failed(request, error)
        elif isinstance(error, Busy):  # answered now: queuing it would make the backlog unbounded
            self.responses.failed(request, error)
            open_tx.fail_behind(error)
        else:
            open_tx.add(request, Unfit(error))

    def _starts_something(self, frame: frames.Request) -> bool:
        if frame.tx is not None and frame.verb == "begin":
            self._untaken.add(frame.tx)
        return frame.tx is None or frame.tx in self._untaken

    def _independent(self, frame: frames.Request) -> None:
        request = frame.request
        verb = wire.parse_request(None, frame.verb, frame.args)
        match verb:
            case wire.Transact(token, verbs):
                self._works = True
                self.line.add(OneShot(self, request, token, verbs))
            case wire.Receive():
                assert verb.token is not None, "checked when it was parsed"
                receive = to_receive(verb)
                if not self.report_receive(receive.queue):
                    receive.max_messages = 0
                self._works = True
                self.line.add(AutoReceive(self, request, receive, verb.token))
            case wire.TxOutcome(token):
                outcome = self.broker.store.token_outcome(self.client_id, token)
                self.responses.answer(request, outcome)
            case _:
                self._clients.administer(self, request, verb)

    def _in_tx(self, frame: frames.Request, number: int, *, opens: bool) -> None:
        open_tx = self.open_transactions.get(number)
        if opens:
            self._open(frame, number)
        elif frame.verb == "begin":
            error = NoSuchTx(f"transaction {number} is not above {self._highest_tx}")
            self.responses.failed(frame.request, error)
        elif open_tx is None:
            self.responses.failed(frame.request, no_such_transaction(number))
        elif not open_tx.run_ordinary(frame):
            open_tx.add(frame.request, wire.parse_request(number, frame.verb, frame.args))

    def _open(self, frame: frames.Request, number: int) -> None:
        if frame.args:
            wire.parse_request(number, frame.verb, frame.args)  # raises: begin has no arguments
        self._clients.add_transaction(self)
        open_tx = self.open_transactions[number] = OpenTx(self, number)
        self._works = True
        open_tx.begin(frame.request)

    def process_first(self, held_back: Iterable[frames.Request | frames.Cancel]) -> None:
        """Process the frames that were held back, before the unprocessed frames."""
        self._unread.extendleft(reversed([*held_back]))
        self._process_unread()

    # Transactions.

    @property
    def is_worked_on(self) -> bool:
        """Whether some work of the client will end without a further request from it."""
        return any(ends_by_itself(tx) for tx in self.transactions)

    @property
    def transactions(self) -> list[Transaction]:
        """Transactions of the client: open ones, and those of independent requests under way."""
        return [
            *(work.tx for work in self.line.under_way),
            *(one.tx for one in self.open_transactions.values()),
        ]

    def start_waiting(self, number: int) -> None:
        """Count a receive that is about to wait for a message; raise `Busy` if too many wait."""
        if number not in self._receiving:
            self._clients.start_waiting(len(self._receiving))
            self._receiving.add(number)

    def stop_waiting(self, number: int) -> None:
        """Uncount the receive of a transaction, if it was counted."""
        if number in self._receiving:
            self._receiving.discard(number)
            self._clients.stop_waiting()

    def remove_transaction(self, number: int) -> None:
        """Remove a finished transaction."""
        if self.open_transactions.pop(number, None) is not None:
            self._clients.remove_transaction()
        if self._draining:
            self._close_if_done()
        self.gate.work_changed()

    def report_receive(self, queue: str) -> bool:
        """Report that a receive begins executing (ACT-6b, ACT-30).

        Return False if it has to return empty, because the session belongs to a reader that was
        asked to end (PBT-25)."""
        return self._clients.on_receive(self, queue)

    def report_rollback(self, queues: list[QueueState]) -> None:
        """Report the rollback of a transaction that had received from these queues (ACT-6c)."""
        for queue in queues:
            self._clients.on_rollback(self.broker, queue.name)

    def evaluate_rollback(self, how: Undone, *, blameless: bool) -> Undone | None:
        """Return what a rollback of this client means for poison; None = no effect (PBT-10)."""
        if self._draining:
            return None
        if blameless:
            how = msgspec.structs.replace(how, counts=False)
        return self._clients.evaluate_rollback(self, how)

    @property
    def most_dialogs(self) -> int:
        """Number of open dialogs that its user may have begun; 0 = no limit (REL-45)."""
        return self._clients.options.dialogs_per_user

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return self._clients.clock.monotonic()

    # Ending.

    def grants_changed(self) -> None:
        """Take the present rights of the client over, in its open transactions too (SX-3).

        A client that has lost a grant also loses what it has begun: a transaction may hold locks
        and messages that the client could not get any more."""
        before, self.rights = self.rights, self._clients.principals.rights(self.names)
        if self.rights == before:
            return
        for tx in self.transactions:
            tx.restrict(self.rights)
        if self.rights is not None and (before is None or not self.rights.includes(before)):
            for open_tx in [*self.open_transactions.values()]:
                open_tx.abort(REVOKED)
            for work in [*self.line.under_way]:
                work.abort(REVOKED)

    @property
    def has_work(self) -> bool:
        """Whether the client has an open transaction or a request under way (CLP-61)."""
        return bool(self.open_transactions or self.line.under_way)

    @property
    def not_ending(self) -> int:
        """Number of open transactions whose commit or rollback is not requested yet."""
        return sum([not one.is_ending for one in self.open_transactions.values()])

    def drain(self) -> None:
        """Ask the client to finish and to reconnect later (CLP-70, CLP-71)."""
        self.responses.write(frames.encode_goodbye(frames.DRAINING))
        self._draining = True
        self.responses.on_response = self._close_if_done
        self._close_if_done()

    def _close_if_done(self) -> None:
        if not self.responses.outstanding and not self.open_transactions:
            self._loop.call_soon(self._close_drained)

    def _close_drained(self) -> None:
        if not self.responses.outstanding and not self.open_transactions:
            self.close(None)

    def close(self, reason: str | None) -> None:
        """Write the last answers and end the connection; open transactions roll back.

        reason: the text of a GOODBYE; None = send none."""
        if self.closed:
            return
        if reason is not None:
            self.responses.write(frames.encode_goodbye(reason))
        self.responses.flush()
        if self._transport is not None:
            self._transport.close()
            self._ending = self._loop.call_later(_LINGER, self._transport.abort)
        self._end(None)

    def _end(self, how: Undone | None) -> None:
        """End the session; `how`: what the rollbacks that it causes mean for poison (PBT-10)."""
        if self.closed:
            return
        self.closed = True
        self._stop_login()
        self._unread.clear()
        for one in [*self.open_transactions.values()]:
            self.remove_transaction(one.number)
            one.give_up(how)
        self.line.give_up_all()
        self._clients.ended(self)
        self.gate.work_changed()


_CUT: Final = Undone(disconnect=True, error="its connection was cut in the middle")
