"""Opening: a store file is made, whole or not at all, or it is locked, checked, upgraded, opened.

Reads:  the facts about a store, and everything else that a start needs, in one transaction.
Calls:  `file_checks` before anything writes to the file; `schema`, `recovery`.
Never:  changes a file that it refuses (BI-D1), or repairs one (REL-5).
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec
from sqlalchemy import bindparam, insert, select, text

from brokerd.clock import Clock, Instant
from brokerd.errors import StoreDamaged, StoreFull
from brokerd.ids import BodyKey, BrokerId, IdSource, Incarnation, InstanceId, show
from brokerd.storage import space, tables
from brokerd.storage.connections import Connection, connect_writer, transaction
from brokerd.storage.file_checks import check_header, check_schema, refuse_stray_log
from brokerd.storage.files.lock import OwnerLock
from brokerd.storage.files.log_check import refuse_loss
from brokerd.storage.files.log_head import (
    State,
    UnreadableRecord,
    head_path,
    index_path,
    log_path,
    read_record,
)
from brokerd.storage.files.private_files import make_private_file, refuse_unsafe, sync
from brokerd.storage.flush import NUMBERS, Numbers
from brokerd.storage.recovery import Recovered, page_all, read_recovered
from brokerd.storage.rows import (
    bodies,
    catalog,
    credentials,
    deferred_removals,
    held_groups,
    known_brokers,
)
from brokerd.storage.rows.catalog import BUILT_IN, NO_CHANGES, Catalog, CatalogChanges
from brokerd.storage.rows.credentials import StoredCredentials
from brokerd.storage.rows.known_brokers import Known
from brokerd.storage.rows.tokens import Tokens
from brokerd.storage.schema import REVISIONS, table_definitions, upgrade
from brokerd.storage.sqlite_errors import is_full, is_read_only
from brokerd.storage.statements import sql, update_by_key
from brokerd.storage.writers import roll_back_and_close


class NewStore(msgspec.Struct, frozen=True):
    """The facts about a new store. The incarnation is drawn when the file is made (REL-15)."""

    broker_name: str
    broker_id: BrokerId
    instance_id: InstanceId
    default_encryption: bool = False
    host: bytes | None = None
    """The machine; None = unknown (MAN-7)."""
    objects: CatalogChanges = NO_CHANGES
    """Objects of the store in addition to the objects of every broker."""


class Wanted(NamedTuple):
    """A request to open a store, whichever engine has it."""

    ids: IdSource
    clock: Clock
    create: NewStore | None
    """The store to make if there is none; None = it has to be there."""
    name: str | None
    """The broker whose store it must be; None = any."""
    fault: Callable[[str], None]
    """A hook of tests, called at each step (HK-6)."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """The facts about a store: its broker, its instance, its history."""

    broker_name: str
    broker_id: BrokerId
    instance_id: InstanceId
    incarnation: Incarnation
    epoch: int
    """Number of times the store was opened."""
    is_broker_enabled: bool
    default_encryption: bool
    created_at: Instant
    honor_priority: bool = False
    """Whether messages are sent by priority level (OBJ-55)."""
    host: bytes | None = None
    """The machine on which delivery was last allowed; None = unknown (MAN-7)."""
    disabled_reason: str | None = None
    """Why delivery is off: manual, foreign_fingerprint, duplicate_identifier, or an operation."""
    unfinished: str | None = None
    """Administrative operation that was begun and has to be finished (MAN-5, MAN-6)."""
    former_ids: bytes | None = None
    """Former identifiers of the broker, newest first, sixteen bytes each (MAN-6)."""
    master_key: bytes | None = None
    """Fingerprint of the master key that encrypts keys of dialogs here; None = unknown (SEC-71)."""


class Lock(Protocol):
    """The right to be the only process that has a store open (REL-16)."""

    def describe(self, broker_id: str, epoch: int, *, master_key: str = "") -> None:
        """Record broker and epoch of the store, for waiting processes (RTE-55)."""
        ...

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        ...


class Opened(NamedTuple):
    """An open store, and the data read from it."""

    lock: Lock
    connection: Connection
    identity: StoreIdentity
    recovered: Recovered
    catalog: Catalog
    numbers: Numbers
    tokens: Tokens
    some_bodies: bool
    """Whether any body is in pieces."""
    next_body_key: BodyKey
    known: Known
    """The brokers of the instance, if this is `msdb`."""
    credentials: StoredCredentials
    """The principals and certificates of the instance, if this is `msdb`."""
    is_new: bool = False
    """Whether this open has made the file."""
    loss_accepted_at: Instant | None = None
    """When an administrator accepted a loss of the log; None = not since the last open."""
    has_new_history: bool = False
    """Whether this open has given the store a new incarnation (REL-64)."""


def open_file(
    path: Path,
    *,
    ids: IdSource,
    clock: Clock,
    create: NewStore | None,
    name: str | None,
    fault: Callable[[str], None],
    kept: Connection | None = None,
) -> Opened:
    """Lock, check and upgrade the file, count the open, and page all messages that memory held.

    `kept`: an open connection to this file, which needs no further check (HK-3).
    """
    if not path.parent.is_dir():
        raise StoreDamaged(f"{path.parent} is not a directory")
    with _refusing(path):
        refuse_unsafe(path)
        lock = OwnerLock(path, clock=clock)
        try:
            if create is None or path.exists():
                return _open_locked(path, lock, name=name, fault=fault, kept=kept)
            refuse_stray_log(path, "is missing, and its log is there")
            with _removed_unless_opened(path):
                make_file(path, create, incarnation=Incarnation(ids.fresh()), now=clock.utc())
                opened = _open_locked(path, lock, name=name, fault=fault, kept=kept)
                return opened._replace(is_new=True)
        except BaseException:
            lock.release()
            raise


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Convert an error of the block to the reason: no room, read-only, or damaged."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        if _finds_no_room(error):
            raise StoreFull(
                f"{path} cannot be opened: the disk has no room for it",
                hint="make room on the disk, then try again",
            ) from error
        if isinstance(error, OSError):
            raise
        if is_read_only(error):
            raise StoreDamaged(
                f"{path} cannot be written: it is read-only", hint="change its mode or file system"
            ) from error
        raise StoreDamaged(f"{path} cannot be opened: {error}") from error


@contextmanager
def _removed_unless_opened(path: Path) -> Iterator[None]:
    """Remove a new file if the block cannot open it, so that it can be made again."""
    try:
        yield
    except (sqlite3.Error, OSError):
        remove_new_file(path)
        raise


def remove_new_file(path: Path) -> None:
    """Remove a file that was just made and never used."""
    for left in (path, log_path(path), index_path(path), head_path(path)):
        left.unlink(missing_ok=True)


def _finds_no_room(error: sqlite3.Error | OSError) -> bool:
    """Return whether the error means that the disk had no room for the file, log or index.

    If there is no room for the index, SQLite reports only that it cannot extend the index.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    return is_full(error) or code == sqlite3.SQLITE_IOERR_SHMSIZE


def _open_locked(
    path: Path,
    lock: OwnerLock,
    *,
    name: str | None,
    fault: Callable[[str], None],
    kept: Connection | None,
) -> Opened:
    accepted_at = _loss_accepted_at(path)
    connection = kept or _check_and_connect(path, name)
    try:
        found = count_and_load(connection, path, lock, fault=fault)
    except BaseException:
        roll_back_and_close(connection)
        raise
    return found._replace(loss_accepted_at=accepted_at)


def count_and_load(
    connection: Connection, path: Path, lock: Lock, *, fault: Callable[[str], None]
) -> Opened:
    """Count the open of a store that was checked, page all messages, and read what a start needs.

    `path`: the name of the store, for messages.
    """
    fault("start.recover")
    with transaction(connection):
        connection.execute(_count_open)
        deferred_removals.apply_all(connection)
        page_all(connection)
        held_groups.forget_gone(connection)
        some_bodies, next_body_key = bodies.recover(connection)
        tokens = Tokens()  # one transaction reads everything: one lock instead of thirty
        tokens.load(connection)
        identity, numbers = _facts(connection, path)
        found, objects = read_recovered(connection), catalog.load(connection)
        brokers, owners = known_brokers.load(connection), credentials.load(connection)
    # A partner needs the same key only if dialogs are secured here (SEC-73).
    key = (identity.master_key or b"").hex() if objects.remote_service_bindings else ""
    lock.describe(show(identity.broker_id), identity.epoch, master_key=key)
    return Opened(
        lock,
        connection,
        identity,
        found,
        objects,
        numbers,
        tokens,
        some_bodies,
        next_body_key,
        brokers,
        owners,
    )


def _loss_accepted_at(path: Path) -> Instant | None:
    with suppress(UnreadableRecord):  # the check of the log reports this
        record = read_record(path)
        if record is not None and record.state is State.ACCEPTED:
            return record.written_at
    return None


def _check_and_connect(path: Path, name: str | None) -> Connection:
    check_header(path)
    refuse_loss(path)
    revision = check_schema(path, name=name)
    connection = connect_writer(path)
    try:
        if revision != REVISIONS[-1]:
            upgrade(connection, path)
    except BaseException:
        roll_back_and_close(connection)
        raise
    return connection


def make_file(path: Path, new: NewStore, *, incarnation: Incarnation, now: Instant) -> None:
    """Make a store under another name and rename it: a crash leaves no store or a whole one."""
    aside = path.with_name(path.name + ".new")
    for left in (aside, Path(f"{aside}-journal")):
        left.unlink(missing_ok=True)
    try:
        _make_aside(aside, new, incarnation, now)
        sync(aside)
        aside.rename(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _make_aside(aside: Path, new: NewStore, incarnation: Incarnation, now: Instant) -> None:
    make_private_file(aside)
    connection = sqlite3.connect(aside, isolation_level=None)
    try:
        space.prepare(connection)
        connection.execute(f"PRAGMA application_id = {tables.APPLICATION_ID}")
        with transaction(connection):
            for statement in table_definitions():
                connection.execute(statement)
            write_first_rows(connection, new, incarnation, now)
    finally:
        connection.close()


def write_first_rows(
    connection: Connection, new: NewStore, incarnation: Incarnation, now: Instant
) -> None:
    """Write the rows that a new store begins with, in the caller's transaction."""
    connection.execute("INSERT INTO alembic_version VALUES (?)", (REVISIONS[-1],))
    _write_facts(connection, new, incarnation, now)
    catalog.write(connection, BUILT_IN)
    catalog.make(connection, new.objects)


def _write_facts(
    connection: Connection, new: NewStore, incarnation: Incarnation, now: Instant
) -> None:
    facts: dict[str, object] = {
        "id": 1,
        "broker_name": new.broker_name,
        "broker_id": new.broker_id,
        "instance_id": new.instance_id,
        "incarnation": incarnation,
        "epoch": 0,
        "created_at": now,
        "is_broker_enabled": True,
        "default_encryption": new.default_encryption,
        **dict.fromkeys(NUMBERS, 1),
        "host": new.host,
    }
    connection.execute(_insertion_of(tuple(facts)), tuple(facts.values()))


@cache
def _insertion_of(facts: tuple[str, ...]) -> str:
    return sql(insert(tables.store).values({fact: bindparam(fact) for fact in facts}))


_FACTS: Final = tuple(column.name for column in tables.store.columns)


def _facts(connection: Connection, path: Path) -> tuple[StoreIdentity, Numbers]:
    row = connection.execute(_read_facts).fetchone()
    if row is None:
        raise StoreDamaged(f"{path} does not say whose store it is")
    facts = dict(zip(_FACTS, row, strict=True))
    numbers = [facts[name] for name in Numbers.__slots__]
    known = {name: facts[name] for name in StoreIdentity.__struct_fields__}
    for flag in ("is_broker_enabled", "default_encryption", "honor_priority"):
        known[flag] = bool(known[flag])
    identity = StoreIdentity(**known)
    return identity, Numbers(*numbers)


def read_epoch(connection: Connection) -> int:
    """Return the number of times the store was opened."""
    return int(connection.execute(_epoch).fetchone()[0])


def change_facts(connection: Connection, facts: Mapping[str, object]) -> None:
    """Change columns of the one row about the store, in a transaction of its own."""
    with transaction(connection):
        change_facts_within(connection, facts)


def change_facts_within(connection: Connection, facts: Mapping[str, object]) -> None:
    """Change columns of the one row about the store, in the caller's transaction."""
    columns = [column.name for column in tables.store.columns if column.name in facts]
    values = [*(facts[name] for name in columns), 1]
    connection.execute(update_by_key(tables.store, "id", columns), values)


_count_open = sql(tables.store.update().values(epoch=text("epoch + 1")))
_read_facts = sql(select(tables.store))
_epoch = sql(select(tables.store.c.epoch))
