"""A transaction that has the lock of one conversation group before anything else (GRP-22).

Reads:  answers.     Calls: client.transaction.
Never:  touches the state of a group without its lock.

The state of a group may be changed only under the group's lock, and an error that rolls the
transaction back releases the lock too. A program that stores the error must lock the group again,
wait for transactions that hold it meanwhile, and read the state anew.
"""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from brokerd.client.failures import Interrupted
from brokerd.errors import DeadlockVictim, LockTimeout
from brokerd.ids import GroupId

if TYPE_CHECKING:
    from brokerd.client.transaction import Transaction

ATTEMPTS: Final = 5
"""How often the lock is asked for before the error is let through."""
_AGAIN: Final = (LockTimeout, DeadlockVictim, Interrupted)


class LockedGroup:
    """Use it as `async with session.group(group_id) as group`; commits at the end of the block.

    `group.tx` is the transaction, for every other verb.
    """

    def __init__(self, begin: "Callable[[], Transaction]", group_id: GroupId) -> None:
        self._begin = begin
        self.group_id = group_id
        self.tx: Transaction
        self._state: bytes | None = None

    async def __aenter__(self) -> "LockedGroup":
        """Lock the group. A wait that ends without the lock is repeated, `ATTEMPTS` times in all.

        Raises:
            GroupNotFound: no conversation of the group is open any more.
            LockTimeout, DeadlockVictim, TransactionAborted: the last attempt failed so.
            BrokerError: what every request may raise; see `Session`.
        """
        attempt = 0
        while True:
            attempt += 1
            self.tx = self._begin()
            try:
                self._state = await self.tx.state(self.group_id, take_lock=True)
            except _AGAIN:
                self.tx.rollback()
                if attempt == ATTEMPTS:
                    raise
            except BaseException:
                self.tx.rollback()
                raise
            else:
                return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit; roll back if the block ended with an exception.

        Raises:
            BrokerError: what `Transaction.commit` names.
        """
        await self.tx.__aexit__(kind, error, trace)

    @property
    def state(self) -> bytes | None:
        """Return the state of the group, as it was read under the lock or set since."""
        return self._state

    async def set_state(self, state: bytes | None) -> None:
        """Replace the state of the group; None deletes it.

        Raises:
            BrokerError: what `Transaction.set_state` names.
        """
        await self.tx.set_state(self.group_id, state)
        self._state = state
