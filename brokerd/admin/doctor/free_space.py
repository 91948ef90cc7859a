"""Free space: the room on the disks of the stores, where these are on this machine.

Reads:  the file system.      Calls: nothing.
Never:  looks at the disk of a store that is full already: its status says so.
"""

import shutil
from pathlib import Path

import msgspec

from brokerd.telemetry.status import InstanceStatus


def with_free_space(status: InstanceStatus) -> InstanceStatus:
    """Return the status with the free disk space of its stores, which are on this machine."""
    stores = tuple(
        msgspec.structs.replace(one, free_bytes=shutil.disk_usage(Path(one.path).parent).free)
        if one.path and one.state != "full" and Path(one.path).parent.is_dir()
        else one
        for one in status.stores
    )
    return msgspec.structs.replace(status, stores=stores)
