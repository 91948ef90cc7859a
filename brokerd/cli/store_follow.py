"""`brokerd store backup --follow`: keeps a backup chain in step with the stores (REL-46 to REL-52).

Reads:  the stores of the instance, as the daemon's user, whether or not the daemon runs.
Calls:  the follower of a chain.
Never:  asks the daemon for anything, or ends because of a fault that may pass.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from brokerd.cli.output import print_json, print_line, quoted, warn
from brokerd.clock import Clock, SystemClock
from brokerd.config.settings import Settings
from brokerd.errors import BrokerError, InvalidArgument, ObjectNotFound, UnsafeFile
from brokerd.ids import RandomIds
from brokerd.process.exit_statuses import IO_ERROR, OK
from brokerd.storage.backup_chain.follower import Added, Follower
from brokerd.storage.backup_chain.follower import Settings as Kept
from brokerd.storage.backup_chain.snapshots import Unsettled
from brokerd.storage.files.moved_files import file_at
from brokerd.storage.files.private_files import owner_of
from brokerd.units import counted

_SHARE: Final = 9
"""Factor of the pause after an increment: increments take a tenth of the time at most."""
_AT_ONCE: Final = 5
"""Attempts of a round whose stores were being opened or made."""
_monotonic: Final = SystemClock.monotonic
_STEP: Final = 2.0
"""Seconds between two lines of progress, and before the first one."""
_PAUSE: Final = 1.0
"""Seconds without a call after which the next call belongs to other work."""


class Wanted(NamedTuple):
    """The options of a follower."""

    every: float
    """Seconds between the beginnings of two rounds."""
    keep: timedelta
    full_every: timedelta
    broker: str | None
    """The only broker to follow; None = all of the instance."""


class ShownProgress:
    """Progress of long work, on standard error; it says nothing of short work."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._monotonic = (clock or SystemClock()).monotonic
        self._last_call = self._next = float("-inf")

    def __call__(self, what: str, done: int, whole: int) -> None:
        """Print a line if the work goes on for long enough; after a pause it is other work."""
        now = self._monotonic()
        if now - self._last_call >= _PAUSE:
            self._next = now + _STEP
        self._last_call = now
        if now >= self._next:
            self._next = now + _STEP
            warn(f"{what}: {done * 100 // max(1, whole)} % of {size(whole)}")


def size(count: int) -> str:
    """Return a number of bytes, rounded, in a unit that is easy to read."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def follow(directory: Path, settings: Settings, wanted: Wanted, *, as_json: bool) -> int:
    """Keep the chain in a directory in step until a signal; return the exit status."""
    _refuse(directory, settings)
    if wanted.broker is not None and not settings.store_path(wanted.broker).exists():
        raise ObjectNotFound(
            f"broker {wanted.broker} has no store in {settings.instance.data_dir}",
            hint="give -c with the settings of the daemon, or leave out --broker",
        )
    follower = Follower(
        directory,
        settings=Kept(wanted.keep, wanted.full_every),
        clock=SystemClock(),
        ids=RandomIds(),
        progress=ShownProgress(),
    )
    try:
        if follower.problem:
            warn(f"{follower.problem}; a new generation begins, the states before it stay")
        return _Rounds(follower, settings, wanted, as_json=as_json).run()
    finally:
        follower.close()


def _refuse(directory: Path, settings: Settings) -> None:
    data_dir = settings.instance.data_dir
    if (owner := owner_of(data_dir)) not in (None, os.geteuid()):
        raise UnsafeFile(
            f"the stores in {data_dir} belong to user {owner}",
            hint=f"run this as that user: sudo -u '#{owner}' brokerd store backup ...",
        )
    own = {file_at(one) for one in (data_dir, settings.mirroring.directory) if one is not None}
    if file_at(directory) in own - {None}:
        raise InvalidArgument(
            f"{directory} is a directory of stores",
            hint="give a directory of its own, best on another disk",
        )


class _Rounds:
    """The rounds of one follower, and what is said about them."""

    def __init__(
        self, follower: Follower, settings: Settings, wanted: Wanted, *, as_json: bool
    ) -> None:
        self._follower, self._settings, self._wanted = follower, settings, wanted
        self._as_json = as_json
        self._fault = ""
        self._stopping = threading.Event()

    def run(self) -> int:
        """Add what has changed, again and again; after a signal once more, for a planned stop."""
        with _signals(self._stopping):
            while True:
                is_last = self._stopping.is_set()
                started = _monotonic()
                is_full = self._round()
                if is_last:
                    break
                took = _monotonic() - started
                pause = self._wanted.every - took
                if not is_full:
                    pause = max(pause, _SHARE * took)
                self._stopping.wait(max(0.0, pause))
        return IO_ERROR if self._fault else OK

    def _round(self) -> bool:
        """Make one round; return whether it made a full copy."""
        try:
            added = self._add()
        except Unsettled as error:
            self._report_fault(str(error))
        except BrokerError as error:
            self._report_fault(f"{error.message}; {error.hint}" if error.hint else error.message)
        except OSError as error:
            self._report_fault(str(error))
        else:
            if self._fault:
                warn("the backup goes on")
                self._fault = ""
            self._report(added)
            return added.manifest is not None and added.manifest.number == 0
        return False

    def _add(self) -> Added:
        for attempt in range(_AT_ONCE):
            try:
                return self._follower.add(self._stores)
            except Unsettled:
                if attempt + 1 == _AT_ONCE:
                    raise
        raise AssertionError

    def _stores(self) -> dict[str, Path]:
        """Return the stores to follow: those of mirrored brokers belong to two instances."""
        if self._wanted.broker is not None:
            return {self._wanted.broker: self._settings.store_path(self._wanted.broker)}
        data_dir, mirrored = self._settings.instance.data_dir, self._settings.mirroring.brokers
        found = {path.stem: path for path in sorted(data_dir.glob("*.db"))}
        stores = {name: path for name, path in found.items() if name not in mirrored}
        if not stores:
            raise ObjectNotFound(
                f"there is no store in {data_dir}", hint="start the daemon, or see -c"
            )
        return stores

    def _report_fault(self, text: str) -> None:
        """Print a fault once; the next rounds try again."""
        if text != self._fault:
            warn(f"no backup at this time: {text}; trying again")
        self._fault = text

    def _report(self, added: Added) -> None:
        manifest = added.manifest
        if self._as_json:
            if manifest is not None or added.removed:
                print_json({"piece": manifest, "removed": added.removed}, indent=0)
            return
        if manifest is not None and manifest.number == 0:
            names = ", ".join(quoted(one.broker) for one in manifest.stores)
            print_line(
                f"{manifest.taken_at:%FT%TZ} full copy {manifest.generation}: {names}, "
                f"{size(manifest.size)}"
            )
        if added.removed:
            print_line(
                f"{counted(len(added.removed), 'generation')} removed: {', '.join(added.removed)}"
            )


@contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """Set the event at the first SIGTERM or SIGINT; a second one interrupts."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
