"""Claim: a daemon may open the stores of an instance only while it has the instance (REL-54).

Reads:  the locks and the sessions of the server.
Calls:  the server, on a session of its own, which shows a sign of life each second.
Never:  opens a store, or shares a session with one: a commit that waits for a standby is no sign
        of death.
Wakes:  a waiting daemon, when the server gives it the lock.
Fails:  `gone` is called once when the session is lost; whoever has the claim must then stop.

The claim is an advisory lock of the session. It comes before the locks of the stores: who has it
ends the sessions that a former owner has left, and no waiting daemon ever has to guess which of
several stores is still in use. The sign of life is a statement without effect; the server notes
when a session ran its last one, so that no row is written for it, and one clock measures all.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from brokerd.clock import Clock
from brokerd.errors import StoreFault, StoreLocked
from brokerd.model import MSDB
from brokerd.storage.postgresql import ownership
from brokerd.storage.postgresql.connecting import Session, connect, connect_to_newest
from brokerd.storage.postgresql.errors import DRIVER_ERRORS, ServerError
from brokerd.storage.postgresql.last_history import History, note_history
from brokerd.storage.postgresql.opening import ServerOptions
from brokerd.storage.postgresql.survey import schema_of, unreachable

BEAT: Final = 1.0
"""Seconds between two signs of life, and between two looks at those of another daemon."""

_ENDING: Final = 3.0
"""Seconds after which a session that was ended, and is still there, is reported."""
_SETTINGS: Final = {
    "application_name": "brokerd (instance)",
    "idle_session_timeout": "0",
    "lock_timeout": "0",
    "statement_timeout": "0",
}
_TRY: Final = "SELECT pg_try_advisory_lock($1::int, $2::int)"
_WAIT: Final = "SELECT pg_advisory_lock($1::int, $2::int)"
_HOLDER: Final = (
    "SELECT a.pid, coalesce(host(a.client_addr), 'this machine') AS host,"
    " extract(epoch FROM clock_timestamp() - a.state_change)::float8 AS silent"
    " FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.classid::bigint = $1 AND l.objid::bigint = ANY($2::bigint[])"
)
_QUEUED: Final = (
    "SELECT DISTINCT coalesce(host(a.client_addr), 'this machine') AS host"
    " FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND NOT l.granted AND l.objsubid = 2"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.classid::bigint = $1 AND l.objid::bigint = $2 ORDER BY 1"
)
_END: Final = "SELECT pg_terminate_backend($1)"
_STANDBYS: Final = "SELECT current_setting('synchronous_standby_names')"
"""The standbys for which commits wait; empty = none. As good a sign of life as any."""
_STORES: Final = "SELECT name FROM known_brokers"
_HAS_STORES: Final = "SELECT to_regclass('known_brokers') IS NOT NULL"
_ALONE: Final = (
    "the server waits for no synchronous standby (synchronous_standby_names is empty), and "
    "store.require_standby wants one"
)


class Claim:
    """The right to open the stores of an instance, until its session ends."""

    def __init__(
        self,
        session: Session,
        keys: tuple[int, int],
        *,
        clock: Clock,
        patience: float,
        require_standby: bool,
    ) -> None:
        """Create it for a session that has the lock with these keys.

        `patience`: seconds that a sign of life may take; a waiting daemon gives up on this one
        after as long. `require_standby`: whether the claim ends when commits wait for no standby.
        """
        self._session = session
        self._keys = keys
        self._in_use = asyncio.Lock()
        """Held by the one statement that the session can run at a time."""
        self._clock = clock
        self._patience = patience
        self._require_standby = require_standby
        self._beating: asyncio.Task[None] | None = None

    def begin(self, gone: Callable[[StoreFault], None]) -> None:
        """Show signs of life until `release`; call `gone` once if the claim is lost."""
        self._beating = asyncio.ensure_future(self._beat(gone))

    async def release(self) -> None:
        """Give the claim back, after the stores have been closed."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        with suppress(*DRIVER_ERRORS):
            await self._session.close(timeout=2)

    async def waiting(self) -> list[str]:
        """Return the machines of the daemons that wait for the claim.

        Raises:
            StoreFault: the server does not answer.
        """
        try:
            async with self._in_use:
                rows = await self._session.fetch(
                    _QUEUED, self._keys[0], self._keys[1] & 0xFFFFFFFF, timeout=self._patience
                )
        except DRIVER_ERRORS as error:
            raise StoreFault(f"the server does not say who waits: {error}") from error
        return [row["host"] for row in rows]

    async def _beat(self, gone: Callable[[StoreFault], None]) -> None:
        try:
            while True:
                await self._clock.sleep_until(self._clock.monotonic() + BEAT)
                async with self._in_use:
                    standbys = await self._session.fetchval(_STANDBYS, timeout=self._patience)
                if self._require_standby and not standbys:
                    gone(_alone())
                    return
        except DRIVER_ERRORS as error:
            gone(
                StoreFault(
                    "this daemon has lost its claim to the stores on the server: "
                    f"{str(error) or type(error).__name__}",
                    hint="another daemon may have taken over; this one confirms nothing more",
                )
            )


class Claiming:
    """The attempts of one daemon to get the claim."""

    def __init__(
        self,
        url: str,
        options: ServerOptions,
        *,
        clock: Clock,
        takeover_after: float,
        waiting: Callable[[str], None],
        took_over: Callable[[str, float], None],
        passed_over: Callable[[str], None],
        noted: Callable[[History, History | None], None],
    ) -> None:
        """Create it.

        `takeover_after`: seconds without a sign of life after which a daemon counts as dead.
        `waiting`: called with what is waited for, each time that changes. `took_over`: called with
        the machine of a dead daemon, and the seconds of its silence, when its session is ended.
        `passed_over`: called with a server that takes changes in an earlier history, and why it is
        left. `noted`: called when the history of the server was noted, with that and with the one
        that was noted before; None = none was.
        """
        self._url = url
        self._options = options
        self._clock = clock
        self._takeover_after = takeover_after
        self._waiting = waiting
        self._took_over = took_over
        self._passed_over = passed_over
        self._noted = noted
        self._history: History | None = None
        """The history of the server where this daemon waits, or has the claim."""
        self._schema = schema_of(options, MSDB)
        self._keys = ownership.lock_keys(f"instance {self._schema}")

    async def run(self, *, waits: bool = True, is_known: bool = False) -> Claim:
        """Return the claim once no other daemon has it, and its store sessions have ended.

        `waits`: whether to wait for another daemon. `is_known`: whether the server has answered
        before, so that it is waited for as well.

        Raises:
            StoreLocked: another daemon has the instance, and this one does not wait.
            StoreFault: the server cannot be reached, and has never answered; or it waits for no
                synchronous standby, one is required, and this daemon does not wait; or its history
                cannot be noted.
        """
        while True:
            try:
                session = await self._begin_session()
            except ServerError as error:
                if not (waits and is_known):
                    raise unreachable(error) from error
                self._waiting(f"no server can be used: {error}")
                await self._clock.sleep_until(self._clock.monotonic() + BEAT)
                continue
            is_known = True
            try:
                await self._lock(session, waits=waits)
                await self._refuse_alone(session)
                await self._end_left_sessions(session)
            except (StoreFault, *DRIVER_ERRORS) as error:
                session.terminate()
                is_alone = isinstance(error, StoreFault)
                if not waits:
                    if is_alone:
                        raise
                    raise StoreFault(f"the server failed meanwhile: {error}") from error
                self._waiting(_ALONE if is_alone else f"the server has ended the session: {error}")
                await self._clock.sleep_until(self._clock.monotonic() + BEAT)
            except BaseException:
                session.terminate()
                raise
            else:
                return Claim(
                    session,
                    self._keys,
                    clock=self._clock,
                    patience=self._takeover_after,
                    require_standby=self._options.require_standby,
                )

    async def _begin_session(self) -> Session:
        """Return a session at the newest primary, whose history is noted (REL-59).

        Also before the wait: what the other daemon confirms there, this one must not go back from.
        """
        last = self._options.last_history()
        primary = await connect_to_newest(
            self._url,
            self._schema,
            settings=_SETTINGS,
            patience=self._options.connect_timeout,
            last=last,
        )
        for one in primary.passed_over:
            self._passed_over(one)
        self._history = primary.history
        file = self._options.history_file
        if file is not None and primary.history != last:
            try:
                note_history(file, primary.history)
            except OSError as error:
                primary.session.terminate()
                raise StoreFault(
                    f"the history of the server cannot be noted in {file}: {error.strerror}",
                    hint="make room there, or correct the owner and mode of the directory",
                ) from error
            self._noted(primary.history, last)
        return primary.session

    def _connect(self) -> Awaitable[Session]:
        return connect(
            self._url,
            self._schema,
            settings=_SETTINGS,
            patience=self._options.connect_timeout,
            history=self._history,
        )

    async def _lock(self, session: Session, *, waits: bool) -> None:
        if await session.fetchval(_TRY, *self._keys):
            return
        if not waits:
            holder = await self._holder(session)
            raise StoreLocked(
                f"the stores of {self._options.shown} are held by {_shown(holder)}",
                hint="stop that daemon; without --no-wait this one waits until then",
            )
        # Queued at the server: the lock is ours in the moment in which it is free.
        taking = asyncio.ensure_future(session.execute(_WAIT, *self._keys))
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({taking, watching}, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                taking.result()
            else:
                watching.result()  # only an error ends it
        finally:
            for task in (taking, watching):
                task.cancel()
            await asyncio.gather(taking, watching, return_exceptions=True)

    async def _refuse_alone(self, session: Session) -> None:
        """Raise `StoreFault` if the server waits for no standby though one is required (REL-80).

        The start has found one: it was taken away since, and may come back.
        """
        if self._options.require_standby and not await session.fetchval(_STANDBYS):
            raise _alone()

    async def _watch(self) -> None:
        """Look at the holder each second; end its session once it has been silent for too long."""
        session = await self._connect()
        try:
            while True:
                holder = await self._holder(session)
                self._waiting(f"held by {_shown(holder)}")
                silent = None if holder is None else holder["silent"]
                if silent is not None and silent >= self._takeover_after:
                    self._took_over(holder["host"], silent)
                    await session.execute(_END, holder["pid"])
                await self._clock.sleep_until(self._clock.monotonic() + BEAT)
        except ServerError as error:
            raise OSError(str(error)) from error
        finally:
            session.terminate()

    async def _holder(self, session: Session) -> Any:  # noqa: ANN401  # a row of the driver
        return await session.fetchrow(_HOLDER, self._keys[0], [self._keys[1] & 0xFFFFFFFF])

    async def _end_left_sessions(self, session: Session) -> None:
        """End the sessions that still have stores of this instance: their daemon lost the claim."""
        names = {MSDB}
        if await session.fetchval(_HAS_STORES):
            names.update(row["name"] for row in await session.fetch(_STORES))
        first = self._keys[0]
        schemas = [schema_of(self._options, name) for name in names]
        those = [ownership.lock_keys(schema)[1] & 0xFFFFFFFF for schema in schemas]
        until = self._clock.monotonic() + self._options.lock_wait
        while rows := await session.fetch(_HOLDER, first, those):
            # A daemon that is stopping, or that has been killed, ends them by itself.
            if self._clock.monotonic() >= until:
                for row in rows:
                    await session.execute(_END, row["pid"])
            if self._clock.monotonic() >= until + _ENDING:
                pids = ", ".join(str(row["pid"]) for row in rows)
                self._waiting(
                    f"whose former sessions do not end (server process {pids}): they hang; restart "
                    "the server, or promote its standby"
                )
            await self._clock.sleep_until(self._clock.monotonic() + 0.02)


def _alone() -> StoreFault:
    return StoreFault(
        f"this daemon has given up its claim to the stores: {_ALONE}",
        hint="set synchronous_standby_names in postgresql.conf again, and reload the server; until "
        "then nothing is confirmed, because only one machine would have it",
    )


def _shown(holder: Any) -> str:  # noqa: ANN401  # a row of the driver
    if holder is None:
        return "a daemon that is just ending"
    return f"a daemon on {holder['host']} (server process {holder['pid']})"
