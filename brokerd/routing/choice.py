"""Choice: chooses one of several matching routes (RTE-19 to RTE-29).

Reads:  the routes that a table found, the choice made before.      Calls: nothing.
Never:  checks whether an address can be reached (RTE-27), or changes anything but the turns of the
        balancer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

import msgspec

from brokerd.ids import BrokerId, show
from brokerd.model import Route
from brokerd.routing.address import LOCAL, TRANSPORT
from brokerd.routing.notes import Finding, Notes
from brokerd.routing.table import Candidate, Found, candidate_of

BALANCER_LIMIT: Final = 10_000
"""Largest number of names whose turn is remembered; the oldest are dropped (XMT-10)."""


class Choice(msgspec.Struct, frozen=True):
    """The route chosen for a dialog, kept with it while it is not bound (RTE-29)."""

    route: str
    address: str
    broker_id: BrokerId | None = None
    mirror: str = ""


def choose(  # noqa: C901, PLR0912  # steps A to D, in their order
    found: Found,
    *,
    service_name: str,
    broker: bytes,
    usable: Callable[[BrokerId | None], bool],
    previous: Choice | None,
    balancer: Picks,
    avoid: Callable[[str], bool] | None = None,
    barred: Callable[[Candidate], str] | None = None,
    notes: Notes | None = None,
) -> Candidate:
    """Choose one of the matching routes, steps A to D (RTE-19 on); `found` has at least one.

    A LOCAL route whose service is not in this instance is chosen only if no other remains (RTE-28).

    `broker`: the broker that the table belongs to, b"" for the instance. `usable`: whether the
    service is found in this instance, given the broker id of a LOCAL route. `previous`: an earlier
    choice for this dialog, kept while it is among the matching routes (RTE-29). `avoid`: whether
    other addresses are preferred to a given one (NBT-13). `barred`: returns why nothing may be sent
    to a route's address; such a route is chosen only if all are barred (RTE-72).
    """
    # The kept choice comes before everything, the barred and avoided addresses included: the peer
    # may have the dialog already, and a change would give it two targets (RTE-29, RTE-72).
    if (kept := _kept(found.candidates, previous)) is not None:
        if notes is not None:
            notes.add(Finding.KEPT, routes=[kept])
        return kept
    candidates = _pick_id(found, service_name, broker, balancer, notes)
    mirrored = [one for one in candidates if one.mirror]
    if mirrored:
        if notes is not None:
            notes.add(Finding.MIRRORED, routes=mirrored)
        return mirrored[balancer.pick((broker, service_name, "mirrored"), len(mirrored))]
    local = [one for one in candidates if one.address == LOCAL]
    if local:
        is_usable = usable(local[0].broker_id)
        if notes is not None:
            if is_usable:
                notes.add(Finding.LOCAL, routes=local[:1])
            else:
                notes.add(Finding.LOCAL_UNUSABLE, routes=local)
        if is_usable:
            return local[0]
    network = [one for one in candidates if one.address not in (LOCAL, TRANSPORT)]
    if network:
        if len(network) > 1:
            network = _preferred(network, avoid, barred, notes)
        if len(network) == 1:  # takes no turn
            if notes is not None:
                notes.add(Finding.NETWORK, routes=network)
            return network[0]
        what = "route" if network[0].broker_id is None else network[0].broker_id.hex()
        chosen = network[balancer.pick((broker, service_name, what), len(network))]
        if notes is not None:
            notes.add(Finding.NEXT_ADDRESS, chosen.route, routes=network)
        return chosen
    transport = [one for one in candidates if one.address == TRANSPORT]
    if notes is not None and transport:
        notes.add(Finding.TRANSPORT, routes=transport[:1])
    return (transport or local)[0]


def _preferred(
    network: list[Candidate],
    avoid: Callable[[str], bool] | None,
    barred: Callable[[Candidate], str] | None,
    notes: Notes | None,
) -> list[Candidate]:
    """Return the preferred routes, or all if none is better than the others (RTE-72, NBT-13)."""
    better = network
    if barred is not None:
        better = [one for one in network if not barred(one)] or network
        if notes is not None and len(better) < len(network):
            passed_over = [one for one in network if one not in better]
            notes.add(Finding.BARRED, routes=passed_over)
    if avoid is None:
        return better
    best = [one for one in better if not avoid(one.address)] or better
    if notes is not None and len(best) < len(better):
        notes.add(Finding.AVOIDED, routes=[one for one in better if one not in best])
    return best


def choice_of(route: Route) -> Choice:
    """Return the choice that a route means; only its name is stored with a dialog (RTE-29)."""
    candidate = candidate_of(route)
    return chosen_as(candidate)


def chosen_as(candidate: Candidate) -> Choice:
    """Return the part of the chosen route that is kept with a dialog."""
    return Choice(candidate.route, candidate.address, candidate.broker_id, candidate.mirror)


class Picks(Protocol):
    """A way to pick one of several options."""

    def pick(self, key: tuple[bytes, str, str], count: int) -> int:
        """Return the index of one of `count` > 0 options in a fixed order."""
        ...


class Balancer:
    """A balancer, which picks round robin per (broker, service name), from a random start (RTE-25).

    With `at_random` each pick is random instead (`routing.balance=random`).
    """

    def __init__(self, *, rng: Random, at_random: bool = False) -> None:
        self._rng = rng
        self._at_random = at_random
        self._turns: dict[tuple[bytes, str, str], int] = {}

    def pick(self, key: tuple[bytes, str, str], count: int) -> int:
        """Return the index of the next option of `count` > 0 options in a fixed order.

        The key is (broker, service name, kind of option): picking a broker id and picking one of
        its routes take separate turns, or else one turn would determine the other. A single option
        takes no turn.
        """
        if count == 1:
            return 0
        turn = self.next(key, count)
        if not self._at_random:
            self._turns[key] = turn + 1
        return turn

    def preview(self) -> Picks:
        """Return a copy that picks as `pick` would from now on, without taking turns here."""
        return _Preview(self)

    def next(self, key: tuple[bytes, str, str], count: int) -> int:
        """Return the index that `pick` would return, without taking the turn."""
        if count == 1:
            return 0
        turn = None if self._at_random else self._turns.pop(key, None)
        turn = self._rng.randrange(count) if turn is None else turn % count
        if not self._at_random:
            self._turns[key] = turn
            if len(self._turns) > BALANCER_LIMIT:
                del self._turns[next(iter(self._turns))]
        return turn


class _Preview:
    """A preview of a balancer's next turns, which it does not take."""

    def __init__(self, balancer: Balancer) -> None:
        self._balancer = balancer
        self._turns: dict[tuple[bytes, str, str], int] = {}

    def pick(self, key: tuple[bytes, str, str], count: int) -> int:
        """Return the index of the next option."""
        turn = self._turns.get(key)
        turn = self._balancer.next(key, count) if turn is None else turn % count
        self._turns[key] = turn + 1
        return turn


def _with_id(candidates: Sequence[Candidate], broker_id: BrokerId | None) -> tuple[Candidate, ...]:
    return tuple(one for one in candidates if one.broker_id == broker_id)


def _kept(candidates: Sequence[Candidate], previous: Choice | None) -> Candidate | None:
    """Return the matching route that is the earlier choice, by its addresses or else by its name.

    None if no matching route is, or if no choice was made earlier."""
    if previous is None:
        return None
    same_id = [one for one in candidates if one.broker_id == previous.broker_id]
    for one in same_id:
        if (one.address, one.mirror) == (previous.address, previous.mirror):
            return one
    return next((one for one in same_id if one.route == previous.route), None)


def _pick_id(
    found: Found, service_name: str, broker: bytes, balancer: Picks, notes: Notes | None
) -> tuple[Candidate, ...]:
    """Pick one broker id and return its routes, if step 3 matched (RTE-10); else all routes."""
    if found.step != 3:  # noqa: PLR2004  # the steps have no better names than their numbers
        return found.candidates
    ids = sorted({one.broker_id for one in found.candidates if one.broker_id is not None})
    picked = ids[balancer.pick((broker, service_name, "id"), len(ids))]
    if notes is not None and len(ids) > 1:
        notes.add(Finding.NEXT_BROKER, len(ids), show(picked))
    return _with_id(found.candidates, picked)
