"""A SHA-256 that can be put down and taken up again (FIPS 180-4). PURE.

Reads: nothing.      Calls: nothing.
Never: is for secrets; it is for a worker that adds up a stream of messages and keeps how far it is
in the same commit. The library's own objects cannot be stored, and no kept package can do it.
"""

from struct import Struct
from typing import Final

_BLOCK: Final = 64
_WORD: Final = 0xFFFFFFFF
_words: Final = Struct(">16I").unpack_from
_state: Final = Struct(">8IQ")

_FIRST: Final = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip


def _constants() -> tuple[int, ...]:
    """The first 32 bits of the fractions of the cube roots of the first 64 primes."""
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, int(n**0.5) + 1))]
    return tuple(_cube_root(prime << 96) & _WORD for prime in primes)


def _cube_root(value: int) -> int:
    """The whole part of the cube root."""
    low, high = 0, 1 << (value.bit_length() // 3 + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**3 <= value else (low, middle - 1)
    return low


_K: Final = _constants()


class RunningSha256:
    """The hash of what was added so far."""

    def __init__(self, kept: bytes = b"") -> None:
        """Begin anew, or go on from what `keep` gave."""
        *self._h, self._size = _state.unpack_from(kept) if kept else (*_FIRST, 0)
        self._tail = kept[_state.size :]

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self._size += len(data)
        data = self._tail + data
        whole = len(data) - len(data) % _BLOCK
        for at in range(0, whole, _BLOCK):
            self._h = _compress(self._h, data, at)
        self._tail = data[whole:]

    def keep(self) -> bytes:
        """All there is to know, to go on from: 40 to 103 bytes."""
        return _state.pack(*self._h, self._size) + self._tail

    def hexdigest(self) -> str:
        """The SHA-256 of all that was added."""
        last = RunningSha256(self.keep())
        room = (-self._size - 9) % _BLOCK
        last.add(b"\x80" + bytes(room) + (self._size * 8).to_bytes(8, "big"))
        return _state.pack(*last._h, 0)[:32].hex()


def _compress(state: list[int], data: bytes, at: int) -> list[int]:
    """One block. Sums are cut to 32 bits as late as can be: that is most of its time."""
    w = list(_words(data, at))
    for t in range(16, 64):
        x, y = w[t - 15], w[t - 2]
        x |= x << 32
        y |= y << 32
        small = (x >> 7 ^ x >> 18 ^ (x & _WORD) >> 3) + (y >> 17 ^ y >> 19 ^ (y & _WORD) >> 10)
        w.append(w[t - 16] + w[t - 7] + small & _WORD)
    a, b, c, d, e, f, g, h = state
    for k, word in zip(_K, w, strict=True):
        x = e | e << 32
        h += ((x >> 6 ^ x >> 11 ^ x >> 25) & _WORD) + (e & f ^ ~e & g) + k + word
        x = a | a << 32
        y = h + ((x >> 2 ^ x >> 13 ^ x >> 22) & _WORD) + (a & b ^ a & c ^ b & c)
        a, b, c, d, e, f, g, h = y & _WORD, a, b, c, d + h & _WORD, e, f, g
    now = (a, b, c, d, e, f, g, h)
    return [one + before & _WORD for one, before in zip(now, state, strict=True)]
