"""Manglers: lose, repeat and reorder whole frames, as forwarders between two instances may (HK-4).

A stream of bytes cannot lose a frame, but forwarding between two instances can. A mangler is set on
a link, and decides for each frame which copies arrive, and when. It gets only whole frames.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

Mangler = Callable[[bytes], list[tuple[float, bytes]]]
"""Function from a whole frame, including its length, to the copies that arrive, in order.

Each copy is (delay in seconds, frame)."""

BOXCAR = 16
"""Kind of the frames that carry items of dialogs (TRN-45); others belong to the connection."""

_LENGTH = 4


class BoxcarMangler:
    """A mangler that draws the fate of each BOXCAR; login, keepalive and goodbye pass unchanged.

    `drop`, `duplicate` and `reorder` are probabilities. A repeated or reordered frame arrives after
    a delay that is drawn between the two bounds of `delay`, in seconds. `counts`: numbers of
    frames by their fate.
    """

    def __init__(
        self,
        rng: Random,
        *,
        drop: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        delay: tuple[float, float] = (0.001, 2.0),
    ) -> None:
        self._rng = rng
        self._drop = drop
        self._duplicate = duplicate
        self._reorder = reorder
        self._delay = delay
        self.counts: Counter[str] = Counter()

    def set(self, *, drop: float, duplicate: float, reorder: float) -> None:
        """Set the probabilities for further frames."""
        self._drop, self._duplicate, self._reorder = drop, duplicate, reorder

    def calm(self) -> None:
        """Let all further frames pass unchanged."""
        self._drop = self._duplicate = self._reorder = 0.0

    def __call__(self, frame: bytes) -> list[tuple[float, bytes]]:
        """Return the copies of one frame that arrive, each after its delay in seconds."""
        if len(frame) <= _LENGTH or frame[_LENGTH] != BOXCAR:
            return [(0.0, frame)]
        if self._rng.random() < self._drop:
            self.counts["dropped"] += 1
            return []
        copies = [(self._reordered(), frame)]
        if self._rng.random() < self._duplicate:
            self.counts["duplicated"] += 1
            copies.append((self._rng.uniform(*self._delay), frame))
        self.counts["passed"] += 1
        return copies

    def _reordered(self) -> float:
        if self._rng.random() < self._reorder:
            self.counts["reordered"] += 1
            return self._rng.uniform(*self._delay)
        return 0.0


class FrameCutter:
    """A splitter of one direction of a stream into frames: u32 length, then as many bytes."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the frames that are now complete, and keep the rest for later bytes."""
        self._bytes += data
        frames: list[bytes] = []
        while len(self._bytes) >= _LENGTH:
            size = _LENGTH + int.from_bytes(self._bytes[:_LENGTH], "big")
            if len(self._bytes) < size:
                break
            frames.append(bytes(self._bytes[:size]))
            del self._bytes[:size]
        return frames

    def rest(self) -> bytes:
        """Remove and return the bytes of an incomplete frame."""
        rest = bytes(self._bytes)
        self._bytes.clear()
        return rest
