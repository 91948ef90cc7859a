"""Parts: the record of the parts of one instance, under the names by which they find each other.

Reads, calls: nothing.
Never:  does anything. assembly.py fills the record once, in the order of the fields, and then only
        reads it. A part that needs a part made later calls it through the record
        (peer_traffic.py, broker_events.py, changes.py).
"""

from brokerd.activation.readers import Readers
from brokerd.admin.administration import Administration
from brokerd.admin.broker_operations import Operations
from brokerd.admin.certificate_exchange import CertificateExchange
from brokerd.admin.credential_store import CredentialStore
from brokerd.admin.doctor.own import OwnDoctor
from brokerd.admin.hand_over import HandOver
from brokerd.admin.key_rotation import KeyRotation
from brokerd.admin.metrics_rows import Figures, Times
from brokerd.admin.views.state import StateReport
from brokerd.admin.views.survey import Surveys
from brokerd.admin.views.views import Views
from brokerd.broker.broker import Broker
from brokerd.checking.checker import Checker
from brokerd.clock import Instant
from brokerd.delivery.boxcars import Boxcars
from brokerd.delivery.forwarding.forwarder import Forwarder
from brokerd.delivery.incoming.dispatcher import Dispatcher
from brokerd.delivery.outgoing.ack_log import AckLog
from brokerd.delivery.outgoing.orphan_replies import OrphanReplies
from brokerd.delivery.outgoing.transmitter import Transmitter
from brokerd.delivery.peers.dialog_security import DialogSecurity
from brokerd.delivery.peers.duplicate_brokers import DuplicateBrokers
from brokerd.delivery.peers.mirrors import Mirrors
from brokerd.delivery.peers.ping import Pinging
from brokerd.delivery.peers.refusal_notices import RefusalNotices
from brokerd.delivery.peers.router import Router
from brokerd.dynamic_routing.requester import RouteRequester
from brokerd.events.events import Events
from brokerd.events.tapped_log import TappedLog
from brokerd.ids import InstanceId
from brokerd.instance.authority_files import AuthorityFiles
from brokerd.instance.exposure import Exposure
from brokerd.instance.store_places import StorePlaces
from brokerd.instance.tasks import InstanceTasks
from brokerd.maintenance.absent_brokers import AbsentBrokers
from brokerd.maintenance.audit_trail import AuditTrail
from brokerd.maintenance.certificate_expiry import CertificateExpiry
from brokerd.maintenance.clock_watch import ClockWatch
from brokerd.maintenance.disk_space import DiskSpace
from brokerd.maintenance.hung_sessions import HungSessions
from brokerd.maintenance.idle_dialogs import IdleDialogs
from brokerd.maintenance.journal import Journal
from brokerd.maintenance.known_brokers import KnownBrokers
from brokerd.maintenance.lingering_dialogs import LingeringDialogs
from brokerd.maintenance.mirroring import Mirroring
from brokerd.maintenance.slow_commits import SlowCommits
from brokerd.maintenance.store_watch import StoreWatch
from brokerd.maintenance.ticks import Ticker
from brokerd.maintenance.unsettled_endpoints import UnsettledEndpoints
from brokerd.security.credentials import Credentials
from brokerd.security.grants import Grants
from brokerd.sessions.registry import Sessions
from brokerd.transport.destinations import Destinations
from brokerd.transport.door import Door


class Parts:
    """The parts of one instance."""

    # Made before a store is open: the parts that the stores need, and those that watch the stores.
    brokers: dict[str, Broker]
    tasks: InstanceTasks
    times: Times
    checker: Checker
    disk_space: DiskSpace
    slow_commits: SlowCommits
    store_watch: StoreWatch
    store_places: StorePlaces
    hung_sessions: HungSessions
    clock_watch: ClockWatch
    hand_over: HandOver
    log: TappedLog
    """The event log, whose lines programs can subscribe to (EVT-10)."""
    events: Events
    route_requester: RouteRequester
    absent_brokers: AbsentBrokers
    known_brokers: KnownBrokers
    audit: AuditTrail
    credential_store: CredentialStore
    credentials: Credentials
    """Principals and certificates, as `credential_store` keeps them."""
    key_rotation: KeyRotation
    authority: AuthorityFiles
    """The files of a company's own CA, if there is one (SEC-67)."""
    certificate_expiry: CertificateExpiry
    mirroring: Mirroring
    mirrors: Mirrors
    grants: Grants
    http_doors: tuple[Door, ...]
    """The limits on connections to the HTTP listener, if there is one."""

    # Known or made once the stores are open, in the order in which a message meets them.
    started_at: Instant
    instance_id: InstanceId
    destinations: Destinations
    certificate_exchange: CertificateExchange
    exposure: Exposure
    router: Router
    ack_log: AckLog
    dialog_security: DialogSecurity
    orphan_replies: OrphanReplies
    transmitter: Transmitter
    refusal_notices: RefusalNotices
    pinging: Pinging
    forwarder: Forwarder
    boxcars: Boxcars
    dispatcher: Dispatcher
    duplicate_brokers: DuplicateBrokers
    readers: Readers
    sessions: Sessions
    figures: Figures
    journal: Journal
    unsettled_endpoints: UnsettledEndpoints
    lingering_dialogs: LingeringDialogs
    idle_dialogs: IdleDialogs
    ticker: Ticker
    state: StateReport
    operations: Operations
    views: Views
    administration: Administration
    surveys: Surveys
    own_doctor: OwnDoctor
