"""KeyRotation: another master key takes over from the present one, step by step (SEC-71).

Reads:  the key file, `msdb`, stores of brokers as they are opened.
Calls:  the credential store, `storage.key_file`, `storage.dialog_keys`.
Never:  drops a key by which something may still be encrypted, or touches what a key encrypted that
        is not here (SEC-73).
Fails:  at any step with everything readable: the key file has both keys before anything is
        encrypted by the new one, and each start goes on where the last one stopped.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from brokerd.admin.credential_store import CredentialStore, key_context
from brokerd.broker.broker import Broker
from brokerd.clock import Clock
from brokerd.errors import InUse, NoMasterKey, StoreFull
from brokerd.ids import BrokerId
from brokerd.security.kept_keys import context_of
from brokerd.security.master_key import MOST_FORMER, SIZE, MasterKey, Random
from brokerd.storage.files.key_file import NAME, write_keys
from brokerd.storage.rows.credentials import CredentialChange
from brokerd.storage.rows.dialog_keys import has_keys, renew_some
from brokerd.storage.store import Store
from brokerd.telemetry.audit import Action, Entry
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import CERTIFICATE
from brokerd.telemetry.status import foreign_key, way_to_master_key

AT_ONCE: Final = 500
"""Dialogs whose keys are encrypted anew in one transaction."""


def no_fault(_name: str) -> None:
    """Do nothing; a test fails here instead."""


class KeyRotation:
    """The master key of one instance, its former keys, and the stores that they encrypt."""

    def __init__(
        self,
        *,
        credentials: CredentialStore,
        data_dir: Path,
        brokers: Mapping[str, Broker],
        random: Random | None,
        owners: Callable[[], Mapping[str, bytes]],
        absent: Callable[[], Collection[str]],
        aside: Callable[[Callable[[], Any]], Awaitable[Any]],
        clock: Clock,
        log: Log,
        fault: Callable[[str], None] | None = None,
    ) -> None:
        """Create the part.

        `owners`: returns the fingerprints of the keys of partners, by the name of the shared broker
        that they have open. `absent`: returns the brokers whose store could not be opened.
        `fault`: called at each step with its name."""
        self._credentials = credentials
        self._path = data_dir / NAME
        self._brokers = brokers
        self._random = random
        self._owners = owners
        self._absent = absent
        self._aside = aside
        self._clock = clock
        self._log = log
        self._fault = fault or no_fault
        self._foreign: dict[str, BrokerId] = {}

    # A rotation.

    async def rotate(self, *, actor: str) -> list[str]:
        """Make another master key; return the brokers whose dialogs follow at the next start.

        Raises:
            NoMasterKey: there is no master key, or the file cannot be written.
            InUse: brokers have not followed the rotation before, or may need a key that would go.
        """
        present = self._credentials.key()
        if self._random is None:
            raise NoMasterKey("this instance makes no keys")
        if behind := self._not_of(present):
            raise InUse(
                f"the former master key still encrypts dialogs of {', '.join(behind)}",
                hint="start the daemon again first: they follow when their stores are opened",
            )
        if present.is_full and (absent := sorted(self._absent())):
            raise InUse(
                f"the oldest former master key may encrypt dialogs of {', '.join(absent)}, whose "
                f"store is not open, and only {MOST_FORMER} former keys are kept",
                hint="repair these brokers, or forget them: brokerd broker forget",
            )
        new = present.followed_by(self._random(SIZE))
        try:
            await self._aside(partial(write_keys, self._path, new.keys))
        except OSError as error:
            raise NoMasterKey(
                f"{self._path} cannot be written: {error.strerror}",
                hint="let the daemon's user write to the directory",
            ) from error
        self._fault("rotate.file")
        self._credentials.master_key = new
        await self._renew_private_keys(actor)
        self._fault("rotate.private_keys")
        self._log.warning(CERTIFICATE, subclass="master_key_rotated", actor=actor)
        return self._not_of(new)

    def _not_of(self, key: MasterKey) -> list[str]:
        """Return the open brokers whose store notes another key than this."""
        noted = {
            name: broker.store.identity.master_key
            for name, broker in self._brokers.items()
            if name not in self._foreign
        }
        return sorted(name for name, one in noted.items() if one not in (None, key.fingerprint))

    async def finish(self) -> None:
        """Encrypt private keys anew that a rotation before this start has not reached."""
        master = self._credentials.master_key
        if master is not None and self._renewed(master):
            try:
                await self._renew_private_keys("")
            except StoreFull:
                return  # the former key reads them; the next start tries again

    async def _renew_private_keys(self, actor: str) -> None:
        master = self._credentials.key()
        entry = Entry(
            at=self._clock.utc(), action=Action.MASTER_KEY_ROTATED, actor=actor, subject=NAME
        )
        await self._credentials.change(
            lambda: CredentialChange(put=tuple(self._renewed(master)), entries=(entry,))
        )

    def _renewed(self, master: MasterKey) -> list[Any]:
        found = []
        for one in self._credentials.credentials.certificates.values():
            if one.private_key is None:
                continue
            try:
                new = master.renewed(one.private_key, key_context(one.certificate.id))
            except NoMasterKey:
                continue  # nothing reads it, before and after
            if new is not None:
                found.append(msgspec.structs.replace(one, private_key=new))
        return found

    # Stores of brokers.

    async def adopt(self, store: Store) -> None:
        """Have the keys of dialogs in a store encrypted by the present key, before they are loaded.

        A store of which another key is noted is left alone, and named, if any dialog has keys there
        (SEC-73)."""
        name, identity = store.identity.broker_name, store.identity
        self._foreign.pop(name, None)
        master = self._credentials.master_key
        if master is None or identity.master_key == master.fingerprint:
            return
        if identity.master_key is not None:
            is_known = identity.master_key in master.former_fingerprints
            if not is_known and await store.run(has_keys, writes=False):
                self._foreign[name] = identity.broker_id
                problem = foreign_key(name)
                self._log.error(
                    CERTIFICATE,
                    subclass="no_master_key",
                    problem=problem,
                    broker=name,
                    hint=way_to_master_key(problem),
                )
                return
            if is_known:
                await self._renew_dialogs(store, master.for_broker(identity.broker_id))
        await store.change_identity(master_key=master.fingerprint)

    async def _renew_dialogs(self, store: Store, key: MasterKey) -> None:
        def renewed(wrapped: bytes, conversation_id: bytes, is_initiator: bool) -> bytes | None:
            context = context_of(conversation_id, is_initiator=is_initiator)
            try:
                return key.renewed(wrapped, context)
            except NoMasterKey:
                return None  # nothing reads it, before and after

        after: int | None = 0
        while after is not None:
            after = await store.run(partial(renew_some, renewed=renewed, after=after, most=AT_ONCE))
            self._fault("rotate.dialogs")

    async def claim(self) -> None:
        """Note the present key in all open stores, because the former one was given up (SEC-38)."""
        master = self._credentials.key()
        for broker in list(self._brokers.values()):
            await broker.store.change_identity(master_key=master.fingerprint)
            self._foreign.pop(broker.name, None)

    def is_foreign(self, broker_id: BrokerId) -> bool:
        """Return whether another key than those here encrypts the dialogs of a broker."""
        return broker_id in self._foreign.values()

    def why_no_key(self) -> str:
        """Return why stored keys cannot be used, and what to do; empty = they can, or there are
        none."""
        master = self._credentials.master_key
        if master is None:
            return self._credentials.why_no_key()
        mine = (master.fingerprint, *master.former_fingerprints)
        theirs = [name for name, one in self._owners().items() if one and one not in mine]
        names = sorted({*self._foreign, *theirs} - {""})
        return "; ".join(foreign_key(name) for name in names)
