"""Loss acceptance: an administrator continues with the remains of a damaged log (REL-39, FD-9).

Reads:  the store, its log and the record of its head.      Calls: SQLite.
Never:  runs while a daemon has the store open, removes the only copy of a log, or is called by the
        daemon itself.
Fails:  at any moment, and can then be repeated. The loss is still reported in that case: the first
        step records that the acceptance has begun, the last one that it is done, and nothing else
        writes to the record in between.
"""

import os
import sqlite3
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import msgspec

from brokerd.clock import Clock, Instant
from brokerd.errors import BrokerError, StoreDamaged, StoreFull, StoreLocked
from brokerd.ids import IdSource, Incarnation
from brokerd.storage import file_checks, opening, schema
from brokerd.storage.connections import connect_without_record
from brokerd.storage.files.lock import OwnerLock
from brokerd.storage.files.log_check import Loss, find_loss
from brokerd.storage.files.log_head import State, has_log, index_path, log_path, write_state
from brokerd.storage.files.private_files import open_private, refuse_unsafe, sync
from brokerd.storage.sqlite_errors import is_full
from brokerd.storage.writers import fold_and_cut


class AcceptedLoss(msgspec.Struct, frozen=True):
    """The content of `<store>-loss`: a loss that was accepted (REL-40)."""

    accepted_at: Instant
    loss: str
    """The missing changes, in a sentence."""
    kept: str | None
    """Path of the copy of the damaged log; None = there was no log."""
    incarnation: bytes
    """Incarnation of the store since then: a store with another incarnation is not affected."""


class Accepted(msgspec.Struct, frozen=True):
    """The result of an acceptance."""

    loss: Loss
    kept: Path | None
    """The copy of the damaged log; None = there was no log."""
    problems: list[str]
    """Faults that SQLite finds in the pages of the store as it is now."""


def accept_loss(path: Path, *, ids: IdSource, clock: Clock) -> Accepted | None:
    """Make the store at `path` usable with its remaining content; None = nothing is missing.

    The log is first copied to a file in its directory. The part that SQLite recovers is folded into
    the store's file, and the store begins a new history, which peers can distinguish from the
    previous one (REL-15).

    Raises:
        StoreLocked: a process has the store open, or reads it.
        StoreDamaged, StoreVersion: the file is not a store, its files cannot be read or written, or
            a log that a daemon saved is in its directory.
        StoreFull: there is no room for the copy, or for the changes.
        UnsafeFile: a file of the store is another user's, or others may write to it (SX-24).
    """
    refuse_unsafe(path)
    lock = OwnerLock(path, clock=clock)
    try:
        file_checks.check_header(path)
        loss = find_loss(path)
        if loss is None:
            return None
        _refuse_saved(path, loss)
        if not loss.is_in_file:
            _refuse_code(path)
        kept = _keep(log_path(path))
        if not loss.is_in_file:
            # The record comes first: whatever happens to the log from here on, a start is refused
            # until the last step, which writes the record again.
            _begin(path, loss)
        if not loss.is_recovered_in_part:
            log_path(path).unlink(missing_ok=True)
        index_path(path).unlink(missing_ok=True)
        incarnation = Incarnation(ids.fresh())
        problems = _recover(path, loss, incarnation)
        if has_log(path):
            raise StoreLocked(
                f"{path} is being read by another program, so its log cannot be folded; the loss "
                "is not accepted yet",
                hint="end that program, then try again",
            )
        if not loss.is_in_file:
            where = None if kept is None else str(kept)
            _remember(path, AcceptedLoss(clock.utc(), loss.show(), where, incarnation))
        write_state(path, State.ACCEPTED)
        return Accepted(loss, kept, problems)
    except (OSError, sqlite3.Error) as error:
        raise _failure(path, error) from error
    finally:
        lock.release()


def loss_path(path: Path) -> Path:
    """Return the path of the file that records an accepted loss of the store at `path`."""
    return Path(f"{path}-loss")


def accepted_loss(path: Path, incarnation: Incarnation) -> AcceptedLoss | None:
    """Return the last accepted loss of the store at `path`, which has this incarnation.

    None: no loss was accepted, or an operator has removed the file that records it (REL-40).
    """
    try:
        found = msgspec.json.decode(loss_path(path).read_bytes(), type=AcceptedLoss)
    except (OSError, msgspec.DecodeError):
        return None
    return found if found.incarnation == incarnation else None


def _remember(path: Path, accepted: AcceptedLoss) -> None:
    """Write the loss durably, before the record says that the store may be opened."""
    descriptor = open_private(loss_path(path), writable=True, create=True)
    with os.fdopen(descriptor, "wb") as file:
        file.truncate()
        file.write(msgspec.json.encode(accepted))
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def _refuse_saved(path: Path, loss: Loss) -> None:
    """Raise `StoreDamaged` if logs were saved: they would not fit the store after acceptance."""
    if loss.saved:
        raise StoreDamaged(
            f"{path}: the loss is not accepted: {loss.show()}",
            hint=f"{loss.cure}; or move {' and '.join(loss.saved)} to another directory, then "
            "accept the loss",
        )


def _refuse_code(path: Path) -> None:
    """Raise `StoreDamaged` if the file has a trigger or a view, before anything is changed (BI-D2).

    A trigger or view that only the log has is found when the log is read. A file that cannot be
    read without its log is not refused: the log may complete it.
    """
    with suppress(sqlite3.DatabaseError), file_checks.reading(path, with_log=False) as connection:
        schema.refuse_code(connection, path)


def _begin(path: Path, loss: Loss) -> None:
    """Record the beginning: a start is refused until the last step, whatever happens to the log."""
    is_folded = loss.is_recovered_in_part
    write_state(path, State.FOLDING_LOSS if is_folded else State.DROPPING_LOSS)


def _failure(path: Path, error: OSError | sqlite3.Error) -> BrokerError:
    """Return the error for an acceptance that could not be completed."""
    if is_full(error):
        return StoreFull(
            f"{path}: the loss is not accepted yet: the disk has no room left",
            hint="make room on the disk, then try again",
        )
    if isinstance(error, OSError):
        what = f"{error.filename or path}: {error.strerror}"
        return StoreDamaged(f"{path}: the loss is not accepted yet: {what}")
    return StoreDamaged(f"{path} cannot be read, so the loss is not accepted yet: {error}")


def _recover(path: Path, loss: Loss, incarnation: Incarnation) -> list[str]:
    """Fold the rest of the log into the file, and close; return the faults SQLite then finds."""
    with closing(connect_without_record(path)) as connection:
        if not loss.is_in_file:
            schema.refuse_code(connection, path)
            opening.change_facts(connection, {"incarnation": incarnation})
        fold_and_cut(connection)
        found = connection.execute("PRAGMA integrity_check(3)").fetchall()
    return [str(problem) for (problem,) in found if problem != "ok"]


def _keep(log: Path) -> Path | None:
    """Copy a log durably to a file in its directory; return the copy, None = there is no log."""
    if not log.exists():
        return None
    data = log.read_bytes()
    for attempt in count():
        kept = Path(f"{log}.damaged-{attempt}")
        try:
            file = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        try:
            with os.fdopen(file, "wb") as target:
                target.write(data)
                target.flush()
                os.fsync(target.fileno())
        except OSError:
            kept.unlink()
            raise
        sync(log.parent)
        return kept
    return None
