"""Finding the dialog of an arrival: where it is, reading it, holding it, letting it go (DSP-4).

Reads: endpoints of the brokers, routing.      Calls: routes.
Never: looks into a fragment; `sorting.py` does, once the dialog is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from brokerd.broker.blocked import Blocked
from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live, Spawn
from brokerd.broker.insisting import insist
from brokerd.delivery.incoming.buffer import Arrivals
from brokerd.delivery.incoming.counters import Accounts
from brokerd.delivery.incoming.openings import Openings
from brokerd.delivery.peers.router import Router
from brokerd.ids import ConversationId, InstanceId
from brokerd.protocol import dialog
from brokerd.protocol.frames import Item
from brokerd.routing.classify import Dropped, Local
from brokerd.routing.reasons import DropReason

Key = tuple[ConversationId, bool]
"""Conversation, and whether it comes from the initiator."""


class ArrivingDialog:
    """What the dispatcher knows of one direction of one dialog while fragments of it are here."""

    __slots__ = (
        "arrivals",
        "broker",
        "early_counted",
        "failures",
        "idle_since",
        "inspected",
        "inspecting_now",
        "key",
        "live",
        "loading",
        "neighbour",
        "waiting",
    )

    def __init__(self, broker: Broker, key: Key) -> None:
        self.broker = broker
        self.key = key
        self.live: Live | None = None
        """Its endpoint; None while that is read, and where there is none."""
        self.arrivals: Arrivals | None = None
        self.loading = False
        self.waiting: list[tuple[Item, InstanceId | None]] = []
        """What came while its endpoint is read, and who brought it."""
        self.neighbour: InstanceId | None = None
        """Who brought its fragments last; None = a broker of this instance."""
        self.failures = 0
        """Times in a row that its run could not be stored (DSP-8)."""
        self.idle_since: float | None = None
        """When a tick first found something of it that nothing is done with (DSP-9)."""
        self.inspected: dict[int, bytes] = {}
        """Bodies that are being checked, or were, by sequence (`inspection.py`)."""
        self.inspecting_now = 0
        """How many of them have no verdict yet."""
        self.early_counted: tuple[int, InstanceId | None] = (0, None)
        """Bytes of early fragments that are counted for a peer (DSP-16)."""

    def is_for(self, item: Item) -> bool:
        """Whether an item of the dialog is for this broker (RTE-31).

        It is not if the sender's routes have led to another broker since (XMT-7)."""
        target = item.hop.local_target
        return not target or target == self.broker.broker_id

    @property
    def rests(self) -> bool:
        """Whether nothing of it is here or under way."""
        arrivals = self.arrivals
        if self.loading or self.waiting or self.inspecting_now or arrivals is None:
            return False
        return arrivals.is_empty

    @property
    def buffered(self) -> int:
        """Fragments of it in memory."""
        arrivals = self.arrivals
        return len(self.waiting) + (len(arrivals.run) + arrivals.early if arrivals else 0)


class ArrivingDialogs:
    """All of them, by conversation and direction."""

    __slots__ = (
        "_accounts",
        "_brokers",
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
        accounts: Accounts,
        spawn: Spawn,
        loaded: Callable[[ArrivingDialog], None],
        openings: Openings,
    ) -> None:
        self._openings = openings
        self._brokers = brokers
        self._router = router
        self._accounts = accounts
        self._spawn = spawn
        self._loaded = loaded
        self.known: dict[Key, ArrivingDialog] = {}
        self._over: set[ArrivingDialog] = set()
        self._unread: deque[ArrivingDialog] = deque()
        self._is_reading = False

    def of(self, item: Item, neighbour: InstanceId | None) -> ArrivingDialog | None:
        """The dialog of an item; None if it is not for here, and then it is dropped."""
        key = (item.conversation_id, item.from_initiator)
        one = self.known.get(key)
        if one is not None:
            if one.is_for(item):
                return one
            if not one.rests:  # what is under way there is settled first; the item comes again
                self._accounts.refuse(item, DropReason.ROUTE_CHANGED, neighbour)
                return None
            self.let_go(one)
        broker = self._locate(item, neighbour)
        if broker is None:
            return None
        one = self.known[key] = ArrivingDialog(broker, key)
        self._find(one)
        return one

    def all(self) -> list[ArrivingDialog]:
        """Every dialog of which something is here."""
        return list(self.known.values())

    def came_from(self, one: ArrivingDialog, neighbour: InstanceId | None) -> None:
        """A fragment of it came this way; its acknowledgement can go back so (NBT-1)."""
        one.neighbour = neighbour
        if one.live is not None and one.live.outgoing is not None:
            one.live.outgoing.neighbour = neighbour

    def hold(self, one: ArrivingDialog, live: Live | None) -> None:
        """Know the endpoint from now on; what is known here must not leave memory unnoticed."""
        if one.live is not None:
            one.live.pins -= 1
            one.live.release = None
        one.live = live
        if live is not None:
            live.pins += 1
            live.release = partial(self._over.add, one)
            out = one.broker.outgoing(live)  # says what is durable, so it is made before any step
            out.neighbour = one.neighbour

    def let_go(self, one: ArrivingDialog) -> None:
        """Forget a dialog of which nothing is here any more."""
        if one.live is not None:
            one.broker.unfinished.let_go(one.live)
        elif one.key[1]:
            self._openings.forget(one.key[0])
        self.hold(one, None)
        self.known.pop(one.key, None)

    def let_go_of_over(self) -> None:
        """Forget dialogs that are over, unless something of them is here (PBT-5).

        Apart from when that is said, because then somebody may be busy with them."""
        over = list(self._over)
        self._over.clear()
        for one in over:
            if one.rests and self.known.get(one.key) is one:
                self.let_go(one)

    def _locate(self, item: Item, neighbour: InstanceId | None) -> Broker | None:
        """The broker that holds, or is to hold, this side of the dialog (DSP-4, RTE-32).

        A sender of this instance has decided it, by its own routes (RTE-30)."""
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
        self._accounts.refuse(item, reason, neighbour)
        return None

    def _locate_target(self, item: Item, neighbour: InstanceId | None) -> Broker | None:
        target = item.hop.local_target
        for broker in self._brokers.values():
            if broker.broker_id == target and broker.enabled:
                return broker
        self._accounts.refuse(item, DropReason.BROKER_DISABLED, neighbour)
        return None

    def _find(self, one: ArrivingDialog) -> None:
        """Learn the endpoint; while it is read from the store, what arrives waits."""
        found = one.broker.endpoints.look_up_conversation(one.key[0], not one.key[1])
        if isinstance(found, Blocked):
            one.loading = True
            found.then(lambda: self._found(one))
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
            self._spawn(self._know_parts(one, found))

    def _found(self, one: ArrivingDialog) -> None:
        self._find(one)
        if not one.loading:
            self._loaded(one)

    async def _know_parts(self, one: ArrivingDialog, live: Live) -> None:
        """After a restart: how much of the message that is not complete is stored (DLP-11).

        Somebody may have ended the dialog meanwhile, and dropped it."""
        stored = await insist(one.broker.store.parts_known, live.endpoint.key)
        endpoint = live.endpoint
        if not live.gone and live.body_key is None and dialog.keeps_parts(endpoint):
            live.body_key = stored.key
            if stored.fragments == endpoint.receive_fragment:
                live.parts_stored, live.parts_size = stored.fragments, stored.size
            else:
                one.broker.damaged_parts.add(endpoint.key)
        one.loading = False
        self._loaded(one)

    def read_parts(self, one: ArrivingDialog) -> None:
        """Read the stored fragments of its message, because the last one is here (DSP-15).

        Until then what arrives of the dialog waits."""
        one.loading = True
        self._unread.append(one)
        self.read_more()

    def read_more(self) -> None:
        """Read those of the dialogs that wait for it, one after the other, while there is room for
        what was read; it is used up as soon as its messages are stored."""
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
            stored = await insist(one.broker.store.parts, live.endpoint.key)
            if live.parts_stored and stored.bodies and len(stored.bodies) == live.parts_stored:
                one.broker.unfinished.have(live, stored.bodies)
            elif live.parts_stored:  # else somebody has ended the dialog meanwhile
                one.broker.unfinished.remove(live)
                one.broker.damaged_parts.add(live.endpoint.key)
        one.loading = False
        self._loaded(one)
