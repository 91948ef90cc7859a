"""Monitored queue: the state of one activated queue, and of each of its readers.

Reads:  nothing.      Never:  decides anything: values that `readers` keeps and `runner` fills.
"""

import asyncio

import msgspec

from brokerd.activation.decisions import Decisions
from brokerd.activation.monitor import Limits, Monitor
from brokerd.activation.processes import Running
from brokerd.clock import Instant
from brokerd.model import Activation, Queue


class Reader(msgspec.Struct, eq=False):
    """One running handler."""

    number: int
    queue: "MonitoredQueue"
    handler: str
    """Handler or command that runs, as one text."""
    generation: int
    started_at: Instant
    started: float
    known_as: bytes = b""
    """The id of its session for activation: its client id, or the token that a child was given. The
    token is a secret of the child: it is shown nowhere."""
    session_id: bytes = b""
    """Client id of its session; empty until it is known."""
    receives: int = 0
    """Receives from its own queue; its monitor does not count others (ACT-31)."""
    last_receive_at: Instant | None = None
    invoked: bool = False
    stopped: bool = False
    """Whether it was asked to end."""
    child: Running | None = None
    """Process of the reader, if it has one of its own."""
    task: asyncio.Task[None] | None = None
    last_sign: float = 0.0
    """Monotonic time at which it last began a receive, or was started."""
    error: str = ""
    cut: bool = False
    """Whether its process, or its connection, was gone in the middle of a transaction."""
    raised: BaseException | None = None
    """Exception of a handler in the daemon, for its traceback in the log."""


class MonitoredQueue(msgspec.Struct, eq=False):
    """One queue: its definition, its monitor if it has one, its readers of all generations."""

    broker: str
    name: str
    decisions: Decisions
    activation: Activation = Activation("")
    limits: Limits = Limits()
    monitor: Monitor | None = None
    generation: int = 0
    applied: tuple[Queue, bool, float | None] | None = None
    """The last values given to `altered`: definition, delivery, time-out of its subscriptions."""
    absent_reason: str = ""
    readers: set[Reader] = msgspec.field(default_factory=set)

    @property
    def running(self) -> int:
        """Number of its running readers; 0 if external activators start them (ACT-36)."""
        return 0 if self.limits.external else len(self.readers)
