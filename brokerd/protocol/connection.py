"""One transport connection as a state machine: login, arbitration, keepalive, goodbye (TRN).

Reads:  the bytes and times passed to it.       Calls: `protocol.neighbour`, `protocol.frames`.
Never:  touches a socket, reads a clock, or knows of other connections. Where other connections
        matter, it asks (`AskArbitration`, `AskSettlement`) and the shell answers.

The shell carries out each effect before it takes the next one from `receive`, because an answer
may change what the next frame of the same read means. `now` is monotonic seconds everywhere; `utc`
is this side's clock in microseconds, which the peer compares with its own; 0 = not sent (TRN-47).
The login is: TLS, unless the connection is plain, HELLO of the connecting side, HELLO and ARBITRATE
of the accepting side (TRN-7).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec

from brokerd.errors import ProtocolError
from brokerd.protocol.brokers import OPTION as BROKERS
from brokerd.protocol.certificate_lists import OPTION as CERTIFICATES
from brokerd.protocol.connection_effects import (
    AskArbitration,
    AskSettlement,
    Breathe,
    CameOnline,
    Closed,
    Effect,
    Limits,
    LoginOutcome,
    LoginState,
    Noticed,
    Outcome,
    PairingArrived,
    ProbeAnswered,
    Received,
    Refusal,
    State,
    Write,
)
from brokerd.protocol.frames import FrameReader, Header, Kind, decode_boxcar
from brokerd.protocol.neighbour import (
    CLOCK,
    Advice,
    Arbitrate,
    Goodbye,
    GoodbyeReason,
    Hello,
    Neighbourly,
    Ping,
    Pong,
    Reject,
    RejectReason,
    Verdict,
    decode,
    encode,
)
from brokerd.protocol.pairing import OFFER_LIMIT

Authorise = Callable[[Hello], Refusal | None]
"""Function that returns why a peer may not use this endpoint; None = it may (SEC-6, SEC-10)."""

CLOCK_EVERY: Final = 3600.0
"""Seconds after which a peer that reports its clock is asked for it again, by PING (TRN-47)."""
AT_ONCE: Final = 1024
"""Number of frames and items of one read that are processed before other work of the loop gets its
turn. A read of 256 KiB can contain 37,000 PINGs (REL-32)."""

TLS_HANDSHAKE: Final = 0x16
"""First byte of a TLS connection; that of the first frame is 0, because the frame is short."""

_KEY_OF_REJECT: Final = {
    RejectReason.NOT_AUTHENTICATED: "auth_failed",
    RejectReason.NOT_AUTHORISED: "refused",
}
_OUTCOME_OF_REFUSAL: Final = {
    RejectReason.NOT_AUTHENTICATED: LoginOutcome.AUTHENTICATION_FAILURE,
    RejectReason.NOT_AUTHORISED: LoginOutcome.AUTHORIZATION_FAILURE,
    RejectReason.TLS_REQUIRED: LoginOutcome.NEGOTIATE_FAILURE,
    RejectReason.PLAIN_ONLY: LoginOutcome.NEGOTIATE_FAILURE,
    RejectReason.NO_COMPATIBLE_PROTOCOL: LoginOutcome.NEGOTIATE_FAILURE,
}
_ADVICE: Final = {
    RejectReason.NOT_AUTHENTICATED: (
        "it does not accept the identity of this instance; its log (audit.broker_login) says why"
    ),
    RejectReason.NOT_AUTHORISED: (
        "let this instance in there with: brokerd grant connect on endpoint to peer:NAME"
    ),
    RejectReason.TLS_REQUIRED: (
        'it admits encrypted connections only; set endpoint.encryption = "required" here'
    ),
    RejectReason.PLAIN_ONLY: (
        'it admits unencrypted connections only; set endpoint.encryption = "required" there'
    ),
}
"""Advice on the refusals of peers, which name nothing themselves (NBT-20)."""


class _OutOfOrder(ProtocolError):
    """A well-formed frame at the wrong moment."""


class Connection:
    """The state machine of one connection. `accepting`: whether the peer opened it."""

    def __init__(
        self, *, accepting: bool, hello: Hello, limits: Limits, authorise: Authorise
    ) -> None:
        self.accepting = accepting
        self.state = State.NEW
        self.login_state = LoginState.INITIAL
        self.peer: Hello | None = None
        self.last_activity = 0.0
        """Time of the last frame in either direction, keepalive excepted (TRN-29)."""
        self.error = ""
        """Reason why the connection failed or was lost; "" = neither has happened."""
        self.rejected: str = ""
        """Reason for which the peer refused the login; "" = it has not."""
        self.failure: LoginOutcome | None = None
        """How this side refused the login; None = it has not."""
        self.may_pair = False
        """Whether PAIR is taken in place of a login: no certificate was shown, and a code waits."""
        self.is_pairing = False
        """Whether the far end pairs, and does not log in (SEC-62)."""
        self.peer_clock: tuple[int, float] | None = None
        """The peer's UTC and the moment of that reading; None = never reported (TRN-47)."""
        self._hello = hello
        self._limits = limits
        self._authorise = authorise
        self._reader = FrameReader()
        self._login_by = self._secure_by = float("inf")
        self._is_first = True
        self._leaving: str | None = None
        self._leave_by = float("inf")
        self._refused_rivalry = False
        self._last_arrival = 0.0
        self._unanswered_since: float | None = None
        self._pings = 0
        self._asked_at: float | None = None
        self._pong_by: float | None = None
        self._probing = False
        self._deaf = False

    @property
    def is_online(self) -> bool:
        """Whether fragments may be sent: ONLINE, and neither side has sent GOODBYE."""
        return self.login_state is LoginState.ONLINE and self._leaving is None

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed, that is, the effect `Closed` was returned."""
        return self.state is State.CLOSED

    @property
    def names_brokers(self) -> bool:
        """Whether both sides send and accept BROKERS frames (TRN-46)."""
        return self._both_offer(BROKERS)

    @property
    def shows_certificates(self) -> bool:
        """Whether both sides send and accept CERTIFICATES frames (SEC-64)."""
        return self._both_offer(CERTIFICATES)

    def _both_offer(self, option: str) -> bool:
        offers = [one.options.get(option) for one in (self._hello, self.peer) if one is not None]
        return offers == [True, True]

    @property
    def heard_at(self) -> float:
        """Time of the last arrival from the peer."""
        return self._last_arrival

    @property
    def is_leaving(self) -> bool:
        """Whether this side has sent GOODBYE."""
        return self._leaving is not None

    def connecting(self) -> None:
        """Note that the stream is being opened."""
        self.state = State.CONNECTING

    def securing(self, now: float) -> None:
        """Note that the stream is open, and its TLS handshake begins (TRN-9)."""
        self.state = State.CONNECTED
        self.login_state = LoginState.WAIT_PRE_MASTER_SECRET
        self._login_by = now + self._limits.login
        self._secure_by = now + self._limits.tls
        self.last_activity = self._last_arrival = now

    def insecure(
        self, key: str, detail: str, outcome: LoginOutcome = LoginOutcome.NEGOTIATE_FAILURE
    ) -> list[Effect]:
        """Close the connection, because its TLS handshake failed here or at the peer."""
        if self.is_closed:
            return []
        self.failure = outcome
        if self.login_state is LoginState.ONLINE:
            return self._close(Outcome.LOST, "connection_lost", detail)
        return self._close(Outcome.FAILED, key, detail)

    def connected(
        self, now: float, refusal: Refusal | None = None, *, utc: int = 0
    ) -> list[Effect]:
        """Begin the login on an open stream, which is plain, or whose TLS handshake is over.

        `refusal`: why the stream may not be used at all, such as plain text (SEC-10)."""
        if self.is_closed:
            return []
        if self.login_state is not LoginState.WAIT_PRE_MASTER_SECRET:
            self._login_by = now + self._limits.login
        self._secure_by = float("inf")
        self.state = State.CONNECTED
        self.login_state = LoginState.WAIT_LOGIN_NEGOTIATE
        self.last_activity = self._last_arrival = now
        if refusal is not None:
            return self._refuse(refusal)
        if self.accepting:
            return []
        self._asked_at = now
        return [self._greeting(utc)]

    def receive(self, data: bytes, now: float, utc: int = 0) -> Iterator[Effect | Breathe]:
        """Yield the effects of received bytes. Carry out each effect before taking the next."""
        if self.is_closed:
            return
        self._last_arrival = now
        self._unanswered_since = self._pong_by = None
        if self._probing:
            self._probing = False
            yield ProbeAnswered()
        if self._is_first and data:
            self._is_first = False
            if self.accepting and data[0] == TLS_HANDSHAKE:
                yield from self._refuse(Refusal(RejectReason.PLAIN_ONLY))
                return
        yield from self._frames(data, now, utc)

    def _frames(self, data: bytes, now: float, utc: int) -> Iterator[Effect | Breathe]:
        left = AT_ONCE
        try:
            for kind, payload in self._reader.feed(data):
                taken = 1
                for effect in self._frame(kind, payload, now, utc):
                    if type(effect) is Received:
                        taken += len(effect.items)
                    yield effect
                if self.state >= State.CLOSED:
                    return
                left -= taken
                if left <= 0:
                    left = AT_ONCE
                    yield Breathe()
                    # Other work ran at the `Breathe`; it may have closed this connection.
                    if self.state >= State.CLOSED:
                        return
        except ProtocolError as error:
            yield from self._break_off(error)

    def broken(self, detail: str) -> list[Effect]:
        """Close the connection after its stream has ended or failed."""
        if self.is_closed:
            return []
        if self._leaving is not None:
            return self._close(self._leaving_outcome(), "", self._leaving)
        if self.is_pairing:
            return self._close(Outcome.ORDERLY, "", detail)
        if self._refused_rivalry:
            return self._close(Outcome.ARBITRATION, "", detail)
        if self.login_state is LoginState.ONLINE:
            return self._close(Outcome.LOST, "connection_lost", detail)
        return self._close(Outcome.FAILED, "handshake_failed", f"{detail} ({self._phase()})")

    def arbitrated(self, verdict: Verdict, now: float) -> list[Effect]:
        """Send the verdict that `AskArbitration` asked for; a late one is ignored."""
        if self.login_state is not LoginState.WAIT_ARBITRATION or self.is_closed:
            return []
        answer = Write(encode(Arbitrate(verdict)))
        if verdict is Verdict.LOST:
            self._refused_rivalry = True  # the connecting side sends GOODBYE now
            return [answer]
        return [answer, *self._come_online(now)]

    def settled(self, now: float, *, keep: bool) -> list[Effect]:
        """Apply the answer to `AskSettlement`: use this connection, or leave it for another."""
        online = self._come_online(now)
        return online if keep else self.say_goodbye(GoodbyeReason.ARBITRATION, now)

    def say_goodbye(self, reason: GoodbyeReason, now: float) -> list[Effect]:
        """End the connection in an orderly way; accept arrivals until the peer answers (TRN-18)."""
        if self._leaving is not None or self.is_closed:
            return []
        if self.accepting and self.state is State.CONNECTED:
            return self._refuse(Refusal(RejectReason.DRAINING))
        self._leaving = reason.value
        if self.peer is None:
            return self._close(self._leaving_outcome(), "", reason.value)
        self._leave_by = now + self._limits.goodbye
        return [Write(encode(Goodbye(reason.value)))]

    def probe(self, now: float) -> list[Effect]:
        """Ping the peer to find out whether it still answers (TRN-25)."""
        if self._probing or not self.is_online:
            return []
        self._probing = True
        self._pong_by = now + self._limits.arbitration_ping
        return [self._ping(now)]

    def sent(self, now: float) -> None:
        """Note that a boxcar or NOTICE was sent: traffic that the peer may have to answer."""
        self.last_activity = now
        if self._unanswered_since is None:
            self._unanswered_since = now

    def deaf(self, *, deaf: bool, now: float) -> None:
        """Note that reading was paused or resumed (TRN-34); a pause makes silence meaningless."""
        self._deaf = deaf
        if not deaf:
            self._last_arrival = now
            if self._pong_by is not None:
                self._pong_by = now + self._limits.ping_timeout

    def pairing_proven(self, now: float) -> None:
        """Accept longer frames, for some time: the far end has proven that it has the code."""
        self._reader.limit = OFFER_LIMIT
        self._login_by = now + self._limits.pairing

    def refuse_pairing(self, error: ProtocolError) -> list[Effect]:
        """Close the connection, because a PAIR frame is malformed or out of order."""
        return [] if self.is_closed else self._break_off(error)

    def pairing_over(self) -> list[Effect]:
        """Close the connection, because a pairing is over."""
        return [] if self.is_closed else self._close(Outcome.ORDERLY, "", "pairing")

    def next_deadline(self) -> float | None:
        """Return when to call `timer_due`; None if nothing is pending."""
        if self.state in (State.CLOSED, State.NEW, State.CONNECTING):
            return None
        # The order is that of `timer_due`, which evaluates the deadline that was reached.
        if self._leaving is not None:
            return self._leave_by
        if self.login_state is not LoginState.ONLINE:
            return min(self._secure_by, self._login_by)
        if self._deaf:
            return None
        if self._pong_by is not None:
            return self._pong_by
        return min(
            (at for at in (self._ping_due(), self._clock_due()) if at is not None), default=None
        )

    def timer_due(self, now: float) -> list[Effect]:
        """Act on the deadline if it has passed: close the connection, or send a PING."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        if self._leaving is not None:
            return self._close(self._leaving_outcome(), "", f"{self._leaving}, unanswered")
        if self._refused_rivalry:
            return self._close(Outcome.ARBITRATION, "", "the caller did not leave")
        if self.login_state is not LoginState.ONLINE:
            is_tls = self.login_state is LoginState.WAIT_PRE_MASTER_SECRET
            detail = f"{'TLS handshake' if is_tls else 'login'} not over in time ({self._phase()})"
            return self._close(Outcome.FAILED, "handshake_failed", detail)
        if self._pong_by is not None:
            return self._close(Outcome.LOST, "connection_lost", "the peer does not answer")
        self._pong_by = now + self._limits.ping_timeout
        return [self._ping(now)]

    def _ping_due(self) -> float | None:
        if self._unanswered_since is None:
            return None
        return max(self._last_arrival, self._unanswered_since) + self._limits.ping_after

    def _clock_due(self) -> float | None:
        if self.peer_clock is None:
            return None
        _, reported_at = self.peer_clock
        return max(reported_at, self._asked_at or reported_at) + CLOCK_EVERY

    def _ping(self, now: float) -> Write:
        self._pings += 1
        self._asked_at = now
        return Write(encode(Ping(self._pings)))

    def _greeting(self, utc: int) -> Write:
        options = self._hello.options | {CLOCK: utc} if utc else self._hello.options
        return Write(encode(msgspec.structs.replace(self._hello, options=options)))

    def _on_clock(self, clock: int, now: float) -> None:
        """Record the peer's clock.

        The reading is dated halfway between PING and PONG; without a PING, it is dated `now`."""
        if clock:
            asked = now if self._asked_at is None else self._asked_at
            self.peer_clock = (clock, (asked + now) / 2)

    def _frame(self, kind: int, payload: memoryview, now: float, utc: int) -> Iterator[Effect]:
        if kind == Kind.BOXCAR:
            yield self._boxcar(payload, now)
        elif kind == Kind.PAIR and self._takes_pairing():
            self.is_pairing = True
            yield PairingArrived(bytes(payload))
        elif kind not in Kind.__members__.values():
            self._ignore(kind)
        else:
            yield from self._neighbourly(decode(kind, payload), now, utc)

    def _takes_pairing(self) -> bool:
        expects_login = self.login_state is LoginState.WAIT_LOGIN_NEGOTIATE
        return self.accepting and expects_login and (self.may_pair or self.is_pairing)

    def _boxcar(self, payload: memoryview, now: float) -> Effect:
        if self.login_state is not LoginState.ONLINE:
            raise _OutOfOrder("a boxcar before the login is over")  # TRN-8
        self.last_activity = now
        headers: list[Header] = []
        return Received(decode_boxcar(payload, headers), len(payload), headers)

    def _ignore(self, kind: int) -> None:
        """Ignore a frame of an unknown kind if the peer's version is newer, else fail (TRN-45)."""
        newer = self.peer is not None and self.peer.minor > self._hello.minor
        if self.login_state is not LoginState.ONLINE or not newer:
            raise _OutOfOrder(f"frame kind {kind} is not known or out of order")

    def _neighbourly(self, frame: Neighbourly, now: float, utc: int) -> Iterator[Effect]:
        # The first frame to an accepting side must be HELLO. A connecting side may get REJECT or
        # GOODBYE in place of it, since the peer can refuse the stream itself.
        negotiates = self.login_state is LoginState.WAIT_LOGIN_NEGOTIATE
        expects_hello = negotiates and not self.is_pairing
        online = self.login_state is LoginState.ONLINE
        # In place of a handshake, a peer that does not speak TLS can only refuse.
        securing = self.login_state is LoginState.WAIT_PRE_MASTER_SECRET
        match frame:
            case Hello() if expects_hello:
                self._on_clock(frame.clock, now)
                yield from self._greeted(frame, utc)
            case Arbitrate() if self._awaits_verdict():
                yield from self._on_verdict(frame.verdict, now)
            case Reject() if not (self.accepting and expects_hello):
                yield from self._rejected(frame)
            case Goodbye() if not (securing or (self.accepting and expects_hello)):
                yield from self._peer_leaves(frame.reason)
            case Ping() if online:
                yield Write(encode(Pong(frame.number, utc)))
            case Pong() if online:
                if frame.number == self._pings:
                    self._on_clock(frame.clock, now)
            case _ if online and isinstance(frame, Advice):
                self.last_activity = now
                yield Noticed(frame)
            case _:
                raise _OutOfOrder(f"{type(frame).__name__} out of order ({self._phase()})")

    def _awaits_verdict(self) -> bool:
        return not self.accepting and self.login_state is LoginState.WAIT_ARBITRATION

    def _greeted(self, peer: Hello, utc: int) -> list[Effect]:
        if peer.major != self._hello.major:
            return self._refuse(Refusal(RejectReason.NO_COMPATIBLE_PROTOCOL))  # TRN-10
        self.login_state = LoginState.WAIT_VALIDATION
        refusal = self._authorise(peer)
        if refusal is not None:
            return self._refuse(refusal)
        self.peer = peer  # only now: before, the HELLO is a mere claim (SX-7)
        greeting = [self._greeting(utc)] if self.accepting else []
        if peer.instance_id == self._hello.instance_id:
            detail = "the address leads back to this instance"
            return [*greeting, *self._close(Outcome.SELF, "", detail)]
        self.login_state = LoginState.WAIT_ARBITRATION
        return [*greeting, AskArbitration(peer)] if self.accepting else []

    def _on_verdict(self, verdict: Verdict, now: float) -> list[Effect]:
        assert self.peer is not None
        if self._leaving is not None:
            return []
        if verdict is Verdict.LOST:
            self._leaving = GoodbyeReason.ARBITRATION.value
            farewell = Write(encode(Goodbye(self._leaving)))
            return [farewell, *self._close(Outcome.ARBITRATION, "", "another connection stays")]
        return [AskSettlement(self.peer, verdict is Verdict.WON_OVER_STALE)]

    def _rejected(self, reject: Reject) -> list[Effect]:
        self.rejected = reject.reason
        detail = f"the peer refused: {reject.reason} in phase {reject.phase}"
        if self.login_state is LoginState.ONLINE:
            return self._close(Outcome.LOST, "connection_lost", detail)
        key = "handshake_failed"
        with suppress(ValueError):  # a reason of a later version
            reason = RejectReason(reject.reason)
            key = _KEY_OF_REJECT.get(reason, key)
            if reason in _ADVICE:
                detail += f": {_ADVICE[reason]}"
        return self._close(Outcome.FAILED, key, detail)

    def _peer_leaves(self, reason: str) -> list[Effect]:
        answer: list[Effect] = [] if self._leaving else [Write(encode(Goodbye(reason)))]
        self._leaving = self._leaving or reason
        return [*answer, *self._close(self._leaving_outcome(), "", reason)]

    def _leaving_outcome(self) -> Outcome:
        if self._leaving == GoodbyeReason.ARBITRATION.value or self._refused_rivalry:
            return Outcome.ARBITRATION
        return Outcome.ORDERLY

    def _come_online(self, now: float) -> list[Effect]:
        assert self.peer is not None
        self.state = State.LOGGED_IN
        self.login_state = LoginState.ONLINE
        self._reader.limit = self._hello.largest_frame
        self.last_activity = now
        return [CameOnline(self.peer)]

    def _refuse(self, refusal: Refusal) -> list[Effect]:
        """Send the peer the reason, then close (NBT-20)."""
        reason = refusal.reason
        self.failure = _OUTCOME_OF_REFUSAL.get(reason)
        farewell = Write(encode(Reject(reason.value, self._phase())))
        key = _KEY_OF_REJECT.get(reason, "handshake_failed")
        detail = f"refused here: {reason}" + (f": {refusal.detail}" if refusal.detail else "")
        return [farewell, *self._close(Outcome.FAILED, key, detail)]

    def _break_off(self, error: ProtocolError) -> list[Effect]:
        farewell = Write(encode(Reject(RejectReason.PROTOCOL.value, self._phase())))
        if self.login_state is LoginState.ONLINE:
            return [farewell, *self._close(Outcome.LOST, "connection_lost", error.message)]
        is_order = isinstance(error, _OutOfOrder)
        self.failure = LoginOutcome.PROTOCOL_ERROR if is_order else LoginOutcome.FORMAT_ERROR
        return [farewell, *self._close(Outcome.FAILED, "handshake_failed", error.message)]

    def _phase(self) -> str:
        return self.login_state.name.lower()

    def _close(self, outcome: Outcome, key: str, detail: str) -> list[Effect]:
        self.state = State.CLOSED
        if outcome in (Outcome.FAILED, Outcome.LOST):
            self.login_state = LoginState.ERROR
            self.error = detail
        return [Closed(outcome, key, detail)]
