"""Mirrored routes: finds which of two addresses has the principal (RTE-50 to RTE-59). PURE.

Reads:  the roles that both addresses report, or the lack of an answer.      Calls: nothing.
Never:  asks, waits or reads a clock; `delivery.peers.mirrors` does.

An instance reports that it is the principal of a broker, its mirror, or does not know the broker,
with the epoch of the store. The epoch rises whenever a store is opened, and only one process has
the store open. So a claim to be principal with a lower epoch than a known one is stale and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from brokerd.ids import BrokerId
from brokerd.routing.reasons import Reason


class Role(StrEnum):
    """Role of an instance for a broker (RTE-55)."""

    PRINCIPAL = "principal"
    """The instance has the store open."""
    MIRROR = "mirror"
    """The instance would open the store, but another one has it open."""
    UNKNOWN = "unknown"
    """The instance does not know the broker, or cannot tell."""


class Standing(msgspec.Struct, frozen=True):
    """The role that one address reports."""

    role: Role
    epoch: int = 0
    """Epoch of the store, as far as that instance knows it."""


class PairState(StrEnum):
    """State of a mirrored route (RTE-57)."""

    OPERATIONAL = "operational"
    """The principal is known, and the other address answers."""
    PRINCIPAL_ONLY = "principal_only"
    NOT_OPERATIONAL = "not_operational"


class Pair(NamedTuple):
    """Two addresses, one of which has the broker."""

    address: str
    mirror: str
    broker_id: BrokerId


class Unresolved(msgspec.Struct, frozen=True):
    """The reason why nothing can be sent to either address now."""

    reason: Reason
    detail: str = ""


Principal = Callable[[Pair], "str | Unresolved"]
"""Function that returns the address to send to, or why neither can be used."""


class Known(msgspec.Struct, frozen=True):
    """The known facts about a pair of addresses; immutable."""

    pair: Pair
    standings: tuple[Standing | None, Standing | None] = (None, None)
    """Last report of each address; None = it does not answer, or was never asked."""
    principal: str = ""
    """Address to which all messages are sent (RTE-52); empty = none."""
    holder: str = ""
    """Address of the last known principal, which may be gone."""
    epoch: int = 0
    """Epoch of `holder`; claims with a lower epoch are ignored (RTE-55)."""
    disputed: bool = False
    """Whether both claim to be principal at one epoch, so that neither is used (RTE-55)."""

    @property
    def state(self) -> PairState:
        """State of the pair, for views and events (RTE-57)."""
        if not self.principal:
            return PairState.NOT_OPERATIONAL
        whole = None not in self.standings
        return PairState.OPERATIONAL if whole else PairState.PRINCIPAL_ONLY

    @property
    def where(self) -> str | Unresolved:
        """The address to send to, or why neither can be used (RTE-52 to RTE-54)."""
        if self.principal:
            return self.principal
        first = not self.holder and not self.disputed and None in self.standings
        reason = Reason.MIRROR_INITIALISING if first else Reason.MIRROR_ERROR
        return Unresolved(reason, self.describe())

    def describe(self) -> str:
        """Return the known facts in words."""
        parts = [
            f"{address} {_words(standing)}"
            for address, standing in zip(self.pair[:2], self.standings, strict=True)
        ]
        if self.disputed:
            parts.append("two claim the role at one epoch, so neither has it")
        elif self.holder and not self.principal:
            parts.append(f"the last principal was {self.holder} (epoch {self.epoch})")
        return "; ".join(parts)


def learn(known: Known, address: str, standing: Standing | None) -> Known:
    """Return the known facts about a pair after a report from one address (RTE-53 to RTE-55).

    `standing`: the reported role; None = the address no longer answers."""
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
    # The holder counts as a rival at its own epoch even if it does not answer: an epoch has one
    # principal, so a second claim to the same epoch means two stores.
    if known.holder and known.epoch == highest:
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
    """Return that the pair is not resolved; for use where mirrors are not queried."""
    return Known(pair).where


def _words(standing: Standing | None) -> str:
    if standing is None:
        return "does not answer"
    if standing.role is Role.UNKNOWN:
        return "does not know the broker"
    return f"says {standing.role} (epoch {standing.epoch})"
