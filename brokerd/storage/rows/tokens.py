"""Commit tokens: the record of each client's commits that took effect (REL-2).

Reads:  the table of clients, once, at open.      Calls: nothing.
Never:  guesses: a number that is still being written, or no longer remembered, is "unknown".
"""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Final, Literal

from sqlalchemy import select

from brokerd.clock import SECOND, Instant
from brokerd.ids import ClientId
from brokerd.storage.connections import Connection
from brokerd.storage.statements import Deletes, Inserts, Row, Script, sql
from brokerd.storage.tables import clients

WINDOW: Final = 1024
"""Count of the numbers of a client that are remembered: the highest one and those below it."""
KEPT: Final = 24 * 3600 * SECOND
"""Microseconds for which a client is remembered after its last commit."""
MOST_CLIENTS: Final = 100_000
NOBODY: Final = ClientId(b"")
"""Client id of a row for all clients removed early: it has the time of their latest commit."""

_BITS = (1 << WINDOW) - 1
_put = Inserts(clients, replace=True)
_drop = Deletes(clients.c.client_id)


class _Client:
    __slots__ = ("committed", "highest", "used_at")

    def __init__(self, highest: int, committed: int, used_at: Instant) -> None:
        self.highest = highest
        self.committed = committed
        """Bit n says whether `highest - n` was committed."""
        self.used_at = used_at

    def add(self, numbers: Sequence[int]) -> None:
        ahead = max(numbers) - self.highest
        if ahead > 0:
            self.committed = self.committed << min(ahead, WINDOW) & _BITS
            self.highest += ahead
        for number in numbers:
            below = self.highest - number
            if below < WINDOW:
                self.committed |= 1 << below


_read = sql(select(clients))


class Tokens:
    """The rows of the clients, and the numbers that are being written."""

    def __init__(self, most_clients: int = MOST_CLIENTS) -> None:
        self._clients: dict[ClientId, _Client] = {}
        self._pending: dict[ClientId, set[int]] = {}
        self._highest: dict[ClientId, int] = {}  # of clients with pending numbers
        self._most_clients = most_clients
        self._forgotten_early_at: Instant | None = None

    def load(self, connection: Connection) -> None:
        """Load the rows of the store."""
        for client, highest, committed, used_at in connection.execute(_read):
            if client == NOBODY:
                self._forgotten_early_at = Instant(used_at)
            else:
                bits = int.from_bytes(committed, "little")
                self._clients[ClientId(client)] = _Client(highest, bits, Instant(used_at))

    def joined(self, client: ClientId, numbers: Sequence[int]) -> None:
        """Add numbers of the gathering flush: their outcome is unknown until they are durable."""
        pending = self._pending.get(client)
        if pending is None:
            pending = self._pending[client] = set()
        pending.update(numbers)
        self._highest[client] = max(self._highest.get(client, -1), *numbers)

    def flush(self, tokens: Mapping[ClientId, Sequence[int]], now: Instant) -> list[Row]:
        """Record these numbers as committed; return the clients' rows to be written."""
        rows: list[Row] = []
        for client, numbers in tokens.items():
            state = self._clients.get(client)
            if state is None:
                state = self._clients[client] = _Client(numbers[0], 0, now)
            state.add(numbers)
            state.used_at = now
            committed = state.committed.to_bytes(WINDOW // 8, "little")
            rows.append((client, state.highest, committed, now))
        return rows

    def durable(self, tokens: Mapping[ClientId, Sequence[int]]) -> list[ClientId]:
        """Note that numbers are written; return the clients that have no number left to write."""
        settled = []
        for client, numbers in tokens.items():
            pending = self._pending.get(client)
            if pending is None:
                continue
            pending.difference_update(numbers)
            if not pending:
                del self._pending[client]
                del self._highest[client]
                settled.append(client)
        return settled

    def is_settled(self, client: ClientId) -> bool:
        """Return whether no number of the client is being written."""
        return client not in self._pending

    def outcome(
        self, client: ClientId, number: int, now: Instant
    ) -> Literal["committed", "not_committed", "unknown"]:
        """Return the outcome of the commit with this number."""
        if number in self._pending.get(client, ()):
            return "unknown"
        state = self._clients.get(client)
        if state is None:
            early = self._forgotten_early_at
            return "unknown" if early is not None and now < early + KEPT else "not_committed"
        below = state.highest - number
        if below < 0:
            return "not_committed"
        if below >= WINDOW:
            return "unknown"
        return "committed" if state.committed >> below & 1 else "not_committed"

    def highest(self, client: ClientId) -> int:
        """Return the client's highest number, being written or durable; -1 = none."""
        state = self._clients.get(client)
        durable = state.highest if state is not None else -1
        return max(durable, self._highest.get(client, -1))

    def prune(self, now: Instant) -> tuple[list[ClientId], list[Row]]:
        """Remove old clients; return their ids, and rows to write.

        There is one row if clients were removed early, which it records; otherwise none.
        """
        idle = [
            (state.used_at, client)
            for client, state in self._clients.items()
            if client not in self._pending
        ]
        gone = [client for used_at, client in idle if used_at <= now - KEPT]
        excess = len(self._clients) - len(gone) - self._most_clients
        early: list[tuple[Instant, ClientId]] = []
        if excess > 0:  # normally there are few clients, and sorting many takes long
            early = nsmallest(excess, (entry for entry in idle if entry[0] > now - KEPT))
        for client in (*gone, *(client for _, client in early)):
            del self._clients[client]
        if not early:
            return gone, []
        last = max(early[-1][0], self._forgotten_early_at or early[-1][0])
        self._forgotten_early_at = last
        mark: Row = (NOBODY, -1, b"", last)
        return [*gone, *(client for _, client in early)], [mark]


def write(script: Script, dropped: Sequence[ClientId], rows: Sequence[Row]) -> None:
    """Add the clients' rows of a flush to its script."""
    _drop.add(script, dropped)
    _put.add(script, rows)
