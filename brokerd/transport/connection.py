"""PeerConnection: one TCP stream tied to one `protocol.connection`, with no task of its own.

Reads:  the stream.                             Calls: its owner (`transport.peers`).
Never:  decides anything: the state machine does, by its effects; the owner decides which
        connection stays.
Wakes:  on data, on the socket's flow control, at the machine's next deadline.
Fails:  alone; an exception while handling arrivals is logged and aborts this stream.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, cast

from brokerd.clock import SECOND, Clock, Instant
from brokerd.errors import ProtocolError
from brokerd.protocol.connection import Connection
from brokerd.protocol.connection_effects import (
    AskArbitration,
    AskSettlement,
    Breathe,
    CameOnline,
    Closed,
    Effect,
    LoginOutcome,
    Noticed,
    PairingArrived,
    ProbeAnswered,
    Received,
    Refusal,
    Write,
)
from brokerd.protocol.frames import boxcar
from brokerd.protocol.neighbour import Advice, GoodbyeReason, RejectReason, Verdict, encode
from brokerd.security.secure_stream import SecureStream
from brokerd.security.tls import NOBODY, Identity, NoProof
from brokerd.telemetry.log import Log
from brokerd.transport.door import Seat
from brokerd.transport.login_guard import Login, LoginGuard, Way
from brokerd.transport.network import is_loopback, tcp_address
from brokerd.transport.options import TransportOptions
from brokerd.transport.pairing import Invites, Visit

FLUSH_LIMIT: Final = 5.0
"""Seconds that a closed stream has to send its last bytes before it is aborted."""


class Owner(Protocol):
    """The owner of all connections (`transport.peers`)."""

    def ask_arbitration(self, connection: "PeerConnection") -> None:
        """Decide on a login, and call `connection.arbitrated`, now or later."""
        ...

    def ask_settlement(self, connection: "PeerConnection", *, over_stale: bool) -> bool:
        """Return whether to keep a connection that the peer has granted (TRN-24)."""
        ...

    def came_online(self, connection: "PeerConnection") -> None:
        """Record a connection that may carry fragments from now on."""
        ...

    def received(self, connection: "PeerConnection", boxcar: Received) -> None:
        """Process a boxcar."""
        ...

    def noticed(self, connection: "PeerConnection", notice: Advice) -> None:
        """Process a NOTICE, TRACE, ROLE or BROKERS."""
        ...

    def probe_answered(self, connection: "PeerConnection") -> None:
        """Record that a probed connection is alive."""
        ...

    def writable(self, connection: "PeerConnection") -> None:
        """Resume sending on a connection whose socket has room."""
        ...

    def ended(self, connection: "PeerConnection", end: Closed) -> None:
        """Remove a connection that has ended; called exactly once."""
        ...

    def gone(self, connection: "PeerConnection") -> None:
        """Record that the stream is closed; called at most once, after `ended`."""
        ...


class PeerConnection(asyncio.Protocol):
    """One stream to a peer.

    `address`: the destination that the stream was opened for; None = the stream was accepted.
    `guard`: decides about the login; None = every peer is let in, unencrypted."""

    invites: Invites | None = None
    """The part that pairs far ends without a certificate (SEC-62); None = nothing does."""
    seat: Seat | None = None
    """Place at the door; None if the stream was not accepted from a socket (END-18)."""
    identity: Identity = NOBODY
    """The principal that the peer has proven to be (SEC-4)."""
    own_certificate_id: bytes | None = None
    """The certificate that this side has shown."""
    cipher = ""
    """Name of the algorithm that encrypts the stream; empty = it is plain."""
    was_certificate_refused = False
    """Whether the peer ended the handshake because of this side's certificate."""

    def __init__(
        self,
        *,
        number: int,
        address: str | None,
        machine: Connection,
        owner: Owner,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        options: TransportOptions,
        log: Log,
        guard: LoginGuard | None = None,
        way: Way = Way.PLAIN,
    ) -> None:
        self.number = number
        self.way = way
        """How the stream is opened; of an accepted one, it means nothing."""
        self.address = address
        self.machine = machine
        self.remote_host = ""
        self.remote_port = 0
        self.fragments_sent = 0
        self.fragments_received = 0
        self.boxcars_sent = 0
        self.boxcars_received = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.sends = 0
        """Number of network sends, each with any number of frames (MON-1)."""
        self.receives = 0
        self.connected_at: Instant | None = None
        self.online_at: Instant | None = None
        self.is_receive_flow_controlled = False
        self.is_send_flow_controlled = False
        self._owner = owner
        self._loop = loop
        self._clock = clock
        self._options = options
        self._log = log
        self._guard = guard
        self._transport: asyncio.Transport | None = None
        self._visit: Visit | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._rest: Iterator[Effect | Breathe] | None = None
        """Effects of the latest read that are not carried out yet; None = no effect is left."""

    @property
    def remote(self) -> str:
        """Address of the far end of the stream, for the log."""
        return tcp_address(self.remote_host or "unknown", self.remote_port)

    @property
    def place(self) -> str | None:
        """Address that the peer's endpoint should listen on; None = none is known (TRN-19)."""
        peer = self.machine.peer
        if peer is None or not peer.port or not self.remote_host:
            return None
        return tcp_address(self.remote_host, peer.port).lower()

    @property
    def is_trusted(self) -> bool:
        """Whether the peer is believed what concerns more than its own messages (SX-7)."""
        return self._guard is None or self._guard.trusts(self.identity)

    def may_serve(self, address: str, *, was_dialled: bool = False) -> bool:
        """Return whether the peer may get what is sent to an address (TRN-19)."""
        guard = self._guard
        return guard is None or guard.may_serve(address, self, was_dialled=was_dialled)

    def stream_protocol(self) -> asyncio.Protocol:
        """Return the protocol object of the stream: this one, or TLS around it."""
        if self._guard is None:
            return self
        if self.machine.accepting:
            return self._guard.accepting(self, self)
        return self._guard.connecting(self, self, self.way)

    @property
    def has_stream(self) -> bool:
        """Whether the stream is open."""
        return self._transport is not None

    @property
    def is_writable(self) -> bool:
        """Whether a boxcar may be written now (TRN-35)."""
        return self.machine.is_online and not self.is_send_flow_controlled

    @property
    def last_activity_at(self) -> Instant | None:
        """Instant at which a frame other than keepalive was last sent or received (TRN-29)."""
        if self.connected_at is None:
            return None
        idle = self._clock.monotonic() - self.machine.last_activity
        return Instant(self._clock.utc() - int(idle * SECOND))

    @property
    def clock_ahead(self) -> float | None:
        """Seconds by which the peer's clock is ahead of this one; None = unknown (TRN-47)."""
        if self.machine.peer_clock is None:
            return None
        clock, at = self.machine.peer_clock
        here = self._clock.utc() - (self._clock.monotonic() - at) * SECOND
        return (clock - here) / SECOND

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the write buffer of the stream."""
        transport = self._transport
        return 0 if transport is None else transport.get_write_buffer_size()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the login, because the stream is open and plain."""
        self._opened(cast("asyncio.Transport", transport))  # uvloop's is not a subclass
        now, utc = self._clock.monotonic(), self._clock.utc()
        self._do(self.machine.connected(now, self._refusal(), utc=utc))

    def _opened(self, stream: asyncio.Transport) -> None:
        self._transport = stream
        self.connected_at = self._clock.utc()
        stream.set_write_buffer_limits(high=self._options.send_mark)
        name = stream.get_extra_info("peername")
        if isinstance(name, tuple):
            self.remote_host, self.remote_port = str(name[0]), int(name[1])
        if self.seat is not None:
            self.seat.occupied(self._turned_out)

    # Called by the stream, while TLS shakes hands.

    def stream_opened(self, stream: SecureStream) -> None:
        """Wait for the end of the handshake."""
        self._opened(cast("asyncio.Transport", stream))
        self.machine.securing(self._clock.monotonic())
        self._set_timer()

    def stream_secured(self, stream: SecureStream) -> None:
        """Begin the login, because the peer has proven who it is, or has shown no certificate."""
        assert self._guard is not None
        refusal = None
        own = self._guard.contexts.own_certificate
        self.cipher = stream.cipher
        self.own_certificate_id = None if own is None or self.way is Way.PUBLIC else own.id
        try:
            self.identity = self._guard.identify(stream.peer_certificate)
        except NoProof as error:
            refusal = Refusal(RejectReason.NOT_AUTHENTICATED, str(error))
        invites = self.invites is not None and self.invites.is_waiting
        self.machine.may_pair = invites and stream.peer_certificate is None
        now, utc = self._clock.monotonic(), self._clock.utc()
        self._do(self.machine.connected(now, refusal, utc=utc))

    def stream_plain(self, transport: asyncio.Transport) -> None:
        """Log a plain peer in, if such are admitted; one that was called can only refuse."""
        assert self._guard is not None
        self._transport = transport
        transport.set_write_buffer_limits(high=self._options.send_mark)
        if not self.machine.accepting:
            return
        admits = self._guard.admits_plain
        refusal = self._refusal() if admits else Refusal(RejectReason.TLS_REQUIRED)
        now, utc = self._clock.monotonic(), self._clock.utc()
        self._do(self.machine.connected(now, refusal, utc=utc))

    def stream_refused(self, stream: SecureStream, error: Exception) -> None:
        """End the connection, because its handshake failed here or at the peer."""
        assert self._guard is not None
        key, detail, outcome = self._guard.explain(error, self.way)
        self.was_certificate_refused = key == "auth_failed"
        self._do(self.machine.insecure(key, detail, outcome))

    def stream_lost(self, exc: Exception | None) -> None:
        """End the connection, because its stream is closed."""
        self.connection_lost(exc)

    # Called by asyncio, or by the stream that decrypts.

    def data_received(self, data: bytes) -> None:
        """Feed the machine, and carry out its effects."""
        self.bytes_received += len(data)
        self.receives += 1
        now, utc = self._clock.monotonic(), self._clock.utc()
        self._apply(self.machine.receive(data, now, utc))

    def eof_received(self) -> None:
        """End the connection, because the peer sends no more; asyncio closes the stream."""
        self._do(self.machine.broken("the peer closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, because the stream is closed."""
        self._transport = None
        if self.seat is not None:
            self.seat.leave()
        if self.machine.is_closed:
            self._stop_timer()
        self._do(self.machine.broken("connection closed" if exc is None else describe(exc)))
        self._owner.gone(self)

    def pause_writing(self) -> None:
        """Stop sending, because the write buffer is above the mark (TRN-35)."""
        self.is_send_flow_controlled = True

    def resume_writing(self) -> None:
        """Resume sending, because the write buffer has drained."""
        self.is_send_flow_controlled = False
        self._owner.writable(self)

    # Called by the owner.

    def send_boxcar(self, items: Sequence[bytes]) -> int:
        """Write one boxcar; return its size on the wire in bytes."""
        pieces = boxcar(items)
        size = sum(map(len, pieces))
        self.fragments_sent += len(items)
        self.boxcars_sent += 1
        self.bytes_sent += size
        self.sends += 1
        self.machine.sent(self._clock.monotonic())
        if self._transport is not None:
            self._transport.writelines(pieces)
        self._set_timer()
        return size

    def send_notice(self, notice: Advice) -> None:
        """Write a NOTICE, TRACE, ROLE or BROKERS frame (NBT-4)."""
        self.machine.sent(self._clock.monotonic())
        self._write(encode(notice))
        self._set_timer()

    def arbitrated(self, verdict: Verdict) -> None:
        """Apply the owner's answer to `ask_arbitration`."""
        self._do(self.machine.arbitrated(verdict, self._clock.monotonic()))

    def probe(self) -> None:
        """Send a PING; the owner gets `probe_answered` or `ended` (TRN-25)."""
        self._do(self.machine.probe(self._clock.monotonic()))

    def say_goodbye(self, reason: GoodbyeReason) -> None:
        """End the connection in an orderly way, with a GOODBYE."""
        self._log_event("closing", reason=reason.value)
        self._do(self.machine.say_goodbye(reason, self._clock.monotonic()))

    def abort(self, detail: str) -> None:
        """End the connection at once."""
        self._do(self.machine.broken(detail))
        if self._transport is not None:
            self._transport.abort()

    def pause_receiving(self) -> None:
        """Stop reading until `resume_receiving` (TRN-34)."""
        if self._transport is None or self.is_receive_flow_controlled:
            return
        self.is_receive_flow_controlled = True
        if self._rest is None:
            self._transport.pause_reading()
        self.machine.deaf(deaf=True, now=self._clock.monotonic())

    def resume_receiving(self) -> None:
        """Resume reading after `pause_receiving`."""
        if not self.is_receive_flow_controlled:
            return
        self.is_receive_flow_controlled = False
        self._read_again()
        self.machine.deaf(deaf=False, now=self._clock.monotonic())
        self._set_timer()

    # Internals.

    def _refusal(self) -> Refusal | None:
        """Return why a plain stream may not be used (SEC-10)."""
        if self._options.allow_plaintext or is_loopback(self.remote_host):
            return None
        return Refusal(
            RejectReason.NOT_AUTHENTICATED,
            "unencrypted connections are allowed on loopback only; see transport.allow_plaintext",
        )

    def _turned_out(self) -> None:
        """Abort the connection, because it has not logged in while others waited (END-18)."""
        self.abort("it did not log in while others waited")

    def _apply(self, effects: Iterator[Effect | Breathe]) -> None:
        """Carry out the effects of a read; at `Breathe`, leave the rest to a later turn."""
        try:
            for effect in effects:
                if isinstance(effect, Breathe):
                    self._put_off(effects)
                    break
                self._carry_out(effect)
        except Exception as error:  # noqa: BLE001  # per connection: one peer must not stop others
            self._internal_error(error)
        self._set_timer()

    def _put_off(self, rest: Iterator[Effect | Breathe]) -> None:
        """Postpone the rest of a read until other work has had its turn; stop reading (TRN-33)."""
        self._rest = rest
        if self._transport is not None and not self.is_receive_flow_controlled:
            self._transport.pause_reading()
        self._loop.call_soon(self._apply_rest)

    def _apply_rest(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None:
            self._read_again()
            self._apply(rest)

    def _read_again(self) -> None:
        """Resume reading, unless flow control or the rest of a read still prevents it."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self.is_receive_flow_controlled and self._rest is None:
            self._transport.resume_reading()

    def _do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._carry_out(effect)
        self._set_timer()

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901  # one case an effect
        match effect:
            case Received():
                self.boxcars_received += 1
                self.fragments_received += len(effect.items)
                self._owner.received(self, effect)
            case Write():
                self._write(effect.data)
            case AskArbitration():
                self._owner.ask_arbitration(self)
            case AskSettlement():
                keep = self._owner.ask_settlement(self, over_stale=effect.over_stale)
                self._do(self.machine.settled(self._clock.monotonic(), keep=keep))
            case CameOnline():
                if self.seat is not None:
                    self.seat.log_in()  # from here on no newcomer may displace it (END-18)
                self.online_at = self._clock.utc()
                self._audit(LoginOutcome.SUCCESS, "")
                self._owner.came_online(self)
            case PairingArrived():
                self._pair(effect.payload)
            case Noticed():
                self._owner.noticed(self, effect.notice)
            case ProbeAnswered():
                self._owner.probe_answered(self)
            case Closed():
                self._close(effect)

    def _pair(self, payload: bytes) -> None:
        """Pass a PAIR frame on; refuse the far end if the frame is wrong (SEC-62)."""
        try:
            if self._visit is None:
                assert self.invites is not None, "else the machine takes no PAIR"
                self._visit = self.invites.visit(self)
            self._visit.received(payload)
        except ProtocolError as error:
            self._do(self.machine.refuse_pairing(error))

    # Called by the inviting side of a pairing.

    def send_paired(self, data: bytes) -> None:
        """Send a whole frame."""
        self._write(data)

    def proven(self) -> None:
        """Accept longer frames from now on, and allow more time (SEC-62)."""
        self.machine.pairing_proven(self._clock.monotonic())
        self._set_timer()

    def end_pairing(self) -> None:
        """Close the connection once what was sent has left."""
        self._do(self.machine.pairing_over())

    def _write(self, data: bytes) -> None:
        self.bytes_sent += len(data)
        self.sends += 1
        if self._transport is not None:
            self._transport.write(data)

    def _audit(self, outcome: LoginOutcome, detail: str) -> None:
        """Report how a login has ended, which this side has decided (SEC-12)."""
        if self._guard is None or self._guard.is_open:
            return
        peer = self.machine.peer
        self._guard.events.logged_in(
            Login(
                outcome=outcome,
                identity=self.identity,
                remote=self.remote,
                is_accept=self.machine.accepting,
                instance_id=None if peer is None else peer.instance_id,
                detail=detail,
            )
        )

    def _close(self, end: Closed) -> None:
        if self._visit is not None:
            self._visit.lost()
        self._stop_timer()
        if self.machine.failure is not None and self.online_at is None:
            self._audit(self.machine.failure, end.detail)
        if self._transport is not None:
            self._transport.close()
            self._timer = self._loop.call_later(FLUSH_LIMIT, self._transport.abort)
        self._owner.ended(self, end)

    def _set_timer(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return  # a timer that fires early is set again
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        wait = max(0.0, deadline - self._clock.monotonic())
        self._timer = self._loop.call_later(wait, self._timer_fired)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timer_fired(self) -> None:
        self._timer = None
        self._do(self.machine.timer_due(self._clock.monotonic()))

    def _internal_error(self, error: Exception) -> None:
        self._log.warning(
            "broker.connection",
            subclass="receive_io_error",
            connection=self.number,
            remote=self.remote,
            error=describe(error),
            exc_info=error,
        )
        self.abort(f"internal error: {describe(error)}")

    def _log_event(self, subclass: str, **fields: object) -> None:
        self._log.info(
            "broker.connection",
            subclass=subclass,
            connection=self.number,
            address=self.address,
            remote=self.remote,
            **fields,
        )


def describe(error: BaseException) -> str:
    """Return one line about an exception, with its class."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
