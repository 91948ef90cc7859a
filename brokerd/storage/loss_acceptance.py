"""Accepting a loss: an administrator goes on with what a damaged log has left (REL-39, FD-9).

Reads:  the store, its log and the record of its head.      Calls: SQLite.
Never:  runs beside a daemon, removes the only copy of a log, or is called by the daemon itself.
Fails:  at whatever moment it is stopped, the loss is still told, and it can be done again.
"""

import os
import sqlite3
from itertools import count
from pathlib import Path

import msgspec

from brokerd.clock import Clock
from brokerd.errors import StoreDamaged, StoreFull
from brokerd.ids import IdSource, Incarnation
from brokerd.storage import files
from brokerd.storage.engine import StoreConnection, connect_writer
from brokerd.storage.lock import OwnerLock
from brokerd.storage.log_check import Loss, find_loss
from brokerd.storage.log_head import head_path, index_path, log_path, say_accepted
from brokerd.storage.writers import fold_and_cut


class Accepted(msgspec.Struct, frozen=True):
    """What was done."""

    loss: Loss
    kept: Path | None
    """The copy of the damaged log; None = there was none."""
    problems: list[str]
    """What SQLite finds wrong with the pages of the store as it is now."""


def accept_loss(path: Path, *, ids: IdSource, clock: Clock) -> Accepted | None:
    """Let the store at `path` be opened with what is left of it; None = nothing is missing.

    The log is copied beside itself first. What SQLite recovers of it is folded into the file, and
    the store begins a new history, which peers can tell from the one before (REL-15).

    Raises:
        StoreLocked: a process has the store open.
        StoreDamaged, StoreVersion: it is no store, or SQLite cannot read it.
        StoreFull: there is no room for the copy.
    """
    lock = OwnerLock(path, clock=clock)
    try:
        files.check_header(path)
        loss = find_loss(path)
        if loss is None:
            return None
        kept = _keep(log_path(path))
        if not loss.is_recovered_in_part:
            log_path(path).unlink(missing_ok=True)
        for left in (index_path(path), head_path(path)):
            left.unlink(missing_ok=True)
        problems = _recover(path, loss, Incarnation(ids.fresh()))
        say_accepted(path)
        return Accepted(loss, kept, problems)
    except OSError as error:
        raise StoreFull(f"{path}: nothing was accepted: {error.strerror}") from error
    finally:
        lock.release()


def _recover(path: Path, loss: Loss, incarnation: Incarnation) -> list[str]:
    """Fold in what is left; closed, the record expects no log."""
    connection = None
    try:
        connection = connect_writer(path)
        if not loss.is_in_file:
            files.change_facts(connection, {"incarnation": incarnation})
        fold_and_cut(connection)
        found = connection.execute("PRAGMA integrity_check(3)").fetchall()
    except sqlite3.Error as error:
        raise StoreDamaged(f"{path} cannot be read: {error}") from error
    finally:
        _close(connection)
    return [str(problem) for (problem,) in found if problem != "ok"]


def _close(connection: StoreConnection | None) -> None:
    if connection is not None:
        connection.close()


def _keep(log: Path) -> Path | None:
    """Copy a log beside itself, durably."""
    if not log.exists():
        return None
    data = log.read_bytes()
    for attempt in count():
        kept = Path(f"{log}.damaged-{attempt}")
        try:
            file = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        with os.fdopen(file, "wb") as target:
            target.write(data)
            target.flush()
            os.fsync(target.fileno())
        files.sync(log.parent)
        return kept
    return None
