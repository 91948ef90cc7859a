"""Reloading: the effect of SIGHUP on a running daemon (REL-38).

Reads:  the settings, from the same sources as at the start.
Calls:  the event log, the instance, the supervisor.
Never:  stops the daemon, or applies a part of settings that are invalid as a whole.
Fails:  into the event log; the daemon continues with its current settings. It reopens its log
        file even so, because the program that rotates the file waits for that.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from brokerd.config.loading import setting_texts
from brokerd.config.settings import Settings
from brokerd.errors import BrokerError
from brokerd.process.supervisor import Supervisor
from brokerd.telemetry.logs import DAEMON, EventLog

RELOADABLE: Final = frozenset(
    {"log.level", "log.file", "daemon.drain", "checks.time", "checks.memory"}
)
"""Settings that a running daemon adopts; all others need a restart."""


class Difference(msgspec.Struct, frozen=True):
    """The consequences of changed settings for a running daemon."""

    settings: Settings
    """The settings in effect from now on."""
    applied: dict[str, str]
    """The changed settings that are now in effect, by key."""
    needs_restart: dict[str, str]
    """The changed settings that take effect only after a restart, by key."""


class Reloadable(Protocol):
    """A running instance."""

    settings: Settings

    def use_settings(self, settings: Settings) -> None:
        """Adopt the settings that may change while the instance runs."""
        ...


def difference(old: Settings, new: Settings) -> Difference:
    """Return the settings after the changes that need no restart, and all changes by key."""
    before, after = setting_texts(old), setting_texts(new)
    changed = {key: after.get(key, "") for key in {**before, **after}}
    changed = {key: text for key, text in changed.items() if text != before.get(key, "")}
    applied = {key: text for key, text in changed.items() if _applies(key, old, new)}
    settings = old
    for key in applied:
        section, name = key.split(".")
        part = getattr(settings, section)
        value = getattr(getattr(new, section), name)
        part = msgspec.structs.replace(part, **{name: value})
        settings = msgspec.structs.replace(settings, **{section: part})
    return Difference(
        settings=settings,
        applied=applied,
        needs_restart={key: text for key, text in changed.items() if key not in applied},
    )


def _applies(key: str, old: Settings, new: Settings) -> bool:
    if key == "log.file":  # between a file and standard error the form of the lines changes, too
        return old.log.file is not None and new.log.file is not None
    return key in RELOADABLE


class Reloading:
    """The reader of changed settings on SIGHUP."""

    def __init__(
        self,
        *,
        instance: Reloadable,
        events: EventLog,
        supervisor: Supervisor,
        reread: Callable[[], Settings],
    ) -> None:
        self._instance = instance
        self._events = events
        self._supervisor = supervisor
        self._reread = reread

    def reload(self) -> None:
        """Read the settings, adopt those that may change, and reopen the log file."""
        self._supervisor.reloading()
        try:
            found = difference(self._instance.settings, self._reread())
            self._events.reopen(found.settings.log.file)
        except (BrokerError, OSError) as error:
            self._refuse(error)
        else:
            self._events.set_level(found.settings.log.level)
            self._instance.use_settings(found.settings)
            self._events.log.info(
                DAEMON,
                subclass="reloaded",
                applied=found.applied,
                needs_restart=found.needs_restart,
            )
        self._supervisor.ready()

    def _refuse(self, error: Exception) -> None:
        """Keep the settings in effect; reopen their log file, and log the refusal in it."""
        try:
            self._events.reopen(self._instance.settings.log.file)
        except OSError as failure:
            # equal: the file in effect is the one that could not be opened
            if str(failure) != str(error):
                self._log_refusal(failure)
        self._log_refusal(error)

    def _log_refusal(self, error: Exception) -> None:
        self._events.log.warning(
            DAEMON,
            subclass="reload_refused",
            error=error.message if isinstance(error, BrokerError) else str(error),
            hint="mend it and send SIGHUP again; until then all is as before",
        )
