"""LockedGroup: a transaction that begins by locking one conversation group (GRP-22).

Reads:  answers.     Calls: client.transaction.
Never:  touches the state of a group without its lock.

The state of a group may be changed only under the group's lock, and an error that rolls the
transaction back releases the lock too. A program that stores the error must lock the group again,
wait while another transaction holds it, and read the state again.
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
"""Number of attempts to lock the group; the error of the last one is raised."""
_AGAIN: Final = (LockTimeout, DeadlockVictim, Interrupted)


class LockedGroup:
    """A transaction that begins by locking a group: `async with session.group(id) as group`.

    The end of the block commits. `group.tx` is the transaction, for all other verbs.
    """

    def __init__(self, begin: "Callable[[], Transaction]", group_id: GroupId) -> None:
        self._begin = begin
        self.group_id = group_id
        self.tx: Transaction
        self._state: bytes | None = None

    async def __aenter__(self) -> "LockedGroup":
        """Lock the group, in at most `ATTEMPTS` attempts, and return this object.

        Raises:
            GroupNotFound: the group has no open conversation.
            LockTimeout, DeadlockVictim, TransactionAborted: the last attempt failed.
            BrokerError: an error common to all requests; see `Session`.
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
            BrokerError: an error that `Transaction.commit` names.
        """
        await self.tx.__aexit__(kind, error, trace)

    @property
    def state(self) -> bytes | None:
        """State of the group, as read under the lock or set since; None = it has none."""
        return self._state

    async def set_state(self, state: bytes | None) -> None:
        """Replace the state of the group; None deletes it.

        Raises:
            BrokerError: an error that `Transaction.set_state` names.
        """
        await self.tx.set_state(self.group_id, state)
        self._state = state
