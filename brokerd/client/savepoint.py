"""Savepoint: a part of a transaction that can be undone alone (GRP-21).

Reads:  answers.     Calls: the transaction it belongs to.
Never:  keeps the effects of a failed block. The end of a block waits for the answers to all its
        requests, so that an error belongs to the block that made the request.
"""

from types import TracebackType
from typing import Protocol, Self

from brokerd.errors import BrokerError


class Divisible(Protocol):
    """A transaction that can be rolled back to a savepoint."""

    async def set_savepoint(self) -> int:
        """Set a savepoint and return its number.

        Raises:
            BrokerError: the first error of an earlier verb, or one common to all requests.
        """
        ...

    async def settle_savepoint(self) -> None:
        """Wait until all requests so far have been answered.

        Raises:
            BrokerError: the first error of a verb.
        """
        ...

    async def roll_back_to(self, number: int) -> None:
        """Undo everything since a savepoint.

        Raises: nothing.
        """
        ...


class Savepoint:
    """A part of a transaction that can be undone alone: `async with tx.savepoint()`.

    Blocks may be nested.
    """

    def __init__(self, tx: Divisible) -> None:
        self._tx = tx
        self._number = 0

    async def __aenter__(self) -> Self:
        """Set the savepoint: one round trip, in which errors of earlier verbs surface.

        Raises:
            NoSuchTx: the transaction is over.
            BrokerError: the first error of an earlier verb, or one common to all requests.
        """
        self._number = await self._tx.set_savepoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep the work of the block if all of it succeeded; otherwise undo it and raise the error.

        Raises:
            BrokerError: the first error of a verb in the block.
        """
        if kind is not None:
            await self._tx.roll_back_to(self._number)
            return
        try:
            await self._tx.settle_savepoint()
        except BrokerError:
            await self._tx.roll_back_to(self._number)
            raise

    async def undo(self) -> None:
        """Undo the work of the block so far; the block continues.

        Raises: nothing.
        """
        await self._tx.roll_back_to(self._number)
