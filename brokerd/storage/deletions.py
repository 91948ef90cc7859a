"""Deletions: rows that count as deleted leave the file, some with each flush, most after it.

Reads:  the flushes that join, begin and have been written.
Calls:  the deferred removals and drops, the keeper of bodies, the shelves.
Never:  deletes in one flush more than a bounded number of rows that it finds by index (REL-35).
Wakes:  when a flush has been written, when a step has ended, and at each tick.
Fails:  a step that finds no room is repeated at the next tick; the next start deletes the rows
        that a crash has left.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from brokerd.clock import Clock
from brokerd.ids import EndpointKey
from brokerd.storage.body_keeper import BodyKeeper
from brokerd.storage.changes import OutgoingRemoval
from brokerd.storage.flush import PAGE, Flush
from brokerd.storage.options import Metrics, StoreOptions
from brokerd.storage.rows import queues
from brokerd.storage.rows.deferred_drops import Drops
from brokerd.storage.rows.deferred_removals import Removals
from brokerd.storage.rows.ended_dialogs import LeftOutgoing, OutgoingSweep, RetainedSweep
from brokerd.storage.rows.sweeps import Sweeper
from brokerd.storage.shelves import NO_SHELF, Shelves
from brokerd.storage.writers import Job, Reported

T = TypeVar("T")


class Submit(Protocol):
    """A function that passes a job to the writer between flushes, unless the store is closed."""

    def __call__(
        self, job: Job[T], reported: Reported[T], *, doing: str = ..., writes: bool = ...
    ) -> None:
        """Submit the job; `reported` gets None as the value of a job that failed."""
        ...


class Deletions:
    """The rows of a store that count as deleted and may still be in its file."""

    def __init__(
        self,
        *,
        options: StoreOptions,
        clock: Clock,
        metrics: Metrics,
        shelves: Shelves,
        bodies: BodyKeeper,
        dropped: Sequence[EndpointKey],
        submit: Submit,
        log_has_grown: Callable[[int, int], None],
    ) -> None:
        """Create the deletions of a store.

        `dropped`: endpoints that the start found noted. `log_has_grown`: called with the pages
        and the bytes of pieces that a step has added to the log.
        """
        self._most = options.unread_at_once
        self._metrics = metrics
        self._shelves = shelves
        self._bodies = bodies
        self._submit = submit
        self._log_has_grown = log_has_grown
        self._is_checking_shelves = False
        self._removals = Removals(most=options.noted_removals, shelves=shelves)
        self._drops = Drops(dropped)
        self._sweeper = Sweeper(
            most=options.unread_at_once,
            clock=clock,
            taken=lambda: shelves.taken,
            some_bodies=lambda: bodies.some,
            submit=submit,
            swept=self._have_swept,
        )
        self.skip = queues.Skip(noted=self._removals.noted, ended=lambda: self._drops.keys)
        """Messages that may still be in the file and count as deleted."""

    def start(self) -> None:
        """Begin to delete the rows that a crash or a stop has left."""
        if self._bodies.some:
            self._bodies.left()
        if self._drops.keys:
            self._shelves.lost_count()
            self._sweeper.add(self._drops.sweeps(sorted(self._drops.keys)))

    # The stages of a flush: changesets join, it begins, it has been written.

    def join_drops(self, flush: Flush, unread: Mapping[EndpointKey, int | None]) -> None:
        """Delete all unread messages of ended dialogs by index: few in the flush, many after it.

        `unread`: the number of messages by endpoint; None = unknown (REL-35).
        """
        for key, count in unread.items():
            if count is None or flush.by_index + count > self._most:
                flush.dropped.append(key)
            else:
                flush.by_index += count
        self._drops.joined(flush.dropped)

    def join_outgoing(self, flush: Flush, removed: Mapping[EndpointKey, OutgoingRemoval]) -> None:
        """Delete outgoing messages by index: few in the flush, many after it.

        Call this before the changeset is merged: the flush keeps rows that join after the removal.
        """
        for key, removal in removed.items():
            if flush.by_index + removal.rows > self._most:
                flush.outgoing_left.append(LeftOutgoing(key, removal))
            else:
                flush.by_index += removal.rows
                flush.remove_outgoing(key, removal)

    def begin(self, flush: Flush) -> None:
        """Fill in the deletions of a flush that begins, and their places."""
        flush.shelves = self._count_on_shelves(flush)
        flush.removal = self._removals.plan(flush.dequeued, flush.dequeued_from)
        flush.some_bodies = self._bodies.some
        flush.retained_at_once = self._most

    def _count_on_shelves(self, flush: Flush) -> Sequence[int]:
        """Count a flush's messages on their shelves; return the shelves that may have messages."""
        shelves = self._shelves
        shelves.begin()
        if flush.dequeued_of:
            shelves.lost_count()
        for place, rows in queues.by_place(flush.enqueued).items():
            if not place:  # within a window, as nearly all messages are
                continue
            size = sum([len(row[10]) for row in rows if row[10]]) if place != NO_SHELF else 0
            shelves.joined(place, len(rows), size)
        return shelves.taken

    def durable(self, flush: Flush, *, leaves_bodies: bool) -> None:
        """Delete the rows that a written flush has left to be deleted after it."""
        self._removals.durable(flush.removal)
        if leaves_bodies:
            self._bodies.left()
        if flush.dropped:
            self._sweeper.add(self._drops.sweeps(flush.dropped))
        retained = flush.rare.retained_removed_of if flush.rare is not None else ()
        self.sweep_left(flush.outgoing_left, retained)

    @property
    def needs_flushes(self) -> bool:
        """Whether one flush must follow another until all noted messages are deleted."""
        return self._removals.is_sweeping

    # Between flushes.

    def sweep(self, *, is_writing: bool) -> int:
        """Begin to delete noted messages with the next flushes; return the number to be deleted."""
        count = self._removals.begin_sweep()
        self._metrics.clean_ups += count > 0
        self._release_empty_shelves(is_writing=is_writing)
        return count

    def resume(self) -> None:
        """Repeat steps that found no room."""
        self._bodies.resume()
        self._sweeper.resume()

    def sweep_all(self) -> bool:
        """Begin to delete all noted messages; return whether there are any."""
        return self._removals.begin_sweep(all_of_it=True) > 0

    def sweep_left(self, outgoing: Sequence[LeftOutgoing], retained: Sequence[EndpointKey]) -> None:
        """Delete rows that ended dialogs have left."""
        if outgoing:
            self._sweeper.add([OutgoingSweep(outgoing)])
        if retained:
            self._sweeper.add([RetainedSweep(retained)])

    @property
    def is_under_way(self) -> bool:
        """Whether rows of ended dialogs are still to be deleted."""
        return self._sweeper.is_under_way

    def _have_swept(self, messages: int) -> None:
        """Count the messages that a step has deleted, and the pages this adds to the log.

        The messages may have had bodies in pieces. About eight messages add one page to the log,
        and each page is written once, so the log is folded as for pieces: a flush waited 12 ms
        for the fold of 4,000 such pages.
        """
        self._metrics.dropped += messages
        if self._bodies.some:
            self._bodies.left()
        self._log_has_grown(0, messages * PAGE // 8)

    def _release_empty_shelves(self, *, is_writing: bool) -> None:
        """Release shelves that are empty although their counts do not say so."""
        perhaps = self._shelves.perhaps_empty(is_writing=is_writing)
        if not perhaps or self._is_checking_shelves:
            return

        def checked(empty: list[int] | None, _error: BaseException | None) -> None:
            self._is_checking_shelves = False
            for number in empty or ():
                # Messages may have been put on a shelf while the writer read it: release only one
                # that has not changed since, and to which no note of a removal refers.
                is_quiet = self._shelves.is_as_it_was(number, perhaps[number])
                if is_quiet and not self._removals.noted(number):
                    self._shelves.give_back(number)

        self._is_checking_shelves = True
        self._submit(
            partial(queues.empty_shelves, list(perhaps)),
            checked,
            doing="a look at the store",
            writes=False,
        )
