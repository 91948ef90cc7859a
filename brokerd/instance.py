"""Instance: every part of one daemon, built and tied together; one start order, reversed to stop.

Reads: settings.      Calls: all parts, each made once and handed what it needs.
Never: installs signal handlers or picks a loop (daemon.py does), so that tests and the simulation
run the very same instance on other clocks, networks and executors.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

import msgspec

from brokerd.activation.monitor import QueueFacts
from brokerd.activation.readers import Readers
from brokerd.admin.attach import attach
from brokerd.admin.dialogs import DialogAdministration
from brokerd.admin.figures import Figures, Times
from brokerd.admin.operations import Operations, Surrounding
from brokerd.admin.state import About, StateReport
from brokerd.admin.stored_views import StoredViews
from brokerd.admin.upkeep import Upkeep
from brokerd.admin.verbs import Administration
from brokerd.admin.views import Views
from brokerd.app.session import Session
from brokerd.broker.broker import LIFETIMES, Broker, BrokerOptions
from brokerd.broker.endpoints import Live
from brokerd.broker.happenings import Told, fields_of
from brokerd.broker.queues import QueueState
from brokerd.broker.rounds import Lost
from brokerd.broker.transmission import Outgoing
from brokerd.client.recorder import Recorder
from brokerd.client.session import open_session
from brokerd.clock import Clock
from brokerd.delivery.answers import LooseAnswers
from brokerd.delivery.dispatcher import Dispatcher, DispatcherOptions
from brokerd.delivery.routes import Router
from brokerd.delivery.transmitter import Transmitter, TransmitterOptions
from brokerd.errors import IO_FAULT, PortTaken, StoreDamaged, StoreFault
from brokerd.events.events import Events
from brokerd.events.tap import TappedLog
from brokerd.ids import BootId, BrokerId, ConversationId, IdSource, InstanceId, show
from brokerd.logs import CONVERSATION, CONVERSATION_GROUP, LOST_MESSAGES
from brokerd.maintenance import timers
from brokerd.maintenance.absent import Absent
from brokerd.maintenance.closing import expire, purge
from brokerd.maintenance.journal import Journal
from brokerd.maintenance.settling import Settling
from brokerd.maintenance.ticks import Pass, Ticker
from brokerd.metrics_log import MetricsLog
from brokerd.model import MSDB
from brokerd.objects import Declared
from brokerd.preflight import needed_stores, optional_stores
from brokerd.protocol import client_verbs as wire
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.protocol.frames import Hop, Item
from brokerd.protocol.neighbour import Hello
from brokerd.protocol.sending import WindowLimits
from brokerd.routing.address import normalise
from brokerd.sessions.local import connect_local
from brokerd.sessions.session import ClientSession
from brokerd.sessions.sessions import SessionOptions, Sessions
from brokerd.settings import Settings
from brokerd.storage.engine import Executor
from brokerd.storage.files import NewStore
from brokerd.storage.store import Store, StoreOptions
from brokerd.transport.destinations import Arrival, Destinations
from brokerd.transport.network import Listening, Network
from brokerd.transport.options import TransportOptions

VERSION = "0.1.0"
_SERVING = frozenset({"starting", "ready"})


class Log(Protocol):
    """Where events go."""

    def debug(self, event: str, **fields: object) -> object: ...
    def info(self, event: str, **fields: object) -> object: ...
    def warning(self, event: str, **fields: object) -> object: ...
    def error(self, event: str, **fields: object) -> object: ...


class Surroundings(msgspec.Struct, frozen=True):
    """What an instance takes from the world; a test hands in other ones (HK-1 to HK-4)."""

    clock: Clock
    ids: IdSource
    rng: Random
    network: Network
    executor: Executor
    log: Log
    boot_id: BootId
    metrics: MetricsLog | None = None
    summarise: Callable[[], int] = lambda: 0
    """Writes what the event log held back (MON-11)."""
    identify: Callable[[InstanceId], None] = lambda _id: None
    """Told the instance id once the stores are open."""
    fault: Callable[[str], None] = lambda _name: None
    """Failpoints (HK-6)."""
    host: bytes | None = None
    """What tells this machine from others; None = unknown (MAN-7)."""
    limits: BrokerOptions = BrokerOptions()
    """How much of a store is held in memory; what has a setting is taken from there (HK-11)."""
    recorder: Recorder | None = None
    """Where the sessions of readers tell what they do (reliability 7.1)."""
    only: str | None = None
    """The one broker to open beside `msdb`, where the directory holds other files as well."""


class Instance:
    """One running instance with its brokers."""

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        self.settings = settings
        self._with = surroundings
        self._data_dir: Path = settings.instance.data_dir
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: Listening | None = None
        self.brokers: dict[str, Broker] = {}
        self.condition = "starting"
        """starting, ready, draining, stopped, failed."""
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Set when it cannot go on; the daemon stops then."""
        self._times = Times()
        self.log = TappedLog(surroundings.log)
        """The log of what may be subscribed to (EVT-10)."""
        self.events = Events(
            instance=settings.instance.name,
            brokers=self.brokers,
            clock=surroundings.clock,
            spawn=self.spawn,
            log=self.log,
        )
        self.log.happened = self.events.happened
        self.absent = Absent(
            open_broker=self._open_absent, opened=self._objects_changed, log=surroundings.log
        )

    # Starting.

    async def start(self, declared: Declared | None = None, *, must_listen: bool = True) -> None:
        """Open the stores, build the parts, apply a declaration, let peers and clients in.

        `Refusal`: it cannot start; what was opened is closed again."""
        clock = self._with.clock
        self.started_at = clock.utc()
        try:
            await self._open_stores(declared)
            self._build()
            for name in needed_stores(declared):
                await self.events.load(self.brokers[name])
            if declared is not None:
                await self.administration.apply(declared, dry_run=False)
            await self.recover(declared)
            self._refuse_to_serve_nobody()
            await self._let_in(must_listen=must_listen)
        except BaseException:
            await self._close_stores()
            raise
        self.condition = "ready"
        self._mark("started")

    async def _open_stores(self, declared: Declared | None) -> None:
        """`msdb` first: it holds what belongs to the instance (design D6)."""
        ids = self._with.ids
        self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = NewStore(MSDB, BrokerId(ids.fresh()), InstanceId(ids.fresh()))
        store = await self._open(MSDB, create=new)
        self.instance_id = store.identity.instance_id
        self._with.identify(self.instance_id)
        self._take_in(store)
        for one in declared.brokers if declared is not None else ():
            await self._make_or_open(one)
        for path in optional_stores(self._data_dir, declared):
            if self._with.only not in (None, path.stem):
                continue
            with self.absent.keeping_out(path.stem):
                await self._attach(path.stem)

    async def _make_or_open(self, declared: Declared) -> Broker:
        new = NewStore(
            declared.broker,
            BrokerId(self._with.ids.fresh()),
            self.instance_id,
            default_encryption=declared.default_encryption,
            host=self._with.host,
        )
        return await self._attach(declared.broker, create=new)

    async def _attach(self, name: str, *, create: NewStore | None = None) -> Broker:
        """Open a store; one that looks like a copy delivers nothing (MAN-7, OBJ-3)."""
        store = await self._open(name, create=create)
        try:
            await attach(
                store,
                instance_id=self.instance_id,
                host=self._with.host,
                others=self.brokers.values(),
                log=self._with.log,
            )
            return self._take_in(store)
        except BaseException:
            await store.abandon()
            raise

    async def _open(self, name: str, *, create: NewStore | None = None) -> Store:
        settings = self.settings.store
        path = self._data_dir / f"{name}.db"
        return await Store.open(
            path,
            ids=self._with.ids,
            clock=self._with.clock,
            executor=self._with.executor,
            on_fault=partial(self._store_failed, name),
            options=StoreOptions(
                flush_transactions=settings.flush_transactions, flush_bytes=settings.flush_bytes
            ),
            create=create,
            name=name,
            fault=self._with.fault,
            observe=self._times.of_store(name),
        )

    def _take_in(self, store: Store) -> Broker:
        dialog = self.settings.dialog
        broker = Broker(
            store=store,
            clock=self._with.clock,
            ids=self._with.ids,
            options=msgspec.structs.replace(
                self._with.limits,
                fragment_size=dialog.fragment_size,
                max_message=dialog.max_message,
                replay_guard=dialog.replay_guard,
                default_lifetime=int(dialog.default_lifetime.total_seconds()),
                lock_timeout=self.settings.clients.lock_timeout.total_seconds(),
                outgoing=msgspec.structs.replace(
                    self._with.limits.outgoing,
                    limits=WindowLimits(
                        window_fragments=dialog.window_fragments,
                        window_bytes=dialog.window_bytes,
                        retry_first=dialog.retry_first,
                        retry_max=dialog.retry_max,
                    ),
                ),
            ),
            spawn=self.spawn,
            delivers_here=self._delivers_here,
            on_arrival=self._arrived_on_queue,
            on_empty=self._came_back_empty,
            on_outgoing=self._has_outgoing,
            observe_wait=self._times.of_queue,
            on_due=self._due,
            on_lost=self._lost,
        )
        broker.on_told = self._told
        self.brokers[broker.name] = broker
        return broker

    def _build(self) -> None:
        """Every part, in the order in which a message meets them."""
        world, settings = self._with, self.settings
        clock = world.clock
        self.router = Router(
            brokers=self.brokers,
            absent=self.absent.reasons,
            clock=clock,
            rng=Random(world.rng.random()),  # noqa: S311  # turns, not secrets
            own_addresses=frozenset(),
            forwarding=settings.endpoint.forwarding if settings.endpoint else False,
        )
        self.answers = LooseAnswers(router=self.router, hop=self._hop)
        self.transmitter = Transmitter(
            brokers=self.brokers,
            router=self.router,
            clock=clock,
            options=TransmitterOptions(
                ack_delay=settings.dialog.ack_delay,
                ack_every=settings.dialog.ack_every,
                hops=settings.dialog.hops,
                time_to_live=settings.dialog.time_to_live,
                starvation=settings.transport.starvation,
            ),
            notify=self._notify,
            is_online=self._is_online,
            deliver_here=self._deliver_here,
            loose=self.answers.take,
        )
        self.dispatcher = Dispatcher(
            brokers=self.brokers,
            router=self.router,
            transmitter=self.transmitter,
            answers=self.answers,
            clock=clock,
            options=DispatcherOptions(
                batch=settings.dispatcher.batch,
                mem_low=settings.dispatcher.mem_low,
                mem_high=settings.dispatcher.mem_high,
                mem_hard=settings.dispatcher.mem_hard,
                mem_dialog=settings.dispatcher.mem_dialog,
            ),
            spawn=self.spawn,
            log=self.log,
            pause=self._pause_receiving,
            resume=self._resume_receiving,
            notice=self._notice,
        )
        self.destinations = Destinations(
            network=world.network,
            clock=clock,
            rng=Random(world.rng.random()),  # noqa: S311
            hello=Hello(instance_id=self.instance_id, boot_id=world.boot_id),
            options=self._transport_options(),
            fill=self.transmitter.fill,
            arrived=self._arrived,
            changed=self.transmitter.changed,
            log=world.log,
            listen=settings.peer_addresses,
        )
        self.answers.notify = self.destinations.notify
        self.answers.deliver_here = self.dispatcher.arrived
        self.readers = Readers(
            connect=self.connect_local, facts=self._facts, clock=clock, log=self.log
        )
        self.sessions = Sessions(
            instance=settings.instance.name,
            instance_id=self.instance_id,
            boot_id=world.boot_id,
            brokers=self.brokers,
            absent=self.absent.reasons,
            clock=clock,
            options=SessionOptions(
                outstanding=settings.clients.outstanding,
                transaction_age=settings.clients.max_transaction_age.total_seconds(),
            ),
            spawn=self.spawn,
            log=world.log,
            administer=self._administer,
            on_receive=self._receive_issued,
            on_rollback=lambda broker, queue: self.readers.rolled_back(broker.name, queue),
        )
        self.figures = Figures(
            brokers=self.brokers,
            dispatcher=self.dispatcher,
            transmitter=self.transmitter,
            destinations=self.destinations,
            readers=self.readers.running,
            times=self._times,
            data_dir=self._data_dir,
        )
        self.journal = Journal(log=world.metrics, brokers=self.brokers, rows=self.figures.rows)
        self.settling = Settling(ask=self.answers.ask, clock=clock)
        self.ticker = Ticker(
            passes=self._passes(),
            clock=clock,
            seconds=settings.clock.tick.total_seconds(),
            log=world.log,
            spawn=self.spawn,
        )
        self.state = StateReport(
            about=About(
                instance=settings.instance.name,
                instance_id=self.instance_id,
                boot_id=world.boot_id,
                version=VERSION,
                started_at=self.started_at,
                data_dir=self._data_dir,
            ),
            brokers=self.brokers,
            absent=self.absent.reasons,
            destinations=self.destinations,
            transmitter=self.transmitter,
            readers=self.readers,
            clients=lambda: len(self.sessions),
            condition=lambda: self.condition,
        )
        self._build_administration()

    def _build_administration(self) -> None:
        """What answers an administrator."""
        world = self._with
        views = Views(
            brokers=self.brokers,
            absent=self.absent.reasons,
            stored=StoredViews(
                explain=self.state.explain,
                next_attempt=lambda address: self.destinations.status(address).suppressed_until,
                out_of_order=self.dispatcher.out_of_order,
            ),
            destinations=self.destinations,
            transmitter=self.transmitter,
            dispatcher=self.dispatcher,
            readers=self.readers,
            passes=self.ticker.states,
            next_attempt=lambda: self.ticker.next_run_of("absent_brokers"),
            notifications=self.events.rows,
        )
        self.operations = Operations(
            brokers=self.brokers,
            ids=world.ids,
            instance_id=self.instance_id,
            host=world.host,
            around=Surrounding(
                hold=self._hold,
                release=self.sessions.exclusive.release,
                switched=self._delivery_switched,
                tell=self._tell_peer,
                expire=_deliver_due,
            ),
            log=world.log,
        )
        self.administration = Administration(
            brokers=self.brokers,
            absent=self.absent.reasons,
            state=self.state,
            views=views,
            operations=self.operations,
            upkeep=Upkeep(log=world.log),
            open_broker=self._open_declared,
            changed=self._objects_changed,
            told=self.events.objects_changed,
            tell=self._tell_peer,
            dialogs=DialogAdministration(
                explain=self.state.explain,
                destinations=self.destinations,
                tell_peer=self.answers.tell,
                log=self.log,
            ),
            log=world.log,
        )

    def _passes(self) -> list[Pass]:
        """The table of periodic work, in the order of CLK-3."""
        fast, slow = self.settings.clock.fast_every, self.settings.clock.slow_every
        return [
            Pass("dispatcher", 1, self.dispatcher.purge),  # DSP-9
            Pass("queue_monitors", 1, self.readers.tick),  # PER-3
            Pass("sessions", 1, self.sessions.sweep),  # CLP-61
            Pass("lifetimes", 1, self._expire),  # PER-23
            Pass("conversation_timers", 1, self._fire_timers),  # PER-23
            Pass("dialog_log", 1, self.journal.write_closed),  # design D16
            Pass("transmitter", fast, self.transmitter.reclassify),  # XMT-9
            Pass("transport_connect", fast, self.destinations.connect_pass),  # TRN-14
            Pass("metrics", fast, self.journal.write_interval),  # design D12
            Pass("idle_connections", slow, self.destinations.close_idle),  # TRN-28
            Pass("absent_brokers", slow, self.absent.try_again, apart=True),  # CLK-6
            Pass("unsettled_endpoints", 1, self._ask_unsettled),  # DLP-57
            Pass("closed_endpoints", slow, self._purge),  # PER-24
            Pass("event_notifications", slow, self.events.look),  # PBT-15
            Pass("commit_tokens", slow, self._prune_clients),  # REL-2
            Pass("removals", 1, self._sweep),  # design D4
            Pass("space", 1, self._reclaim),  # MAN-13
            Pass("log_summary", slow, self._with.summarise),  # MON-11
        ]

    async def recover(self, declared: Declared | None) -> None:
        """Learn again what waits in the stores, and begin to send it."""
        needed = needed_stores(declared)
        for broker in list(self.brokers.values()):
            if broker.name in needed:
                await broker.store.look_again()
                await broker.recover()
            else:
                with self.absent.keeping_out(broker.name):
                    await self._recover_or_close(broker)
        for broker in list(self.brokers.values()):
            self._tell_readers(broker)
            with self.absent.keeping_out(broker.name):
                await self._finish_or_close(broker)
                self.events.begin(broker)

    async def _finish_or_close(self, broker: Broker) -> None:
        """What an administrator began before a crash is finished first (MAN-5, MAN-6)."""
        if broker.store.identity.unfinished:
            await self._or_close(broker, self.operations.finish(broker))

    async def _recover_or_close(self, broker: Broker) -> None:
        await self._or_close(broker, self._recover(broker))

    async def _recover(self, broker: Broker) -> None:
        await broker.recover()
        await self.events.load(broker)

    async def _or_close(self, broker: Broker, work: Awaitable[None]) -> None:
        try:
            await work
        except BaseException:
            del self.brokers[broker.name]
            self.router.rebuild()
            broker.close_deadlines()
            await broker.store.abandon()
            raise

    async def _open_absent(self, name: str) -> Broker:
        """Nothing is delivered to it before it is absent no more."""
        broker = await self._attach(name)
        self.router.rebuild()
        await self._recover_or_close(broker)
        await self._finish_or_close(broker)
        self.events.begin(broker)
        return broker

    def _refuse_to_serve_nobody(self) -> None:
        """With no broker but `msdb`, why the others are absent is why it cannot start."""
        if self.brokers.keys() == {MSDB}:
            for reason in self.absent.reasons.values():
                raise reason

    async def _let_in(self, *, must_listen: bool) -> None:
        """Peers first, then readers, then clients."""
        await self.destinations.start(must_listen=must_listen)
        addresses = {one.address for one in self.destinations.listeners if one.address}
        self.router.learn_own(frozenset(normalise(address) for address in addresses))
        self._reader_task = asyncio.get_running_loop().create_task(self.readers.run())
        self._reader_task.add_done_callback(self._check)
        self._tick_task = asyncio.get_running_loop().create_task(self.ticker.run())
        self._tick_task.add_done_callback(self._check)
        address = self.settings.client_address
        try:
            self._listening = await self._with.network.listen(self.sessions.factory, address)
        except OSError as error:
            raise PortTaken(f"cannot listen for clients at {address}: {error}") from error

    # Stopping.

    async def stop(self, grace: timedelta) -> None:
        """Orderly: nothing new, open transactions finish, the log is folded in (REL-28)."""
        self.condition = "draining"
        seconds = grace.total_seconds()
        if self._listening is not None:
            self._listening.close()
        self._tick_task.cancel()
        for broker in self.brokers.values():
            for queue in broker.queues.values():
                queue.line.end_all()
        self.readers.stop(seconds)
        await self.sessions.drain(seconds)
        await asyncio.wait({self._reader_task}, timeout=seconds + 1)
        await self.destinations.stop()
        await self.journal.finish()
        await self.events.stop()
        await self._cancel_tasks()  # before what they read from is closed
        await self._close_stores()
        self.condition = "stopped"

    async def _close_stores(self) -> None:
        for broker in self.brokers.values():
            broker.close_deadlines()
            await broker.store.close()

    async def _cancel_tasks(self) -> None:
        await asyncio.gather(self._tick_task, return_exceptions=True)
        while tasks := [one for one in self._tasks if not one.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a short piece of work; an error in it stops the instance."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _store_failed(self, name: str, fault: StoreFault) -> None:
        """A bad file ends the instance for good only if nothing can run without it."""
        others = self.brokers.keys() - {MSDB, name}
        if fault.exit_status == StoreDamaged.exit_status and name != MSDB and others:
            fault.exit_status = IO_FAULT
        self._fail(fault)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.condition = "failed"
            self.failed.set_result(error)

    # Meetings of siblings: each is made before the other, so they meet here.

    def _delivers_here(self, broker: Broker, endpoint: DialogEndpoint) -> bool:
        return self.router.delivers_here(broker, endpoint)

    def _has_outgoing(self, broker: Broker, out: Outgoing) -> None:
        self.transmitter.ready(broker, out)

    def _notify(self, address: str) -> None:
        self.destinations.notify(address)

    def _is_online(self, address: str) -> bool:
        return self.destinations.is_online(address)

    def _deliver_here(self, items: list[Item]) -> None:
        if self.condition != "stopped":  # what the transmitter repeats after that is for nobody
            self.dispatcher.arrived(items)

    def _pause_receiving(self) -> None:
        self.destinations.pause_receiving()

    def _resume_receiving(self) -> None:
        self.destinations.resume_receiving()

    async def _administer(self, broker: Broker, verb: wire.Verb, actor: str) -> object:
        return await self.administration.run(broker, verb, actor)

    async def _hold(self, broker: Broker, force: bool, wait: float) -> None:
        await self.sessions.exclusive.hold(broker, force=force, wait=wait)

    def _arrived(self, arrival: Arrival) -> None:
        for broker in self.brokers.values():
            broker.store.breathe()
        self.dispatcher.arrived(arrival.items)

    def _arrived_on_queue(self, broker: Broker, queue: QueueState, was_empty: bool) -> None:
        if queue.is_system:
            self.events.arrived(broker)
        else:
            self.readers.arrived(broker.name, queue.name, was_empty=was_empty)

    def _told(self, broker: Broker, told: list[Told]) -> None:
        """What befell dialogs goes to the event log, and from there to who subscribed (EVT-10)."""
        for one in told:
            write = self.log.info if one.is_trouble else self.log.debug
            write(
                CONVERSATION_GROUP if one.of_group else CONVERSATION,
                subclass=one.what,
                broker=broker.name,
                **fields_of(one),
            )

    def _came_back_empty(self, broker: Broker, queue: QueueState) -> None:
        self.readers.receive_empty(broker.name, queue.name, selective=False)

    def _receive_issued(self, session: ClientSession, queue: str) -> None:
        self.readers.receive_issued(session.broker.name, queue, client_id=session.client_id)

    def _facts(self, broker: str, queue: str) -> QueueFacts:
        home = self.brokers.get(broker)
        state = None if home is None else home.queues.get(queue)
        if state is None:  # dropped while readers of it still run (ACT-Q9)
            return QueueFacts(ready=False, youngest_ready_at=None, waiting=0)
        return QueueFacts(
            ready=state.ready_count > 0,
            youngest_ready_at=state.youngest_at,
            waiting=len(state.waiting),
        )

    def _notice(
        self, conversation_id: ConversationId, from_initiator: bool, sequence: int, reason: str
    ) -> None:
        """An arrival was not taken: its sender shows why, if it is in this instance (PBT-2).

        NOTICE frames to other instances come with the network in full (NBT-4)."""
        for broker in self.brokers.values():
            live = broker.endpoints.find_conversation(conversation_id, from_initiator)
            if live is not None and live.outgoing is not None:
                now = self._with.clock.utc()
                live.outgoing.notice = (reason, live.outgoing.status_since(reason) or now)

    def _hop(self, broker_id: BrokerId) -> Hop:
        dialog = self.settings.dialog
        return Hop(broker_id, dialog.hops, dialog.time_to_live // timedelta(milliseconds=1), 0)

    def _transport_options(self) -> TransportOptions:
        given = msgspec.structs.asdict(self.settings.transport)
        del given["starvation"]  # the transmitter's
        if self.settings.endpoint is not None:
            given["drain"] = self.settings.endpoint.drain
        return TransportOptions(**given)

    async def connector(
        self, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Make a client connection without a socket; why it failed, if it has (design D15)."""
        if self.failed.done():
            raise self.failed.result()
        return connect_local(self.sessions.factory, factory)

    async def connect_local(self, broker: str) -> Session:
        """A client session inside the process, for readers (design D15)."""

        return await open_session(
            Session,
            None,
            broker,
            connector=self.connector,
            clock=self._with.clock,
            ids=self._with.ids,
            rng=Random(0),  # noqa: S311  # delays before reconnecting
            recorder=self._with.recorder,
        )

    # Administration.

    def _tell_peer(self, broker: Broker, live: Live, code: int, text: str) -> None:
        """An error made here, for the other side of a dialog elsewhere (DLP-42)."""
        if live.gone:
            self.answers.tell(broker, live.endpoint, code, text)
        else:
            self.transmitter.refuse(broker, broker.outgoing(live), code, text)

    async def _open_declared(self, declared: Declared) -> Broker:
        broker = await self._make_or_open(declared)
        self.router.rebuild()
        await self.events.load(broker)
        self.events.begin(broker)
        return broker

    def _objects_changed(self, broker: Broker) -> None:
        """Routing and activation look again at once (XMT-11, ACT-6e)."""
        self.router.rebuild()
        self.transmitter.forget_routes()
        self._tell_readers(broker)
        self.spawn(_ignore(timers.release(broker)))

    def _delivery_switched(self, broker: Broker) -> None:
        """Delivery is on or off now, or the broker has another identifier (MAN-2 to MAN-6)."""
        self.router.rebuild()
        if not broker.enabled:
            self.transmitter.withhold(broker)
            self.dispatcher.let_go(broker)
        self.transmitter.forget_routes()
        self.transmitter.reclassify()
        self._tell_readers(broker)

    def _tell_readers(self, broker: Broker) -> None:
        queues = [state.queue for state in broker.own_queues]
        self.readers.remaining(broker.name, {one.name for one in queues})
        self.readers.altered(broker.name, queues, delivery=broker.enabled)

    # Passes.

    async def _expire(self) -> int:
        return sum([await expire(one) for one in self._delivering()])

    async def _fire_timers(self) -> int:
        return sum([await timers.tick(one) for one in self._delivering()])

    def _delivering(self) -> list[Broker]:
        """Where delivery is off, what falls due waits for it (MAN-4)."""
        return [one for one in self.brokers.values() if one.enabled]

    def _lost(self, broker: Broker, lost: Lost) -> None:
        """An Error that nobody will see is at least in the log (PBT-4)."""
        endpoint = lost.endpoint
        self._with.log.warning(
            LOST_MESSAGES,
            broker=broker.name,
            conversation_id=show(endpoint.conversation_id),
            service=endpoint.service,
            far_service=endpoint.far_service,
            contract=endpoint.contract,
            code=lost.code,
            description=lost.description,
            message_types=list(lost.message_types),
            count=lost.count,
        )

    async def _ask_unsettled(self) -> int:
        return sum([await self.settling.run(one) for one in self._delivering()])

    def _due(self, broker: Broker, what: str) -> None:
        """A lifetime or a timer may be over now; the passes would find it, if later (PER-23)."""
        if self.condition in _SERVING and broker.enabled:
            self.spawn(_ignore(expire(broker) if what == LIFETIMES else timers.fire(broker)))

    async def _purge(self) -> int:
        return sum([await purge(broker) for broker in self.brokers.values()])

    def _sweep(self) -> int:
        return sum(broker.store.sweep() for broker in self.brokers.values())

    async def _reclaim(self) -> int:
        return sum([await broker.store.reclaim() for broker in list(self.brokers.values())])

    def _prune_clients(self) -> int:
        now = self._with.clock.utc()
        return sum(broker.store.prune_clients(now) for broker in self.brokers.values())

    def log_failure(self, error: BaseException) -> None:
        """Say why the instance cannot go on."""
        self._with.log.error("broker.daemon", subclass="failed", exc_info=error)

    def _mark(self, what: str) -> None:
        self.journal.mark(what)
        self._with.log.info(
            "broker.daemon",
            subclass="ready" if what == "started" else what,
            clients=self.settings.client_address,
            brokers=sorted(self.brokers),
        )


async def _deliver_due(broker: Broker) -> int:
    """What fell due while delivery was off (MAN-4); how much."""
    return await expire(broker) + await timers.fire(broker)


async def _ignore(work: Awaitable[int]) -> None:
    """Do it; how much it was concerns nobody."""
    await work
