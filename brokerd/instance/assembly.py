"""Assembly: makes every part of one instance, once, and gives each the collaborators it needs.

Reads:  settings.      Calls: the constructors of all parts.
Never:  starts, stops or waits for anything (instance.py does).
"""

from datetime import timedelta
from functools import partial
from random import Random

import msgspec

from brokerd.activation.readers import Readers
from brokerd.admin.administration import Administration
from brokerd.admin.broker_endpoint import EndpointAdministration
from brokerd.admin.broker_operations import Operations, Surrounding
from brokerd.admin.dialogs import DialogAdministration
from brokerd.admin.metrics_rows import Figures, Times
from brokerd.admin.views.locks import HeldLocks
from brokerd.admin.views.security import SecurityViews
from brokerd.admin.views.state import About, StateReport
from brokerd.admin.views.statistics import StatisticsViews
from brokerd.admin.views.stored import StoredViews
from brokerd.admin.views.transport import TransportViews
from brokerd.admin.views.views import Views
from brokerd.broker.broker import Broker
from brokerd.checking.checker import InProcess
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
from brokerd.instance.broker_events import BrokerEvents
from brokerd.instance.changes import Changes
from brokerd.instance.exposure import Exposure
from brokerd.instance.local_clients import LocalClients
from brokerd.instance.parts import Parts
from brokerd.instance.passes import passes
from brokerd.instance.peer_logins import login_guard, secured
from brokerd.instance.peer_traffic import PeerTraffic
from brokerd.instance.reader_events import ReaderEvents
from brokerd.instance.security_parts import (
    administer,
    admission,
    build_certificate_exchange,
    build_credentials,
    build_dialog_security,
    grant_administration,
    principal_administration,
)
from brokerd.instance.stores import Stores
from brokerd.instance.surroundings import Surroundings
from brokerd.instance.tasks import InstanceTasks
from brokerd.instance.watches import build_watches, watch_dialogs
from brokerd.maintenance import timers
from brokerd.maintenance.absent_brokers import AbsentBrokers
from brokerd.maintenance.dialog_expiry import expire
from brokerd.maintenance.journal import Journal
from brokerd.maintenance.known_brokers import KnownBrokers
from brokerd.maintenance.mirroring import Mirroring
from brokerd.maintenance.ticks import Ticker
from brokerd.protocol.brokers import OPTION as BROKERS
from brokerd.protocol.certificate_lists import OPTION as CERTIFICATES
from brokerd.protocol.frames import Hop
from brokerd.protocol.neighbour import Hello
from brokerd.routing.choice import Balancer
from brokerd.sessions.registry import Sessions, reader_token
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import MESSAGE_CLASSIFY
from brokerd.transport.destinations import Destinations

VERSION = "1.0.0rc1"


class Assembly:
    """The builder of one instance's parts, which it also connects; used once."""

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        """Build the parts that the stores need, and those that watch the stores."""
        clock = SteadyClock(surroundings.clock)
        surroundings = msgspec.structs.replace(surroundings, clock=clock)
        self.surroundings = surroundings
        self._settings = settings
        self.parts = parts = Parts()
        self.changes = Changes(parts)
        self.local_clients = LocalClients(parts, surroundings)
        self.stores = Stores(
            parts,
            settings=settings,
            surroundings=surroundings,
            broker_events=BrokerEvents(parts, daemon_log=surroundings.log),
            changes=self.changes,
        )
        self._traffic = PeerTraffic(parts, instance=settings.instance.name, changes=self.changes)
        parts.brokers = {}
        parts.tasks = InstanceTasks(parts.brokers)
        parts.times = Times()
        parts.checker = surroundings.checker or InProcess()
        build_watches(parts, settings, surroundings, clock)
        self._build_events()
        self._build_broker_lists()
        build_credentials(parts, settings, surroundings)
        parts.mirrors = Mirrors(clock=surroundings.clock, log=parts.log)

    def _build_events(self) -> None:
        """Build the event log, event notifications and dynamic routing."""
        parts, world, settings = self.parts, self.surroundings, self._settings
        parts.log = TappedLog(world.log, ErrorEvents(world.clock))
        parts.events = Events(
            instance=settings.instance.name,
            brokers=parts.brokers,
            clock=world.clock,
            spawn=parts.tasks.spawn,
            log=parts.log,
        )
        parts.log.happened = parts.events.happened
        parts.route_requester = RouteRequester(
            brokers=parts.brokers,
            clock=world.clock,
            spawn=parts.tasks.spawn,
            log=parts.log,
            options=part_options.asking(settings),
            answered=self.changes.routes_answered,
            failures=lambda address: parts.destinations.status(address).failures,
        )

    def _build_broker_lists(self) -> None:
        """Build the lists of brokers that are absent, known, or shared with a partner."""
        parts, world, settings = self.parts, self.surroundings, self._settings
        shared = frozenset(settings.mirroring.brokers)
        parts.absent_brokers = AbsentBrokers(
            open_broker=self.stores.open_absent,
            opened=self.changes.broker_opened,
            log=world.log,
            mirrored=shared,
        )
        parts.known_brokers = KnownBrokers(
            path_of=settings.store_path,
            brokers=parts.brokers,
            absent=parts.absent_brokers,
            is_missing=world.executor.is_missing,
            missing=self.stores.missing,
            log=world.log,
            keeps=world.only is None,
        )
        parts.mirroring = Mirroring(
            names=shared,
            path_of=settings.store_path,
            brokers=parts.brokers,
            absent=parts.absent_brokers,
            aside=world.executor.call,
            spawn=parts.tasks.spawn,
            stale=parts.tasks.fail_store,
        )

    def build(self) -> None:
        """Build the other parts, in the order in which a message meets them, and connect them.

        Called once the stores are open, because the routing tables are built from them."""
        rng = self.surroundings.rng
        turns, delays = Random(rng.random()), Random(rng.random())  # noqa: S311  # not secrets
        self._build_network(delays)
        self._build_sending(turns)
        self._build_forwarder()
        self._build_arriving()
        self._build_users()
        self._build_upkeep()
        self._build_administration()
        self._connect()

    def _connect(self) -> None:
        """Connect parts with the parts that were built after them."""
        parts, traffic, destinations = self.parts, self._traffic, self.parts.destinations
        router = parts.router
        router.missing = parts.route_requester.missing
        router.missing_binding = parts.route_requester.missing_binding
        router.ambiguous = partial(_warn_of_ambiguity, self.surroundings.log)
        router.barred = parts.duplicate_brokers.why_barred
        router.rebuilt = self.changes.tables_rebuilt
        parts.duplicate_brokers.set_own_list(router.delivering())
        parts.mirrors.around = Around(
            ask=destinations.notice_to,
            is_suppressed=destinations.is_suppressed,
            is_own=lambda address: address in destinations.own_addresses(),
            own=parts.mirroring.standing,
            changed=self.changes.principal_changed,
        )
        parts.orphan_replies.notify = destinations.notify
        parts.orphan_replies.deliver_here = parts.dispatcher.arrived
        if self._settings.dialog.ack_on_arrival_path:
            parts.orphan_replies.hand_back = traffic.hand_back

    def _build_network(self, delays: Random) -> None:
        """Build the connections to peers."""
        parts, world, settings = self.parts, self.surroundings, self._settings
        parts.destinations = Destinations(
            network=world.network,
            clock=world.clock,
            rng=delays,
            hello=Hello(
                instance_id=parts.instance_id,
                boot_id=world.boot_id,
                options={BROKERS: True, CERTIFICATES: True},
            ),
            options=part_options.transport(settings),
            events=self._traffic,
            log=world.log,
            listen=settings.peer_addresses,
            state=settings.endpoint.state if settings.endpoint else EndpointState.STOPPED,
            guard=login_guard(parts, settings, world),
        )
        parts.credentials.watch(parts.destinations.check_identities)
        parts.grants.watch(parts.destinations.check_identities)
        build_certificate_exchange(parts, settings, world)
        parts.exposure = Exposure(
            settings=settings,
            destinations=parts.destinations,
            brokers=parts.brokers,
            log=world.log,
            is_embedded=world.only is not None,
        )

    def _build_sending(self, turns: Random) -> None:
        """Build the parts that route outgoing messages and hand them to a destination."""
        parts, world, settings = self.parts, self.surroundings, self._settings
        clock, destinations = world.clock, parts.destinations
        parts.router = Router(
            brokers=parts.brokers,
            absent=parts.absent_brokers.reasons,
            known=parts.known_brokers.ids,
            clock=clock,
            balancer=Balancer(rng=turns, at_random=settings.routing.balance is Balance.RANDOM),
            own_addresses=frozenset(),
            forwarding=settings.endpoint.forwarding if settings.endpoint else False,
            avoid=destinations.is_suppressed if settings.routing.prefer_online else None,
            exempt_local=settings.bcn.exempt_local,
            mirrors=parts.mirrors,
            options=part_options.arrival_routes(settings),
        )
        parts.ack_log = AckLog(log=parts.log, is_on=part_options.logs_each_ack(settings))
        parts.dialog_security = build_dialog_security(parts, world)
        parts.orphan_replies = OrphanReplies(
            router=parts.router,
            security=parts.dialog_security,
            hop=partial(_hop, settings),
            ack_log=parts.ack_log,
        )
        parts.transmitter = Transmitter(
            brokers=parts.brokers,
            router=parts.router,
            security=parts.dialog_security,
            clock=clock,
            options=part_options.transmitter(settings),
            notify=destinations.notify,
            is_online=destinations.is_online,
            deliver_here=self._traffic.deliver_here,
            orphan_replies=parts.orphan_replies.dequeue,
            hand_back=self._traffic.hand_back if settings.dialog.ack_on_arrival_path else None,
            log=parts.log,
            ack_log=parts.ack_log,
        )
        parts.refusal_notices = RefusalNotices(
            brokers=parts.brokers,
            clock=clock,
            options=part_options.notices(settings),
            send=destinations.notice,
            resume=parts.transmitter.resume,
        )
        parts.pinging = Pinging(
            name=settings.instance.name,
            brokers=parts.brokers,
            router=parts.router,
            clock=clock,
            ids=world.ids,
            status=destinations.status,
            send=destinations.notice,
            send_to=destinations.notice_to,
            answers=settings.dispatcher.notices,
        )

    def _build_forwarder(self) -> None:
        """Build the forwarder, which sends arrivals for other instances on (FWD)."""
        parts, settings, clock = self.parts, self._settings, self.surroundings.clock
        parts.forwarder = Forwarder(
            router=parts.router,
            clock=clock,
            options=part_options.forwarder(settings),
            report=ForwardReport(
                clock=clock,
                log=parts.log,
                options=part_options.forward_report(settings),
                refuse=self._traffic.refuse_forwarding,
            ),
            notify=parts.destinations.notify,
            notice=parts.destinations.notice_to,
        )
        parts.boxcars = Boxcars(transmitter=parts.transmitter, forwarder=parts.forwarder)

    def _build_arriving(self) -> None:
        """Build the dispatcher, which processes arrivals for brokers of this instance."""
        parts, settings, destinations = self.parts, self._settings, self.parts.destinations
        parts.dispatcher = Dispatcher(
            brokers=parts.brokers,
            router=parts.router,
            transmitter=parts.transmitter,
            answers=parts.orphan_replies,
            security=parts.dialog_security,
            clock=self.surroundings.clock,
            options=part_options.dispatcher(settings),
            spawn=parts.tasks.spawn,
            log=parts.log,
            pause=destinations.pause_receiving,
            resume=destinations.resume_receiving,
            notices=parts.refusal_notices,
            peer_at=destinations.peer_at,
            admission=admission(parts),
            not_forwarded=parts.forwarder.report.log_drop,
            ack_log=parts.ack_log,
        )
        options = part_options.transport(settings)
        parts.duplicate_brokers = DuplicateBrokers(
            me=parts.instance_id,
            here=settings.instance.name,
            clock=self.surroundings.clock,
            log=parts.log,
            keepalive=(options.ping_after + options.ping_timeout).total_seconds(),
            around=duplicate_brokers.Around(
                tell=destinations.tell_brokers,
                neighbours=destinations.neighbours,
                place=destinations.place_of,
                heard_at=destinations.heard_at,
                peer_at=destinations.peer_at,
                is_suppressed=destinations.is_suppressed,
                connect=destinations.notify,
                name_of=self._traffic.broker_name,
                changed=self.changes.duplicates_changed,
            ),
        )

    def _build_users(self) -> None:
        """Build the readers that the daemon runs, and the sessions of clients."""
        parts, world, settings = self.parts, self.surroundings, self._settings
        clock, reader_events = world.clock, ReaderEvents(parts)
        parts.readers = Readers(
            connect=self.local_clients.open_session,
            facts=reader_events.facts,
            ready=reader_events.ready,
            notify=reader_events.notify_activators,
            clock=clock,
            log=parts.log,
            address=settings.client_address,
            tokens=lambda: reader_token(parts.instance_id, world.boot_id, world.ids.fresh()),
        )
        parts.sessions = Sessions(
            instance=settings.instance.name,
            instance_id=parts.instance_id,
            boot_id=world.boot_id,
            brokers=parts.brokers,
            absent=parts.absent_brokers.reasons,
            clock=clock,
            options=part_options.sessions(settings),
            spawn=parts.tasks.spawn,
            log=world.log,
            administer=partial(administer, parts),
            on_receive=reader_events.may_receive,
            on_rollback=reader_events.rolled_back,
            evaluate_rollback=reader_events.count_for_poison,
            grants=parts.grants,
            audit=parts.audit,
            certified=parts.credentials.principals,
        )

    def _build_upkeep(self) -> None:
        """Build metrics, logs, the status report and the table of periodic passes."""
        parts, world, settings = self.parts, self.surroundings, self._settings
        clock = world.clock
        doors = (parts.destinations.endpoint.door, parts.sessions.door, *parts.http_doors)
        parts.figures = Figures(
            doors=doors,
            brokers=parts.brokers,
            dispatcher=parts.dispatcher,
            forwarder=parts.forwarder,
            transmitter=parts.transmitter,
            destinations=parts.destinations,
            readers=parts.readers.running,
            times=parts.times,
            locks=HeldLocks(
                open_transactions=parts.sessions.open_transactions,
                readers=lambda: {one.session_id: one.reader for one in parts.readers.tasks()},
                clock=clock,
            ),
            store_sizes=parts.store_places.sizes,
            clock=clock,
            checker=parts.checker,
            free=world.disk.free if world.disk is not None else None,
            jump=parts.clock_watch.jump,
            certificate_days=parts.certificate_expiry.days_left,
        )
        parts.journal = Journal(
            log=world.metrics,
            brokers=parts.brokers,
            figures=parts.figures,
            clock=clock,
            aside=world.executor.call,
            events=world.log,
        )
        watch_dialogs(parts, settings, world, clock)
        parts.ticker = Ticker(
            passes=passes(parts, settings, clock=clock, summarise=world.summarise),
            clock=clock,
            seconds=settings.clock.tick.total_seconds(),
            log=world.log,
            spawn=parts.tasks.spawn,
        )
        parts.state = StateReport(
            doors=doors,
            about=About(
                instance=settings.instance.name,
                instance_id=parts.instance_id,
                boot_id=world.boot_id,
                version=VERSION,
                started_at=parts.started_at,
                data_dir=settings.instance.data_dir,
                stores=parts.store_places,
                min_free=settings.store.min_free,
                lingering_after=settings.dialog.lingering_after.total_seconds(),
            ),
            brokers=parts.brokers,
            absent=parts.absent_brokers.reasons,
            destinations=parts.destinations,
            transmitter=parts.transmitter,
            readers=parts.readers,
            duplicates=parts.duplicate_brokers.rows,
            late=parts.slow_commits.late,
            clients=lambda: len(parts.sessions),
            condition=lambda: parts.tasks.condition,
            clock=parts.clock_watch.warning,
            failing=parts.ticker.failing,
            idle=parts.idle_dialogs.texts,
            unknown_users=parts.sessions.principals.unknown,
            open_listeners=parts.exposure.open_listeners,
            openings=parts.exposure.openings,
            open_to_public=parts.grants.open_to_public,
            file_problems=parts.exposure.file_problems,
            certificates=parts.certificate_expiry.soon,
            no_master_key=parts.key_rotation.why_no_key,
            failed_dialogs=parts.log.errors.failed_since,
            refused_logins=parts.log.errors.refused_logins_since,
            next_pass=lambda: parts.ticker.next_run_of("transmitter"),
        )

    def _build_administration(self) -> None:
        """Build the views and the verbs of administration."""
        parts, world, settings = self.parts, self.surroundings, self._settings
        endpoint = EndpointAdministration(
            settings=settings.endpoint,
            allow_plaintext=settings.transport.allow_plaintext,
            destinations=parts.destinations,
            forwarding_changed=self.changes.forwarding_changed,
            forward_bytes_used=lambda: parts.forwarder.used,
            moved=self.changes.endpoint_moved,
            secured=partial(secured, parts),
            log=world.log,
        )
        views = parts.views = Views(
            brokers=parts.brokers,
            absent=parts.absent_brokers.reasons,
            known=parts.known_brokers.ids,
            part_of=parts.mirroring.part,
            mirrored=parts.mirrors.known,
            dynamic=parts.route_requester.is_dynamic,
            clock=world.clock,
            stored=StoredViews(
                explain=parts.state.explain,
                attempts=parts.state.attempts,
                out_of_order=parts.dispatcher.out_of_order,
            ),
            transport=TransportViews(
                brokers=parts.brokers,
                destinations=parts.destinations,
                transmitter=parts.transmitter,
                dispatcher=parts.dispatcher,
                forwarder=parts.forwarder,
            ),
            statistics=StatisticsViews(
                brokers=parts.brokers,
                transmitter=parts.transmitter,
                dispatcher=parts.dispatcher,
                activation=parts.readers.counters,
                requests=lambda: parts.route_requester.outcomes,
                corrupted=lambda: parts.destinations.corrupted_items,
                overruns=lambda: parts.ticker.overruns,
                checker=parts.checker,
            ),
            security=SecurityViews(
                credentials=parts.credentials, brokers=parts.brokers, clock=world.clock
            ),
            endpoint=endpoint.rows,
            transmitter=parts.transmitter,
            dispatcher=parts.dispatcher,
            forwarder=parts.forwarder,
            readers=parts.readers,
            ticker=parts.ticker,
            notifications=parts.events.rows,
            error_events=parts.log.errors.rows,
            grants=parts.grants,
        )
        parts.operations = Operations(
            brokers=parts.brokers,
            ids=world.ids,
            instance_id=parts.instance_id,
            host=world.host,
            around=Surrounding(
                hold=partial(_hold, parts.sessions),
                release=parts.sessions.exclusive.release,
                switched=self.changes.delivery_switched,
                remember=parts.known_brokers.remember,
                tell=self._traffic.send_error,
                expire=_deliver_due,
            ),
            log=world.log,
        )
        parts.administration = Administration(
            brokers=parts.brokers,
            absent=parts.absent_brokers.reasons,
            state=parts.state,
            views=views,
            operations=parts.operations,
            upkeep=part_options.upkeep(settings, world.log),
            stores=self.stores,
            forget=parts.known_brokers.forget,
            changes=self.changes,
            readers=parts.readers,
            tell=self._traffic.send_error,
            dialogs=DialogAdministration(
                explain=parts.state.explain,
                attempts=parts.state.attempts,
                destinations=parts.destinations,
                tell_peer=parts.orphan_replies.send_error,
                log=parts.log,
            ),
            changing=parts.sessions.exclusive.changing,
            endpoint=endpoint,
            grants=grant_administration(parts, settings, world),
            principals=principal_administration(parts, world),
            confirm_clock=parts.clock_watch.confirm,
            hand_over=parts.hand_over,
            router=parts.router,
            pinging=parts.pinging,
            log=world.log,
            events=parts.log,
        )


def _hop(settings: Settings, broker_id: BrokerId) -> Hop:
    dialog = settings.dialog
    return Hop(broker_id, dialog.hops, dialog.time_to_live // timedelta(milliseconds=1), 0)


def _warn_of_ambiguity(log: Log, service: str, brokers: list[str]) -> None:
    """Warn that several brokers have a service, and that no route or dialog names one (NBT-18)."""
    log.warning(
        MESSAGE_CLASSIFY,
        subclass="ambiguous",
        to_service=service,
        candidates=", ".join(brokers),
        chosen=brokers[0],
        hint="name the broker in the dialog, or in a route",
    )


async def _hold(sessions: Sessions, broker: Broker, force: bool, wait: float) -> None:
    await sessions.exclusive.hold(broker, force=force, wait=wait)


async def _deliver_due(broker: Broker) -> int:
    """Expire dialogs and fire timers that fell due while delivery was off (MAN-4).

    Return their number."""
    return await expire(broker) + await timers.fire(broker)
