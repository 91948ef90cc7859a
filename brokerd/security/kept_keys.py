"""Kept keys: the secrets of a dialog as its store has them, wrapped by the broker's key (SEC-38).

PURE, but for random numbers.   Reads: nothing.     Calls: the package `cryptography`.
"""

import hmac
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from brokerd.security.dialog_kinds import Kind
from brokerd.security.sealing import NONCE_SIZE, NotAuthentic, Random, Secrets

_LABEL: Final = b"brokerd dialog 1: kept keys\0"


class KeptKeys(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The security of one dialog, as long as it has an endpoint."""

    kind: Kind
    secrets: Secrets
    principal: str
    """At an initiator, the owner of the target's certificate; at a target, the proven initiator, ""
    = it is anonymous."""

    def wrap(
        self,
        broker_key: bytes,
        conversation_id: bytes,
        *,
        is_initiator: bool,
        random: Random,
    ) -> bytes:
        """Return the keys of one side of a conversation, wrapped."""
        nonce = random(NONCE_SIZE)
        cipher = _cipher(broker_key, conversation_id, is_initiator=is_initiator)
        return nonce + cipher.encrypt(nonce, msgspec.msgpack.encode(self), None)


def unwrap(
    wrapped: bytes, broker_key: bytes, conversation_id: bytes, *, is_initiator: bool
) -> KeptKeys:
    """Return the keys of one side of a conversation.

    Raises:
        NotAuthentic: they were wrapped by another key, or are of another dialog.
    """
    cipher = _cipher(broker_key, conversation_id, is_initiator=is_initiator)
    try:
        plain = cipher.decrypt(wrapped[:NONCE_SIZE], wrapped[NONCE_SIZE:], None)
        return msgspec.msgpack.decode(plain, type=KeptKeys)
    except (InvalidTag, ValueError, msgspec.DecodeError) as error:
        raise NotAuthentic from error


def _cipher(broker_key: bytes, conversation_id: bytes, *, is_initiator: bool) -> AESGCM:
    # A key for each row: random nonces of one key would meet after some 2**32 dialogs.
    role = b"initiator" if is_initiator else b"target"
    return AESGCM(hmac.digest(broker_key, _LABEL + role + conversation_id, "sha256"))
