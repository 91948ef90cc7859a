"""Deciding again where dialogs send, when what was decided holds no more (XMT-7 to XMT-12).

Reads: endpoints of the brokers.      Calls: classifying; the transmitter, for who may go on.
Never: sends; and leaves alone whom a change does not concern (NBT-10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from brokerd.broker.broker import Broker
from brokerd.broker.outgoing import Outgoing
from brokerd.delivery.outgoing.classification import Classifying
from brokerd.delivery.outgoing.lines import Line
from brokerd.delivery.peers.routing_changes import Affected
from brokerd.ids import BrokerId
from brokerd.routing.classify import Delayed
from brokerd.routing.mirror import Pair
from brokerd.routing.reasons import Reason

TRIGGERS: Final = ("metadata", "route_expired", "mirror", "duplicate", "bound", "delayed")
"""What leads to a new classification (XMT-9)."""


class Rerouting:
    """What withdraws dialogs from where they wait, and has them classified anew."""

    __slots__ = ("_brokers", "_classifying", "_go_on", "_lines", "reclassified")

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        classifying: Classifying,
        lines: dict[str, Line],
        go_on: Callable[[Broker, Outgoing], None],
    ) -> None:
        """`go_on`: lets a dialog send what it has to, if it is known where."""
        self._brokers = brokers
        self._classifying = classifying
        self._lines = lines
        self._go_on = go_on
        self.reclassified: Counter[str] = Counter(dict.fromkeys(TRIGGERS, 0))
        """Dialogs that were classified again, by what led to it (MON-9)."""

    def reclassify(self) -> int:
        """Every second tick: routes that have expired, and the delayed dialogs again (XMT-9).

        Of the delayed ones that are routed alike only one is matched, while nothing matches."""
        count = self._reroute(self._classifying.expired(), "route_expired")
        delayed, self._classifying.delayed = self._classifying.delayed, {}
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
                self._classifying.delay(broker, out, known)
                continue
            self._go_on(broker, out)
            if out.address is None and not out.held and isinstance(out.decision, Delayed):
                found[key] = out.decision
        self.reclassified["delayed"] += len(delayed)
        return count + len(delayed)

    def reroute(self) -> int:
        """Routing has changed: classify the dialogs that it concerns anew, now (XMT-11, NBT-10).

        What is on the wire is left to the retransmission rules (XMT-7). How many dialogs."""
        return self._reroute(self._classifying.changed(), "metadata")

    def principal_changed(self, pair: Pair) -> int:
        """A mirrored route leads elsewhere, or nowhere: classify its dialogs anew (RTE-53)."""
        return self._reroute(self._classifying.mirrored(pair), "mirror")

    def bound(self, broker: Broker, out: Outgoing) -> None:
        """A dialog has its broker now, and is routed by it from here on (RTE-6): classify it anew
        where a route names that broker. All others lead where they led before."""
        if not out.live.gone and self._classifying.is_named(broker, out):
            self._again([(broker, out)], "bound")

    def duplicates_changed(self, broker_ids: frozenset[BrokerId]) -> int:
        """What is for these brokers may go elsewhere now, or has to wait (RTE-72)."""
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
        again: list[tuple[Broker, Outgoing, str | None]] = []
        moved: dict[str, set[int]] = {}
        for broker, out in concerned:
            before, out.address = out.address, None
            if not self._classifying.classified(broker, out) or out.address != before:
                if before is not None:
                    moved.setdefault(before, set()).add(id(out))
                out.queued = False
            again.append((broker, out, before))
        for address, ids in moved.items():
            if address in self._lines:
                self._lines[address].withdraw(ids)
        for broker, out, before in again:
            if before is not None and out.address is None:
                out.window.lost()
            self._go_on(broker, out)
        self.reclassified[trigger] += len(again)
        return len(again)

    def _concerned(self, by: Affected) -> Iterator[tuple[Broker, Outgoing]]:
        """The dialogs that it concerns and that were classified before."""
        for broker in self._brokers.values():
            for live in broker.endpoints.all():
                out = live.outgoing
                if out is None or not by.concerns(broker.broker_id, live.endpoint.far_service):
                    continue
                if out.choosing:
                    out.decision = None  # it is classified anew once that is stored
                elif out.address is not None or out in self._classifying.delayed:
                    yield broker, out

    def withhold(self, broker: Broker) -> None:
        """Delivery of a broker is off: nothing of it is sent, acknowledgements included (MAN-3).

        What was sent and not acknowledged is sent again when delivery is on."""
        ids = {id(live.outgoing) for live in broker.endpoints.all()}
        for line in self._lines.values():
            line.withdraw(ids)
        for live in broker.endpoints.all():
            out = live.outgoing
            if out is not None:
                out.queued, out.address = False, None
                out.window.lost()
                self._go_on(broker, out)

    def move_away(self, address: str) -> int:
        """Nothing goes there any more: what should have is classified anew (RTE-41). How many."""
        self._lines.pop(address, None)
        moved = [
            (broker, live.outgoing)
            for broker in self._brokers.values()
            for live in broker.endpoints.all()
            if live.outgoing is not None and live.outgoing.address == address
        ]
        for broker, out in moved:
            out.queued, out.address = False, None
            out.window.lost()
            self._go_on(broker, out)
        return len(moved)


def _waits_for_duplicate(out: Outgoing) -> bool:
    """Which broker it is for may stand in its route only, which it has not been given yet."""
    decision = out.decision
    return isinstance(decision, Delayed) and decision.reason == Reason.DUPLICATE_BROKER


def _far_broker(out: Outgoing) -> BrokerId | None:
    """The broker it is for: the one it names or is bound to, else that of its route."""
    named = out.live.endpoint.far_broker
    return out.choice.broker_id if named is None and out.choice is not None else named
