"""Checker: the interface of all checkers, in this process or another, and their verdicts (OBJ-61).

Reads:  nothing.      Calls: validation, for the checker that runs in this process.
Never:  decides what happens to a message.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from brokerd.model import MessageType
from brokerd.objects.validation import GaveUp, problem


class Outcome(StrEnum):
    """The outcome of the check of one body."""

    FIT = "fit"
    UNFIT = "unfit"
    """The body does not meet the requirements of its message type."""
    OVERRUN = "overrun"
    """No verdict: the check took more time or memory than allowed, crashed, or gave up."""
    UNAVAILABLE = "unavailable"
    """No verdict, for a reason other than the body: checks cannot be run at present."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of the check of one body."""

    outcome: Outcome
    text: str = ""
    """The reason; empty if the body fits."""


FIT: Final = Verdict(Outcome.FIT)
Done = Callable[[Verdict], None]


class Limits(msgspec.Struct, frozen=True):
    """Limits of the check of one body."""

    time: timedelta = timedelta(seconds=1)
    """Processor time for each 4 MiB of the body; a remainder counts as 4 MiB."""
    memory: int = 256 * 1024 * 1024
    """Bytes in addition to the memory that the process has before the check."""

    def seconds(self, size: int) -> float:
        """Return the processor time, in seconds, allowed for a body of this many bytes."""
        return self.time.total_seconds() * max(1, -(-size // SHARE))


SHARE: Final = 4 * 1024 * 1024
"""Bytes of a body to which `Limits.time` applies."""


class Counts(msgspec.Struct):
    """Counts of a checker since its start."""

    checked: int = 0
    unfit: int = 0
    overruns: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of checks without a verdict, by cause: time, memory, crash, gave_up."""
    unavailable: int = 0
    """Number of checks that could not be run at all."""
    restarts: int = 0
    """Number of processes that ended while they had bodies to check, or that did not start."""
    failing: str = ""
    """Why the process does not start; empty while it does."""


class Pending(msgspec.Struct, eq=False):
    """A body that has no verdict yet."""

    kind: MessageType
    body: bytes
    done: Done
    cancelled: bool = False
    """Whether the caller no longer needs the verdict; the body is then not checked when its turn
    comes."""
    alone: bool = False
    """Whether the process has only this body: if the process ends, this body is to blame."""
    refused: bool = False
    """Whether the process has reported the body as unfit; the reason may follow."""


CANCELLED: Final = Verdict(Outcome.UNAVAILABLE, "its verdict is not needed any more")


class Checker(Protocol):
    """A checker of bodies that does not block its caller."""

    counts: Counts

    @property
    def waiting(self) -> int:
        """Number of bodies that have no verdict yet."""
        ...

    def check(self, kind: MessageType, body: bytes, done: Done) -> Pending:
        """Check a body, and call `done` with a verdict, always on a later turn of the loop."""
        ...

    def limit(self, limits: Limits) -> None:
        """Use other limits for checks from now on."""
        ...

    async def stop(self) -> None:
        """Stop all checks; pending checks get no verdict."""
        ...


class InProcess:
    """A checker without limits or a process of its own, for runs in virtual time."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.waiting = 0

    def check(self, kind: MessageType, body: bytes, done: Done) -> Pending:
        """Check the body on the next turn of the loop."""
        self.waiting += 1
        pending = Pending(kind, body, done)
        asyncio.get_running_loop().call_soon(self._check, pending)
        return pending

    def limit(self, limits: Limits) -> None:
        """Do nothing: this checker has no limits."""

    async def stop(self) -> None:
        """Do nothing: a check runs within one turn of the loop, so none is ever under way here."""

    def _check(self, pending: Pending) -> None:
        self.waiting -= 1
        pending.done(CANCELLED if pending.cancelled else self._verdict(pending))

    def _verdict(self, pending: Pending) -> Verdict:
        self.counts.checked += 1
        try:
            text = problem(pending.kind, pending.body)
        except GaveUp as gave_up:
            self.counts.overruns["gave_up"] += 1
            return Verdict(Outcome.OVERRUN, f"its check gave up: {gave_up}")
        self.counts.unfit += bool(text)
        return Verdict(Outcome.UNFIT, text) if text else FIT
