"""One client connection on the daemon's side: frames in, verbs run, answers out (CLP).

Reads: bytes of one client.      Calls: work, client_frames, client_verbs.
Never: waits; what has to wait is called back. Nothing is answered before it is durable (REL-1).
Fails: a client that breaks the protocol loses its connection, nobody else is affected (CLP-5).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast

from brokerd.broker.broker import Broker
from brokerd.broker.queues import QueueState
from brokerd.delivery.verbs import ReceiveRequest
from brokerd.errors import BadRequest, BrokerError, Busy, NoSuchTx, OutcomeUnknown
from brokerd.ids import ClientId, show
from brokerd.protocol import client_frames as frames
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.client_readers import RequestReader
from brokerd.sessions.work import AutoReceive, OneShot, OpenTx, to_receive

if TYPE_CHECKING:
    from brokerd.sessions.sessions import Sessions

UNSENT_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of answers unsent to a client at which its requests are no longer read (CLP-62)."""


class Work(Protocol):
    """Something a session has under way."""

    def give_up(self) -> None:
        """The client is gone."""
        ...


class ClientSession(asyncio.Protocol):
    """One connection of one client."""

    broker: Broker
    client_id: ClientId
    owner: str

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._transactions: dict[int, OpenTx] = {}
        self._highest_tx = 0
        self._outstanding = 0
        self._done: list[int] = []
        self._out: list[bytes] = []
        self._scheduled = False
        self._paused: set[str] = set()
        self._draining = False
        self.waiting: set[Work] = set()
        """One-shot work that waits for something."""
        self.heard_at = sessions.clock.monotonic()
        self.closed = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is connected; nothing is believed before HELLO."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_LIMIT)
        self._sessions.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: its transactions roll back at once (REL-18)."""
        self._end()

    def pause_writing(self) -> None:
        """The client does not read its answers."""
        self.pause("answers")

    def resume_writing(self) -> None:
        """It reads again."""
        self.resume("answers")

    def data_received(self, data: bytes) -> None:
        """Requests came."""
        self.heard_at = self._sessions.clock.monotonic()
        if self._greeted:
            self.broker.store.breathe()
        for frame in self._reader.feed(data):
            if self.closed:
                return
            if type(frame) is frames.Request:
                self._request(frame)
            else:
                self._other(frame)
        if self._greeted and self._sessions.is_congested(self.broker):
            self._sessions.hold(self)

    # Frames.

    def _other(self, frame: frames.ClientFrame) -> None:
        match frame:
            case frames.Hello():
                if self._greeted:
                    self.close("protocol_error: a second HELLO")
                else:
                    self._greeted = True
                    self._sessions.greet(self, frame)
            case frames.Ping(number):
                self._write(frames.encode_pong(number))
            case frames.Cancel(request):
                for one in list(self._transactions.values()):
                    one.cancel(request)
            case frames.Unreadable(request, error):
                self._outstanding += 1
                self.failed(request, error)
            case frames.Violation(reason):
                self.close(f"{frames.VIOLATION}: {reason}")
            case _:
                raise AssertionError("the reader gives nothing else")

    def welcome(self, welcome: frames.Welcome) -> None:
        """The client may ask now."""
        self._reader.login_done()
        self._write(frames.encode_welcome(welcome))

    def refuse(self, error: BrokerError) -> None:
        """HELLO was refused (CLP-12)."""
        self._write(frames.encode_failed(0, error))
        self.close(None)

    def _request(self, frame: frames.Request) -> None:
        if not self._greeted or not self._sessions.is_known(self):
            self.close(f"{frames.VIOLATION}: a request before WELCOME")
            return
        if self._draining and (frame.tx is None or frame.verb == "begin"):
            return  # neither taken nor answered: the client asks again elsewhere (CLP-71)
        self._outstanding += 1
        if self._outstanding > frames.OUTSTANDING:
            self.failed(frame.request, Busy(f"{frames.OUTSTANDING} requests are unanswered"))
            return
        try:
            verb = wire.parse_request(frame.tx, frame.verb, frame.args)
            if frame.tx is None:
                self._alone(frame.request, verb)
            else:
                self._in_tx(frame.request, frame.tx, verb)
        except BrokerError as error:
            self.failed(frame.request, error)

    def _alone(self, request: int, verb: wire.Verb) -> None:
        match verb:
            case wire.Transact(token, verbs):
                if not self._repeated(request, token, receives=False):
                    OneShot(self, request, token, verbs).go_on()
            case wire.Receive():
                assert verb.token is not None, "checked when it was parsed"
                if not self._repeated(request, verb.token, receives=True):
                    receive = to_receive(verb)
                    self.told_receive(receive)
                    AutoReceive(self, request, receive, verb.token).go_on()
            case wire.TxOutcome(token):
                outcome = self.broker.store.token_outcome(self.client_id, token)
                self.answer(request, outcome)
            case _:
                self._sessions.administer(self, request, verb)

    def _repeated(self, request: int, token: int, *, receives: bool) -> bool:
        """Answer a token that was committed already (CLP-51, CLP-52); False = perform it."""
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

    def _in_tx(self, request: int, number: int, verb: wire.Verb) -> None:
        open_tx = self._transactions.get(number)
        if isinstance(verb, wire.Begin):
            if number <= self._highest_tx:
                raise NoSuchTx(f"transaction {number} is not above {self._highest_tx}")
            self._highest_tx = number
            if len(self._transactions) >= self._sessions.options.transactions:
                raise Busy(f"{len(self._transactions)} transactions are open")
            open_tx = self._transactions[number] = OpenTx(self, number)
        elif open_tx is None:
            self.no_such_tx(request, number)
            return
        if isinstance(verb, wire.Commit):
            store = self.broker.store
            if verb.token <= store.highest_token(self.client_id):
                outcome = store.token_outcome(self.client_id, verb.token)
                if outcome != wire.NOT_COMMITTED:
                    raise BadRequest(f"commit: token {verb.token} was used before")
        open_tx.add(request, verb)

    # Outcomes, from the work.

    def done(self, request: int) -> None:
        """The request succeeded and has no value."""
        self._outstanding -= 1
        self._done.append(request)
        if not self._scheduled:
            self._schedule()

    def answer(self, request: int, value: object) -> None:
        """The request succeeded with a value."""
        self._outstanding -= 1
        self._write(frames.encode_answer(request, value))

    def failed(self, request: int, error: BrokerError) -> None:
        """The request failed."""
        self._outstanding -= 1
        self._write(frames.encode_failed(request, error))

    def no_such_tx(self, request: int, number: int) -> None:
        """The request names a transaction that is finished or was never begun (CLP-32)."""
        self.failed(request, NoSuchTx(f"transaction {number} is finished or was never begun"))

    def forget(self, number: int) -> None:
        """The transaction is finished."""
        self._transactions.pop(number, None)
        if self._draining and not self._transactions:
            self.close(None)

    def told_receive(self, receive: ReceiveRequest) -> None:
        """A receive begins executing (ACT-6b, ACT-30)."""
        self._sessions.on_receive(self, receive.queue)

    def told_rolled_back(self, queues: list[QueueState]) -> None:
        """A transaction that received from these queues rolled back (ACT-6c)."""
        for queue in queues:
            self._sessions.on_rollback(self.broker, queue.name)

    def validation(self, message_type: str) -> str:
        """Validation code of a type as applied at delivery (RCV-29)."""
        kind = self.broker.message_types.get(message_type)
        return "E" if kind is not None and kind.validation == "empty" else "N"

    def now(self) -> float:
        """Monotonic seconds."""
        return self._sessions.clock.monotonic()

    # Writing.

    def _write(self, data: bytes) -> None:
        if self._done:
            self._out.append(frames.encode_done(self._done))
            self._done = []
        self._out.append(data)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write what gathered in this turn of the loop, at once."""
        self._scheduled = False
        if self._done:
            self._out.append(frames.encode_done(self._done))
            self._done = []
        if self._transport is not None and self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def pause(self, reason: str) -> None:
        """Read no further requests for now."""
        if not self._paused and self._transport is not None:
            self._transport.pause_reading()
        self._paused.add(reason)

    def resume(self, reason: str) -> None:
        """That reason is gone."""
        self._paused.discard(reason)
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # Ending.

    @property
    def holds(self) -> bool:
        """Whether it has a transaction open or something waiting (CLP-61)."""
        return bool(self._transactions or self.waiting)

    @property
    def open_transactions(self) -> list[OpenTx]:
        """Its open transactions."""
        return list(self._transactions.values())

    def drain(self) -> None:
        """Tell the client to finish and to come back later (CLP-70, CLP-71)."""
        self._write(frames.encode_goodbye(frames.DRAINING))
        self._draining = True
        if not self.holds:
            self._loop.call_soon(self.close, None)

    def close(self, reason: str | None) -> None:
        """End the connection, after what is written; open transactions roll back."""
        if self.closed:
            return
        if reason is not None:
            self._write(frames.encode_goodbye(reason))
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        for one in list(self._transactions.values()):
            one.give_up()
        for work in list(self.waiting):
            work.give_up()
        self.waiting.clear()
        self._sessions.ended(self)

    def describe(self, client_id: ClientId, info: dict[str, str | int]) -> str:
        """Who this is, for logs and lock time-outs."""
        return f"client {show(client_id)[:8]} (pid {info.get('pid', '?')})"
