"""Recovery log: the instances that an activator started, and which of them still run (ACT-45).

Reads, writes:  one small file for each instance that may run, in `state_dir`.
Never:  trusts a process id, which the system reuses. An instance holds a lock on its file until its
        last process ends in any way: if the file can be locked, the instance has ended.
"""

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from brokerd.errors import StoreLocked
from brokerd.storage.files.private_files import make_private_directory, open_private

_OWN: Final = "activator.lock"


class Slot:
    """A slot for one instance of an application: a file that the instance locks."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.number = number
        self.in_use = False
        """Whether an instance of this activator uses the slot."""

    def lock(self) -> int | None:
        """Lock the slot for a new instance; return the descriptor of the lock.

        None = the slot's instance still runs. Raises `UnsafeFile` if the file is a link, or other
        users may write it (SX-24)."""
        descriptor = open_private(self.path, writable=True, create=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        self.in_use = True
        return descriptor

    def release(self, descriptor: int) -> None:
        """Close this process's copy of the lock: the program has its own, or did not start."""
        os.close(descriptor)

    def is_held(self) -> bool:
        """Return whether the slot's instance runs, no matter which activator started it."""
        if not self.path.exists():
            return False
        descriptor = self.lock()
        if descriptor is None:
            return True
        self.in_use = False
        os.close(descriptor)
        return False

    def write(self, **facts: object) -> None:
        """Write facts about the instance, for operators and for `read`."""
        self.path.write_text(json.dumps(facts) + "\n")

    def read(self) -> dict[str, Any]:
        """Return the facts from the last `write`; {} = the file cannot be read."""
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_text())
            if isinstance(found, dict):
                return found
        return {}


class RecoveryLog:
    """The slots of all applications of one activator."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: int | None = None

    def open(self) -> None:
        """Create the directory if it is missing, and lock it.

        Raises `StoreLocked` if another activator has locked it, `UnsafeFile` if its lock file is a
        link, or other users may write it (SX-24)."""
        make_private_directory(self._folder)
        own = open_private(self._folder / _OWN, writable=True, create=True)
        try:
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(own)
            raise StoreLocked(
                f"another activator uses {self._folder}",
                hint="one activator for one state_dir; end the other, or give another directory",
            ) from error
        self._own = own

    def close(self) -> None:
        """Unlock the directory, so that another activator may use it."""
        if self._own is not None:
            os.close(self._own)
            self._own = None

    def slots(self, application: str, count: int) -> list[Slot]:
        """Return the slots of an application, including those above a maximum lowered since.

        `count`: the current maximum of instances."""
        known = set(range(count))
        for path in self._folder.glob(f"{application}.*.slot"):
            with suppress(ValueError):
                known.add(int(path.name.removeprefix(f"{application}.").removesuffix(".slot")))
        return [
            Slot(self._folder / f"{application}.{number}.slot", number) for number in sorted(known)
        ]
