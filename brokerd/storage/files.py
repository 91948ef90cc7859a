"""Store files: made whole or not at all, checked before anything writes to them, then opened.

Reads:  the header and schema of a file, and the facts of its rows that a start needs.
Calls:  Alembic, only when a file is older than this version.
Never:  changes a file it refuses (BI-D1), or repairs one (REL-5).
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec
from sqlalchemy import (
    bindparam,
    create_engine,
    exists,
    func,
    insert,
    literal_column,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable

from brokerd.clock import Clock, Instant
from brokerd.errors import (
    BrokerError,
    StoreDamaged,
    StoreFault,
    StoreFull,
    StoreLocked,
    StoreVersion,
)
from brokerd.ids import (
    BodyKey,
    BrokerId,
    EndpointKey,
    IdSource,
    Incarnation,
    InstanceId,
    QueueKey,
    show,
)
from brokerd.model import Contract
from brokerd.resources import migrations_dir
from brokerd.storage import (
    bodies,
    catalog,
    deferred_drops,
    deferred_removals,
    held_groups,
    known_brokers,
    references,
    space,
    tables,
)
from brokerd.storage.catalog import BUILT_IN, NO_CHANGES, Catalog, CatalogChanges
from brokerd.storage.changes import Owner
from brokerd.storage.engine import (
    READ_PRAGMAS,
    Connection,
    connect_writer,
    is_full,
    transaction,
)
from brokerd.storage.flush import NUMBERS, Numbers
from brokerd.storage.held_groups import RecoveredGroup
from brokerd.storage.known_brokers import Known
from brokerd.storage.lock import OwnerLock, is_held, refuse_if_held
from brokerd.storage.log_check import HAS_LOG, refuse_loss
from brokerd.storage.log_head import (
    State,
    UnreadableRecord,
    has_log,
    head_path,
    index_path,
    log_path,
    read_record,
)
from brokerd.storage.moved_files import file_at
from brokerd.storage.private_files import make_private_file, refuse_unsafe, sync
from brokerd.storage.shelves import NO_SHELF, PLACES, SHELVES
from brokerd.storage.statements import sql, update_by_key
from brokerd.storage.stretches import found_at, table_at
from brokerd.storage.tables import AHEAD, PAGED
from brokerd.storage.tokens import Tokens
from brokerd.storage.writers import roll_back, roll_back_and_close

REVISIONS: Final = (
    "0001",
    "0002",
    "0003_receive",
    "0004_objects",
    "0005_dialogs",
    "0006_events",
    "0007_admin",
    "0008_ended_groups",
    "0009_poison",
    "0010_dynamic_routing",
    "0011_activation",
    "0012_activation_timeout",
    "0013_mirrors",
    "0014_bodies",
    "0015_last_message",
    "0016_xxh3",
    "0017_stretches",
    "0018_shelves",
    "0019_known_brokers",
    "0020_drops",
    "0021_initiators",
)
"""All schema revisions, in order; the last one is the schema of `tables.py`."""

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_SIZE: Final = 100
_APPLICATION_ID_AT: Final = 68
_JOURNAL_AT: Final = 18


class NewStore(msgspec.Struct, frozen=True):
    """The facts of a store to be made. Its incarnation is drawn when it is made (REL-15)."""

    broker_name: str
    broker_id: BrokerId
    instance_id: InstanceId
    default_encryption: bool = False
    host: bytes | None = None
    """The machine, None = unknown (MAN-7)."""
    objects: CatalogChanges = NO_CHANGES
    """Objects that it gets besides those of every broker."""


class StoreIdentity(msgspec.Struct, frozen=True):
    """The facts about a store: its broker, its instance, its history."""

    broker_name: str
    broker_id: BrokerId
    instance_id: InstanceId
    incarnation: Incarnation
    epoch: int
    """Number of times it was opened."""
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
    """An operation that was begun and has to be finished (MAN-5, MAN-6)."""
    former_ids: bytes | None = None
    """Former identifiers of the broker, newest first, sixteen bytes each (MAN-6)."""


class Recovered(msgspec.Struct, frozen=True):
    """The waiting rows that a start finds: all of them are paged, because memory holds none."""

    waiting: list[tuple[QueueKey, int, int, int]]
    """Queue, priority, number of messages, when the first one was enqueued; 0 = unknown."""
    outgoing: list[tuple[EndpointKey, int, int, int]]
    """Endpoint, messages in the transmission queue, lowest sequence, bytes of bodies."""
    timers_fired: list[tuple[QueueKey, EndpointKey]] = []
    """Endpoints with a DialogTimer message, which comes before all others (RCV-8)."""
    has_timers: bool = False
    has_retained: bool = False
    has_states: bool = False
    shelves: list[tuple[int, QueueKey | None, int, int]] = []
    """The arguments of each `Shelf`."""
    has_others: bool = False
    """Whether any waiting message is on no shelf."""
    held: list[RecoveredGroup] = []
    """Groups whose transactions were rolled back (PBT-3)."""
    dropped: list[EndpointKey] = []
    """Ended endpoints whose messages still have to be deleted; none of these messages waits."""


class Opened(NamedTuple):
    """An open file and what was read from it."""

    lock: OwnerLock
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
    is_new: bool = False
    """Whether this open has made the file."""
    loss_accepted_at: Instant | None = None
    """When an administrator accepted a loss of the log; None = not since it was open last."""


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
    """Lock, check and upgrade the file, count the open, and page what memory held.

    `kept`: a connection to this very file, which needs no further check (HK-3).
    """
    if not path.parent.is_dir():
        raise StoreDamaged(f"{path.parent} is not a directory")
    with _refusing(path):
        refuse_unsafe(path)
        lock = OwnerLock(path, clock=clock)
        try:
            if create is None or path.exists():
                return _open_locked(path, lock, name=name, fault=fault, kept=kept)
            _refuse_a_log(path, "is missing, and its log is there")
            with _taken_back(path):
                make_file(path, create, incarnation=Incarnation(ids.fresh()), now=clock.utc())
                opened = _open_locked(path, lock, name=name, fault=fault, kept=kept)
                return opened._replace(is_new=True)
        except BaseException:
            lock.release()
            raise


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise the reason why a file cannot be opened: no room, read-only, or damaged."""
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
        if _is_read_only(error):
            raise StoreDamaged(
                f"{path} cannot be written: it is read-only", hint="change its mode or file system"
            ) from error
        raise StoreDamaged(f"{path} cannot be opened: {error}") from error


@contextmanager
def _taken_back(path: Path) -> Iterator[None]:
    """Remove a file that was made and cannot be opened, so that it can be made again."""
    try:
        yield
    except (sqlite3.Error, OSError):
        take_back(path)
        raise


def take_back(path: Path) -> None:
    """Remove a file that was just made and never used."""
    for left in (path, log_path(path), index_path(path), head_path(path)):
        left.unlink(missing_ok=True)


def _is_read_only(error: sqlite3.Error) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_READONLY")


def _finds_no_room(error: sqlite3.Error | OSError) -> bool:
    """Return whether there was no room, for the log's index as well.

    Of the index SQLite says only that it cannot extend it.
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
        fault("start.recover")
        with transaction(connection):
            connection.execute(_count_open)
            deferred_removals.apply_all(connection)
            _page_all(connection)
            held_groups.forget_gone(connection)
            some_bodies, next_body_key = bodies.recover(connection)
            tokens = Tokens()  # all is read in the same transaction: one lock instead of thirty
            tokens.load(connection)
            identity, numbers = _facts(connection, path)
            found, objects = recovered(connection), catalog.load(connection)
            brokers = known_brokers.load(connection)
        lock.describe(show(identity.broker_id), identity.epoch)
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
            loss_accepted_at=accepted_at,
        )
    except BaseException:
        roll_back_and_close(connection)
        raise


def _loss_accepted_at(path: Path) -> Instant | None:
    with suppress(UnreadableRecord):  # that is reported where the log is checked
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


# Making.


def make_file(path: Path, new: NewStore, *, incarnation: Incarnation, now: Instant) -> None:
    """Make a store under another name and rename it, so that a crash leaves none or a whole one."""
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
            for statement in schema():
                connection.execute(statement)
            connection.execute("INSERT INTO alembic_version VALUES (?)", (REVISIONS[-1],))
            _write_facts(connection, new, incarnation, now)
            catalog.write(connection, BUILT_IN)
            catalog.make(connection, new.objects)
    finally:
        connection.close()


def is_missing(path: Path) -> bool:
    """Return whether there is no file; False if that cannot be determined."""
    try:
        return file_at(path) is None
    except OSError:
        return False


@cache
def schema() -> tuple[str, ...]:
    """Return the statements that make an empty store of this version."""
    made: list[str] = []
    for table in tables.metadata.sorted_tables:
        made.append(sql(CreateTable(table)))
        made += [
            sql(CreateIndex(index)) for index in sorted(table.indexes, key=lambda it: str(it.name))
        ]
    made.append(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL,"
        " CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    return tuple(made)


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


# Checking, on a connection that cannot write.


def refusals_of(path: Path, *, user: int | None = None) -> Iterator[BrokerError]:
    """Yield the reasons why `open_file` would refuse a file, and change nothing (BI-D1).

    These are the first reason that can be seen this way, and before it that a process has the file
    open. `user`: as for `refuse_unsafe`. The errors are those that `look_at` raises.
    """
    is_in_use = False
    try:
        refuse_unsafe(path, user=user)
        try:
            refuse_if_held(path)
        except StoreLocked as error:
            yield error
            is_in_use = True
        check_header(path)
        refuse_loss(path, is_in_use=is_in_use)
        check_schema(path)
    except BrokerError as error:
        yield error


def look_at(path: Path) -> None:
    """Refuse a file that `open_file` would refuse, and change nothing (BI-D1).

    Raises:
        StoreLocked: a process has it open.
        UnsafeFile: a file of the store is a link, or not ours alone (SX-24).
        StoreDamaged, StoreVersion: it is no store, not one of this version, or its log lacks
            something (REL-39).
    """
    for error in refusals_of(path):
        raise error


def look_for_known(msdb: Path) -> Known:
    """Return the brokers that an instance has, without opening its store (MAN-16).

    Raises:
        StoreLocked: a process has it open, and knows better.
        StoreDamaged: it is no store, or its log lacks something (REL-39).
    """
    refuse_if_held(msdb)
    if is_missing(msdb):
        return {}
    check_header(msdb)
    refuse_loss(msdb)
    with looking(msdb) as connection:
        try:
            refuse_code(connection, msdb)
            return known_brokers.load(connection)
        except sqlite3.DatabaseError as error:
            raise unreadable(msdb, error) from error


def check_header(path: Path) -> None:
    """Raise `StoreDamaged`, naming what the file is, if it is no store."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_SIZE)
    except OSError as error:
        raise StoreDamaged(f"{path} cannot be read: {error.strerror}") from error
    if not header:
        raise StoreDamaged(f"{path} is an empty file, not a store")
    if not header.startswith(_MAGIC) or len(header) < _HEADER_SIZE:
        raise StoreDamaged(f"{path} is not an SQLite file")
    application_id = int.from_bytes(header[_APPLICATION_ID_AT:][:4])
    if application_id != tables.APPLICATION_ID:
        raise StoreDamaged(
            f"{path} belongs to another application (id {application_id:#010x},"
            f" a store has {tables.APPLICATION_ID:#010x})"
        )
    if header[_JOURNAL_AT:][:2] != HAS_LOG:  # a backup, or new: opening it changes that
        _refuse_a_log(path, "is a backup, or new, and the log beside it is of another file")


def _refuse_a_log(path: Path, what: str) -> None:
    """Raise `StoreDamaged` if there is a log, which SQLite would use for this file (MAN-11)."""
    if has_log(path):
        log = log_path(path)
        raise StoreDamaged(
            f"{path} {what}: {log}",
            hint=f"move {log} and {index_path(path)} away, or put back the file that they belong "
            "to",
        )


def check_schema(path: Path, *, name: str | None = None) -> str:
    """Check the schema of a file; return its revision.

    Raises:
        StoreVersion: the revision is unknown.
        StoreDamaged: the file is not whole, or it is not the store of the broker of that name.
    """
    with looking(path) as connection:
        try:
            refuse_code(connection, path)
            revision = _revision(connection, path)
            if revision == REVISIONS[-1]:
                _check_objects(connection, path)
            if name is not None:
                _check_name(connection, path, name)
        except sqlite3.DatabaseError as error:
            raise unreadable(path, error) from error
    return revision


def refuse_contracts_in_use(path: Path, wanted: Mapping[str, Contract]) -> None:
    """Raise `InUse` if open dialogs need a contract that these declarations change.

    Such declarations refuse a start (OBJ-25, OBJ-37). A store of an older version is not inspected,
    and one whose log lacks something is refused (`StoreDamaged`, REL-39).
    """
    check_header(path)
    refuse_loss(path, is_in_use=is_held(path))
    if check_schema(path) != REVISIONS[-1]:
        return
    with looking(path) as connection:
        try:
            have = catalog.load(connection).contracts
            changed = (name for name, one in wanted.items() if have.get(name, one) != one)
            references.refuse_if_used(
                connection, [references.Use(contract=name) for name in sorted(changed)]
            )
        except sqlite3.DatabaseError as error:
            raise unreadable(path, error) from error


def refuse_older(path: Path, revision: str) -> None:
    """Raise `StoreVersion` if the file is of an older version.

    Only a start upgrades a file; programs that only read leave it as it is.
    """
    if revision != REVISIONS[-1]:
        raise StoreVersion(
            f"{path} has schema version {revision}, and this program reads {REVISIONS[-1]}",
            hint="keep a copy, then start this version of the daemon on it once, which brings it "
            "up to date; or use the version that wrote it",
        )


def unreadable(path: Path, error: sqlite3.Error) -> StoreDamaged:
    """Return the error for a file that SQLite cannot read."""
    return StoreDamaged(f"{path} cannot be read: {error}")


def _check_name(connection: Connection, path: Path, name: str) -> None:
    """Raise `StoreDamaged` if the file is another broker's and would take this broker's place."""
    found = connection.execute("SELECT broker_name FROM store").fetchone()
    if found != (name,):
        told = found[0] if found else "nobody"
        own = path.parent / f"{told}.db"
        again = f"call the file {own.name} again"
        if own.exists():  # the name is taken: this file is a copy, and the other one may be in use
            again = f"move it to another directory, as {own.name} is there"
        raise StoreDamaged(
            f"{path} is the store of broker {told}, not of {name}",
            hint=f"{again}, or put a backup of {name} in its place",
        )


@contextmanager
def looking(path: Path, *, with_log: bool = True) -> Iterator[Connection]:
    """Open a connection that only reads, and leave no file behind that did not exist.

    Without a log beside it the file is read as it is; with one, SQLite needs the log's index.
    `with_log=False`: ignore the log, and do not touch its index.
    """
    index = index_path(path)
    had_index = index.exists()
    way = "mode=ro" if with_log and has_log(path) else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{way}", uri=True)
    try:
        for pragma in READ_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        yield connection
    finally:
        connection.close()
        if not had_index:
            index.unlink(missing_ok=True)


def _revision(connection: Connection, path: Path) -> str:
    found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    if len(found) != 1:
        raise StoreDamaged(f"{path} says {len(found)} times which version it has")
    revision = str(found[0][0])
    if revision not in REVISIONS:
        raise StoreVersion(
            f"{path} has schema version {revision}; this program knows up to {REVISIONS[-1]}",
            hint="start the newer version that wrote it, or restore a backup",
        )
    return revision


def refuse_code(connection: Connection, path: Path) -> None:
    """Refuse a file with a trigger or a view, whatever its version (BI-D2).

    Do this before any table is read: a view may have the name of a table, and a trigger would run
    in a migration.

    Raises:
        StoreDamaged: it has one.
    """
    query = "SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view') ORDER BY name"
    for kind, name in connection.execute(query):
        raise StoreDamaged(f"{path} has a foreign {kind} {name}")


def _check_objects(connection: Connection, path: Path) -> None:
    """Check that no object or column is missing or foreign (BI-D2)."""
    found = {
        (kind, name)
        for kind, name in connection.execute("SELECT type, name FROM sqlite_schema")
        if not name.startswith("sqlite_")
    }
    wanted = _objects_wanted()
    for what, objects in (("lacks", wanted - found), ("has a foreign", found - wanted)):
        for kind, name in sorted(objects):
            raise StoreDamaged(f"{path} {what} {kind} {name}")
    for table in tables.metadata.sorted_tables:
        columns = {row[1] for row in connection.execute(f"PRAGMA table_xinfo({table.name})")}
        wanted_columns = {column.name for column in table.columns}
        for what, names in (
            ("lacks", wanted_columns - columns),
            ("has a foreign", columns - wanted_columns),
        ):
            for name in sorted(names):
                raise StoreDamaged(f"{path} {what} column {name} of table {table.name}")


@cache
def _objects_wanted() -> frozenset[tuple[str, str]]:
    wanted = {("table", "alembic_version")}
    for table in tables.metadata.tables.values():
        wanted.add(("table", table.name))
        wanted |= {("index", str(index.name)) for index in table.indexes}
    return frozenset(wanted)


def upgrade(connection: Connection, path: Path) -> None:
    """Upgrade an older schema to this version in one transaction (REL-29).

    Raises:
        StoreFault: the upgrade failed and was undone.
        sqlite3.Error: the upgrade failed and was undone; the file is read-only or the disk is full.
    """
    # Takes a quarter of a second, and is rarely needed.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    with engine.connect() as wrapped:
        config.attributes["connection"] = wrapped
        try:
            wrapped.exec_driver_sql("PRAGMA foreign_keys = OFF")
            wrapped.exec_driver_sql("BEGIN IMMEDIATE")
            command.upgrade(config, "head")
            wrapped.exec_driver_sql("COMMIT")
        except DBAPIError as error:
            failed = error.orig
            if isinstance(failed, sqlite3.Error) and (is_full(failed) or _is_read_only(failed)):
                raise failed from error
            raise StoreFault(f"{path}: upgrading failed and was undone: {failed}") from error
        finally:
            roll_back(connection)
            connection.execute("PRAGMA foreign_keys = ON")
    space.prepare_full(connection)


# Facts that a start needs.


def _page_all(connection: Connection) -> None:
    """Page every message: memory is empty, so each must be found by index (design D4)."""
    for statement in _page:
        connection.execute(statement, (1, 0))


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


def recovered(connection: Connection) -> Recovered:
    """Return the waiting rows of the file."""
    timers, retained, states = connection.execute(_any).fetchone()
    levels = {place: connection.execute(each).fetchall() for place, each in _by_level.items()}
    waiting: Counter[tuple[QueueKey, int]] = Counter()
    since: dict[tuple[QueueKey, int], int] = {}
    for place, rows in levels.items():
        for queue, level, count, first in rows:
            key = QueueKey(queue), level
            waiting[key] += count
            at = connection.execute(_enqueued_at[place], (first,)).fetchone()[0]
            since[key] = min(since.get(key, at), at)
    # Counting by level includes the messages of dropped endpoints; subtract those, which are found
    # by their own index.
    dropped = deferred_drops.noted(connection)
    if dropped:
        since.clear()  # the first ones may be dropped messages, which wait no longer
        for queue, level, count in chain.from_iterable(
            deferred_drops.counts(connection, one) for one in PLACES
        ):
            waiting[QueueKey(queue), level] -= count
    return Recovered(
        waiting=[(*key, count, since.get(key, 0)) for key, count in waiting.items() if count > 0],
        shelves=[_shelf(place, levels[place]) for place in SHELVES if levels[place]],
        has_others=bool(levels[NO_SHELF]),
        outgoing=[
            (EndpointKey(row[0]), row[1], row[2], row[3] or 0)
            for row in connection.execute(_by_endpoint)
        ],
        timers_fired=[
            (QueueKey(row[0]), EndpointKey(row[1])) for row in connection.execute(_fired)
        ],
        has_timers=bool(timers),
        has_retained=bool(retained),
        has_states=bool(states),
        held=held_groups.recovered(connection),
        dropped=dropped,
    )


def _shelf(
    number: int, levels: Sequence[tuple[QueueKey, int, int, int]]
) -> tuple[int, QueueKey | None, int, int]:
    queue, *others = {row[0] for row in levels}
    first, count = min(row[3] for row in levels), sum(row[2] for row in levels)
    return number, None if others else queue, first, count


def epoch_of(connection: Connection) -> int:
    """Return the number of times the store was opened."""
    return int(connection.execute(_epoch).fetchone()[0])


def change_facts(connection: Connection, facts: Mapping[str, object]) -> None:
    """Change columns of the one row about the store, in a transaction of its own."""
    columns = [column.name for column in tables.store.columns if column.name in facts]
    with transaction(connection):
        values = [*(facts[name] for name in columns), 1]
        connection.execute(update_by_key(tables.store, "id", columns), values)


# Statements of a start, built once.

_waiting, _outgoing = tables.queue_messages.c, tables.transmission_queue.c
_count_open = sql(tables.store.update().values(epoch=text("epoch + 1")))
_read_facts = sql(select(tables.store))
_epoch = sql(select(tables.store.c.epoch))
_page = [
    sql(table.update().where(table.c.paged == 0).values(paged=1))
    for table in (tables.queue_messages, tables.transmission_queue)
]
_by_level = {
    place: "SELECT queue_key, priority, count(*), min(queuing_order)"  # noqa: S608
    f" FROM {table_at(place)} WHERE {found_at(place)} GROUP BY queue_key, priority"
    for place in PLACES
}
_enqueued_at = {
    place: f"SELECT enqueued_at FROM {table_at(place)} WHERE queuing_order = ?"  # noqa: S608
    for place in PLACES
}
# The index alone says which rows these are; without the hint the whole table is read.
_fired = (
    "SELECT DISTINCT queue_key, endpoint_key FROM queue_messages INDEXED BY queue_messages_ahead"  # noqa: S608
    f" WHERE {AHEAD} AND sequence = -2 AND endpoint_key NOT IN ({deferred_drops.DROPPED})"
)
_any = sql(
    select(
        *(
            exists(select(literal_column("1")).select_from(table))
            for table in (tables.conversation_timers, tables.retained_messages, tables.group_states)
        )
    )
)
_by_endpoint = sql(
    select(
        _outgoing.endpoint_key,
        func.count(),
        func.min(_outgoing.sequence),
        func.sum(bodies.size_of(tables.transmission_queue, Owner.OUTGOING)),
    )
    .where(text(PAGED))
    .group_by(_outgoing.endpoint_key)
)
