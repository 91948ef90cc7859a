"""Message dispatcher: arrivals for us -> dialog step -> queue, then the ack (DSP).

Reads:  items of boxcars, endpoints of the brokers.   Calls: the steps in the table below.
Never:  acknowledges before the commit (DLP-15), or keeps anything durable of its own (DSP-14).
Wakes:  on arrival; a round takes what waits of all dialogs in one changeset a broker (DSP-3).
Fails:  a dialog that cannot be stored is left out and comes again; the others go on.

An arrival's way, in this order:

    arriving_dialogs  finds the dialog: which broker, its endpoint, reading it where need be
    in_order          a whole message, next in order, of a dialog in state CO: stored at once
    receipts          takes the acknowledgement it carries, and errors made by a broker
    sorting           puts the fragment where it belongs: next, early, repeated, refused
    acceptance        says whether what is next may be stored
    storing           stores runs, in the `open_rounds`, and owes the acknowledgement

Beside it, `arrivals` is the buffer of one dialog, `arrival_memory` the sum of them, and `accounts`
says what became of each fragment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live, Spawn
from brokerd.broker.queues import publish
from brokerd.clock import Clock
from brokerd.delivery.accounts import Accounts, Log
from brokerd.delivery.answers import LooseAnswers
from brokerd.delivery.arrival_memory import ArrivalMemory
from brokerd.delivery.arriving_dialogs import ArrivingDialog, ArrivingDialogs
from brokerd.delivery.in_order import InOrder
from brokerd.delivery.open_rounds import OpenRounds
from brokerd.delivery.receipts import Receipts, tells
from brokerd.delivery.routes import Router
from brokerd.delivery.sorting import Sorting
from brokerd.delivery.storing import Batch, Storing
from brokerd.delivery.transmitter import Transmitter
from brokerd.ids import ConversationId
from brokerd.protocol.frames import Fragment, Item
from brokerd.routing.reasons import DropReason
from brokerd.storage.changes import QueueRow


class DispatcherOptions(msgspec.Struct, frozen=True):
    """Figures of the receiving side (DSP-3, DSP-10)."""

    batch: int = 256
    mem_low: int = 32 * 1024 * 1024
    mem_high: int = 64 * 1024 * 1024
    mem_hard: int = 96 * 1024 * 1024
    mem_dialog: int = 8 * 1024 * 1024


class _Straight:
    """Arrivals of one broker that are stored without a round (`in_order.py`)."""

    __slots__ = ("_batches", "_run", "_tick", "broker")

    def __init__(self, broker: Broker, tick: int) -> None:
        self.broker = broker
        self._run = InOrder(broker)
        self._tick = tick
        self._batches: list[Batch] = []

    def take(self, one: ArrivingDialog, item: Fragment) -> bool:
        """Store one more; False = nothing was done."""
        live, arrivals = one.live, one.arrivals
        assert live is not None
        assert arrivals is not None
        if not self._run.take(live, item):
            return False
        arrivals.pass_on(item)
        arrivals.tick = self._tick
        self._batches.append((one, live, [item], 1))
        return True

    def join(self, durable: Callable[[list[Batch]], None]) -> int:
        """Hand them to the commit pipeline; how many. `durable` is called when they are."""
        batches = self._batches
        if batches:
            self.broker.store.joined_straight(partial(_tell, self._run.arrived, batches, durable))
        return len(batches)


class Dispatcher:
    """One per instance."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        router: Router,
        transmitter: Transmitter,
        answers: LooseAnswers,
        clock: Clock,
        options: DispatcherOptions,
        spawn: Spawn,
        log: Log,
        pause: Callable[[], None],
        resume: Callable[[], None],
        notice: Callable[[ConversationId, bool, int, str], None],
        not_forwarded: Callable[[Item, str], None],
    ) -> None:
        self._accounts = accounts = Accounts(log=log, notice=notice, not_forwarded=not_forwarded)
        self._memory = memory = ArrivalMemory(
            low=options.mem_low, high=options.mem_high, pause=pause, resume=resume
        )
        self._rounds = rounds = OpenRounds(clock)
        self._dialogs = dialogs = ArrivingDialogs(
            brokers=brokers, router=router, accounts=accounts, spawn=spawn, loaded=self._go_on
        )
        self._storing = storing = Storing(
            dialogs=dialogs,
            rounds=rounds,
            transmitter=transmitter,
            answers=answers,
            accounts=accounts,
            memory=memory,
            clock=clock,
            batch=options.batch,
        )
        receipts = Receipts(
            rounds=rounds, transmitter=transmitter, answers=answers, accounts=accounts, clock=clock
        )
        self._sorting = Sorting(
            dialogs=dialogs,
            storing=storing,
            receipts=receipts,
            rounds=rounds,
            transmitter=transmitter,
            answers=answers,
            accounts=accounts,
            memory=memory,
            clock=clock,
            mem_dialog=options.mem_dialog,
        )

    @property
    def received(self) -> int:
        """Fragments taken from the transport (NBT-15)."""
        return self._accounts.received

    @property
    def stored(self) -> int:
        """Fragments stored (NBT-15)."""
        return self._accounts.stored

    @property
    def duplicates(self) -> int:
        """Fragments that were here already (NBT-15)."""
        return self._accounts.duplicates

    @property
    def dropped(self) -> Counter[str]:
        """Fragments dropped, by reason (DSP-13)."""
        return self._accounts.dropped

    @property
    def buffered(self) -> int:
        """Fragments in memory."""
        return sum(one.buffered for one in self._dialogs.known.values())

    def arrived(self, items: list[Item]) -> None:
        """Take the items of one boxcar."""
        accounts, dialogs, durable = self._accounts, self._dialogs, self._storing.durable
        known = dialogs.known
        straight: _Straight | None = None
        for item in items:
            if type(item) is Fragment:
                accounts.received += 1
                one = known.get((item.conversation_id, item.from_initiator))
                if one is not None and _may_go_straight(one, item):
                    if straight is None or straight.broker is not one.broker:
                        straight = self._go_straight(one.broker, straight)
                    if straight.take(one, item):
                        continue
            if straight is not None:
                accounts.stored += straight.join(durable)
                straight = None
            one = dialogs.of(item)
            if one is None:
                continue
            if one.loading:
                one.waiting.append(item)
            else:
                self._sorting.take(one, item)
        if straight is not None:
            accounts.stored += straight.join(durable)
        self._rounds.finish_all(urgent=False)
        self._memory.check()

    def out_of_order(
        self, conversation_id: ConversationId, from_initiator: bool
    ) -> tuple[int, int, int] | None:
        """First and last sequence, and last fragment, of what is held early (VIEW-1)."""
        one = self._dialogs.known.get((conversation_id, from_initiator))
        if one is None or one.arrivals is None:
            return None
        return one.arrivals.early_extent

    def let_go(self, broker: Broker) -> None:
        """Drop what is here for a broker whose delivery is off (DSP-12, DSP-14)."""
        for one in [one for one in self._dialogs.all() if one.broker is broker]:
            if one.arrivals is not None:
                self._memory.size -= one.arrivals.size
                dropped = one.arrivals.drop_run(one.arrivals.sequence, one.arrivals.fragment)
                self._accounts.dropped[DropReason.BROKER_DISABLED] += dropped
            self._drop_waiting(one)
            self._storing.forget(one)
            if not one.loading:  # else it is let go once it is read
                self._dialogs.let_go(one)
        self._memory.check()

    def purge(self) -> int:
        """Every tick: drop what has been early or unwanted for too long (DSP-9)."""
        self._sorting.tick += 1
        tick = self._sorting.tick
        purged = 0
        for one in self._dialogs.all():
            arrivals = one.arrivals
            if arrivals is None or one.loading:
                continue
            size = arrivals.size
            dropped = arrivals.purge_early(tick)
            self._memory.size -= size - arrivals.size
            self._accounts.dropped["out_of_order"] += dropped
            purged += dropped
            if one.live is not None and dropped and one.live.outgoing is not None:
                one.live.outgoing.held_ranges = arrivals.ranges()
            if arrivals.is_empty and arrivals.tick < tick - 1:
                self._dialogs.let_go(one)
        self._memory.check()
        return purged

    def _go_straight(self, broker: Broker, before: _Straight | None) -> _Straight:
        """Begin to store arrivals without a round; what a round has changed comes first."""
        if before is not None:
            self._accounts.stored += before.join(self._storing.durable)
        if self._rounds.touches_endpoints(broker):
            self._rounds.finish(broker.broker_id, urgent=False)
        return _Straight(broker, self._sorting.tick)

    def _go_on(self, one: ArrivingDialog) -> None:
        """The endpoint of a dialog is read: what waited for it is sorted."""
        if not one.broker.enabled:  # switched off meanwhile
            self._drop_waiting(one)
            self._dialogs.let_go(one)
            return
        waiting, one.waiting = one.waiting, []
        for item in waiting:
            self._sorting.take(one, item)
        self._rounds.finish_all(urgent=False)

    def _drop_waiting(self, one: ArrivingDialog) -> None:
        waiting, one.waiting = one.waiting, []
        for item in waiting:
            self._accounts.drop(item, DropReason.BROKER_DISABLED)


def _may_go_straight(one: ArrivingDialog, item: Fragment) -> bool:
    """Whether a fragment is the next of a known dialog, and its ack says nothing that counts."""
    live, arrivals = one.live, one.arrivals
    if live is None or arrivals is None or one.loading or live.gone:
        return False
    if item.sequence != arrivals.sequence or arrivals.fragment or not arrivals.nothing_waits:
        return False
    ack, out = item.ack, live.outgoing
    return ack is None or not (tells(live, ack) or (out is not None and out.pending))


def _tell(
    arrived: list[tuple[Live, QueueRow]],
    batches: list[Batch],
    durable: Callable[[list[Batch]], None],
) -> None:
    """They are durable: queues learn it, and then it may be acknowledged (REL-4, DLP-15)."""
    publish(arrived)
    durable(batches)
