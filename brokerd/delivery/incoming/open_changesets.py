"""Open changesets, to which arrivals are being added, at most one per broker (DSP-3).

Reads: nothing.      Calls: broker.changeset.
Never: decides what goes into a changeset.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.broker.broker import Broker
from brokerd.broker.changeset import Changeset
from brokerd.clock import Clock
from brokerd.ids import BrokerId


class OpenChangesets:
    """The open changesets in which arrivals are collected, at most one per broker."""

    __slots__ = ("_clock", "_open", "_then")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[BrokerId, Changeset] = {}
        self._then: dict[BrokerId, list[tuple[Broker, Callable[[], None]]]] = {}

    def for_broker(self, broker: Broker) -> Changeset:
        """Return the open changeset of this broker; open one if none is open."""
        changeset = self._open.get(broker.broker_id)
        if changeset is None:
            changeset = self._open[broker.broker_id] = Changeset(broker, self._clock.utc())
        return changeset

    def touches_endpoints(self, broker: Broker) -> bool:
        """Return whether the open changeset of this broker has changed endpoints."""
        changeset = self._open.get(broker.broker_id)
        return changeset is not None and changeset.touches_endpoints

    def finish_all(self, *, urgent: bool) -> None:
        """Hand every open changeset to its commit pipeline."""
        for broker_id in list(self._open):
            self.finish(broker_id, urgent=urgent)

    def finish(
        self, broker_id: BrokerId, *, urgent: bool, then: Callable[[], None] | None = None
    ) -> None:
        """Hand a broker's changeset to its commit pipeline; call `then` once it is durable.

        If no changeset is open, `then` is called immediately."""
        changeset = self._open.pop(broker_id, None)
        if changeset is None:
            if then is not None:
                then()
            return
        if not changeset.empty or then is not None:
            changeset.join(then or _nothing, urgent=urgent or changeset.touches_endpoints)
        # After the join: `after` waits for all that has joined, which includes this one.
        if self._then:
            for broker, do in self._then.pop(broker_id, ()):
                broker.store.after(do)

    def when_durable(self, broker: Broker, do: Callable[[], None]) -> None:
        """Call `do` once the present state of this broker in memory is durable (REL-4).

        While a changeset is open, `do` waits for it: `store.after` knows only changesets that have
        joined."""
        if broker.broker_id in self._open:
            self._then.setdefault(broker.broker_id, []).append((broker, do))
        else:
            broker.store.after(do)


def _nothing() -> None:
    """Do nothing: no caller waits for the commit."""
