"""The observations that the doctor checks: rows of views and the status of an instance.

Reads, calls: nothing.
Never:  queries a daemon; `gathering` does, and fills these records.
"""

from typing import Final

import msgspec

from brokerd.admin.doctor.findings import Row
from brokerd.clock import Instant
from brokerd.telemetry.status import InstanceStatus, QueueStatus

MOST: Final = 100
"""The number of parked groups or stuck dialogs of a broker that are reported one by one."""


class BrokerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, as its views show it."""

    name: str
    default_encryption: bool = False
    """Whether dialogs that begin in the broker are encrypted by default (DLG-12)."""
    services: list[Row] = []
    routes: list[Row] = []
    bindings: list[Row] = []
    """The remote service bindings."""
    parked: list[Row] = []
    queues: list[Row] = []
    usages: list[Row] = []
    """The contracts of which each service is a target."""
    contracts: list[Row] = []
    message_usages: list[Row] = []
    message_types: list[Row] = []
    queue_status: list[QueueStatus] = []
    lingering: dict[str, int] = {}
    """Number of endpoints, by state, that ended long ago and that no program has finished (PBT-5).

    Counting stops at `MOST` + 1 for each state.
    """
    stuck: list[Row] = []
    """Each dialog's oldest message, if it has waited more than `status.STUCK_AFTER` to be sent."""
    more_stuck: bool = False
    """Whether messages other than those in `stuck` may have waited as long."""
    delayed: list[Row] = []
    """Waiting messages, one per dialog, if some messages of the broker have no destination."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, as its views and status show it."""

    status: InstanceStatus
    now: Instant = Instant(0)
    """The time by the clock of the machine that runs the doctor."""
    brokers: list[BrokerSeen] = []
    known: list[Row] = []
    """The rows of the view `brokers`."""
    endpoint: Row | None = None
    destinations: list[Row] = []
    instance_routes: list[Row] = []
    forwarder: Row = {}
    dispatching: Row = {}
