"""Surroundings: the clocks, ids, network and files of an instance, which a test can replace.

Reads:  nothing.      Calls: nothing.
Never:  decides anything (HK-1 to HK-4).
"""

from collections.abc import Callable
from random import Random

import msgspec

from brokerd.broker.options import BrokerOptions
from brokerd.checking.checker import Checker
from brokerd.client.recorder import Recorder
from brokerd.clock import Clock
from brokerd.ids import BootId, IdSource, InstanceId
from brokerd.maintenance.disk_space import Disk
from brokerd.storage.executors import Executor
from brokerd.telemetry.log import Log
from brokerd.telemetry.metrics_log import MetricsLog
from brokerd.transport.network import Network


class Surroundings(msgspec.Struct, frozen=True):
    """Everything that an instance uses of the outside world; a test replaces it (HK-1 to HK-4)."""

    clock: Clock
    ids: IdSource
    rng: Random
    network: Network
    executor: Executor
    log: Log
    boot_id: BootId
    metrics: MetricsLog | None = None
    summarise: Callable[[], int] = lambda: 0
    """Writes the lines that the event log held back, as summaries; returns their number (MON-11).
    """
    identify: Callable[[InstanceId], None] = lambda _id: None
    """Called with the instance id once the stores are open."""
    fault: Callable[[str], None] | None = None
    """Failpoints (HK-6)."""
    host: bytes | None = None
    """Fingerprint that distinguishes this machine from others; None = unknown (MAN-7)."""
    limits: BrokerOptions = BrokerOptions()
    """Limits of memory for each store; those that have a setting come from the setting (HK-11)."""
    recorder: Recorder | None = None
    """Records the calls of readers' sessions (reliability 7.1); None = no record."""
    disk: Disk | None = None
    """The file system of the stores; None = its free room is not checked (REL-26)."""
    checker: Checker | None = None
    """Checks bodies; None = a checker in this process, without limits (OBJ-61)."""
    only: str | None = None
    """The one broker to open beside `msdb`, where the directory holds other files as well."""
