"""SecureStream: TLS over a stream, between the transport of the loop and a protocol object.

Reads:  the stream.                 Calls: `ssl`, its `Handshake`, the protocol object inside.
Never:  decides who may connect, or waits: it is driven by the bytes that arrive.
Fails:  alone; after a failed handshake it sends the alert, and waits for the far end to leave, so
        that a reset does not overtake the alert, which is all that the far end learns.

The transports of asyncio and uvloop for TLS do neither tell plain connections from encrypted ones,
nor show why the far end ended a handshake, nor limit what arrives before its end.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, Final, Protocol, cast

HANDSHAKE: Final = 0x16
"""First byte of a TLS connection; a frame never begins with it, because frames are short before a
login."""
TIME: Final = 5.0
"""Seconds for a handshake (TRN-9)."""
MOST_BYTES: Final = 64 * 1024
"""Limit of bytes that arrive before the handshake is over (SX-2)."""
LINGER: Final = 2.0
"""Seconds for which a stream stays open after the alert that ends its handshake."""
_RECORD: Final = 16 * 1024
_RECORD_TYPES: Final = range(0x14, 0x18)
"""First bytes of TLS records: change of cipher, alert, handshake, data."""


class Place(Protocol):
    """The place of an accepted connection at the door (END-18)."""

    def occupied(self, turn_out: Callable[[], None]) -> None:
        """Note how to close the connection in favour of another one."""
        ...


class Handshake(Protocol):
    """The part that decides about a stream."""

    def stream_opened(self, stream: "SecureStream") -> None:
        """Note that the stream is open, and the handshake not over."""
        ...

    def stream_secured(self, stream: "SecureStream") -> None:
        """Begin to use the stream; `stream.peer_certificate` is who is at its far end."""
        ...

    def stream_plain(self, transport: asyncio.Transport) -> None:
        """Decide about a far end that does not speak TLS; its bytes follow, unencrypted."""
        ...

    def stream_refused(self, stream: "SecureStream", error: Exception) -> None:
        """Note that the handshake failed, here or at the far end."""
        ...

    def stream_lost(self, exc: Exception | None) -> None:
        """Note that the stream was closed before the handshake was over."""
        ...


class _State(Enum):
    SHAKING = auto()
    OPEN = auto()
    ENDED = auto()
    """The handshake failed, or one side sends no more: what arrives is discarded."""


class SecureStream(asyncio.Protocol):
    """A TLS connection: a protocol object to the loop, and a transport to the object inside."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        handshake: Handshake,
        *,
        context: Callable[[], ssl.SSLContext],
        accepting: bool,
        limit: float | None = TIME,
    ) -> None:
        """Create the stream. `limit`: seconds for the handshake; None = `handshake` limits it.

        `context`: called when the handshake begins; what it raises refuses the stream."""
        self.peer_certificate: bytes | None = None
        """In DER; None = none was shown."""
        self.extra: dict[str, object] = {}
        """Further answers of `get_extra_info`."""
        self._inner = inner
        self._handshake = handshake
        self._context = context
        self._accepting = accepting
        self._limit = limit
        self._seat: Place | None = None
        self._state = _State.SHAKING
        self._was_secured = False
        self._raw: asyncio.Transport | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._received = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seat(self) -> Place | None:
        """Place at the door (END-18), which the protocol object inside has as well."""
        return self._seat

    @seat.setter
    def seat(self, seat: Place | None) -> None:
        self._seat = cast("Any", self._inner).seat = seat

    @property
    def cipher(self) -> str:
        """Name of the algorithm that encrypts; empty = the handshake is not over."""
        chosen = None if self._tls is None else self._tls.cipher()
        return "" if chosen is None else chosen[0]

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake; the accepting side waits for the first byte."""
        self._raw = cast("asyncio.Transport", transport)
        if self._seat is not None:
            self._seat.occupied(self.abort)
        if self._limit is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._limit, self._too_slow)
        self._handshake.stream_opened(self)
        if not self._accepting and self._state is _State.SHAKING:
            self._shake()

    def data_received(self, data: bytes) -> None:
        """Decrypt, or continue the handshake."""
        if self._state is _State.OPEN:
            self._incoming.write(data)
            self._read()
        elif self._state is _State.SHAKING:
            self._continue(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the stream on; the loop closes it."""
        if self._state is _State.OPEN:
            self._state = _State.ENDED
            self._inner.eof_received()
        elif self._state is _State.SHAKING:
            self._refuse(ConnectionResetError("the far end closed the connection"))
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end of the connection on."""
        self._stop_timer()
        self._raw = None
        self._state = _State.ENDED
        if self._was_secured:
            self._inner.connection_lost(exc)
        else:
            self._handshake.stream_lost(exc)

    def pause_writing(self) -> None:
        """Pass flow control on."""
        if self._was_secured:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass flow control on."""
        if self._was_secured:
            self._inner.resume_writing()

    # Called by the protocol object inside, which takes this object for its transport.

    def write(self, data: bytes) -> None:
        """Encrypt and send; discard the data if the stream is not open."""
        if self._state is not _State.OPEN or self._tls is None:
            return
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]  # one record
        self._flush()

    def writelines(self, pieces: Iterable[bytes]) -> None:
        """Encrypt and send."""
        self.write(b"".join(pieces))

    def close(self) -> None:
        """End the connection, after what was written has been sent."""
        raw, tls = self._raw, self._tls
        if raw is None:
            return
        if self._state is _State.OPEN and tls is not None:
            self._state = _State.ENDED
            with contextlib.suppress(ssl.SSLError):  # the answer of the far end is not awaited
                tls.unwrap()
            self._flush()
            raw.close()
        elif self._was_secured or self._tls is None:
            raw.close()
        elif self._state is _State.SHAKING:
            self.abort()
        # else the far end is left time to read why its handshake failed

    def turn_away(self, last_words: bytes) -> None:
        """Refuse a far end whose handshake is over; the object inside never learns of it."""
        self.write(last_words)
        self._was_secured = False
        self._state = _State.ENDED
        self._leave()

    def abort(self) -> None:
        """End the connection at once."""
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        """Return whether the connection ends."""
        return self._state is _State.ENDED or self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        """Receive nothing."""
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        if self._raw is not None:
            self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks of flow control, in encrypted bytes."""
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of encrypted bytes that are not sent yet."""
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what the transport of the loop knows."""
        if name in self.extra:
            return self.extra[name]
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    # The handshake.

    def _continue(self, data: bytes) -> None:
        """Take the bytes of a handshake; tell plain connections from encrypted ones."""
        if not self._received and not self._is_tls(data[0]):
            self._step_aside(data)
            return
        self._received += len(data)
        if self._received > MOST_BYTES:
            self._refuse(ConnectionError(f"more than {MOST_BYTES} bytes before the login"))
            return
        self._incoming.write(data)
        self._shake()

    def _is_tls(self, first: int) -> bool:
        return first == HANDSHAKE if self._accepting else first in _RECORD_TYPES

    def _step_aside(self, data: bytes) -> None:
        """Leave the stream to the protocol object inside, unencrypted (SEC-10)."""
        raw = self._raw
        assert raw is not None
        self._stop_timer()
        self._state = _State.ENDED
        self._raw = None
        raw.set_protocol(self._inner)
        self._handshake.stream_plain(raw)
        if not raw.is_closing():
            self._inner.data_received(data)

    def _shake(self) -> None:
        """Continue the handshake as far as the received bytes allow."""
        try:
            if self._tls is None:
                self._tls = self._context().wrap_bio(
                    self._incoming, self._outgoing, server_side=self._accepting
                )
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except Exception as error:  # noqa: BLE001  # per connection: `stream_refused` logs it
            self._refuse(error)
            return
        self._flush()
        self._stop_timer()
        self.peer_certificate = self._tls.getpeercert(binary_form=True)
        self._state = _State.OPEN
        self._was_secured = True
        self._handshake.stream_secured(self)
        if self._state is _State.OPEN:
            self._read()

    def _read(self) -> None:
        """Pass on what can be decrypted."""
        assert self._tls is not None
        read, pieces = self._tls.read, []
        error: Exception | None = None
        ended = False
        try:
            while True:
                piece = read(_RECORD)
                if not piece:
                    ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as failure:
            error = failure
        self._flush()
        if pieces:
            self._inner.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if error is not None and self._state is _State.OPEN:
            self._state = _State.ENDED
            self._handshake.stream_refused(self, error)
            self._leave()
        elif ended and self._state is _State.OPEN:
            self._state = _State.ENDED
            self._inner.eof_received()
            if self._raw is not None:
                self._raw.close()

    def _refuse(self, error: Exception) -> None:
        """End a failed handshake."""
        self._stop_timer()
        self._state = _State.ENDED
        self._handshake.stream_refused(self, error)
        self._leave()

    def _leave(self) -> None:
        """Send the alert, then wait a little for the far end to close, which has read it then."""
        raw = self._raw
        if raw is None or raw.is_closing():
            return
        self._flush()
        if self._tls is None or not raw.can_write_eof():
            raw.close()
            return
        raw.write_eof()
        self._timer = asyncio.get_running_loop().call_later(LINGER, self.abort)

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse(TimeoutError("the TLS handshake was not over in time"))
        self.abort()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None:
            self._raw.write(self._outgoing.read())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
