"""Mirrors: asks the two addresses of a mirrored route which one is principal (RTE-51 to RTE-58).

Reads:  answers of peers, reachability of addresses.      Calls: routing.mirror, the transport.
Never:  sends a message, or stores the answers: they are kept as long as the route (RTE-58).
Wakes:  when a dialog is classified to such a route, when an address comes ONLINE, is lost or
        answers. Dialogs that wait for a principal are classified again in every second tick, which
        asks again.
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
"""Least seconds between two questions for the same pair, however many messages arrive for it."""
_ROLES: Final = {one.value: one for one in Role}


class Around(msgspec.Struct, frozen=True):
    """The functions by which principals are asked for and reported."""

    ask: Callable[[str, RoleQuestion], object]
    """Asks the peer at an address, or opens a connection to it."""
    is_suppressed: Callable[[str], bool]
    """Tests whether an address has failed and is not tried now (TRN-15, TRN-16)."""
    is_own: Callable[[str], bool]
    """Tests whether an address is one of this instance (RTE-42)."""
    own: Callable[[BrokerId], Standing]
    """Returns the role of this instance for a broker."""
    changed: Callable[[Pair], None]
    """Called when a pair has another principal, or no longer has one."""


class Mirrors:
    """All mirrored routes of one instance."""

    def __init__(self, *, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._known: dict[Pair, Known] = {}
        self._names: Mapping[Pair, Sequence[str]] = {}
        self._requested_at: dict[Pair, float] = {}
        self._news: dict[Pair, None] = {}
        self.around: Around | None = None
        """The functions for asking peers; None = no address is asked."""

    # For routing and views.

    def principal(self, pair: Pair) -> str | Unresolved:
        """Return the principal's address; ask for it if it is unknown (RTE-51, RTE-54)."""
        known = self._known.setdefault(pair, Known(pair))
        if not known.principal and self._may_ask(pair):
            self._request_both_roles(pair)
            known = self._known[pair]
        return known.where

    def peek(self, pair: Pair) -> str | Unresolved:
        """Return the principal's address, without asking for it."""
        return self.known(pair).where

    def known(self, pair: Pair) -> Known:
        """Return the known facts of a pair, for views."""
        return self._known.get(pair) or Known(pair)

    def keep(self, names: Mapping[Pair, Sequence[str]]) -> None:
        """Set the present mirrored routes; drop the known facts of all others (RTE-58)."""
        self._names = names
        self._known = {pair: known for pair, known in self._known.items() if pair in names}
        self._requested_at = {pair: at for pair, at in self._requested_at.items() if pair in names}

    # Events of the transport.

    def record_role(self, addresses: Sequence[str], answer: RoleAnswer) -> None:
        """Record the role for a broker, as answered by the peer at these addresses."""
        standing = Standing(_ROLES.get(answer.role, Role.UNKNOWN), answer.epoch)
        for pair in list(self._known):
            if pair.broker_id != answer.broker_id:
                continue
            both = {*pair[:2]}
            there = both.intersection(addresses)
            # One instance at both addresses: of two daemons with its stores one waits (REL-54). The
            # connection is the same by either, so this is one claim and not two.
            if len(there) > 1:
                there = {self._known[pair].holder or pair.address}
                for address in both - there:
                    self._learn(pair, address, None)
            for address in there:
                self._learn(pair, address, standing)

    def came_online(self, address: str) -> None:
        """Ask an address that came ONLINE again, because its role may have changed."""
        for pair in self._pairs_at(address):
            self._request_role(pair, address)

    def lost(self, address: str) -> None:
        """Record that the connection to an address broke or failed (RTE-53, RTE-54)."""
        for pair in self._pairs_at(address):
            self._learn(pair, address, None)

    def check_addresses(self) -> int:
        """Record unreachable addresses, every second tick; return the number of pairs."""
        around = self.around
        if around is not None:
            for address in {address for pair in self._known for address in pair[:2]}:
                if around.is_suppressed(address):
                    self.lost(address)
        return len(self._known)

    # Internals.

    def _pairs_at(self, address: str) -> list[Pair]:
        return [pair for pair in self._known if address in pair[:2]]

    def _may_ask(self, pair: Pair) -> bool:
        now = self._clock.monotonic()
        at = self._requested_at.get(pair)
        if at is not None and now < at + ASK_EVERY:
            return False
        self._requested_at[pair] = now
        return True

    def _request_both_roles(self, pair: Pair) -> None:
        around = self.around
        for address in pair[:2]:
            if around is not None and around.is_suppressed(address):
                self._learn(pair, address, None)
            self._request_role(pair, address)

    def _request_role(self, pair: Pair, address: str) -> None:
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
            self._log_state(after)
        if before.principal != after.principal:
            self._requested_at.pop(pair, None)
            if not self._news:  # deferred: the caller may be in the middle of classifying
                asyncio.get_running_loop().call_soon(self._spread)
            self._news[pair] = None

    def _spread(self) -> None:
        news, self._news = self._news, {}
        for pair in news:
            if self.around is not None and pair in self._known:
                self.around.changed(pair)

    def _log_state(self, known: Known) -> None:
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
            reason=known.describe(),
        )
