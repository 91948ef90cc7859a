"""Flush: changesets merged, then written in one transaction with each changed row once.

Reads:  nothing.      Calls: the statements of the table families, on the writer's connection.
Never:  retries, or undoes changes that SQLite was asked to commit (REL-5).
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from brokerd.clock import Clock
from brokerd.errors import StoreFault
from brokerd.ids import BodyKey, ClientId, EndpointKey, GroupId
from brokerd.protocol.endpoint import DialogEndpoint
from brokerd.storage.changes import (
    BodyRow,
    Changes,
    DialogLogRow,
    EventChanges,
    OutgoingRemoval,
    OutgoingRow,
    Owner,
    PieceRow,
    QueueRow,
    Rare,
)
from brokerd.storage.connections import Connection
from brokerd.storage.rows import (
    bodies,
    deferred_drops,
    deferred_removals,
    dialogs,
    events,
    held_groups,
    queues,
    retention,
    timers,
    tokens,
    transmission,
)
from brokerd.storage.rows.deferred_removals import NOTHING, QueueRemoval
from brokerd.storage.rows.ended_dialogs import LeftOutgoing, remove_retained
from brokerd.storage.sqlite_errors import is_full
from brokerd.storage.statements import Row, Script, update_by_key
from brokerd.storage.tables import store
from brokerd.storage.writers import Ended, roll_back

R = TypeVar("R", QueueRow, OutgoingRow)

_STALE: Final = "the store was opened by another process, so that this one must write no more"
_AGAIN: Final = "start it again: it waits then, or says who has the store"
PAGE: Final = 4096
"""Bytes of a page of the file, for estimates of how the log grows."""
_WEIGHED: Final = (Owner.WAITING, Owner.OUTGOING)
NUMBERS = ("next_endpoint_key", "next_queuing_order", "next_transmission_order")
_SAVE_NUMBERS: Final = f"{update_by_key(store, 'id', NUMBERS)} AND epoch = ?"
"""Statement that saves the next numbers. It is also a fence: another process that has opened the
store meanwhile has raised the epoch (RTE-55)."""


class Numbers:
    """The next number of each kind that is never used twice (RCV-37)."""

    __slots__ = (*NUMBERS, "epoch")

    def __init__(
        self, endpoint_key: int, queuing_order: int, transmission_order: int, epoch: int
    ) -> None:
        self.next_endpoint_key = endpoint_key
        self.next_queuing_order = queuing_order
        self.next_transmission_order = transmission_order
        self.epoch = epoch
        """Epoch of the store when this process opened it."""

    def marks(self) -> tuple[int, int, int, int, int]:
        """Return the values for `_SAVE_NUMBERS`: the numbers, then id and epoch of their row."""
        endpoint, queuing = self.next_endpoint_key, self.next_queuing_order
        return endpoint, queuing, self.next_transmission_order, 1, self.epoch


class Weight(NamedTuple):
    """The cost of a flush to the store."""

    rows: int
    """Rows written, or removed by number."""
    pages: int
    """Estimate of the pages added to the log; removals count when their rows are deleted."""


class Flush:
    """Changesets that are written together, in the order in which they joined."""

    __slots__ = (
        "acknowledged",
        "bodies",
        "bodies_removed_of",
        "by_index",
        "bytes",
        "changed",
        "changesets",
        "client_rows",
        "clients_forgotten",
        "closed",
        "created",
        "dequeued",
        "dequeued_from",
        "dequeued_of",
        "done",
        "dropped",
        "enqueued",
        "events",
        "group_states",
        "logged",
        "marks",
        "outgoing",
        "outgoing_left",
        "outgoing_removed",
        "piece_bytes",
        "pieces",
        "progress",
        "rare",
        "removal",
        "removed",
        "retained_at_once",
        "shelves",
        "since",
        "some_bodies",
        "tokens",
        "urgent",
    )

    def __init__(self) -> None:
        self.changesets = 0
        self.bytes = self.piece_bytes = 0
        self.urgent = False
        self.since = 0.0
        self.done: list[Callable[[], None]] = []
        self.tokens: dict[ClientId, list[int]] = {}
        self.created: dict[EndpointKey, DialogEndpoint] = {}
        self.changed: dict[EndpointKey, DialogEndpoint] = {}
        # Latest value of every changed endpoint; in the two dicts above the progress may be stale.
        self.progress: dict[EndpointKey, DialogEndpoint] = {}
        self.removed: list[EndpointKey] = []
        self.enqueued: list[QueueRow] = []
        self.dequeued: list[int] = []
        self.dequeued_from: dict[int, list[int]] = {}
        self.bodies: dict[BodyKey, BodyRow] = {}
        self.pieces: list[PieceRow] = []
        self.bodies_removed_of: list[EndpointKey] = []
        self.outgoing: list[OutgoingRow] = []
        self.acknowledged: list[int] = []
        # Endpoint to the number of rows in `enqueued` when its messages were removed.
        self.dequeued_of: dict[EndpointKey, int] = {}
        self.dropped: list[EndpointKey] = []
        """Endpoints of `dequeued_of` whose messages are deleted later."""
        self.by_index = 0
        """Upper bound of the number of messages that the flush deletes by index."""
        self.outgoing_removed: dict[EndpointKey, tuple[int, int]] = {}
        """Endpoint to the number of rows in `outgoing` when its messages were removed, and the
        highest sequence removed."""
        self.outgoing_left: list[LeftOutgoing] = []
        """Outgoing messages that are deleted later."""
        self.group_states: dict[GroupId, bytes | None] = {}
        self.closed: list[DialogLogRow] = []
        self.logged: list[EndpointKey] = []
        self.rare: Rare | None = None
        self.events: list[EventChanges] = []
        # Filled in when the flush starts.
        self.client_rows: list[Row] = []
        self.clients_forgotten: list[ClientId] = []
        self.marks: tuple[int, int, int, int, int] | None = None
        self.removal: QueueRemoval = NOTHING
        self.shelves: Sequence[int] = ()
        """Numbers of the shelves that may have messages."""
        self.retained_at_once = 0
        """Most retained messages of ended dialogs that the flush deletes."""
        self.some_bodies = False
        """Whether any body may be in pieces, so that owners of bodies have to be looked up."""

    def merge(self, changes: Changes) -> None:
        """Merge a changeset. This runs once per transaction, on the loop."""
        self.changesets += 1
        # First, so that rows which this changeset enqueues are kept: only rows that joined before
        # the removal are deleted (`_kept`).
        if changes.dequeued_of:
            self.dequeued_of.update(dict.fromkeys(changes.dequeued_of, len(self.enqueued)))
        if changes.moved:
            self.progress.update(changes.moved)
        if changes.created or changes.changed or changes.removed:
            self._merge_endpoints(changes)
        if changes.enqueued:
            self.enqueued += changes.enqueued
            self._weigh(changes.enqueued)
        if changes.dequeued:
            self.dequeued += changes.dequeued
        for place, orders in changes.dequeued_from.items():
            self.dequeued_from.setdefault(place, []).extend(orders)
        if changes.outgoing:
            self.outgoing += changes.outgoing
            self._weigh(changes.outgoing)
        if changes.acknowledged:
            self.acknowledged += changes.acknowledged
        for client, number in changes.tokens.items():
            self.tokens.setdefault(client, []).append(number)
        self._merge_rare(changes)

    def _weigh(self, rows: list[QueueRow] | list[OutgoingRow]) -> None:
        for row in rows:
            body = row[10]
            if body:
                self.bytes += len(body)

    def remove_outgoing(self, key: EndpointKey, removal: OutgoingRemoval) -> None:
        """Delete outgoing messages of an endpoint that have joined, in this flush or earlier."""
        self.acknowledged += removal.orders
        self.outgoing_removed[key] = len(self.outgoing), removal.through

    def _merge_rare(self, changes: Changes) -> None:
        if changes.bodies or changes.pieces or changes.bodies_removed_of:
            self._merge_bodies(changes)
        if changes.group_states:
            self.group_states.update(changes.group_states)
        if changes.closed:
            self.closed += changes.closed
        if changes.logged:
            self.logged += changes.logged
        if changes.rare is not None:
            if self.rare is None:
                # Taken over, not copied: a changeset belongs to the store once it has joined.
                self.rare = changes.rare
            else:
                self.rare.merge(changes.rare)
            self.bytes += sum([len(row.body or b"") for row in changes.rare.retained])
        if changes.events is not None:
            self.events.append(changes.events)

    def _merge_bodies(self, changes: Changes) -> None:
        for row in changes.bodies.values():
            self.bodies[row.body_key] = row
            # The size is counted with the row of the message, which has the body for memory.
            if row.owner in _WEIGHED:
                self.bytes -= row.size
        size = sum([len(row.data) for row in changes.pieces])
        self.pieces += changes.pieces
        self.piece_bytes += size
        self.bytes += size
        self.bodies_removed_of += changes.bodies_removed_of

    def _merge_endpoints(self, changes: Changes) -> None:
        if changes.created:
            self.created.update(changes.created)
            self.progress.update(changes.created)
        if changes.changed:
            self._change(changes.changed)
            self.progress.update(changes.changed)
        if changes.removed:
            self._remove(changes.removed)

    def _change(self, changed: dict[EndpointKey, DialogEndpoint]) -> None:
        if not self.created:
            self.changed.update(changed)
            return
        for key, endpoint in changed.items():
            (self.created if key in self.created else self.changed)[key] = endpoint

    def _remove(self, removed: list[EndpointKey]) -> None:
        for key in removed:
            self.changed.pop(key, None)
            self.progress.pop(key, None)
            if self.created.pop(key, None) is None:
                self.removed.append(key)

    @property
    def leaves_rows(self) -> bool:
        """Whether the flush may leave rows of dialogs that end in it, to be deleted later."""
        is_retaining = self.rare is not None and bool(self.rare.retained_removed_of)
        return bool(self.dropped or self.outgoing_left) or is_retaining

    def weight(self) -> Weight:
        """Return the cost of the flush to the store; call this once the flush has begun."""
        of_endpoints = len(self.created) + len(self.changed) + len(self.progress)
        of_messages = len(self.enqueued) + len(self.pieces) + len(self.outgoing)
        gone = len(self.removed) + len(self.acknowledged)
        written = of_endpoints + of_messages + gone + len(self.client_rows)
        noted = len(self.dequeued)
        if self.dequeued_from:
            noted += sum(map(len, self.dequeued_from.values()))
        notes = deleted = 0
        if self.removal is not deferred_removals.NOTHING:
            notes = sum([len(orders) for _, orders in self.removal.notes])
            deleted = sum(map(len, self.removal.delete.values()))
        pages = 8 + (self.bytes + notes) // PAGE + (written + deleted) // 8
        return Weight(written + noted, pages)


class Written(NamedTuple):
    """The times of a flush, in seconds of the monotonic clock."""

    started: float
    committing: float
    ended: float
    leaves_bodies: bool
    """Whether bodies without an owner are left."""


class CommitFailed(Exception):
    """Error for a COMMIT that failed with unknown outcome (REL-5). Stays inside the package."""


def write(
    connection: Connection, flush: Flush, clock: Clock, failpoint: Callable[[str], None]
) -> Written:
    """Write a flush in one transaction. Any error but `CommitFailed`: the flush was rolled back.

    It is also rolled back if the disk is full at COMMIT: the last frame of the log, without
    which the other frames are ignored, was not written whole, and nothing was synced.
    """
    started = clock.monotonic()
    try:
        failpoint("store.begin")
        connection.execute("BEGIN IMMEDIATE")
        _see_fence(script_of(flush).run(connection))
        leaves_bodies = flush.some_bodies and bodies.sweep(connection)
        failpoint("store.before_commit")
    except BaseException:
        roll_back(connection)
        raise
    committing = clock.monotonic()
    try:
        connection.execute("COMMIT")
        ended = clock.monotonic()
        failpoint("store.after_commit")
    except BaseException as error:
        if is_full(error):
            roll_back(connection)
            raise
        raise CommitFailed(str(error)) from error
    return Written(started, committing, ended, leaves_bodies)


def _see_fence(is_passed: bool) -> None:
    if not is_passed:
        raise StoreFault(_STALE, hint=_AGAIN)


class Writing:
    """The job of writing a flush, on the connection or, if possible, as a script."""

    def __init__(self, flush: Flush, clock: Clock, failpoint: Callable[[str], None] | None) -> None:
        """Create the job.

        `failpoint`: a hook of tests, called at each step; None = no call.
        """
        self._flush = flush
        self._clock = clock
        self._failpoint = failpoint

    def __call__(self, connection: Connection) -> Written:
        """Write the flush on this connection."""
        return write(connection, self._flush, self._clock, self._failpoint or no_fault)

    def script(self) -> Script | None:
        """Return the flush as a script; None = it can only be written on the connection."""
        if self._failpoint is not None or self._flush.some_bodies:
            return None
        return script_of(self._flush)

    def outcome(self, ended: Ended) -> Written:
        """Return the times of the flush, or raise the error that `__call__` would have raised."""
        if ended.error is not None:
            if ended.is_committing and not is_full(ended.error):
                raise CommitFailed(str(ended.error)) from ended.error
            raise ended.error
        _see_fence(ended.is_fence_passed)
        return Written(ended.started, ended.committing, ended.ended, leaves_bodies=False)


def no_fault(name: str) -> None:
    """Do nothing; the failpoint hook of production (HK-6)."""


def script_of(flush: Flush) -> Script:
    """Return the script of everything that a flush changes in the store.

    Most flushes of few messages have two or three of the dozen kinds of statements.
    """
    # Endpoints and messages are removed before others are written, so that a conversation may begin
    # again in the flush that removes it.
    script = Script()
    if flush.marks is not None:
        script.fence(_SAVE_NUMBERS, flush.marks)
    if flush.rare is not None:  # before the rows that are copied are deleted
        retention.retain(script, flush.rare.retain, flush.shelves, some_bodies=flush.some_bodies)
    _write_endpoints(script, flush)
    _write_messages(script, flush)
    if flush.group_states:
        dialogs.write_group_states(script, flush.group_states)
    if flush.closed or flush.logged:
        dialogs.write_log(script, flush.closed, flush.logged)
    for changes in flush.events:
        events.write(script, changes)
    if flush.client_rows or flush.clients_forgotten:
        tokens.write(script, flush.clients_forgotten, flush.client_rows)
    if flush.rare is not None:
        _write_rare(script, flush, flush.rare)
    return script


def _write_endpoints(script: Script, flush: Flush) -> None:
    removed = flush.removed
    if removed:
        dialogs.delete_endpoints(script, removed)
    if flush.created:
        dialogs.insert_endpoints(script, flush.created.values())
    if flush.changed:
        dialogs.update_endpoints(script, flush.changed.values())
    if flush.progress:
        dialogs.write_progress(script, flush.progress.values())
    if removed:
        # Last, so that a move recorded after the removal leaves no row; keys are never reused.
        dialogs.delete_progress(script, removed)


def _write_messages(script: Script, flush: Flush) -> None:
    """Add the changes of queues and of the transmission queue."""
    if flush.some_bodies:
        _leave_bodies(script, flush)
    if flush.dequeued_of:
        queues.remove_of(script, _at_once(flush), flush.shelves)
        deferred_drops.note(script, flush.dropped)
    enqueued = _kept(flush.enqueued, flush.dequeued_of)
    if flush.removal is not deferred_removals.NOTHING:
        deferred_removals.write(script, flush.removal)
    if flush.outgoing_removed:
        transmission.remove_of(script, _through(flush))
    outgoing = _kept_outgoing(flush)
    if flush.some_bodies:
        _write_bodies(script, flush, enqueued, outgoing)
    if enqueued:
        queues.write(script, _bare(enqueued, Owner.WAITING, flush))
    if outgoing or flush.acknowledged:
        transmission.write(script, _bare(outgoing, Owner.OUTGOING, flush), flush.acknowledged)


def _at_once(flush: Flush) -> list[EndpointKey]:
    """Return the endpoints whose messages the flush deletes itself, by index."""
    later = set(flush.dropped)
    return [key for key in flush.dequeued_of if key not in later]


def _write_rare(script: Script, flush: Flush, rare: Rare) -> None:
    """Add rare changes, after the changes of endpoints and group states.

    The endpoints then show which groups are over.
    """
    if rare.groups_left:
        dialogs.drop_states_of_ended(script, rare.groups_left)
    timers.write(script, rare)
    retention.write(script, rare, some_bodies=flush.some_bodies)
    ended, most = rare.retained_removed_of, flush.retained_at_once
    remove_retained(script, ended, most, some_bodies=flush.some_bodies)
    held_groups.write(script, rare)


def _leave_bodies(script: Script, flush: Flush) -> None:
    """Disown the bodies of messages that are deleted by index, and of incomplete messages."""
    bodies.leave_waiting(script, _at_once(flush), flush.shelves)
    bodies.leave_outgoing(script, _through(flush))
    bodies.leave(script, Owner.ARRIVING, flush.bodies_removed_of)


def _write_bodies(
    script: Script, flush: Flush, enqueued: list[QueueRow], outgoing: list[OutgoingRow]
) -> None:
    """Write owners and pieces of bodies; disown bodies of messages deleted by number."""
    rows = flush.bodies
    bodies.put(script, list(rows.values()))
    given_up = {key for key, row in rows.items() if row.owner is Owner.NOBODY}
    bodies.put_pieces(script, [row for row in flush.pieces if row.body_key not in given_up])
    gone = [*flush.dequeued, *chain.from_iterable(flush.dequeued_from.values())]
    gone += _cut_off(flush.enqueued, enqueued)
    bodies.leave(script, Owner.WAITING, gone)
    gone = [*flush.acknowledged, *_cut_off(flush.outgoing, outgoing)]
    bodies.leave(script, Owner.OUTGOING, gone)


def _cut_off(rows: list[R], kept: list[R]) -> list[int]:
    """Return the numbers of rows that have joined and will not be written."""
    if rows is kept:
        return []
    written = {row[0] for row in kept}
    return [row[0] for row in rows if row[0] not in written]


def _bare(rows: list[R], owner: Owner, flush: Flush) -> list[R]:
    """Return the rows, without the bodies that are written in pieces."""
    if not flush.bodies:
        return rows
    numbers = {body.number for body in flush.bodies.values() if body.owner is owner}
    return [row._replace(body=None) if row[0] in numbers else row for row in rows]


def _through(flush: Flush) -> list[tuple[EndpointKey, int]]:
    return [(key, through) for key, (_, through) in flush.outgoing_removed.items()]


def _kept(rows: list[QueueRow], removed_of: dict[EndpointKey, int]) -> list[QueueRow]:
    """Return the rows, except those that joined before all rows of their endpoint were removed."""
    if not removed_of:
        return rows
    return [row for at, row in enumerate(rows) if at >= removed_of.get(row.endpoint, 0)]


def _kept_outgoing(flush: Flush) -> list[OutgoingRow]:
    """Return the outgoing rows without the removed ones.

    A removal applies to the rows of its endpoint that joined before it, up to its sequence.
    """
    rows, removed = flush.outgoing, flush.outgoing_removed
    if not removed:
        return rows
    none = 0, -1
    return [
        row
        for at, row in enumerate(rows)
        if at >= (cut := removed.get(row.endpoint, none))[0] or row.sequence > cut[1]
    ]
