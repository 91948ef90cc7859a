"""Moving: the steps in which stores are copied, marked as moved, and opened to daemons (REL-61).

Reads:  the sources.      Calls: their ends.
Never:  leaves two stores that could both be opened with one history, or none: a source is marked
        only when its copy is whole, and a copy can be opened only when its source is marked.
Fails:  before the first mark with everything as it was; after it, the same command finishes.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import Table

from brokerd.clock import Clock
from brokerd.errors import (
    BrokerError,
    CopyFailed,
    PostgresqlExtraMissing,
    StoreDamaged,
    StoreMoved,
    UsageError,
)
from brokerd.ids import IdSource
from brokerd.model import MSDB
from brokerd.storage import tables
from brokerd.storage.copying.ends import Facts, Source, Staging, Target
from brokerd.storage.copying.files import FileSource, FileTarget
from brokerd.storage.copying.places import FilePlace, Place, SchemaPlace
from brokerd.storage.copying.rows import (
    Fingerprint,
    Progress,
    Row,
    copy_tables,
    fingerprints,
    refuse_difference,
)
from brokerd.storage.move_marks import Moved, Unfinished
from brokerd.storage.rows import known_brokers
from brokerd.storage.schema import refuse_marked
from brokerd.storage.verifying import Finding, verify
from brokerd.units import counted

if TYPE_CHECKING:
    from brokerd.storage.postgresql.opening import ServerOptions


class Copied(msgspec.Struct, frozen=True):
    """A store that was copied."""

    broker: str
    source: str
    target: str
    rows: int
    tables: dict[str, int]
    """Number of rows of each table that has any."""
    is_moved: bool
    """Whether the source can never be opened again, and the copy continues its history."""
    was_done: bool = False
    """Whether an earlier run has made the copy."""


class Pair(NamedTuple):
    """A store and the place where it is to go."""

    source: Place
    target: Callable[[Facts], Place]
    """Function that returns the target, for the broker whose store it is."""


class _Job(NamedTuple):
    source: Source
    target: Target
    mark: Unfinished
    is_staged: bool
    """Whether an earlier run has made the copy and marked the source."""
    is_done: bool = False
    """Whether an earlier run has done everything."""


_FOREIGN: Final = "foreign_fingerprint"
_COLUMNS: Final = [column.name for column in tables.store.columns]


class Mover:
    """Copies stores; one command has one."""

    def __init__(
        self,
        *,
        ids: IdSource,
        clock: Clock,
        server: "ServerOptions | None" = None,
        keep_source: bool = False,
        left_out: Collection[str] = (),
        progress: Progress = lambda _what, _done, _whole: None,
        fault: Callable[[str], None] = lambda _point: None,
    ) -> None:
        """Create it.

        `server`: options of stores in PostgreSQL; None = the defaults. `keep_source`: the source
        stays as it is, and the copy begins another history, with delivery off. `left_out`: brokers
        that the copied instance does not have, so its `msdb` does not name them. `fault`: called at
        the moments at which tests kill the process.
        """
        self._ids, self._clock, self._server = ids, clock, server
        self._keep_source, self._left_out = keep_source, frozenset(left_out)
        self._progress, self._fault = progress, fault

    def move(self, pairs: Sequence[Pair]) -> list[Copied]:
        """Copy stores, all or none; return what was done, in the order of the pairs.

        Raises:
            StoreLocked: somebody has a source or a target open; the error says who.
            StoreMoved: a source goes on elsewhere already.
            StoreDamaged, StoreVersion: a source is not whole, or of another version.
            CopyFailed: a target is there already, or cannot be written.
            StoreFault: a server cannot be used.
            UsageError: source and target are the same.
            PostgresqlExtraMissing: the driver of PostgreSQL is not installed.
            UnsafeFile: a file or directory belongs to another user.
        """
        with ExitStack() as stack:
            jobs = [self._prepared(pair, stack) for pair in pairs]
            for job in jobs:
                if not job.is_staged:
                    _refuse_damaged(job.source)
            found = self._stage_all(jobs)
            self._fault("copy.staged")
            for job in jobs:
                if not job.is_done:
                    self._finish(job)
        return [self._copied(job, of) for job, of in zip(jobs, found, strict=True)]

    def _prepared(self, pair: Pair, stack: ExitStack) -> _Job:
        """Lock both ends, and find out what an earlier run has left."""
        source = self._source(pair.source)
        stack.callback(source.close)
        facts = source.facts
        mark = facts.mark
        if isinstance(mark, Unfinished):
            refuse_marked(facts.version, source.place)
        place = pair.target(facts)
        if place == pair.source:
            raise UsageError(f"{place} is both the source and the target")
        target = self._target(place)
        stack.callback(target.close)
        if isinstance(mark, Moved):
            return self._resumed(source, target, mark)
        there = target.facts()
        if there is not None and not _is_left_over(there, facts):
            raise _taken(place, there)
        if target.unfinished() is not None:
            target.discard()  # of a run that was killed before it marked the source
        copy = self._ids.fresh().hex()
        return _Job(source, target, Unfinished(copy, str(source.place)), is_staged=False)

    def _resumed(self, source: Source, target: Target, mark: Moved) -> _Job:
        """Return the job of a source that an earlier run has marked."""
        if not self._keep_source and mark.to == str(target.place):
            left, there = target.unfinished(), target.facts()
            own = Unfinished(mark.copy, str(source.place))
            if left is not None and left.copy == mark.copy:
                return _Job(source, target, left, is_staged=True)
            if there is not None and there.mark is None and there[:3] == source.facts[:3]:
                return _Job(source, target, own, is_staged=True, is_done=True)
        raise StoreMoved(f"{source.place} was moved to {mark.to}")

    def _stage_all(self, jobs: Sequence[_Job]) -> list[dict[str, Fingerprint]]:
        begun: list[_Job] = []
        found: list[dict[str, Fingerprint]] = []
        try:
            for job in jobs:
                if job.is_staged:
                    found.append({})
                    continue
                found.append(self._stage(job))
                begun.append(job)
        except BaseException:
            for job in begun:
                with suppress(BrokerError):
                    job.target.discard()
            raise
        return found

    def _stage(self, job: _Job) -> dict[str, Fingerprint]:
        source, place = job.source, str(job.target.place)
        found: dict[str, Fingerprint] = {}

        def report(what: str, done: int, whole: int) -> None:
            self._progress(f"{source.facts.broker}: {what}", done, whole)

        def fill(staging: Staging) -> None:
            written = copy_tables(
                source,
                staging.connection,
                change=self._changed,
                progress=report,
                place=str(source.place),
            )
            numbers = source.numbers()
            staging.set_numbers(numbers)
            read = fingerprints(staging, progress=report)
            refuse_difference(written, read, place=place)
            if staging.numbers() != numbers:
                raise CopyFailed(f"{place} would give keys again; the copy was given up")
            found.update(written)
            self._fault("copy.filled")

        job.target.stage(job.mark, fill)
        return found

    def _finish(self, job: _Job) -> None:
        if not self._keep_source and not job.is_staged:
            job.source.mark(Moved(str(job.target.place), job.mark.copy))
            self._fault("copy.marked")
        job.target.finish(job.mark)

    def _changed(self, table: Table, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows of the copy: only the facts about the store change (REL-62), and brokers
        that are left out are not known there (REL-83)."""
        if table is tables.known_brokers:
            name = [column.name for column in table.columns].index("name")
            return [row for row in rows if row[name] not in self._left_out]
        if table is not tables.store:
            return rows
        changes: dict[str, object] = {"host": None}
        if self._keep_source:
            changes |= {
                "incarnation": self._ids.fresh(),
                "is_broker_enabled": 0,
                "disabled_reason": _FOREIGN,
            }
        return [
            tuple(changes.get(name, value) for name, value in zip(_COLUMNS, row, strict=True))
            for row in rows
        ]

    def _copied(self, job: _Job, found: dict[str, Fingerprint]) -> Copied:
        return Copied(
            broker=job.source.facts.broker,
            source=str(job.source.place),
            target=str(job.target.place),
            rows=sum(one.rows for one in found.values()),
            tables={name: one.rows for name, one in found.items() if one.rows},
            is_moved=not self._keep_source,
            was_done=job.is_staged,
        )

    def _source(self, place: Place) -> Source:
        if isinstance(place, FilePlace):
            return FileSource(place, clock=self._clock)
        try:
            from brokerd.storage.copying.server import ServerSource  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise _driver_missing(error) from error
        return ServerSource(place, self._options())

    def _target(self, place: Place) -> Target:
        if isinstance(place, FilePlace):
            return FileTarget(place, clock=self._clock)
        try:
            from brokerd.storage.copying.server import ServerTarget  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise _driver_missing(error) from error
        return ServerTarget(place, self._options())

    def _options(self) -> "ServerOptions":
        from brokerd.storage.postgresql.opening import ServerOptions  # noqa: PLC0415  # an extra

        return self._server or ServerOptions()


def brokers_on_server(msdb: SchemaPlace) -> list[str]:
    """Return the brokers of the instance whose `msdb` this is, `msdb` first.

    Raises:
        StoreFault: the server cannot be used.
        StoreLocked: a daemon has the store.
        StoreDamaged: there is no such store.
        PostgresqlExtraMissing: the driver of PostgreSQL is not installed.
    """
    try:
        from brokerd.storage.copying.server import ServerSource  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise _driver_missing(error) from error
    from brokerd.storage.postgresql.opening import ServerOptions  # noqa: PLC0415  # an extra

    source = ServerSource(msdb, ServerOptions())
    try:
        return [MSDB, *sorted(set(known_brokers.load(source.connection)) - {MSDB})]
    finally:
        source.close()


def verify_place(place: Place) -> list[Finding]:
    """Return all contradictions in a store, in use or not, and its leftover rows (HK-10).

    Raises:
        StoreDamaged, StoreVersion: the place has no store, or not one of this version.
        StoreMoved: the store goes on elsewhere.
        StoreFault: the server cannot be used.
        PostgresqlExtraMissing: the driver of PostgreSQL is not installed.
    """
    if isinstance(place, FilePlace):
        return verify(place.path)
    try:
        from brokerd.storage.postgresql.verifying import verify_schema  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise _driver_missing(error) from error
    return verify_schema(place.url, place.schema, place=place)


def _is_left_over(there: Facts, source: Facts) -> bool:
    """Return whether a target is a copy of this source that was never finished."""
    return isinstance(there.mark, Unfinished) and there.broker_id == source.broker_id


def _taken(place: Place, there: Facts) -> CopyFailed:
    """Return the error of a target that is there already."""
    also = f", which was moved to {there.mark.to}" if isinstance(there.mark, Moved) else ""
    away = "move it and the files beside it to another directory"
    if not isinstance(place, FilePlace):
        schema = place.schema
        away = f'ALTER SCHEMA "{schema}" RENAME TO another name'
    return CopyFailed(
        f"{place} is there already, as the store of broker {there.broker}{also}; nothing was"
        " copied",
        hint=f"name another place, or move what is there away: {away}",
    )


def _driver_missing(error: ImportError) -> PostgresqlExtraMissing:
    return PostgresqlExtraMissing(f"the driver of PostgreSQL is not installed: {error}")


def _refuse_damaged(source: Source) -> None:
    """Raise `StoreDamaged` if the source is not whole; leftover rows do no harm."""
    damage = [one for one in source.findings() if one.is_damage]
    if damage:
        first = damage[0]
        raise StoreDamaged(
            f"{source.place} is not whole: {counted(len(damage), 'thing')} in it cannot be, the"
            f" first in {first.table or 'the file'}, {first.where}: {first.problem}; nothing was"
            " copied",
            hint=first.cure
            or "open it in the daemon once, which sets aside what is damaged; or put a backup in "
            "its place",
        )
