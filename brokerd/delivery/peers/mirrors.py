"""Mirrors: asks the two places of a mirrored route which of them is principal (RTE-51 to RTE-58).

Reads:  what peers answer, which addresses are reachable.      Calls: routing.mirror, the transport.
Never:  sends a message, or stores what it has learned: that lives as long as the route (RTE-58).
Wakes:  when a dialog is classified to such a route, when a place comes ONLINE, is lost or answers.
        What waits for a principal is classified again in every second tick, and so asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from brokerd.clock import Clock
from brokerd.ids import BrokerId
from brokerd.protocol.role import RoleAnswer, RoleQuestion
from brokerd.routing.mirror import Known, Pair, PairState, Role, Standing, Unresolved, learn
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import MIRRORED_ROUTE

ASK_EVERY: Final = 1.0
"""Seconds between two questions for the same pair, whatever arrives for it meanwhile."""
_ROLES: Final = {one.value: one for one in Role}


class Around(msgspec.Struct, frozen=True):
    """What the questions go through."""

    ask: Callable[[str, RoleQuestion], object]
    """Asks whoever is at an address, or connects to it."""
    is_suppressed: Callable[[str], bool]
    """Whether an address has failed and is not tried now (TRN-15, TRN-16)."""
    is_own: Callable[[str], bool]
    """Whether an address is this instance (RTE-42)."""
    own: Callable[[BrokerId], Standing]
    """What this instance itself is for a broker."""
    changed: Callable[[Pair], None]
    """Told when a pair has another principal, or none any more."""


class Mirrors:
    """All mirrored routes of one instance."""

    def __init__(self, *, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._known: dict[Pair, Known] = {}
        self._names: Mapping[Pair, Sequence[str]] = {}
        self._asked_at: dict[Pair, float] = {}
        self._news: dict[Pair, None] = {}
        self.around: Around | None = None
        """Nobody is asked while it is None."""

    # What routing asks.

    def principal(self, pair: Pair) -> str | Unresolved:
        """Where to send; who is not known is asked for (RTE-51, RTE-54)."""
        known = self._known.setdefault(pair, Known(pair))
        if not known.principal and self._may_ask(pair):
            self._ask_both(pair)
            known = self._known[pair]
        return known.where

    def peek(self, pair: Pair) -> str | Unresolved:
        """The same, and nobody is asked."""
        return self.known(pair).where

    def known(self, pair: Pair) -> Known:
        """What is known of it, for views."""
        return self._known.get(pair) or Known(pair)

    def keep(self, names: Mapping[Pair, Sequence[str]]) -> None:
        """The routes there are now: what was learned of others is forgotten (RTE-58)."""
        self._names = names
        self._known = {pair: known for pair, known in self._known.items() if pair in names}
        self._asked_at = {pair: at for pair, at in self._asked_at.items() if pair in names}

    # What the transport tells.

    def told(self, addresses: Sequence[str], answer: RoleAnswer) -> None:
        """The peer at these addresses says what it is for a broker."""
        standing = Standing(_ROLES.get(answer.role, Role.UNKNOWN), answer.epoch)
        for pair in list(self._known):
            if pair.broker_id == answer.broker_id:
                for address in {*pair[:2]}.intersection(addresses):
                    self._learn(pair, address, standing)

    def came_online(self, address: str) -> None:
        """Whoever is there now may be something else than before."""
        for pair in self._of(address):
            self._ask(pair, address)

    def lost(self, address: str) -> None:
        """The connection broke, or no connection could be made (RTE-53, RTE-54)."""
        for pair in self._of(address):
            self._learn(pair, address, None)

    def look(self) -> int:
        """Every second tick: places that cannot be reached any more; how many pairs there are."""
        around = self.around
        if around is not None:
            for address in {address for pair in self._known for address in pair[:2]}:
                if around.is_suppressed(address):
                    self.lost(address)
        return len(self._known)

    # Inside.

    def _of(self, address: str) -> list[Pair]:
        return [pair for pair in self._known if address in pair[:2]]

    def _may_ask(self, pair: Pair) -> bool:
        now = self._clock.monotonic()
        at = self._asked_at.get(pair)
        if at is not None and now < at + ASK_EVERY:
            return False
        self._asked_at[pair] = now
        return True

    def _ask_both(self, pair: Pair) -> None:
        around = self.around
        for address in pair[:2]:
            if around is not None and around.is_suppressed(address):
                self._learn(pair, address, None)
            self._ask(pair, address)

    def _ask(self, pair: Pair, address: str) -> None:
        around = self.around
        if around is None:
            return
        if around.is_own(address):
            self._learn(pair, address, around.own(pair.broker_id))
        else:
            around.ask(address, RoleQuestion(pair.broker_id, self._known[pair].epoch))

    def _learn(self, pair: Pair, address: str, standing: Standing | None) -> None:
        before = self._known[pair]
        after = self._known[pair] = learn(before, address, standing)
        if (before.state, before.principal, before.disputed) != (
            after.state,
            after.principal,
            after.disputed,
        ):
            self._tell(after)
        if before.principal != after.principal:
            self._asked_at.pop(pair, None)
            if not self._news:  # not here: who asks may be in the middle of classifying
                asyncio.get_running_loop().call_soon(self._spread)
            self._news[pair] = None

    def _spread(self) -> None:
        news, self._news = self._news, {}
        for pair in news:
            if self.around is not None and pair in self._known:
                self.around.changed(pair)

    def _tell(self, known: Known) -> None:
        write = self._log.info
        if known.disputed:
            write = self._log.error
        elif known.state is PairState.NOT_OPERATIONAL:
            write = self._log.warning
        write(
            MIRRORED_ROUTE,
            subclass=known.state.value,
            route=", ".join(self._names.get(known.pair, ())),
            address=known.pair.address,
            mirror_address=known.pair.mirror,
            principal=known.principal or None,
            epoch=known.epoch,
            reason=known.told(),
        )
