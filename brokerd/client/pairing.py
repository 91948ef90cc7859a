"""Pairing: the verbs that pair the daemon's instance with another (CLP-150 to CLP-153).

Reads:  arguments.     Calls: client.link.
Never:  takes part in a transaction: each call stands alone, and is audited by the daemon.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from brokerd.client.arguments import wire_text

if TYPE_CHECKING:
    from brokerd.client.link import Link


class Paired(msgspec.Struct, frozen=True):
    """A pairing that has succeeded, seen from this side."""

    principal: str
    """The principal that it is here: `peer:NAME`."""
    is_new: bool
    """Whether it was not known here before."""
    address: str
    services: tuple[str, ...]
    """Services of the peer, whether there are routes to them or not."""
    is_secured: bool
    """Whether dialogs with it are secured from end to end."""
    grants: tuple[str, ...]
    """The permissions that it has here now."""
    changes: tuple[str, ...]
    """Changes of routes and bindings, in words."""
    left_out: dict[str, str]
    """Services that got no route or binding, and why."""


class PairingState(msgspec.Struct, frozen=True):
    """The state of the code that was shown last."""

    number: int
    """Number of the state, for the next `await_pairing`."""
    phase: str
    """waiting, in_use, used, expired, guessed or cancelled."""
    seconds_left: float
    """Seconds for which the code may still be used."""
    wrong: int
    """Number of attempts with a wrong code."""
    peer: str
    """Principal that the other instance becomes; empty as long as none is known."""
    error: str
    """Why the latest attempt was in vain; empty if it was not."""
    result: Paired | None = None
    """None = the instances are not paired yet."""

    @property
    def is_over(self) -> bool:
        """Whether the code cannot be used any more."""
        return self.phase not in ("waiting", "in_use")


class PairingCode(PairingState, frozen=True, kw_only=True):
    """A new code, and its state."""

    code: str
    address: str
    """The address of this instance in it."""


class PairingVerbs:
    """The verbs of pairing, a part of `session.admin`."""

    _link: "Link"

    async def invite_peer(
        self,
        *,
        name: str | None = None,
        shares: Sequence[str] = (),
        address: str | None = None,
    ) -> PairingCode:
        """Return a code by which another instance can pair with this one, once, in 10 minutes.

        `name`: the name of the other instance here, by default the one that it says. `shares`:
        services of the session's broker that it may begin dialogs with. `address`: the address at
        which it reaches this instance, by default found out. A code that waits is cancelled.

        Raises:
            InvalidArgument: this instance cannot be paired; the text says why.
            ObjectNotFound: a service to be shared does not exist.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("invite_peer", (_options(name, shares, address),))
        return msgspec.convert(answer, PairingCode)

    async def await_pairing(self, known: int = 0, *, wait: float = 30.0) -> PairingState:
        """Return the state of the code shown last, once it is another than the known one.

        `known`: the number of the state that the caller has; 0 = return at once. `wait`: longest
        wait in seconds, at most 60.

        Raises:
            ObjectNotFound: no code was shown since the daemon's start.
            BrokerError: an error common to all requests; see `Session`.
        """
        answer = await self._link.ask("await_pairing", (known, float(wait)))
        return msgspec.convert(answer, PairingState)

    async def cancel_pairing(self) -> PairingState:
        """Make the code shown last void, and return its state.

        Raises:
            ObjectNotFound: no code was shown since the daemon's start.
            BrokerError: an error common to all requests; see `Session`.
        """
        return msgspec.convert(await self._link.ask("cancel_pairing", ()), PairingState)

    async def join_peer(
        self,
        code: str,
        *,
        name: str | None = None,
        shares: Sequence[str] = (),
        address: str | None = None,
    ) -> Paired:
        """Pair this instance with the one that has shown a code; return what was installed here.

        Both instances install each other, or neither does. The other arguments are those of
        `invite_peer`.

        Raises:
            InvalidArgument: the code is mistyped, or an instance cannot be paired.
            PairingFailed: the other instance cannot be reached, or has given up.
            ObjectNotFound: a service to be shared does not exist.
            BrokerError: an error common to all requests; see `Session`.
        """
        args = (wire_text(code, "code"), _options(name, shares, address))
        return msgspec.convert(await self._link.ask("join_peer", args), Paired)


def _options(name: str | None, shares: Sequence[str], address: str | None) -> dict[str, object]:
    return {
        "name": None if name is None else wire_text(name, "name"),
        "shares": [wire_text(one, "shares") for one in shares],
        "address": None if address is None else wire_text(address, "address"),
    }
