"""Parts: the parts of one instance, and the calls they make to each other.

Siblings never import each other (design, The code): they meet here, in short methods that one part
receives as a callback and that call another part.
Reads:  nothing.      Calls: the parts.
Never:  makes a part (assembly.py) or says when one starts or stops (instance.py).
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable

from brokerd.activation.decisions import MANY_GROUPS, Ready
from brokerd.activation.monitor import QueueFacts
from brokerd.activation.readers import Readers
from brokerd.admin.administration import Administration
from brokerd.admin.broker_operations import Operations
from brokerd.admin.metrics_rows import Figures
from brokerd.admin.views.state import StateReport
from brokerd.broker.broker import LIFETIMES, Broker
from brokerd.broker.dialog_events import Lost, Told, fields_of
from brokerd.broker.outgoing import Outgoing
from brokerd.broker.poison import Undone
from brokerd.broker.queues import QueueState
from brokerd.broker.state import Live
from brokerd.checking.checker import Checker
from brokerd.clock import Instant, show_instant
from brokerd.config.exposure import OpenListener
from brokerd.config.settings import Endpoint, Settings
from brokerd.delivery.forwarding.forwarder import MEGABYTE, Forwarder
from brokerd.delivery.incoming.dispatcher import Dispatcher
from brokerd.delivery.outgoing.ack_log import AckLog
from brokerd.delivery.outgoing.orphan_replies import OrphanReplies
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.delivery.peers.duplicate_brokers import DuplicateBrokers
from brokerd.delivery.peers.mirrors import Mirrors
from brokerd.delivery.peers.ping import Pinging
from brokerd.delivery.peers.refusal_notices import RefusalNotices
from brokerd.delivery.peers.router import Router
from brokerd.dynamic_routing.requester import RouteRequester
from brokerd.errors import BAD_FILE, IO_FAULT, StoreFault, StoreFull
from brokerd.events.events import Events
from brokerd.events.tapped_log import TappedLog
from brokerd.ids import BrokerId, InstanceId, show
from brokerd.instance.surroundings import Surroundings
from brokerd.maintenance import timers
from brokerd.maintenance.absent_brokers import AbsentBrokers
from brokerd.maintenance.clock_watch import ClockWatch
from brokerd.maintenance.dialog_expiry import expire
from brokerd.maintenance.disk_space import DiskSpace
from brokerd.maintenance.journal import Journal
from brokerd.maintenance.known_brokers import KnownBrokers
from brokerd.maintenance.lingering_dialogs import LingeringDialogs
from brokerd.maintenance.mirroring import Mirroring
from brokerd.maintenance.slow_commits import SlowCommits
from brokerd.maintenance.store_watch import StoreWatch
from brokerd.maintenance.ticks import Ticker
from brokerd.maintenance.unsettled_endpoints import UnsettledEndpoints
from brokerd.model import MSDB, QueueStatus
from brokerd.objects.event_names import QUEUE_ACTIVATION
from brokerd.objects.notifications import activation_timeouts
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.brokers import BrokersHere
from brokerd.protocol.frames import Fragment, Item, encode_item
from brokerd.protocol.neighbour import Advice, Notice
from brokerd.protocol.role import RoleAnswer, RoleQuestion
from brokerd.protocol.trace import Trace
from brokerd.routing.mirror import Pair
from brokerd.sessions.registry import Sessions
from brokerd.sessions.session import ClientSession
from brokerd.storage.private_files import survey
from brokerd.telemetry.logs import (
    CONVERSATION,
    CONVERSATION_GROUP,
    DAEMON,
    LOST_MESSAGES,
    MESSAGE_CLASSIFY,
)
from brokerd.telemetry.status import FileProblem
from brokerd.transport.destination import DestinationStatus
from brokerd.transport.destinations import Destinations
from brokerd.transport.meeting import Arrival

_SERVING = frozenset({"starting", "ready"})


class Parts:
    """The parts of one instance, under the names by which they find each other."""

    settings: Settings
    brokers: dict[str, Broker]
    log: TappedLog
    """The event log, whose lines programs can subscribe to (EVT-10)."""
    condition: str
    """starting, ready, draining, stopped or failed."""
    failed: asyncio.Future[BaseException]
    """Set to the error with which the instance cannot continue; the daemon stops then."""
    instance_id: InstanceId
    started_at: Instant
    events: Events
    dynamic_routing: RouteRequester
    absent: AbsentBrokers
    known: KnownBrokers
    mirroring: Mirroring
    mirrors: Mirrors
    duplicates: DuplicateBrokers
    checker: Checker
    room: DiskSpace
    slow: SlowCommits
    moved: StoreWatch
    clock_watch: ClockWatch
    router: Router
    ack_log: AckLog
    answers: OrphanReplies
    transmitter: Transmitter
    forwarder: Forwarder
    notices: RefusalNotices
    pinging: Pinging
    dispatcher: Dispatcher
    destinations: Destinations
    readers: Readers
    sessions: Sessions
    figures: Figures
    journal: Journal
    settling: UnsettledEndpoints
    lingering: LingeringDialogs
    ticker: Ticker
    state: StateReport
    operations: Operations
    administration: Administration
    _with: Surroundings
    _tasks: set[asyncio.Task[None]]

    # Tasks that an instance starts, and the consequences of their failure.

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a short piece of work as a task; an error in it stops the instance."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # a full disk is a state, which the store has already reported (REL-26)
        if not isinstance(error, StoreFull):
            self._fail(error)

    def _store_failed(self, name: str, fault: StoreFault) -> None:
        """Fail the instance, after which a bad file prevents a restart only if it has to.

        If other brokers can run without it, the exit status becomes that of an I/O fault, after
        which a supervisor starts the daemon again.
        """
        others = self.brokers.keys() - {MSDB, name}
        if fault.exit_status == BAD_FILE and name != MSDB and others:
            fault.exit_status = IO_FAULT
        self._fail(fault)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.condition = "failed"
            self.failed.set_result(error)

    # Messages on their way.

    def _delivers_here(self, broker: Broker, live: Live) -> bool:
        return self.router.delivers_here(broker, live)

    def _always_here(self, broker: Broker, service: str) -> bool:
        return self.router.always_here(broker, service)

    def _has_outgoing(self, broker: Broker, out: Outgoing) -> None:
        self.transmitter.ready(broker, out)

    def _notify(self, address: str) -> None:
        self.destinations.notify(address)

    def _status_of(self, address: str) -> DestinationStatus:
        return self.destinations.status(address)

    def _is_online(self, address: str) -> bool:
        return self.destinations.is_online(address)

    def _deliver_here(self, items: list[Item]) -> None:
        # after the stop, repeats of the transmitter have no receiver any more
        if self.condition != "stopped":
            self.dispatcher.arrived(items)

    def _arrived(self, arrival: Arrival) -> None:
        for broker in self.brokers.values():
            broker.store.breathe()
        items = arrival.items
        if self.forwarder.forwarding:
            items = self.forwarder.accept(items, arrival.headers, arrival.peer)
        self.dispatcher.arrived(items, arrival.peer)

    def _not_forwarded(self, item: Item, reason: str) -> None:
        self.forwarder.report.log_drop(item, reason)

    def _send_notice(self, peer: InstanceId, notice: Advice) -> bool:
        return self.destinations.notice(peer, notice)

    def _send_notice_to(self, address: str, notice: Advice) -> bool:
        return self.destinations.notice_to(address, notice)

    def _refuse_forwarding(self, item: Fragment, reason: str, neighbour: InstanceId) -> None:
        detail = f"forwarder {self._own_address()}"
        self.notices.refuse(item, reason, neighbour, detail)

    def _own_address(self) -> str:
        """Return name and address of this instance, for reports to other machines."""
        known = [one.address for one in self.destinations.listeners if one.address]
        return " at ".join((self.settings.instance.name, *known[:1]))

    def _pause_receiving(self) -> None:
        self.destinations.pause_receiving()

    def _resume_receiving(self) -> None:
        self.destinations.resume_receiving()

    def _hand_back(self, neighbour: InstanceId, items: list[Item]) -> bool:
        return self.destinations.hand_back(neighbour, [encode_item(item) for item in items])

    def _failures_at(self, address: str) -> int:
        return self.destinations.status(address).failures

    def _is_suppressed(self, address: str) -> bool:
        return self.destinations.status(address).suppressed_until is not None

    def _peer_at(self, address: str) -> InstanceId | None:
        return self.destinations.peer_at(address)

    def _reachable_or_not(self, address: str, online: bool) -> None:
        self.transmitter.changed(address, online)
        if online:
            self.forwarder.came_online(address)
            self.pinging.came_online(address)
            self.mirrors.came_online(address)
            # held until it was known which brokers are at that address
            if held := self.duplicates.are_held_at(address):
                self._duplicates_changed(held)
        elif self._is_suppressed(address):  # lost; an orderly end suppresses nothing (TRN-18)
            self.mirrors.lost(address)

    def _principal_changed(self, pair: Pair) -> None:
        """Route anew after a mirrored route changed its principal, or lost it (RTE-53, RTE-54)."""
        self.router.places_changed()
        self.transmitter.rerouting.principal_changed(pair)

    def _met(self, peer: InstanceId) -> None:
        self.duplicates.came_online(peer)

    def _parted(self, peer: InstanceId) -> None:
        self.duplicates.left(peer)

    def _tables_rebuilt(self) -> None:
        """Notify the forwarder and the duplicate check that the routing tables were rebuilt."""
        self.forwarder.routes_changed()
        self.duplicates.set_own_list(self.router.delivering())

    def _duplicates_changed(self, broker_ids: frozenset[BrokerId]) -> None:
        """Route the dialogs of brokers whose duplicates appeared or went away (RTE-72)."""
        self.router.places_changed()
        self.transmitter.rerouting.duplicates_changed(broker_ids)

    def _name_of(self, broker_id: BrokerId) -> str:
        those = (one for one in self.brokers.values() if one.enabled)
        return next((one.name for one in those if one.broker_id == broker_id), "")

    def _noticed(self, neighbour: InstanceId, notice: Advice) -> None:
        """Process a neighbour's notice; a refusal is shown at its sender (NBT-4)."""
        match notice:
            case Trace():
                self.pinging.process(neighbour, notice)
            case RoleQuestion():
                self._send_notice(neighbour, self.mirroring.answer(notice))
            case RoleAnswer():
                self.mirrors.record_role(self.destinations.addresses_of(neighbour), notice)
            case BrokersHere():
                self.duplicates.record_list(neighbour, notice)
            case Notice():
                if not self.notices.apply(notice):
                    self.forwarder.pass_notice(notice)

    def _tell_peer(self, broker: Broker, live: Live, code: int, text: str) -> None:
        """Send an error that arose here to the far side of a dialog (DLP-42)."""
        if live.gone:
            self.answers.send_error(broker, live.endpoint, code, text)
        else:
            self.transmitter.refuse(broker, broker.outgoing(live), code, text)

    def _ambiguous(self, service: str, brokers: list[str]) -> None:
        """Warn that several brokers have a service, and nothing says which is meant (NBT-18)."""
        self._with.log.warning(
            MESSAGE_CLASSIFY,
            subclass="ambiguous",
            to_service=service,
            candidates=", ".join(brokers),
            chosen=brokers[0],
            hint="name the broker in the dialog, or in a route",
        )

    # The addresses of this instance, and forwarding.

    def _learn_own(self) -> None:
        """Reroute what routes to an own address concern.

        It is rerouted now and not together with the next change, which may concern other dialogs
        only (XMT-11).
        """
        self.router.learn_own(self.destinations.own_addresses())
        self.transmitter.rerouting.reroute()

    def _endpoint_moved(self) -> None:
        """Learn the own addresses anew after the endpoint was altered, started or stopped."""
        self._learn_own()
        self.report_open_listeners()

    def open_listeners(self) -> tuple[OpenListener, ...]:
        """Return the listeners that are open now and that other machines can reach (SX-21)."""
        listening = [one.address for one in self.destinations.listeners if one.address is not None]
        return self.settings.open_listeners(listening)

    def report_open_listeners(self) -> None:
        """Log each open listener: the settings permit it, but readers of the log may not know."""
        for door in self.open_listeners():
            self._with.log.warning(
                DAEMON,
                subclass="open_to_network",
                listener=door.who,
                address=door.address,
                permitted_by=door.permitted_by,
                risk=door.risk,
            )

    def file_problems(self) -> Iterable[FileProblem]:
        """Return the problems of the instance's files as they are now (SX-24).

        An embedded instance reports none: its program chose the directory.
        """
        settings = self.settings
        if self._with.only is not None:
            return ()
        return survey(settings.store_dirs, socket=settings.client_socket)

    def _reached_self(self, address: str) -> None:
        """Route what goes to an address that leads back here as if it had arrived (RTE-41)."""
        self._learn_own()
        self.transmitter.rerouting.move_away(address)

    def _forwarding_changed(self, endpoint: Endpoint) -> None:
        """Apply forwarding options in place (END-6)."""
        limit = endpoint.forward_size_mb * MEGABYTE
        self.forwarder.configure(forwarding=endpoint.forwarding, limit=limit)
        self.transmitter.rerouting.reroute()
        self.transmitter.rerouting.reclassify()

    # Arrivals on queues, and readers.

    def _arrived_on_queue(self, broker: Broker, queue: QueueState, was_empty: bool) -> None:
        if queue.is_system:
            self.events.arrived(broker)
            self.dynamic_routing.arrived()
        else:
            self.readers.arrived(broker.name, queue.name, was_empty=was_empty)

    def _came_back_empty(self, broker: Broker, queue: QueueState) -> None:
        self.readers.receive_empty(broker.name, queue.name, selective=False)

    def _receive_issued(self, session: ClientSession, queue: str) -> bool:
        """Return whether the session may receive: a reader that is to end may not (PBT-25)."""
        return self.readers.receive_issued(
            session.broker.name, queue, known_as=session.known_as, session_id=session.client_id
        )

    def _facts(self, broker: str, queue: str) -> QueueFacts:
        home = self.brokers.get(broker)
        state = None if home is None else home.queues.get(queue)
        if state is None:  # dropped while its readers still run (ACT-Q9)
            return QueueFacts(ready=False, youngest_ready_at=None, waiting=0)
        activation = state.queue.activation
        first = 1 if activation is None else activation.initial_readers
        return QueueFacts(
            ready=state.ready_count > 0,
            youngest_ready_at=state.youngest_at,
            waiting=len(state.waiting),
            ready_groups=1 if first == 1 else state.groups.count(first),
        )

    def _ready(self, broker: str, queue: str) -> Ready:
        """Return what is ready in a queue, for the record of an activation decision (VIEW-15)."""
        home = self.brokers.get(broker)
        state = None if home is None else home.queues.get(queue)
        if state is None:
            return Ready()
        groups = state.groups.count(MANY_GROUPS)
        return Ready(
            messages=state.ready_count,
            groups=groups,
            is_more=groups == MANY_GROUPS or state.beyond > 0,
            oldest_at=state.oldest_at,
        )

    def _notify_activators(self, broker: str, queue: str, ready: Ready) -> None:
        """Notify external activators that another reader is wanted (ACT-38)."""
        self.events.happened(
            QUEUE_ACTIVATION,
            broker,
            queue=queue,
            ready_messages=ready.messages,
            oldest_ready_at=None if ready.oldest_at is None else show_instant(ready.oldest_at),
        )

    def _parking(self, broker: Broker, what: str, fields: dict[str, object]) -> None:
        self.administration.parked.parking(broker, what, fields)

    def _poisoned(self, broker: Broker, queue: QueueState, status: QueueStatus) -> None:
        self.spawn(self.administration.parked.disable(broker, queue.name, status))

    def _evaluate_rollback(self, session: ClientSession, how: Undone) -> Undone | None:
        """Return how an ended transaction counts for poison; None: it does not count (PBT-10).

        Neither a stop of the daemon nor that of a reader is the fault of a message.
        """
        if self.condition == "draining":
            return None
        return self.readers.evaluate_rollback(session.known_as, how)

    def _tell_readers(self, broker: Broker) -> None:
        queues = [state.queue for state in broker.own_queues]
        self.readers.remaining(broker.name, {one.name for one in queues})
        self.readers.altered(
            broker.name,
            queues,
            delivery=broker.enabled,
            subscribed=activation_timeouts(broker.store.catalog.event_notifications.values()),
        )

    def _routes_answered(self) -> None:
        """Classify again what waits for a route, after a request was answered (BCN-7)."""
        self.transmitter.rerouting.reclassify()

    # Events of dialogs.

    def _told(self, broker: Broker, told: list[Told]) -> None:
        """Write events of dialogs to the event log, and through it to subscribers (EVT-10)."""
        for one in told:
            write = self.log.info if one.is_trouble else self.log.debug
            write(
                CONVERSATION_GROUP if one.of_group else CONVERSATION,
                subclass=one.what,
                broker=broker.name,
                **fields_of(one),
            )

    def _lost(self, broker: Broker, lost: Lost) -> None:
        """Log an Error message that no program will receive (PBT-4)."""
        endpoint = lost.endpoint
        self.log.warning(
            LOST_MESSAGES,
            broker=broker.name,
            conversation_id=show(endpoint.conversation_id),
            role="initiator" if endpoint.is_initiator else "target",
            service=endpoint.service,
            far_service=endpoint.far_service,
            contract=endpoint.contract,
            code=lost.code,
            description=lost.description,
            message_types=list(lost.message_types),
            count=lost.count,
        )

    def _due(self, broker: Broker, what: str) -> None:
        """Process lifetimes or timers that may have expired, ahead of their passes (PER-23)."""
        if self.condition in _SERVING and broker.enabled:
            self.spawn(_ignore(expire(broker) if what == LIFETIMES else timers.fire(broker)))

    # Orders of an administrator.

    async def _administer(self, broker: Broker, verb: wire.Verb, actor: str) -> object:
        return await self.administration.run(broker, verb, actor)

    async def _hold(self, broker: Broker, force: bool, wait: float) -> None:
        await self.sessions.exclusive.hold(broker, force=force, wait=wait)

    def _objects_changed(self, broker: Broker) -> None:
        """Let routing and activation take account of changed objects at once (XMT-11, ACT-6e)."""
        self.destinations.release(self.router.rebuild())
        self.transmitter.rerouting.reroute()
        self.notices.release(broker)
        self._tell_readers(broker)
        self.spawn(_ignore(timers.release(broker)))

    def _brought_in(self, broker: Broker) -> None:
        """Put a broker that was absent into use; if it is shared, notify peers (RTE-55)."""
        self._objects_changed(broker)
        if broker.name in self.mirroring.names:
            self.destinations.tell_all(self.mirroring.answer_for(broker))

    def _delivery_switched(self, broker: Broker) -> None:
        """Apply a switch of delivery, or a new identifier of the broker (MAN-2 to MAN-6)."""
        self.router.rebuild()
        if not broker.enabled:
            self.transmitter.rerouting.withhold(broker)
            self.dispatcher.drop_broker(broker)
        self.transmitter.rerouting.reroute()
        self.transmitter.rerouting.reclassify()
        self.notices.release(broker)
        self._tell_readers(broker)


async def _ignore(work: Awaitable[int]) -> None:
    """Await the work and drop its count, which no caller needs."""
    await work
