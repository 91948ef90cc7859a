"""Master key: encrypts the private keys and session secrets that an instance stores (SX-6, SEC-38).

PURE.   Reads: the key it was given.            Calls: the package `cryptography`.
Never:  reads or writes a file (`storage.key_file` does), or shows a key in a text (SX-9).
Fails:  `NoMasterKey` if something was encrypted by another key, or changed since.

A broker has a key of its own, derived from that of the instance, so that secrets in the store of
one broker mean nothing in the store of another.
"""

from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from brokerd.errors import NoMasterKey
from brokerd.ids import BrokerId

SIZE: Final = 32
"""Bytes of a master key."""
_FORM: Final = b"\x01"
"""First byte of everything wrapped here; another form would have another."""
_SALT: Final = 16
_NONCE: Final = 12
_TAG: Final = 16

Random = Callable[[int], bytes]
"""Function that returns as many unpredictable bytes as asked for, such as `ids.secret_bytes`."""


class MasterKey:
    """The master key of an instance, or a key derived from it for one broker."""

    def __init__(self, key: bytes, random: Random) -> None:
        """Create a key of `SIZE` bytes. `random`: source of salts and nonces."""
        assert len(key) == SIZE, "a master key has 32 bytes"
        self._key = key
        self._random = random

    def __repr__(self) -> str:
        return "MasterKey(...)"

    def __reduce__(self) -> str:
        raise TypeError("a master key is not pickled")

    def wrap(self, secret: bytes, context: bytes) -> bytes:
        """Encrypt a secret; only `unwrap` with the same context returns it.

        Each call encrypts under a key derived for it alone, so that the number of calls is not
        limited by the chance of drawing the same nonce twice.
        """
        salt, nonce = self._random(_SALT), self._random(_NONCE)
        return _FORM + salt + nonce + self._cipher(salt).encrypt(nonce, secret, _FORM + context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return the secret that `wrap` has encrypted with the same context.

        Raises:
            NoMasterKey: another key or context was used, or the bytes were changed.
        """
        salt, nonce = wrapped[1:][:_SALT], wrapped[1 + _SALT :][:_NONCE]
        sealed = wrapped[1 + _SALT + _NONCE :]
        if not wrapped.startswith(_FORM) or len(sealed) < _TAG:
            raise NoMasterKey("what was encrypted by the master key is damaged")
        try:
            return self._cipher(salt).decrypt(nonce, sealed, _FORM + context)
        except InvalidTag:
            raise NoMasterKey("it was encrypted by another master key, or damaged") from None

    def for_broker(self, broker_id: BrokerId) -> "MasterKey":
        """Return the key for the secrets in the store of one broker."""
        return MasterKey(_derive(self._key, broker_id, b"brokerd broker"), self._random)

    def secret_for(self, purpose: bytes) -> bytes:
        """Return a secret of this key for one purpose, the same at each call."""
        return _derive(self._key, b"", b"brokerd secret for " + purpose)

    def _cipher(self, salt: bytes) -> AESGCM:
        return AESGCM(_derive(self._key, salt, b"brokerd wrap"))


def _derive(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=SIZE, salt=salt, info=purpose).derive(key)
