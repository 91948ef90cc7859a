"""Joining: the side of a pairing that was given the code (SEC-62).

Reads:  PAIRED frames.      Calls: transport.pairing, admin.pairing.introductions.
Never:  sends anything before the fingerprint of the far end's certificate has been compared.
Fails:  `PairingFailed`, or the error of an installation; nothing is left of the attempt.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from brokerd.admin.pairing.acquaintance import Self, Stranger, Wishes, get_acquainted
from brokerd.admin.pairing.introductions import Introduced, Introductions
from brokerd.clock import Clock
from brokerd.errors import BrokerError, PairingFailed
from brokerd.ids import InstanceId
from brokerd.protocol.pairing import VERSION, Done, Failed, Offer, PairingFrame, Proof
from brokerd.security.certificates import Certificate, read_certificate
from brokerd.security.pairing import ANEW, VOID, WRONG, Code, Side, is_proof, prove
from brokerd.transport.network import Network, tcp_address
from brokerd.transport.pairing import PairingCall

_OTHER: Final = (
    "another machine than the one that has shown the code answers at {address}: its certificate is "
    "not that of the code"
)
_Frame = TypeVar("_Frame", bound=PairingFrame)

Confirm = Callable[[Introduced, Wishes], Awaitable[bool]]
"""Function that finds out whether the other side has installed this one, by connecting to it."""


class Joining:
    """The part that joins other instances by their codes."""

    def __init__(
        self,
        *,
        own: Self,
        instance_id: Callable[[], InstanceId],
        introductions: Introductions,
        network: Network,
        confirm: Confirm,
        connect_again: Callable[[], None],
        clock: Clock,
    ) -> None:
        """Create the part. `connect_again`: ends the pauses of addresses that refused logins."""
        self._own = own
        self._instance_id = instance_id
        self._introductions = introductions
        self._network = network
        self._confirm = confirm
        self._connect_again = connect_again
        self._clock = clock

    async def join(self, code: Code, wishes: Wishes) -> Introduced:
        """Pair with the instance that has shown a code.

        Raises:
            PairingFailed: the other side does not answer, or has given up.
            InvalidArgument: one of the sides cannot be paired; the text says why.
        """
        certificate = self._own.check(wishes)
        call = PairingCall()
        address = tcp_address(code.host, code.port)
        try:
            await call.open(self._network, address)
            stranger = await self._exchange(call, code, certificate, wishes)
            return await self._install(call, stranger, wishes)
        except BrokerError as error:
            call.give_up(error.message)
            raise
        finally:
            call.close()

    async def _exchange(
        self, call: PairingCall, code: Code, own: Certificate, wishes: Wishes
    ) -> Stranger:
        """Prove this side, check the proof of the other, and exchange descriptions."""
        far = read_certificate(call.certificate)
        if not code.is_of(far):
            raise PairingFailed(
                _OTHER.format(address=tcp_address(code.host, code.port)),
                hint="show a new code on the other machine, and check the address in it",
            )
        call.is_known = True
        proof = prove(code.secret, Side.JOINING, inviting=far, joining=own)
        answer = _expect(Proof, await call.ask(Proof(VERSION, own.encoded, proof)))
        if not is_proof(answer.proof, code.secret, Side.INVITING, inviting=far, joining=own):
            raise PairingFailed("the other machine does not have the code")
        address = self._own.address(wishes.address, call.local_host)
        offer = self._own.offer(wishes, self._instance_id(), address)
        theirs = _expect(Offer, await call.ask(offer))
        stranger = get_acquainted(theirs, call.certificate, self._instance_id(), self._clock)
        self._introductions.check(stranger, wishes)
        return stranger

    async def _install(self, call: PairingCall, stranger: Stranger, wishes: Wishes) -> Introduced:
        """Install the other side, then have it install this one; undo if it does not."""
        introduced = await self._introductions.install(stranger, wishes)
        try:
            _expect(Done, await self._ask_for_the_same(call, introduced, wishes))
        except BaseException:
            await self._introductions.undo(introduced, wishes)
            raise
        # Messages that wait have made a connection too early, before the other side knew this one.
        self._connect_again()
        return introduced

    async def _ask_for_the_same(
        self, call: PairingCall, introduced: Introduced, wishes: Wishes
    ) -> PairingFrame:
        """Have the other side install this one, and return its answer."""
        try:
            return await call.ask(Done())
        except PairingFailed:
            # Only the answer may be lost: then the other side accepts this one's certificate.
            if await self._confirm(introduced, wishes):
                return Done()
            raise


def _expect(kind: type[_Frame], frame: PairingFrame) -> _Frame:
    if isinstance(frame, Failed):
        if frame.reason == WRONG:
            raise PairingFailed(
                frame.reason, hint="copy the code that it shows now, or show a new one there"
            )
        if frame.reason in VOID.values():
            raise PairingFailed(frame.reason, hint=ANEW)
        raise PairingFailed(
            f"the other machine has given up: {frame.reason}",
            hint="mend that there; the same code may be used again while it is valid",
        )
    if not isinstance(frame, kind):
        raise PairingFailed("the other machine sent another frame than was expected")
    return frame
