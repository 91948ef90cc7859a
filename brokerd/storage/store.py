"""Store: the seam that every other package sees: read this, commit that (design D2, D3, D11).

Reads:  one broker's file, on connections that only query.      Calls: the commit pipeline.
Never:  lets an SQL row or an SQL error out, or confirms before the sync (REL-1, REL-4).
Fails:  a failing flush is told once to `on_fault`; nothing is confirmed after it (REL-5).
"""

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar

import msgspec
from sqlalchemy import text

from brokerd.clock import Clock, Instant
from brokerd.errors import StoreFault
from brokerd.ids import (
    BodyKey,
    ClientId,
    ConversationId,
    EndpointKey,
    GroupId,
    Handle,
    IdSource,
    NotificationKey,
    QueueKey,
)
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.storage import (
    dialogs,
    events,
    files,
    leftovers,
    queues,
    retention,
    space,
    timers,
    transmission,
    uses,
)
from brokerd.storage.backup import backup
from brokerd.storage.backup_place import check_place
from brokerd.storage.catalog import Catalog, CatalogChanges, apply_changes, try_changes
from brokerd.storage.changes import (
    Changes,
    DialogLogRow,
    EventRow,
    OutgoingRow,
    QueueRow,
    RetainedRow,
)
from brokerd.storage.commits import CommitPipeline, Metrics, Observe, StoreOptions
from brokerd.storage.engine import Connection, Executor, Reader
from brokerd.storage.files import NewStore, Opened, Recovered, StoreIdentity
from brokerd.storage.flush import Flush, no_fault
from brokerd.storage.known import Known
from brokerd.storage.listings import Listings
from brokerd.storage.loss_acceptance import AcceptedLoss, accepted_loss
from brokerd.storage.paging import Page
from brokerd.storage.places import place_of
from brokerd.storage.retention import Kept
from brokerd.storage.shelves import Shelf, Shelves
from brokerd.storage.timers import Timer
from brokerd.storage.unchanged import Unchanged
from brokerd.storage.uses import Use
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
QueuePage = Page[QueueRow]
OutgoingPage = Page[OutgoingRow]


class Parts(NamedTuple):
    """What a `Store` is made of; `Store.open` puts it together."""

    opened: Opened
    pipeline: CommitPipeline
    reader: Reader
    path: Path
    executor: Executor


def not_observed(name: str, microseconds: int) -> None:
    """Histogram hook where nobody measures."""


def no_room() -> bool:
    """What is said where nobody holds room back."""
    return False


def nobody_waited() -> None:
    """What is done where nobody asks."""


def _close_late(opening: "asyncio.Future[Opened]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opened = opening.result()
        opened.connection.close()
        opened.lock.release()


def _is_ahead(known: tuple[Instant | None] | None, now: Instant) -> bool:
    return known is not None and (known[0] is None or known[0] > now)


class Store:
    """One broker's store, open in this process only (REL-16).

    Every call is made on the event loop. Reads see what is committed and never wait for the writer.
    """

    def __init__(self, parts: Parts) -> None:
        self._opened = parts.opened
        self._pipeline = parts.pipeline
        self._reader = parts.reader
        self._free = 0
        self._unchanged = Unchanged(lambda: parts.pipeline.written)
        self._parts = parts
        self._numbers = parts.opened.numbers
        self._tokens = parts.opened.tokens
        self.identity: StoreIdentity = parts.opened.identity
        self.recovered: Recovered = parts.opened.recovered
        self.catalog: Catalog = parts.opened.catalog
        self.known: Known = parts.opened.known
        self.is_new = parts.opened.is_new
        """Whether the file was made by this open."""
        self.loss_accepted_at = parts.opened.loss_accepted_at
        """When an administrator accepted a loss of its log, if that was since it was open last."""
        self.shelves = parts.pipeline.shelves
        """Where messages beyond windows go."""
        self.listings = Listings(
            parts.reader,
            taken=lambda: parts.pipeline.shelves.taken,
            ended=parts.pipeline.skip.ended,
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
        """Take the lock, check the file, bring it to this version, count the open (epoch + 1).

        With `create`, a file that is not there is made, whole or not at all. With `name`, the file
        must be the store of the broker of that name. `StoreLocked`,
        `StoreDamaged`, `StoreVersion`: the file is as it was. `on_fault` hears at most once, on
        the loop, that writing failed; the daemon then stops (REL-5). `on_full` hears each time a
        write found no room, and says whether there may be some now; what was being written is
        tried until it is, and `on_room` hears of that (REL-26).
        """
        chosen = options or StoreOptions()
        opening = asyncio.ensure_future(
            executor.call(
                lambda: files.open_file(
                    path,
                    ids=ids,
                    clock=clock,
                    create=create,
                    name=name,
                    fault=fault or no_fault,
                    kept=executor.kept(path),
                )
            )
        )
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:  # a thread goes on: what it opens is closed again
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
        return cls(Parts(opened, pipeline, executor.reader(path, clock), path, executor))

    # Numbers that are never used twice.

    def next_endpoint_key(self) -> EndpointKey:
        """A key for a new endpoint."""
        numbers = self._numbers
        number = numbers.next_endpoint_key
        numbers.next_endpoint_key = number + 1
        return EndpointKey(number)

    def next_queuing_order(self) -> int:
        """A queuing order, above all given before (RCV-37)."""
        numbers = self._numbers
        number = numbers.next_queuing_order
        numbers.next_queuing_order = number + 1
        return number

    def next_transmission_order(self) -> int:
        """A transmission order, above all given before."""
        numbers = self._numbers
        number = numbers.next_transmission_order
        numbers.next_transmission_order = number + 1
        return number

    def next_body_key(self) -> BodyKey:
        """A key for the body of a message that arrives in pieces."""
        return self._pipeline.bodies.next_key()

    # Writing.

    async def keep(self, body: bytes, piece_size: int) -> BodyKey:
        """Store a large body in pieces, for a message to come; its key once all of it is synced.

        A piece goes with each flush. It belongs to nobody until a changeset says whose it is;
        `let_go` says that none will."""
        return await self._pipeline.bodies.keep(body, piece_size)

    def let_go(self, keys: Sequence[BodyKey]) -> None:
        """Delete bodies that were kept and that no changeset took."""
        self._pipeline.bodies.let_go(keys)

    async def replace_body(self, order: int, body: bytes | None, stored: bytes | None) -> None:
        """Give a waiting message another body and its hash (PBT-3)."""
        await self._pipeline.run(
            lambda connection: queues.replace_body(connection, order, body, stored)
        )
        self._pipeline.bodies.left()

    def join(self, changes: Changes, done: Callable[[], None], *, urgent: bool = True) -> None:
        """Add a changeset to the flush that gathers; it belongs to the store from here on.

        `done` is called on the loop once the changes are synced, in the order of joining, or never
        if the store fails. A changeset that is not urgent starts no flush: it waits for an urgent
        one, at most `options.lazy`. After a fault: `StoreFault`.
        """
        self._pipeline.join(changes, done, urgent)

    def gather(self) -> Flush:
        """The flush that gathers, for changesets that are written straight into it.

        For the commonest changeset only: who does so must not fail half-way, and calls
        `joined_straight` before anything else happens. After a fault: `StoreFault`."""
        return self._pipeline.gather()

    def accepted_loss(self) -> AcceptedLoss | None:
        """The loss that an administrator accepted for this store, for as long as the file beside
        it says so (REL-40)."""
        return accepted_loss(self.path, self.identity.incarnation)

    def joined_straight(
        self,
        done: Callable[[], None],
        client: ClientId | None = None,
        tokens: Sequence[int] = (),
    ) -> None:
        """Such changesets are complete, one for each token or one without; `done` as for `join`."""
        self._pipeline.joined_straight(done, client, tokens)

    def after(self, done: Callable[[], None]) -> None:
        """Call `done` once all that has joined so far is durable; at once where it is."""
        self._pipeline.after(done)

    def behind(self, call: Callable[[], None]) -> None:
        """Call it when all of the flush that is being confirmed has been; at once if none is.

        For what is chosen among all that becomes durable in one moment."""
        self._pipeline.behind(call)

    def soon(self, call: Callable[[], None]) -> None:
        """Call it soon: on the loop's next turn, or as soon as all of the flush that is being
        confirmed has been."""
        self._pipeline.soon(call)

    async def commit(self, changes: Changes) -> None:
        """Join, and return when the changes are durable. `StoreFault`: nobody knows if they are."""
        await self._pipeline.commit(changes)

    async def apply_catalog(self, changes: CatalogChanges) -> Catalog:
        """Make the catalog so, all or nothing, and return it whole; `self.catalog` is it too.

        Keys of new queues and services are assigned here. `ObjectsRefused`: something named is not
        there, or is still in use; nothing was changed (design D9).
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
        """Change facts of `identity`, by their names; durable when this returns."""
        await self._pipeline.run(lambda connection: files.change_facts(connection, facts))
        self.identity = msgspec.structs.replace(self.identity, **facts)

    async def epoch_on_disk(self) -> int:
        """The epoch in the file; if `identity` has another one, somebody else has opened it."""
        return await self._pipeline.run(files.epoch_of)

    @property
    def path(self) -> Path:
        """Where its file is, or was when it was opened."""
        return self._parts.path

    def moved(self) -> StoreFault | None:
        """What to stop with where its file, its log or the log's index is not in its place (FD-9).

        A log that is gone has been saved beside its place then."""
        place = place_of(self._opened.connection)
        return place.fault() if place is not None else None

    @property
    def is_head_synced(self) -> bool:
        """Whether it is durable how far the log was confirmed (REL-39)."""
        head = head_of(self._opened.connection)
        return head is None or head.is_synced

    async def sync_head(self) -> None:
        """Make that durable, between two flushes."""
        await self._pipeline.look(sync_head)

    async def look_again(self) -> None:
        """Learn anew what a start finds (`recovered`), after objects changed before it."""
        self.recovered = await self._pipeline.run(files.recovered)

    async def try_catalog(self, changes: CatalogChanges) -> Catalog:
        """The catalog as `apply_catalog` would make it, or its refusal; nothing is changed."""
        return await self._pipeline.run(lambda connection: try_changes(connection, changes))

    def redirect(self, endpoints: Container[EndpointKey], queue: QueueKey) -> None:
        """Let messages of these endpoints that have joined and are not written go to a queue.

        What is written, or being written, is moved by an `apply_catalog` that follows at once."""
        self._pipeline.redirect(endpoints, queue)

    async def run(self, job: Callable[[Connection], T]) -> T:
        """Run a job alone on the writer's connection, between two flushes (maintenance)."""
        return await self._pipeline.run(job)

    async def backup(
        self,
        target: Path,
        *,
        not_in: Collection[Path] = (),
        below: Sequence[Path] | None = None,
    ) -> int:
        """Write what is committed to a new file, beside all other work; its size (MAN-11).

        `not_in`: directories of stores. `below`: the only directories below which it may be
        written, None = anywhere (SX-22). `InvalidArgument`: it may not be written there."""

        def check_and_copy() -> int:
            if below is not None:
                check_place(target, below)
            return backup(self._parts.path, target, not_in=not_in)

        return await self._parts.executor.call(check_and_copy)

    def breathe(self) -> None:
        """Give the writer thread its next flush, and its chance at the interpreter lock (D3).

        To be called once per socket read, before anything else, by whoever reads sockets: confirms
        a flush that has come back, sleeps 0.1 ms when one has been out for more than 2 ms.
        """
        self._pipeline.breathe()

    async def close(self) -> None:
        """Write what has gathered, fold the log into the file, give up the lock."""
        try:
            await self._pipeline.close()
        finally:
            await self._reader.close()
            self._opened.lock.release()

    async def abandon(self) -> None:
        """Crash: what is not committed is lost, no `done` is called any more, the lock is free."""
        self._pipeline.abandon()
        await self._reader.close()
        self._opened.lock.release()

    @property
    def oldest_unflushed_age(self) -> float:
        """Seconds since the oldest changeset that is not durable joined; 0.0 = none (D3)."""
        return self._pipeline.oldest_unflushed_age

    @property
    def gathering(self) -> int:
        """Serial number of the next changeset to join; compare with `durable`."""
        return self._pipeline.joined + 1

    @property
    def durable(self) -> int:
        """Serial number of the latest changeset that is durable, and all before it."""
        return self._pipeline.confirmed

    @property
    def backlog_bytes(self) -> int:
        """Bytes of bodies that joined and are not durable yet."""
        return self._pipeline.backlog_bytes

    @property
    def metrics(self) -> Metrics:
        """Counters since the store was opened."""
        return self._pipeline.metrics

    # Commit tokens (REL-2).

    def token_outcome(self, client: ClientId, number: int) -> TokenOutcome:
        """What became of a commit. Unknown: still being written (see `settled`), or forgotten.

        Who joins a changeset with a token asks this first: a number already committed must not
        join again.
        """
        return self._tokens.outcome(client, number, self._pipeline.now())

    def highest_token(self, client: ClientId) -> int:
        """The highest number this client ever committed here, -1 = none."""
        return self._tokens.highest(client)

    async def settled(self, client: ClientId) -> None:
        """Return when no changeset with a token of this client is being written."""
        await self._pipeline.settled(client)

    async def retained_left(self) -> list[EndpointKey]:
        """Conversations that have ended of which something is retained still."""
        rows = await self._reader.rows(text(leftovers.FIND_RETAINED))
        return [EndpointKey(row[0]) for row in rows]

    def sweep_left(
        self, outgoing: Sequence[leftovers.LeftOutgoing], retained: Sequence[EndpointKey]
    ) -> None:
        """Delete what is left of dialogs that are over, some rows at a time (REL-36)."""
        self._pipeline.sweep_left(outgoing, retained)

    @property
    def is_deleting(self) -> bool:
        """Whether rows that nobody needs may still be in the file, and are being deleted."""
        return self._pipeline.is_deleting

    def sweep(self) -> int:
        """Delete from the file what was received since; how many messages. Bounded by options."""
        return self._pipeline.sweep()

    async def reclaim(self) -> int:
        """Give back to the file system what has been free since the last call; how many pages.

        At most `space.MOST` of them, in steps between which flushes are written (MAN-13)."""
        free = await self._unchanged.answer("free pages", self._free_pages)
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
        """Whether `reclaim` would give back nothing, as is known without a look."""
        return not self._free and self._unchanged.known("free pages") == (0,)

    async def _free_pages(self) -> int:
        return await self._pipeline.look(space.free_pages)

    async def fold(self) -> None:
        """Give the room of the log back, as far as readers allow. `StoreFull`: it needs some."""
        await self._pipeline.run(space.fold)

    def prune_clients(self, now: Instant) -> int:
        """Forget clients not heard of for 24 h, and the oldest above 100,000; how many."""
        return self._pipeline.prune_clients(now)

    # Dialog endpoints.

    async def endpoint_by_handle(self, handle: Handle) -> DialogEndpoint | None:
        """The endpoint with this handle."""
        return await dialogs.by_handle(self._reader, handle)

    async def endpoint_by_conversation(
        self, conversation_id: ConversationId, is_initiator: bool
    ) -> DialogEndpoint | None:
        """That side of the conversation."""
        return await dialogs.by_conversation(self._reader, conversation_id, is_initiator)

    async def endpoints_named(
        self, handles: Sequence[Handle], conversations: Sequence[ConversationId]
    ) -> list[DialogEndpoint]:
        """Those with one of the handles, and both sides of the conversations; many at a time."""
        return await dialogs.named(self._reader, handles, conversations)

    async def endpoints_by_key(
        self, keys: Iterable[EndpointKey]
    ) -> dict[EndpointKey, DialogEndpoint]:
        """Those of the endpoints that exist."""
        return await dialogs.by_key(self._reader, keys)

    async def endpoints_of_group(self, group: GroupId) -> list[DialogEndpoint]:
        """The endpoints of a conversation group, closed ones included."""
        return await dialogs.by_group(self._reader, group)

    async def keys_of_groups(self, groups: Sequence[GroupId]) -> dict[GroupId, list[EndpointKey]]:
        """The endpoints of many groups, closed ones included; only groups that have any."""
        return await dialogs.keys_of_groups(self._reader, groups)

    async def expired(self, now: Instant, limit: int) -> list[DialogEndpoint]:
        """Endpoints whose lifetime is over, not closed and not in error; oldest first."""
        return await dialogs.expired(self._reader, now, limit)

    def nothing_expired(self, now: Instant) -> bool:
        """Whether it is known without a look that no lifetime is over."""
        return _is_ahead(self._unchanged.known("first expiry"), now)

    async def first_expiry(self) -> Instant | None:
        """When the first lifetime that still counts is over; None = there is none."""
        return await self._unchanged.answer(
            "first expiry", partial(dialogs.first_expiry, self._reader)
        )

    @property
    def is_settled(self) -> bool:
        """Whether it is known without a look that `unsettled` has none."""
        return self._unchanged.known("unsettled") == ([],)

    async def unsettled(self, after: EndpointKey, limit: int) -> list[DialogEndpoint]:
        """Closed target endpoints that have not heard FIRST_ACKED, by key (DLP-57)."""
        read = partial(dialogs.unsettled, self._reader, after, limit)
        return await (self._unchanged.answer("unsettled", read) if after < 0 else read())

    async def purgeable(self, now: Instant, limit: int) -> list[EndpointKey]:
        """Closed endpoints whose guard time is over (DLP-54), oldest first."""
        return await dialogs.purgeable(self._reader, now, limit)

    def nothing_purgeable(self, now: Instant) -> bool:
        """Whether it is known without a look that no guard time is over."""
        return _is_ahead(self._unchanged.known("first purge"), now)

    async def first_purge(self) -> Instant | None:
        """When the first guard time of a closed endpoint is over; None = there is none."""
        return await self._unchanged.answer(
            "first purge", partial(dialogs.first_purge, self._reader)
        )

    async def count_uses(self, those: Sequence[Use]) -> list[int]:
        """How many open dialogs each of these needs or ends, in their order (OBJ-37, OBJ-38)."""
        return await uses.count(self._reader, those)

    async def count_by_state(self) -> dict[str, int]:
        """How many endpoints are in each state."""
        return await dialogs.count_by_state(self._reader)

    async def lingering(self, since: Instant, limit: int) -> list[dialogs.Lingering]:
        """Endpoints in DI, DO or ER since then or longer, counted; reads all of them (PBT-5)."""
        return await dialogs.lingering(self._reader, since, limit)

    async def conversation_endpoints(
        self, limit: int, after: EndpointKey | None = None
    ) -> list[DialogEndpoint]:
        """Endpoints by key, for views."""
        return await dialogs.listed(self._reader, limit, after)

    async def group_state(self, group: GroupId) -> bytes | None:
        """State the application keeps for the group (GRP-22)."""
        return await dialogs.group_state(self._reader, group)

    async def dialog_log(self, limit: int) -> list[DialogLogRow]:
        """Rows of closing lines the metrics log does not have yet (design D16)."""
        return await dialogs.log_lines(self._reader, limit)

    # Conversation timers.

    async def timers_due(self, now: Instant, limit: int, after: Timer | None) -> list[Timer]:
        """Timers that are due and not held, oldest first, behind `after`."""
        return await timers.due(self._reader, now, limit, after)

    async def first_timer(self) -> Instant | None:
        """When the first timer that is not held is due; None = there is none."""
        return await timers.first_due(self._reader)

    async def timers_of(self, endpoint: EndpointKey) -> list[Timer]:
        """The timers of an endpoint."""
        return await timers.of(self._reader, endpoint)

    async def hold_timers(self, found: list[Timer]) -> None:
        """Leave these out until `release_timers` (DLG-41)."""
        await self._pipeline.run(lambda connection: timers.hold(connection, found))

    async def release_timers(self) -> None:
        """Look at those that were held again."""
        await self._pipeline.run(timers.release)

    # Retained messages (RCV-31).

    async def retained(self, endpoint: EndpointKey) -> Kept:
        """How much of a conversation is retained."""
        return await retention.kept(self._reader, endpoint)

    async def browse_retained(
        self, queue: QueueKey, limit: int, after_order: int = -1
    ) -> list[RetainedRow]:
        """Retained messages of a queue by queuing order."""
        return await retention.browse(self._reader, queue, limit, after_order)

    async def retained_counts(self) -> dict[QueueKey, int]:
        """How many messages each queue retains."""
        return await retention.counts(self._reader)

    # Event notifications.

    async def event_dialogs(self) -> dict[Handle, NotificationKey]:
        """The dialogs that are open for event notifications (EVT-4), by handle."""
        return await events.dialogs(self._reader)

    async def undelivered_events(self) -> list[EventRow]:
        """Events that no subscriber was told yet, in their order (PBT-15)."""
        return await events.undelivered(self._reader)

    # Queues.

    async def page_messages(
        self, queue: QueueKey, priority: int, after_order: int, limit: int, max_bytes: int
    ) -> QueuePage:
        """Messages of one priority that were written past the window (paged = 1), oldest first.

        At most `limit`, and no further one once their bodies reach `max_bytes`. A row with a wrong
        body comes in `damaged`, not in `rows` (REL-6).
        """
        return await queues.page(
            self._reader,
            queue,
            priority,
            after_order,
            places=self.shelves.of(queue),
            limit=limit,
            max_bytes=max_bytes,
            skip=self._pipeline.skip,
        )

    async def page_messages_of(
        self,
        endpoint: EndpointKey,
        limit: int,
        max_bytes: int,
        after: tuple[int, int] | None = None,
        queue: QueueKey | None = None,
    ) -> QueuePage:
        """The same of an endpoint, by sequence, then queuing order; only of that `queue`.

        `after`: queuing order and sequence of the message behind which the page begins."""
        return await queues.page_of(
            self._reader,
            endpoint,
            limit,
            max_bytes,
            after,
            places=self.shelves.of(queue),
            skip=self._pipeline.skip,
        )

    @property
    def coming_order(self) -> int:
        """The queuing order that is given next."""
        return self._numbers.next_queuing_order

    async def tally(
        self,
        endpoint: EndpointKey,
        after: int,
        before: int,
        but: Set[int],
        queue: QueueKey | None = None,
    ) -> queues.Tally:
        """How many messages of an endpoint were written past the window of whatever queue.

        Of those with queuing orders between these two, and not in `but`; only of that `queue`."""
        return await queues.tally(
            self._reader,
            endpoint,
            places=self.shelves.of(queue),
            after=after,
            before=before,
            but=but,
            skip=self._pipeline.skip,
        )

    async def tallies(
        self, but: Mapping[EndpointKey, Set[int]], after: int, before: int, queue: QueueKey
    ) -> dict[EndpointKey, queues.Tally]:
        """The same of many endpoints of a queue, with the orders that do not count for each.

        Those of which it would take long are left out."""
        return await queues.tallies(
            self._reader,
            but,
            places=self.shelves.of(queue),
            after=after,
            before=before,
            skip=self._pipeline.skip,
        )

    async def parts(self, endpoint: EndpointKey) -> queues.StoredParts:
        """Stored fragments of the message that is not complete."""
        return await queues.parts(self._reader, endpoint)

    async def parts_known(self, endpoint: EndpointKey) -> queues.KnownParts:
        """How many there are and what they are stored under, without the bodies."""
        return await queues.parts_known(self._reader, endpoint)

    async def browse(
        self,
        queue: QueueKey,
        limit: int,
        max_bytes: int,
        after_order: int = -1,
        *,
        reads: int | None = None,
    ) -> QueuePage:
        """Messages of a queue by queuing order, in memory's window or not; changes nothing.

        After so many `reads` the page comes even if it is empty, and `end` says where the next one
        goes on: messages of other queues may lie between. No `end` = there are no more."""
        skip = self._pipeline.skip
        while True:
            page = await queues.browse(
                self._reader,
                queue,
                limit,
                max_bytes,
                after_order,
                places=self.shelves.all(),
                skip=skip,
            )
            reads = None if reads is None else reads - 1
            if page.rows or page.damaged or page.end is None or reads == 0:
                return page
            after_order, _ = page.end

    async def incomplete(
        self, queue: str, limit: int, after: EndpointKey
    ) -> list[tuple[EndpointKey, int]]:
        """Endpoint and sequence of messages that wait for a fragment (status 2), by endpoint."""
        return await queues.incomplete(self._reader, queue, limit, after)

    # Transmission queue.

    async def page_outgoing(
        self, endpoint: EndpointKey, from_sequence: int, limit: int, max_bytes: int
    ) -> OutgoingPage:
        """Outgoing messages of the endpoint written past the window (paged = 1), by sequence."""
        return await transmission.page(self._reader, endpoint, from_sequence, limit, max_bytes)

    async def transmission_queue(
        self, limit: int, max_bytes: int, after_order: int = -1
    ) -> OutgoingPage:
        """Outgoing messages by transmission order, for views."""
        return await transmission.listed(self._reader, limit, max_bytes, after_order)
