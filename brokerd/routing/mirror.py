"""Mirrored routes: which of two addresses is the principal of a broker (RTE-50 to RTE-59). PURE.

Reads:  what the two places say of themselves, or that one does not answer.      Calls: nothing.
Never:  asks, waits or looks at a clock; `delivery.peers.mirrors` does.

A place says of a broker that it is its principal, its mirror, or that it does not know it, with the
epoch of the store. The epoch rises whenever a store is opened, and only one process has it open: so
whoever says principal with a lower epoch than was heard before is stale, and is not believed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from brokerd.ids import BrokerId
from brokerd.routing.reasons import Reason


class Role(StrEnum):
    """What an instance is for a broker (RTE-55)."""

    PRINCIPAL = "principal"
    """It has the store open."""
    MIRROR = "mirror"
    """It would open the store, and another one has it."""
    UNKNOWN = "unknown"
    """It does not know the broker, or cannot say."""


class Standing(msgspec.Struct, frozen=True):
    """What one place says of itself."""

    role: Role
    epoch: int = 0
    """That of the store, as far as it is known there."""


class PairState(StrEnum):
    """State of a mirrored route (RTE-57)."""

    OPERATIONAL = "operational"
    """The principal is known, and the other one answers."""
    PRINCIPAL_ONLY = "principal_only"
    NOT_OPERATIONAL = "not_operational"


class Pair(NamedTuple):
    """Two addresses, one of which has the broker."""

    address: str
    mirror: str
    broker_id: BrokerId


class Unresolved(msgspec.Struct, frozen=True):
    """Nobody to send to now, and why."""

    reason: Reason
    detail: str = ""


Principal = Callable[[Pair], "str | Unresolved"]
"""The address to send to."""


class Known(msgspec.Struct, frozen=True):
    """What is known of a pair; a change makes another one."""

    pair: Pair
    standings: tuple[Standing | None, Standing | None] = (None, None)
    """What each of the two said last; None = it does not answer, or was never asked."""
    principal: str = ""
    """Where everything is sent (RTE-52); empty = nowhere."""
    holder: str = ""
    """The last principal there was, which may be gone."""
    epoch: int = 0
    """That of the holder: nobody with a lower one is believed (RTE-55)."""
    disputed: bool = False
    """Whether both claim the role at one epoch: then nobody has it (RTE-55)."""

    @property
    def state(self) -> PairState:
        """For views and events (RTE-57)."""
        if not self.principal:
            return PairState.NOT_OPERATIONAL
        whole = None not in self.standings
        return PairState.OPERATIONAL if whole else PairState.PRINCIPAL_ONLY

    @property
    def where(self) -> str | Unresolved:
        """Where to send, or why nowhere (RTE-52 to RTE-54)."""
        if self.principal:
            return self.principal
        first = not self.holder and not self.disputed and None in self.standings
        reason = Reason.MIRROR_INITIALISING if first else Reason.MIRROR_ERROR
        return Unresolved(reason, self.told())

    def told(self) -> str:
        """What is known, in words."""
        said = [
            f"{address} {_words(standing)}"
            for address, standing in zip(self.pair[:2], self.standings, strict=True)
        ]
        if self.disputed:
            said.append("two claim the role at one epoch, so neither has it")
        elif self.holder and not self.principal:
            said.append(f"the last principal was {self.holder} (epoch {self.epoch})")
        return "; ".join(said)


def learn(known: Known, address: str, standing: Standing | None) -> Known:
    """One of the two has said what it is, or does not answer any more (None) (RTE-53 to RTE-55)."""
    first, second = known.standings
    standings = (standing, second) if address == known.pair.address else (first, standing)
    claims = {
        place: one.epoch
        for place, one in zip(known.pair[:2], standings, strict=True)
        if one is not None and one.role is Role.PRINCIPAL
    }
    highest = max((known.epoch, *claims.values()))
    best = {place for place, epoch in claims.items() if epoch == highest}
    rivals = set(best)
    if known.holder and known.epoch == highest:  # it had the role at this very epoch
        rivals.add(known.holder)
    disputed = bool(best) and len(rivals) > 1
    change = {"standings": standings, "disputed": disputed}
    if len(best) != 1 or disputed:
        return msgspec.structs.replace(known, **change, principal="")
    (principal,) = best
    return msgspec.structs.replace(
        known, **change, principal=principal, holder=principal, epoch=highest
    )


def nobody_known(pair: Pair) -> str | Unresolved:
    """Where nobody asks: no pair is resolved."""
    return Known(pair).where


def _words(standing: Standing | None) -> str:
    if standing is None:
        return "does not answer"
    if standing.role is Role.UNKNOWN:
        return "does not know the broker"
    return f"says {standing.role} (epoch {standing.epoch})"
