"""Pairing: the verbs of administration that pair this instance with another (CLP-150 to CLP-153).

Reads:  the code that was shown last.      Calls: visits, joining.
Never:  writes a code or its secret to a log, the audit or a store (SX-9): it is in memory only.
Wakes:  clients that wait, when the state of the code changes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final

from brokerd.admin.pairing.acquaintance import Self, Wishes
from brokerd.admin.pairing.introductions import Introduced, Introductions
from brokerd.admin.pairing.joining import Confirm, Joining
from brokerd.admin.pairing.visits import PairingVisit
from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.errors import ObjectNotFound, ProtocolError
from brokerd.ids import InstanceId
from brokerd.protocol.pairing import Offer
from brokerd.protocol.pairing_verbs import (
    AwaitPairing,
    CancelPairing,
    InvitePeer,
    JoinPeer,
    PairingOptions,
    PairingVerb,
)
from brokerd.security.pairing import (
    SECRET_BYTES,
    Code,
    Invitation,
    Phase,
    fingerprint_of,
    read_code,
)
from brokerd.telemetry.audit import Action, Audit
from brokerd.transport.network import Network, host_and_port
from brokerd.transport.pairing import Visit, VisitedConnection

Row = dict[str, object]
_MOST_FORMER: Final = 4
"""Most codes shown before the last one of which this instance says what became of them."""


class Shown:
    """A code that was shown, and how far the pairing by it has come."""

    def __init__(self, invitation: Invitation, wishes: Wishes, offer: Offer) -> None:
        self.invitation = invitation
        self.wishes = wishes
        self.offer = offer
        self.number = 1
        """Number of the state; it rises with each change."""
        self.peer = ""
        """Principal that the other instance becomes, once that is known."""
        self.error = ""
        """Why the latest attempt was in vain."""
        self.introduced: Introduced | None = None
        self._changed = asyncio.Event()

    def progressed(self, *, peer: str = "", error: str = "") -> None:
        """Note how far a pairing has come."""
        self.peer = peer
        self.error = error
        self.notify()

    def finished(self, introduced: Introduced) -> None:
        """Note that both sides are paired."""
        self.introduced = introduced
        self.progressed(peer=introduced.principal)

    def notify(self) -> None:
        """Wake those that wait for another state."""
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, known: int, seconds: float) -> None:
        """Wait until the state is another than the known one, at most some seconds."""
        if self.number == known:
            changed = self._changed
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                return


class Pairing:
    """The codes of one instance, and its joining of others. One code waits at a time."""

    def __init__(
        self,
        *,
        own: Self,
        instance_id: Callable[[], InstanceId],
        introductions: Introductions,
        network: Network,
        confirm: Confirm,
        connect_again: Callable[[], None],
        random: Callable[[int], bytes],
        spawn: Callable[[Coroutine[object, object, None]], object],
        clock: Clock,
        audit: Audit,
    ) -> None:
        """Create the verbs. `random`: source of secrets."""
        self._own = own
        self._instance_id = instance_id
        self._introductions = introductions
        self._random = random
        self._spawn = spawn
        self._clock = clock
        self._audit = audit
        self._shown: Shown | None = None
        self._former: deque[Invitation] = deque(maxlen=_MOST_FORMER)
        """Codes that were shown before."""
        self._joining = Joining(
            own=own,
            instance_id=instance_id,
            introductions=introductions,
            network=network,
            confirm=confirm,
            connect_again=connect_again,
            clock=clock,
        )

    async def run(self, broker: Broker, verb: PairingVerb, actor: str) -> Row:
        """Perform a verb for `actor`, a client of `broker`; return the answer."""
        match verb:
            case InvitePeer(options):
                return self.invite(_wishes(broker, options, actor))
            case AwaitPairing(known, wait):
                return await self.state(known, wait)
            case CancelPairing():
                return self.cancel()
            case JoinPeer(code, options):
                wishes = _wishes(broker, options, actor)
                return _result(await self._joining.join(read_code(code), wishes))

    def invite(self, wishes: Wishes) -> Row:
        """Return a new code; the one that was shown before is void.

        Raises:
            InvalidArgument: this instance cannot be paired; the text says why.
            ObjectNotFound: a service to be shared does not exist.
        """
        certificate = self._own.check(wishes)
        address = self._own.address(wishes.address)
        host, port = host_and_port(address)
        secret = self._random(SECRET_BYTES)
        code = Code(host, port, fingerprint_of(certificate), secret)
        now = self._clock.monotonic()
        if self._shown is not None:
            self._shown.invitation.cancel()
            self._shown.notify()
            self._former.append(self._shown.invitation)
        offer = self._own.offer(wishes, self._instance_id(), address)
        shown = self._shown = Shown(Invitation(code, certificate, now), wishes, offer)
        self._audit.record(
            Action.PAIRING_OFFERED,
            actor=wishes.actor,
            subject=wishes.name or "",
            address=address,
            shares=list(wishes.shares),
        )
        return {"code": code.text, "address": address} | self._state(shown)

    async def state(self, known: int, wait: float) -> Row:
        """Return the state of the code shown last, once it is another than the known one.

        Raises:
            ObjectNotFound: no code was shown since the start.
        """
        shown = self._latest()
        left = shown.invitation.seconds_left(self._clock.monotonic())
        if self._phase(shown) in (Phase.WAITING, Phase.IN_USE):
            await shown.wait(known, min(wait, left) if left else wait)
        return self._state(shown)

    def cancel(self) -> Row:
        """Make the code shown last void; return its state.

        Raises:
            ObjectNotFound: no code was shown since the start.
        """
        shown = self._latest()
        shown.invitation.cancel()
        shown.notify()
        return self._state(shown)

    # Called by the transport.

    @property
    def is_waiting(self) -> bool:
        """Whether a far end without a certificate may send PAIR: a code waits, or did lately."""
        return self._shown is not None and self._shown.invitation.is_remembered(
            self._clock.monotonic()
        )

    def visit(self, connection: VisitedConnection) -> Visit:
        """Begin the inviting side of a pairing on an accepted connection."""
        if self._shown is None:
            raise ProtocolError("no code waits")
        return PairingVisit(
            connection,
            self._shown,
            former=[one for one in self._former if one.is_remembered(self._clock.monotonic())],
            instance_id=self._instance_id(),
            introductions=self._introductions,
            spawn=self._spawn,
            clock=self._clock,
            audit=self._audit,
        )

    def _latest(self) -> Shown:
        if self._shown is None:
            raise ObjectNotFound(
                "no code was shown since the start", hint="show one: brokerd peer pair"
            )
        return self._shown

    def _phase(self, shown: Shown) -> Phase:
        return shown.invitation.phase(self._clock.monotonic())

    def _state(self, shown: Shown) -> Row:
        phase = self._phase(shown)
        left = shown.invitation.seconds_left(self._clock.monotonic())
        if phase not in {Phase.WAITING, Phase.IN_USE}:
            left = 0.0
        return {
            "number": shown.number,
            "phase": phase.value,
            "seconds_left": left,
            "wrong": shown.invitation.wrong,
            "peer": shown.peer,
            "error": shown.error,
            "result": None if shown.introduced is None else _result(shown.introduced),
        }


def _wishes(broker: Broker, options: PairingOptions, actor: str) -> Wishes:
    return Wishes(
        broker=broker,
        actor=actor,
        name=options.name,
        shares=tuple(dict.fromkeys(options.shares)),
        address=options.address,
    )


def _result(introduced: Introduced) -> Row:
    return {
        "principal": introduced.principal,
        "is_new": introduced.is_new,
        "address": introduced.peer.address,
        "services": list(introduced.peer.services),
        "is_secured": introduced.peer.is_secured,
        "grants": list(introduced.grants),
        "changes": list(introduced.changes),
        "left_out": introduced.left_out,
    }
