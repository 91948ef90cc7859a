"""Message dispatcher: arrivals for this instance -> dialog step -> queue, then the ack (DSP).

Reads:  items of boxcars, endpoints of the brokers.   Calls: the modules in the table below.
Never:  acknowledges before the commit (DLP-15), or keeps anything durable of its own (DSP-14).
Wakes:  on arrival; stores the runs of all dialogs together, one changeset per broker (DSP-3).
Fails:  a dialog that cannot be stored is left out and sent again by its peer; the others continue.

The modules in the order in which an arrival passes them:

    dialogs            finds the dialog: its broker and its endpoint, which may have to be read
    unsealing          opens an item of a secured dialog, and drops what is not authentic
    fastpath.arrivals  stores a whole message that is next in order, of a dialog in state CO
    acknowledgements   applies the acknowledgement of an item, and errors made by a broker
    sequencer          sorts a fragment: next, early, repeated or refused
    arrival_writer     stores accepted fragments, in the open changesets, and owes the ack

In addition, `admission` decides which dialogs of other instances may begin, `buffer` holds the
arrivals of one dialog, `arrival_memory` counts the bytes of all buffers, and `counters` reports the
outcome of each fragment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial

import msgspec

from brokerd.broker import ordinary
from brokerd.broker.broker import Broker
from brokerd.broker.queues import publish
from brokerd.broker.state import Live
from brokerd.broker.store_reads import Spawn
from brokerd.clock import Clock, Instant
from brokerd.delivery.fastpath.arrivals import OrdinaryArrivals
from brokerd.delivery.incoming.acknowledgements import Acknowledgements, tells
from brokerd.delivery.incoming.admission import Admission
from brokerd.delivery.incoming.arrival_memory import ArrivalMemory, EarlyShares
from brokerd.delivery.incoming.arrival_writer import ArrivalWriter, Batch
from brokerd.delivery.incoming.buffer import weight
from brokerd.delivery.incoming.counters import MEMORY_FULL, ArrivalCounters
from brokerd.delivery.incoming.dialogs import ArrivingDialog, ArrivingDialogs
from brokerd.delivery.incoming.open_changesets import OpenChangesets
from brokerd.delivery.incoming.opening_dialogs import OpeningDialogs
from brokerd.delivery.incoming.sequencer import Sequencer
from brokerd.delivery.incoming.unsealing import Unsealing
from brokerd.delivery.outgoing.ack_log import AckLog
from brokerd.delivery.outgoing.orphan_replies import OrphanReplies
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.delivery.peers.dialog_security import DialogSecurity
from brokerd.delivery.peers.refusal_notices import RefusalNotices
from brokerd.delivery.peers.router import Router
from brokerd.ids import ConversationId, InstanceId
from brokerd.protocol.frames import Fragment, Item
from brokerd.routing.reasons import DropReason
from brokerd.storage.changes import QueueRow
from brokerd.telemetry.log import Log


class DispatcherOptions(msgspec.Struct, frozen=True):
    """Settings of the receiving side (DSP-3, DSP-10)."""

    batch: int = 256
    mem_low: int = 32 * 1024 * 1024
    mem_high: int = 64 * 1024 * 1024
    mem_hard: int = 96 * 1024 * 1024
    mem_dialog: int = 8 * 1024 * 1024
    max_openings: int = 1000
    """Limit of dialogs of one peer whose first message is not complete (DSP-16)."""
    max_dialogs: int = 0
    """Limit of open dialogs that one peer has begun in a broker; 0 = no limit (REL-45)."""
    stale: timedelta = timedelta(seconds=10)
    """Time that a fragment may stay in memory without being processed (DSP-9)."""
    store_retries: int = 3
    """Number of failures in a row after which the buffer of a dialog is dropped (DSP-8)."""
    strict_error_origin: bool = False
    """Whether broker errors count only from the instance that the dialog sends to (NBT-24)."""


class _FastRun:
    """Arrivals of one broker on the fast path (`fastpath/arrivals.py`), to be acknowledged."""

    __slots__ = ("_batches", "_run", "_tick", "broker")

    def __init__(self, broker: Broker, tick: int) -> None:
        self.broker = broker
        self._run = OrdinaryArrivals(broker)
        self._tick = tick
        self._batches: list[Batch] = []

    def add(self, one: ArrivingDialog, item: Fragment) -> bool:
        """Add one fragment to those to be stored; False = nothing was done."""
        live, arrivals = one.live, one.arrivals
        assert live is not None
        assert arrivals is not None
        if not self._run.add(live, item):
            return False
        arrivals.pass_on(item)
        arrivals.tick = self._tick
        self._batches.append((one, live, [item], 1))
        return True

    def join(self, durable: Callable[[list[Batch]], None]) -> int:
        """Hand the fragments to the commit pipeline and return their number.

        `durable` is called with them once they are durable."""
        batches = self._batches
        if batches:
            self.broker.store.join_written(partial(_publish, self._run.arrived, batches, durable))
        return len(batches)


class Dispatcher:
    """The receiving side of an instance, which has exactly one."""

    def __init__(
        self,
        *,
        brokers: Mapping[str, Broker],
        router: Router,
        transmitter: Transmitter,
        answers: OrphanReplies,
        security: DialogSecurity,
        clock: Clock,
        options: DispatcherOptions,
        spawn: Spawn,
        log: Log,
        pause: Callable[[], None],
        resume: Callable[[], None],
        notices: RefusalNotices,
        not_forwarded: Callable[[Item, str], None],
        ack_log: AckLog,
        peer_at: Callable[[str], InstanceId | None],
        admission: Admission,
    ) -> None:
        """Create the parts of the receiving side and connect them.

        `pause` and `resume` stop and restart the reading from all peers. `peer_at` returns the
        instance at an address. `not_forwarded` reports a dropped item that was for another
        instance."""
        self._clock = clock
        self._ack_log = ack_log
        self._stale = options.stale.total_seconds()
        self._counters = counters = ArrivalCounters(
            clock=clock, log=log, notices=notices, not_forwarded=not_forwarded
        )
        self._memory = memory = ArrivalMemory(
            low=options.mem_low,
            high=options.mem_high,
            hard=options.mem_hard,
            pause=pause,
            resume=resume,
        )
        self._unsealing = unsealing = Unsealing(security=security, counters=counters)
        self._early = early = EarlyShares(options.mem_low)
        self._openings = openings = OpeningDialogs(options.max_openings)
        self._changesets = changesets = OpenChangesets(clock)
        self._dialogs = dialogs = ArrivingDialogs(
            brokers=brokers,
            router=router,
            counters=counters,
            spawn=spawn,
            loaded=self._resume_dialog,
            openings=openings,
        )
        self._writer = writer = ArrivalWriter(
            dialogs=dialogs,
            changesets=changesets,
            transmitter=transmitter,
            answers=answers,
            counters=counters,
            memory=memory,
            early=early,
            openings=openings,
            notices=notices,
            security=security,
            admission=admission,
            clock=clock,
            batch=options.batch,
            retries=options.store_retries,
            most_dialogs=options.max_dialogs,
        )
        self._acknowledgements = acknowledgements = Acknowledgements(
            changesets=changesets,
            transmitter=transmitter,
            answers=answers,
            counters=counters,
            clock=clock,
            log=log,
            peer_at=peer_at if options.strict_error_origin else None,
        )
        self._sequencer = Sequencer(
            dialogs=dialogs,
            writer=writer,
            acknowledgements=acknowledgements,
            changesets=changesets,
            transmitter=transmitter,
            answers=answers,
            counters=counters,
            memory=memory,
            early=early,
            openings=openings,
            unsealing=unsealing,
            admission=admission,
            clock=clock,
            mem_dialog=options.mem_dialog,
        )

    @property
    def received(self) -> int:
        """Number of fragments received from the transport (NBT-15)."""
        return self._counters.received

    @property
    def stored(self) -> int:
        """Number of fragments stored (NBT-15)."""
        return self._counters.stored

    @property
    def stored_messages(self) -> int:
        """Number of messages that the stored fragments completed (MON-13)."""
        return self._counters.stored - self._counters.parts

    @property
    def duplicates(self) -> int:
        """Number of fragments that had been received before (NBT-15)."""
        return self._counters.duplicates

    @property
    def dropped(self) -> Counter[str]:
        """Number of fragments dropped, by reason (DSP-13)."""
        return self._counters.dropped

    @property
    def memory_full_at(self) -> Instant | None:
        """Time at which a fragment was last dropped for lack of memory; None = never (DSP-10)."""
        return self._counters.memory_full_at

    @property
    def handlers(self) -> int:
        """Number of task handlers: one, in the event loop, while the instance runs (DSP-6)."""
        return 1

    @property
    def restarts(self) -> int:
        """Number of times that a tick has scheduled a failed run again (DSP-7)."""
        return self._writer.restarts

    @property
    def buffered(self) -> int:
        """Number of fragments in memory."""
        return sum(one.buffered for one in self._dialogs.known.values())

    @property
    def history_lost(self) -> int:
        """Number of dialogs ended because one side had lost its history (REL-15)."""
        return self._acknowledgements.history_lost

    def arrived(self, items: Sequence[Item], neighbour: InstanceId | None = None) -> None:
        """Process the items of one boxcar.

        `neighbour`: the instance that sent the boxcar; None = the items come from this instance."""
        counters, dialogs, durable = self._counters, self._dialogs, self._writer.durable
        known = dialogs.known
        run: _FastRun | None = None
        for item in items:
            opened: Fragment | None = None
            if isinstance(item, Fragment):
                counters.received += 1
                one = known.get((item.conversation_id, item.from_initiator))
                opened = item if type(item) is Fragment else self._unsealing.open_early(one, item)
                if one is not None and opened is not None and _is_ordinary(one, item, opened):
                    if run is None or run.broker is not one.broker:
                        run = self._begin_fast_run(one.broker, run)
                    if run.add(one, opened):
                        if one.neighbour is not neighbour:
                            dialogs.came_from(one, neighbour)
                        if self._ack_log.is_on:
                            self._ack_log.received(one.broker, item, one.live)
                        continue
            # Between `gather` and `join_written` nothing else may join the store
            # (`fastpath/rows.py`), and an item on the general path may.
            if run is not None:
                counters.stored += run.join(durable)
                run = None
            self._take_general_path(item, neighbour, None if opened is item else opened)
        if run is not None:
            counters.stored += run.join(durable)
        self._changesets.finish_all(urgent=False)
        dialogs.release_ended()
        self._memory.check()

    def _take_general_path(
        self, item: Item, neighbour: InstanceId | None, opened: Fragment | None = None
    ) -> None:
        """Pass an item to its dialog; `opened`: a sealed item that was opened before."""
        one = self._dialogs.for_item(item, neighbour)
        if one is None:
            return
        if self._ack_log.is_on:
            self._ack_log.received(one.broker, item, one.live)
        if one.loading:
            self._wait(one, item, neighbour)
        elif opened is not None:
            self._sequencer.sort(one, opened, neighbour)
        else:
            self._sequencer.process(one, item, neighbour)

    def out_of_order(
        self, conversation_id: ConversationId, from_initiator: bool
    ) -> tuple[int, int, int] | None:
        """Return first and last sequence, and last fragment, of the early fragments (VIEW-1).

        None: the dialog has no early fragments."""
        one = self._dialogs.known.get((conversation_id, from_initiator))
        if one is None or one.arrivals is None:
            return None
        return one.arrivals.early_extent

    def drop_broker(self, broker: Broker) -> None:
        """Drop all arrivals in memory for a broker whose delivery is off (DSP-12, DSP-14)."""
        for one in [one for one in self._dialogs.all() if one.broker is broker]:
            if one.arrivals is not None:
                self._memory.size -= one.arrivals.size
                dropped = one.arrivals.drop_run(one.arrivals.sequence, one.arrivals.fragment)
                self._counters.drop(dropped, DropReason.BROKER_DISABLED)
                self._early.update(one)
            self._drop_waiting(one, DropReason.BROKER_DISABLED)
            self._writer.unschedule(one)
            if not one.loading:  # otherwise released once its endpoint is read
                self._dialogs.release(one)
        self._memory.check()

    def purge(self) -> int:
        """Drop fragments that have been early or unprocessed for too long, every tick (DSP-9).

        Reschedule runs that could not be stored (DSP-7, DSP-8). Return the number of dropped
        fragments."""
        self._sequencer.tick += 1
        now = self._clock.monotonic()
        self._dialogs.release_ended()
        self._dialogs.read_more()
        purged = sum(self._purge(one, now) for one in self._dialogs.all())
        self._openings.sweep()
        self._memory.check()
        return purged

    def _purge(self, one: ArrivingDialog, now: float) -> int:
        arrivals, tick, purged = one.arrivals, self._sequencer.tick, 0
        # Only fragments that no task has picked up become stale (DSP-9): a flush or the check of a
        # body may take longer than the limit, and ends by itself.
        taken_up = one.inspecting_now or (arrivals is not None and arrivals.busy)
        if not taken_up and (one.waiting or (arrivals is not None and arrivals.run)):
            if one.idle_since is None:
                one.idle_since = now
        else:
            one.idle_since = None
        if one.idle_since is not None and now - one.idle_since >= self._stale:
            one.idle_since = None
            purged += self._drop_waiting(one, "stale")
            if arrivals is not None and arrivals.run:
                purged += self._writer.drop(one, "stale")
        if arrivals is None or one.loading:
            return purged
        size = arrivals.size
        old = arrivals.purge_early(tick)
        if old:
            self._memory.size -= size - arrivals.size
            self._early.update(one)
            purged += self._counters.drop(old, "out_of_order")
            if one.live is not None and one.live.outgoing is not None:
                one.live.outgoing.acks.dropped(arrivals.ranges())
        self._writer.retry(one)
        if arrivals.is_empty and arrivals.tick < tick - 1:
            self._dialogs.release(one)
        return purged

    def _begin_fast_run(self, broker: Broker, before: _FastRun | None) -> _FastRun:
        """Begin to store arrivals of a broker on the fast path.

        An open changeset that has changed its endpoints is handed over first, to keep the order."""
        if before is not None:
            self._counters.stored += before.join(self._writer.durable)
        if self._changesets.touches_endpoints(broker):
            self._changesets.finish(broker.broker_id, urgent=False)
        return _FastRun(broker, self._sequencer.tick)

    def _wait(self, one: ArrivingDialog, item: Item, neighbour: InstanceId | None) -> None:
        """Keep an item until the endpoint of its dialog is read; refuse it if memory is full."""
        size = weight(item) if isinstance(item, Fragment) else 0
        if size and not self._memory.has_room(size):
            self._counters.refuse(item, MEMORY_FULL, neighbour)
            return
        self._memory.size += size
        one.waiting.append((item, neighbour))

    def _resume_dialog(self, one: ArrivingDialog) -> None:
        """Sort the items that waited while the endpoint of their dialog was being read."""
        if not one.broker.enabled:  # switched off meanwhile
            self._drop_waiting(one, DropReason.BROKER_DISABLED)
            self._dialogs.release(one)
            return
        for item, neighbour in self._no_longer_waiting(one):
            self._sequencer.process(one, item, neighbour)
        self._writer.retry(one)
        self._changesets.finish_all(urgent=False)

    def _drop_waiting(self, one: ArrivingDialog, reason: str) -> int:
        waiting = self._no_longer_waiting(one)
        for item, neighbour in waiting:
            self._counters.refuse(item, reason, neighbour)
        return len(waiting)

    def _no_longer_waiting(self, one: ArrivingDialog) -> list[tuple[Item, InstanceId | None]]:
        waiting, one.waiting = one.waiting, []
        self._memory.size -= sum(weight(item) for item, _ in waiting if isinstance(item, Fragment))
        return waiting


def _is_ordinary(one: ArrivingDialog, sealed: Fragment, item: Fragment) -> bool:
    """Return whether the fast path may try to store a fragment.

    `sealed`: the fragment as it arrived; a plain one is `item` itself.

    It has to be the next one of a known dialog, and its acknowledgement must change nothing."""
    live, arrivals = one.live, one.arrivals
    if live is None or arrivals is None or one.loading or live.gone or not one.is_for(item):
        return False
    if item.sequence != arrivals.sequence or arrivals.fragment or not arrivals.nothing_waits:
        return False
    if not one.broker.options.fast_paths or not ordinary.names_match(live.endpoint, item):
        return False
    if (live.endpoint.security is None) is not (sealed is item):
        return False  # not of the kind of its dialog (SEC-20)
    ack, out = item.ack, live.outgoing
    return ack is None or not (tells(live, ack) or (out is not None and out.pending))


def _publish(
    arrived: list[tuple[Live, QueueRow]],
    batches: list[Batch],
    durable: Callable[[list[Batch]], None],
) -> None:
    """Publish durable messages to their queues, then let them be acknowledged (REL-4, DLP-15)."""
    publish(arrived)
    durable(batches)
