"""Sealing: the keys of one dialog at work on its items (SEC-34 to SEC-37).

PURE, but for random numbers.   Reads: nothing.     Calls: the package `cryptography`.
Never:  reveals by its errors or its timing why an item is not authentic (SX-5).

Two secrets of the initiator serve both sides. Bodies are sealed by keys made of `body`: each side
draws an identifier whenever it loads the dialog, sends it with each fragment, and makes its key of
the secret, its role and the identifier. So a key never outlives the memory that numbers its nonces,
whatever is rolled back, restored or cloned meanwhile. Acknowledgements and errors are protected by
keys made of `answers`, which the initiator can make again when it has forgotten the dialog.
"""

import hmac
import struct
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from brokerd.ids import ID_SIZE

KEY_SIZE: Final = 32
MAC_SIZE: Final = 16
"""Bytes of the code that authenticates an acknowledgement: half of HMAC-SHA-256."""
NONCE_SIZE: Final = 12
Random = Callable[[int], bytes]
"""Return as many random bytes."""

_nonce: Final = struct.Struct(">QI").pack
_BODY: Final = b"brokerd dialog 1: bodies of the "
_ACKS: Final = b"brokerd dialog 1: acknowledgements of the "
_ERRORS: Final = b"brokerd dialog 1: errors of the "
_ANSWERS: Final = b"brokerd dialog 1: answers\0"


class NotAuthentic(Exception):
    """An item was not made by the far side of its dialog, or was changed on its way."""


class Secrets(Struct, frozen=True):
    """The secrets of one dialog, made by its initiator."""

    body: bytes
    answers: bytes


def new_secrets(of_broker: bytes, conversation_id: bytes, random: Random) -> Secrets:
    """Return the secrets of a new dialog.

    `of_broker`: secret of the initiator's broker, for answers only."""
    return Secrets(random(KEY_SIZE), answers_secret(of_broker, conversation_id))


def answers_secret(of_broker: bytes, conversation_id: bytes) -> bytes:
    """Return the secret for answers of a dialog that a broker began, whether it still has it."""
    return hmac.digest(of_broker, _ANSWERS + conversation_id, "sha256")


class AnswerKeys:
    """The keys of one side of a dialog for acknowledgements and errors (SEC-36, SEC-37)."""

    __slots__ = (
        "_coming",
        "_error_keys",
        "_going",
        "_is_initiator",
        "_mac_in",
        "_mac_out",
        "_random",
        "_secret",
    )

    def __init__(self, secret: bytes, *, is_initiator: bool, random: Random) -> None:
        self._secret = secret
        self._is_initiator = is_initiator
        self._random = random
        # Copying a context costs a third of making one. Each is made when it is first needed: a
        # dialog of one message never needs the other.
        self._mac_out: HMAC | None = None
        self._mac_in: HMAC | None = None
        self._going: tuple[object, bytes] = None, b""
        self._coming: tuple[object, bytes] = None, b""
        self._error_keys: tuple[AESGCM, AESGCM] | None = None

    def authenticate(self, ack: bytes) -> bytes:
        """Return the code that authenticates an acknowledgement of this side."""
        if self._mac_out is None:
            self._mac_out = self._mac_of(is_initiator=self._is_initiator)
        return _mac(self._mac_out, ack)

    def verify(self, ack: bytes, code: bytes) -> None:
        """Verify an acknowledgement of the far side.

        Raises:
            NotAuthentic: the far side did not make it.
        """
        if self._mac_in is None:
            self._mac_in = self._mac_of(is_initiator=not self._is_initiator)
        if not hmac.compare_digest(_mac(self._mac_in, ack), code):
            raise NotAuthentic

    def authenticate_carried(self, ack: object, encode: Callable[[], bytes]) -> bytes:
        """Return the code of an acknowledgement block within a fragment of this side.

        Fragments that leave together carry the same block, whose code is made once. `encode`:
        returns the block with its dialog."""
        if ack != self._going[0]:
            self._going = ack, self.authenticate(encode())
        return self._going[1]

    def verify_carried(self, ack: object, code: bytes, encode: Callable[[], bytes]) -> None:
        """Verify an acknowledgement block within a fragment, whose seal covers its dialog.

        Raises:
            NotAuthentic: the far side did not make it.
        """
        if ack == self._coming[0] and hmac.compare_digest(code, self._coming[1]):
            return
        self.verify(encode(), code)
        self._coming = ack, code

    def seal_error(self, header: bytes, error: bytes) -> bytes:
        """Return an error of this side, sealed; `header`: what is sent in clear beside it."""
        nonce = self._random(NONCE_SIZE)
        return nonce + self._errors[0].encrypt(nonce, error, header)

    def open_error(self, header: bytes, sealed: bytes) -> bytes:
        """Return an error of the far side.

        Raises:
            NotAuthentic: the far side did not make it.
        """
        try:
            return self._errors[1].decrypt(sealed[:NONCE_SIZE], sealed[NONCE_SIZE:], header)
        except (InvalidTag, ValueError) as error:
            raise NotAuthentic from error

    def _mac_of(self, *, is_initiator: bool) -> HMAC:
        return HMAC(derive(self._secret, _ACKS + _role(is_initiator)), SHA256())

    @property
    def _errors(self) -> tuple[AESGCM, AESGCM]:
        if self._error_keys is None:  # few dialogs ever have an error
            out, into = _role(self._is_initiator), _role(not self._is_initiator)
            self._error_keys = (
                AESGCM(derive(self._secret, _ERRORS + out)),
                AESGCM(derive(self._secret, _ERRORS + into)),
            )
        return self._error_keys


class SealingKeys(AnswerKeys):
    """All keys of one side of a dialog that is in memory."""

    __slots__ = ("_body", "_in", "_in_id", "_out", "key_id")

    def __init__(self, secrets: Secrets, *, is_initiator: bool, random: Random) -> None:
        super().__init__(secrets.answers, is_initiator=is_initiator, random=random)
        self._body = secrets.body
        self.key_id = random(ID_SIZE)
        """Identifier of the key that seals the bodies of this side, new with each load."""
        self._out: AESGCM | None = None
        self._in: AESGCM | None = None
        self._in_id = b""

    @property
    def far_key_id(self) -> bytes:
        """Identifier of the key that sealed the latest body of the far side; b"" = none came."""
        return self._in_id

    def seal(self, header: bytes, sequence: int, fragment: int, body: bytes) -> bytes:
        """Return a body of this side, sealed; `header`: what is sent in clear beside it.

        One place of the dialog always has the same header and body (SEC-36)."""
        if self._out is None:
            self._out = self._cipher(self.key_id, is_initiator=self._is_initiator)
        return self._out.encrypt(_nonce(sequence, fragment), body, header)

    def open(
        self, key_id: bytes, header: bytes, sequence: int, fragment: int, sealed: bytes
    ) -> bytes:
        """Return a body of the far side.

        Raises:
            NotAuthentic: the far side did not make it.
        """
        cipher = self._in
        if cipher is None or key_id != self._in_id:
            cipher = self._cipher(key_id, is_initiator=not self._is_initiator)
        try:
            body = cipher.decrypt(_nonce(sequence, fragment), sealed, header)
        except (InvalidTag, ValueError) as error:
            raise NotAuthentic from error
        # Only now, so that invented identifiers do not displace the right one.
        self._in, self._in_id = cipher, key_id
        return body

    def _cipher(self, key_id: bytes, *, is_initiator: bool) -> AESGCM:
        return AESGCM(derive(self._body, _BODY + _role(is_initiator), salt=key_id))


def derive(secret: bytes, label: bytes, *, salt: bytes | None = None) -> bytes:
    """Return a key for one purpose, made of a secret by HKDF-SHA-256 (SEC-34)."""
    return HKDF(SHA256(), KEY_SIZE, salt, label).derive(secret)


def _mac(context: HMAC, data: bytes) -> bytes:
    mac = context.copy()
    mac.update(data)
    return mac.finalize()[:MAC_SIZE]


def _role(is_initiator: bool) -> bytes:
    return b"initiator" if is_initiator else b"target"
