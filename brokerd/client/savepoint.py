"""Savepoint: a part of a transaction that can be undone alone (GRP-21).

Reads:  answers.     Calls: the transaction it belongs to.
Never:  keeps what failed in it: at its end everything asked in it has been answered, so that an
error belongs to the block in which it was made.
"""

from types import TracebackType
from typing import Protocol, Self

from brokerd.errors import BrokerError


class Divisible(Protocol):
    """A transaction of which a part can be undone alone."""

    async def set_savepoint(self) -> int:
        """Set a savepoint and return its number.

        Raises:
            BrokerError: the first error of an earlier verb, and what every request may raise.
        """
        ...

    async def settle_savepoint(self) -> None:
        """Wait until everything asked so far has been answered.

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
    """Use it as `async with tx.savepoint()`; blocks may be nested."""

    def __init__(self, tx: Divisible) -> None:
        self._tx = tx
        self._number = 0

    async def __aenter__(self) -> Self:
        """Set the savepoint: one round trip, in which errors of earlier verbs surface.

        Raises:
            NoSuchTx: the transaction is over.
            BrokerError: the first error of an earlier verb, and what every request may raise.
        """
        self._number = await self._tx.set_savepoint()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep what was done if all of it succeeded; otherwise undo it and let the error through.

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
        """Undo what was done in the block so far; the block goes on.

        Raises: nothing.
        """
        await self._tx.roll_back_to(self._number)
