"""What a checker is, whichever process its checks run in, and what it says (OBJ-61).

Reads:  nothing.      Calls: validation, for the checker that runs in this process.
Never:  decides what becomes of a message.
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
    """How a check of one body ended."""

    FIT = "fit"
    UNFIT = "unfit"
    """The body is not what its message type asks for."""
    OVERRUN = "overrun"
    """No verdict: the check took more time or memory than it may, crashed, or gave up."""
    UNAVAILABLE = "unavailable"
    """No verdict, and not for the body's sake: checks cannot be run at present."""


class Verdict(msgspec.Struct, frozen=True):
    """What came of the check of one body."""

    outcome: Outcome
    text: str = ""
    """Why, except for a body that fits."""


FIT: Final = Verdict(Outcome.FIT)
Done = Callable[[Verdict], None]


class Limits(msgspec.Struct, frozen=True):
    """What the check of one body may use."""

    time: timedelta = timedelta(seconds=1)
    """Processor time for each 4 MiB of the body, or part of that."""
    memory: int = 256 * 1024 * 1024
    """Bytes beside what the process has before."""

    def seconds(self, size: int) -> float:
        """Processor time for a body of this many bytes."""
        return self.time.total_seconds() * max(1, -(-size // SHARE))


SHARE: Final = 4 * 1024 * 1024
"""Bytes of a body to which `Limits.time` applies."""


class Counts(msgspec.Struct):
    """What a checker has done since its start."""

    checked: int = 0
    unfit: int = 0
    overruns: Counter[str] = msgspec.field(default_factory=Counter)
    """Checks without a verdict, by cause: time, memory, crash, gave_up."""
    unavailable: int = 0
    """Checks that could not be run at all."""
    restarts: int = 0
    """Processes that ended while they had something to check, or that did not start."""
    failing: str = ""
    """Why the process does not start; empty while it does."""


class Pending(msgspec.Struct, eq=False):
    """One body that has no verdict yet."""

    kind: MessageType
    body: bytes
    done: Done
    cancelled: bool = False
    """Set by whoever has no need of the verdict any more: it is not checked when its turn comes."""
    alone: bool = False
    """Whether the process gets it while it has nothing else, so that its end says something."""
    refused: bool = False
    """Whether the process has said that it is unfit; the reason may follow."""


CANCELLED: Final = Verdict(Outcome.UNAVAILABLE, "its verdict is not needed any more")


class Checker(Protocol):
    """Checks bodies without holding up its caller."""

    counts: Counts

    @property
    def waiting(self) -> int:
        """Bodies that have no verdict yet."""
        ...

    def check(self, kind: MessageType, body: bytes, done: Done) -> Pending:
        """Check a body, and call `done` on a later turn of the loop, in any case."""
        ...

    def limit(self, limits: Limits) -> None:
        """Give checks other limits from now on."""
        ...

    async def stop(self) -> None:
        """End what runs; no check asked for before is answered any more."""
        ...


class InProcess:
    """A checker without limits or a process of its own, for runs in virtual time."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.waiting = 0

    def check(self, kind: MessageType, body: bytes, done: Done) -> Pending:
        """Check it on the next turn of the loop."""
        self.waiting += 1
        pending = Pending(kind, body, done)
        asyncio.get_running_loop().call_soon(self._check, pending)
        return pending

    def limit(self, limits: Limits) -> None:
        """There are none here."""

    async def stop(self) -> None:
        """There is nothing to end."""

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
