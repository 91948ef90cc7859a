"""Configuration of an activator: its notification queues, its programs and its log (ACT-40).

Reads:  one TOML file.      Calls: toml_file, table_checks.
Never:  asks a broker or the system whether the objects and programs named in the file exist.
Fails:  `ConfigError` with all problems at once: for each the key, the line and the remedy (BI-C3).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from brokerd.activator.table_checks import check_table, parsed
from brokerd.config.settings import LogFormat, LogLevel, LogSettings
from brokerd.config.toml_file import Problems, read
from brokerd.errors import ConfigError
from brokerd.ids import parse
from brokerd.model import OWNER
from brokerd.units import parse_duration, parse_size

HINT: Final = "see docs/how-to/activation.md for what such a file says"
MOST: Final = 32_767
OF_WORKERS: Final = ".activation"
"""Suffix that `worker run` adds to a queue's name for its own queue, service and notification."""
_Text = Annotated[str, Meta(min_length=1)]


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: the log, as in the settings of a daemon."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO
    file: str | None = None
    """Path of the log file; None = standard error."""


class General(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[activator]`: the directory of the recovery log, and the time that programs have to end."""

    state_dir: str | None = None
    """Directory of the recovery log; None = FILE.state, next to the configuration file FILE."""
    grace: str = "10s"


class NotificationService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[notification_service]]`: a queue that receives the notifications of a broker."""

    name: _Text
    queue: _Text
    address: str | None = None
    """Address of the daemon: unix:/path or TCP://host:port. None = that in BROKERD_ADDRESS, else
    unix:/run/brokerd/brokerd.sock."""
    broker: _Text = "main"
    id: str | None = None
    """GUID of the broker; the activator does not read the queue of a broker with another GUID."""
    enabled: bool = True


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[application.trigger]`: the queue whose notifications start the program (ACT-41)."""

    queue: _Text
    broker: _Text = "main"
    instance: str | None = None
    """Name of the broker's instance; None = any instance."""

    def fits(self, event: dict[str, Any]) -> bool:
        """Return whether a notification is for this trigger."""
        return (
            event.get("queue") == self.queue
            and event.get("broker") == self.broker
            and self.instance in (None, event.get("instance"))
        )


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[application.launch]`: the program and its environment."""

    command: Annotated[list[_Text], Meta(min_length=1)]
    """Program and its arguments."""
    directory: str | None = None
    environment: dict[str, str] = {}
    run_as: str = OWNER
    """Account of the system that the program runs as; the activator must be able to switch to it
    (ACT-43)."""
    memory: str = "1GiB"
    """Size of the data that a program may have; 0 = no limit."""


class Instances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[application.instances]`: the number of instances that run at a time (ACT-41, ACT-42)."""

    min: Annotated[int, Meta(ge=0, le=MOST)] = 0
    max: Annotated[int, Meta(ge=1, le=MOST)] = 1


class ApplicationService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[application]]`: a program, its trigger, and the number of its instances."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
            description="at most 64 letters, digits, dots, dashes and underscores, "
            "beginning with a letter or digit",
        ),
    ]
    trigger: Trigger
    launch: Launch
    instances: Instances = Instances()
    enabled: bool = True


class ActivatorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the configuration file, as written."""

    notification_service: list[NotificationService]
    application: list[ApplicationService]
    log: Log = Log()
    activator: General = General()


class ActivatorConfig(msgspec.Struct, frozen=True):
    """The checked and parsed configuration."""

    services: tuple[NotificationService, ...]
    applications: tuple[ApplicationService, ...]
    state_dir: Path
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL when the activator stops."""
    log: LogSettings = LogSettings()


def load(path: Path) -> ActivatorConfig:
    """Read and check a file. Raises `ConfigError` with all problems of the file."""
    source = read(path)
    problems = Problems(source)
    check_table(ActivatorFile, source.data, "", problems)
    _check_relations(source.data, problems)
    problems.raise_if_any(f"{path}: the file is wrong", error=ConfigError, hint=HINT)
    found = msgspec.convert(source.data, ActivatorFile)
    general = found.activator
    state = path.with_name(f"{path.name}.state")
    if general.state_dir is not None:
        state = path.parent / general.state_dir
    return ActivatorConfig(
        services=tuple(found.notification_service),
        applications=tuple(found.application),
        state_dir=state,
        grace=parse_duration(general.grace).total_seconds(),
        log=LogSettings(
            level=found.log.level,
            format=found.log.format,
            file=None if found.log.file is None else Path(found.log.file),
        ),
    )


def memory_of(launch: Launch) -> int:
    """Return the number of bytes of data that a program may have; 0 = no limit."""
    return parse_size(launch.memory)


def for_one_queue(
    queue: str, command: list[str], *, address: str, broker: str, state_dir: Path, most: int
) -> ActivatorConfig:
    """Return the configuration of `brokerd worker run --exec`: one program for one queue."""
    notifications = f"{queue}{OF_WORKERS}"
    return ActivatorConfig(
        services=(NotificationService("worker", notifications, address=address, broker=broker),),
        applications=(
            ApplicationService(
                "worker", Trigger(queue, broker), Launch(command), Instances(max=most)
            ),
        ),
        state_dir=state_dir,
    )


def _check_relations(data: Mapping[str, object], problems: Problems) -> None:
    """Record the problems that checks of single values by their types cannot find."""
    # Values may still be of any type: the first check continues after a problem, so that all
    # problems are reported together (BI-C3).
    for kind in ("notification_service", "application"):
        seen = set[object]()
        for place, one in _tables(data, kind):
            name = one.get("name")
            if isinstance(name, str) and name in seen:
                problems.add(f"{place}.name", f"{name!r} is there twice")
            seen.add(name if isinstance(name, str) else None)
    for place, one in _tables(data, "notification_service"):
        parsed(parse, one.get("id"), f"{place}.id", problems)
    for place, one in _tables(data, "application"):
        launch, instances = one.get("launch"), one.get("instances")
        if isinstance(launch, Mapping):
            parsed(parse_size, launch.get("memory"), f"{place}.launch.memory", problems)
        if isinstance(instances, Mapping):
            low, high = instances.get("min", 0), instances.get("max", 1)
            if isinstance(low, int) and isinstance(high, int) and low > high:
                problems.add(f"{place}.instances.min", f"must not be above max, which is {high}")
    general = data.get("activator")
    if isinstance(general, Mapping):
        parsed(parse_duration, general.get("grace"), "activator.grace", problems)


def _tables(data: Mapping[str, object], kind: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the tables of a kind, each with the place that identifies it in a problem."""
    found = data.get(kind)
    for number, one in enumerate(found if isinstance(found, list) else (), start=1):
        if isinstance(one, Mapping):
            yield f"{kind}[{number}]", one
