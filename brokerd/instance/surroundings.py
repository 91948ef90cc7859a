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
from brokerd.ids import BootId, IdSource, InstanceId, secret_bytes
from brokerd.maintenance.disk_space import Disk
from brokerd.storage.executors import Executor
from brokerd.telemetry.log import Log
from brokerd.telemetry.metrics_log import MetricsLog
from brokerd.transport.network import Network


class Surroundings(msgspec.Struct, frozen=True):
    """The outside world as an instance uses it; a test can replace every part (HK-1 to HK-4)."""

    clock: Clock
    ids: IdSource
    rng: Random
    network: Network
    executor: Executor
    log: Log
    boot_id: BootId
    metrics: MetricsLog | None = None
    summarise: Callable[[], int] = lambda: 0
    """Function that writes the held lines of the event log as summaries, and returns their number
    (MON-11)."""
    identify: Callable[[InstanceId], None] = lambda _id: None
    """Function called with the instance id once the stores are open."""
    fault: Callable[[str], None] | None = None
    """Function called at each failpoint with its name (HK-6); None = no failpoints."""
    host: bytes | None = None
    """Fingerprint that distinguishes this machine from others; None = unknown (MAN-7)."""
    limits: BrokerOptions = BrokerOptions()
    """Memory limits of each store; limits that have a setting come from the setting (HK-11)."""
    recorder: Recorder | None = None
    """Recorder of the calls of readers' sessions (reliability 7.1); None = no record."""
    disk: Disk | None = None
    """File system of the stores; None = its free room is not checked (REL-26)."""
    checker: Checker | None = None
    """Checker of bodies; None = a checker in this process, without limits (OBJ-61)."""
    keys: Callable[[int], bytes] | None = secret_bytes
    """Source of the random bytes of keys and certificates; None = the instance makes none."""
    serves_http: bool = False
    """Whether the instance listens for HTTP, as a daemon does."""
    only: str | None = None
    """The only broker to open in addition to `msdb`, though other files exist; None = all."""
