"""Mirroring: brokers whose file two instances share; the instance that has it open is the principal
(RTE-55).

Reads:  the lock file next to a store, the epoch in the store.      Calls: absent_brokers, to open.
Never:  takes a store by force: the owner lock decides (design D1), and only its holder's end frees
        it.
Wakes:  every tick, apart from the other passes, because opening may take long.
Fails:  a store that another process has opened meanwhile ends the instance (REL-5): a stale
        principal must no longer write. After a restart, the instance finds the lock held and
        is the mirror.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from brokerd.broker.broker import Broker
from brokerd.errors import StoreFault, StoreLocked
from brokerd.ids import BrokerId, show
from brokerd.maintenance.absent_brokers import AbsentBrokers
from brokerd.protocol.role import RoleAnswer, RoleQuestion
from brokerd.routing.mirror import Role, Standing
from brokerd.storage.files.lock import Owner, last_owner

_T = TypeVar("_T")


class Aside(Protocol):
    """A function that runs a job outside the loop: the job may wait for a disk."""

    async def __call__(self, job: Callable[[], _T], /) -> _T:
        """Run the job and return its result."""
        ...


Owners = dict[str, Owner | None]
"""Current or last owner of the store of each shared broker that is not open in this instance."""


class Mirroring:
    """The shared brokers of one instance."""

    def __init__(
        self,
        *,
        names: frozenset[str],
        path_of: Callable[[str], Path],
        brokers: Mapping[str, Broker],
        absent: AbsentBrokers,
        aside: Aside,
        spawn: Callable[[Coroutine[object, object, None]], object],
        stale: Callable[[str, StoreFault], None],
    ) -> None:
        """Create the pass.

        `names`: the shared brokers. `aside`: runs a job, which may wait for a disk, outside the
        loop. `stale`: called when another process has opened the store of a broker that this
        instance has open."""
        self.names = names
        self._path_of = path_of
        self._brokers = brokers
        self._absent = absent
        self._aside = aside
        self._spawn = spawn
        self._stale = stale
        self._owners: Owners = {}
        self._creating: set[str] = set()

    def standing(self, broker_id: BrokerId) -> Standing:
        """Return the role of this instance for a broker, with the epoch of its store."""
        for broker in self._brokers.values():
            if broker.broker_id == broker_id and broker.name not in self._absent.reasons:
                return Standing(Role.PRINCIPAL, broker.store.identity.epoch)
        for name, owner in self._owners.items():
            if owner is not None and owner.broker_id == show(broker_id):
                return Standing(self._role(name), owner.epoch)
        return Standing(Role.UNKNOWN)

    def part(self, name: str) -> dict[str, object]:
        """Return the VIEW-10 columns of a broker: role (None = not shared), epoch of its store."""
        broker = self._brokers.get(name)
        if broker is not None and name not in self._absent.reasons:
            role = Role.PRINCIPAL.value if name in self.names else None
            return {"role": role, "epoch": broker.store.identity.epoch}
        owner = self._owners.get(name)
        role = self._role(name).value if name in self.names else None
        return {"role": role, "epoch": None if owner is None else owner.epoch}

    def master_keys(self) -> dict[str, bytes]:
        """Return the fingerprints of the master keys with which partners have brokers open."""
        return {
            name: bytes.fromhex(owner.master_key)
            for name, owner in self._owners.items()
            if owner is not None and _is_hex(owner.master_key)
        }

    def answer(self, question: RoleQuestion) -> RoleAnswer:
        """Answer the role question of a peer.

        Check the epochs if the peer has seen a principal with a higher epoch."""
        found = self.standing(question.broker_id)
        if found.role is Role.PRINCIPAL and question.epoch > found.epoch:
            self._spawn(self._check_epochs())
        return RoleAnswer(question.broker_id, found.role.value, found.epoch)

    def answer_for(self, broker: Broker) -> RoleAnswer:
        """Return the role answer for the peers of an open broker."""
        standing = self.standing(broker.broker_id)
        return RoleAnswer(broker.broker_id, standing.role.value, standing.epoch)

    def check(self) -> int | Awaitable[int]:
        """Run the pass: open the brokers that the partner has released; return their number."""
        return self._take_over() if self.names else 0

    async def _take_over(self) -> int:
        await self._check_epochs()
        taken = await self._absent.retry(await self._aside(self._openable))
        await self.refresh()
        return taken

    @contextmanager
    def creating(self, name: str) -> Iterator[None]:
        """Keep `check` from opening a broker whose store is created during the block."""
        self._creating.add(name)
        try:
            yield
        finally:
            self._creating.discard(name)

    async def refresh(self) -> None:
        """Read again the owners of the stores that are not open in this instance."""
        paths = {name: self._path_of(name) for name in self.names - self._brokers.keys()}
        self._owners = await self._aside(
            lambda: {name: last_owner(path) for name, path in paths.items()}
        )

    def _openable(self) -> list[str]:
        """Return the shared brokers whose file exists and is not open in this instance."""
        missing = self.names - self._brokers.keys() - self._creating
        return [name for name in missing if self._path_of(name).exists()]

    def _role(self, name: str) -> Role:
        waits = isinstance(self._absent.reasons.get(name), StoreLocked)
        return Role.MIRROR if waits else Role.UNKNOWN

    async def _check_epochs(self) -> None:
        """Report each store that another process has opened, which shows in a higher epoch."""
        for name in sorted(self.names & self._brokers.keys()):
            store = self._brokers[name].store
            there, here = await store.epoch_on_disk(), store.identity.epoch
            if there != here:
                fault = StoreFault(
                    f"the store of broker {name} was opened by another process: its epoch is "
                    f"{there}, here {here}",
                    hint="this instance was principal and is stale; start it again",
                )
                self._stale(name, fault)


def _is_hex(text: str) -> bool:
    return bool(text) and len(text) % 2 == 0 and set(text) <= set("0123456789abcdef")
