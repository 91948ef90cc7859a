"""Room on the disk: having too little is a state that is entered and left by itself (REL-26).

Reads:  what the file system has left.      Calls: the brokers, who refuse new messages meanwhile.
Never:  stops anything that makes room: receiving, ending, acknowledgements and expiry go on.
Wakes:  every tick, and when a write found no room.

A file of its own holds some room back. It goes when the disk is full, so that what is being written
can be; it is made again before the state is left.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from brokerd.broker.broker import Broker
from brokerd.errors import UnsafeFile
from brokerd.storage.private_files import RESERVE, open_private
from brokerd.telemetry.log import Log
from brokerd.telemetry.logs import STORE


class Disk(Protocol):
    """The file system that the stores are on."""

    def free(self) -> int:
        """Bytes that may still be written."""
        ...

    def reserve(self, size: int) -> bool:
        """Hold so many bytes back, unless they are; False = there are not so many."""
        ...

    def release(self) -> bool:
        """Give them up; False = none were held."""
        ...


class SystemDisk:
    """The real one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / RESERVE

    def free(self) -> int:
        """Bytes that may still be written."""
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize

    def reserve(self, size: int) -> bool:
        """Make the file, all of it or nothing. One that is a link, or not ours alone, goes: only
        its name, whatever it leads to stays as it is (SX-24)."""
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
        """Remove the file."""
        try:
            self._file.unlink()
        except OSError:
            return False
        return True


class Room:
    """Watches the disk of one instance."""

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

    def look(self) -> int:
        """The pass: enter the state, or leave it; 1 if that was done."""
        disk, before = self._disk, self.is_full
        if disk is None:
            self._switch(full=bool(self._stalled))
        elif not self._stalled:
            enough = disk.free() >= self._min_free
            held = not self._reserve or not enough or disk.reserve(self._reserve)
            self._switch(full=not (enough and held and disk.free() >= self._min_free))
        return int(self.is_full is not before)

    def ran_out(self, broker: str) -> bool:
        """A write found no room; True = some was given up, and it may find some now."""
        self._stalled.add(broker)
        self._switch(full=True)
        return self._disk is not None and self._disk.release()

    def written(self, broker: str) -> None:
        """What had found no room is written."""
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
