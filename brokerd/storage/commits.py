"""Commit pipeline: many changesets, one flush, one sync (design D2, D3).

Reads:  the changesets that join.
Calls:  the writer it is given; `deletions` as a flush joins, begins and has been written, then
        `checkpoints`, then `confirmations`.
Never:  has two flushes written at a time, or confirms a changeset before the COMMIT that carries
        it has returned (REL-1, REL-4).
Fails:  at the first fault it stops for good: nothing is retried or confirmed (REL-5). A full disk
        is not a fault: a flush that could not be written is kept and tried again until it fits
        (REL-26).
"""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar, cast

from brokerd.clock import Clock, Instant
from brokerd.errors import StoreFault, StoreFull
from brokerd.ids import BodyKey, ClientId, EndpointKey, QueueKey
from brokerd.storage import space
from brokerd.storage.body_keeper import BodyKeeper
from brokerd.storage.changes import Changes
from brokerd.storage.checkpoints import Checkpoints
from brokerd.storage.confirmations import Confirmations
from brokerd.storage.deletions import Deletions
from brokerd.storage.flush import CommitFailed, Flush, Numbers, Writing, Written
from brokerd.storage.options import Metrics, StoreOptions
from brokerd.storage.rows.tokens import Tokens
from brokerd.storage.shelves import Shelves
from brokerd.storage.sqlite_errors import as_fault, is_busy, is_full
from brokerd.storage.writers import Job, NotRecorded, Reported, Writer, fold_and_cut

T = TypeVar("T")
Observe = Callable[[str, int], None]
"""Function that is called with the name of a histogram and a value in microseconds."""

_GIVEN_UP: Final = "the disk is full, and what was not confirmed is given up"
_SLOW: Final = 0.002
"""Seconds that a flush may be with the writer before the loop yields the interpreter lock (D3)."""
_BREATH: Final = 0.0001


class CommitPipeline:
    """The pipeline that gathers changesets and writes one flush at a time."""

    def __init__(
        self,
        *,
        writer: Writer,
        clock: Clock,
        options: StoreOptions,
        numbers: Numbers,
        tokens: Tokens,
        shelves: Shelves,
        on_fault: Callable[[StoreFault], None],
        fault: Callable[[str], None] | None,
        observe: Observe,
        on_full: Callable[[], bool],
        on_room: Callable[[], None],
        some_bodies: bool,
        next_body_key: BodyKey,
        dropped: Sequence[EndpointKey],
    ) -> None:
        """Create the pipeline.

        `on_full`: called when a write found no room; returns True if another attempt may find
        room immediately. `on_room`: called when the flush that had to wait has been written.
        """
        self._on_full = on_full
        self._on_room = on_room
        self._stalled: asyncio.TimerHandle | None = None
        self._writer = writer
        self._clock = clock
        self._options = options
        self._numbers = numbers
        self._tokens = tokens
        self._on_fault = on_fault
        self._failpoint = fault
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._gathering = Flush()
        self._full: deque[Flush] = deque()
        self._writing: Flush | None = None
        self._submitted_at = 0.0
        self._start_due = False
        self._lazy: asyncio.TimerHandle | None = None
        self._fault: StoreFault | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self.shelves = shelves
        """The tables for messages beyond windows."""
        self.metrics = Metrics()
        self.confirmations = Confirmations(tokens=tokens, fail=self._fail)
        self._checkpoints = Checkpoints(
            writer=writer,
            options=options,
            metrics=self.metrics,
            no_room=self._report_no_room,
            fail=self._fail,
        )
        self.bodies = BodyKeeper(
            now=clock.monotonic,
            commit=self.commit,
            drop=self._drop_bodies,
            submit=self._submit_deletion,
            joined=self._has_bodies,
            some=some_bodies,
            next_key=next_body_key,
        )
        """The bodies in pieces."""
        self.deletions = Deletions(
            options=options,
            clock=clock,
            metrics=self.metrics,
            shelves=shelves,
            bodies=self.bodies,
            dropped=dropped,
            submit=self._submit_deletion,
            log_has_grown=self._checkpoints.log_has_grown,
        )
        self._closed = self._closing = False
        self.joined = 0
        """Number of changesets that have joined."""
        self.confirmed = 0
        """Number of durable changesets; they become durable in the order of joining."""
        self.written = 0
        """Number of finished writes; while it is unchanged, reads give the same results."""
        self.deletions.start()

    # Joining.

    def join(self, changes: Changes, done: Callable[[], None], urgent: bool) -> None:
        """Merge a changeset into the gathering flush; call `done` once it is durable."""
        gathering = self.gather()
        if changes.outgoing_removed:
            self.deletions.join_outgoing(gathering, changes.outgoing_removed)
        gathering.merge(changes)
        if changes.bodies:
            self.bodies.some = True
        if changes.dequeued_of:
            self.deletions.join_drops(gathering, changes.dequeued_of)
        gathering.done.append(done)
        self.joined += 1
        for client, number in changes.tokens.items():
            self._tokens.joined(client, (number,))
        self._see_to_flush(gathering, urgent)

    def gather(self) -> Flush:
        """Return the flush that changesets may join now.

        A caller that writes directly into it must not fail half-way, and must call
        `join_written` before anything else happens.
        """
        if self._fault is not None or self._closed:
            raise self._fault or StoreFault("the store is closed")
        gathering = self._gathering
        if (
            gathering.changesets >= self._options.flush_transactions
            or gathering.bytes >= self._options.flush_bytes
        ):
            gathering.urgent = True
            self._full.append(gathering)
            gathering = self._gathering = Flush()
        if not gathering.changesets:
            gathering.since = self._clock.monotonic()
        return gathering

    def join_written(
        self, done: Callable[[], None], client: ClientId | None, tokens: Sequence[int]
    ) -> None:
        """Count changesets written directly into the gathering flush.

        There is one for each token, or one in all without tokens.
        """
        gathering = self._gathering
        count = 1
        if client is not None:
            count = len(tokens)
            gathering.tokens.setdefault(client, []).extend(tokens)
            self._tokens.joined(client, tokens)
        gathering.changesets += count
        gathering.done.append(done)
        self.joined += count
        self._see_to_flush(gathering, True)

    def _see_to_flush(self, gathering: Flush, urgent: bool) -> None:
        if not self._start_due and self._writing is None:
            if urgent:
                self._start_due = True
                self._loop.call_soon(self._start)
            elif self._lazy is None:
                self._lazy = self._loop.call_later(
                    self._options.lazy.total_seconds(), self._lazy_over
                )
        if urgent:
            gathering.urgent = True

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` once every changeset that has joined is durable; immediately if all are."""
        if self.joined == self.confirmed:
            done()
        elif self._gathering.changesets:
            self._gathering.done.append(done)
        else:
            last = self._full[-1] if self._full else self._writing
            assert last is not None, "what has joined is gathering, full or being written"
            last.done.append(done)

    def redirect(self, endpoints: Container[EndpointKey], queue: QueueKey) -> None:
        """Redirect to another queue the endpoints' messages that are not yet being written."""
        self.shelves.moved()
        for flush in (*self._full, self._gathering):
            flush.enqueued = [
                row._replace(queue=queue) if row.endpoint in endpoints else row
                for row in flush.enqueued
            ]

    async def commit(self, changes: Changes) -> None:
        """Join the changeset to the gathering flush, and wait until it is durable."""
        future: asyncio.Future[None] = self._loop.create_future()

        def done() -> None:
            if not future.done():
                future.set_result(None)

        self.join(changes, done, True)
        await self._wait(future)

    async def _wait(self, future: "asyncio.Future[None]") -> None:
        """Wait for the future, or for the fault of the store."""
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    # Flushing.

    def _lazy_over(self) -> None:
        self._lazy = None
        self._start()

    def _start(self) -> None:
        """Hand the next flush to the writer, unless one is being written."""
        self._start_due = False
        if self._writing is not None or self._fault is not None or self._closed:
            return
        flush = self._full.popleft() if self._full else self._gathering
        if not flush.changesets and not self.deletions.needs_flushes:
            return
        if flush is self._gathering:
            self._gathering = Flush()
            if self._lazy is not None:
                self._lazy.cancel()
                self._lazy = None
        self._writing = flush
        flush.marks = self._numbers.marks()
        self.deletions.begin(flush)
        if flush.tokens:
            flush.client_rows += self._tokens.flush(flush.tokens, self._clock.utc())
        self._submit(flush)

    def _submit(self, flush: Flush) -> None:
        self._submitted_at = self._clock.monotonic()
        self._writer.write(Writing(flush, self._clock, self._failpoint), self._flushed)

    def _find_room(self, flush: Flush) -> None:
        """Keep a flush that found no room, and write it when there is room (REL-26).

        Meanwhile memory is ahead of the store, as it is during every flush.
        """
        if self._closing:
            self._fail(StoreFault(_GIVEN_UP))
            return
        wait = 0.0 if self._on_full() else self._options.full_retry.total_seconds()

        def again() -> None:
            if self._fault is None and not self._closed:
                # The room that folding the log frees may be enough.
                self._writer.submit(space.fold, self._searched)
                self._submit(flush)

        self._stalled = self._loop.call_later(wait, again)

    def _searched(self, _value: None, error: BaseException | None) -> None:
        """Handle the result of a fold to free room: only a bad file or disk is a fault (REL-5)."""
        if isinstance(error, sqlite3.Error | StoreFault) and not (is_full(error) or is_busy(error)):
            self._fail(as_fault(error, doing="a checkpoint of the store", known=False))

    def _report_no_room(self) -> None:
        """Report that a job found no room; the pipeline does not retry the job."""
        self._on_full()
        if self._stalled is None:
            self._on_room()

    def _flushed(self, written: Written | None, error: BaseException | None) -> None:
        if is_full(error) and self._writing is not None:
            self._find_room(self._writing)
            return
        if self._stalled is not None:
            self._stalled = None
            self._on_room()
        flush, self._writing = self._writing, None
        self.written += 1
        if error is not None or written is None or flush is None:
            known = not isinstance(error, CommitFailed | NotRecorded)
            error = error.__cause__ if isinstance(error, CommitFailed) else error
            self._fail(
                as_fault(error or AssertionError(), doing="writing to the store", known=known)
            )
            return
        hops = written.started - self._submitted_at + self._clock.monotonic() - written.ended
        self.confirmed += flush.changesets
        # First count and sweep the durable rows, then start the next flush, and only then call the
        # waiters: the writer works while the loop confirms.
        weight = flush.weight()
        self._checkpoints.log_has_grown(weight.pages, flush.piece_bytes)
        self.deletions.durable(flush, leaves_bodies=written.leaves_bodies)
        self._start_next()
        self.confirmations.confirm(flush)
        if not self._is_working():
            idle, self._idle = self._idle, []
            for future in idle:
                if not future.done():
                    future.set_result(None)
        self._measure(flush.changesets, weight.rows, written, hops)  # last: nothing waits for it

    def _start_next(self) -> None:
        """Start the next flush before this one is confirmed, so that the writer works meanwhile."""
        if self._full or self._gathering.urgent or self.deletions.needs_flushes:
            self._start()
        elif self._gathering.changesets and self._lazy is None:
            self._lazy = self._loop.call_later(self._options.lazy.total_seconds(), self._lazy_over)

    def _measure(self, changesets: int, rows: int, written: Written, hops: float) -> None:
        metrics = self.metrics
        metrics.flushes += 1
        metrics.changesets += changesets
        metrics.rows += rows
        self._observe("hop_us", int(hops * 1e6))
        took = int((written.ended - written.started) * 1e6)
        metrics.microseconds += took
        self._observe("flush_us", took)
        self._observe("commit_us", int((written.ended - written.committing) * 1e6))

    # Jobs that delete, between flushes.

    def _under_way(self) -> Iterator[Flush]:
        """Yield the flushes that are not durable yet."""
        if self._writing is not None:
            yield self._writing
        yield from self._full
        yield self._gathering

    def _has_bodies(self) -> bool:
        return any(flush.bodies for flush in self._under_way())

    def _drop_bodies(self, changes: Changes) -> None:
        """Join changes that disown bodies, after the bodies' pieces.

        If the store is closed, leave this to the next start.
        """
        if self._fault is None and not self._closed:
            self.join(changes, _nothing, True)

    @property
    def is_deleting(self) -> bool:
        """Whether rows of ended dialogs are being deleted, or a flush under way leaves some."""
        return self.deletions.is_under_way or any(one.leaves_rows for one in self._under_way())

    def _submit_deletion(
        self,
        job: Job[T],
        reported: Reported[T],
        *,
        doing: str = "a sweep of the store",
        writes: bool = True,
    ) -> None:
        """Submit a deletion job to the writer, between flushes.

        A job that finds no room is reported, and its caller tries again later. If the store is
        closed or has failed, the job is not run.
        """

        def done(value: T | None, error: BaseException | None) -> None:
            self.written += writes
            if is_full(error):
                self._report_no_room()
            elif error is not None:
                self._fail(as_fault(error, doing=doing, known=False))
            reported(value, error)

        if self._fault is None and not self._closed and not self._closing:
            self._writer.submit(job, done)

    def _fail(self, fault: StoreFault) -> None:
        """Stop for good, and report the fault once."""
        if self._fault is not None:
            return
        self._fault = fault
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_exception(fault)
        self._on_fault(fault)

    # Other work.

    async def run(self, job: Job[T], *, writes: bool = True) -> T:
        """Run a job alone on the writer; an SQL error is a fault of the store.

        `writes=False`: the job does not change the results of reads. `StoreFull`: there was no
        room; the job has done nothing, or only a part if it consists of several transactions.
        """
        if self._fault is not None or self._closed:
            raise self._fault or StoreFault("the store is closed")
        future: asyncio.Future[None] = self._loop.create_future()
        outcome: list[T] = []

        def reported(value: T | None, error: BaseException | None) -> None:
            self.written += writes
            if is_full(error):
                self._report_no_room()
                if not future.done():
                    future.set_exception(StoreFull())
            elif isinstance(error, sqlite3.Error | StoreFault):
                self._fail(as_fault(error, doing="a job on the store", known=False))
            elif error is not None and not future.done():
                future.set_exception(error)
            elif not future.done():
                outcome.append(cast("T", value))
                future.set_result(None)

        self._writer.submit(job, reported)
        await self._wait(future)
        return outcome[0]

    def breathe(self) -> None:
        """Handle a finished flush; sleep briefly if one has been with the writer for long."""
        self._writer.poll()
        if (
            self._writing is not None
            and self._writer.contends
            and self._clock.monotonic() - self._submitted_at > _SLOW
        ):
            time.sleep(_BREATH)

    async def settled(self, client: ClientId) -> None:
        """Wait until no token of the client is being written."""
        while not self._tokens.is_settled(client):
            if self._fault is not None:
                raise self._fault
            await self._wait(self.confirmations.settling(client))

    def sweep(self) -> int:
        """Begin to delete the messages noted as removed; return the number to be deleted."""
        count = self.deletions.sweep(is_writing=self._writing is not None)
        self._start()
        self.deletions.resume()
        return count

    def prune_clients(self, now: Instant) -> int:
        """Remove old clients with the next flush; return the number of removed clients."""
        forgotten, rows = self._tokens.prune(now)
        if forgotten:
            changes = Changes()
            self.join(changes, _nothing, False)
            self._gathering.clients_forgotten += forgotten
            self._gathering.client_rows += rows
        return len(forgotten)

    def now(self) -> Instant:
        """Return UTC by the store's clock."""
        return self._clock.utc()

    @property
    def oldest_unflushed_age(self) -> float:
        """Seconds since the oldest changeset that is not durable has joined; 0.0 = none."""
        oldest = self._writing or (self._full[0] if self._full else self._gathering)
        return self._clock.monotonic() - oldest.since if oldest.changesets else 0.0

    @property
    def backlog_bytes(self) -> int:
        """Bytes of bodies that are not durable yet."""
        writing = self._writing.bytes if self._writing else 0
        gathered = self._gathering.bytes
        if self._full:
            gathered += sum([flush.bytes for flush in self._full])
        return writing + gathered + self.bodies.waiting_bytes

    async def close(self) -> None:
        """Write all changesets that have joined, fold the log and close; after a fault only close.

        A flush that waits for room on the disk was never confirmed, and is given up.
        """
        self._closing = True
        if self._stalled is not None:
            self._stalled.cancel()
            self._fail(StoreFault(_GIVEN_UP))
        while self._is_working() or self._has_noted():
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            self._start()
            with suppress(StoreFault):  # it has been reported already
                await self._wait(future)
        if self._fault is None and not self._closed:
            # The next start folds it, or the fault has been reported.
            with suppress(StoreFull, StoreFault):
                await self.run(fold_and_cut)
            if self._fault is None:
                self._writer.close()
        self._closed = True

    def _is_working(self) -> bool:
        if self._fault is not None or self._closed:
            return False
        if self._writing is not None or self._full or self._gathering.changesets:
            return True
        return self.deletions.needs_flushes

    def _has_noted(self) -> bool:
        """Begin to sweep the noted messages; return whether there are any."""
        if self._fault is not None or self._closed:
            return False
        return self.deletions.sweep_all()

    def abandon(self) -> None:
        """Stop as in a crash; do nothing if the store is closed."""
        if self._closed:
            return
        self._closed = True
        if self._lazy is not None:
            self._lazy.cancel()
        self._writer.abandon()


def _nothing() -> None:
    """Do nothing: the changeset has no waiter."""
