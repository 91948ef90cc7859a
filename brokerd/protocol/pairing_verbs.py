"""Verbs of pairing: show a code, wait for its use, cancel it, join by a code (CLP-150 to CLP-153).

Reads:  nothing.      Calls: nothing.
Never:  decides anything; `client_verbs` uses these forms to check requests.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

Name = Annotated[str, Meta(max_length=1024)]
MOST_SHARES: Final = 200
LONGEST_WAIT: Final = 60.0
"""Longest wait of one `await_pairing`, in seconds."""


class PairingOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `invite_peer` and of `join_peer`."""

    name: Name | None = None
    """Name of the other instance here; None = the name that it says."""
    shares: Annotated[tuple[Name, ...], Meta(max_length=MOST_SHARES)] = ()
    """Services that the other instance may begin dialogs with."""
    address: Name | None = None
    """Address at which the other instance reaches this one; None = the daemon finds it out."""


class InvitePeer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for a code that lets another instance pair with this one (CLP-150)."""

    options: PairingOptions = PairingOptions()


class AwaitPairing(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request for the state of the code shown last, once it changes (CLP-151)."""

    known: Annotated[int, Meta(ge=0)] = 0
    """The `number` of the state that the client knows; 0 = none."""
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 0.0
    """Longest wait for another state, in seconds."""


class CancelPairing(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to make the code shown last void (CLP-152)."""


class JoinPeer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request to pair with the instance that has shown a code (CLP-153)."""

    code: Name
    options: PairingOptions = PairingOptions()


PairingVerb = InvitePeer | AwaitPairing | CancelPairing | JoinPeer
PAIRING_VERBS: Final[dict[str, type[PairingVerb]]] = {
    "invite_peer": InvitePeer,
    "await_pairing": AwaitPairing,
    "cancel_pairing": CancelPairing,
    "join_peer": JoinPeer,
}
