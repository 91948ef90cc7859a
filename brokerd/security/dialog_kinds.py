"""Kinds of dialog security, and the table that decides which one a dialog gets (SEC-14).

PURE.   Reads: nothing.                         Calls: nothing.
"""

from enum import IntEnum
from typing import Final

from brokerd.security.bindings import Binding


class Kind(IntEnum):
    """The kinds of dialog security (SEC-19). The numbers are stored."""

    NONE = 0
    """Neither side is proven; bodies are in clear."""
    ANONYMOUS = 1
    """The target is proven; the initiator acts as `public`."""
    FULL = 2
    """Both sides are proven."""


_TABLE: Final[dict[tuple[bool, bool, bool | None], Kind | None]] = {
    # (the owner has a certificate, ENCRYPTION, the binding is anonymous; None = no binding)
    (True, True, None): None,
    (True, True, True): Kind.ANONYMOUS,
    (True, True, False): Kind.FULL,
    (True, False, None): Kind.NONE,
    (True, False, True): Kind.ANONYMOUS,
    (True, False, False): Kind.FULL,
    (False, True, None): None,
    (False, True, True): Kind.ANONYMOUS,
    (False, True, False): None,
    (False, False, None): Kind.NONE,
    (False, False, True): Kind.ANONYMOUS,
    (False, False, False): None,
}


def decide(*, has_certificate: bool, encryption: bool, binding: Binding | None) -> Kind | None:
    """Return the kind of security of a dialog that is about to leave its instance (SEC-14).

    None: the dialog fails. `has_certificate`: whether the owner of the initiating service has a
    certificate to begin dialogs with; `binding`: that of the target's name."""
    anonymous = None if binding is None else binding.is_anonymous
    return _TABLE[has_certificate, encryption, anonymous]
