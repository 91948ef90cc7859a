"""Two instances whose dialogs are secured: each has the other's certificate, and bindings."""

from __future__ import annotations

from typing import Any

from brokerd.protocol.frames import SecuredAck, SecuredError, SecuredFragment
from brokerd.security.credentials import Kind, Purpose
from tests.integration.peers import Peer

SECURED = (SecuredFragment, SecuredAck, SecuredError)


async def trust(*peers: Peer, to: Peer | None = None) -> None:
    """Install the dialog certificate of each instance at all others, or at one."""
    for one in peers:
        own = one.instance.parts.credentials.own(Purpose.DIALOG, _now(one))
        assert own is not None, "an instance makes its dialog certificate at its first start"
        for other in peers if to is None else (to,):
            if other is not one:
                await other.instance.parts.credential_store.add_principal(
                    Kind.PEER, one.one.name, (Purpose.DIALOG, own.certificate), actor="test"
                )


async def bind(peer: Peer, far: str, *, anonymous: bool = False) -> None:
    """Give a broker a binding for the service of another instance."""
    await peer.session.create(
        "remote_service_binding",
        f"to {far}",
        service=f"urn:{far}",
        principal=f"peer:{far}",
        anonymous="on" if anonymous else "off",
    )


async def secure(west: Peer, east: Peer, *, anonymous: bool = False) -> None:
    """Secure the dialogs that west begins with east."""
    await trust(west, east)
    await bind(west, "east", anonymous=anonymous)


def sealed(items: list[Any]) -> list[SecuredFragment]:
    """Return the secured fragments among items, and fail if any item is in clear."""
    assert all(isinstance(one, SECURED) for one in items), items
    return [one for one in items if type(one) is SecuredFragment]


def _now(peer: Peer) -> Any:
    return peer.broker.clock.utc()
