"""A gate that holds up checks until a test opens it."""

from brokerd.broker.broker import Broker
from brokerd.checking.checker import Done, InProcess, Pending
from brokerd.model import MessageType


class Gate(InProcess):
    """The checker of a broker: a check ends when the test says so."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.inspection = broker.inspection
        self.open: list[Pending] = []
        broker.inspection._checker = self

    def check(self, kind: MessageType, body: bytes, done: Done) -> Pending:
        pending = Pending(kind, body, done)
        self.open.append(pending)
        return pending

    def finish(self) -> None:
        """The oldest check is over."""
        self._check(self.open.pop(0))
