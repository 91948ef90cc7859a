"""Keeps the clients of a broker out while administration works on it (MAN-1).

Reads: the open transactions of its clients.      Calls: session.
Never: loses or reorders a request: one that would begin something is taken when the administration
       has ended. Two administrators, also of objects, do not work on a broker at the same time.
Fails: with `Busy` if transactions stay open for too long; nobody is kept out then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from brokerd.errors import Busy
from brokerd.protocol.client_frames import Cancel, Request
from brokerd.protocol.client_verbs import NOT_HELD_BACK
from brokerd.storage.changes import Changes
from brokerd.units import counted

if TYPE_CHECKING:
    from brokerd.broker.broker import Broker
    from brokerd.sessions.open_transaction import OpenTx
    from brokerd.sessions.session import ClientSession

_ADMINISTERED: Final = "broker {!r} is being administered already"
_LATER: Final = "try again when that is over"
FORCED: Final = "an administrator has rolled it back"


class HeldBack:
    """The requests of one client that wait until its broker may be used again."""

    def __init__(
        self, transactions: Mapping[int, OpenTx], *, full: Callable[[], None], most: int
    ) -> None:
        self._transactions = transactions
        self._full = full
        self._most = most
        self._numbers: set[int] = set()
        self.frames: deque[Request | Cancel] = deque()

    def takes(self, frame: Request) -> bool:
        """Keep a request that would begin something. False = it may be taken now."""
        if frame.tx is None:
            waits = frame.verb not in NOT_HELD_BACK
        else:
            # Behind a kept request of its transaction a request is kept, too, or would overtake it.
            waits = frame.tx in self._numbers or self._begins(frame.tx, frame.verb)
        if not waits:
            return False
        if frame.tx is not None:
            self._numbers.add(frame.tx)
        self.frames.append(frame)
        if len(self.frames) >= self._most:
            self._full()
        return True

    def _begins(self, number: int, verb: str) -> bool:
        """Return whether the transaction is new, or has done nothing that is in the way."""
        known = self._transactions.get(number)
        return verb == "begin" if known is None else not known.in_the_way


class Exclusive:
    """The brokers that are reserved for administration at the moment."""

    def __init__(self, clients: Callable[[Broker], list[ClientSession]]) -> None:
        self._clients = clients
        self._held: set[Broker] = set()
        self._changing: set[Broker] = set()
        self._news = asyncio.Event()

    def holds(self, broker: Broker) -> bool:
        """Return whether the clients of the broker are kept out."""
        return broker in self._held

    def finished(self) -> None:
        """Wake `hold`: a transaction has ended, or may hold no lock any more."""
        self._news.set()

    @contextmanager
    def changing(self, broker: Broker) -> Iterator[None]:
        """Change the objects of a broker, which nobody may `hold` until the block ends (MAN-1).

        Raises `Busy` if somebody holds the broker already."""
        if broker in self._held:
            raise Busy(_ADMINISTERED.format(broker.name), hint=_LATER)
        assert broker not in self._changing, "declarations are applied one at a time"
        self._changing.add(broker)
        try:
            yield
        finally:
            self._changing.discard(broker)
            self._news.set()

    async def hold(self, broker: Broker, *, force: bool, wait: float) -> None:
        """Return when no work of the broker's clients is open, and keep it so until `release`.

        `force`: roll back open transactions; else wait for them, at most `wait` seconds. Raises
        `Busy` if another administrator holds the broker, or if transactions stay open (named)."""
        if broker in self._held:
            raise Busy(_ADMINISTERED.format(broker.name), hint=_LATER)
        self._held.add(broker)
        try:
            # Clients are held back before anything is rolled back: what ends must not be followed
            # by new work.
            for session in self._clients(broker):
                session.hold_back()
            for queue in broker.queues.values():
                queue.line.end_all()
            if force:
                for session in self._clients(broker):
                    session.abort_all(FORCED)
            await self._until_free(broker, wait)
            await broker.store.commit(Changes())  # what was committed is durable and published
        except BaseException:
            self.release(broker)
            raise

    def release(self, broker: Broker) -> None:
        """Let the clients of the broker go on."""
        self._held.discard(broker)
        for session in self._clients(broker):
            session.go_on()

    async def _until_free(self, broker: Broker, wait: float) -> None:
        try:
            async with asyncio.timeout(wait):
                while broker in self._changing or self._in_the_way(broker):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            if broker in self._changing:
                raise Busy(f"objects of broker {broker.name!r} are being changed") from None
            open_ones = self._in_the_way(broker)
            raise Busy(
                f"broker {broker.name!r} has {counted(len(open_ones), 'open transaction')}: "
                + "; ".join(open_ones[:3]),
                hint="wait for them, or use force to roll them back",
            ) from None

    def _in_the_way(self, broker: Broker) -> list[str]:
        return [
            work.tx.describe() for session in self._clients(broker) for work in session.in_the_way
        ]
