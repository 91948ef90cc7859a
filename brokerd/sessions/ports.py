"""The client as its requests see it: protocols, so that no request imports the session above it.

`Client` has the members that a request needs from its client, and `TransactionClient` adds those
that an open transaction needs; `ClientSession` implements both.
"""

from __future__ import annotations

from typing import Protocol

from brokerd.broker.broker import Broker
from brokerd.broker.poison import Undone
from brokerd.broker.queues import QueueState
from brokerd.ids import ClientId
from brokerd.security.grants import Rights
from brokerd.sessions.admin_gate import ClientGate
from brokerd.sessions.request_line import RequestLine
from brokerd.sessions.responses import Responses


class Client(Protocol):
    """The client that sent a request."""

    broker: Broker
    client_id: ClientId
    known_as: bytes
    """Id of the client in activation."""
    owner: str
    """Name of the client for logs and lock time-outs."""
    rights: Rights | None
    """Rights of the client's user; None = all rights."""
    user: str
    """Name of the client's user; empty = it is in this process."""
    responses: Responses
    line: RequestLine
    gate: ClientGate

    @property
    def most_dialogs(self) -> int:
        """Number of open dialogs that its user may have begun; 0 = no limit (REL-45)."""
        ...

    def broke(self, error: Exception) -> None:
        """End the connection after an unforeseen error."""

    def commit_broke(self, error: Exception) -> None:
        """Stop the instance: a begun commit could not be handed to the store (REL-5)."""


class TransactionClient(Client, Protocol):
    """The client that opened a transaction."""

    def remove_transaction(self, number: int) -> None:
        """Remove a finished transaction."""

    def start_waiting(self, number: int) -> None:
        """Count a receive that is about to wait for a message; raise `Busy` if too many wait."""

    def stop_waiting(self, number: int) -> None:
        """Uncount the receive of a transaction, if it was counted."""

    def report_receive(self, queue: str) -> bool:
        """Report that a receive begins; return False if it has to return empty (PBT-25)."""

    def report_rollback(self, queues: list[QueueState]) -> None:
        """Report the rollback of a transaction that had received from these queues (ACT-6c)."""

    def evaluate_rollback(self, how: Undone, *, blameless: bool) -> Undone | None:
        """Return what a rollback of this client means for poison; None = no effect (PBT-10)."""

    def now(self) -> float:
        """Return the monotonic time in seconds."""
