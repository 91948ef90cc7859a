"""Store: the interface through which every other package reads and commits (design D2, D3, D11).

Reads:  one broker's file, on connections that only query.      Calls: the commit pipeline.
Never:  lets an SQL row or an SQL error leave the package, or confirms before the sync (REL-1,
        REL-4).
Fails:  a failing flush is reported once to `on_fault`; nothing is confirmed after it (REL-5).
"""

import asyncio
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar

import msgspec

from brokerd.clock import Clock, Instant
from brokerd.errors import StoreFault
from brokerd.ids import (
    BodyKey,
    ClientId,
    EndpointKey,
    IdSource,
    QueueKey,
)
from brokerd.storage import space
from brokerd.storage.backup import backup
from brokerd.storage.changes import (
    Changes,
)
from brokerd.storage.commits import CommitPipeline, Observe
from brokerd.storage.connections import Connection
from brokerd.storage.executors import Executor
from brokerd.storage.files.backup_place import check_place
from brokerd.storage.files.moved_files import place_of
from brokerd.storage.flush import Flush, no_fault
from brokerd.storage.loss_acceptance import AcceptedLoss, accepted_loss
from brokerd.storage.opening import (
    NewStore,
    Opened,
    StoreIdentity,
    Wanted,
    change_facts,
    read_epoch,
)
from brokerd.storage.options import Metrics, StoreOptions
from brokerd.storage.read_cache import ReadCache
from brokerd.storage.readers import Reader
from brokerd.storage.recovery import Recovered, read_recovered
from brokerd.storage.rows import dialog_owners, ended_dialogs, queues, references
from brokerd.storage.rows.audit import StoredAudit
from brokerd.storage.rows.catalog import Catalog, CatalogChanges, apply_changes, try_changes
from brokerd.storage.rows.credentials import StoredCredentials
from brokerd.storage.rows.dialogs import StoredEndpoints
from brokerd.storage.rows.events import StoredEvents
from brokerd.storage.rows.incomplete_messages import IncompleteMessages
from brokerd.storage.rows.known_brokers import Known
from brokerd.storage.rows.listings import Listings
from brokerd.storage.rows.message_counts import MessageCounts
from brokerd.storage.rows.paging import Page
from brokerd.storage.rows.references import Use
from brokerd.storage.rows.retention import RetainedMessages
from brokerd.storage.rows.stored_messages import QueuePage, StoredMessages
from brokerd.storage.rows.timers import StoredTimers
from brokerd.storage.rows.transmission import OutgoingMessages, OutgoingPage
from brokerd.storage.shelves import Shelf, Shelves
from brokerd.storage.writers import head_of, sync_head

__all__ = [
    "NewStore",
    "OutgoingPage",
    "Page",
    "QueuePage",
    "Recovered",
    "Store",
    "StoreIdentity",
    "StoreOptions",
    "TokenOutcome",
]

T = TypeVar("T")
TokenOutcome = Literal["committed", "not_committed", "unknown"]


class Parts(NamedTuple):
    """The parts of a `Store`; `Store.open` puts them together."""

    opened: Opened
    pipeline: CommitPipeline
    reader: Reader
    path: Path
    executor: Executor
    clock: Clock


def not_observed(name: str, microseconds: int) -> None:
    """Discard a histogram value; the default hook."""


def no_room() -> bool:
    """Return False: no room is held in reserve; the default for `on_full`."""
    return False


def nobody_waited() -> None:
    """Do nothing; the default for `on_room`."""


def _close_late(opening: "asyncio.Future[Opened]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opened = opening.result()
        opened.connection.close()
        opened.lock.release()


class Store:
    """The store of one broker, open in this process only (REL-16).

    Every method is called on the event loop. Reads see only committed changes and never wait for
    the writer.
    """

    def __init__(self, parts: Parts) -> None:
        self._opened = parts.opened
        self._pipeline = parts.pipeline
        self._confirmations = parts.pipeline.confirmations
        self._reader = parts.reader
        self._free = 0
        self._cache = ReadCache(lambda: parts.pipeline.written, parts.clock.monotonic)
        self._parts = parts
        self._numbers = parts.opened.numbers
        self._tokens = parts.opened.tokens
        self.identity: StoreIdentity = parts.opened.identity
        self.recovered: Recovered = parts.opened.recovered
        self.catalog: Catalog = parts.opened.catalog
        self.known: Known = parts.opened.known
        self.credentials: StoredCredentials = parts.opened.credentials
        """The principals and certificates that the store had when it was opened."""
        self.audit = StoredAudit(parts.reader)
        self.is_new = parts.opened.is_new
        """Whether this open has made the file."""
        self.loss_accepted_at = parts.opened.loss_accepted_at
        """When an administrator accepted a loss of the log; None = not since the store was last
        open."""
        self.has_new_history = parts.opened.has_new_history
        """Whether this open has found the server in a new history, and so the store has a new
        incarnation (REL-64)."""
        self.shelves = parts.pipeline.shelves
        """The tables for messages beyond windows."""
        skip = parts.pipeline.deletions.skip
        self.endpoints = StoredEndpoints(parts.reader, self._cache)
        """Dialog endpoints, group states and closing lines."""
        self.timers = StoredTimers(parts.reader, self.run)
        self.events = StoredEvents(parts.reader)
        self.outgoing = OutgoingMessages(parts.reader)
        """The transmission queue."""
        self.retained = RetainedMessages(parts.reader)
        self.messages = StoredMessages(parts.reader, shelves=self.shelves, skip=skip)
        """Messages that wait for local services."""
        self.message_counts = MessageCounts(parts.reader, shelves=self.shelves, skip=skip)
        self.incomplete = IncompleteMessages(parts.reader)
        self.count_owned = partial(dialog_owners.count, parts.reader)
        """Returns the number of dialogs that a user or peer has begun (REL-45)."""
        self.listings = Listings(
            parts.reader,
            taken=lambda: parts.pipeline.shelves.taken,
            ended=skip.ended,
        )
        """Rows for views."""

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        ids: IdSource,
        clock: Clock,
        executor: Executor,
        on_fault: Callable[[StoreFault], None],
        options: StoreOptions | None = None,
        create: NewStore | None = None,
        name: str | None = None,
        fault: Callable[[str], None] | None = None,
        observe: Observe = not_observed,
        on_full: Callable[[], bool] = no_room,
        on_room: Callable[[], None] = nobody_waited,
    ) -> Self:
        """Lock, check and upgrade the file, and count the open (epoch + 1).

        With `create`, a missing file is made, whole or not at all. With `name`, the file must be
        the store of the broker of that name. After `StoreLocked`, `StoreDamaged` or `StoreVersion`
        the file is unchanged.

        `on_fault` is called at most once, on the loop, when writing has failed; the daemon then
        stops (REL-5). `on_full` is called each time a write found no room, and returns whether
        there may be room now; the write is repeated until it succeeds, and then `on_room` is called
        (REL-26).
        """
        chosen = options or StoreOptions()
        opening = asyncio.ensure_future(
            executor.open(path, Wanted(ids, clock, create, name, fault or no_fault))
        )
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread continues: close the file that it opens
            opening.add_done_callback(_close_late)
            raise
        pipeline = CommitPipeline(
            writer=executor.writer(opened.connection, path),
            clock=clock,
            options=chosen,
            numbers=opened.numbers,
            tokens=opened.tokens,
            shelves=Shelves(
                size=chosen.shelf_messages,
                size_bytes=chosen.shelf_bytes,
                found=[Shelf(*one) for one in opened.recovered.shelves],
                has_others=opened.recovered.has_others,
                coming_order=lambda: opened.numbers.next_queuing_order,
            ),
            on_fault=on_fault,
            fault=fault,
            observe=observe,
            on_full=on_full,
            on_room=on_room,
            some_bodies=opened.some_bodies,
            next_body_key=opened.next_body_key,
            dropped=opened.recovered.dropped,
        )
        return cls(Parts(opened, pipeline, executor.reader(path, clock), path, executor, clock))

    # Numbers that are never used twice.

    def next_endpoint_key(self) -> EndpointKey:
        """Return a key for a new endpoint."""
        numbers = self._numbers
        number = numbers.next_endpoint_key
        numbers.next_endpoint_key = number + 1
        return EndpointKey(number)

    def next_queuing_order(self) -> int:
        """Return a queuing order above all earlier ones (RCV-37)."""
        numbers = self._numbers
        number = numbers.next_queuing_order
        numbers.next_queuing_order = number + 1
        return number

    def next_transmission_order(self) -> int:
        """Return a transmission order above all earlier ones."""
        numbers = self._numbers
        number = numbers.next_transmission_order
        numbers.next_transmission_order = number + 1
        return number

    def next_body_key(self) -> BodyKey:
        """Return a key for the body of a message that arrives in pieces."""
        return self._pipeline.bodies.next_key()

    # Writing.

    async def keep(self, body: bytes, piece_size: int) -> BodyKey:
        """Store a large body in pieces, ahead of its message; return its key once all are synced.

        Each flush writes one piece. The body has no owner until a changeset names one;
        `discard_bodies` gives the body up.
        """
        return await self._pipeline.bodies.keep(body, piece_size)

    def discard_bodies(self, keys: Sequence[BodyKey]) -> None:
        """Delete bodies stored by `keep` that no changeset has given to a message."""
        self._pipeline.bodies.discard(keys)

    async def replace_body(self, order: int, body: bytes | None, stored: bytes | None) -> None:
        """Replace the body and the hash of a waiting message (PBT-3)."""
        await self._pipeline.run(
            lambda connection: queues.replace_body(connection, order, body, stored)
        )
        self._pipeline.bodies.left()

    def join(self, changes: Changes, done: Callable[[], None], *, urgent: bool = True) -> None:
        """Add a changeset to the gathering flush; from then on the store owns the changeset.

        `done` is called on the loop once the changes are synced, in the order of joining, or never
        if the store fails. A changeset that is not urgent starts no flush: it waits for an urgent
        one, at most `options.lazy`. After a fault: `StoreFault`.
        """
        self._pipeline.join(changes, done, urgent)

    def gather(self) -> Flush:
        """Return the gathering flush, for changesets that are written directly into it.

        This is for the commonest changeset only: the caller must not fail half-way, and calls
        `join_written` before anything else happens. After a fault: `StoreFault`.
        """
        return self._pipeline.gather()

    def accepted_loss(self) -> AcceptedLoss | None:
        """Return the loss that an administrator accepted for this store (REL-40).

        None: no loss, or the file that recorded it in the store's directory was removed.
        """
        return accepted_loss(self.path, self.identity.incarnation)

    def join_written(
        self,
        done: Callable[[], None],
        client: ClientId | None = None,
        tokens: Sequence[int] = (),
    ) -> None:
        """Complete changesets written directly into the gathering flush: one per token, or one.

        `done`: as for `join`.
        """
        self._pipeline.join_written(done, client, tokens)

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` once every changeset that has joined is durable; immediately if all are."""
        self._pipeline.after(done)

    def behind(self, call: Callable[[], None]) -> None:
        """Call `call` after the flush that is being confirmed; immediately if none is.

        So `call` can choose among everything that became durable with the flush.
        """
        self._confirmations.behind(call)

    def soon(self, call: Callable[[], None]) -> None:
        """Call `call` on the loop's next turn, or right after the flush that is being confirmed."""
        self._confirmations.soon(call)

    async def commit(self, changes: Changes) -> None:
        """Join the changeset, and return when it is durable.

        `StoreFault`: it is unknown whether the changeset is durable.
        """
        await self._pipeline.commit(changes)

    async def apply_catalog(self, changes: CatalogChanges) -> Catalog:
        """Change the catalog, all or nothing; return the new catalog, which is then `self.catalog`.

        Keys of new queues and services are assigned here. `ObjectsRefused`: a named object does not
        exist or is still in use; nothing was changed (design D9).
        """
        before = self.catalog.services
        self.catalog = await self._pipeline.run(
            lambda connection: apply_changes(connection, changes)
        )
        if any(one.queue != before.get(one.name, one).queue for one in changes.services):
            self.shelves.moved()
        if changes.options:
            self.identity = msgspec.structs.replace(self.identity, **changes.options)
        return self.catalog

    async def change_identity(self, **facts: object) -> None:
        """Change facts in `identity`, by name; the change is durable when this returns."""
        await self._pipeline.run(lambda connection: change_facts(connection, facts))
        self.identity = msgspec.structs.replace(self.identity, **facts)

    async def epoch_on_disk(self) -> int:
        """Return the epoch in the file; it differs from `identity` if another process opened it."""
        return await self._pipeline.run(read_epoch)

    @property
    def path(self) -> Path:
        """The path of the file when it was opened."""
        return self._parts.path

    def moved(self) -> StoreFault | None:
        """Return the fault to stop with if the file, its log or the log's index was moved (FD-9).

        None: all are in place. A log that was removed has been saved in the store's directory by
        then.
        """
        place = place_of(self._opened.connection)
        return place.fault() if place is not None else None

    @property
    def is_head_synced(self) -> bool:
        """Whether the record of the log's confirmed position is synced (REL-39)."""
        head = head_of(self._opened.connection)
        return head is None or head.is_synced

    async def sync_head(self) -> None:
        """Sync the record of the log's head, between two flushes."""
        await self._pipeline.run(sync_head, writes=False)

    async def recover_again(self) -> None:
        """Read `recovered` again, because objects were changed after the start read it."""
        self.recovered = await self._pipeline.run(read_recovered)

    async def try_catalog(self, changes: CatalogChanges) -> Catalog:
        """Return the catalog that `apply_catalog` would make, or raise its refusal."""
        return await self._pipeline.run(lambda connection: try_changes(connection, changes))

    async def note_owners(self, owned: Sequence[tuple[EndpointKey, str]]) -> None:
        """Write the owners of dialogs (REL-45)."""
        job = partial(dialog_owners.note, owned=owned)
        await self._pipeline.run(job, writes=False)

    def redirect(self, endpoints: Container[EndpointKey], queue: QueueKey) -> None:
        """Redirect to another queue the messages of these endpoints that are not yet being written.

        Messages that are written, or being written, are moved by a call of `apply_catalog`, which
        must follow immediately.
        """
        self._pipeline.redirect(endpoints, queue)

    async def run(self, job: Callable[[Connection], T], *, writes: bool = True) -> T:
        """Run a job alone on the writer's connection, between two flushes (maintenance).

        `writes=False`: it does not change the results of other reads.
        """
        return await self._pipeline.run(job, writes=writes)

    async def backup(
        self,
        target: Path,
        *,
        not_in: Collection[Path] = (),
        below: Sequence[Path] | None = None,
    ) -> int:
        """Copy the committed state to a new file, during other work; return its size (MAN-11).

        `not_in`: directories of stores. `below`: the only directories below which the copy may be
        written, None = anywhere (SX-22). `InvalidArgument`: it may not be written to `target`.
        """

        def check_and_copy() -> int:
            if below is not None:
                check_place(target, below)
            return backup(self._parts.path, target, not_in=not_in)

        return await self._parts.executor.call(check_and_copy)

    def breathe(self) -> None:
        """Confirm a finished flush; yield the interpreter lock to the writer thread (D3).

        Readers of sockets call this once per socket read, before anything else: it starts the next
        flush, and sleeps 0.1 ms if a flush has been with the writer for more than 2 ms.
        """
        self._pipeline.breathe()

    async def close(self) -> None:
        """Write all changesets that have joined, fold the log into the file, release the lock."""
        try:
            await self._pipeline.close()
        finally:
            await self._reader.close()
            self._opened.lock.release()

    async def abandon(self) -> None:
        """Stop as in a crash: lose uncommitted changes, call no more `done`, release the lock."""
        self._pipeline.abandon()
        await self._reader.close()
        self._opened.lock.release()

    @property
    def oldest_unflushed_age(self) -> float:
        """Seconds since the oldest changeset that is not durable has joined; 0.0 = none (D3)."""
        return self._pipeline.oldest_unflushed_age

    @property
    def gathering(self) -> int:
        """Serial number of the next changeset to join; compare with `durable`."""
        return self._pipeline.joined + 1

    @property
    def durable(self) -> int:
        """Serial number of the latest durable changeset; all earlier ones are durable, too."""
        return self._pipeline.confirmed

    @property
    def backlog_bytes(self) -> int:
        """Bytes of bodies that have joined and are not durable yet."""
        return self._pipeline.backlog_bytes

    @property
    def metrics(self) -> Metrics:
        """Counters since the store was opened."""
        return self._pipeline.metrics

    # Commit tokens (REL-2).

    def token_outcome(self, client: ClientId, number: int) -> TokenOutcome:
        """Return the outcome of a commit.

        "unknown": the commit is still being written (see `settled`), or no longer remembered.
        Callers check this before a changeset with a token joins: a number that is already committed
        must not join again.
        """
        return self._tokens.outcome(client, number, self._pipeline.now())

    def highest_token(self, client: ClientId) -> int:
        """Return the client's highest number, being written or durable; -1 = none."""
        return self._tokens.highest(client)

    async def settled(self, client: ClientId) -> None:
        """Wait until no changeset with a token of this client is being written."""
        await self._pipeline.settled(client)

    def sweep_left(
        self, outgoing: Sequence[ended_dialogs.LeftOutgoing], retained: Sequence[EndpointKey]
    ) -> None:
        """Delete the remaining rows of ended dialogs, some at a time (REL-36)."""
        self._pipeline.deletions.sweep_left(outgoing, retained)

    @property
    def is_deleting(self) -> bool:
        """Whether rows that are no longer needed are still to be deleted from the file."""
        return self._pipeline.is_deleting

    def sweep(self) -> int:
        """Begin to delete received messages, some with each flush; return the number to delete."""
        return self._pipeline.sweep()

    async def reclaim(self) -> int:
        """Give the file system the pages free since the last call; return the number of pages.

        At most `space.MOST` pages, in steps between which flushes are written (MAN-13).
        """
        free = await self._cache.answer("free pages", self._free_pages)
        spare, self._free = min(free, self._free, space.MOST), free
        given = 0
        while given < spare:
            step = min(space.STEP, spare - given)
            count = await self._pipeline.run(partial(space.give_back, pages=step))
            if not count:
                break
            given += count
        if given:
            await self._pipeline.run(space.fold)
            self._free = await self._free_pages()
        return given

    @property
    def has_nothing_free(self) -> bool:
        """Whether the cache shows, without a read, that `reclaim` would free no page."""
        return not self._free and self._cache.known("free pages") == (0,)

    async def _free_pages(self) -> int:
        return await self._pipeline.run(space.free_pages, writes=False)

    async def fold(self) -> None:
        """Fold the log into the file, as far as readers allow. `StoreFull`: no room on the disk."""
        await self._pipeline.run(space.fold)

    def prune_clients(self, now: Instant) -> int:
        """Remove clients idle for 24 h, and the oldest above 100,000; return the number removed."""
        return self._pipeline.prune_clients(now)

    async def count_uses(self, those: Sequence[Use]) -> list[int]:
        """Return the number of open dialogs for each use, in the given order (OBJ-37, OBJ-38)."""
        return await references.count(self._reader, those)

    @property
    def coming_order(self) -> int:
        """The next unused queuing order."""
        return self._numbers.next_queuing_order
