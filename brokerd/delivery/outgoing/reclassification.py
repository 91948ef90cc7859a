"""Reclassification of dialogs whose route no longer holds (XMT-7 to XMT-12).

Reads: endpoints of the brokers.      Calls: classification; the transmitter, to resume dialogs.
Never: sends, or touches a dialog that is not concerned by a change (NBT-10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.delivery.outgoing.classification import Classifier
from brokerd.delivery.outgoing.ready_line import Line
from brokerd.delivery.peers.routing_changes import Affected
from brokerd.ids import BrokerId
from brokerd.routing.classify import Delayed
from brokerd.routing.mirror import Pair
from brokerd.routing.reasons import Reason

TRIGGERS: Final = ("metadata", "route_expired", "mirror", "duplicate", "bound", "delayed")
"""Causes of a new classification, as the metric names them (XMT-9)."""


class Reclassification:
    """Reclassifier: withdraws dialogs from their destinations and classifies them again."""

    __slots__ = ("_brokers", "_classifier", "_lines", "_queue_all", "reclassified")

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        classifier: Classifier,
        lines: dict[str, Line],
        queue_all: Callable[[Broker, Outgoing], None],
    ) -> None:
        """Create the reclassifier.

        `queue_all`: queues everything that a dialog has to send, if its destination is known."""
        self._brokers = brokers
        self._classifier = classifier
        self._lines = lines
        self._queue_all = queue_all
        self.reclassified: Counter[str] = Counter(dict.fromkeys(TRIGGERS, 0))
        """Number of dialogs classified again, by cause (MON-9)."""

    def reclassify(self) -> int:
        """Classify delayed dialogs and those of expired routes again, every second tick (XMT-9).

        Of delayed dialogs with the same routing key only one is matched, as long as no route is
        found. Return the number of dialogs."""
        count = self._reroute(self._classifier.expired(), "route_expired")
        delayed, self._classifier.delayed = self._classifier.delayed, {}
        found: dict[object, Delayed] = {}
        for out, broker in delayed.items():
            if out.live.gone:
                continue
            endpoint = out.live.endpoint
            key = (
                broker.broker_id,
                endpoint.far_service,
                endpoint.far_broker,
                endpoint.is_initiator,
            )
            known = found.get(key)
            if known is not None:
                self._classifier.delay(broker, out, known)
                continue
            self._queue_all(broker, out)
            decision = out.route.decision
            if (
                out.route.address is None
                and not out.held
                and type(decision) is Delayed  # else its reason is no question of the route
            ):
                found[key] = decision
        self.reclassified["delayed"] += len(delayed)
        return count + len(delayed)

    def reroute(self) -> int:
        """Reclassify the dialogs that a change of routing concerns, immediately (XMT-11, NBT-10).

        Fragments on the wire are left to the retransmission rules (XMT-7). Return the number of
        dialogs."""
        return self._reroute(self._classifier.changed(), "metadata")

    def principal_changed(self, pair: Pair) -> int:
        """Reclassify the dialogs of a mirrored route whose principal has changed (RTE-53).

        Return the number of dialogs."""
        return self._reroute(self._classifier.mirrored(pair), "mirror")

    def bound(self, broker: Broker, out: Outgoing) -> None:
        """Reclassify a dialog that is now bound to a broker, if a route names that broker.

        A bound dialog is routed by its broker (RTE-6); without such a route the result would be the
        same as before."""
        if not out.live.gone and self._classifier.is_named(broker, out):
            self._again([(broker, out)], "bound")

    def duplicates_changed(self, broker_ids: frozenset[BrokerId]) -> int:
        """Classify the dialogs to these duplicate brokers again (RTE-72); return their number.

        Their messages may go elsewhere now, or have to wait."""
        every = Affected()
        every.everything()
        meant = [
            (broker, out)
            for broker, out in self._concerned(every)
            if _far_broker(out) in broker_ids or _waits_for_duplicate(out)
        ]
        return self._again(meant, "duplicate")

    def _reroute(self, concerned: Affected, trigger: str) -> int:
        return self._again(list(self._concerned(concerned)), trigger) if concerned else 0

    def _again(self, concerned: Iterable[tuple[Broker, Outgoing]], trigger: str) -> int:
        # Three passes: a dialog leaves its old line before it may join another, and each line is
        # searched once for all dialogs that leave it, however many they are.
        again: list[tuple[Broker, Outgoing, str | None]] = []
        moved: dict[str, set[int]] = {}
        for broker, out in concerned:
            before = out.route.withdraw()
            if not self._classifier.classified(broker, out) or out.route.address != before:
                if before is not None:
                    moved.setdefault(before, set()).add(id(out))
                out.route.left_line()
            again.append((broker, out, before))
        for address, ids in moved.items():
            if address in self._lines:
                self._lines[address].withdraw(ids)
        for broker, out, before in again:
            if before is not None and out.route.address is None:
                out.window.lost()
            self._queue_all(broker, out)
        self.reclassified[trigger] += len(again)
        return len(again)

    def _concerned(self, by: Affected) -> Iterator[tuple[Broker, Outgoing]]:
        """Yield the dialogs that a change concerns and that were classified before."""
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                out = live.outgoing
                if out is None or not by.concerns(broker.broker_id, live.endpoint.far_service):
                    continue
                if out.route.is_choosing:
                    out.route.choice_outdated()  # classified again once its choice is stored
                elif out.route.address is not None or out in self._classifier.delayed:
                    yield broker, out

    def withhold(self, broker: Broker) -> None:
        """Stop sending for a broker whose delivery is off, acknowledgements included (MAN-3).

        Fragments sent and not acknowledged are sent again once delivery is on."""
        ids = {id(live.outgoing) for live in broker.endpoints.all()}
        for line in self._lines.values():
            line.withdraw(ids)
        for live in broker.endpoints.all():
            out = live.outgoing
            if out is not None:
                out.route.withdraw()
                out.route.left_line()
                out.window.lost()
                self._queue_all(broker, out)

    def move_away(self, address: str) -> int:
        """Reclassify all dialogs of an address that is no longer in use (RTE-41).

        Return the number of dialogs."""
        self._lines.pop(address, None)
        moved = [
            (broker, live.outgoing)
            for broker in self._brokers.values()
            for live in broker.endpoints.all()
            if live.outgoing is not None and live.outgoing.route.address == address
        ]
        for broker, out in moved:
            out.route.withdraw()
            out.route.left_line()
            out.window.lost()
            self._queue_all(broker, out)
        return len(moved)


def _waits_for_duplicate(out: Outgoing) -> bool:
    """Return whether a dialog waits because of a duplicate broker.

    The broker may be named only by the dialog's route, which the dialog has not been assigned
    yet."""
    decision = out.route.decision
    return isinstance(decision, Delayed) and decision.reason == Reason.DUPLICATE_BROKER


def _far_broker(out: Outgoing) -> BrokerId | None:
    """Return the broker that a dialog names or is bound to, else the broker of its route."""
    named = out.live.endpoint.far_broker
    choice = out.route.choice
    return choice.broker_id if named is None and choice is not None else named
