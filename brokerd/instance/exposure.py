"""Exposure: the listeners and files of an instance that others can reach (SX-21, SX-24).

Reads:  the settings, the open listeners, the modes of files.      Calls: the event log.
Never:  closes a listener or corrects a file; it only reports.
"""

from collections.abc import Iterable, Mapping

from brokerd.broker.broker import Broker
from brokerd.config.exposure import OpenListener, in_clear
from brokerd.config.settings import Settings
from brokerd.model import MSDB
from brokerd.storage.files.private_files import survey
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import DAEMON
from brokerd.telemetry.status import FileProblem
from brokerd.transport.destinations import Destinations


class Exposure:
    """The open listeners and the exposed files of one instance."""

    def __init__(
        self,
        *,
        settings: Settings,
        destinations: Destinations,
        brokers: Mapping[str, Broker],
        log: Log,
        is_embedded: bool,
    ) -> None:
        self._settings = settings
        self._destinations = destinations
        self._brokers = brokers
        self._log = log
        self._is_embedded = is_embedded

    def open_listeners(self) -> tuple[OpenListener, ...]:
        """Return the listeners that are open now and that other machines can reach (SX-21)."""
        listeners = self._destinations.listeners
        listening = [one.address for one in listeners if one.address is not None]
        guard = self._destinations.peers.guard
        return self._settings.open_listeners(listening, None if guard is None else guard.encryption)

    def openings(self) -> tuple[str, ...]:
        """Return a sentence for everything else that is open now (SEC-88)."""
        listening = [one.address for one in self._destinations.listeners if one.address is not None]
        guard = self._destinations.peers.guard
        if guard is None:
            found = self._settings.openings(listening)
        else:
            found = self._settings.openings(listening, guard.encryption, guard.authentication)
        plain = (
            name
            for name, one in self._brokers.items()
            if name != MSDB and not one.store.identity.default_encryption
        )
        return (*found, *map(in_clear, sorted(plain)))

    def report(self) -> None:
        """Log each open listener: the settings permit it, but operators may not know of it."""
        for listener in self.open_listeners():
            self._log.warning(
                DAEMON,
                subclass="open_to_network",
                listener=listener.who,
                address=listener.address,
                permitted_by=listener.permitted_by,
                risk=listener.risk,
            )

    def file_problems(self) -> Iterable[FileProblem]:
        """Return the problems of the instance's files as they are now (SX-24).

        An embedded instance has none, because its program chose the directory.
        """
        settings = self._settings
        if self._is_embedded:
            return ()
        return survey(settings.store_dirs, socket=settings.client_socket)
