"""Admin gate: keeps the clients of a broker out during its administration (MAN-1).

`Exclusive` reserves brokers for administration. Each client has a `ClientGate`, which holds back
the client's requests that would begin new work, and lists the client's work that must end before
administration can begin.

Reads: the open transactions and the request line of each client.      Calls: the client's work.
Never: loses or reorders a request: one that was held back runs when the administration has ended.
       Only one administrator at a time works on a broker, even if only on its objects.
Wakes: when work of a client that is held back ends, or waits for a message.
Fails: with `Busy` if transactions stay open for too long; the clients are then let in again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from brokerd.broker.broker import Broker
from brokerd.broker.transaction import Transaction
from brokerd.errors import Busy
from brokerd.protocol.client_frames import Cancel, Request
from brokerd.protocol.client_verbs import NOT_HELD_BACK
from brokerd.sessions.flow_control import ADMINISTRATION, Reading
from brokerd.sessions.request_line import IndependentWork, RequestLine
from brokerd.storage.changes import Changes
from brokerd.units import counted

_ADMINISTERED: Final = "broker {!r} is being administered already"
_LATER: Final = "try again when that is over"
FORCED: Final = "an administrator has rolled it back"


class GatedTransaction(Protocol):
    """An open transaction, which may keep administration waiting."""

    tx: Transaction

    @property
    def blocks_administration(self) -> bool:
        """Whether administration waits for the transaction: it holds a lock or is at work."""

    def abort(self, reason: str) -> None:
        """Roll back, and fail the transaction's further requests with the reason."""


class GatedClient(Protocol):
    """A client that may be kept out during administration."""

    reading: Reading
    line: RequestLine

    @property
    def open_transactions(self) -> Mapping[int, GatedTransaction]:
        """Open transactions of the client, by their numbers."""

    def process_first(self, held_back: Iterable[Request | Cancel]) -> None:
        """Process the frames that were held back, before the unprocessed frames."""


class ClientGate:
    """The gate of one client, which holds its requests back until the broker may be used again."""

    __slots__ = ("_client", "_frames", "_most", "_numbers", "_on_change", "is_closed")

    def __init__(self, client: GatedClient, *, on_change: Callable[[], None], most: int) -> None:
        """Create an open gate.

        on_change: called when administration may be able to proceed. most: number of frames held
        back at which reading from the client is paused."""
        self._client = client
        self._on_change = on_change
        self._most = most
        self._numbers: set[int] = set()
        """Numbers of the transactions that have requests held back."""
        self._frames: deque[Request | Cancel] = deque()
        self.is_closed = False
        """Whether requests that would begin new work are held back."""

    def close(self) -> None:
        """Hold back new work until `open`; open transactions that hold locks may finish."""
        self.is_closed = True

    def open(self) -> None:
        """Process the requests that were held back, in the order in which they were written."""
        was_closed, self.is_closed = self.is_closed, False
        held_back, self._frames = self._frames, deque()
        self._numbers.clear()
        self._client.reading.resume(ADMINISTRATION)
        if was_closed:
            self._client.process_first(held_back)

    def hold_back(self, frame: Request) -> bool:
        """Hold back a request that would begin new work; return False if it may run now."""
        if frame.tx is None:
            waits = frame.verb not in NOT_HELD_BACK
        else:
            # A request must not overtake an earlier one of its transaction that is held back.
            waits = frame.tx in self._numbers or self._begins(frame.tx, frame.verb)
        if not waits:
            return False
        if frame.tx is not None:
            self._numbers.add(frame.tx)
        self._frames.append(frame)
        if len(self._frames) >= self._most:
            self._client.reading.pause(ADMINISTRATION)
        return True

    def hold_back_cancel(self, frame: Cancel) -> None:
        """Hold back a CANCEL, because the receive that it names may be held back."""
        self._frames.append(frame)

    def _begins(self, number: int, verb: str) -> bool:
        """Return whether the transaction is new, or does not keep administration waiting yet."""
        known = self._client.open_transactions.get(number)
        return verb == "begin" if known is None else not known.blocks_administration

    def blocking_work(self) -> list[GatedTransaction | IndependentWork]:
        """Return the work that has to end before the broker can be administered."""
        return [*self._blocking_transactions(), *self._client.line.works]

    def abort_blocking_work(self, reason: str) -> None:
        """Roll back begun work that keeps an administrative operation waiting."""
        begun: list[GatedTransaction | IndependentWork] = [
            *self._blocking_transactions(),
            *self._client.line.under_way,
        ]
        for work in begun:
            work.abort(reason)

    def _blocking_transactions(self) -> list[GatedTransaction]:
        return [one for one in self._client.open_transactions.values() if one.blocks_administration]

    def work_changed(self) -> None:
        """Notify the operation that holds this client back that it may be able to proceed.

        A transaction of the client has ended, is idle or waits, and may no longer keep
        administration waiting."""
        if self.is_closed:
            self._on_change()


class Exclusive:
    """The brokers that are reserved for administration at the moment."""

    def __init__(self, gates: Callable[[Broker], list[ClientGate]]) -> None:
        """Create the reservations. `gates`: returns the gates of a broker's clients."""
        self._gates = gates
        self._held: set[Broker] = set()
        self._changing: set[Broker] = set()
        self._change = asyncio.Event()

    def holds(self, broker: Broker) -> bool:
        """Return whether the clients of the broker are kept out."""
        return broker in self._held

    def work_changed(self) -> None:
        """Wake `hold`: a transaction has ended, or may no longer hold a lock."""
        self._change.set()

    @contextmanager
    def changing(self, broker: Broker) -> Iterator[None]:
        """Change the objects of a broker, which no administrator may `hold` meanwhile (MAN-1).

        Raises `Busy` if another administrator holds the broker already."""
        if broker in self._held:
            raise Busy(_ADMINISTERED.format(broker.name), hint=_LATER)
        assert broker not in self._changing, "declarations are applied one at a time"
        self._changing.add(broker)
        try:
            yield
        finally:
            self._changing.discard(broker)
            self._change.set()

    async def hold(self, broker: Broker, *, force: bool, wait: float) -> None:
        """Return when no work of the broker's clients is open; hold back new work until `release`.

        `force`: roll back open transactions first. Wait for open work at most `wait` seconds.
        Raises `Busy` if another administrator holds the broker, or if transactions stay open; the
        error names them."""
        if broker in self._held:
            raise Busy(_ADMINISTERED.format(broker.name), hint=_LATER)
        self._held.add(broker)
        try:
            # Clients are held back before anything is rolled back: no new work may follow the
            # work that ends.
            for gate in self._gates(broker):
                gate.close()
            for queue in broker.queues.values():
                queue.line.end_all()
            if force:
                for gate in self._gates(broker):
                    gate.abort_blocking_work(FORCED)
            await self._until_free(broker, wait)
            await broker.store.commit(Changes())  # commits so far are durable and published
        except BaseException:
            self.release(broker)
            raise

    def release(self, broker: Broker) -> None:
        """Open the gates of the broker's clients again."""
        self._held.discard(broker)
        for gate in self._gates(broker):
            gate.open()

    async def _until_free(self, broker: Broker, wait: float) -> None:
        try:
            async with asyncio.timeout(wait):
                while broker in self._changing or self._blocking_work(broker):
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            if broker in self._changing:
                raise Busy(f"objects of broker {broker.name!r} are being changed") from None
            open_ones = self._blocking_work(broker)
            raise Busy(
                f"broker {broker.name!r} has {counted(len(open_ones), 'open transaction')}: "
                + "; ".join(open_ones[:3]),
                hint="wait for them, or use force to roll them back",
            ) from None

    def _blocking_work(self, broker: Broker) -> list[str]:
        return [work.tx.describe() for gate in self._gates(broker) for work in gate.blocking_work()]
