"""The settings of the stores: in files, or in a PostgreSQL database.

PURE.   Reads: nothing.      Calls: nothing.
`settings` has them in its tree.
"""

import enum
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from brokerd.config.bounds import Moment, Pattern, Range, Size, Span

_KIB = 1024
_MIB = 1024 * _KIB


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


class SynchronousCommit(enum.StrEnum):
    """Condition of a server for a commit."""

    ON = "on"
    REMOTE_APPLY = "remote_apply"


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The stores and their commit pipelines (design D2)."""

    url: str = ""
    """The PostgreSQL database that has the stores, such as
    `postgresql://brokerd@db1,db2/brokerd?target_session_attrs=primary`; empty = the stores are
    files in `instance.data_dir`. A password is never written here: it is in the file that
    `passfile=` or PGPASSFILE names, or in PGPASSWORD."""
    synchronous_commit: SynchronousCommit = SynchronousCommit.ON
    """Condition for a commit on a server: with `on` it waits for the disks of the server and of its
    synchronous standbys; with `remote_apply` also until these standbys show it."""
    require_standby: bool = False
    """Whether a server without a synchronous standby is refused, and given up as soon as it waits
    for none any more; the daemon then waits until it does again."""
    schema_prefix: Annotated[
        str, Pattern(r"|[a-z][a-z0-9_]{0,29}", "empty, or 1 to 30 of a-z, 0-9 and _")
    ] = ""
    """Beginning of the name of each schema on a server; each broker has one. Instances that share a
    database each have a prefix of their own."""
    takeover_after: Annotated[timedelta, Span(_seconds(3), timedelta(hours=1))] = _seconds(8)
    """Time without a sign of life of the daemon that has the stores of a server, after which a
    daemon that waits for them ends its sessions and takes over."""
    flush_transactions: Annotated[int, Range(1, 65_536)] = 4096
    """Most transactions that one flush carries; a flush never waits to fill up."""
    flush_bytes: Annotated[int, Size(64 * _KIB, 1024 * _MIB)] = 16 * _MIB
    """Most bytes that one flush carries."""
    min_free: Annotated[int, Size(0, 2**50)] = 256 * _MIB
    """Free disk space below which new messages are refused; receiving and ending dialogs remain
    possible (REL-26)."""
    reserve: Annotated[int, Size(0, 2**40)] = 32 * _MIB
    """Disk space reserved in a file, and released when the disk is full."""
    backup_dirs: Annotated[tuple[Path, ...], Range(0, 100)] = ()
    """Directories below which clients may have backups written; empty means
    `<data_dir>/backups` (SX-22)."""
    slow_after: Moment = _seconds(5)
    """Duration above which a commit is logged, and shown by `brokerd status` (REL-34)."""
