"""The settings tree: every key a configuration file may have, with its default and its range.

Keys, names and defaults of the network parts are those in the Numbers table of the network
chapter; the options of a part have the same field names. Durations are `timedelta`, sizes are
bytes.
Never:  reads a file (`loading.py` does) or knows the objects of a broker (`brokerd.objects`).
"""

import enum
import os
from collections.abc import Collection, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec

from brokerd.config import database_url
from brokerd.config.bounds import MAX_SOCKET_PATH, Count, Moment, Pattern, Range, Size, Span, Wait
from brokerd.config.exposure import OpenListener, beyond_this_machine, encrypted_http, openings
from brokerd.config.store_settings import StoreSettings
from brokerd.protocol.backoff import SuppressMode
from brokerd.protocol.wire import MAX_ITEMS

_KIB = 1024
_MIB = 1024 * _KIB
MAX_LIFETIME: Final = timedelta(seconds=2**31 - 1)
"""The longest lifetime of a dialog, also the default (DLG-10)."""


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


class EndpointState(enum.StrEnum):
    """The states of the broker endpoint (END-4)."""

    STARTED = "started"
    STOPPED = "stopped"
    DISABLED = "disabled"


class Encryption(enum.StrEnum):
    """Encryption of connections to peers (END-10)."""

    DISABLED = "disabled"
    SUPPORTED = "supported"
    REQUIRED = "required"


class Authentication(enum.StrEnum):
    """Proof of identity required of peers (END-11)."""

    CERTIFICATE = "certificate"
    CERTIFICATE_OR_PUBLIC = "certificate,public"
    NONE = "none"


class RequestFormat(enum.StrEnum):
    """Format of a request for a route (BCN-15)."""

    XML = "xml"
    JSON = "json"


class LogFormat(enum.StrEnum):
    """Form of the event log; `auto` is pretty on a terminal and JSON lines elsewhere."""

    AUTO = "auto"
    PRETTY = "pretty"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least severity that is written (MON-16)."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogTime(enum.StrEnum):
    """Format of `time` in JSON lines."""

    ISO = "iso"
    EPOCH = "epoch"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """The process, and the place of its stores."""

    name: Annotated[
        str,
        Pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "1 to 64 letters, digits, dots, - and _"),
    ] = "brokerd"
    """Name of the instance: in every log line and in the name of every metrics segment."""
    data_dir: Path = Path("data")
    """Directory of the stores, `msdb.db` and one file for each broker, unless `store.url` names a
    server; and of keys, sockets and logs."""
    fast_paths: bool = True
    """Whether ordinary messages skip steps that they do not need. This affects only speed; switch
    it off to find out whether a fault lies in these shortcuts."""


class Mirroring(msgspec.Struct, frozen=True, kw_only=True):
    """Brokers whose store is shared with a partner: one of the two is principal (RTE-55)."""

    brokers: Annotated[tuple[str, ...], Range(0, 1000)] = ()
    """Names of the brokers whose store is shared with a partner."""
    directory: Path | None = None
    """Directory of the shared stores; the partner names the same one."""


class Clients(msgspec.Struct, frozen=True, kw_only=True):
    """The listener that programs connect to, with its limits (CLP)."""

    listen: tuple[str, ...] | str = ()
    """`unix:PATH`, `TCP://host:port`, or a list with at most one `unix:PATH`; empty means
    `unix:<data_dir>/brokerd.sock`. Commands on this machine use the Unix socket (SEC-83)."""
    trust_network: bool = False
    """Whether clients of other machines may connect unencrypted, by TCP. Without it they need TLS
    and a certificate that is installed for them (SX-21)."""
    max_clients: Annotated[int, Range(1, 65_536)] = 1000
    """Most clients logged in at a time."""
    max_per_address: Annotated[int, Range(1, 65_536)] = 64
    """Most connections from one address, where clients connect over the network (END-18)."""
    max_logins: Annotated[int, Range(1, 65_536)] = 64
    """Most connections that have not logged in yet."""
    max_logins_per_address: Annotated[int, Range(1, 65_536)] = 16
    """Most connections from one address that have not logged in yet."""
    login_timeout: Moment = _seconds(10)
    """Longest time that a connection may take for its HELLO (CLP-10)."""
    outstanding: Annotated[int, Range(1, 65_536)] = 1024
    """Most requests of one client that may be unanswered."""
    max_frame: Annotated[int, Size(4 * _KIB, 64 * _MIB)] = _MIB
    """Largest frame; larger bodies are sent in several frames."""
    lock_timeout: Moment = _seconds(30)
    """Longest time that a verb waits for a conversation group (GRP-11)."""
    max_transaction_age: Moment = timedelta(minutes=10)
    """Longest time that a transaction may hold locks before it is rolled back (PBT-18)."""
    max_dialogs_per_user: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Most open dialogs in one broker that one user may have begun; 0 = no limit (REL-45)."""
    grants: Annotated[tuple[str, ...], Range(0, 10_000)] = ()
    """Permissions, such as `send on SERVICE to alice`, in addition to those that `brokerd grant`
    makes. Without any, everyone who can connect may do everything (CLP-130)."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP listener: metrics, health and the page (MON-23)."""

    enabled: bool = True
    """Whether the daemon listens for HTTP at all."""
    listen: str = ""
    """`unix:PATH` or `TCP://host:port`; empty means `unix:<data_dir>/http.sock`, unless that path
    is too long for a socket. Browsers and Prometheus need TCP, such as `TCP://127.0.0.1:8022`."""
    tls: bool = False
    """Whether connections are encrypted with the instance's certificate; callers then show a
    certificate that is installed for them. Beyond this machine it must be on (SX-25)."""
    hosts: Annotated[tuple[str, ...], Range(0, 100)] = ()
    """Further names by which browsers may address the listener, such as `brokerd.example.com`.
    Names of this machine and addresses need no entry (MON-26)."""
    max_connections: Annotated[int, Range(4, 65_536)] = 32
    """Most connections at a time."""
    max_per_address: Annotated[int, Range(1, 65_536)] = 16
    """Most connections from one address of another machine."""
    request_timeout: Moment = _seconds(10)
    """Longest time that a connection may take for a request, or be unable to take an answer."""
    page_lifetime: Annotated[timedelta, Span(_seconds(60), timedelta(days=7))] = timedelta(hours=12)
    """Time after which a browser needs a new `brokerd page`."""
    metrics_series: Annotated[int, Range(1, 1000)] = 50
    """Most queues, destinations and pairs of services with series of their own in `/metrics`, of
    each kind: those in most trouble. The rest is added up under `other` (MON-33)."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The broker endpoint, which peers connect to (END)."""

    listen: tuple[str, ...] = ("all",)
    """`all`, or IPv4 and IPv6 addresses to listen on (END-3)."""
    port: Annotated[int, Range(0, 65_535)] = 4022
    """TCP port for peers; 0 takes any free port."""
    state: EndpointState = EndpointState.STARTED
    """State of the endpoint when the daemon starts (END-4)."""
    encryption: Encryption = Encryption.REQUIRED
    """Encryption of connections to peers: `required`, `supported` (peers that do not encrypt may
    connect as `public`), or `disabled` (END-10)."""
    authentication: Authentication = Authentication.CERTIFICATE
    """Proof of identity required of peers: `certificate`; `certificate,public`, where a peer
    without one is `public`; or `none`, with encryption `disabled` only (END-11)."""
    accept_rotation: bool = True
    """Whether peers may send their next certificates over a connection that a certificate of theirs
    authenticates, and have those removed that they no longer use (SEC-64)."""
    forwarding: bool = False
    """Whether messages for other instances may pass through (FWD)."""
    forward_size_mb: Annotated[int, Range(0, 1_000_000)] = 10
    """Memory for messages that pass through, in MB of 1,000,000 bytes; when it is full,
    further messages are dropped, and their senders repeat them (END-9)."""
    drain: Wait = _seconds(5)
    """Time that open connections have to finish when the endpoint stops."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses to listen on, as `TCP://host:port`; the host `all` is every interface."""
        return tuple(
            f"TCP://[{name}]:{self.port}" if ":" in name else f"TCP://{name}:{self.port}"
            for name in self.listen
        )


class CertificateAuthority(msgspec.Struct, frozen=True, kw_only=True):
    """A company's own CA, whose certificates count in place of installed ones (SEC-67).

    Without `file` it is off, and only installed certificates count."""

    file: Path | None = None
    """Certificates of the CA, in PEM."""
    crl_file: Path | None = None
    """Lists of revoked certificates in PEM, one of each CA of a chain; when one is out of date,
    nobody is let in. Without the file, nothing is checked."""
    certificate: Path | None = None
    """The certificate of this instance, in PEM, with intermediate ones behind it."""
    key: Path | None = None
    """The private key of `certificate`, in PEM, without a password, for the daemon alone."""
    peers: str = ""
    """Rule for names: with `{name}.brokers.example`, a certificate for `west.brokers.example` is
    that of `peer:west`. Empty = peers have installed certificates."""
    clients: str = ""
    """The rule for client programs, likewise: `client:NAME`."""


class ClockSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The timer of periodic work (CLK-1)."""

    tick: Moment = _seconds(5)
    """Period of the periodic work: clean-up, retries, summaries."""
    fast_every: Annotated[int, Range(1, 1000)] = 2
    """Number of ticks between two attempts to reconnect and to classify delayed dialogs again."""
    slow_every: Annotated[int, Range(1, 1000)] = 5
    """Number of ticks between two runs of the slow passes, such as closing idle connections."""


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """Connections to peers (TRN)."""

    allow_plaintext: bool = False
    """Whether unencrypted peers beyond loopback are admitted. Anyone who can reach the port
    can then pose as any peer (SEC-10)."""
    connect_timeout: Moment = _seconds(10)
    """Longest time to open a TCP connection to a peer."""
    login_timeout: Moment = _seconds(10)
    """Longest time from connecting until both sides are ready."""
    max_peers: Annotated[int, Range(1, 65_536)] = 256
    """Most connections accepted from peers (END-18)."""
    max_per_address: Annotated[int, Range(1, 65_536)] = 64
    """Most connections accepted from one address."""
    max_logins: Annotated[int, Range(1, 65_536)] = 64
    """Most accepted connections that have not logged in yet."""
    max_logins_per_address: Annotated[int, Range(1, 65_536)] = 16
    """Most accepted connections from one address that have not logged in yet."""
    max_dialogs_per_peer: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Most open dialogs in one broker that one peer may have begun; 0 = no limit (REL-45)."""
    suppress_lost: Wait = _seconds(15)
    """Pause before connecting again after a connection was lost."""
    suppress_failed: Wait = _seconds(60)
    """Pause before connecting again after an attempt that failed."""
    suppress_mode: SuppressMode = SuppressMode.FLAT
    """`flat` always waits `suppress_failed`; `backoff` waits 1, 2, 4 ... seconds up to it
    (NBT-9)."""
    suppress_after_goodbye: bool = False
    """Whether an orderly close by the peer causes a pause as well."""
    connect_spread: Wait = _seconds(2)
    """Time over which many connection attempts that are due together are spread."""
    idle_close: Moment = _seconds(90)
    """Time without traffic after which a connection is closed."""
    ping_after: Moment = _seconds(20)
    """Silence after which a peer that owes an answer is pinged."""
    ping_timeout: Moment = _seconds(10)
    """Time that a pinged peer has to answer before the connection counts as lost."""
    arbitration_ping: Moment = _seconds(5)
    """Time that the older of two connections to one peer has to answer a ping."""
    boxcar_bytes: Annotated[int, Size(64 * _KIB, _MIB)] = 128 * _KIB
    """Most bytes packed into one network send."""
    boxcar_fragments: Annotated[int, Range(1, MAX_ITEMS)] = 512
    """Most message fragments packed into one network send."""
    max_frame: Annotated[int, Size(128 * _KIB, _MIB)] = _MIB
    """Largest frame accepted; this limit is announced to peers (TRN-33)."""
    send_mark: Annotated[int, Size(4 * _KIB, 64 * _MIB)] = 256 * _KIB
    """Number of unsent bytes of a connection at which no more are added."""
    destination_memory: Annotated[int, Size(64 * _KIB, 1024 * _MIB)] = 4 * _MIB
    """Most bytes packed or unsent for one destination; at least `send_mark` and
    `boxcar_bytes` together."""
    starvation: Moment = _seconds(10)
    """Waiting time that raises the sending priority of a message by one level."""


class Dialog(msgspec.Struct, frozen=True, kw_only=True):
    """The dialog protocol (DLP)."""

    fragment_size: Annotated[int, Size(256, 512 * _KIB)] = 32 * _KIB
    """Messages longer than this are cut into fragments of this size."""
    max_message: Annotated[int, Size(1, 2**31 - 1)] = 16 * _MIB
    """Largest body of a message (SND-12)."""
    check_aside: Annotated[int, Size(1, 2**31 - 1)] = 16 * _KIB
    """Body size from which well-formedness is checked in the separate process for checks."""
    ack_delay: Wait = _seconds(0.2)
    """Longest time that an acknowledgement waits for a message that can carry it."""
    ack_every: Annotated[int, Range(1, 256)] = 32
    """Number of unacknowledged fragments at which an acknowledgement no longer waits."""
    retry_first: Moment = _seconds(4)
    """Pause before the first retransmission; it doubles up to `retry_max` (DLP-26)."""
    retry_max: Moment = _seconds(64)
    """Longest pause between two retransmissions."""
    window_fragments: Annotated[int, Range(1, 65_536)] = 256
    """Most fragments of one dialog that are sent and not acknowledged."""
    window_bytes: Annotated[int, Size(64 * _KIB, 1024 * _MIB)] = 4 * _MIB
    """Most bytes of one dialog that are sent and not acknowledged."""
    replay_guard: Wait = timedelta(minutes=30)
    """Time for which a closed dialog is kept, so that late repeats are recognised (DLG-31)."""
    default_lifetime: Annotated[timedelta, Span(_seconds(1), MAX_LIFETIME)] = timedelta(days=365)
    """Lifetime of a dialog that is begun without one (DLG-10, REL-43)."""
    idle_after: Annotated[timedelta, Span(_seconds(0), MAX_LIFETIME)] = timedelta(days=90)
    """Time without a message either way after which a warning announces the end of a dialog;
    0 = never (REL-44)."""
    idle_notice: Annotated[timedelta, Span(_seconds(0), MAX_LIFETIME)] = timedelta(days=30)
    """Time between that warning and the end of the dialog, with an error at both sides; 0 = idle
    dialogs are never ended."""
    lingering_after: Wait = timedelta(hours=1)
    """Time after which a warning names dialogs that ended or failed on one side and that the
    other side has not ended; 0 switches the warning off (PBT-5)."""
    hops: Annotated[int, Range(1, 255)] = 10
    """Most instances that a message may pass through."""
    time_to_live: Moment = _seconds(60)
    """Longest time that one copy of a message may be under way; the message itself is repeated."""
    ack_on_arrival_path: bool = True
    """Whether an acknowledgement without a route goes back the way its message came (NBT-1)."""
    strict_error_origin: bool = False
    """Whether errors of a dialog count only if they come from the peer it sends to (NBT-24)."""


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of bodies, which run in a process of their own (OBJ-61)."""

    time: Moment = _seconds(1)
    """Processor time that one check may take, for each 4 MiB of the body or part of that."""
    memory: Annotated[int, Size(16 * _MIB, 2**40)] = 256 * _MIB
    """Memory that one check may take."""


class Transmitter(msgspec.Struct, frozen=True, kw_only=True):
    """The transmitter (XMT)."""

    max_objects: Count = 20_000
    """Most dialog endpoints of a broker, with their outgoing messages, that are kept in memory
    (XMT-3)."""
    cache_age: Moment = timedelta(minutes=5)
    """Time for which a conversation's destination is remembered after its last message (XMT-10)."""
    cache_size: Count = 10_000
    """Most conversations whose destination is remembered."""
    error_pause: Wait = _seconds(5)
    """Pause of all sending after an internal error (XMT-15)."""


class Balance(enum.StrEnum):
    """Choice of one of several routes for a new dialog (RTE-25)."""

    ROUND_ROBIN = "round_robin"
    RANDOM = "random"


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """The choice among routes (RTE)."""

    balance: Balance = Balance.ROUND_ROBIN
    """Choice of one of several equal routes for a new dialog (RTE-25)."""
    prefer_online: bool = False
    """Whether new dialogs avoid destinations that are suppressed (NBT-13)."""


class Dispatcher(msgspec.Struct, frozen=True, kw_only=True):
    """The message dispatcher (DSP)."""

    stale: Moment = _seconds(10)
    """Longest time that a fragment waits in memory for the fragment before it (DSP-9)."""
    notices: bool = True
    """Whether a neighbour is notified of the reason why its message was not accepted (NBT-4)."""
    notice_interval: Wait = _seconds(10)
    """Least time between two such notices for the same dialog and reason."""
    mem_low: Annotated[int, Size(64 * _KIB, 2**40)] = 32 * _MIB
    """Memory for arriving messages below which reading from peers resumes (DSP-10)."""
    mem_high: Annotated[int, Size(64 * _KIB, 2**40)] = 64 * _MIB
    """Memory for arriving messages above which reading from peers stops."""
    mem_hard: Annotated[int, Size(64 * _KIB, 2**40)] = 96 * _MIB
    """Memory for arriving messages above which fragments are dropped."""
    mem_dialog: Annotated[int, Size(64 * _KIB, 2**40)] = 8 * _MIB
    """Most memory for the arriving messages of one dialog."""
    max_openings: Count = 1000
    """Most dialogs of one peer whose first message is incomplete (DSP-16)."""
    batch: Annotated[int, Range(1, 65_536)] = 256
    """Most fragments stored at a time."""
    store_retries: Annotated[int, Range(1, 100)] = 3
    """Failed attempts to store a fragment after which it is dropped."""


class ForwarderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that pass through for other instances (FWD); switched on in `endpoint`."""

    max_age: Moment = _seconds(60)
    """Longest time that a message that cannot be passed on is held in memory (FWD-9)."""


class DynamicRoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Dynamic routing (BCN)."""

    lifetime: Annotated[timedelta, Span(_seconds(1), MAX_LIFETIME)] = _seconds(300)
    """Time that a request for a route waits for its answer before it counts as failed."""
    exempt_local: bool = False
    """Whether services of this instance are found without asking for a route."""
    format: RequestFormat = RequestFormat.XML
    """Format of a request for a route (BCN-15)."""
    most_open: Annotated[int, Range(1, 10_000)] = 100
    """Most requests of the instance at a time; further requests wait."""
    failures: Annotated[int, Range(1, 1000)] = 3
    """Number of consecutive failed attempts to reach the address of a route after which the
    service that supplied the route is notified."""


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The process as a whole."""

    drain: Wait = _seconds(10)
    """Time that open transactions have to finish when the daemon is asked to stop."""
    loop_blocked: Wait = _seconds(1)
    """Time after which the log names the task that blocks the event loop, with its stack (FP-8)."""
    core_dumps: bool = False
    """Whether a crash may leave a core dump, and debuggers of the daemon's user may attach to it.
    Both show keys and message bodies (SX-9)."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The event log and the metrics log (design D12)."""

    format: LogFormat = LogFormat.AUTO
    """Form of the event log; `auto` is `pretty` on a terminal and JSON lines elsewhere."""
    level: LogLevel = LogLevel.INFO
    """Least severity that is written; `debug` adds a line for each message (MON-16)."""
    time: LogTime = LogTime.ISO
    """Format of `time` in JSON lines: `iso` text, or `epoch` seconds."""
    file: Path | None = None
    """File of the event log; empty means standard error."""
    summary: Moment = _seconds(60)
    """Time within which identical events become one line with a count (MON-11)."""
    metrics_dir: Path | None = None
    """Directory of the metrics log; empty means `<data_dir>/metrics`."""
    metrics_interval: Moment = _seconds(10)
    """Time between two lines of the same figures, in whole ticks of the clock."""
    segment_age: Moment = _seconds(60)
    """Age at which a segment of the metrics log is closed and becomes readable."""
    segment_size: Annotated[int, Size(4 * _KIB, 1024 * _MIB)] = 8 * _MIB
    """Size at which a segment of the metrics log is closed."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one daemon, complete and checked."""

    instance: Instance = Instance()
    mirroring: Mirroring = Mirroring()
    clients: Clients = Clients()
    http: HttpSettings = HttpSettings()
    endpoint: Endpoint | None = None
    """The broker endpoint; None = without the section there is no endpoint (END-1)."""
    ca: CertificateAuthority = CertificateAuthority()
    clock: ClockSettings = ClockSettings()
    transport: Transport = Transport()
    dialog: Dialog = Dialog()
    checks: Checks = Checks()
    routing: Routing = Routing()
    transmitter: Transmitter = Transmitter()
    dispatcher: Dispatcher = Dispatcher()
    forwarder: ForwarderSettings = ForwarderSettings()
    bcn: DynamicRoutingSettings = DynamicRoutingSettings()
    store: StoreSettings = StoreSettings()
    daemon: DaemonSettings = DaemonSettings()
    log: LogSettings = LogSettings()

    @property
    def client_addresses(self) -> tuple[str, ...]:
        """Addresses that clients connect to, each `unix:PATH` or `TCP://host:port`."""
        said = self.clients.listen
        listen = (said,) if isinstance(said, str) and said else tuple(said)
        return listen or (f"unix:{self.instance.data_dir / 'brokerd.sock'}",)

    @property
    def client_address(self) -> str:
        """Address that clients on this machine connect to: the Unix socket, if there is one."""
        there = self.client_addresses
        return next((one for one in there if one.startswith("unix:")), there[0])

    @property
    def http_address(self) -> str:
        """Address of the HTTP listener: `unix:PATH` or `TCP://host:port`; empty = there is none."""
        if not self.http.enabled:
            return ""
        path = self.instance.data_dir / "http.sock"
        # nobody has asked for it: a long path must not refuse a start
        default = f"unix:{path}" if len(os.fsencode(path)) <= MAX_SOCKET_PATH else ""
        return self.http.listen or default

    def store_path(self, broker: str) -> Path:
        """Return the file of the store of a broker."""
        shared = self.mirroring.directory
        is_shared = shared is not None and broker in self.mirroring.brokers
        return (shared if shared and is_shared else self.instance.data_dir) / f"{broker}.db"

    @property
    def is_on_server(self) -> bool:
        """Whether the stores are in a PostgreSQL database, and not in files."""
        return bool(self.store.url)

    @property
    def shown_server(self) -> str:
        """The servers and the database of the stores, without user and password; "" = files."""
        return database_url.shown(self.store.url) if self.is_on_server else ""

    @property
    def store_dirs(self) -> tuple[Path, ...]:
        """Every directory that belongs to stores, of this instance or shared with its partner."""
        shared = self.mirroring.directory
        return (self.instance.data_dir, *(() if shared is None else (shared,)))

    @property
    def client_socket(self) -> Path | None:
        """The Unix socket that clients connect to; None = they connect over TCP."""
        address = self.client_address
        return Path(address.removeprefix("unix:")) if address.startswith("unix:") else None

    @property
    def backup_dirs(self) -> tuple[Path, ...]:
        """The directories below which clients may have backups written."""
        return self.store.backup_dirs or (self.instance.data_dir / "backups",)

    @property
    def metrics_dir(self) -> Path:
        """Directory of the metrics log."""
        return self.log.metrics_dir or self.instance.data_dir / "metrics"

    @property
    def peer_addresses(self) -> tuple[str, ...]:
        """The addresses to listen on for peers, as `TCP://host:port`; none without an endpoint."""
        return () if self.endpoint is None else self.endpoint.addresses

    def open_listeners(
        self, peer_addresses: Iterable[str], encryption: Encryption | None = None
    ) -> tuple[OpenListener, ...]:
        """Return the listeners that other machines can reach: those that are not encrypted, and
        the HTTP listener.

        `peer_addresses`: the addresses of the broker endpoint. `encryption`: as the endpoint was
        altered while it ran; None = as the settings have it."""
        if encryption is None:
            encryption = Encryption.DISABLED if self.endpoint is None else self.endpoint.encryption
        is_encrypted = encryption is Encryption.REQUIRED or (
            encryption is Encryption.SUPPORTED and not self.transport.allow_plaintext
        )
        return (
            *beyond_this_machine(
                self.client_addresses if self.clients.trust_network else (),
                () if is_encrypted else peer_addresses,
                has_grants=bool(self.clients.grants),
            ),
            *encrypted_http(self.http_address),
        )

    def openings(
        self,
        peer_addresses: Collection[str],
        encryption: Encryption | None = None,
        authentication: Authentication | None = None,
    ) -> tuple[str, ...]:
        """Return a sentence for everything else that is open; arguments as `open_listeners`."""
        endpoint = self.endpoint or Endpoint()
        return openings(
            client_addresses=self.client_addresses,
            trusts_network=self.clients.trust_network,
            peer_addresses=peer_addresses,
            encryption=(encryption or endpoint.encryption).value,
            authentication=(authentication or endpoint.authentication).value,
            allows_plaintext=self.transport.allow_plaintext,
            core_dumps=self.daemon.core_dumps,
            has_grants=bool(self.clients.grants),
            plain_http="" if self.http.tls else self.http_address,
        )
