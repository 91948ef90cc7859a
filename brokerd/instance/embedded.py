"""Embedded: the broker of one file inside a caller's process, without daemon or socket (SDK-14).

Reads:  the path.      Calls: the same instance as the daemon, on a stream in place of a socket.
Never:  listens, dials a peer, installs signal handlers, or keeps a file open without users.
Fails:  `StoreLocked` if another process, or another loop of this one, has the file open. A fault
        of the store ends every session on it with that fault; the next `connect` starts it again.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final, Unpack

from brokerd.app.session import Session
from brokerd.checking.process import CheckProcess
from brokerd.client.connecting import Options, open_session
from brokerd.clock import Clock, SystemClock
from brokerd.config.settings import Instance as InstanceSettings
from brokerd.config.settings import Settings
from brokerd.errors import InvalidArgument, StoreDamaged, StoreLocked, UnsafeFile
from brokerd.ids import BootId, IdSource, RandomIds
from brokerd.instance import part_options
from brokerd.instance.instance import Instance, Surroundings
from brokerd.model import MSDB
from brokerd.objects.declarations import BROKER_NAME
from brokerd.objects.declared import Declared
from brokerd.storage.executors import Executor, Threaded
from brokerd.storage.files.lock import refuse_if_held
from brokerd.transport.door import Door

SUFFIX: Final = ".db"
_Factory = Callable[[], asyncio.Protocol]


async def open_file(path: str, broker: str | None, **options: Unpack[Options]) -> Session:
    """Return a session on the broker of a file, which is created if it does not exist.

    Sessions of one loop share the engine; it stops with the last of them. Raises `StoreLocked`,
    `StoreDamaged` and `StoreVersion` as a daemon does, and `InvalidArgument` if the path cannot be
    a broker's file.
    """
    where = _file(path, broker)
    clock, ids = options.get("clock") or SystemClock(), options.get("ids") or RandomIds()
    engine = await _engine(where, clock, ids)
    try:
        options["connector"] = engine.instance.local_clients.connector
        session = await open_session(Session, str(where), where.stem, **options)
    except BaseException:
        await engine.release()
        raise
    session.at_close = engine.release
    return session


class Engine:
    """An instance on one file, and the count of its users."""

    def __init__(self, where: Path, instance: Instance) -> None:
        self._where = where
        self._loop = asyncio.get_running_loop()
        self._users = 0
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self.instance = instance
        instance.failed.add_done_callback(self._failed)

    @property
    def is_of_this_loop(self) -> bool:
        """Whether the caller runs on the loop that the engine runs on."""
        return self._loop is asyncio.get_running_loop()

    @property
    def is_usable(self) -> bool:
        """Whether another session may use the engine."""
        return self._users > 0 and not self.instance.failed.done() and not self._loop.is_closed()

    async def start(self) -> None:
        """Open the file; count the caller as the first user."""
        self._users = 1
        new = not self._where.exists()
        try:
            await self.instance.start(Declared(broker=self._where.stem) if new else None)
        except BaseException as error:
            self._forget()
            self._started.set_exception(error)
            self._started.exception()
            if isinstance(error, StoreLocked):
                raise _in_use(self._where, error.message) from error
            raise
        self._started.set_result(None)

    async def join(self) -> None:
        """Add a user, and wait until the engine has started."""
        self._users += 1
        await asyncio.shield(self._started)

    async def release(self) -> None:
        """Remove a user; for the last user, wait until the file is closed."""
        self._users -= 1
        if self._users:
            return
        if not self.instance.failed.done():
            await self.instance.stop(timedelta())
        self._forget()

    async def stopped(self) -> None:
        """Return once the file is closed."""
        await asyncio.shield(self._stopped)

    def _forget(self) -> None:
        self._users = 0
        if _engines.get(self._where) is self:
            del _engines[self._where]
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _failed(self, failed: "asyncio.Future[BaseException]") -> None:
        """End all sessions; the next start decides about unconfirmed transactions (REL-5)."""
        if not failed.cancelled():
            self.instance.log_failure(failed.result())
            self.instance.parts.sessions.end_all()
            self._loop.create_task(self._abandon())

    async def _abandon(self) -> None:
        for broker in self.instance.brokers.values():
            await broker.store.abandon()
        if _engines.get(self._where) is self:
            del _engines[self._where]


_engines: dict[Path, Engine] = {}
"""The engines of the files open in this process."""


async def _engine(where: Path, clock: Clock, ids: IdSource) -> Engine:
    while (known := _engines.get(where)) is not None:
        if not known.is_of_this_loop:
            raise _in_use(where, "another event loop of this process has it open")
        if known.is_usable:
            await known.join()
            return known
        await known.stopped()
    engine = _engines[where] = Engine(where, _instance(where, clock, ids, Threaded()))
    await engine.start()
    return engine


def _instance(where: Path, clock: Clock, ids: IdSource, executor: Executor) -> Instance:
    settings = Settings(instance=InstanceSettings(name=where.stem, data_dir=where.parent))
    log = LibraryLog()
    return Instance(
        settings,
        Surroundings(
            clock=clock,
            ids=ids,
            rng=Random(ids.fresh()),  # noqa: S311  # turns and delays, not secrets
            network=NoNetwork(),
            executor=executor,
            log=log,
            checker=CheckProcess(limits=part_options.check_limits(settings), log=log),
            boot_id=BootId(ids.fresh()),
            keys=None,
            only=where.stem,
        ),
    )


def _file(path: str, broker: str | None) -> Path:
    """Return the absolute path; raise `InvalidArgument` if it cannot be the file of that broker."""
    where = Path(path).absolute()
    if where.suffix != SUFFIX or where.stem == MSDB or not BROKER_NAME.fullmatch(where.stem):
        raise InvalidArgument(
            f"file:{where}: the file of a broker is NAME.db",
            hint="msdb.db, which belongs to the instance, lies beside it",
        )
    if broker not in (None, where.stem):
        raise InvalidArgument(f"file:{where} is broker {where.stem}, not {broker}")
    if not where.parent.is_dir():
        raise InvalidArgument(
            f"file:{where}: there is no directory {where.parent}",
            hint="make it, or mend the path; the file itself is made if it is not there",
        )
    return where


def _in_use(where: Path, why: str) -> StoreLocked:
    """Return the error that names the holder of the file, or of another file in its directory.

    Files of one directory share its `msdb.db`, so the holder of one file shuts out all others.
    """
    for other in sorted(where.parent.glob(f"*{SUFFIX}")):
        if other == where or other.stem == MSDB:
            continue
        try:
            refuse_if_held(other)
        except StoreLocked as held:
            return StoreLocked(
                f"{where} cannot be opened: {held.message}, and the files of a directory share "
                f"its {MSDB}{SUFFIX}",
                hint="give each file a directory of its own, or connect to the daemon that has "
                "this one",
            )
        except (StoreDamaged, UnsafeFile):
            continue
    return StoreLocked(
        f"{where} is in use: {why}",
        hint="connect to the daemon that has it, or use a file in another directory",
    )


class NoNetwork:
    """A network that accepts no connections and reaches no peer."""

    async def listen(self, factory: _Factory, address: str, door: Door) -> "NoNetwork":
        """Do nothing, because no connection will arrive."""
        return self

    async def connect(
        self, factory: _Factory, address: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Refuse to connect: an embedded broker has no network."""
        raise ConnectionRefusedError(f"{address}: an embedded broker has no network")

    async def places(self, address: str) -> frozenset[str]:
        """Return only the given address, without a lookup."""
        return frozenset({address})

    @property
    def address(self) -> str:
        """The empty address, because nothing listens."""
        return ""

    def close(self) -> None:
        """Do nothing, because no listener was opened."""


class LibraryLog:
    """The event log of the library: writes through `logging`, logger "brokerd"."""

    def __init__(self) -> None:
        self._log = logging.getLogger("brokerd")

    def debug(self, event: str, **fields: object) -> None:
        """Log an event for debugging."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log an event that an operator may want to know."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log an event that an operator should see."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a failure."""
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._log.isEnabledFor(level):
            error = fields.pop("exc_info", None)
            shown = " ".join(f"{name}={value}" for name, value in fields.items())
            trace = error if isinstance(error, BaseException) else None
            self._log.log(level, "%s %s", event, shown, exc_info=trace)
