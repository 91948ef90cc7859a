"""Kept keys: the secrets of a dialog as its store has them, wrapped by the broker's key (SEC-38).

PURE.   Reads: nothing.                         Calls: security.master_key.
"""

from typing import Final

import msgspec
from msgspec import Struct

from brokerd.clock import Instant
from brokerd.errors import NoMasterKey
from brokerd.security.dialog_kinds import Kind
from brokerd.security.master_key import MasterKey
from brokerd.security.sealing import Random, SealingKeys, Secrets

_CONTEXT: Final = {True: b"keys of initiator ", False: b"keys of target "}


class KeptKeys(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The security of one dialog, as long as it has an endpoint."""

    kind: Kind
    secrets: Secrets
    principal: str
    """At an initiator, the owner of the target's certificate; at a target, the proven initiator, ""
    = it is anonymous."""

    def wrap(self, broker_key: MasterKey, conversation_id: bytes, *, is_initiator: bool) -> bytes:
        """Return the keys of one side of a conversation, wrapped."""
        context = context_of(conversation_id, is_initiator=is_initiator)
        return broker_key.wrap(msgspec.msgpack.encode(self), context)


def context_of(conversation_id: bytes, *, is_initiator: bool) -> bytes:
    """Return the context under which the keys of one side of a conversation are wrapped."""
    return _CONTEXT[is_initiator] + conversation_id


def unwrap(
    wrapped: bytes, broker_key: MasterKey, conversation_id: bytes, *, is_initiator: bool
) -> KeptKeys:
    """Return the keys of one side of a conversation.

    Raises:
        NoMasterKey: another key has wrapped them, or they are damaged or of another dialog.
    """
    plain = broker_key.unwrap(wrapped, context_of(conversation_id, is_initiator=is_initiator))
    try:
        return msgspec.msgpack.decode(plain, type=KeptKeys)
    except msgspec.DecodeError as error:
        raise NoMasterKey("the keys of a dialog are of another version") from error


class DialogKeys(SealingKeys):
    """The keys of a dialog in memory, with the security header that its initiator sends."""

    __slots__ = ("header", "header_at", "header_for", "kept")

    def __init__(self, kept: KeptKeys, *, is_initiator: bool, random: Random) -> None:
        super().__init__(kept.secrets, is_initiator=is_initiator, random=random)
        self.kept = kept
        self.header = b""
        """The latest security header; b"" = none was made since the dialog was loaded."""
        self.header_at = Instant(0)
        """When that header was made."""
        self.header_for = b""
        """The certificate that the header was made for, encoded."""

    def keep_header(self, header: bytes, at: Instant, is_for: bytes) -> None:
        """Keep a security header, to be sent with several fragments.

        `is_for`: the encoded certificate of the target."""
        self.header, self.header_at, self.header_for = header, at, is_for
