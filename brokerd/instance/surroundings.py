"""Surroundings: what an instance takes from the world, so that a test can hand in other ones.

Reads:  nothing.      Calls: nothing.
Never:  decides anything (HK-1 to HK-4).
"""

from collections.abc import Callable
from random import Random

import msgspec

from brokerd.broker.broker import BrokerOptions
from brokerd.checking.checker import Checker
from brokerd.client.recorder import Recorder
from brokerd.clock import Clock
from brokerd.ids import BootId, IdSource, InstanceId
from brokerd.maintenance.room import Disk
from brokerd.storage.engine import Executor
from brokerd.telemetry.log import Log
from brokerd.telemetry.metrics_log import MetricsLog
from brokerd.transport.network import Network


class Surroundings(msgspec.Struct, frozen=True):
    """What an instance takes from the world; a test hands in other ones (HK-1 to HK-4)."""

    clock: Clock
    ids: IdSource
    rng: Random
    network: Network
    executor: Executor
    log: Log
    boot_id: BootId
    metrics: MetricsLog | None = None
    summarise: Callable[[], int] = lambda: 0
    """Writes what the event log held back (MON-11)."""
    identify: Callable[[InstanceId], None] = lambda _id: None
    """Told the instance id once the stores are open."""
    fault: Callable[[str], None] | None = None
    """Failpoints (HK-6)."""
    host: bytes | None = None
    """What tells this machine from others; None = unknown (MAN-7)."""
    limits: BrokerOptions = BrokerOptions()
    """How much of a store is held in memory; what has a setting is taken from there (HK-11)."""
    recorder: Recorder | None = None
    """Where the sessions of readers tell what they do (reliability 7.1)."""
    disk: Disk | None = None
    """The file system of the stores; None = nobody looks how much room it has (REL-26)."""
    checker: Checker | None = None
    """What checks bodies; None = a checker in this process, without limits (OBJ-61)."""
    only: str | None = None
    """The one broker to open beside `msdb`, where the directory holds other files as well."""
