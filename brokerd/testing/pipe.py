"""Pipe: one direction of a simulated connection.

Bytes arrive in order, in pieces that do not depend on the writes, as with TCP. Bytes that a slow
reader does not accept fill a window, then the writer's buffer. `SimNetwork` decides about faults
and calls `freeze`, `thaw`, `black_hole`, `reset_reader` and `end_by_crash`.

Reads:  the conditions of the link, a seeded stream of random numbers.
Calls:  both transports, each in the context of its side.
"""

import asyncio
import errno
from collections import deque
from random import Random
from zlib import crc32

from brokerd.testing.link import Conditions, Link
from brokerd.testing.mangler import FrameCutter
from brokerd.testing.stream import SimTransport
from brokerd.testing.trace import Trace


class Pipe:
    """One direction of a connection, from `writer` to `reader`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: Link,
        *,
        writer: SimTransport,
        reader: SimTransport,
        rng: Random,
        trace: Trace | None,
    ) -> None:
        self.link = link
        self.writer = writer
        self.reader = reader
        self.other: Pipe = self
        """Pipe of the opposite direction; `SimNetwork` sets it when it has created both."""
        self.swallows = False
        """Whether the far machine accepts the bytes, but no reader ever gets them."""
        self._loop = loop
        self._rng = rng
        self._trace = trace
        self._out = bytearray()
        self._flight: deque[tuple[float, bytes]] = deque()
        self._in_flight = 0
        self._last_at = 0.0
        self._frames = FrameCutter()
        self._frozen = self._for_ever = self._broken = False
        self._ending = self._ended = False
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._giving_up: asyncio.TimerHandle | None = None
        self._until_reset = self._draw_reset()

    @property
    def buffered(self) -> int:
        """Number of written bytes that the network has not accepted yet."""
        return len(self._out)

    @property
    def undelivered(self) -> int:
        """Number of written bytes that are not delivered yet."""
        return len(self._out) + self._in_flight

    # The writer's end.

    def write(self, data: bytes) -> None:
        """Accept bytes from the writer; with a mangler, frame by frame."""
        if self.link.mangler is None:
            # A removed mangler may have left a part of a frame behind.
            self._append(self._frames.rest() + data)
            return
        for frame in self._frames.feed(data):
            for delay, copy in self.link.mangler(frame):
                if delay <= 0:
                    self._append(copy)
                else:
                    self._loop.call_later(
                        delay, self._append_late, copy, context=self.writer.context
                    )

    def finish(self) -> None:
        """Send the end of the stream after the last byte."""
        self._ending = True
        self._pump_soon()

    def abort(self) -> None:
        """Discard bytes that the network has not accepted; the reader sees an end, or a reset."""
        self._out.clear()
        if self._rng.random() < 0.5:  # noqa: PLR2004  # a machine resets if it had unread bytes
            self.reset_reader()
        else:
            self.finish()

    def stop_writer(self) -> None:
        """Drop the buffer of an ended writer; bytes in flight still arrive."""
        self._out.clear()
        if self._giving_up is not None:
            self._giving_up.cancel()

    # Faults.

    def freeze(self) -> None:
        """Carry nothing until `thaw`; a writer with undelivered bytes gives up after `give_up`."""
        self._frozen = True
        self._disarm()
        if self.undelivered:
            self._start_giving_up()

    def black_hole(self) -> None:
        """Carry nothing from now on; `thaw` has no effect."""
        self._for_ever = True
        self.freeze()

    def thaw(self) -> None:
        """Carry bytes again, after a pause such as TCP's retransmission takes."""
        if not self._frozen or self._for_ever:
            return
        self._frozen = False
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        resumed = self._loop.time() + self._rng.uniform(0.2, 3.0)
        self._flight = deque((max(at, resumed), data) for at, data in self._flight)
        self._last_at = max(self._last_at, resumed)
        self.arm()
        self._pump_soon()

    def reset_reader(self) -> None:
        """Reset the reader's side; behind a cut the reset is lost, and the reader's writes
        vanish instead."""
        self.break_off()
        # A reader without a reset notices the loss only by its own writes: its pipe must go dark.
        if self.link.is_cut:
            self.other.black_hole()
        else:
            self._lose_reader(self.link.delay(self._rng))

    def lose_writer(self) -> None:
        """Reset the writer's side only."""
        self.other._lose_reader(0.0)

    def break_off(self) -> None:
        """Discard all undelivered bytes, and all bytes written later."""
        self._disarm()
        self._out.clear()
        self._flight.clear()
        self._in_flight = 0
        self._broken = True

    def end_by_crash(self, *, late: bool) -> None:
        """End the pipe of a crashed writer; with `late`, the reset follows the bytes in flight."""
        self._out.clear()
        if self.link.is_cut or not late:
            self.reset_reader()
        else:
            last = self._flight[-1][0] if self._flight else self._loop.time()
            self._lose_reader(last - self._loop.time() + self.link.delay(self._rng))
        # The dead side gets no bytes; behind a cut, the peer must not get a reset for its own.
        if not self.link.is_cut:
            self.other.break_off()

    # Movement.

    def _append(self, data: bytes) -> None:
        if self._broken:
            return
        self._out += data
        if self._frozen:
            self._start_giving_up()
        self._pump_soon()

    def _append_late(self, data: bytes) -> None:
        if not self.writer.is_closing():
            self._append(data)

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump, context=self.writer.context)

    def _pump(self) -> None:
        self._pumping = False
        if self._frozen or self._broken:
            return
        conditions = self.link.conditions
        took = False
        while self._out and self._in_flight < conditions.window:
            room = conditions.window - self._in_flight
            self._depart(self._next_piece(conditions, room), conditions)
            took = True
        if self._ending and not self._out and not self._ended:
            self._ended = True
            self._depart(b"", conditions)
        self.arm()
        if took:
            self.writer.drained()

    def _next_piece(self, conditions: Conditions, room: int) -> bytes:
        size = min(len(self._out), room)
        if conditions.chunk is not None:
            size = min(size, self._rng.randint(*conditions.chunk))
        piece = bytes(self._out[:size])
        del self._out[:size]
        return piece

    def _depart(self, piece: bytes, conditions: Conditions) -> None:
        at = max(self._loop.time(), self.link.stalled_until) + self.link.delay(self._rng)
        if conditions.stall and self._rng.random() < conditions.stall:
            at += self._rng.uniform(*conditions.stall_for)
        self._last_at = max(self._last_at, at)
        self._flight.append((self._last_at, piece))
        self._in_flight += len(piece)

    def arm(self) -> None:
        """Set the timer for the next piece, if this piece may be delivered."""
        # An ended reader counts as well: its machine answers with a reset.
        blocked = self._frozen or self.swallows or not self._flight
        if self._timer is None and not blocked and (self.reader.accepts or self.reader.gone):
            self._timer = self._loop.call_at(
                self._flight[0][0], self._deliver, context=self.reader.context
            )

    def arm_other(self) -> None:
        """Resume the deliveries to the writer, which reads again or has ended."""
        self.other.arm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._flight and self._flight[0][0] <= now and not self._frozen:
            if self.reader.gone:
                self._answer_reset()
                return
            if not self.reader.accepts:
                break
            self._deliver_one()
        self.arm()
        if self._out:
            self._pump_soon()

    def _deliver_one(self) -> None:
        _, piece = self._flight.popleft()
        self._in_flight -= len(piece)
        if self._trace is not None:
            what = f"{len(piece)} bytes {crc32(piece):08x}" if piece else "the end"
            self._trace.note(self.reader.node, f"{what} from {self.writer.node}")
        if self._until_reset is not None:
            if len(piece) >= self._until_reset:
                self._reset_at(piece[: self._until_reset])
                return
            self._until_reset -= len(piece)
        if piece:
            self.reader.feed(piece)
        else:
            self.reader.feed_eof()

    def _reset_at(self, last: bytes) -> None:
        """Deliver the bytes before a drawn reset, then reset both sides."""
        if last:
            self.reader.feed(last)
        self.other.reset_reader()
        self.reset_reader()

    def _answer_reset(self) -> None:
        """Answer bytes that arrived at an ended side with a reset of the writer."""
        if any(piece for _, piece in self._flight):
            self.other.reset_reader()
        self._flight.clear()
        self._in_flight = 0

    def _start_giving_up(self) -> None:
        if self._giving_up is None and not self.writer.gone:
            self._giving_up = self._loop.call_later(
                self.link.conditions.give_up, self._give_up, context=self.writer.context
            )

    def _give_up(self) -> None:
        if self._frozen:
            self.writer.lose(TimeoutError(errno.ETIMEDOUT, "connection timed out"))

    def _lose_reader(self, delay: float) -> None:
        reset = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        self._loop.call_later(delay, self.reader.lose, reset, context=self.reader.context)

    def _draw_reset(self) -> int | None:
        mean = self.link.conditions.reset_every
        return int(self._rng.expovariate(1 / mean)) if mean else None
