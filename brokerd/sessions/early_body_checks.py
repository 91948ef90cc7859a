"""Early body checks: checks of the bodies in sends whose turn has not come (OBJ-61).

Reads: the verbs of a request that have not run.      Calls: verb_dispatch.
Never: has more than `MOST_AHEAD` checks of one client unfinished, or waits for one.
Fails: an unforeseen error ends the connection of that client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from brokerd.broker.transaction import Transaction, TxState
from brokerd.sessions.verb_dispatch import prepare

MOST_AHEAD: Final = 64
"""Unfinished checks that one client may have begun ahead of the turns of its sends.

The checker serves all clients in one line: checks of other clients wait behind these checks."""


class Sending(Protocol):
    """Work that contains sends whose turn has not come."""

    tx: Transaction

    def next_to_check(self) -> object:
        """Return the next verb whose body may be checked ahead of its turn, each verb once.

        None = no verb can be checked at present."""


class EarlyBodyChecks:
    """The checks that one client has begun ahead of the turns of its sends."""

    __slots__ = ("_broke", "_unfinished", "_works")

    def __init__(self, broke: Callable[[Exception], None]) -> None:
        """Create the checks of a client. `broke`: ends its connection after an unforeseen error."""
        self._broke = broke
        self._unfinished = 0
        self._works: dict[Sending, None] = {}
        """Work items with further checks to begin, in the order in which they were added."""

    def begin(self, work: Sending) -> None:
        """Begin the checks of the work's further sends, now or as earlier checks finish."""
        self._works[work] = None
        self._begin_more()

    def drop(self, work: Sending) -> None:
        """Begin no further checks for work that has ended."""
        self._works.pop(work, None)

    def clear(self) -> None:
        """Begin no further checks, because the client is disconnected."""
        self._works.clear()

    def _begin_more(self) -> None:
        while self._works and self._unfinished < MOST_AHEAD:
            work = next(iter(self._works))
            verb = work.next_to_check() if work.tx.state is TxState.OPEN else None
            if verb is None:
                del self._works[work]
            elif prepare(work.tx, verb, self._finished):
                self._unfinished += 1

    def _finished(self) -> None:
        self._unfinished -= 1
        try:
            self._begin_more()
        except Exception as error:  # noqa: BLE001  # per connection (design, The code)
            self._broke(error)
