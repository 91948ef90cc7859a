"""Pairing over TLS: the connection of the joining side, and the seam of the accepting side.

Reads:  the stream.                 Calls: `protocol.pairing`, `security.secure_stream`.
Never:  installs anything, or judges a proof: `admin.pairing` does, on both sides (SEC-62).
Fails:  `PairingFailed`, with the reason that the other side gives, if it gives one.
"""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final, Protocol, cast

from brokerd.errors import PairingFailed, ProtocolError
from brokerd.protocol.frames import FrameReader, Kind
from brokerd.protocol.neighbour import Reject
from brokerd.protocol.neighbour import decode as decode_neighbourly
from brokerd.protocol.pairing import OFFER_LIMIT, Failed, PairingFrame, decode, encode
from brokerd.security.pairing import ANEW
from brokerd.security.secure_stream import SecureStream
from brokerd.security.tls_rules import harden
from brokerd.transport.network import ALL, Network, host_and_port

STEP: Final = 20.0
"""Seconds in which the other side has to answer a frame; it writes to its stores meanwhile."""
_NO_CODE: Final = (
    "the other machine has shown no code for some time, or was started anew since; the code is void"
)


class Visit(Protocol):
    """The inviting side of one pairing."""

    def received(self, payload: bytes) -> None:
        """Process a PAIR frame; raise `ProtocolError` if it is malformed."""
        ...

    def lost(self) -> None:
        """Note that the connection is closed."""
        ...


class VisitedConnection(Protocol):
    """An accepted connection, as the inviting side of a pairing uses it."""

    @property
    def remote_host(self) -> str:
        """Literal address of the far end."""
        ...

    def send_paired(self, data: bytes) -> None:
        """Send a whole frame."""
        ...

    def proven(self) -> None:
        """Accept longer frames from now on, and allow more time (SEC-62)."""
        ...

    def end_pairing(self) -> None:
        """Close the connection once what was sent has left."""
        ...


class Invites(Protocol):
    """The part that knows whether a code waits (SEC-60)."""

    @property
    def is_waiting(self) -> bool:
        """Whether a far end without a certificate may send PAIR: a code waits, or did lately."""
        ...

    def visit(self, connection: VisitedConnection) -> Visit:
        """Begin the inviting side of a pairing on an accepted connection."""
        ...


def pairing_context() -> ssl.SSLContext:
    """Return the context of the joining side, which compares the fingerprint itself (SEC-62)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    harden(context, checks_dates=False)
    return context


class PairingCall(asyncio.Protocol):
    """The connection of the joining side."""

    def __init__(self) -> None:
        self.certificate = b""
        """Certificate that the far end has proven to own, DER."""
        self.is_known = False
        """Whether the far end is the machine that has shown the code, by its certificate."""
        self.local_host = ""
        """Literal address of this side of the connection."""
        self._arrived: asyncio.Queue[PairingFrame | PairingFailed] = asyncio.Queue()
        self._secured = asyncio.get_running_loop().create_future()
        self._reader = FrameReader(OFFER_LIMIT)
        self._stream: asyncio.Transport | None = None

    async def open(self, network: Network, address: str) -> None:
        """Connect, and wait until the far end has proven its certificate.

        Raises:
            PairingFailed: there is no connection, or the far end does not speak TLS.
        """
        stream = SecureStream(self, self, context=pairing_context, accepting=False)
        try:
            async with asyncio.timeout(STEP):
                await network.connect(lambda: stream, address)
                await self._secured
        except TimeoutError:
            self.close()
            raise PairingFailed(f"{address} does not answer") from None
        except OSError as error:
            raise PairingFailed(
                f"{address} cannot be reached: {error.strerror or error}",
                hint="the code has the address of the other machine; give one that this machine "
                "reaches there: brokerd peer pair --own-address TCP://HOST:PORT",
            ) from error

    async def ask(self, frame: PairingFrame) -> PairingFrame:
        """Send a frame and return the answer.

        Raises:
            PairingFailed: the far end is gone.
        """
        self._send(frame)
        try:
            async with asyncio.timeout(STEP):
                answer = await self._arrived.get()
        except TimeoutError:
            raise PairingFailed("the other machine does not answer any more") from None
        if isinstance(answer, PairingFailed):
            raise answer
        return answer

    def give_up(self, reason: str) -> None:
        """Send the reason why this side has given up, if the far end is known, and close."""
        if self.is_known:
            self._send(Failed(reason))
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream.close()

    def _send(self, frame: PairingFrame) -> None:
        if self._stream is not None:
            self._stream.write(encode(Kind.PAIR, frame))

    # Called by the stream.

    def stream_opened(self, stream: SecureStream) -> None:
        """Keep the stream, to close it."""
        self._stream = cast("asyncio.Transport", stream)
        name = stream.get_extra_info("sockname")
        self.local_host = str(name[0]) if isinstance(name, tuple) else ""

    def stream_secured(self, stream: SecureStream) -> None:
        """Note that the far end has proven its certificate."""
        self.certificate = stream.peer_certificate or b""
        if not self._secured.done():
            self._secured.set_result(None)

    def stream_plain(self, transport: asyncio.Transport) -> None:
        """Read the refusal of a far end that does not speak TLS."""
        self._stream = transport

    def stream_refused(self, _stream: SecureStream, error: Exception) -> None:
        """Fail, because there is no TLS with the far end."""
        self._end(f"the TLS handshake failed: {error}")

    def stream_lost(self, _exc: Exception | None) -> None:
        """Fail, because the far end has closed the connection."""
        self._end("the other machine closed the connection")

    def data_received(self, data: bytes) -> None:
        """Keep the frames of the far end."""
        try:
            for kind, payload in self._reader.feed(data):
                self._frame(kind, payload)
        except ProtocolError as error:
            self._end(error.message)
            self.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Fail whatever waits for the far end."""
        self._end("the connection to the other machine was lost")

    def _frame(self, kind: int, payload: memoryview) -> None:
        if kind == Kind.PAIRED:
            self._arrived.put_nowait(decode(payload))
            return
        frame = decode_neighbourly(kind, payload)
        if not isinstance(frame, Reject):
            raise ProtocolError("the other machine sent another frame than an answer")
        if self.certificate:
            self._end(_NO_CODE, hint=ANEW)
        else:
            self._end(
                f"the other machine refuses encrypted connections ({frame.reason})",
                hint='set endpoint.encryption = "required" there',
            )

    def _end(self, why: str, *, hint: str | None = None) -> None:
        failure = PairingFailed(why) if hint is None else PairingFailed(why, hint=hint)
        if not self._secured.done():
            self._secured.set_exception(failure)
            return
        self._arrived.put_nowait(failure)


def reachable_host(addresses: tuple[str, ...], local_host: str = "") -> str | None:
    """Return the host under which other machines reach an endpoint; None = it is unknown.

    `addresses`: those at which it listens. `local_host`: this machine's address on a connection to
    the other machine, if there is one."""
    hosts = [host_and_port(one)[0] for one in addresses]
    if ALL not in hosts:
        return local_host if local_host in hosts else next(iter(hosts), None)
    return local_host or _outward_host()


def _outward_host() -> str | None:
    """Return the address that this machine has on the way to others; sends nothing."""
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))
            return str(probe.getsockname()[0])
    return None
