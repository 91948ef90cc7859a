"""Instance: the life of one daemon's parts, started in one order and stopped in reverse.

The parts are named in parts.py, and built and connected in assembly.py; their stores are opened in
stores.py, their periodic work is listed in passes.py.
Reads: settings.      Calls: all parts.
Never: installs signal handlers or picks a loop (daemon.py does), so that tests and the simulation
run the same instance on other clocks, networks and executors.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

from brokerd.config.settings import Settings
from brokerd.errors import BrokerError, PortTaken
from brokerd.instance import part_options
from brokerd.instance.assembly import VERSION, Assembly
from brokerd.instance.client_logins import ClientLogins
from brokerd.instance.http_parts import build_listener, connect_listener
from brokerd.instance.pairing_parts import build_pairing
from brokerd.instance.report_parts import build_reports
from brokerd.instance.surroundings import Surroundings
from brokerd.objects.declared import Declared
from brokerd.storage.connections import SQLITE_VERSION
from brokerd.storage.files.private_files import make_private_directory
from brokerd.telemetry.logs import DAEMON
from brokerd.transport.network import Listening, let_others_in

__all__ = ["Instance", "Surroundings"]

T = TypeVar("T")


class Instance:
    """One running instance with its brokers."""

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        self.settings = settings
        self._assembly = Assembly(settings, surroundings)
        self.surroundings = self._assembly.surroundings
        """The outside world as the parts use it, with a clock that never runs backwards."""
        self.parts = self._assembly.parts
        self.stores = self._assembly.stores
        self.local_clients = self._assembly.local_clients
        self.brokers = self.parts.brokers
        self.failed = self.parts.tasks.failed
        """Future of the error with which the instance cannot continue; the daemon then stops."""
        self._listening: list[Listening] = []
        self.http = build_listener(self.parts, settings, self.surroundings, VERSION)
        """The HTTP listener; None = the instance does not listen for HTTP."""
        self.parts.http_doors = () if self.http is None else (self.http.door,)
        self._answers_http = False
        self._tick_task: asyncio.Task[None]
        self._reader_task: asyncio.Task[None]

    @property
    def condition(self) -> str:
        """Return waiting, starting, ready, draining, stopped or failed."""
        return self.parts.tasks.condition

    # Starting.

    async def start(self, declared: Declared | None = None, *, must_listen: bool = True) -> None:
        """Open the stores, build the parts, apply a declaration, admit peers and clients.

        Raises `Refusal` if the instance cannot start; everything opened is closed again.
        """
        parts, stores = self.parts, self.stores
        parts.clock_watch.resume()
        parts.started_at = self.surroundings.clock.utc()
        self._log_event("starting", version=VERSION, data_dir=str(self.settings.instance.data_dir))
        try:
            await self.start_http()  # before the stores: opening them may take minutes
            await stores.open_all(declared)
            await parts.store_places.read_server()
            if self.http is not None:
                self.http.raise_failure()
            parts.clock_watch.check()
            self._assembly.build()
            build_pairing(parts, self.settings, self.surroundings)
            build_reports(parts, self.settings, self.surroundings)
            for name in stores.needed_brokers(declared):
                await parts.events.load(self.brokers[name])
            changed = await self._apply(declared)
            await stores.recover(declared, changed)
            stores.refuse_to_serve_nobody()
            parts.disk_space.check()
            # only once the stores are open: their lock keeps every other process from writing there
            parts.journal.begin()
            await self._let_in(must_listen=must_listen)
        except BaseException:
            if self.http is not None:
                await self.http.stop()
            await parts.checker.stop()
            await stores.close()
            raise
        parts.tasks.condition = "ready"
        parts.journal.mark("started")
        self._log_event(
            "ready",
            clients=", ".join(self.settings.client_addresses),
            brokers=sorted(self.brokers),
            **self._engine_version(),
        )
        self._report_unknown_users()
        parts.exposure.report()

    async def start_http(self) -> None:
        """Answer over HTTP that the instance is not ready; do nothing if it answers already."""
        if self.http is not None and not self._answers_http:
            self._answers_http = True
            make_private_directory(self.settings.instance.data_dir)
            await self.http.start()

    async def wait(self, reason: Awaitable[T]) -> T:
        """Be waiting, and not starting, until `reason` is done; return its result (REL-54)."""
        self.parts.tasks.condition = "waiting"
        try:
            return await reason
        except BaseException:
            if self.http is not None and self._answers_http:
                await self.http.stop()
            raise
        finally:
            self.parts.tasks.condition = "starting"

    async def _apply(self, declared: Declared | None) -> set[str]:
        """Create and alter the declared objects; return the brokers whose objects have changed."""
        applied = None if declared is None else self.stores.without_absent(declared)
        if applied is None:
            return set()
        done = await self.parts.administration.objects.apply(applied, dry_run=False, keep=True)
        return {name for name, changes in done if changes}

    async def _let_in(self, *, must_listen: bool) -> None:
        """Admit peers first, then start readers, then admit clients and answer over HTTP."""
        parts = self.parts
        await parts.destinations.start(must_listen=must_listen)
        self._assembly.changes.own_addresses_changed()
        self._reader_task = parts.tasks.run(parts.readers.run())
        self._tick_task = parts.tasks.run(parts.ticker.run())
        logins = ClientLogins(
            parts, self.surroundings, trusts_network=self.settings.clients.trust_network
        )
        for address in self.settings.client_addresses:
            await self._listen(logins, address)
        connect_listener(self.http, parts, self.settings, self.surroundings, self.local_clients)
        self._let_users_in()
        parts.grants.watch(self._let_users_in)

    async def _listen(self, logins: ClientLogins, address: str) -> None:
        """Listen for clients at an address; raise `PortTaken` if that fails, and close the rest."""
        made, door = partial(logins.factory, address), self.parts.sessions.door
        try:
            self._listening.append(await self.surroundings.network.listen(made, address, door))
        except OSError as error:
            self._close_listeners()
            raise PortTaken(f"cannot listen for clients at {address}: {error}") from error

    def _close_listeners(self) -> None:
        for one in self._listening:
            one.close()
        self._listening.clear()

    def _let_users_in(self) -> None:
        """Let all users of the machine connect once something is granted to one (CLP-130).

        A socket that somebody has removed lets nobody in, which is no reason to fail."""
        if self.parts.grants.lets_users_in:
            with suppress(FileNotFoundError):
                let_others_in(self.settings.client_address)
            if self.http is not None:
                with suppress(FileNotFoundError):
                    self.http.let_users_in()

    def use_settings(self, settings: Settings) -> None:
        """Take over the settings that may change while the instance runs (REL-38)."""
        self.settings = settings
        self.parts.checker.limit(part_options.check_limits(settings))
        self.parts.forwarder.report.options = part_options.forward_report(settings)
        self.parts.ack_log.is_on = part_options.logs_each_ack(settings)

    # Stopping.

    async def stop(self, grace: timedelta) -> None:
        """Stop the instance (REL-28).

        Accept nothing new, let open transactions finish, then fold the log into the stores."""
        parts = self.parts
        parts.tasks.condition = "draining"
        seconds = grace.total_seconds()
        self._log_event("draining", seconds=seconds)
        self._close_listeners()
        self._tick_task.cancel()
        for broker in self.brokers.values():
            for queue in broker.queues.values():
                queue.line.end_all()
        parts.readers.stop(seconds)
        await parts.sessions.drain(seconds)
        await asyncio.wait({self._reader_task}, timeout=seconds + 1)
        await parts.destinations.stop()
        parts.forwarder.stop()
        await parts.journal.finish(seconds)
        await parts.route_requester.stop(seconds)
        await parts.events.stop(seconds)
        # before the stores that the tasks read from are closed
        await asyncio.gather(self._tick_task, return_exceptions=True)
        await parts.audit.finish()
        if self.http is not None:  # until here it says that the instance is draining
            await self.http.stop()
        await parts.tasks.cancel_tasks()
        await parts.checker.stop()
        await self.stores.close()
        parts.tasks.condition = "stopped"
        self._log_event("stopped")

    def log_failure(self, error: BaseException) -> None:
        """Log why the instance cannot continue."""
        hint = {"hint": error.hint} if isinstance(error, BrokerError) and error.hint else {}
        self.surroundings.log.error(DAEMON, subclass="failed", **hint, exc_info=error)

    def _report_unknown_users(self) -> None:
        """Warn of grants to unknown users: a misspelt user would silently get no permission."""
        for problem in self.parts.sessions.principals.unknown():
            self.surroundings.log.warning(
                DAEMON,
                subclass="unknown_user",
                problem=problem,
                hint="mend clients.grants in the settings, or make the user",
            )

    def _engine_version(self) -> dict[str, str]:
        """Return the version of what keeps the stores, and where a server is."""
        server = self.parts.store_places.server
        if server is None:
            return {"sqlite": SQLITE_VERSION}
        return {
            "postgresql": server.version,
            "server": server.place,
            "redundancy": server.redundancy,
        }

    def _log_event(self, subclass: str, **fields: object) -> None:
        self.surroundings.log.info(DAEMON, subclass=subclass, **fields)
