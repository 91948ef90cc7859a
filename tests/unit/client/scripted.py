"""A small daemon in memory that speaks the client protocol, for tests of the client library.

It commits tokens, keeps queues and per-group state, and does what a test tells it: hold answers,
lose them, refuse connections, fail a verb. Time is a clock that the test moves.
"""

import asyncio
import heapq
from random import Random

from msgspec.structs import astuple

from brokerd.client.address import Factory
from brokerd.client.session import Session, connect
from brokerd.clock import Instant
from brokerd.errors import BrokerError, NoSuchTx, TransactionAborted
from brokerd.ids import SeededIds
from brokerd.protocol import client_frames as frames
from brokerd.protocol.client_frames import (
    Cancel,
    Hello,
    Limits,
    MessageValue,
    Ping,
    Request,
    Unreadable,
    Violation,
    Welcome,
)
from brokerd.protocol.client_readers import RequestReader
from brokerd.protocol.client_verbs import (
    Begin,
    Browse,
    Commit,
    GetGroup,
    GetState,
    Receive,
    Rollback,
    RollbackTo,
    Savepoint,
    SetState,
    Transact,
    TxOutcome,
    Verb,
    parse_request,
)

ID = bytes(range(16))
GROUP = b"g" * 16
HANDLE = b"h" * 16


class MovedClock:
    """Stands still until `advance`."""

    machine_boot = ""

    def __init__(self) -> None:
        self._now = 1000.0
        self.suspended = 0.0
        """Seconds for which the machine has been suspended; `monotonic` leaves them out."""
        self._count = 0
        self._timers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._now

    def elapsed_ns(self) -> int:
        return int((self._now + self.suspended) * 1_000_000_000)

    def utc(self) -> Instant:
        return Instant(self.elapsed_ns() // 1000)

    async def sleep_until(self, deadline: float) -> None:
        if deadline <= self._now:
            await asyncio.sleep(0)
            return
        self._count += 1
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (deadline, self._count, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move on, stopping at every timer on the way."""
        end = self._now + seconds
        await turns()
        while self._timers and self._timers[0][0] <= end:
            at, _, future = heapq.heappop(self._timers)
            if not future.done():
                self._now = max(self._now, at)
                future.set_result(None)
                await turns()
        self._now = end


async def turns(count: int = 40) -> None:
    """Let the loop run until what was started has gone as far as it can."""
    for _ in range(count):
        await asyncio.sleep(0)


def message(sequence: int = 0, body: bytes | None = b"", **fields: object) -> MessageValue:
    values: dict[str, object] = {
        "handle": HANDLE,
        "conversation_id": b"c" * 16,
        "group_id": GROUP,
        "sequence": sequence,
        "message_type": "DEFAULT",
        "body": body,
        "service": "target",
        "contract": "DEFAULT",
        "queuing_order": sequence,
        "priority": 5,
        "enqueued_at": 1,
        "delivery_count": 0,
        "message_id": b"m" * 16,
        "validation": "N",
        **fields,
    }
    return MessageValue(**values)  # type: ignore[arg-type]


class Daemon:
    """What all connections share."""

    def __init__(self) -> None:
        self.down = False
        self.mute = False
        """Take nothing and answer nothing, as a frozen process does."""
        self.lose_on: str | None = None
        """Lose the connection when this verb comes, before it takes effect…"""
        self.lose_after: str | None = None
        """…or after, before the answer."""
        self.hold: set[str] = set()
        self.failing: dict[str, BrokerError] = {}
        self.limits = Limits()
        self.broker_id = ID
        self.applied: list[Verb] = []
        self.tokens: set[int] = set()
        self.highest = -1
        self.queues: dict[str, list[MessageValue]] = {}
        self.state: dict[bytes, bytes | None] = {}
        self.peers: list[Peer] = []
        self.asked: list[str] = []
        self.refusal: BrokerError | None = None
        self.forgets = False

    async def connector(self, factory: Factory) -> tuple[asyncio.Transport, asyncio.Protocol]:
        if self.down:
            raise ConnectionRefusedError("nobody listens")
        peer = Peer(self, factory())
        self.peers.append(peer)
        peer.protocol.connection_made(peer)
        return peer, peer.protocol

    @property
    def peer(self) -> "Peer":
        return self.peers[-1]

    def commit(self, token: int, verbs: list[Verb]) -> None:
        if token not in self.tokens:
            self.tokens.add(token)
            self.highest = max(self.highest, token)
            self.applied += verbs

    def forget(self) -> None:
        """Become a store that never heard of this client."""
        self.tokens.clear()
        self.highest = -1
        self.forgets = True


class Tx:
    def __init__(self) -> None:
        self.verbs: list[Verb] = []
        self.taken: list[tuple[str, MessageValue]] = []
        self.failed = False


class Peer(asyncio.Transport):
    """The daemon's end of one connection, and the transport of the client's."""

    def __init__(self, daemon: Daemon, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.daemon = daemon
        self.protocol = protocol
        self.reader = RequestReader()
        self.writes: list[bytes] = []
        self.frames: list[frames.ClientFrame] = []
        self.txs: dict[int, Tx] = {}
        self.waiting: dict[int, tuple[Tx, Receive]] = {}
        self.held: list[bytes] = []
        self.closed = False
        self._loop = asyncio.get_running_loop()

    # Transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))
        self._loop.call_soon(self._feed, bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self._loop.call_soon(self.lose)

    def abort(self) -> None:
        self.lose()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    # What a test does.

    def lose(self) -> None:
        """The connection breaks; whatever was open here rolls back."""
        if self.closed:
            return
        self.closed = True
        for tx in self.txs.values():
            self._back(tx)
        self._loop.call_soon(self.protocol.connection_lost, None)

    def say(self, data: bytes) -> None:
        if not self.closed:
            self._loop.call_soon(self._deliver, data)

    def release(self) -> None:
        held, self.held = self.held, []
        self.say(b"".join(held))

    def _deliver(self, data: bytes) -> None:
        if not self.closed:
            self.protocol.data_received(data)

    # What the client wrote.

    def _feed(self, data: bytes) -> None:
        if self.closed or self.daemon.mute:
            return
        done: list[int] = []
        for frame in self.reader.feed(data):
            self.frames.append(frame)
            match frame:
                case Hello():
                    self._hello()
                case Request():
                    self._request(frame, done)
                case Cancel():
                    if frame.request in self.waiting:
                        del self.waiting[frame.request]
                        self.say(frames.encode_messages(frame.request, []))
                case Ping():
                    self.say(frames.encode_pong(frame.number))
                case Unreadable() | Violation():
                    raise AssertionError(frame)
        if done:
            self.say(frames.encode_done(done))

    def _hello(self) -> None:
        daemon = self.daemon
        if daemon.refusal is not None:
            self.say(frames.encode_failed(0, daemon.refusal))
            return
        welcome = Welcome(
            0, 1, "one", ID, ID, "shop", daemon.broker_id, daemon.limits, daemon.highest
        )
        self.say(frames.encode_welcome(welcome))
        self.reader.login_done()

    def _request(self, request: Request, done: list[int]) -> None:
        daemon = self.daemon
        if self.closed:
            return
        daemon.asked.append(request.verb)
        if daemon.lose_on == request.verb:
            daemon.lose_on = None
            self.lose()
            return
        answer = self._answer(request)
        if daemon.lose_after == request.verb:
            daemon.lose_after = None
            self.lose()
        elif request.verb in daemon.hold:
            self.held.append(answer or frames.encode_done([request.request]))
        elif answer is None:
            done.append(request.request)
        elif answer:
            self.say(answer)

    def _answer(self, request: Request) -> bytes | None:
        """None for DONE, no bytes for an answer that comes later."""
        try:
            if request.verb in self.daemon.failing:
                tx = self.txs.get(request.tx or 0)
                if tx is not None:
                    tx.failed = True
                raise self.daemon.failing[request.verb]
            verb = parse_request(request.tx, request.verb, request.args)
            if request.tx is None:
                return self._alone(request.request, verb)
            return self._in_tx(request.request, request.tx, verb)
        except BrokerError as error:
            return frames.encode_failed(request.request, error)

    def _alone(self, number: int, verb: Verb) -> bytes | None:
        daemon = self.daemon
        match verb:
            case Transact():
                daemon.commit(verb.token, list(verb.verbs))
                return None
            case TxOutcome():
                known = "committed" if verb.token in daemon.tokens else "not_committed"
                return frames.encode_answer(number, "unknown" if daemon.forgets else known)
            case Receive():
                assert verb.token is not None
                taken = self._take(verb)
                if taken:
                    daemon.commit(verb.token, [verb])
                return frames.encode_messages(number, taken)
            case Browse():
                at = verb.after[1] if verb.after else 0
                ready = daemon.queues.get(verb.queue, [])
                rows = [[*astuple(one), 1] for one in ready[at : at + verb.limit]]
                end = at + verb.limit
                return frames.encode_answer(number, [rows, [0, end] if end < len(ready) else None])
            case _:
                return frames.encode_answer(number, {"verb": type(verb).__name__})

    def _in_tx(self, number: int, tx: int, verb: Verb) -> bytes | None:
        if isinstance(verb, Begin):
            self.txs[tx] = Tx()
            return None
        if tx not in self.txs:
            raise NoSuchTx
        open_tx = self.txs[tx]
        if isinstance(verb, Commit | Rollback):
            del self.txs[tx]
            if isinstance(verb, Rollback) or open_tx.failed:
                self._back(open_tx)
            if isinstance(verb, Commit):
                if open_tx.failed:
                    raise TransactionAborted
                self._commit(open_tx, verb.token)
            return None
        if isinstance(verb, RollbackTo):
            open_tx.failed = False
            del open_tx.verbs[open_tx.verbs.index(Savepoint(verb.number)) + 1 :]
            self._back(open_tx)
            return None
        if open_tx.failed:
            raise TransactionAborted
        return self._verb(number, open_tx, verb)

    def _verb(self, number: int, tx: Tx, verb: Verb) -> bytes | None:
        if isinstance(verb, GetState):
            return frames.encode_answer(number, self.daemon.state.get(verb.group_id))
        if isinstance(verb, GetGroup):
            ready = self.daemon.queues.get(verb.queue)
            return frames.encode_answer(number, ready[0].group_id if ready else None)
        if not isinstance(verb, Receive):
            tx.verbs.append(verb)
            return None
        taken = self._take(verb)
        tx.taken += [(verb.queue, each) for each in taken]
        if taken or not verb.wait_ms:
            return frames.encode_messages(number, taken)
        self.waiting[number] = (tx, verb)
        return b""

    def arrive(self, queue: str, *messages: MessageValue) -> None:
        """Messages come in; whoever waits gets them."""
        self.daemon.queues.setdefault(queue, []).extend(messages)
        for number, (tx, verb) in list(self.waiting.items()):
            taken = self._take(verb)
            if taken:
                del self.waiting[number]
                tx.taken += [(verb.queue, each) for each in taken]
                self.say(frames.encode_messages(number, taken))

    def _take(self, verb: Receive) -> list[MessageValue]:
        ready = self.daemon.queues.get(verb.queue, [])
        count = len(ready) if verb.max_messages is None else verb.max_messages
        taken, ready[:count] = ready[:count], []
        return taken

    def _back(self, tx: Tx) -> None:
        for queue, each in reversed(tx.taken):
            self.daemon.queues[queue].insert(0, each)
        tx.taken.clear()

    def _commit(self, tx: Tx, token: int) -> None:
        tx.taken.clear()
        for verb in tx.verbs:
            if isinstance(verb, SetState):
                self.daemon.state[verb.group_id] = verb.state
        self.daemon.commit(token, tx.verbs)


async def open_session(daemon: Daemon, clock: MovedClock, **options: object) -> Session:
    """A session on that daemon, everything it draws from a seed."""
    rng = Random(1)
    return await connect(
        broker="shop",
        clock=clock,
        ids=SeededIds(rng),
        rng=rng,
        **({"connector": daemon.connector} | options),  # type: ignore[arg-type]
    )
