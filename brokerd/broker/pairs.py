"""Numbers of messages from one service to another under one contract (design D12).

Reads:  the messages that its broker publishes, once they are durable.      Calls: nothing.
Never:  costs a message more than two additions: an endpoint in memory refers to its counters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_PAIRS: Final = 1_000
"""Limit of pairs counted separately by a broker, because peers choose the names of services."""
OTHERS: Final = "(others)"
"""The name for the services of all further pairs."""


class Pair:
    """Application messages in one direction, since the start.

    If the services are in two brokers, one counts the sent messages, the other the received
    ones."""

    __slots__ = ("contract", "from_service", "received", "sent", "to_service")

    def __init__(self, from_service: str, to_service: str, contract: str) -> None:
        self.from_service = from_service
        self.to_service = to_service
        self.contract = contract
        self.sent = self.received = 0


class Pairs:
    """The pairs of one broker."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Pair] = {}

    def between(self, from_service: str, to_service: str, contract: str) -> Pair:
        """Return the counters of a pair; they stay the same object as long as the broker runs."""
        names = (from_service, to_service, contract)
        pair = self._known.get(names)
        if pair is None:
            if len(self._known) >= MAX_PAIRS:
                names = (OTHERS, OTHERS, "")
            pair = self._known.setdefault(names, Pair(*names))
        return pair

    def all(self) -> Iterable[Pair]:
        """Return every pair that has counters."""
        return self._known.values()
