"""The settings tree: every key a configuration file may have, with its default and its range.

Keys, names and defaults of the network parts are those of the Numbers table of the network
chapter; the options of a part have the same field names.  Durations are `timedelta`, sizes are
bytes.  Never:  reads a file (config.py does) or knows the objects of a broker (objects.py does).
"""

import enum
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec

from brokerd.config.exposure import OpenListener, beyond_this_machine
from brokerd.protocol.backoff import SuppressMode
from brokerd.protocol.wire import MAX_ITEMS

_KIB = 1024
_MIB = 1024 * _KIB
MAX_LIFETIME: Final = timedelta(seconds=2**31 - 1)
"""The longest lifetime of a dialog, also the default (DLG-10)."""


class Range(msgspec.Struct, frozen=True):
    """The values a number may have; both ends belong to it."""

    least: int
    most: int


class Size(Range, frozen=True):
    """Marks a number of bytes, written with a unit."""


class Span(msgspec.Struct, frozen=True):
    """The values a duration may have; both ends belong to it."""

    least: timedelta
    most: timedelta


class Pattern(msgspec.Struct, frozen=True):
    """The form a text must have, and how to say it."""

    regex: str
    meaning: str


_MOMENT = Span(least=timedelta(milliseconds=1), most=timedelta(days=1))
_AT_ONCE = Span(least=timedelta(0), most=timedelta(days=1))
Moment = Annotated[timedelta, _MOMENT]
"""A duration from 1 ms to a day."""
Wait = Annotated[timedelta, _AT_ONCE]
"""A duration from nothing to a day."""
Count = Annotated[int, Range(1, 10_000_000)]


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


class EndpointState(enum.StrEnum):
    """What the broker endpoint does (END-4)."""

    STARTED = "started"
    STOPPED = "stopped"
    DISABLED = "disabled"


class Encryption(enum.StrEnum):
    """How peers must connect (END-10). Only `disabled` works so far."""

    DISABLED = "disabled"
    SUPPORTED = "supported"
    REQUIRED = "required"


class Authentication(enum.StrEnum):
    """How peers prove who they are (END-11). Only `none` works so far."""

    CERTIFICATE = "certificate"
    CERTIFICATE_OR_PUBLIC = "certificate,public"
    NONE = "none"


class RequestFormat(enum.StrEnum):
    """How a request for a route is written (BCN-15)."""

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
    """How `time` is written in JSON lines."""

    ISO = "iso"
    EPOCH = "epoch"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """The process and where its stores are."""

    name: Annotated[
        str,
        Pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "1 to 64 letters, digits, dots, - and _"),
    ] = "brokerd"
    data_dir: Path = Path("data")
    fast_paths: bool = True
    """Whether ordinary messages skip what they do not need. Nothing but speed depends on it: switch
    it off to find out whether a fault lies there."""


class Mirroring(msgspec.Struct, frozen=True, kw_only=True):
    """Brokers whose store is shared with a partner: one of the two is principal (RTE-55)."""

    brokers: Annotated[tuple[str, ...], Range(0, 1000)] = ()
    """Their names."""
    directory: Path | None = None
    """Where their files are; the partner names the same directory."""


class Clients(msgspec.Struct, frozen=True, kw_only=True):
    """Where programs connect (CLP)."""

    listen: str = ""
    """`unix:PATH` or `TCP://host:port`; empty means `unix:<data_dir>/brokerd.sock`."""
    trust_network: bool = False
    """Whether `listen` may be reached from other machines. Nobody is known over TCP (SX-21)."""
    max_clients: Annotated[int, Range(1, 65_536)] = 1000
    """Clients that may be logged in at a time."""
    max_per_address: Annotated[int, Range(1, 65_536)] = 64
    """Connections of one address, where clients connect over the network (END-18)."""
    max_logins: Annotated[int, Range(1, 65_536)] = 64
    """Connections that have not logged in."""
    max_logins_per_address: Annotated[int, Range(1, 65_536)] = 16
    login_timeout: Moment = _seconds(10)
    """How long a connection may take for its HELLO (CLP-10)."""
    outstanding: Annotated[int, Range(1, 65_536)] = 1024
    max_frame: Annotated[int, Size(4 * _KIB, 64 * _MIB)] = _MIB
    lock_timeout: Moment = _seconds(30)
    """How long a verb waits for a conversation group (GRP-11)."""
    max_transaction_age: Moment = timedelta(minutes=10)
    """How long a transaction may hold locks (PBT-18)."""
    grants: Annotated[tuple[str, ...], Range(0, 10_000)] = ()
    """Who may do what, `receive on BROKER/QUEUE to USER` and the like; none = all may do all
    (CLP-130)."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The broker endpoint, where peers connect (END)."""

    listen: tuple[str, ...] = ("all",)
    """`all`, or IPv4 and IPv6 addresses (END-3)."""
    port: Annotated[int, Range(0, 65_535)] = 4022
    state: EndpointState = EndpointState.STARTED
    encryption: Encryption = Encryption.REQUIRED
    authentication: Authentication = Authentication.CERTIFICATE
    forwarding: bool = False
    forward_size_mb: Annotated[int, Range(0, 1_000_000)] = 10
    drain: Wait = _seconds(5)

    @property
    def addresses(self) -> tuple[str, ...]:
        """What to listen at, as `TCP://host:port`; the host `all` is every interface."""
        return tuple(
            f"TCP://[{name}]:{self.port}" if ":" in name else f"TCP://{name}:{self.port}"
            for name in self.listen
        )


class ClockSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The periodic notification (CLK-1)."""

    tick: Moment = _seconds(5)
    fast_every: Annotated[int, Range(1, 1000)] = 2
    slow_every: Annotated[int, Range(1, 1000)] = 5


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """Connections to peers (TRN)."""

    allow_plaintext: bool = False
    connect_timeout: Moment = _seconds(10)
    login_timeout: Moment = _seconds(10)
    max_peers: Annotated[int, Range(1, 65_536)] = 256
    """Connections accepted from peers, at most (END-18)."""
    max_per_address: Annotated[int, Range(1, 65_536)] = 64
    """Of them, those from one address."""
    max_logins: Annotated[int, Range(1, 65_536)] = 64
    """Of them, those that have not logged in."""
    max_logins_per_address: Annotated[int, Range(1, 65_536)] = 16
    suppress_lost: Wait = _seconds(15)
    suppress_failed: Wait = _seconds(60)
    suppress_mode: SuppressMode = SuppressMode.FLAT
    suppress_after_goodbye: bool = False
    connect_spread: Wait = _seconds(2)
    idle_close: Moment = _seconds(90)
    ping_after: Moment = _seconds(20)
    ping_timeout: Moment = _seconds(10)
    arbitration_ping: Moment = _seconds(5)
    boxcar_bytes: Annotated[int, Size(64 * _KIB, _MIB)] = 128 * _KIB
    boxcar_fragments: Annotated[int, Range(1, MAX_ITEMS)] = 512
    max_frame: Annotated[int, Size(128 * _KIB, _MIB)] = _MIB
    """Also what peers are told to keep to; a decoder takes no more (TRN-33)."""
    send_mark: Annotated[int, Size(4 * _KIB, 64 * _MIB)] = 256 * _KIB
    destination_memory: Annotated[int, Size(64 * _KIB, 1024 * _MIB)] = 4 * _MIB
    starvation: Moment = _seconds(10)


class Dialog(msgspec.Struct, frozen=True, kw_only=True):
    """The dialog protocol (DLP)."""

    fragment_size: Annotated[int, Size(256, 512 * _KIB)] = 32 * _KIB
    max_message: Annotated[int, Size(1, 2**31 - 1)] = 16 * _MIB
    check_aside: Annotated[int, Size(1, 2**31 - 1)] = 16 * _KIB
    ack_delay: Wait = _seconds(0.2)
    ack_every: Annotated[int, Range(1, 256)] = 32
    retry_first: Moment = _seconds(4)
    retry_max: Moment = _seconds(64)
    window_fragments: Annotated[int, Range(1, 65_536)] = 256
    window_bytes: Annotated[int, Size(64 * _KIB, 1024 * _MIB)] = 4 * _MIB
    replay_guard: Wait = timedelta(minutes=30)
    default_lifetime: Annotated[timedelta, Span(_seconds(1), MAX_LIFETIME)] = MAX_LIFETIME
    lingering_after: Wait = timedelta(hours=1)
    """How long one side may leave an ended or failed dialog alone before a warning (PBT-5)."""
    hops: Annotated[int, Range(1, 255)] = 10
    time_to_live: Moment = _seconds(60)
    ack_on_arrival_path: bool = True
    """Whether an acknowledgement without a route goes back the way the message came (NBT-1)."""
    strict_error_origin: bool = False
    """Whether errors count only from where the dialog sends to (NBT-24)."""


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """Checks of bodies, which run in a process of their own (OBJ-61)."""

    time: Moment = _seconds(1)
    """Processor time that one may take, for each 4 MiB of the body or part of that."""
    memory: Annotated[int, Size(16 * _MIB, 2**40)] = 256 * _MIB
    """Memory that one may take."""


class Transmitter(msgspec.Struct, frozen=True, kw_only=True):
    """The transmitter (XMT)."""

    max_objects: Count = 20_000
    """Dialog endpoints of a broker, with what they have to send, in memory (XMT-3)."""
    cache_age: Moment = timedelta(minutes=5)
    """How long it is remembered where a conversation goes that nothing comes of (XMT-10)."""
    cache_size: Count = 10_000
    """Conversations of which it is remembered."""
    error_pause: Wait = _seconds(5)


class Balance(enum.StrEnum):
    """How one of several routes is chosen for a new dialog (RTE-25)."""

    ROUND_ROBIN = "round_robin"
    RANDOM = "random"


class Routing(msgspec.Struct, frozen=True, kw_only=True):
    """The choice among routes (RTE)."""

    balance: Balance = Balance.ROUND_ROBIN
    """Routes take turns, or each dialog draws one (RTE-25)."""
    prefer_online: bool = False
    """Whether new dialogs get a destination that is suppressed only without another (NBT-13)."""


class Dispatcher(msgspec.Struct, frozen=True, kw_only=True):
    """The message dispatcher (DSP)."""

    stale: Moment = _seconds(10)
    notices: bool = True
    """Whether neighbours are told why something was not taken (NBT-4)."""
    notice_interval: Wait = _seconds(10)
    mem_low: Annotated[int, Size(64 * _KIB, 2**40)] = 32 * _MIB
    mem_high: Annotated[int, Size(64 * _KIB, 2**40)] = 64 * _MIB
    mem_hard: Annotated[int, Size(64 * _KIB, 2**40)] = 96 * _MIB
    mem_dialog: Annotated[int, Size(64 * _KIB, 2**40)] = 8 * _MIB
    max_openings: Count = 1000
    """Dialogs of one peer whose first message is not complete (DSP-16)."""
    batch: Annotated[int, Range(1, 65_536)] = 256
    store_retries: Annotated[int, Range(1, 100)] = 3


class ForwarderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What passes through for others (FWD); switched on in `endpoint`."""

    max_age: Moment = _seconds(60)
    """How long what cannot be passed on is held (FWD-9)."""


class DynamicRoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Dynamic routing (BCN)."""

    lifetime: Annotated[timedelta, Span(_seconds(1), MAX_LIFETIME)] = _seconds(300)
    """Of a request."""
    exempt_local: bool = False
    """Whether no route is asked for to a service that is here."""
    format: RequestFormat = RequestFormat.XML
    most_open: Annotated[int, Range(1, 10_000)] = 100
    """Requests of one instance at a time; the others wait for their turn."""
    failures: Annotated[int, Range(1, 1000)] = 3
    """Attempts in a row that fail at the address of a route that was made so, until the service
    that made it is told."""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The stores and their commit pipelines (design D2)."""

    flush_transactions: Annotated[int, Range(1, 65_536)] = 4096
    flush_bytes: Annotated[int, Size(64 * _KIB, 1024 * _MIB)] = 16 * _MIB
    min_free: Annotated[int, Size(0, 2**50)] = 256 * _MIB
    reserve: Annotated[int, Size(0, 2**40)] = 32 * _MIB
    backup_dirs: Annotated[tuple[Path, ...], Range(0, 100)] = ()
    """Below these clients may have backups written; empty means `<data_dir>/backups` (SX-22)."""
    slow_after: Moment = _seconds(5)
    """A commit that takes longer is told, and seen in the status (REL-34)."""


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The process as a whole."""

    drain: Wait = _seconds(10)
    loop_blocked: Wait = _seconds(1)
    """What holds the loop up for longer is named with its stack (FP-8)."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The event log and the metrics log (design D12)."""

    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO
    time: LogTime = LogTime.ISO
    file: Path | None = None
    """Standard error if it is not given."""
    summary: Moment = _seconds(60)
    metrics_dir: Path | None = None
    """`<data_dir>/metrics` if it is not given."""
    metrics_interval: Moment = _seconds(10)
    segment_age: Moment = _seconds(60)
    segment_size: Annotated[int, Size(4 * _KIB, 1024 * _MIB)] = 8 * _MIB


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one daemon, complete and checked."""

    instance: Instance = Instance()
    mirroring: Mirroring = Mirroring()
    clients: Clients = Clients()
    endpoint: Endpoint | None = None
    """No section, no broker endpoint (END-1)."""
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
    def client_address(self) -> str:
        """Where clients connect: `unix:PATH` or `TCP://host:port`."""
        return self.clients.listen or f"unix:{self.instance.data_dir / 'brokerd.sock'}"

    def store_path(self, broker: str) -> Path:
        """The file of the store of a broker."""
        shared = self.mirroring.directory
        is_shared = shared is not None and broker in self.mirroring.brokers
        return (shared if shared and is_shared else self.instance.data_dir) / f"{broker}.db"

    @property
    def store_dirs(self) -> tuple[Path, ...]:
        """Every directory that belongs to stores, of this instance or shared with its partner."""
        shared = self.mirroring.directory
        return (self.instance.data_dir, *(() if shared is None else (shared,)))

    @property
    def client_socket(self) -> Path | None:
        """The socket where clients connect, if it is one."""
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

    def open_listeners(self, peer_addresses: Iterable[str]) -> tuple[OpenListener, ...]:
        """The listeners that other machines can reach, with the endpoint at these addresses."""
        return beyond_this_machine(
            self.client_address, peer_addresses, has_grants=bool(self.clients.grants)
        )
