"""The event log: structlog set-up, the list of event names, summaries of repeats (design D12).

Reads:  the clock.      Calls: structlog; components that log call `structlog.get_logger()`.
Never:  holds bodies or keys (MON-10), waits for anything but the write itself, or lets a full
        disk affect the daemon: a line that cannot be written is counted in `lost` (FD-5).
Wakes:  a pass calls `EventLog.summarise` so that held-back repeats are written at the latest a
        minute after the first one (MON-11).
"""

import logging
import sys
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO, cast

import orjson
import structlog
from structlog.typing import FilteringBoundLogger, WrappedLogger

from brokerd.clock import SECOND, Clock, show_instant
from brokerd.config.settings import LogFormat, LogLevel, LogSettings, LogTime
from brokerd.ids import BootId, InstanceId, show
from brokerd.telemetry.log_events import EVENTS
from brokerd.telemetry.outlet import Outlet
from brokerd.telemetry.private import make_directory, open_private
from brokerd.units import printable, printable_json

# The names of events (MON-16 and its table); `log_events.py` says when each is written.

CONNECTION: Final = "broker.connection"
CONVERSATION: Final = "broker.conversation"
CONVERSATION_GROUP: Final = "broker.conversation_group"
CORRUPTED_MESSAGE: Final = "broker.corrupted_message"
FORWARDED_MESSAGE_DROPPED: Final = "broker.forwarded_message_dropped"
FORWARDED_MESSAGE_SENT: Final = "broker.forwarded_message_sent"
MESSAGE_CLASSIFY: Final = "broker.message_classify"
MESSAGE_UNDELIVERABLE: Final = "broker.message_undeliverable"
MIRRORED_ROUTE: Final = "broker.mirrored_route"
DUPLICATE_BROKER: Final = "broker.duplicate_broker"
QUEUE_DISABLED: Final = "broker.queue_disabled"
REMOTE_ACK: Final = "broker.remote_ack"
TRANSMISSION: Final = "broker.transmission"
ACTIVATION: Final = "broker.activation"
ACTIVATOR: Final = "broker.activator"
AUDIT_LOGIN: Final = "audit.broker_login"
AUDIT_CONVERSATION: Final = "audit.broker_conversation"
ADMINISTRATION: Final = "broker.administration"
CERTIFICATE: Final = "broker.certificate"
DAEMON: Final = "broker.daemon"
ENDPOINT: Final = "broker.endpoint"
STORE: Final = "broker.store"
CLOCK: Final = "broker.clock"
TICK: Final = "broker.tick"
QUEUE_STATUS: Final = "broker.queue_status"
PARKING: Final = "broker.parking"
CHECKS: Final = "broker.checks"
LOST_MESSAGES: Final = "broker.lost_messages"
LINGERING: Final = "broker.lingering_dialogs"
IDLE: Final = "broker.idle_dialogs"
HISTORY_LOST: Final = "broker.history_lost"
EVENT_NOTIFICATION: Final = "broker.event_notification"
DYNAMIC_ROUTING: Final = "broker.dynamic_routing"

SUBCLASSES: Final = {name: frozenset(event.subclasses) for name, event in EVENTS.items()}
"""Every event name, and its possible subclasses (none: the field is left out)."""

SSB_EVENT_IDS: Final = {
    name: event.ssb_id for name, event in EVENTS.items() if event.ssb_id is not None
}
"""Service Broker's number of the event class, by event name: the field `ssb_event_id`."""

MAX_KEYS: Final = 10_000
"""Most different events whose repeats are counted at a time."""

_IDENTITY = (
    *("broker", "conversation_id", "address", "queue", "route", "pass_name", "listener", "reason"),
)
_REPEATABLE = ("conversation_id", "address", "reason")
_Fields = MutableMapping[str, Any]  # structlog's own type for the fields of one event
_Key = tuple[object, ...]


class EventLog:
    """The configured event log of one process: `log` writes, a pass calls `summarise`."""

    def __init__(
        self,
        *,
        log: FilteringBoundLogger,
        repeats: "Repeats",
        output: "_Output",
        common: dict[str, str],
        copies: "_Copies",
        direct: Sequence["_Processor"],
        kind: type,
    ) -> None:
        self._kind = kind
        self._direct = direct
        self._common = common
        self._copies = copies
        self.log = log
        self._repeats = repeats
        self._output = output

    def identify(self, instance_id: InstanceId) -> None:
        """Add this id, which is known once the stores are open, to every further line."""
        self._common["instance_id"] = show(instance_id)

    def set_level(self, level: LogLevel) -> None:
        """Drop lines below this severity from now on, in all loggers."""
        _take_level(self._kind, level)

    def reopen(self, path: Path | None) -> None:
        """Reopen the log file, under the path that it has from now on (REL-38).

        Raises:
            OSError: the file cannot be opened; lines still go to the file that is open.
        """
        self._output.reopen(path)

    def copy_to(self, target: "Target") -> None:
        """Copy level and fields of further lines to `target`, except those of level debug."""
        self._copies.target = target

    def write_aside(self, severity: str, event: str, **fields: object) -> None:
        """Write a line from another thread: without a count of repeats, and without a copy."""
        line: Any = {"event": event, **fields}
        for process in self._direct:
            line = process(self._output, severity, line)
        self._output.write(line)

    @property
    def lost(self) -> int:
        """Number of lines that could not be written."""
        return self._output.lost

    def summarise(self) -> int:
        """Write one line for each event whose repeats were held back long enough (MON-11).

        Return the number of lines written.
        """
        due = self._repeats.due()
        for level, fields in due:
            self.log.log(level, fields.pop("event"), **fields)
        return len(due)

    def close(self) -> None:
        """Write the summaries of all repeats still held back, and close the file."""
        self._repeats.expire()
        self.summarise()
        self._output.close()


def configure(
    settings: LogSettings,
    *,
    clock: Clock,
    instance: str,
    boot_id: BootId,
    instance_id: InstanceId | None = None,
    terminal: TextIO | None = None,
) -> EventLog:
    """Set structlog up for this process and return its log; a second call replaces the first.

    Every line has `instance`, `instance_id` and `boot_id`. `terminal`: the output for lines if the
    settings name no file; None = standard error.

    Raises:
        OSError: the log file cannot be opened.
    """
    terminal = terminal or sys.stderr
    output = _Output(settings.file, terminal)
    copies = _Copies()
    repeats = Repeats(clock=clock, window=settings.summary.total_seconds())
    common = {"instance": instance, "boot_id": boot_id.hex()}
    if instance_id is not None:
        common["instance_id"] = show(instance_id)
    pretty = settings.format is LogFormat.PRETTY or (
        settings.format is LogFormat.AUTO and settings.file is None and terminal.isatty()
    )
    direct: list[_Processor] = [
        _stamp(clock, settings.time, {} if pretty else common),
        *(_for_people(colors=terminal.isatty()) if pretty else [_as_json]),
    ]
    kind = type("EventLogger", (structlog.make_filtering_bound_logger(logging.DEBUG),), {})
    _take_level(kind, settings.level)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            repeats,
            structlog.processors.format_exc_info,
            copies,
            *direct,
        ],
        wrapper_class=kind,
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=True,
    )
    log = cast("FilteringBoundLogger", structlog.get_logger().bind())
    return EventLog(
        log=log,
        repeats=repeats,
        output=output,
        common=common,
        copies=copies,
        direct=direct,
        kind=kind,
    )


def _take_level(kind: type, level: LogLevel) -> None:
    """Give a class of loggers the methods of a class with this level.

    The class itself must change, since components keep bound loggers. A line below the level must
    cost no more than an empty call.
    """
    for name, method in vars(structlog.make_filtering_bound_logger(level.value)).items():
        if not name.startswith("__"):
            setattr(kind, name, method)


class Repeats:
    """A processor that passes the first of identical events, and counts the others (MON-11).

    The counts are written as summaries. Events are identical if they have the same event,
    subclass, broker, conversation or address, queue, route, pass, listener and reason. Only events
    about a conversation, an address or a reason count as repeats; events of level debug were
    requested and always pass.
    """

    def __init__(self, *, clock: Clock, window: float) -> None:
        self._clock = clock
        self._window = window
        self._held: dict[_Key, _Held] = {}

    def __call__(self, _logger: WrappedLogger, method: str, fields: _Fields) -> _Fields:
        """Pass the event on, or drop it as a repeat; structlog calls this as a processor."""
        if method == "debug" or "repeated" in fields:
            return fields
        if not any(name in fields for name in _REPEATABLE):
            return fields
        key = (fields.get("event"), fields.get("subclass"), *(fields.get(n) for n in _IDENTITY))
        held = self._held.get(key)
        now = self._clock.monotonic()
        if held is None or (held.count == 0 and now >= held.until):
            self._open(key, _Held(until=now + self._window))
            return fields
        held.count += 1
        held.last = dict(fields)
        held.level = logging.getLevelNamesMapping().get(method.upper(), logging.INFO)
        raise structlog.DropEvent

    def due(self) -> list[tuple[int, dict[str, Any]]]:
        """Return level and fields of the summaries whose minute is over; restart their counts."""
        now = self._clock.monotonic()
        summaries = []
        for key, held in [(key, held) for key, held in self._held.items() if now >= held.until]:
            del self._held[key]
            if held.count:
                summaries.append((held.level, held.last | {"repeated": held.count}))
        return summaries

    def expire(self) -> None:
        """Make all summaries due now, because the process ends."""
        for held in self._held.values():
            held.until = float("-inf")

    def _open(self, key: _Key, held: "_Held") -> None:
        """Add the event; if there are too many, first drop some that have not repeated."""
        if len(self._held) >= MAX_KEYS:
            quiet = [known for known, other in self._held.items() if not other.count]
            for known in quiet[: MAX_KEYS // 2]:
                del self._held[known]
        if len(self._held) < MAX_KEYS:
            self._held[key] = held


class _Held:
    __slots__ = ("count", "last", "level", "until")

    def __init__(self, *, until: float) -> None:
        self.until = until
        self.count = 0
        self.level = logging.INFO
        self.last: dict[str, Any] = {}


Target = Callable[[str, _Fields], None]
"""Function that receives level and fields of an event, before time and ids are added."""


class _Copies:
    """A processor that passes a copy of each event to `target` (design D12)."""

    def __init__(self) -> None:
        self.target: Target | None = None

    def __call__(self, _logger: WrappedLogger, method: str, fields: _Fields) -> _Fields:
        if self.target is not None and method != "debug":
            self.target(method, fields)
        return fields


class _Output:
    """The destination of log lines; structlog uses it as a logger."""

    def __init__(self, path: Path | None, terminal: TextIO) -> None:
        self.lost = 0
        self._terminal = terminal
        self._file: BinaryIO | None = None
        self._outlet = Outlet.behind(terminal)
        if path is not None:
            make_directory(path.parent)
            self._file = open_private(path, "ab", buffering=0)

    def write(self, line: bytes) -> None:
        """Write one line, or count it as lost."""
        try:
            if self._file is not None:
                self._file.write(line)
            elif self._outlet is not None:
                self.lost += not self._outlet.write(line)
            else:
                self._terminal.write(line.decode("utf-8", "replace"))
                self._terminal.flush()
        except (OSError, ValueError):
            self.lost += 1

    def reopen(self, path: Path | None) -> None:
        """Open the file for further lines; it may be a new file of the same name."""
        if path is None:
            return
        make_directory(path.parent)
        before, self._file = self._file, open_private(path, "ab", buffering=0)
        if before is not None:
            before.close()

    def close(self) -> None:
        """Close the file; standard error stays open."""
        if self._file is not None:
            self._file.close()
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None

    msg = debug = info = warning = warn = error = err = critical = fatal = exception = log = write


_Processor = Callable[[WrappedLogger, str, _Fields], Any]


def _stamp(clock: Clock, form: LogTime, common: dict[str, str]) -> _Processor:
    """Return the processor that adds the common fields of all lines."""

    def stamp(_logger: WrappedLogger, method: str, fields: _Fields) -> _Fields:
        now = clock.utc()
        line: _Fields = {
            "time": show_instant(now) if form is LogTime.ISO else now / SECOND,
            "severity": method,
        }
        line.update(fields)
        number = SSB_EVENT_IDS.get(fields["event"])
        if number is not None:
            line["ssb_event_id"] = number
        line.update(common)
        return line

    return stamp


def _as_json(_logger: WrappedLogger, _method: str, fields: _Fields) -> bytes:
    """Return the fields as one line of JSON, with unprintable characters escaped (SX-14)."""
    return printable_json(orjson.dumps(fields, default=_plain, option=_OPTIONS)) + b"\n"


def _plain(value: object) -> object:
    """Convert a value that JSON does not know: an id to hexadecimal, anything else to its text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)


_OPTIONS = orjson.OPT_NON_STR_KEYS


def _for_people(*, colors: bool) -> list[_Processor]:
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=26, sort_keys=False, timestamp_key="time", level_styles=None
    )

    def render(logger: WrappedLogger, method: str, fields: _Fields) -> bytes:
        shown: _Fields = {
            name: _printable_lines(value) if name == "exception" else _printable(value)
            for name, value in fields.items()
        }
        shown["time"] = str(shown["time"])[11:23]
        shown["level"] = shown.pop("severity")
        shown.pop("ssb_event_id", None)
        subclass = shown.pop("subclass", "")
        shown["event"] = f"{shown['event']} {subclass}".strip()
        return f"{renderer(logger, method, shown)}\n".encode()

    return [render]


def _printable(value: object) -> object:
    """Escape unprintable characters, so that no value moves the cursor or turns text (SX-14)."""
    value = value.hex() if isinstance(value, bytes) else value
    return printable(value) if isinstance(value, str) else value


def _printable_lines(value: object) -> object:
    """Escape unprintable characters in a text of several lines, apart from the ends of lines."""
    if not isinstance(value, str):
        return value
    return "\n".join(printable(line) for line in value.split("\n"))
