"""Dialogs that have arrivals in memory: finding, reading, holding and releasing them (DSP-4).

Reads: endpoints of the brokers, routing.      Calls: peers.router, counters.
Never: inspects a fragment; `sequencer.py` does, once the dialog is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from brokerd.broker.blocked import Blocked
from brokerd.broker.broker import Broker
from brokerd.broker.state import Live
from brokerd.broker.store_reads import Spawn, read_until_answered
from brokerd.delivery.incoming.buffer import Arrivals
from brokerd.delivery.incoming.counters import ArrivalCounters
from brokerd.delivery.incoming.opening_dialogs import OpeningDialogs
from brokerd.delivery.peers.router import Router
from brokerd.ids import ConversationId, InstanceId
from brokerd.protocol import dialog
from brokerd.protocol.frames import Item
from brokerd.routing.classify import Dropped, Local
from brokerd.routing.reasons import DropReason
from brokerd.security.kept_keys import DialogKeys
from brokerd.security.sealing import AnswerKeys

Key = tuple[ConversationId, bool]
"""Conversation id, and whether the arrivals come from the initiator."""


class ArrivingDialog:
    """State of one direction of one dialog, kept while it has arrivals in memory."""

    __slots__ = (
        "arrivals",
        "broker",
        "early_counted",
        "failures",
        "idle_since",
        "inspected",
        "inspecting_now",
        "key",
        "keys",
        "live",
        "loading",
        "neighbour",
        "waiting",
    )

    def __init__(self, broker: Broker, key: Key) -> None:
        self.broker = broker
        self.key = key
        self.live: Live | None = None
        """The endpoint; None = it is being read, or the dialog has none."""
        self.keys: AnswerKeys | None = None
        """The keys of a secured dialog that has no endpoint here yet, or any more."""
        self.arrivals: Arrivals | None = None
        self.loading = False
        self.waiting: list[tuple[Item, InstanceId | None]] = []
        """Items that arrived while the endpoint is being read, with the neighbour of each."""
        self.neighbour: InstanceId | None = None
        """Neighbour that brought the latest fragment; None = a broker of this instance."""
        self.failures = 0
        """Number of times in a row that the run could not be stored (DSP-8)."""
        self.idle_since: float | None = None
        """Time at which a tick first found unprocessed fragments (monotonic, DSP-9)."""
        self.inspected: dict[int, bytes] = {}
        """Bodies that are being or have been checked, by sequence (`inspection.py`)."""
        self.inspecting_now = 0
        """Number of inspected bodies that have no verdict yet."""
        self.early_counted: tuple[int, InstanceId | None] = (0, None)
        """Bytes of early fragments that are counted for a peer, and the peer (DSP-16)."""

    @property
    def principal(self) -> str | None:
        """Owner of the certificate that its initiator has proven to hold (SEC-24).

        None: the dialog is not secured, or anonymous, and acts as `public` (SEC-19)."""
        keys = self.keys
        return (keys.kept.principal or None) if isinstance(keys, DialogKeys) else None

    def is_for(self, item: Item) -> bool:
        """Return whether an item of the dialog is for this broker (RTE-31).

        False: the sender's routes lead to another broker of this instance now (XMT-7)."""
        target = item.hop.local_target
        return not target or target == self.broker.broker_id

    @property
    def rests(self) -> bool:
        """Whether the dialog has no arrival in memory, and none is being processed."""
        arrivals = self.arrivals
        if self.loading or self.waiting or self.inspecting_now or arrivals is None:
            return False
        return arrivals.is_empty

    @property
    def buffered(self) -> int:
        """Number of fragments of the dialog in memory."""
        arrivals = self.arrivals
        return len(self.waiting) + (len(arrivals.run) + arrivals.early if arrivals else 0)


class ArrivingDialogs:
    """All dialogs with arrivals in memory, by conversation and direction."""

    __slots__ = (
        "_brokers",
        "_counters",
        "_is_reading",
        "_loaded",
        "_openings",
        "_over",
        "_router",
        "_spawn",
        "_unread",
        "known",
    )

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        router: Router,
        counters: ArrivalCounters,
        spawn: Spawn,
        loaded: Callable[[ArrivingDialog], None],
        openings: OpeningDialogs,
    ) -> None:
        self._openings = openings
        self._brokers = brokers
        self._router = router
        self._counters = counters
        self._spawn = spawn
        self._loaded = loaded
        self.known: dict[Key, ArrivingDialog] = {}
        self._over: set[ArrivingDialog] = set()
        self._unread: deque[ArrivingDialog] = deque()
        self._is_reading = False

    def for_item(self, item: Item, neighbour: InstanceId | None) -> ArrivingDialog | None:
        """Return the dialog of an item; None = it is not for this instance and was dropped."""
        key = (item.conversation_id, item.from_initiator)
        one = self.known.get(key)
        if one is not None:
            if one.is_for(item):
                return one
            if not one.rests:  # its current broker finishes first; the item is sent again
                self._counters.refuse(item, DropReason.ROUTE_CHANGED, neighbour)
                return None
            self.release(one)
        broker = self._locate(item, neighbour)
        if broker is None:
            return None
        one = self.known[key] = ArrivingDialog(broker, key)
        self._find(one)
        return one

    def all(self) -> list[ArrivingDialog]:
        """Return every dialog that has arrivals in memory."""
        return list(self.known.values())

    def came_from(self, one: ArrivingDialog, neighbour: InstanceId | None) -> None:
        """Record the neighbour that brought a fragment: its ack may go back that way (NBT-1)."""
        one.neighbour = neighbour
        if one.live is not None and one.live.outgoing is not None:
            one.live.outgoing.acks.came_from(neighbour)

    def hold(self, one: ArrivingDialog, live: Live | None) -> None:
        """Set the endpoint of a dialog, and pin it so that it stays in memory."""
        if one.live is not None:
            one.live.unpin_for_arrivals()
        one.live = live
        if live is not None:
            live.pin_for_arrivals(partial(self._over.add, one))
            # Made before any step, because it starts from the durable state of the endpoint.
            out = one.broker.outgoing(live)
            out.acks.came_from(one.neighbour)

    def release(self, one: ArrivingDialog) -> None:
        """Remove a dialog that has nothing left in memory, and unpin its endpoint."""
        if one.live is not None:
            one.broker.unfinished.release(one.live)
        elif one.key[1]:
            self._openings.remove(one.key[0])
        self.hold(one, None)
        self.known.pop(one.key, None)

    def release_ended(self) -> None:
        """Remove dialogs that are over, unless they have arrivals in memory (PBT-5).

        This is not done at the end of an endpoint, because a caller may be using its dialog
        then."""
        over = list(self._over)
        self._over.clear()
        for one in over:
            if one.rests and self.known.get(one.key) is one:
                self.release(one)

    def _locate(self, item: Item, neighbour: InstanceId | None) -> Broker | None:
        """Return the broker that has, or is to get, this side of the dialog (DSP-4, RTE-32).

        None: the item was dropped and reported. A sender of this instance has chosen the broker
        by its own routes (RTE-30)."""
        if item.hop.local_target:
            return self._locate_target(item, neighbour)
        side = not item.from_initiator
        for broker in self._brokers.values():
            known = broker.endpoints.find_conversation(item.conversation_id, side)
            if known is not None and broker.enabled:
                return broker
        decision = self._router.arriving(item)
        if isinstance(decision, Local):
            for broker in self._brokers.values():
                if broker.broker_id == decision.broker_id and broker.enabled:
                    return broker
        reason = decision.reason if isinstance(decision, Dropped) else "forwarding_disabled"
        self._counters.refuse(item, reason, neighbour)
        return None

    def _locate_target(self, item: Item, neighbour: InstanceId | None) -> Broker | None:
        target = item.hop.local_target
        for broker in self._brokers.values():
            if broker.broker_id == target and broker.enabled:
                return broker
        self._counters.refuse(item, DropReason.BROKER_DISABLED, neighbour)
        return None

    def _find(self, one: ArrivingDialog) -> None:
        """Look up the endpoint; arrivals wait while it is being read from the store."""
        found = one.broker.endpoints.look_up_conversation(one.key[0], not one.key[1])
        if isinstance(found, Blocked):
            one.loading = True
            found.then(lambda: self._find_again(one))
            return
        one.loading = False
        self.hold(one, found)
        if found is None:
            one.arrivals = Arrivals(0, 0)
            return
        endpoint = found.endpoint
        one.arrivals = Arrivals(endpoint.receive_sequence, endpoint.receive_fragment)
        if endpoint.receive_fragment and found.body_key is None and dialog.keeps_parts(endpoint):
            one.loading = True
            self._spawn(self._measure_parts(one, found))

    def _find_again(self, one: ArrivingDialog) -> None:
        self._find(one)
        if not one.loading:
            self._loaded(one)

    async def _measure_parts(self, one: ArrivingDialog, live: Live) -> None:
        """Read the number and size of an incomplete message's parts after a restart (DLP-11).

        The dialog may have ended meanwhile, and its parts may have been dropped."""
        stored = await read_until_answered(
            one.broker.store.incomplete.known_parts, live.endpoint.key
        )
        endpoint = live.endpoint
        if not live.gone and live.body_key is None and dialog.keeps_parts(endpoint):
            unfinished = one.broker.unfinished
            if stored.fragments == endpoint.receive_fragment:
                unfinished.recovered(live, stored.key, stored.fragments, stored.size)
            else:
                unfinished.recovered(live, stored.key, 0, 0)
                one.broker.damaged_parts.add(endpoint.key)
        one.loading = False
        self._loaded(one)

    def read_parts(self, one: ArrivingDialog) -> None:
        """Read the stored fragments of a message whose last fragment has arrived (DSP-15).

        Until they are read, further arrivals of the dialog wait."""
        one.loading = True
        self._unread.append(one)
        self.read_more()

    def read_more(self) -> None:
        """Read the stored fragments of waiting dialogs, one dialog at a time, while memory allows.

        The memory is free again as soon as the completed messages are stored."""
        if self._unread and not self._is_reading:
            self._is_reading = True
            self._spawn(self._read_each())

    async def _read_each(self) -> None:
        try:
            while self._unread and not self._unread[0].broker.unfinished.is_crowded:
                await self._read(self._unread.popleft())
        finally:
            self._is_reading = False

    async def _read(self, one: ArrivingDialog) -> None:
        live = one.live
        if live is not None and live.parts_stored:
            stored = await read_until_answered(one.broker.store.incomplete.parts, live.endpoint.key)
            if live.parts_stored and stored.bodies and len(stored.bodies) == live.parts_stored:
                one.broker.unfinished.have(live, stored.bodies)
            elif live.parts_stored:  # otherwise the dialog was ended meanwhile
                one.broker.unfinished.remove(live)
                one.broker.damaged_parts.add(live.endpoint.key)
        one.loading = False
        self._loaded(one)
