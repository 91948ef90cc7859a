"""Waiting: a daemon on whose stores another one works, until it may open them itself (REL-54).

Reads:  settings.      Calls: the claim of `storage.postgresql`, the log, the supervisor.
Never:  opens a store, or lets a client in: it answers the client socket with what it waits for.
Wakes:  when the other daemon ends, or has shown no sign of life for `store.takeover_after`.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from brokerd.clock import Clock
from brokerd.config.settings import Settings
from brokerd.errors import BrokerError, BrokerUnavailable, Busy
from brokerd.instance.store_engine import server_options
from brokerd.process.supervisor import Supervisor
from brokerd.protocol import client_frames as frames
from brokerd.protocol.client_readers import RequestReader
from brokerd.storage.files.private_files import make_private_directory
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import DAEMON
from brokerd.transport.door import Door, DoorOptions, Seat
from brokerd.transport.network import Listening, Network

if TYPE_CHECKING:
    from brokerd.storage.postgresql.claim import Claim
    from brokerd.storage.postgresql.last_history import History

WAITING = "waiting"
_DOOR = DoorOptions(most=64)


class Waiting:
    """The wait of one daemon for the stores of its instance."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        network: Network,
        log: Log,
        supervisor: Supervisor,
        began: Callable[[], None],
    ) -> None:
        """Create it; `began`: called when the first wait begins."""
        self._settings = settings
        self._clock = clock
        self._network = network
        self._log = log
        self._supervisor = supervisor
        self._began = began
        self._reason = ""
        self._former: set[str] = set()
        self._listening: Listening | None = None

    async def claim(self, *, waits: bool, is_known: bool) -> "Claim":
        """Return the claim to the stores, once this daemon has it; arguments as `Claiming.run`.

        Raises:
            StoreLocked: another daemon has the stores, and this one does not wait.
            StoreFault: the server cannot be reached, and has never answered.
        """
        from brokerd.storage.postgresql.claim import Claiming  # noqa: PLC0415  # an extra

        claiming = Claiming(
            self._settings.store.url,
            server_options(self._settings),
            clock=self._clock,
            takeover_after=self._settings.store.takeover_after.total_seconds(),
            waiting=self._waits_for,
            took_over=self._took_over,
            passed_over=self._passed_over,
            noted=self._noted,
        )
        answering = asyncio.ensure_future(self._answer())
        try:
            claim = await claiming.run(waits=waits, is_known=is_known)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            if self._listening is not None:
                self._listening.close()
        if self._reason:
            self._log.info(DAEMON, subclass="claimed", server=self._settings.shown_server)
        return claim

    @property
    def error(self) -> BrokerError:
        """The answer to clients."""
        return BrokerUnavailable(
            f"waiting for the stores of {self._settings.shown_server}, {self._reason}",
            hint="connect to the daemon that has them; this one takes over when it ends",
        )

    def _waits_for(self, reason: str) -> None:
        if reason == self._reason:
            return
        first, self._reason = not self._reason, reason
        self._log.info(DAEMON, subclass=WAITING, server=self._settings.shown_server, reason=reason)
        if first:
            self._began()
            self._supervisor.ready()
        self._supervisor.describe(f"waiting for the stores, {reason}")

    def _took_over(self, host: str, silent: float) -> None:
        self._log.warning(
            DAEMON,
            subclass="takes_over",
            server=self._settings.shown_server,
            silent_on=host,
            seconds=round(silent, 1),
            hint="the daemon there was stopped, blocked or cut off; see its machine",
        )

    def _passed_over(self, server: str) -> None:
        if server in self._former:
            return
        self._former.add(server)
        self._log.warning(
            DAEMON,
            subclass="passed_over",
            server=server,
            hint="nobody will see what is changed there: stop it; one that was the primary before "
            "can become a standby of the promoted one (pg_rewind, or a new pg_basebackup)",
        )

    def _noted(self, history: "History", before: "History | None") -> None:
        self._log.info(
            DAEMON,
            subclass="history_noted",
            server=self._settings.shown_server,
            system=history.system,
            timeline=int(history.timeline, 16),
            before="none" if before is None else int(before.timeline, 16),
        )

    async def _answer(self) -> None:
        """Answer the client socket of this machine, as soon as there is something to say."""
        address = self._settings.client_address
        if not address.startswith("unix:"):
            return
        while not self._reason:
            await self._clock.sleep_until(self._clock.monotonic() + 0.05)
        door = Door(
            "clients",
            options=_DOOR,
            refusal=lambda text: frames.encode_failed(0, Busy(text)),
            clock=self._clock,
            log=self._log,
        )
        try:
            make_private_directory(self._settings.instance.data_dir)
            self._listening = await self._network.listen(lambda: _Refusing(self), address, door)
        except OSError as error:
            self._log.warning(DAEMON, subclass="not_answering", address=address, reason=str(error))


class _Refusing(asyncio.Protocol):
    """A connection of a client, which learns what the daemon waits for."""

    seat: Seat | None = None

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._reader = RequestReader()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.seat is not None:
            self.seat.occupied(self._transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.seat is not None:
            self.seat.leave()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None, "it is connected"
        if self._reader.feed(data):
            self._transport.write(frames.encode_failed(0, self._waiting.error))
            self._transport.close()
