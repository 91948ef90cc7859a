"""Message dispatcher: arrivals for us -> dialog step -> queue, then the ack (DSP).

Reads:  items of boxcars, endpoints of the brokers.   Calls: routes, broker.rounds, transmitter.
Never:  acknowledges before the commit (DLP-15), or keeps anything durable of its own (DSP-14).
Wakes:  on arrival; a round takes what waits of all dialogs in one changeset a broker (DSP-3).
Fails:  a dialog that cannot be stored is left out and comes again; the others go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from brokerd.broker import checks
from brokerd.broker.blocked import Blocked
from brokerd.broker.broker import Broker
from brokerd.broker.endpoints import Live, Spawn
from brokerd.broker.queues import publish
from brokerd.broker.rounds import Round
from brokerd.broker.transmission import WHOLE
from brokerd.clock import Clock, later
from brokerd.delivery.answers import LooseAnswers
from brokerd.delivery.arrivals import Arrivals, weight
from brokerd.delivery.in_order import InOrder
from brokerd.delivery.routes import Router
from brokerd.delivery.transmitter import Transmitter
from brokerd.ids import BrokerId, ConversationId, show
from brokerd.logs import MESSAGE_UNDELIVERABLE
from brokerd.protocol import dialog
from brokerd.protocol.frames import END, ERROR, Ack, AckOnly, BrokerErrorItem, Fragment, Item
from brokerd.protocol.transitions import State
from brokerd.routing.classify import Dropped, Local
from brokerd.routing.reasons import DropReason
from brokerd.storage.changes import QueueRow


class Log(Protocol):
    """Where events go (MON)."""

    def info(self, event: str, **fields: object) -> object:
        """Something an operator may want to know."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Something is wrong."""
        ...

    def debug(self, event: str, **fields: object) -> object:
        """What happens once per message."""
        ...


class DispatcherOptions(msgspec.Struct, frozen=True):
    """Figures of the receiving side (DSP-3, DSP-10)."""

    batch: int = 256
    mem_low: int = 32 * 1024 * 1024
    mem_high: int = 64 * 1024 * 1024
    mem_hard: int = 96 * 1024 * 1024
    mem_dialog: int = 8 * 1024 * 1024


Key = tuple[ConversationId, bool]
"""Conversation, and whether it comes from the initiator."""


class _Dialog:
    """What the dispatcher knows of one direction of one dialog while fragments of it are here."""

    __slots__ = ("arrivals", "broker", "key", "live", "loading", "waiting")

    def __init__(self, broker: Broker, key: Key) -> None:
        self.broker = broker
        self.key = key
        self.live: Live | None = None
        self.arrivals: Arrivals | None = None
        self.loading = False
        self.waiting: list[Item] = []


_Batch = tuple[_Dialog, Live, list[Fragment], int]
"""What is being stored of one dialog, and how many fragments were taken for it."""


class _Straight:
    """Arrivals of one broker that are stored without a round (`in_order.py`)."""

    __slots__ = ("_batches", "_run", "_tick", "broker")

    def __init__(self, broker: Broker, tick: int) -> None:
        self.broker = broker
        self._run = InOrder(broker)
        self._tick = tick
        self._batches: list[_Batch] = []

    def take(self, one: _Dialog, item: Fragment) -> bool:
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

    def join(self, durable: Callable[[list[_Batch]], None]) -> int:
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
    ) -> None:
        self._brokers = brokers
        self._router = router
        self._transmitter = transmitter
        self._answers = answers
        self._clock = clock
        self._options = options
        self._spawn = spawn
        self._log = log
        self._pause = pause
        self._resume = resume
        self._notice = notice
        self._dialogs: dict[Key, _Dialog] = {}
        self._due: dict[Key, _Dialog] = {}
        self._scheduled = False
        self._rounds: dict[BrokerId, Round] = {}
        self._size = 0
        self._paused = False
        self._tick = 0
        self.received = self.stored = self.duplicates = 0
        """Fragments: taken from the transport, stored, had already (NBT-15)."""
        self.dropped: Counter[str] = Counter()
        """Fragments dropped, by reason (DSP-13)."""

    @property
    def buffered(self) -> int:
        """Fragments in memory."""
        return sum(
            len(one.waiting) + (len(one.arrivals.run) + one.arrivals.early if one.arrivals else 0)
            for one in self._dialogs.values()
        )

    # Items come in.

    def arrived(self, items: list[Item]) -> None:
        """Take the items of one boxcar."""
        straight: _Straight | None = None
        for item in items:
            if type(item) is Fragment:
                self.received += 1
                one = self._dialogs.get((item.conversation_id, item.from_initiator))
                if one is not None and _may_go_straight(one, item):
                    if straight is None or straight.broker is not one.broker:
                        straight = self._go_straight(one.broker, straight)
                    if straight.take(one, item):
                        continue
            if straight is not None:
                self.stored += straight.join(self._durable)
                straight = None
            one = self._dialog(item)
            if one is None:
                continue
            if one.loading:
                one.waiting.append(item)
            else:
                self._item(one, item)
        if straight is not None:
            self.stored += straight.join(self._durable)
        self._finish_rounds(urgent=False)
        self._check_memory()

    def _go_straight(self, broker: Broker, before: _Straight | None) -> _Straight:
        """Begin to store arrivals without a round; what a round has changed comes first."""
        if before is not None:
            self.stored += before.join(self._durable)
        round_ = self._rounds.get(broker.broker_id)
        if round_ is not None and round_.touches_endpoints:
            self._finish_round(broker.broker_id, urgent=False)
        return _Straight(broker, self._tick)

    def _dialog(self, item: Item) -> _Dialog | None:
        key = (item.conversation_id, item.from_initiator)
        one = self._dialogs.get(key)
        if one is not None:
            return one
        broker = self._locate(item)
        if broker is None:
            return None
        one = self._dialogs[key] = _Dialog(broker, key)
        self._find(one)
        return one

    def _locate(self, item: Item) -> Broker | None:
        """The broker that holds, or is to hold, this side of the dialog (DSP-4, RTE-32)."""
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
        self._drop(item, reason)
        return None

    def out_of_order(
        self, conversation_id: ConversationId, from_initiator: bool
    ) -> tuple[int, int, int] | None:
        """First and last sequence, and last fragment, of what is held early (VIEW-1)."""
        one = self._dialogs.get((conversation_id, from_initiator))
        if one is None or one.arrivals is None:
            return None
        return one.arrivals.early_extent

    def let_go(self, broker: Broker) -> None:
        """Drop what is here for a broker whose delivery is off (DSP-12, DSP-14)."""
        for one in [one for one in self._dialogs.values() if one.broker is broker]:
            if one.arrivals is not None:
                self._size -= one.arrivals.size
                dropped = one.arrivals.drop_run(one.arrivals.sequence, one.arrivals.fragment)
                self.dropped[DropReason.BROKER_DISABLED] += dropped
            waiting, one.waiting = one.waiting, []
            for item in waiting:
                self._drop(item, DropReason.BROKER_DISABLED)
            self._due.pop(one.key, None)
            if not one.loading:  # else it is let go once it is read
                self._let_go(one)
        self._check_memory()

    def _find(self, one: _Dialog) -> None:
        """Learn the endpoint; while it is read from the store, what arrives waits."""
        found = one.broker.endpoints.look_up_conversation(one.key[0], not one.key[1])
        if isinstance(found, Blocked):
            one.loading = True
            found.then(lambda: self._found(one))
            return
        one.loading = False
        self._hold(one, found)
        if found is None:
            one.arrivals = Arrivals(0, 0)
            return
        endpoint = found.endpoint
        one.arrivals = Arrivals(endpoint.receive_sequence, endpoint.receive_fragment)
        if endpoint.receive_fragment and not found.parts:
            one.loading = True
            self._spawn(self._load_parts(one, found))

    def _hold(self, one: _Dialog, live: Live | None) -> None:
        """Know the endpoint from now on; what is known here must not leave memory unnoticed."""
        if one.live is not None:
            one.live.pins -= 1
        one.live = live
        if live is not None:
            live.pins += 1
            one.broker.outgoing(live)  # says what is durable, so it is made before the first step

    def _let_go(self, one: _Dialog) -> None:
        """Forget a dialog of which nothing is here any more."""
        self._hold(one, None)
        self._dialogs.pop(one.key, None)

    def _found(self, one: _Dialog) -> None:
        self._find(one)
        if not one.loading:
            self._go_on(one)

    async def _load_parts(self, one: _Dialog, live: Live) -> None:
        """After a restart: the stored fragments of the message that is not complete (DLP-11)."""
        parts = await one.broker.store.parts(live.endpoint.key)
        if not live.parts:
            live.parts.extend(part.body for part in parts)
        one.loading = False
        self._go_on(one)

    def _go_on(self, one: _Dialog) -> None:
        waiting, one.waiting = one.waiting, []
        if not one.broker.enabled:  # switched off meanwhile
            for item in waiting:
                self._drop(item, DropReason.BROKER_DISABLED)
            self._let_go(one)
            return
        for item in waiting:
            self._item(one, item)
        self._finish_rounds(urgent=False)

    def _item(self, one: _Dialog, item: Item) -> None:
        if one.live is not None and one.live.gone:
            self._hold(one, None)
            one.arrivals = Arrivals(0, 0)
        match item:
            case Fragment():
                if item.ack is not None and one.live is not None:
                    self._acknowledged(one.broker, one.live, item.ack)
                self._fragment(one, item)
            case AckOnly():
                if one.live is not None:
                    self._acknowledged(one.broker, one.live, item.ack)
                elif not item.from_initiator:
                    self._answers.settled(one.broker, item)  # DLP-57
            case BrokerErrorItem():
                if one.live is not None:
                    self._errored(one, one.live, item)

    # Fragments.

    def _fragment(self, one: _Dialog, item: Fragment) -> None:
        """Sort one fragment: store soon, hold, acknowledge again, or refuse (DLP-48)."""
        arrivals, live = one.arrivals, one.live
        assert arrivals is not None
        if live is None and not self._may_open(one, item):
            return
        if live is not None and live.endpoint.state in _OVER and not self._is_repeat(live, item):
            self.dropped["over"] += 1
            self._undeliverable(one.broker, item, live, "the dialog is over at this side")
            self._refuse(one.broker, live, dialog.PEER_GONE, "the dialog is over at this side")
            return
        place = arrivals.place(item)
        if place < 0:
            self._repeat(one, item)
        elif item.flags & ERROR and (live is not None or item.sequence):
            self._application_error(one, item)
        elif place == 0:
            arrivals.append(item)
            self._grow(weight(item))
            self._schedule(one)
        elif arrivals.size + weight(item) > self._options.mem_dialog:
            self._drop(item, "dialog_memory")
        else:
            if arrivals.keep_early(item, self._tick):
                self._grow(weight(item))
            else:
                self.duplicates += 1
            self._note_gap(one)
        arrivals.tick = self._tick

    def _may_open(self, one: _Dialog, item: Fragment) -> bool:
        """For a dialog without an endpoint here: whether the fragment can begin one (DLP-48)."""
        settled = item.ack is not None and item.ack.first_acked
        # It may be for an identifier that this broker had before (MAN-6).
        former = item.hop.to_broker not in (b"", one.broker.broker_id)
        if item.from_initiator and not settled and not former:
            return True
        if item.flags & (END | ERROR):
            self.duplicates += 1
            self._answers.acknowledge(one.broker, item)
        else:
            self.dropped["unknown_conversation"] += 1
            self._answers.refuse(one.broker, item, dialog.PEER_GONE, "no such dialog is open here")
        self._let_go(one)
        return False

    def _is_repeat(self, live: Live, item: Fragment) -> bool:
        return item.sequence < live.endpoint.receive_sequence

    def _repeat(self, one: _Dialog, item: Fragment) -> None:
        """It is stored already, or about to be: acknowledge again, at once (DLP-19, DLP-33)."""
        self.duplicates += 1
        if one.live is not None:
            out = one.broker.outgoing(one.live)
            if (item.sequence, item.fragment) <= (out.stored_sequence, out.stored_fragment):
                self._transmitter.owe_ack(one.broker, out, 1, at_once=True)

    def _note_gap(self, one: _Dialog) -> None:
        if one.live is not None and one.arrivals is not None:
            out = one.broker.outgoing(one.live)
            out.held_ranges = one.arrivals.ranges()
            out.highest_seen = max(out.highest_seen, one.arrivals.highest_seen)
            if out.stored_sequence >= 0:
                self._transmitter.owe_ack(one.broker, out, 1, at_once=False)

    def _application_error(self, one: _Dialog, item: Fragment) -> None:
        """An Error overtakes: it is taken whatever gaps exist (DLG-30)."""
        code, text = _read_error(item.body)
        round_ = self._round(one.broker)
        live = one.live
        if live is None:  # message 0 was withdrawn: keep a tombstone (DLG-T30)
            live = self._new_target(one, item, State.CLOSED)
            closed = msgspec.structs.replace(
                live.endpoint,
                receive_sequence=item.sequence + 1,
                far_end_sequence=item.sequence,
                error_code=code,
                error_text=text,
                purge_at=later(self._clock.utc(), one.broker.options.replay_guard),
            )
            live.endpoint = closed
            round_.create(live)
        else:
            round_.step(live, dialog.ErrorReceived(code, text, item.sequence))
        assert one.arrivals is not None
        self._size -= one.arrivals.size
        dropped = one.arrivals.drop_run(item.sequence + 1, 0)
        self.dropped["after_error"] += dropped
        self.stored += 1
        self._finish_rounds(urgent=True, then=lambda: self._stored(one, live, [item]))

    def _refuse(self, broker: Broker, live: Live, code: int, text: str) -> None:
        """Answer with an error made by this broker; in ER, its own again if it made one."""
        made = live.endpoint.error_code
        if live.endpoint.state is State.ERROR and made is not None and made < 0:
            code, text = checks.told(made), live.endpoint.error_text or ""
        self._transmitter.refuse(broker, broker.outgoing(live), code, text)

    # Storing.

    def _schedule(self, one: _Dialog) -> None:
        assert one.arrivals is not None
        if not one.arrivals.busy:
            self._due[one.key] = one
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._store)

    def _store(self) -> None:
        """Store what waits, of as many dialogs as there are, in one changeset a broker (DSP-3)."""
        self._scheduled = False
        due, self._due = self._due, {}
        stored: dict[BrokerId, list[_Batch]] = {}
        for one in due.values():
            run = self._batch(one)
            if not run:
                continue
            taken = len(run)
            live = self._step(one, run)
            if live is not None:
                stored.setdefault(one.broker.broker_id, []).append((one, live, run, taken))
        for broker_id, batches in stored.items():
            self._finish_round(broker_id, urgent=True, then=partial(self._durable, batches))
        self._finish_rounds(urgent=True)

    def _batch(self, one: _Dialog) -> list[Fragment]:
        arrivals = one.arrivals
        if arrivals is None or arrivals.busy or not arrivals.run:
            return []
        service = arrivals.run[0].to_service
        if one.live is not None:
            queue = one.live.queue
        else:
            known = one.broker.services.get(service)
            if known is None:
                return self._taken(arrivals)
            queue = one.broker.queues[known.queue]
        if queue.queue.enqueue_enabled:
            return self._taken(arrivals)
        self._reject_run(one, "peer_queue_disabled")  # DSP-11: kept by its sender
        return []

    def _taken(self, arrivals: Arrivals) -> list[Fragment]:
        size = arrivals.size
        run = arrivals.take_run(self._options.batch)
        self._size -= size - arrivals.size
        return run

    def _reject_run(self, one: _Dialog, reason: str) -> None:
        """Neither stored nor acknowledged; the sender is told why and keeps it."""
        arrivals = one.arrivals
        assert arrivals is not None
        first = arrivals.run[0]
        endpoint = one.live.endpoint if one.live is not None else None
        expected = (endpoint.receive_sequence, endpoint.receive_fragment) if endpoint else (0, 0)
        self._size -= arrivals.size
        self.dropped[reason] += arrivals.drop_run(*expected)
        if one.live is not None and one.live.outgoing is not None:
            one.live.outgoing.held_ranges = ()
        self._notice(first.conversation_id, first.from_initiator, first.sequence, reason)

    def _step(self, one: _Dialog, run: list[Fragment]) -> Live | None:
        """Step the endpoint with a run; None when it was refused and nothing is kept."""
        round_ = self._round(one.broker)
        live, first = one.live, run[0]
        if live is None:
            refusal = self._refuse_opening(one, first)
            if refusal is not None:
                self.dropped["refused"] += len(run)
                self._undeliverable(one.broker, first, None, refusal[1])
                self._answers.refuse(one.broker, first, *refusal)
                self._let_go(one)
                return None
            live = self._new_target(one, first, State.STARTED_INBOUND)
            self._hold(one, live)
            round_.create(live)
        good, refusal = self._check(one, live, run)
        if good:
            outcome = round_.step(
                live, dialog.FragmentsReceived(good, one.broker.options.replay_guard)
            )
            for effect in outcome.effects:
                if isinstance(effect, dialog.Refuse):
                    self._refuse(one.broker, live, effect.code, effect.description)
                elif isinstance(effect, dialog.Anomaly):
                    self._undeliverable(one.broker, first, live, effect.what)
        if refusal is not None:  # both sides are errored (DLG-43)
            self._undeliverable(one.broker, run[len(good)], live, refusal[1])
            round_.step(live, dialog.FaultStruck(*checks.struck(refusal)))
            self._refuse(one.broker, live, *refusal)
            run[:] = good
        self.stored += len(run)
        return live

    def _refuse_opening(self, one: _Dialog, first: Fragment) -> checks.Refusal | None:
        return checks.refuse_dialog(
            one.broker.catalog_index,
            service=first.to_service,
            contract=first.contract,
            message_type=first.message_type,
            body=first.body,
            expires_at=first.expires_at,
            now=self._clock.utc(),
            whole=first.fragments == 1,
        )

    def _check(
        self, one: _Dialog, live: Live, run: list[Fragment]
    ) -> tuple[list[Fragment], checks.Refusal | None]:
        """The part of the run that may be stored, and why the rest may not (OBJ-29)."""
        known = one.broker.message_types
        for at, item in enumerate(run):
            if item.flags:
                continue
            if item.fragments > 1 and not item.fragment:  # a cut message has full fragments first
                size = item.fragments * len(item.body)
                if size - len(item.body) >= one.broker.options.max_message:
                    text = f"about {size} bytes are more than this broker takes"
                    return run[:at], (checks.TOO_LARGE, text)
            body, whole = item.body, item.fragments == 1
            if not whole and item.fragment + 1 == item.fragments:
                whole = checks.needs_whole(known, item.message_type)
                body = _joined(live, run[: at + 1]) if whole else body
            refusal = checks.refuse_message(
                live.contract,
                item.message_type,
                body,
                known=known,
                from_initiator=item.from_initiator,
                whole=whole,
            )
            if refusal is not None:
                return run[:at], refusal
        return run, None

    def _new_target(self, one: _Dialog, first: Fragment, state: State) -> Live:
        live = one.broker.new_target(
            conversation_id=first.conversation_id,
            service=first.to_service,
            contract=first.contract,
            far_service=first.from_service,
            far_broker=first.from_broker,
            expires_at=first.expires_at,
            now=self._clock.utc(),
            state=state,
        )
        one.broker.outgoing(live)
        return live

    def _durable(self, batches: list[_Batch]) -> None:
        for one, live, run, taken in batches:
            assert one.arrivals is not None
            one.arrivals.stored(taken)
            self._stored(one, live, run)
            if one.arrivals.run:
                self._schedule(one)
        self._check_memory()

    def _stored(self, one: _Dialog, live: Live, run: list[Fragment]) -> None:
        """The commit is through: now, and only now, it may be acknowledged (DLP-15)."""
        if live.gone:
            if run:
                self._answers.acknowledge(one.broker, run[-1])
            return
        out = one.broker.outgoing(live)
        if one.arrivals is not None:
            out.held_ranges = one.arrivals.ranges()
            out.highest_seen = max(out.highest_seen, one.arrivals.highest_seen)
        if not run:
            return
        last = run[-1]
        out.stored_sequence = last.sequence
        out.stored_fragment = last.fragment if last.fragment + 1 < last.fragments else WHOLE
        at_once = run[0].sequence == 0 or any(item.flags for item in run)
        self._transmitter.owe_ack(one.broker, out, len(run), at_once=at_once)

    # Acknowledgements and errors.

    def _acknowledged(self, broker: Broker, live: Live, ack: Ack) -> None:
        """Turn an acknowledgement block into `AckReceived`, and let its rows go (DLP-20)."""
        endpoint = live.endpoint
        out = live.outgoing
        if _tells(live, ack):
            outcome = self._round(broker).step(
                live, dialog.AckReceived(ack, broker.options.replay_guard)
            )
            for effect in outcome.effects:
                if isinstance(effect, dialog.Refuse):
                    self._answers.refuse_ack(broker, live, ack, effect.code, effect.description)
                    return
                if isinstance(effect, dialog.Anomaly):
                    self._log.warning(
                        "broker.message_undeliverable",
                        subclass="unsequenced",
                        reason=effect.what,
                        conversation_id=endpoint.conversation_id.hex(),
                    )
                    return
            if live.gone and endpoint.is_initiator and (out is None or not out.settled_flag):
                self._answers.settle(broker, live, ack)
        if out is None:
            return
        out.peer_holds = ack.ranges
        rows = out.window.acknowledge(
            ack.sequence, ack.fragment, ack.highest_seen, ack.ranges, self._clock.monotonic()
        )
        if rows:
            out.acknowledged(rows)
            self._round(broker).acknowledge([row.transmission_order for row in rows])
        if not live.gone:
            self._transmitter.acknowledged(broker, out)
            if endpoint.is_initiator and not endpoint.first_acked and live.endpoint.first_acked:
                self._transmitter.owe_ack(broker, out, 0, at_once=False)  # DLP-57

    def _errored(self, one: _Dialog, live: Live, item: BrokerErrorItem) -> None:
        """An error made by a broker: unsequenced, taken on arrival (DLG-30)."""
        outcome = self._round(one.broker).step(
            live, dialog.ErrorReceived(item.code, item.description)
        )
        if any(isinstance(effect, dialog.Anomaly) for effect in outcome.effects):
            return
        if live.outgoing is not None and live.endpoint.state is State.ERROR:
            live.outgoing.held = "held_after_error"

    # Rounds.

    def _round(self, broker: Broker) -> Round:
        round_ = self._rounds.get(broker.broker_id)
        if round_ is None:
            round_ = self._rounds[broker.broker_id] = Round(broker, self._clock.utc())
        return round_

    def _finish_rounds(self, *, urgent: bool, then: Callable[[], None] | None = None) -> None:
        for broker_id in list(self._rounds):
            self._finish_round(broker_id, urgent=urgent, then=then)

    def _finish_round(
        self, broker_id: BrokerId, *, urgent: bool, then: Callable[[], None] | None = None
    ) -> None:
        round_ = self._rounds.pop(broker_id, None)
        if round_ is None:
            if then is not None:
                then()
            return
        if round_.empty and then is None:
            return
        round_.join(then or _nothing, urgent=urgent or round_.touches_endpoints)

    # Memory and passes.

    def _grow(self, size: int) -> None:
        self._size += size

    def _check_memory(self) -> None:
        if not self._paused and self._size > self._options.mem_high:
            self._paused = True
            self._pause()
        elif self._paused and self._size < self._options.mem_low:
            self._paused = False
            self._resume()

    def purge(self) -> int:
        """Every tick: drop what has been early or unwanted for too long (DSP-9)."""
        self._tick += 1
        purged = 0
        for one in list(self._dialogs.values()):
            arrivals = one.arrivals
            if arrivals is None or one.loading:
                continue
            size = arrivals.size
            dropped = arrivals.purge_early(self._tick)
            self._size -= size - arrivals.size
            self.dropped["out_of_order"] += dropped
            purged += dropped
            if one.live is not None and dropped and one.live.outgoing is not None:
                one.live.outgoing.held_ranges = arrivals.ranges()
            if arrivals.is_empty and arrivals.tick < self._tick - 1:
                self._let_go(one)
        self._check_memory()
        return purged

    def _undeliverable(
        self, broker: Broker, item: Fragment, live: Live | None, reason: str
    ) -> None:
        """Say that a message for us cannot be put on its queue, and why (EVT-10)."""
        out = live.outgoing if live is not None else None
        self._log.warning(
            MESSAGE_UNDELIVERABLE,
            subclass="sequenced",
            broker=broker.name,
            conversation_id=show(item.conversation_id),
            handle=show(live.endpoint.handle) if live is not None else None,
            role="target" if item.from_initiator else "initiator",
            message_type=item.message_type,
            sequence=item.sequence,
            fragment=item.fragment,
            last_acked_sequence=out.stored_sequence if out is not None else -1,
            last_acked_fragment=out.stored_fragment if out is not None else -1,
            reason=reason,
        )

    def _drop(self, item: Item, reason: str) -> None:
        if type(item) is Fragment:
            self.dropped[reason] += 1
            self._notice(item.conversation_id, item.from_initiator, item.sequence, reason)
        self._log.debug(
            "broker.message_undeliverable",
            subclass="sequenced" if type(item) is Fragment else "unsequenced",
            reason=reason,
            conversation_id=item.conversation_id.hex(),
            to_service=item.to_service,
        )


_OVER = frozenset({State.CLOSED, State.ERROR})


def _may_go_straight(one: _Dialog, item: Fragment) -> bool:
    """Whether a fragment is the next of a known dialog, and its ack says nothing that counts."""
    live, arrivals = one.live, one.arrivals
    if live is None or arrivals is None or one.loading or live.gone:
        return False
    if item.sequence != arrivals.sequence or arrivals.fragment or not arrivals.nothing_waits:
        return False
    ack, out = item.ack, live.outgoing
    return ack is None or not (_tells(live, ack) or (out is not None and out.pending))


def _tell(
    arrived: list[tuple[Live, QueueRow]],
    batches: list[_Batch],
    durable: Callable[[list[_Batch]], None],
) -> None:
    """They are durable: queues learn it, and then it may be acknowledged (REL-4, DLP-15)."""
    publish(arrived)
    durable(batches)


def _joined(live: Live, run: list[Fragment]) -> bytes:
    """The body of the message that the run ends with; its first parts may be stored already."""
    last = run[-1]
    here = [item.body for item in run if item.sequence == last.sequence]
    stored = live.parts if len(here) < last.fragments else ()
    return b"".join((*stored, *here))


def _tells(live: Live, ack: Ack) -> bool:
    """Whether an ack says something the endpoint does not know yet."""
    endpoint = live.endpoint
    return (
        not endpoint.bound
        or endpoint.far_broker != ack.broker_id
        or (endpoint.is_initiator and not endpoint.first_acked and ack.sequence >= 0)
        or (not endpoint.is_initiator and ack.first_acked and not endpoint.first_acked)
        or endpoint.state is State.DISCONNECTED_OUTBOUND
        or ack.sequence >= endpoint.send_sequence
    )


def _read_error(body: bytes) -> tuple[int, str]:
    """Code and description of an application's Error (DLG-29); hostile bytes give a plain one."""
    try:
        value = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 1, "the error message of the other side cannot be read"
    return value.code, value.description[:3000]


class _ErrorBody(msgspec.Struct):
    code: int
    description: str = ""


def _nothing() -> None:
    """Nobody waits for it."""
