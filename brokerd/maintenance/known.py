"""Known brokers: which ones this instance has, so that one whose file is gone is missed (MAN-16).

Reads:  `msdb`, at a start; whether a file is there.      Calls: storage, absent.
Never:  believes its memory rather than a file that is there, or makes or moves a file.
Wakes:  when a broker is opened, gets a new identifier, or is said to be gone for good.
Fails:  a broker that is not there is absent, alone; its name is not used for a new one (MAN-17).
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from brokerd.broker.broker import Broker
from brokerd.errors import StoreMissing
from brokerd.ids import BrokerId, show
from brokerd.logs import STORE
from brokerd.maintenance.absent import Absent
from brokerd.maintenance.mirroring import Aside
from brokerd.storage import known
from brokerd.storage.files import is_missing
from brokerd.storage.known import Known
from brokerd.storage.store import Store, StoreIdentity


class Log(Protocol):
    """Where events go."""

    def info(self, event: str, **fields: object) -> object:
        """Something an operator may want to know."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Something an operator should see."""
        ...


class KnownBrokers:
    """The brokers of one instance but `msdb`, whether their files are there or not."""

    def __init__(
        self,
        *,
        path_of: Callable[[str], Path],
        brokers: Mapping[str, Broker],
        absent: Absent,
        aside: Aside,
        log: Log,
        keeps: bool,
    ) -> None:
        """`keeps`: whether what is opened is remembered; who opens one file alone does not."""
        self._path_of = path_of
        self._brokers = brokers
        self._absent = absent
        self._aside = aside
        self._log = log
        self._keeps = keeps
        self._msdb: Store
        self.ids: Known = {}
        """Name to identifier; views look here."""

    def learn(self, msdb: Store) -> None:
        """Which there were; to be called before another one is opened."""
        self._msdb = msdb
        self.ids.update(msdb.known)

    async def refuse_missing(self, name: str) -> None:
        """`StoreMissing` if the instance has this broker and its file is not there."""
        path = self._path_of(name)
        if name in self.ids and await self._aside(partial(is_missing, path)):
            raise StoreMissing.of(name, path, show(self.ids[name]))

    async def opened(self, identity: StoreIdentity) -> None:
        """A store was made, or is there again, and is about to serve.

        The file says who it is; that it was another broker is worth a word."""
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
        """The instance has this broker, under this identifier; durable when it returns."""
        if not self._keeps or self.ids.get(name) == broker_id:
            return
        await self._msdb.run(partial(known.remember, name=name, broker_id=broker_id))
        self.ids[name] = broker_id
