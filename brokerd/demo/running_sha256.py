"""A SHA-256 whose state can be stored and continued later (FIPS 180-4).

Reads: nothing.
Calls: hashlib's OpenSSL, by ctypes and with the layout of its context declared here, if a trial
       agrees with hashlib; otherwise pure Python, which is a hundred times slower.
Never: is used for secrets; it is for a worker that hashes a stream of messages and stores its
progress in the same commit. hashlib's own objects cannot be stored, and no maintained package can
do it.
"""

import ctypes
import hashlib
from collections.abc import Callable
from importlib.util import find_spec
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
    """Return the first 32 bits of the fractional parts of the cube roots of the first 64 primes."""
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, int(n**0.5) + 1))]
    return tuple(_cube_root(prime << 96) & _WORD for prime in primes)


def _cube_root(value: int) -> int:
    """Return the integer part of the cube root."""
    low, high = 0, 1 << (value.bit_length() // 3 + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**3 <= value else (low, middle - 1)
    return low


_K: Final = _constants()


class RunningSha256:
    """The hash of the bytes added so far."""

    def __init__(self, kept: bytes = b"") -> None:
        """Begin a new hash, or continue from a state returned by `keep`."""
        *self._h, self._size = _state.unpack_from(kept) if kept else (*_FIRST, 0)
        self._tail = kept[_state.size :]

    def add(self, data: bytes) -> None:
        """Add the next bytes."""
        self._size += len(data)
        data = self._tail + data
        whole = len(data) - len(data) % _BLOCK
        if whole:
            self._h = _blocks(self._h, data, whole)
        self._tail = data[whole:]

    def keep(self) -> bytes:
        """Return the state from which to continue, of 40 to 103 bytes."""
        return _state.pack(*self._h, self._size) + self._tail

    def hexdigest(self) -> str:
        """Return the SHA-256 of all bytes added."""
        last = RunningSha256(self.keep())
        room = (-self._size - 9) % _BLOCK
        last.add(b"\x80" + bytes(room) + (self._size * 8).to_bytes(8, "big"))
        return _state.pack(*last._h, 0)[:32].hex()


def _compress(state: list[int], data: bytes, at: int) -> list[int]:
    """Return the state after one block.

    Sums are cut to 32 bits as late as possible, because cutting takes most of the time.
    """
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


def compress_slowly(state: list[int], data: bytes, size: int) -> list[int]:
    """Return the state after blocks of `size` bytes in all, in pure Python."""
    for at in range(0, size, _BLOCK):
        state = _compress(state, data, at)
    return state


class _Context(ctypes.Structure):
    """OpenSSL's context of a SHA-256; between two blocks only `state` matters."""

    _fields_ = (
        ("state", ctypes.c_uint32 * 8),
        ("bits", ctypes.c_uint32 * 2),
        ("block", ctypes.c_uint32 * 16),
        ("filled", ctypes.c_uint),
        ("length", ctypes.c_uint),
    )


def _openssl() -> Callable[[list[int], bytes, int], list[int]]:
    """Return the compression by OpenSSL, through the module that hashlib uses.

    It takes a hundredth of the time of `compress_slowly`, which is returned if that module does
    not exist. Raises `OSError` or `AttributeError` if the module does not lead to OpenSSL.
    """
    module = find_spec("_hashlib")
    if module is None or module.origin is None:
        return compress_slowly
    update = ctypes.CDLL(module.origin).SHA256_Update
    update.argtypes = (ctypes.POINTER(_Context), ctypes.c_char_p, ctypes.c_size_t)

    def compress(state: list[int], data: bytes, size: int) -> list[int]:
        context = _Context(state=tuple(state))
        update(ctypes.byref(context), data, size)
        return list(context.state)

    return compress


def _fastest() -> Callable[[list[int], bytes, int], list[int]]:
    try:
        compress = _openssl()
    except (OSError, AttributeError):  # the module cannot be loaded, or hides OpenSSL's functions
        return compress_slowly
    padded = b"abc\x80" + bytes(59) + b"\x18"
    digest = _state.pack(*compress(list(_FIRST), padded, _BLOCK), 0)[:32]
    return compress if digest == hashlib.sha256(b"abc").digest() else compress_slowly


_blocks: Final = _fastest()
