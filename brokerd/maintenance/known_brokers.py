"""Known brokers: the names and ids of this instance's brokers, to notice a lost file (MAN-16).

Reads:  `msdb`, at a start; whether a file exists.      Calls: storage, absent_brokers.
Never:  relies on the remembered id if the file exists, or creates or moves a file.
Wakes:  when a broker is opened, gets a new identifier, or is forgotten.
Fails:  only the broker without a file is absent; its name is not used for a new broker (MAN-17).
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.errors import InUse, InvalidArgument, ObjectNotFound, StoreMissing
from brokerd.ids import BrokerId, IdSource, show
from brokerd.maintenance.absent_brokers import AbsentBrokers
from brokerd.model import MSDB
from brokerd.storage.file_checks import is_missing, read_known_brokers
from brokerd.storage.flush import no_fault
from brokerd.storage.opening import open_file
from brokerd.storage.rows import known_brokers
from brokerd.storage.rows.known_brokers import Known
from brokerd.storage.store import Store, StoreIdentity
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import ADMINISTRATION, STORE


class KnownBrokers:
    """The brokers of one instance except `msdb`, with or without a file."""

    def __init__(
        self,
        *,
        path_of: Callable[[str], Path],
        brokers: Mapping[str, Broker],
        absent: AbsentBrokers,
        is_missing: Callable[[Path], Awaitable[bool]],
        missing: Callable[[str, BrokerId], StoreMissing],
        log: Log,
        keeps: bool,
    ) -> None:
        """Create the list.

        `path_of`: returns the path of a broker's file. `is_missing`: returns whether that store
        does not exist. `missing`: returns the error of a broker without its store. `keeps`:
        whether opened brokers are remembered; a command that opens only one file does not
        remember them."""
        self._path_of = path_of
        self._brokers = brokers
        self._absent = absent
        self._is_missing = is_missing
        self._missing = missing
        self._log = log
        self._keeps = keeps
        self._msdb: Store
        self.ids: Known = {}
        """Identifiers by name; views read them."""

    def load(self, msdb: Store) -> None:
        """Load the remembered brokers from `msdb`; called before any other store is opened."""
        self._msdb = msdb
        self.ids.update(msdb.known)

    async def refuse_missing(self, name: str) -> None:
        """Raise `StoreMissing` if the instance knows this broker and its file does not exist."""
        path = self._path_of(name)
        if name in self.ids and await self._is_missing(path):
            raise self._missing(name, self.ids[name])

    async def opened(self, identity: StoreIdentity) -> None:
        """Remember the broker of a created or opened store that is about to serve.

        The identifier in the file counts; if it differs from the remembered one, log this."""
        name, before = identity.broker_name, self.ids.get(identity.broker_name)
        changed = before not in (None, identity.broker_id) and not identity.unfinished
        await self.remember(name, identity.broker_id)
        if changed and self._keeps:
            self._log.warning(
                STORE,
                subclass="replaced",
                broker=name,
                before=show(before or b""),
                after=show(identity.broker_id),
                hint="peers know the broker that was here before; if this is not meant, put its "
                "file back",
            )

    async def remember(self, name: str, broker_id: BrokerId) -> None:
        """Remember the broker with this identifier; durable on return."""
        if not self._keeps or self.ids.get(name) == broker_id:
            return
        await self._msdb.run(partial(known_brokers.remember, name=name, broker_id=broker_id))
        self.ids[name] = broker_id

    async def forget(self, name: str, actor: str) -> dict[str, object]:
        """Forget a broker whose file is lost for good, so that its name is free again (MAN-18).

        Return its name and identifier. Raises `InUse` if its file exists."""
        with self._absent.removing(name):
            path = _path_of(name, self._path_of, self.ids)
            if name in self._brokers or not await self._is_missing(path):
                raise _is_here(name, path)
            await self._msdb.run(partial(known_brokers.forget, name=name))
            answer: dict[str, object] = {"name": name, "broker_id": show(self.ids.pop(name))}
        self._log.info(
            ADMINISTRATION, subclass="forget", actor=actor, broker=name, before=answer, after=None
        )
        return answer


def forget_without_daemon(
    name: str, path_of: Callable[[str], Path], *, ids: IdSource, clock: Clock
) -> str:
    """Forget a broker, as `forget` does, while no daemon runs; return its identifier.

    A daemon may refuse to start because of this broker. Raises `StoreLocked` if a daemon runs."""
    msdb = path_of(MSDB)
    there = read_known_brokers(msdb)
    path = _path_of(name, path_of, there)
    if not is_missing(path):
        raise _is_here(name, path)
    opened = open_file(msdb, ids=ids, clock=clock, create=None, name=MSDB, fault=no_fault)
    try:
        known_brokers.forget(opened.connection, name)
    finally:
        opened.connection.close()
        opened.lock.release()
    return show(there[name])


def _path_of(name: str, path_of: Callable[[str], Path], ids: Known) -> Path:
    """Return the path of a known broker's file; raise if the instance knows no such broker."""
    if name == MSDB:
        raise InvalidArgument("msdb holds what belongs to the instance; it cannot be forgotten")
    if name not in ids:
        names = ", ".join(sorted(ids)) or f"none by {path_of(MSDB)}; are the settings right?"
        raise ObjectNotFound(f"there is no broker {name!r} here", hint=f"there is: {names}")
    return path_of(name)


def _is_here(name: str, path: Path) -> InUse:
    return InUse(
        f"broker {name} is here: {path}; only one whose file is gone can be forgotten",
        hint="if what is in it is not wanted any more, stop the daemon and move the file away",
    )
