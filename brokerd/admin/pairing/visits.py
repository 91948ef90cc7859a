"""Visits: the inviting side of a pairing, on a connection that another instance opened (SEC-62).

Reads:  PAIR frames.      Calls: security.pairing, admin.pairing.introductions.
Never:  says more than "no" to a far end that has not proven that it has the code.
Fails:  with a `Failed` frame, which says why; the code may then be tried again.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol

from brokerd.admin.pairing.acquaintance import Stranger, Wishes, get_acquainted
from brokerd.admin.pairing.introductions import Introduced, Introductions
from brokerd.clock import Clock
from brokerd.errors import BrokerError, InvalidArgument, PairingFailed, ProtocolError
from brokerd.ids import InstanceId
from brokerd.protocol.frames import Kind
from brokerd.protocol.pairing import (
    VERSION,
    Done,
    Failed,
    Offer,
    PairingFrame,
    Proof,
    decode,
    encode,
)
from brokerd.security.certificates import Certificate, read_certificate
from brokerd.security.pairing import VOID, WRONG, Invitation, Phase
from brokerd.telemetry.audit import Action, Audit, Outcome
from brokerd.transport.pairing import VisitedConnection

_LEFT = "the other machine went away"


class Invited(Protocol):
    """The code that waits, with the wishes of its administrator."""

    invitation: Invitation
    wishes: Wishes
    offer: Offer
    """Description of this instance."""

    def progressed(self, *, peer: str = "", error: str = "") -> None:
        """Note how far a pairing has come, for whoever waits."""
        ...

    def finished(self, introduced: Introduced) -> None:
        """Note that both sides are paired."""
        ...


class PairingVisit:
    """One connection of an instance that wants to be paired with this one."""

    def __init__(
        self,
        connection: VisitedConnection,
        invited: Invited,
        *,
        former: Sequence[Invitation] = (),
        instance_id: InstanceId,
        introductions: Introductions,
        spawn: Callable[[Coroutine[object, object, None]], object],
        clock: Clock,
        audit: Audit,
    ) -> None:
        self._connection = connection
        self._invited = invited
        self._former = former
        self._instance_id = instance_id
        self._introductions = introductions
        self._spawn = spawn
        self._clock = clock
        self._audit = audit
        self._certificate = b""
        self._stranger: Stranger | None = None
        self._is_installing = False
        self._is_over = False

    def received(self, payload: bytes) -> None:
        """Process a PAIR frame.

        Raises:
            ProtocolError: the frame is malformed, or out of order.
        """
        frame = decode(payload)
        match frame:
            case _ if self._is_over:
                return
            case Proof() if not self._certificate:
                self._on_proof(frame)
            case Offer() | Done() if self._certificate and not self._is_taken():
                self._give_up(PairingFailed("the code was cancelled meanwhile"))
            case Offer() if self._certificate and self._stranger is None:
                self._on_offer(frame)
            case Done() if self._stranger is not None and not self._is_installing:
                self._is_installing = True
                self._spawn(self._install(self._stranger))
            case Failed():
                self._break_off(f"the other machine has given up: {frame.reason}")
            case _:
                raise ProtocolError("a pairing frame is out of order")

    def lost(self) -> None:
        """Note that the connection is closed."""
        if not self._is_over and not self._is_installing:
            self._break_off(_LEFT)

    def _is_taken(self) -> bool:
        """Return whether the code is still that of this visit, and was not cancelled."""
        return self._invited.invitation.phase(self._clock.monotonic()) is Phase.IN_USE

    def _on_proof(self, frame: Proof) -> None:
        invitation = self._invited.invitation
        answer = None
        try:
            joining = read_certificate(frame.certificate)
        except InvalidArgument:
            joining = None
        if frame.version != VERSION:
            self._refuse(f"this instance pairs by version {VERSION}, and not {frame.version}")
            return
        if joining is not None:
            if why := self._why_void(frame.proof, joining):
                self._record(Outcome.REFUSED, reason=why)
                self._refuse(why)
                return
            answer = invitation.attempt(frame.proof, joining, self._clock.monotonic())
        if answer is None:
            self._record(Outcome.REFUSED, reason="wrong code", wrong=invitation.wrong)
            self._invited.progressed(error=WRONG)
            self._refuse(WRONG)
            return
        self._certificate = frame.certificate
        self._connection.proven()
        self._send(Proof(VERSION, b"", answer))

    def _why_void(self, proof: bytes, joining: Certificate) -> str:
        """Return why a code cannot be used, to a far end that has it; empty = it can, or is wrong.

        Nobody else learns it: who has no code could only try 128 random bits (SEC-85)."""
        now = self._clock.monotonic()
        for one in (self._invited.invitation, *self._former):
            phase = one.phase(now)
            if phase is not Phase.WAITING and one.is_known_by(proof, joining):
                return VOID[phase]
        return ""

    def _on_offer(self, frame: Offer) -> None:
        try:
            stranger = get_acquainted(frame, self._certificate, self._instance_id, self._clock)
            principal = self._introductions.check(stranger, self._invited.wishes)
        except BrokerError as error:
            self._record(Outcome.REFUSED, reason=error.message)
            self._give_up(error)
            return
        self._stranger = stranger
        self._invited.progressed(peer=principal)
        self._send(self._invited.offer)

    async def _install(self, stranger: Stranger) -> None:
        try:
            introduced = await self._introductions.install(stranger, self._invited.wishes)
        except BrokerError as error:
            self._give_up(error)
            return
        self._is_over = True
        self._invited.invitation.succeeded()
        self._send(Done())
        self._invited.finished(introduced)

    def _give_up(self, error: BrokerError) -> None:
        self._break_off(f"{error.message} ({error.hint})" if error.hint else error.message)
        self._refuse(error.message)

    def _break_off(self, why: str) -> None:
        """Let the code be tried again, and tell why this attempt was in vain."""
        self._is_over = True
        if self._certificate:
            self._invited.invitation.failed()
            self._invited.progressed(error=why)

    def _refuse(self, reason: str) -> None:
        self._is_over = True
        self._send(Failed(reason))
        self._connection.end_pairing()

    def _send(self, frame: PairingFrame) -> None:
        self._connection.send_paired(encode(Kind.PAIRED, frame))

    def _record(self, outcome: Outcome, **detail: object) -> None:
        self._audit.record(
            Action.PAIRED,
            actor=self._connection.remote_host,
            subject="",
            outcome=outcome,
            **detail,
        )
