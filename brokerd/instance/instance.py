"""Instance: the life of one daemon's parts: one start order, reversed to stop.

The parts are made in assembly.py and connected in links.py; their stores are in stores.py, their
periodic work is in schedule.py.
Reads: settings.      Calls: all parts.
Never: installs signal handlers or picks a loop (daemon.py does), so that tests and the simulation
run the very same instance on other clocks, networks and executors.
"""

import asyncio
from datetime import timedelta

from brokerd.config.settings import Settings
from brokerd.errors import BrokerError, PortTaken
from brokerd.instance import part_options
from brokerd.instance.assembly import VERSION, Assembly
from brokerd.instance.surroundings import Surroundings
from brokerd.objects.declared import Declared
from brokerd.storage.connections import SQLITE_VERSION
from brokerd.telemetry.logs import DAEMON
from brokerd.transport.network import Listening, let_others_in

__all__ = ["Instance", "Surroundings"]


class Instance(Assembly):
    """One running instance with its brokers."""

    def __init__(self, settings: Settings, surroundings: Surroundings) -> None:
        super().__init__(settings, surroundings)
        self._listening: Listening | None = None

    # Starting.

    async def start(self, declared: Declared | None = None, *, must_listen: bool = True) -> None:
        """Open the stores, build the parts, apply a declaration, let peers and clients in.

        Raises `Refusal` if it cannot start; all that was opened is closed again.
        """
        clock = self._with.clock
        self.started_at = clock.utc()
        self._log_event("starting", version=VERSION, data_dir=str(self.settings.instance.data_dir))
        try:
            await self._open_stores(declared)
            self.clock_watch.check()
            self._build()
            for name in self._needed(declared):
                await self.events.load(self.brokers[name])
            applied = None if declared is None else self._applied(declared)
            changed = set[str]()
            if applied is not None:
                done = await self.administration.apply(applied, dry_run=False, keep=True)
                changed = {name for name, changes in done if changes}
            await self.recover(declared, changed)
            self._refuse_to_serve_nobody()
            self.room.check()
            # only once the stores are open: their lock keeps every other process from writing there
            self.journal.begin()
            await self._let_in(must_listen=must_listen)
        except BaseException:
            await self.checker.stop()
            await self._close_stores()
            raise
        self.condition = "ready"
        self.journal.mark("started")
        self._log_event(
            "ready",
            clients=self.settings.client_address,
            brokers=sorted(self.brokers),
            sqlite=SQLITE_VERSION,
        )
        self._tell_unknown_users()
        self.report_open_listeners()

    async def _let_in(self, *, must_listen: bool) -> None:
        """Open the doors: to peers first, then to readers, then to clients."""
        await self.destinations.start(must_listen=must_listen)
        self._learn_own()
        self._reader_task = asyncio.get_running_loop().create_task(self.readers.run())
        self._reader_task.add_done_callback(self._check)
        self._tick_task = asyncio.get_running_loop().create_task(self.ticker.run())
        self._tick_task.add_done_callback(self._check)
        address = self.settings.client_address
        try:
            self._listening = await self._with.network.listen(
                self.sessions.factory, address, self.sessions.door
            )
        except OSError as error:
            raise PortTaken(f"cannot listen for clients at {address}: {error}") from error
        if self.settings.clients.grants:
            let_others_in(address)

    def use(self, settings: Settings) -> None:
        """Take over the settings that may change while the instance runs (REL-38)."""
        self.settings = settings
        self.checker.limit(part_options.check_limits(settings))
        self.forwarder.report.options = part_options.forward_report(settings)
        self.ack_log.is_on = part_options.logs_each_ack(settings)

    # Stopping.

    async def stop(self, grace: timedelta) -> None:
        """Stop: accept nothing new, let open transactions finish, fold the log in (REL-28)."""
        self.condition = "draining"
        seconds = grace.total_seconds()
        self._log_event("draining", seconds=seconds)
        if self._listening is not None:
            self._listening.close()
        self._tick_task.cancel()
        for broker in self.brokers.values():
            for queue in broker.queues.values():
                queue.line.end_all()
        self.readers.stop(seconds)
        await self.sessions.drain(seconds)
        await asyncio.wait({self._reader_task}, timeout=seconds + 1)
        await self.destinations.stop()
        self.forwarder.stop()
        await self.journal.finish(seconds)
        await self.dynamic_routing.stop(seconds)
        await self.events.stop(seconds)
        await self._cancel_tasks()  # before the stores that they read from are closed
        await self.checker.stop()
        await self._close_stores()
        self.condition = "stopped"
        self._log_event("stopped")

    async def _cancel_tasks(self) -> None:
        await asyncio.gather(self._tick_task, return_exceptions=True)
        while tasks := [one for one in self._tasks if not one.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def log_failure(self, error: BaseException) -> None:
        """Log why the instance cannot continue."""
        hint = {"hint": error.hint} if isinstance(error, BrokerError) and error.hint else {}
        self._with.log.error(DAEMON, subclass="failed", **hint, exc_info=error)

    def _tell_unknown_users(self) -> None:
        """Warn of grants to unknown users: a misspelt user would silently get no permission."""
        for problem in self.sessions.principals.unknown():
            self._with.log.warning(
                DAEMON,
                subclass="unknown_user",
                problem=problem,
                hint="mend clients.grants in the settings, or make the user",
            )

    def _log_event(self, subclass: str, **fields: object) -> None:
        self._with.log.info(DAEMON, subclass=subclass, **fields)
