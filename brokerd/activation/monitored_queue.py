"""Monitored queue: the state of one activated queue, and of each of its readers.

Reads:  nothing.      Never:  decides anything: `readers` and `runner` set its fields.
"""

import asyncio

import msgspec

from brokerd.activation.decisions import Decisions
from brokerd.activation.monitor import Limits, Monitor
from brokerd.activation.processes import Running
from brokerd.clock import Instant
from brokerd.model import Activation, Queue


class Reader(msgspec.Struct, eq=False):
    """One reader: a running handler or command."""

    number: int
    queue: "MonitoredQueue"
    handler: str
    """The handler or command of the reader, as one text."""
    generation: int
    started_at: Instant
    started: float
    known_as: bytes = b""
    """Id of the reader's session in activation: its client id, or the token given to a child. The
    token is a secret of the child, and is never shown."""
    session_id: bytes = b""
    """Client id of the reader's session; empty until it is known."""
    receives: int = 0
    """Number of receives from the reader's own queue; other receives do not count (ACT-31)."""
    last_receive_at: Instant | None = None
    invoked: bool = False
    stopped: bool = False
    """Whether the reader was asked to end."""
    child: Running | None = None
    """Process of the reader; None = it runs in the daemon, or its process is not started yet."""
    task: asyncio.Task[None] | None = None
    last_sign: float = 0.0
    """Monotonic time at which the reader last began a receive, or was started."""
    error: str = ""
    cut: bool = False
    """Whether the reader's process, or its connection, ended in the middle of a transaction."""
    raised: BaseException | None = None
    """Exception of a handler in the daemon, kept for the traceback in the log."""


class MonitoredQueue(msgspec.Struct, eq=False):
    """One queue: its definition, its monitor if any, and its readers of all generations."""

    broker: str
    name: str
    decisions: Decisions
    activation: Activation = Activation("")
    limits: Limits = Limits()
    monitor: Monitor | None = None
    generation: int = 0
    applied: tuple[Queue, bool, float | None] | None = None
    """Last values given to `altered`: definition, delivery, time-out of its subscriptions."""
    absent_reason: str = ""
    readers: set[Reader] = msgspec.field(default_factory=set)

    @property
    def running(self) -> int:
        """Number of running readers of the queue; 0 if external activators start them (ACT-36)."""
        return 0 if self.limits.external else len(self.readers)
