"""Log check: whether a store's log still has all confirmed changes (REL-39, FD-9).

Reads:  the log and the record of its head, before SQLite opens either.      Calls: nothing.
Never:  changes anything, or reports the end of a log after a crash or a power cut as a loss.
"""

import shlex
from pathlib import Path
from typing import Final

import msgspec

from brokerd.clock import Instant, show_instant
from brokerd.errors import StoreDamaged
from brokerd.storage.files.log_head import (
    Record,
    State,
    UnreadableRecord,
    head_path,
    log_path,
    read_record,
    saved_logs,
)
from brokerd.storage.files.log_scan import Scan, scan
from brokerd.units import counted

_ATTEMPTS: Final = 3
"""Number of attempts to read a log that is restarted meanwhile."""
_NO_LOG: Final = Scan(0, 0, None)
_CUT_OFF: Final = (State.FOLDING_LOSS, State.DROPPING_LOSS)
_PAGE_SIZE_AT: Final = 16
_JOURNAL_AT: Final = 18
_HEADER_READ: Final = 20
HAS_LOG: Final = b"\x02\x02"
"""Bytes in the header of a store file whose changes go to a log in a separate file."""

_FOLDED_BY_OTHERS: Final = (
    " (if another program, such as sqlite3, had the store open since, it has folded the log into "
    "the file and nothing is lost: accept-loss is right then)"
)


class Loss(msgspec.Struct, frozen=True):
    """The confirmed changes that a log lacks."""

    log: str
    problem: str
    """The damage, with its place."""
    frames: int
    """Lower bound of the number of pages that were written and can no longer be read."""
    commits: int
    """Lower bound of the number of transactions whose pages can no longer be read."""
    confirmed_at: Instant | None
    """When the last transaction was confirmed; None = not recorded."""
    is_in_file: bool = False
    """Whether the store's file has all changes: none is lost, but SQLite must not read the log."""
    is_recovered_in_part: bool = False
    """Whether the log is the store's, and its content before the damage can be read."""
    is_gone: bool = False
    """Whether the log is missing though the store was open: another program may have folded it."""
    saved: tuple[str, ...] = ()
    """Copies that a daemon saved in the log's directory when the log was removed, oldest first."""

    def show(self) -> str:
        """Return the whole loss in a sentence, with the copies that may have the lost changes."""
        text = self._show_damage()
        if self.saved:
            text += f"; a daemon saved what its log held in {', '.join(self.saved)}: to put it "
            text += f"back, {self._move_back()}"
        return text

    @property
    def cure(self) -> str:
        """The alternative to accepting the loss."""
        if self.saved:
            return f"{self._move_back()}, then start again"
        cure = f"put back {self.log} as it was, or a backup of the store in its place"
        return cure + (_FOLDED_BY_OTHERS if self.is_gone else "")

    def ways_on(self, store: Path) -> str:
        """Return all remedies for the loss, as text for every report of the loss."""
        return (
            f"{self.cure}; to go on without what is missing: brokerd store accept-loss "
            f"{shlex.quote(str(store))} --yes"
        )

    def _move_back(self) -> str:
        return f"mv {shlex.quote(self.saved[-1])} {shlex.quote(self.log)}"

    def _show_damage(self) -> str:
        if self.is_in_file:
            return f"{self.log} {self.problem}; the store's file has all that was in it"
        text = f"{self.log} {self.problem}: "
        text += f"at least {counted(self.frames, 'page')}" if self.frames else "what"
        if self.commits:
            text += f" of at least {counted(self.commits, 'transaction')}"
        missing = "that was confirmed is" if self.frames == 1 else "that were confirmed are"
        text += f" {missing} missing" if self.frames else " was confirmed is unknown"
        if self.confirmed_at:
            text += f"; the last was confirmed at {show_instant(self.confirmed_at)}"
        return text


def refuse_loss(path: Path, *, is_in_use: bool = False) -> None:
    """Raise `StoreDamaged` if the log of the store at `path` lacks confirmed changes.

    Call this before anything opens the store: SQLite would continue without the missing changes,
    and overwrite the rest of the damaged log. `is_in_use`: as for `find_loss`.
    """
    try:
        loss = find_loss(path, is_in_use=is_in_use)
    except OSError as error:
        raise StoreDamaged(
            f"{path} is not opened: {error.filename} cannot be read: {error.strerror}",
            hint="change the owner and mode of the file, or see what is wrong with the disk",
        ) from error
    if loss is not None:
        raise StoreDamaged(
            f"{path} is not opened: {loss.show()}",
            hint=loss.ways_on(path),
        )


def find_loss(path: Path, *, is_in_use: bool = False) -> Loss | None:
    """Return the loss in the log of the store at `path`; None = no confirmed change is missing.

    `is_in_use`: a daemon may write meanwhile. `OSError`: the log cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_READ)
    if header[_JOURNAL_AT:] != HAS_LOG:
        return None  # a backup, or new: a record would belong to an earlier file of this name
    size = int.from_bytes(header[_PAGE_SIZE_AT:][:2])
    page_size = 65536 if size == 1 else size
    previous: Loss | None = None
    for _ in range(_ATTEMPTS if is_in_use else 1):
        before = _begin_of(path)
        loss = _examine(path, page_size)
        if loss is not None and (saved := tuple(map(str, saved_logs(path)))):
            loss = msgspec.structs.replace(loss, saved=saved)
        if loss is None or not is_in_use:
            return loss
        # A log that is read while it is written may look damaged once, but not twice in one place.
        if previous is not None and loss.problem == previous.problem and _begin_of(path) == before:
            return loss
        previous = loss
    return None  # the log restarts all the time, so all earlier changes have been folded


def what_is_unknown(path: Path) -> str:
    """Return why it is unknown whether the store at `path` has all confirmed changes (REL-41).

    Empty if the log has a record to compare with, or if the store is a backup, which has no log.

    Raises:
        OSError: a file of the store cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_READ)
    if header[_JOURNAL_AT:] != HAS_LOG or head_path(path).exists():
        return ""
    what = f"has no record ({head_path(path)})"
    if not log_path(path).exists():
        what = f"is not there ({log_path(path)}), and neither is its record ({head_path(path)})"
    return (
        f"{what}: whether what was confirmed last is in the store cannot be told; a store that is "
        "copied takes them along, or is copied by brokerd store backup"
    )


def _examine(path: Path, page_size: int) -> Loss | None:
    log = str(log_path(path))
    try:
        record = read_record(path)
    except UnreadableRecord as error:
        what = f"cannot be held against its record {head_path(path)}: {error}"
        return Loss(log, what, 0, 0, None, is_recovered_in_part=True)
    found = _scan(path, page_size, probe=record.frames if record is not None else 0)
    return compare_with_record(record, found, log=log)


def _begin_of(path: Path) -> bytes:
    try:
        with log_path(path).open("rb") as log:
            return log.read(32)
    except FileNotFoundError:
        return b""


def _scan(path: Path, page_size: int, *, probe: int) -> Scan:
    try:
        with log_path(path).open("rb", buffering=1 << 20) as log:
            return scan(log, page_size=page_size, probe=probe)
    except FileNotFoundError:
        return _NO_LOG


def compare_with_record(record: Record | None, found: Scan, *, log: str) -> Loss | None:
    """Compare a log with the record of its head; return the loss, None = no loss.

    Without a record, only the log itself can show damage: transactions behind a bad frame.
    """
    if record is not None and record.state in _CUT_OFF:
        is_own = record.state is State.FOLDING_LOSS
        what = "has lost something, and accepting that was cut off; accept it again"
        return _Seen(log, found, None).loss(what, 0, is_own=is_own)
    confirmed_at = record.written_at if record is not None else None
    seen = _Seen(log, found, confirmed_at)
    if record is None or record.state is State.EMPTY:
        return seen.damage(0) if found.is_damaged else None
    if record.expects_no_log:
        what = "is there, though the store was closed without one: it is of another store or time"
        return seen.loss(what, 0, is_in_file=True) if found.size else None
    if record.state is State.FOLDED:
        return _judge_folded(record, found, seen)
    return _judge_open(record, found, seen)


def _judge_folded(record: Record, found: Scan, seen: "_Seen") -> Loss | None:
    """Return the loss of a log whose frames up to the record are in the file; None = no loss.

    The log may have been restarted since the record was written, or it may not exist.
    """
    if found.salts is None:
        return None
    if found.salts == record.salts:
        if found.last > record.frames and found.is_damaged:
            return seen.damage(record.frames)
        if found.committed == 0 or _reaches(record, found):
            return None
        return seen.loss(_place(found), 0, is_in_file=True)
    if found.salts[0] != (record.salts[0] + 1) & 0xFFFFFFFF:
        return seen.loss("is not the one that followed: it is of another store or time", 0)
    return seen.damage(0) if found.is_damaged else None


def _judge_open(record: Record, found: Scan, seen: "_Seen") -> Loss | None:
    """Return the loss of a log that must have every frame up to the record; None = no loss."""
    if not found.size:
        loss = seen.loss("is missing, or empty", record.frames)
        return msgspec.structs.replace(loss, is_gone=True)
    if found.salts is None:
        return seen.loss("is damaged at offset 0, in its header", record.frames)
    if found.salts != record.salts:
        what = "is not the one that was written: it is of another store or time"
        return seen.loss(what, record.frames)
    if found.is_damaged or not _reaches(record, found):
        return seen.damage(record.frames)
    return None


def _reaches(record: Record, found: Scan) -> bool:
    return found.probed == record.checksum


class _Seen:
    """The findings of a scan, from which a `Loss` is made."""

    def __init__(self, log: str, found: Scan, confirmed_at: Instant | None) -> None:
        self._log, self._found, self._confirmed_at = log, found, confirmed_at

    def damage(self, confirmed: int) -> Loss:
        """Return the loss of frames up to the last confirmed frame, or the last one in the log."""
        missing = max(confirmed, self._found.last) - self._found.committed
        return self.loss(_place(self._found), missing, is_own=True)

    def loss(
        self, problem: str, frames: int, *, is_in_file: bool = False, is_own: bool = False
    ) -> Loss:
        """Return a loss of `frames` with this problem."""
        commits = 0 if is_in_file else self._found.commits_behind
        return Loss(self._log, problem, frames, commits, self._confirmed_at, is_in_file, is_own)


def _place(found: Scan) -> str:
    """Return the place where a log is damaged or ends too early, to be read after its path."""
    if found.salts is None:
        return "is damaged at offset 0, in its header"
    if found.bad:
        return f"is damaged at offset {found.offset_of(found.bad)}, in frame {found.bad}"
    return f"ends at offset {found.size}, before what was confirmed"
