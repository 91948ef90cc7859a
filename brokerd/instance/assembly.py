"""Assembly: makes every part of one instance, once, and gives each the collaborators it needs.

Reads:  settings.      Calls: the constructors of all parts.
Never:  starts, stops or waits for anything (instance.py does).
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random

import msgspec

from brokerd.activation.readers import Readers
from brokerd.admin.administration import Administration
from brokerd.admin.broker_endpoint import EndpointAdministration
from brokerd.admin.broker_operations import Operations, Surrounding
from brokerd.admin.cleanup_and_backup import Upkeep
from brokerd.admin.dialogs import DialogAdministration
from brokerd.admin.metrics_rows import Figures, Times
from brokerd.admin.views.locks import HeldLocks
from brokerd.admin.views.state import About, StateReport
from brokerd.admin.views.statistics import StatisticsViews
from brokerd.admin.views.stored import StoredViews
from brokerd.admin.views.transport import TransportViews
from brokerd.admin.views.views import Views
from brokerd.app.session import Session
from brokerd.broker.broker import Broker
from brokerd.checking.checker import InProcess
from brokerd.client.connecting import open_session
from brokerd.clock import SteadyClock
from brokerd.config.settings import Balance, EndpointState, Settings
from brokerd.delivery.boxcars import Boxcars
from brokerd.delivery.forwarding.forwarder import Forwarder
from brokerd.delivery.forwarding.report import ForwardReport
from brokerd.delivery.incoming.dispatcher import Dispatcher
from brokerd.delivery.outgoing.ack_log import AckLog
from brokerd.delivery.outgoing.orphan_replies import OrphanReplies
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.delivery.peers import duplicate_brokers
from brokerd.delivery.peers.duplicate_brokers import DuplicateBrokers
from brokerd.delivery.peers.mirrors import Around, Mirrors
from brokerd.delivery.peers.ping import Pinging
from brokerd.delivery.peers.refusal_notices import RefusalNotices
from brokerd.delivery.peers.router import Router
from brokerd.dynamic_routing.requester import RouteRequester
from brokerd.events.error_events import ErrorEvents
from brokerd.events.events import Events
from brokerd.events.tapped_log import TappedLog
from brokerd.ids import BrokerId
from brokerd.instance import part_options
from brokerd.instance.schedule import passes
from brokerd.instance.stores import Opening
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
from brokerd.model import MSDB
from brokerd.protocol.brokers import OPTION as BROKERS
from brokerd.protocol.frames import Hop
from brokerd.protocol.neighbour import Hello
from brokerd.routing.choice import Balancer
from brokerd.security.grants import parse_grant
from brokerd.sessions.in_process_stream import connect_local
from brokerd.sessions.registry import Sessions, reader_token
from brokerd.transport.destinations import Destinations

VERSION = "0.1.0"


class Assembly(Opening):
    """The construction of an instance's parts, in the order in which a message meets them."""

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        clock = SteadyClock(surroundings.clock)
        surroundings = msgspec.structs.replace(surroundings, clock=clock)
        self.settings = settings
        self._with = surroundings
        self._data_dir = settings.instance.data_dir
        self._tasks = set()
        self.brokers = {}
        self.room = DiskSpace(
            disk=surroundings.disk,
            min_free=settings.store.min_free,
            reserve=settings.store.reserve,
            brokers=self.brokers,
            log=surroundings.log,
        )
        self.checker = surroundings.checker or InProcess()
        self.slow = SlowCommits(
            brokers=self.brokers,
            after=settings.store.slow_after.total_seconds(),
            log=surroundings.log,
        )
        self.clock_watch = ClockWatch(
            clock=clock, msdb=settings.store_path(MSDB), log=surroundings.log
        )
        self.clock_watch.resume()
        self.moved = StoreWatch(brokers=self.brokers, failed=self._fail)
        self.condition = "starting"
        self.failed = asyncio.get_running_loop().create_future()
        self._times = Times()
        self.log = TappedLog(surroundings.log, ErrorEvents(surroundings.clock))
        self.events = Events(
            instance=settings.instance.name,
            brokers=self.brokers,
            clock=surroundings.clock,
            spawn=self.spawn,
            log=self.log,
        )
        self.log.happened = self.events.happened
        self.dynamic_routing = RouteRequester(
            brokers=self.brokers,
            clock=surroundings.clock,
            spawn=self.spawn,
            log=self.log,
            options=part_options.asking(settings),
            answered=self._routes_answered,
            failures=self._failures_at,
        )
        shared = frozenset(settings.mirroring.brokers)
        self.absent = AbsentBrokers(
            open_broker=self._open_absent,
            opened=self._brought_in,
            log=surroundings.log,
            mirrored=shared,
        )
        self.known = KnownBrokers(
            path_of=settings.store_path,
            brokers=self.brokers,
            absent=self.absent,
            aside=surroundings.executor.call,
            log=surroundings.log,
            keeps=surroundings.only is None,
        )
        self.mirroring = Mirroring(
            names=shared,
            path_of=settings.store_path,
            brokers=self.brokers,
            absent=self.absent,
            aside=surroundings.executor.call,
            spawn=self.spawn,
            stale=self._store_failed,
        )
        self.mirrors = Mirrors(clock=surroundings.clock, log=self.log)

    def _build(self) -> None:
        """Build every part, in the order in which a message meets them."""
        self._build_sending()
        self._build_forwarder()
        self._build_arriving()
        self._build_network()
        self._build_users()
        self._build_upkeep()
        self._build_administration()

    def _build_sending(self) -> None:
        """Build the parts that route outgoing messages and hand them to a destination."""
        world, settings = self._with, self.settings
        clock = world.clock
        self.router = Router(
            brokers=self.brokers,
            absent=self.absent.reasons,
            known=self.known.ids,
            clock=clock,
            balancer=Balancer(
                rng=Random(world.rng.random()),  # noqa: S311  # turns, not secrets
                at_random=settings.routing.balance is Balance.RANDOM,
            ),
            own_addresses=frozenset(),
            forwarding=settings.endpoint.forwarding if settings.endpoint else False,
            avoid=self._is_suppressed if settings.routing.prefer_online else None,
            exempt_local=settings.bcn.exempt_local,
            mirrors=self.mirrors,
            options=part_options.ways(settings),
        )
        self.router.missing = self.dynamic_routing.missing
        self.router.ambiguous = self._ambiguous
        self.ack_log = AckLog(log=self.log, is_on=part_options.logs_each_ack(settings))
        self.answers = OrphanReplies(router=self.router, hop=self._hop, ack_log=self.ack_log)
        self.transmitter = Transmitter(
            brokers=self.brokers,
            router=self.router,
            clock=clock,
            options=part_options.transmitter(settings),
            notify=self._notify,
            is_online=self._is_online,
            deliver_here=self._deliver_here,
            orphan_replies=self.answers.dequeue,
            hand_back=self._hand_back if settings.dialog.ack_on_arrival_path else None,
            log=self.log,
            ack_log=self.ack_log,
        )
        self.notices = RefusalNotices(
            brokers=self.brokers,
            clock=clock,
            options=part_options.notices(settings),
            send=self._send_notice,
            resume=self.transmitter.resume,
        )
        self.pinging = Pinging(
            name=settings.instance.name,
            brokers=self.brokers,
            router=self.router,
            clock=clock,
            ids=world.ids,
            status=self._status_of,
            send=self._send_notice,
            send_to=self._send_notice_to,
            answers=settings.dispatcher.notices,
        )

    def _build_arriving(self) -> None:
        """Build the dispatcher, which processes arrivals for brokers of this instance."""
        settings = self.settings
        self.dispatcher = Dispatcher(
            brokers=self.brokers,
            router=self.router,
            transmitter=self.transmitter,
            answers=self.answers,
            clock=self._with.clock,
            options=part_options.dispatcher(settings),
            spawn=self.spawn,
            log=self.log,
            pause=self._pause_receiving,
            resume=self._resume_receiving,
            notices=self.notices,
            peer_at=self._peer_at,
            not_forwarded=self._not_forwarded,
            ack_log=self.ack_log,
        )

    def _build_network(self) -> None:
        """Build the connections with peers, and what peers exchange beside dialogs."""
        world, settings = self._with, self.settings
        options = part_options.transport(settings)
        boxcars = Boxcars(transmitter=self.transmitter, forwarder=self.forwarder)
        self.destinations = Destinations(
            network=world.network,
            clock=world.clock,
            rng=Random(world.rng.random()),  # noqa: S311
            hello=Hello(
                instance_id=self.instance_id, boot_id=world.boot_id, options={BROKERS: True}
            ),
            options=options,
            fill=boxcars.fill,
            arrived=self._arrived,
            changed=self._reachable_or_not,
            noticed=self._noticed,
            log=world.log,
            listen=settings.peer_addresses,
            state=settings.endpoint.state if settings.endpoint else EndpointState.STOPPED,
            reached_self=self._reached_self,
            met=self._met,
            parted=self._parted,
            closing=self.transmitter.send_owed_acks,
        )
        self.mirrors.around = Around(
            ask=self._send_notice_to,
            is_suppressed=self._is_suppressed,
            is_own=lambda address: address in self.destinations.own_addresses(),
            own=self.mirroring.standing,
            changed=self._principal_changed,
        )
        self.duplicates = DuplicateBrokers(
            me=self.instance_id,
            here=settings.instance.name,
            clock=world.clock,
            log=self.log,
            keepalive=(options.ping_after + options.ping_timeout).total_seconds(),
            around=duplicate_brokers.Around(
                tell=self.destinations.tell_brokers,
                neighbours=self.destinations.neighbours,
                place=self.destinations.place_of,
                heard_at=self.destinations.heard_at,
                peer_at=self._peer_at,
                is_suppressed=self._is_suppressed,
                connect=self._notify,
                name_of=self._name_of,
                changed=self._duplicates_changed,
            ),
        )
        self.duplicates.set_own_list(self.router.delivering())
        self.router.barred = self.duplicates.why_barred
        self.answers.notify = self.destinations.notify
        self.answers.deliver_here = self.dispatcher.arrived
        if settings.dialog.ack_on_arrival_path:
            self.answers.hand_back = self._hand_back

    def _build_users(self) -> None:
        """Build the readers that the daemon runs, and the sessions of clients."""
        world, settings, clock = self._with, self.settings, self._with.clock
        self.readers = Readers(
            connect=self.connect_local,
            facts=self._facts,
            ready=self._ready,
            notify=self._notify_activators,
            clock=clock,
            log=self.log,
            address=settings.client_address,
            tokens=lambda: reader_token(self.instance_id, world.boot_id, world.ids.fresh()),
        )
        self.sessions = Sessions(
            instance=settings.instance.name,
            instance_id=self.instance_id,
            boot_id=world.boot_id,
            brokers=self.brokers,
            absent=self.absent.reasons,
            clock=clock,
            options=part_options.sessions(settings),
            spawn=self.spawn,
            log=world.log,
            administer=self._administer,
            on_receive=self._receive_issued,
            on_rollback=lambda broker, queue: self.readers.rolled_back(broker.name, queue),
            evaluate_rollback=self._evaluate_rollback,
            grants=[parse_grant(one) for one in settings.clients.grants],
        )

    def _build_upkeep(self) -> None:
        """Build metrics, logs, the status report and the table of periodic passes."""
        world, settings, clock = self._with, self.settings, self._with.clock
        doors = (self.destinations.endpoint.door, self.sessions.door)
        self.figures = Figures(
            doors=doors,
            brokers=self.brokers,
            dispatcher=self.dispatcher,
            forwarder=self.forwarder,
            transmitter=self.transmitter,
            destinations=self.destinations,
            readers=self.readers.running,
            times=self._times,
            locks=HeldLocks(
                open_transactions=self.sessions.open_transactions,
                readers=lambda: {one.session_id: one.reader for one in self.readers.tasks()},
                clock=clock,
            ),
            path_of=settings.store_path,
            clock=clock,
            checker=self.checker,
            free=world.disk.free if world.disk is not None else None,
            jump=self.clock_watch.jump,
        )
        self.journal = Journal(
            log=world.metrics,
            brokers=self.brokers,
            figures=self.figures,
            clock=clock,
            aside=world.executor.call,
            events=world.log,
        )
        self.settling = UnsettledEndpoints(ask=self.answers.request_first_acked, clock=clock)
        limit = settings.dialog.lingering_after
        self.lingering = LingeringDialogs(
            brokers=self.brokers, clock=clock, log=world.log, limit=limit
        )
        self.ticker = Ticker(
            passes=passes(self, clock=clock, summarise=world.summarise),
            clock=clock,
            seconds=settings.clock.tick.total_seconds(),
            log=world.log,
            spawn=self.spawn,
        )
        self.state = StateReport(
            doors=doors,
            about=About(
                instance=settings.instance.name,
                instance_id=self.instance_id,
                boot_id=world.boot_id,
                version=VERSION,
                started_at=self.started_at,
                data_dir=self._data_dir,
                path_of=settings.store_path,
                min_free=settings.store.min_free,
                lingering_after=settings.dialog.lingering_after.total_seconds(),
            ),
            brokers=self.brokers,
            absent=self.absent.reasons,
            destinations=self.destinations,
            transmitter=self.transmitter,
            readers=self.readers,
            duplicates=self.duplicates.rows,
            late=self.slow.late,
            clients=lambda: len(self.sessions),
            condition=lambda: self.condition,
            clock=self.clock_watch.warning,
            failing=lambda: {
                name: state.last_error
                for name, state in self.ticker.states.items()
                if state.last_error
            },
            unknown_users=self.sessions.principals.unknown,
            open_listeners=self.open_listeners,
            file_problems=self.file_problems,
            next_pass=lambda: self.ticker.next_run_of("transmitter"),
        )

    def _build_forwarder(self) -> None:
        """Build the forwarder, which sends arrivals for other instances on (FWD)."""
        settings, clock = self.settings, self._with.clock
        self.forwarder = Forwarder(
            router=self.router,
            clock=clock,
            options=part_options.forwarder(settings),
            report=ForwardReport(
                clock=clock,
                log=self.log,
                options=part_options.forward_report(settings),
                refuse=self._refuse_forwarding,
            ),
            notify=self._notify,
            notice=self._send_notice_to,
        )
        self.router.rebuilt = self._tables_rebuilt

    def _build_administration(self) -> None:
        """Build the views and the verbs of administration."""
        world, settings = self._with, self.settings
        endpoint = EndpointAdministration(
            settings=settings.endpoint,
            allow_plaintext=settings.transport.allow_plaintext,
            destinations=self.destinations,
            forwarding_changed=self._forwarding_changed,
            forward_bytes_used=lambda: self.forwarder.used,
            moved=self._endpoint_moved,
            log=world.log,
        )
        views = Views(
            brokers=self.brokers,
            absent=self.absent.reasons,
            known=self.known.ids,
            part_of=self.mirroring.part,
            mirrored=self.mirrors.known,
            dynamic=self.dynamic_routing.is_dynamic,
            clock=world.clock,
            stored=StoredViews(
                explain=self.state.explain,
                attempts=self.state.attempts,
                out_of_order=self.dispatcher.out_of_order,
            ),
            transport=TransportViews(
                brokers=self.brokers,
                destinations=self.destinations,
                transmitter=self.transmitter,
                dispatcher=self.dispatcher,
                forwarder=self.forwarder,
            ),
            statistics=StatisticsViews(
                brokers=self.brokers,
                transmitter=self.transmitter,
                dispatcher=self.dispatcher,
                activation=self.readers.counters,
                requests=lambda: self.dynamic_routing.outcomes,
                corrupted=lambda: self.destinations.corrupted_items,
                overruns=lambda: self.ticker.overruns,
                checker=self.checker,
            ),
            endpoint=endpoint.rows,
            transmitter=self.transmitter,
            dispatcher=self.dispatcher,
            forwarder=self.forwarder,
            readers=self.readers,
            passes=self.ticker.states,
            next_attempt=lambda: self.ticker.next_run_of("absent_brokers"),
            notifications=self.events.rows,
            error_events=self.log.errors.rows,
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
                remember=self.known.remember,
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
            upkeep=Upkeep(
                store_dirs=settings.store_dirs,
                backup_dirs=settings.backup_dirs,
                log=world.log,
            ),
            store_path=self.settings.store_path,
            make_broker=self._make_declared,
            forget=self.known.forget,
            changed=self._objects_changed,
            altered_alike=self.readers.altered_alike,
            told=self.events.objects_changed,
            tell=self._tell_peer,
            dialogs=DialogAdministration(
                explain=self.state.explain,
                attempts=self.state.attempts,
                destinations=self.destinations,
                tell_peer=self.answers.send_error,
                log=self.log,
            ),
            changing=self.sessions.exclusive.changing,
            endpoint=endpoint,
            confirm_clock=self.clock_watch.confirm,
            router=self.router,
            pinging=self.pinging,
            drain=self.readers.drain,
            log=world.log,
            events=self.log,
        )

    def _hop(self, broker_id: BrokerId) -> Hop:
        dialog = self.settings.dialog
        return Hop(broker_id, dialog.hops, dialog.time_to_live // timedelta(milliseconds=1), 0)

    async def connect_local(self, broker: str) -> Session:
        """Return a client session inside the process, for readers (design D15)."""

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

    async def connector(
        self, factory: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Make a client connection without a socket; raise the instance's failure (design D15)."""
        if self.failed.done():
            raise self.failed.result()
        return connect_local(self.sessions.factory, factory)


async def _deliver_due(broker: Broker) -> int:
    """Process what fell due while delivery was off (MAN-4); return the number of items."""
    return await expire(broker) + await timers.fire(broker)
