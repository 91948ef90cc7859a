"""Disk space: a full disk is a state of the instance, entered and left automatically (REL-26).

Reads:  the free space of the file system.      Calls: the brokers, which refuse new messages then.
Never:  stops work that frees space: receiving, ending, acknowledgements and expiry continue.
Wakes:  every tick, and when a write finds the disk full.

A reserve file holds some space. It is removed when the disk is full, so that the writes under way
succeed, and created again before the state is left.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from brokerd.broker.broker import Broker
from brokerd.errors import UnsafeFile
from brokerd.storage.files.private_files import RESERVE, open_private
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import STORE


class Disk(Protocol):
    """The file system that the stores are on."""

    def free(self) -> int:
        """Return the number of bytes that may still be written."""
        ...

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes, unless that was done already; False = too few are free."""
        ...

    def release(self) -> bool:
        """Release the reserved bytes; False = none were reserved."""
        ...


class SystemDisk:
    """The file system of a folder, with the reserve file in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / RESERVE

    def free(self) -> int:
        """Return the number of bytes that may still be written."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def reserve(self, size: int) -> bool:
        """Create the reserve file with its full size, or not at all; False = not created.

        If the file is a link, or other users may write it, remove its name; the target of a link
        stays (SX-24)."""
        try:
            descriptor = open_private(self._file, writable=True, create=True)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
        except (OSError, UnsafeFile):
            self.release()
            return False
        return True

    def release(self) -> bool:
        """Remove the reserve file; False = there was no file to remove."""
        try:
            self._file.unlink()
        except OSError:
            return False
        return True


class DiskSpace:
    """The disk space of one instance: enough for its writes, or too little."""

    def __init__(
        self,
        *,
        disk: Disk | None,
        min_free: int,
        reserve: int,
        brokers: Mapping[str, Broker],
        log: Log,
    ) -> None:
        self._disk = disk
        self._min_free = min_free
        self._reserve = reserve
        self._brokers = brokers
        self._log = log
        self._stalled: set[str] = set()
        self.is_full = False

    def check(self) -> int:
        """Run the pass: enter or leave the state of a full disk; return 1 if it changed, else 0."""
        disk, before = self._disk, self.is_full
        if disk is None:
            self._switch(full=bool(self._stalled))
        elif not self._stalled:
            # A broker whose write waits for space keeps the state: only that write ends it. The
            # reserve is created again before the state is left, and has to leave `min_free`.
            enough = disk.free() >= self._min_free
            held = not self._reserve or not enough or disk.reserve(self._reserve)
            self._switch(full=not (enough and held and disk.free() >= self._min_free))
        return int(self.is_full is not before)

    def ran_out(self, broker: str) -> bool:
        """Record that a write found the disk full; True = the reserve was released for it."""
        self._stalled.add(broker)
        self._switch(full=True)
        return self._disk is not None and self._disk.release()

    def written(self, broker: str) -> None:
        """Record that the broker's write, which had found the disk full, has completed."""
        self._stalled.discard(broker)

    def _switch(self, *, full: bool) -> None:
        for broker in self._brokers.values():
            broker.is_full = full
        if full is self.is_full:
            return
        self.is_full = full
        free = None if self._disk is None else self._disk.free()
        if full:
            self._log.warning(STORE, subclass="full", free_bytes=free, min_free=self._min_free)
        else:
            self._log.info(STORE, subclass="room_again", free_bytes=free)
