"""What an activator is told: whom it listens to, what it starts, how it logs (ACT-40).

Reads:  one TOML file.      Calls: nothing.
Never:  asks a broker or the system whether what the file names is there.
Fails:  `ConfigError` names the file and what is wrong with it.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from brokerd.errors import ConfigError
from brokerd.ids import parse
from brokerd.model import OWNER
from brokerd.settings import LogFormat, LogLevel, LogSettings
from brokerd.tomlfile import read
from brokerd.units import parse_duration, parse_size

HINT: Final = "see docs/activation.md for what such a file says"
MOST: Final = 32_767
OF_WORKERS: Final = ".activation"
"""Behind the name of a queue: the queue, service and notification that `worker run` declares."""
_T = TypeVar("_T")
_Text = Annotated[str, Meta(min_length=1)]


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: as in the settings of a daemon."""

    level: LogLevel = LogLevel.INFO
    format: LogFormat = LogFormat.AUTO
    file: str | None = None
    """Standard error if it is not given."""


class General(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[activator]`: where it keeps its recovery log, and how long programs may take to end."""

    state_dir: str | None = None
    """By default beside the file: FILE.state."""
    grace: str = "10s"


class NotificationService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[notification_service]]`: a queue to which the notifications of a broker come."""

    name: _Text
    queue: _Text
    address: str | None = None
    """unix:/path or tcp://host:port of its daemon; by default BROKERD_ADDRESS, or the socket."""
    broker: _Text = "main"
    id: str | None = None
    """The broker's GUID: an instance that has another one is not listened to."""
    enabled: bool = True


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[application.trigger]`: of which queue the notifications are that start it (ACT-41)."""

    queue: _Text
    broker: _Text = "main"
    instance: str | None = None
    """None = of whichever instance."""

    def fits(self, told: dict[str, Any]) -> bool:
        """Whether a notification is for it."""
        return (
            told.get("queue") == self.queue
            and told.get("broker") == self.broker
            and self.instance in (None, told.get("instance"))
        )


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[application.launch]`: what is run."""

    command: Annotated[list[_Text], Meta(min_length=1)]
    """Program and arguments."""
    directory: str | None = None
    environment: dict[str, str] = {}
    run_as: str = OWNER
    """Another account of the system, for an activator that may switch to it (ACT-43)."""
    memory: str = "1GiB"
    """Data that a program may have; 0 = no limit."""


class Instances(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[application.instances]`: how many run at a time (ACT-41, ACT-42)."""

    min: Annotated[int, Meta(ge=0, le=MOST)] = 0
    max: Annotated[int, Meta(ge=1, le=MOST)] = 1


class ApplicationService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[application]]`: a program, when it is started, how often."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    trigger: Trigger
    launch: Launch
    instances: Instances = Instances()
    enabled: bool = True


class ActivatorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it stands."""

    notification_service: list[NotificationService]
    application: list[ApplicationService]
    log: Log = Log()
    activator: General = General()


class ActivatorConfig(msgspec.Struct, frozen=True):
    """The file, checked."""

    services: tuple[NotificationService, ...]
    applications: tuple[ApplicationService, ...]
    state_dir: Path
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL when the activator stops."""
    log: LogSettings = LogSettings()


def load(path: Path) -> ActivatorConfig:
    """Read and check a file. `ConfigError`: what is wrong with it."""
    try:
        found = msgspec.convert(read(path).data, ActivatorFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}", hint=HINT) from None
    general = found.activator
    for kind, names in (
        ("notification_service", [one.name for one in found.notification_service]),
        ("application", [one.name for one in found.application]),
    ):
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"{path}: {kind} {name!r} is there twice", hint=HINT)
    for service in found.notification_service:
        if service.id is not None:
            _value(path, f"notification_service {service.name}: id", service.id, parse)
    for one in found.application:
        if one.instances.min > one.instances.max:
            raise ConfigError(f"{path}: application {one.name}: min is above max", hint=HINT)
        _value(path, f"application {one.name}: memory", one.launch.memory, parse_size)
    grace: timedelta = _value(path, "activator.grace", general.grace, parse_duration)
    state = path.with_name(f"{path.name}.state")
    if general.state_dir is not None:
        state = path.parent / general.state_dir
    return ActivatorConfig(
        services=tuple(found.notification_service),
        applications=tuple(found.application),
        state_dir=state,
        grace=grace.total_seconds(),
        log=LogSettings(
            level=found.log.level,
            format=found.log.format,
            file=None if found.log.file is None else Path(found.log.file),
        ),
    )


def memory_of(launch: Launch) -> int:
    """Bytes of data that a program may have; 0 = no limit."""
    return parse_size(launch.memory)


def for_one_queue(
    queue: str, command: list[str], *, address: str, broker: str, state_dir: Path, most: int
) -> ActivatorConfig:
    """What `brokerd worker run --exec` is: one program for one queue."""
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


def _value(path: Path, where: str, text: str, read_it: Callable[[str], _T]) -> _T:
    try:
        return read_it(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {where}: {error}", hint=HINT) from None
