"""Master key: encrypts the private keys and session secrets that an instance stores (SX-6, SEC-38).

PURE.   Reads: the key it was given.            Calls: the package `cryptography`.
Never:  reads or writes a file (`storage.key_file` does), or shows a key in a text (SX-9).
Fails:  `NoMasterKey` if something was encrypted by another key, or changed since.

A broker has a key of its own, derived from that of the instance, so that secrets in the store of
one broker mean nothing in the store of another. After a rotation the former keys still decrypt what
they have encrypted, and encrypt nothing any more (SEC-71).
"""

from collections.abc import Callable, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from brokerd.errors import NoMasterKey
from brokerd.ids import BrokerId

SIZE: Final = 32
"""Bytes of a master key."""
MOST_FORMER: Final = 8
"""Most former keys that a rotation keeps; older ones decrypt nothing any more."""
FINGERPRINT_SIZE: Final = 16
_FORM: Final = b"\x01"
"""First byte of everything wrapped here; another form would have another."""
_SALT: Final = 16
_NONCE: Final = 12
_TAG: Final = 16

Random = Callable[[int], bytes]
"""Function that returns as many unpredictable bytes as asked for, such as `ids.secret_bytes`."""


class MasterKey:
    """The master key of an instance, or a key derived from it for one broker."""

    def __init__(self, key: bytes, random: Random, former: Sequence[bytes] = ()) -> None:
        """Create a key of `SIZE` bytes.

        `random`: source of salts and nonces. `former`: the keys before it, the latest first."""
        assert len(key) == SIZE, "a master key has 32 bytes"
        self._key = key
        self._random = random
        self._former = tuple(former)

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
        return (
            _FORM + salt + nonce + _cipher(self._key, salt).encrypt(nonce, secret, _FORM + context)
        )

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return the secret that `wrap` has encrypted with the same context.

        Raises:
            NoMasterKey: another key or context was used, or the bytes were changed.
        """
        for key in (self._key, *self._former):
            if (secret := _unwrapped(key, wrapped, context)) is not None:
                return secret
        raise NoMasterKey("it was encrypted by another master key, or damaged")

    def renewed(self, wrapped: bytes, context: bytes) -> bytes | None:
        """Return what a former key has wrapped, wrapped by this key; None = it is already.

        Raises:
            NoMasterKey: another key or context was used, or the bytes were changed.
        """
        if _unwrapped(self._key, wrapped, context) is not None:
            return None
        return self.wrap(self.unwrap(wrapped, context), context)

    def for_broker(self, broker_id: BrokerId) -> "MasterKey":
        """Return the key for the secrets in the store of one broker."""
        mine, *former = (
            _derive(one, broker_id, b"brokerd broker") for one in (self._key, *self._former)
        )
        return MasterKey(mine, self._random, former)

    def secrets_for(self, purpose: bytes) -> tuple[bytes, ...]:
        """Return the secret of this key for one purpose, then those of the former keys.

        They are the same at each call."""
        keys = (self._key, *self._former)
        return tuple(_derive(one, b"", b"brokerd secret for " + purpose) for one in keys)

    @property
    def fingerprint(self) -> bytes:
        """Sixteen bytes that tell this key from others, and reveal nothing of it."""
        return _fingerprint(self._key)

    @property
    def former_fingerprints(self) -> tuple[bytes, ...]:
        """The fingerprints of the former keys."""
        return tuple(_fingerprint(one) for one in self._former)

    @property
    def is_full(self) -> bool:
        """Whether the next key would push the oldest former one out."""
        return len(self._former) >= MOST_FORMER

    def followed_by(self, key: bytes) -> "MasterKey":
        """Return a new key, with this one as the latest of its former ones."""
        return MasterKey(key, self._random, (self._key, *self._former)[:MOST_FORMER])

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The key and the former ones, for the key file only."""
        return (self._key, *self._former)


def _unwrapped(key: bytes, wrapped: bytes, context: bytes) -> bytes | None:
    """Return the secret that a key has wrapped; None = another key has, or it was changed."""
    salt, nonce = wrapped[1:][:_SALT], wrapped[1 + _SALT :][:_NONCE]
    sealed = wrapped[1 + _SALT + _NONCE :]
    if not wrapped.startswith(_FORM) or len(sealed) < _TAG:
        return None
    try:
        return _cipher(key, salt).decrypt(nonce, sealed, _FORM + context)
    except InvalidTag:
        return None


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(_derive(key, salt, b"brokerd wrap"))


def _fingerprint(key: bytes) -> bytes:
    return _derive(key, b"", b"brokerd fingerprint")[:FINGERPRINT_SIZE]


def _derive(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=SIZE, salt=salt, info=purpose).derive(key)
