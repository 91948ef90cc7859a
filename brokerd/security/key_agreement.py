"""Key agreement: the security header, by which an initiator hands its secrets to the target.

PURE, but for random numbers.   Reads: nothing.     Calls: the package `cryptography`.
Never:  decides which certificates are trusted; it is given those of both sides.

The secrets are wrapped by a key-exchange key, which is made of an ephemeral X25519 key of the
initiator and the agreement key of the target, and serves all dialogs of the same pair of
certificates for some hours (SEC-27, SEC-32). With full security the initiator signs its ephemeral
key, once (SEC-33): only it and the target can make the key-exchange key, so whatever is wrapped by
that is the initiator's. Wrapped secrets hold for one dialog and one time only.
"""

from collections import OrderedDict
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from brokerd.clock import SECOND, Instant
from brokerd.security.dialog_certificates import DialogCertificate, PrivateKeys
from brokerd.security.sealing import NONCE_SIZE, NotAuthentic, Random, Secrets, derive

MOST_BYTES: Final = 512
"""Largest security header that is parsed."""
_VERSION: Final = 2
_ID_SIZE: Final = 32
_KEY_SIZE: Final = 32
_SIGNATURE_SIZE: Final = 64
_WRAPPED_SIZE: Final = NONCE_SIZE + 2 * _KEY_SIZE + 16
_LIFE: Final = 4 * 3600 * SECOND
"""How long a key-exchange key serves the dialogs of a pair of certificates (SEC-32)."""
_MOST_KEYS: Final = 1024
"""Key-exchange keys that are remembered for each direction."""
_EXCHANGE: Final = b"brokerd dialog 1: key exchange\0"
_SIGNED: Final = b"brokerd dialog 2: key exchange\0"
_TOLERANCE: Final = 5 * 60 * SECOND
"""Time by which the clock of a header's maker may have been set back meanwhile."""


class Place(Struct, frozen=True, array_like=True):
    """The dialog to which a security header is bound, beside its own fields (SEC-33).

    The broker of the target is no part of it, because the initiator may not know that broker yet;
    any other broker lacks the private key (SEC-35)."""

    conversation_id: bytes
    from_service: str
    to_service: str
    from_broker: bytes
    contract: str


class SecurityHeader(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A security header, parsed; nothing in it is verified."""

    version: int
    sender: bytes
    """Identifier of the initiator's certificate; b"" = it stays anonymous."""
    receiver: bytes
    """Identifier of the target's certificate."""
    ephemeral: bytes
    agreed_at: Instant
    """When the ephemeral key was made."""
    made_at: Instant
    """When the header was made; a late one may be a replay."""
    wrapped: bytes
    signature: bytes
    """The initiator's signature of the ephemeral key; b"" = it stays anonymous."""

    @property
    def is_anonymous(self) -> bool:
        """Whether the initiator stays unproven."""
        return not self.sender


def read_header(encoded: bytes) -> SecurityHeader:
    """Parse a security header.

    Raises:
        NotAuthentic: the bytes are no security header.
    """
    if len(encoded) > MOST_BYTES:
        raise NotAuthentic
    try:
        header = msgspec.msgpack.decode(encoded, type=SecurityHeader)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAuthentic from error
    proof = _SIGNATURE_SIZE if header.sender else 0
    if (
        header.version != _VERSION
        or len(header.sender) not in (0, _ID_SIZE)
        or len(header.receiver) != _ID_SIZE
        or len(header.ephemeral) != _KEY_SIZE
        or len(header.wrapped) != _WRAPPED_SIZE
        or len(header.signature) != proof
        or not -_TOLERANCE <= header.made_at - header.agreed_at <= _LIFE + _TOLERANCE
    ):
        raise NotAuthentic
    return header


class KeyAgreement:
    """The key-exchange keys of one instance, and the headers made and read with them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._made: dict[tuple[bytes, bytes], _Exchange] = {}
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        """By the certificates and the ephemeral key."""

    def make_header(
        self,
        secrets: Secrets,
        place: Place,
        *,
        sender: tuple[DialogCertificate, PrivateKeys] | None,
        receiver: DialogCertificate,
        now: Instant,
    ) -> bytes:
        """Return the header that hands secrets to the owner of `receiver`.

        `sender`: the certificate that proves the initiator; None = it stays anonymous."""
        sender_id = b"" if sender is None else sender[0].id
        receiver_id = receiver.id
        key = self._exchange_key(sender_id, sender, receiver_id, receiver, now)
        context = _context(place, sender_id, receiver_id, key.ephemeral, key.at, now)
        nonce = self._random(NONCE_SIZE)
        wrapped = nonce + key.cipher.encrypt(nonce, secrets.body + secrets.answers, context)
        return msgspec.msgpack.encode(
            SecurityHeader(
                _VERSION,
                sender_id,
                receiver_id,
                key.ephemeral,
                key.at,
                now,
                wrapped,
                key.signature,
            )
        )

    def read_secrets(
        self,
        header: SecurityHeader,
        place: Place,
        *,
        sender: DialogCertificate | None,
        keys: PrivateKeys,
    ) -> Secrets:
        """Return the secrets of a header for the owner of `keys`.

        `sender`: the certificate that the header names; None = the header is anonymous.

        Raises:
            NotAuthentic: the named side did not make the header, or not for this dialog.
        """
        if header.is_anonymous != (sender is None):
            raise NotAuthentic
        context = _context(
            place,
            header.sender,
            header.receiver,
            header.ephemeral,
            header.agreed_at,
            header.made_at,
        )
        try:
            cipher = self._known_key(header, sender, keys)
            nonce, wrapped = header.wrapped[:NONCE_SIZE], header.wrapped[NONCE_SIZE:]
            both = cipher.decrypt(nonce, wrapped, context)
        except (InvalidSignature, InvalidTag, ValueError) as error:
            raise NotAuthentic from error
        return Secrets(both[:_KEY_SIZE], both[_KEY_SIZE:])

    def _exchange_key(
        self,
        sender_id: bytes,
        sender: tuple[DialogCertificate, PrivateKeys] | None,
        receiver_id: bytes,
        receiver: DialogCertificate,
        now: Instant,
    ) -> "_Exchange":
        pair = sender_id, receiver_id
        known = self._made.get(pair)
        if known is not None and 0 <= now - known.at < _LIFE:
            return known
        if known is None and len(self._made) >= _MOST_KEYS:
            self._made.clear()
        private = X25519PrivateKey.from_private_bytes(self._random(_KEY_SIZE))
        ephemeral = private.public_key().public_bytes_raw()
        agreed = private.exchange(X25519PublicKey.from_public_bytes(receiver.agreement_key))
        cipher = _exchange_cipher(agreed, sender_id, receiver_id, ephemeral)
        signature = b""
        if sender is not None:
            signature = sender[1].signing.sign(_statement(sender_id, receiver_id, ephemeral, now))
        made = self._made[pair] = _Exchange(now, ephemeral, cipher, signature)
        return made

    def _known_key(
        self, header: SecurityHeader, sender: DialogCertificate | None, keys: PrivateKeys
    ) -> AESGCM:
        """Return the key-exchange key of a header, once its signature has been verified.

        Raises:
            InvalidSignature, ValueError: the named side did not make it.
        """
        name = header.sender + header.receiver + header.ephemeral
        known = self._known.get(name)
        if known is not None:
            if (known.at, known.signature) != (header.agreed_at, header.signature):
                raise InvalidSignature  # the time counts as well: it bounds the key's life
            self._known.move_to_end(name)
            return known.cipher
        if sender is not None:
            Ed25519PublicKey.from_public_bytes(sender.signing_key).verify(
                header.signature,
                _statement(header.sender, header.receiver, header.ephemeral, header.agreed_at),
            )
        agreed = keys.agreement.exchange(X25519PublicKey.from_public_bytes(header.ephemeral))
        cipher = _exchange_cipher(agreed, header.sender, header.receiver, header.ephemeral)
        self._known[name] = _Known(header.agreed_at, header.signature, cipher)
        if len(self._known) > _MOST_KEYS:
            self._known.popitem(last=False)
        return cipher


class _Exchange(Struct, frozen=True):
    """A key-exchange key that this side has made."""

    at: Instant
    ephemeral: bytes
    cipher: AESGCM
    signature: bytes


class _Known(Struct, frozen=True):
    """A key-exchange key of another side, with what its signature was verified for."""

    at: Instant
    signature: bytes
    cipher: AESGCM


def _statement(sender: bytes, receiver: bytes, ephemeral: bytes, at: Instant) -> bytes:
    """Return what an initiator signs of its ephemeral key."""
    return _SIGNED + msgspec.msgpack.encode((sender, receiver, ephemeral, at))


def _exchange_cipher(agreed: bytes, sender: bytes, receiver: bytes, ephemeral: bytes) -> AESGCM:
    names = msgspec.msgpack.encode((sender, receiver, ephemeral))
    return AESGCM(derive(agreed, _EXCHANGE + names))


def _context(  # noqa: PLR0917  # the fields of the header
    place: Place,
    sender: bytes,
    receiver: bytes,
    ephemeral: bytes,
    agreed_at: Instant,
    made_at: Instant,
) -> bytes:
    fields = (_VERSION, place, sender, receiver, ephemeral, agreed_at, made_at)
    return msgspec.msgpack.encode(fields)
