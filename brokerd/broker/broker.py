"""One broker's live state: its objects, endpoints, groups and queues (design D1, D6).

Reads: its store.      Calls: storage; the rest of this package.
Never: routes, opens sockets or starts readers; the listener, a `BrokerEvents`, does that.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Final, Protocol

from brokerd.broker.backlog_source import source_of
from brokerd.broker.checks import CatalogIndex
from brokerd.broker.deadlines import Deadline, PendingTimers
from brokerd.broker.dialog_events import DialogEvent, Lost
from brokerd.broker.dialog_owners import DialogOwners
from brokerd.broker.endpoints import Endpoints
from brokerd.broker.group_members import GroupMembers
from brokerd.broker.inspection import Inspection
from brokerd.broker.options import BrokerOptions
from brokerd.broker.outgoing import Outgoing, OutgoingMemory, Sender
from brokerd.broker.pairs import Pairs
from brokerd.broker.parking import HeldGroups
from brokerd.broker.priorities import PriorityIndex
from brokerd.broker.queue_times import QueueTimes
from brokerd.broker.queues import QueueState
from brokerd.broker.state import Group, Live
from brokerd.broker.store_reads import Spawn, read_until_answered
from brokerd.broker.unfinished import Unfinished
from brokerd.checking.checker import Checker
from brokerd.clock import Clock, Instant
from brokerd.ids import (
    BrokerId,
    ConversationId,
    EndpointKey,
    GroupId,
    Handle,
    IdSource,
    QueueKey,
)
from brokerd.model import Contract, MessageType, Queue, QueueStatus, Service
from brokerd.protocol import dialog
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.transitions import State
from brokerd.storage.changes import HIGHEST_SEQUENCE, OutgoingRemoval
from brokerd.storage.rows.catalog import Catalog
from brokerd.storage.rows.ended_dialogs import LeftOutgoing
from brokerd.storage.store import OutgoingPage, Store

LIFETIMES: Final = "lifetimes"
TIMERS: Final = "timers"
"""The kinds of deadline that may be due (PER-23)."""


class BrokerEvents(Protocol):
    """The listener of a broker: it answers routing questions and receives events."""

    def delivers_here(self, broker: Broker, live: Live, /) -> bool:
        """Return whether a dialog's messages go to a broker of this instance."""
        ...

    def always_here(self, broker: Broker, service: str, /) -> bool:
        """Return whether the routes deliver every new dialog with the service in this broker."""
        ...

    def outgoing_ready(self, broker: Broker, out: Outgoing, /) -> None:
        """Note that a dialog has something to send."""
        ...

    def message_arrived(self, broker: Broker, queue: QueueState, was_empty: bool, /) -> None:
        """Note that a queue has another message ready to be received."""
        ...

    def receive_empty(self, broker: Broker, queue: QueueState, /) -> None:
        """Note that a receive found no message."""
        ...

    def queue_has_room(self, broker: Broker, queue: QueueState, /) -> None:
        """Note that a queue that has refused arrivals is down to half of its limits (REL-42)."""
        ...

    def deadline_due(self, broker: Broker, what: str, /) -> None:
        """Process lifetimes or timers that may have expired (PER-23)."""
        ...

    def dialogs_changed(self, broker: Broker, events: list[DialogEvent], /) -> None:
        """Report events of dialogs, once their changeset is durable (EVT-10)."""
        ...

    def error_lost(self, broker: Broker, lost: Lost, /) -> None:
        """Report an Error message that no program will receive, once that is durable (PBT-4)."""
        ...

    def body_damaged(self, broker: Broker, out: Outgoing, /) -> None:
        """Report that a dialog stops sending, because its next stored body is damaged (REL-6)."""
        ...

    def group_parked(self, broker: Broker, what: str, fields: dict[str, object], /) -> None:
        """Report that a conversation group was parked or delayed, once that is durable."""
        ...

    def queue_poisoned(self, broker: Broker, queue: QueueState, status: QueueStatus, /) -> None:
        """Disable a queue for this reason (PSN-7)."""
        ...


class Broker:
    """A named container of services and queues, with the part of its state that is in memory."""

    is_full = False
    """Whether the disk has too little room for new messages (REL-26)."""
    writes_closing_lines = True
    """Whether a metrics log takes the closing lines of dialogs (D16); if not, none are made."""

    def __init__(  # noqa: PLR0915  # one statement per attribute
        self,
        *,
        store: Store,
        clock: Clock,
        ids: IdSource,
        options: BrokerOptions,
        spawn: Spawn,
        checker: Checker,
        events: BrokerEvents,
        times: Callable[[str, str], QueueTimes],
    ) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self.options = options
        self.name = store.identity.broker_name
        self.broker_id: BrokerId = store.identity.broker_id
        self.enabled = store.identity.is_broker_enabled
        """Whether messages are delivered (OBJ-4); `use_identity` copies it from the store."""
        self.reserved_id: BrokerId | None = None
        """The identifier under which a running operation is about to switch delivery on (OBJ-3)."""
        self.spawn = spawn
        self._delivers_here = events.delivers_here
        self._on_arrival, self._on_empty = events.message_arrived, events.receive_empty
        self._on_room, self._on_outgoing = events.queue_has_room, events.outgoing_ready
        self._times = times
        self.on_lost = partial(events.error_lost, self)
        """Called with an Error that no application will see, once that is durable (PBT-4)."""
        self.inspection = Inspection(limit=options.check_aside, checker=checker)
        """Checks of bodies that would block the event loop for too long."""
        self.message_types: dict[str, MessageType] = {}
        self.contracts: dict[str, Contract] = {}
        self.services: dict[str, Service] = {}
        self.checked_on_send: frozenset[str] = frozenset()
        """Message types with `validate_on_send` (PBT-14)."""
        self.queues: dict[str, QueueState] = {}
        self._nowhere: QueueState | None = None
        self.priorities = PriorityIndex()
        self.catalog_index = CatalogIndex(message_types={}, contracts={}, services={})
        self.groups: dict[GroupId, Group] = {}
        self.transactions = 0
        """Number of transactions begun since the start."""
        self.memory = OutgoingMemory(options.outgoing.memory)
        self.pairs = Pairs()
        self.endpoints = Endpoints(
            capacity=options.endpoints,
            adopt=self._adopt,
            drop=self._drop,
            named=store.endpoints.by_names,
            by_key=store.endpoints.by_keys,
            durable_serial=lambda: store.durable,
            spawn=spawn,
        )
        self.group_members = GroupMembers(
            groups=self.groups, endpoints=self.endpoints, store=store, spawn=spawn
        )
        """The finder of groups, with their endpoints and states, in memory or in the store."""
        self.is_watched = False
        """Whether there is a subscriber to the ordinary life-cycle events of dialogs (EVT-10)."""
        self.on_dialog_events = events.dialogs_changed
        """Called with the life-cycle events of dialogs, once their changeset is durable."""
        self.always_here = partial(events.always_here, self)
        """Whether the current routes deliver every new dialog with a service in this broker."""
        self.sends = self.receives = self.rollbacks = 0
        """Numbers of sends, receives and rolled back transactions since the start (MON-13)."""
        self.lifetimes = Deadline(clock, partial(events.deadline_due, self, LIFETIMES))
        """The timer for the first end of a lifetime (PER-23)."""
        self.timers = PendingTimers(
            Deadline(clock, partial(events.deadline_due, self, TIMERS)), lambda: store.durable
        )
        self.held = HeldGroups(
            store=store,
            endpoints=self.endpoints,
            groups=self.groups,
            queues=self.queues,
            clock=clock,
            spawn=spawn,
        )
        """Groups that wait for their next attempt, or are parked (PBT-3)."""
        self.owners = DialogOwners(
            count=lambda owner: read_until_answered(store.count_owned, owner),
            note=store.note_owners,
            spawn=spawn,
            now=clock.monotonic,
        )
        """The users and peers that have begun dialogs, while their number is limited (REL-45)."""
        self.unfinished = Unfinished(options.unfinished_bytes)
        """Fragments of incomplete messages that are kept in memory (DSP-15)."""
        self.incomplete: dict[EndpointKey, str] = {}
        """Endpoints with an incomplete message, and their services (PBT-20)."""
        self._first_due: tuple[Instant | None, Instant | None] = (None, None)
        self._left_over: list[Outgoing] = []
        """The recovered state from which `resume` continues: the first timer, the first end of a
        lifetime, and the dialogs that have something to send."""
        self.left_rows = 0, 0
        """Leftovers of ended dialogs found at the start: messages in the transmission queue, and
        dialogs with retained messages; all of these rows are being deleted (REL-36)."""
        self.damaged_parts: set[EndpointKey] = set()
        """Endpoints with an incomplete message whose stored fragments fail their hash (REL-6)."""
        self.retains = store.recovered.has_retained
        """Whether messages may be retained, which the end of a dialog has to delete (RCV-32)."""
        self.keeps_states = store.recovered.has_states
        """Whether applications keep states for groups; each is deleted with its group (GRP-2)."""
        self.held.on_parking = partial(events.group_parked, self)
        self.held.on_poisoned = partial(events.queue_poisoned, self)
        self.memory.on_damaged = partial(events.body_damaged, self)
        self.use_catalog(store.catalog)

    def use_identity(self) -> None:
        """Read the identifier and the delivery flag from the store again (MAN-2 to MAN-6).

        The identifier changes only while no endpoint exists and no verb is running."""
        identity = self.store.identity
        self.enabled, self.broker_id = identity.is_broker_enabled, identity.broker_id
        for queue in self.queues.values():
            queue.broker_id = identity.broker_id

    def delivers_under(self, broker_id: BrokerId) -> bool:
        """Return whether the broker delivers under this identifier, or is about to (OBJ-3).

        It is about to if a running operation has reserved the identifier (`reserved_id`)."""
        return broker_id == self.reserved_id or (self.enabled and broker_id == self.broker_id)

    def use_catalog(self, catalog: Catalog) -> None:
        """Replace the objects with those of a catalog; queues keep their messages."""
        self.message_types = dict(catalog.message_types)
        self.contracts = dict(catalog.contracts)
        self.services = dict(catalog.services)
        self.checked_on_send = frozenset(
            one.name for one in catalog.message_types.values() if one.validate_on_send
        )
        self.priorities = PriorityIndex(catalog.priorities.values())
        self.memory.honors_priority = self.store.identity.honor_priority
        self.close_objects()
        for queue in catalog.queues.values():
            state = self.queues.get(queue.name)
            if state is None:
                self.queues[queue.name] = self._queue_state(queue)
            else:
                state.alter(queue)
        self.retains |= any(state.retains for state in self.queues.values())
        for live in self.endpoints.all():
            live.forget_retained()  # the limits may have changed
        for name in [name for name in self.queues if name not in catalog.queues]:
            self.queues.pop(name).line.wake_all()  # waiters find that the queue is gone (RCV-19)

    def close_objects(self, services: Container[str] = (), contracts: Container[str] = ()) -> None:
        """Refuse new dialogs that need one of these objects, which are about to be dropped.

        Without arguments, all objects of the catalog serve again (OBJ-37, OBJ-38)."""
        self.catalog_index = CatalogIndex(
            message_types=self.message_types,
            contracts={k: v for k, v in self.contracts.items() if k not in contracts},
            services={k: v for k, v in self.services.items() if k not in services},
        )

    async def recover(self) -> None:
        """Count the messages that wait in the store just opened, without loading them.

        Nothing is sent or timed before `resume`: a message may be for another broker of this
        instance, which could not find its own dialogs before it has recovered too."""
        self.endpoints.complete = not await self.store.endpoints.page(1)
        by_key = {state.queue.key: state for state in self.queues.values()}
        for queue_key, priority, count, since in self.store.recovered.waiting:
            by_key[queue_key].recovered(priority, count, since)
        self.held.recovered(self.store.recovered.held)
        self.incomplete = dict(await self.store.listings.incomplete())
        for queue_key, endpoint_key in self.store.recovered.timers_fired:
            by_key[queue_key].backlog.fired.add(endpoint_key)
        self.timers.any = self.store.recovered.has_timers
        if self.timers.any:
            await self.store.timers.release()
        self._first_due = (
            await self.store.timers.first_due(),
            await self.store.endpoints.first_expiry(),
        )
        await self._recover_outgoing()

    async def _recover_outgoing(self) -> None:
        """Recover the dialogs with something to send; delete rows no longer needed (REL-36)."""
        outgoing = {key: (count, lowest) for key, count, lowest, _ in self.store.recovered.outgoing}
        found = await read_until_answered(self.store.endpoints.by_keys, list(outgoing))
        left: list[LeftOutgoing] = []
        for key, (count, lowest) in outgoing.items():
            endpoint = found.get(key)
            first = None if endpoint is None else dialog.first_needed(endpoint)
            if endpoint is None or first is None:
                left.append(LeftOutgoing(key, OutgoingRemoval([], HIGHEST_SEQUENCE, count)))
                continue
            not_needed = count - 1 if lowest < first else 0  # all but the Error in their place
            if not_needed:
                left.append(LeftOutgoing(key, OutgoingRemoval([], first - 1, not_needed)))
            out = self.outgoing(self.endpoints.adopt(endpoint))
            out.recovered(count - not_needed, max(lowest, first))
            self._left_over.append(out)
        retained = await self.store.retained.in_ended_conversations() if self.retains else []
        self.left_rows = sum(one.removal.beyond for one in left), len(retained)
        self.store.sweep_left(left, retained)

    def resume(self) -> None:
        """Start sending and timers again, once every broker of the instance has recovered."""
        for deadline, first in zip(
            (self.timers.deadline, self.lifetimes), self._first_due, strict=True
        ):
            if first is not None:
                deadline.at_latest(first)
        left_over, self._left_over = self._left_over, []
        for out in left_over:
            if not out.held:
                self._on_outgoing(self, out)

    def close_deadlines(self) -> None:
        """Stop all deadlines: the store is about to close."""
        self.lifetimes.close()
        self.timers.deadline.close()
        self.held.close()

    def validation_code(self, message_type: str) -> str:
        """Return the validation code of a message type as it is declared now (RCV-29)."""
        kind = self.message_types.get(message_type)
        return "N" if kind is None else kind.validation.code

    @property
    def own_queues(self) -> list[QueueState]:
        """The declared queues; views do not show the broker's internal ones."""
        return [state for state in self.queues.values() if not state.is_system]

    # Endpoints.

    def new_initiator(
        self,
        *,
        handle: Handle,
        service: Service,
        contract: Contract,
        far_service: str,
        far_broker: BrokerId | None,
        group_id: GroupId | None,
        encryption: bool,
        lifetime: int,
        now: Instant,
        error_queue: str | None = None,
    ) -> Live:
        """Create the initiator's endpoint in memory; the dialog's changeset inserts its row."""
        endpoint = DialogEndpoint(
            key=self.store.next_endpoint_key(),
            handle=handle,
            conversation_id=ConversationId(self.ids.fresh()),
            is_initiator=True,
            service=service.name,
            contract=contract.name,
            far_service=far_service,
            encryption=encryption,
            began_at=now,
            expires_at=Instant(now + lifetime * 1_000_000),
            priority=self.priorities.level(contract.name, service.name, far_service),
            group_id=group_id or GroupId(self.ids.fresh()),
            state=State.STARTED_OUTBOUND,
            far_broker=far_broker,
            state_since=now,
            error_queue=error_queue,
        )
        return self._take_in(endpoint, alone=group_id is None)

    def new_target(
        self,
        *,
        conversation_id: ConversationId,
        service: str,
        contract: str,
        far_service: str,
        far_broker: BrokerId,
        expires_at: Instant,
        now: Instant,
        state: State = State.STARTED_INBOUND,
    ) -> Live:
        """Create a target endpoint in memory, before the step for its first message (DLP-37)."""
        endpoint = DialogEndpoint(
            key=self.store.next_endpoint_key(),
            handle=Handle(self.ids.fresh()),
            conversation_id=conversation_id,
            is_initiator=False,
            service=service,
            contract=contract,
            far_service=far_service,
            encryption=False,
            began_at=now,
            expires_at=expires_at,
            priority=self.priorities.level(contract, service, far_service),
            group_id=GroupId(self.ids.fresh()),
            state=state,
            far_broker=far_broker,
            bound=True,
            state_since=now,
        )
        return self._take_in(endpoint, alone=True)

    def forget(self, live: Live) -> None:
        """Drop an endpoint that was removed, or never committed."""
        live.removed()
        self.endpoints.remove(live)
        self._drop(live)

    def delivers_directly(self, live: Live, sequence: int) -> bool:
        """Return whether this message of a dialog can be delivered inside this broker now (SND-14).

        The first message decides whether the dialog is local, and notes that in `is_local`."""
        if not self.enabled:
            return False
        if not live.is_local:
            if sequence or not live.endpoint.is_initiator:
                return False
            missing = live.endpoint.far_service not in self.services
            pinned_here = live.endpoint.far_broker == self.broker_id
            if not (missing and pinned_here) and not self._delivers_here(self, live):
                return False  # a service that a pinned broker lacks is refused immediately (DLG-6)
            live.set_local(True)
        if not live.delivers_directly():
            return False
        # No target endpoint exists yet: the message would open one in the queue of its service.
        if live.peer is None and sequence == 0:
            service = self.services.get(live.endpoint.far_service)
            return service is None or self.queues[service.queue].queue.enqueue_enabled
        return True

    def outgoing(self, live: Live) -> Outgoing:
        """Return the transmission state of an endpoint; create it at its first use (XMT-3)."""
        if live.outgoing is None:
            live.outgoing = Outgoing(
                live,
                options=self.options.outgoing,
                memory=self.memory,
                incarnation=self.store.identity.incarnation,
                going=self.pairs.between(
                    live.endpoint.service, live.endpoint.far_service, live.endpoint.contract
                ),
                page=self._page_outgoing,
                spawn=self.spawn,
                ready=partial(self._on_outgoing, self),
            )
        return live.outgoing

    def _take_in(self, endpoint: DialogEndpoint, *, alone: bool) -> Live:
        live = self._adopt(endpoint, is_new=True)
        self.lifetimes.at_latest(endpoint.expires_at)
        if alone or self.endpoints.complete:
            live.group.mark_whole()
        self.endpoints.add(live)
        return live

    def _adopt(self, endpoint: DialogEndpoint, *, is_new: bool = False) -> Live:
        queue = self._queue_of(endpoint.service)
        if endpoint.error_queue:  # the service's queue, if the error queue was dropped
            queue = self.queues.get(endpoint.error_queue, queue)
        group = self.groups.get(endpoint.group_id)
        if group is None:
            group = Group(endpoint.group_id, endpoint.service, queue)
            self.groups[endpoint.group_id] = group
            if self.held.by_id:
                held = self.held.holding(endpoint.group_id)
                if held is not None:
                    group.hold(held)
        local = (
            endpoint.bound
            and endpoint.far_broker == self.broker_id
            and endpoint.state is not State.CLOSED  # it was not local if kept (DLG-33)
        )
        contract = self.contracts.get(endpoint.contract) or Contract(endpoint.contract, {})
        live = Live(
            endpoint,
            group=group,
            queue=queue,
            contract=contract,
            coming=self.pairs.between(endpoint.far_service, endpoint.service, endpoint.contract),
            is_local=local,
            beyond=None if queue.beyond and not is_new else 0,  # None = not counted yet
        )
        group.members[endpoint.key] = live
        if local:
            peer = self.endpoints.find_conversation(
                endpoint.conversation_id, not endpoint.is_initiator
            )
            if peer is not None:
                live.pair_with(peer)
        return live

    def _queue_of(self, service: str) -> QueueState:
        """Return the queue of a service.

        A dropped service has none: its closed endpoints that were being read when it was dropped
        get a placeholder queue without a name."""
        known = self.services.get(service)
        if known is not None:
            return self.queues[known.queue]
        if self._nowhere is None:
            self._nowhere = self._queue_state(Queue(QueueKey(0), ""))
        return self._nowhere

    def _drop(self, live: Live) -> None:
        live.outgoing = None  # breaks a reference cycle, which would live until a collection
        group = live.group
        group.members.pop(live.endpoint.key, None)
        if live.gone:
            group.lost_member()
            if group.group_id in self.held.by_id:
                self._release_if_over(group)
        else:
            self.group_members.evicted(group)
        self.tidy(group)
        live.unpair()

    # Groups.

    def closed(self, live: Live) -> None:
        """Note that an endpoint is closed, kept for the guard time, and has nothing waiting."""
        self.endpoints.closed(live)
        if live.group.group_id in self.held.by_id:
            self._release_if_over(live.group)

    def _release_if_over(self, group: Group) -> None:
        """Stop holding a group without an open dialog, because no operator could release it."""
        if not group.whole:
            self.spawn(self._read_and_release(group))
        elif all(one.endpoint.state is State.CLOSED for one in group.members.values()):
            self.held.gone(group)

    async def _read_and_release(self, group: Group) -> None:
        if not await self.group_members.open_members(group.group_id):
            self.held.gone(group)

    def tidy(self, group: Group) -> None:
        """Drop a group that has no endpoint in memory, no lock holder and no waiter (GRP-2)."""
        if group.members or group.holder is not None or group.line:
            return
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            group.queue.aside.discard(group)

    # Reading.

    def _queue_state(self, queue: Queue) -> QueueState:
        store = self.store
        return QueueState(
            queue,
            broker_id=self.broker_id,
            options=self.options.window,
            source=source_of(
                store,
                queue.key,
                complete_groups=self.group_members.complete_groups,
                hold=self.endpoints.hold,
                damaged=self.held.damaged,
                members=self.group_members.members,
                spawn=self.spawn,
            ),
            on_arrival=partial(self._on_arrival, self),
            on_empty=partial(self._on_empty, self),
            on_room=partial(self._on_room, self),
            behind=store.behind,
            times=self._times(self.name, queue.name),
            now=self.clock.monotonic,
            utc=self.clock.utc,
        )

    async def _page_outgoing(self, live: Sender, after: int, limit: int, size: int) -> OutgoingPage:
        return await read_until_answered(
            self.store.outgoing.page, live.endpoint.key, after, limit, size
        )
