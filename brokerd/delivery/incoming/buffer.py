"""Buffer of one dialog's arrivals: fragments to be stored, in order, and early ones. PURE.

Reads: its arguments.      Calls: nothing.
Never: decides what happens to a dialog; it only puts fragments in order (DLP-35, DSP-1).
No buffered fragment is durable or acknowledged, so all can be dropped at any time (DSP-14).
"""

from brokerd.protocol.frames import Fragment

MAX_RANGES = 16
"""Limit of ranges that an acknowledgement block carries (DLP-16)."""


ROUND_BYTES = 512 * 1024
"""Limit of body bytes that one dialog stores in one flush; a single fragment may have more."""
FRAGMENT_COST = 2048
"""Bytes of memory that a fragment takes in addition to its body."""


def weight(item: Fragment) -> int:
    """Return the bytes of memory that a fragment takes."""
    return FRAGMENT_COST + len(item.body)


class Arrivals:
    """The buffer of one direction of one dialog."""

    __slots__ = (
        "_counts",
        "_early",
        "_storing",
        "early_size",
        "fragment",
        "highest_seen",
        "run",
        "sequence",
        "size",
        "tick",
    )

    def __init__(self, sequence: int, fragment: int) -> None:
        self.sequence = sequence
        self.fragment = fragment
        """The next fragment expected, after those in `run`."""
        self.highest_seen = sequence - 1
        self.run: list[Fragment] = []
        """Consecutive fragments that wait to be stored."""
        self._early: dict[tuple[int, int], tuple[Fragment, int]] = {}
        self._storing: list[Fragment] = []
        self._counts: dict[int, int] = {}
        # Fragment count of each message that has arrived in part, by sequence.
        self.size = 0
        """Bytes of memory held."""
        self.early_size = 0
        """Bytes of `size` that belong to early fragments, which wait for a gap to close."""
        self.tick = 0
        """The tick of the latest arrival."""

    @property
    def busy(self) -> bool:
        """Whether fragments of the dialog are being stored (DSP-3)."""
        return bool(self._storing)

    @property
    def nothing_waits(self) -> bool:
        """Whether no fragment waits, so that the next one could be stored without delay."""
        return not self.run and not self._early

    @property
    def is_empty(self) -> bool:
        """Whether no fragment waits, and none is being stored."""
        return not self.run and not self._early and not self.busy

    @property
    def early(self) -> int:
        """Number of fragments that wait for a gap to close."""
        return len(self._early)

    @property
    def early_extent(self) -> tuple[int, int, int] | None:
        """First and last sequence of the early fragments, and the last one's fragment number."""
        if not self._early:
            return None
        last, fragment = max(self._early)
        return min(self._early)[0], last, fragment

    def catch_up(self, sequence: int) -> None:
        """Skip messages before `sequence`: senders of this broker delivered them (SND-14).

        Such a direct delivery happens only while no message of the dialog is under way, so the
        buffer is empty."""
        if self.sequence < sequence and self.is_empty:
            self.sequence, self.fragment = sequence, 0
            self._counts.clear()
            self.highest_seen = max(self.highest_seen, sequence - 1)

    def place(self, item: Fragment) -> int:
        """Return the place of a fragment: below 0 = repeated, 0 = next, above 0 = early."""
        if item.sequence != self.sequence:
            return item.sequence - self.sequence
        return item.fragment - self.fragment

    def agrees(self, item: Fragment) -> bool:
        """Return whether a fragment has the same fragment count as its message so far (DLP-13)."""
        return self._counts.get(item.sequence, item.fragments) == item.fragments

    def append(self, item: Fragment) -> None:
        """Append the next fragment to the run, and the early ones that are consecutive now."""
        self._append_next(item)
        self.size += weight(item)
        while self._early:
            following = self._early.pop((self.sequence, self.fragment), None)
            if following is None:
                break
            self.early_size -= weight(following[0])
            self._append_next(following[0])

    def keep_early(self, item: Fragment, tick: int) -> bool:
        """Keep a fragment that came too early; False = it repeats a kept fragment."""
        key = (item.sequence, item.fragment)
        if key in self._early:
            return False
        self._early[key] = (item, tick)
        self._counts[item.sequence] = item.fragments
        self.size += weight(item)
        self.early_size += weight(item)
        self.highest_seen = max(self.highest_seen, item.sequence)
        return True

    def dequeue_run(self, limit: int) -> list[Fragment]:
        """Dequeue and return up to `limit` fragments, which count as being stored from now on.

        Of large fragments it returns fewer: one dialog must not make a flush long for all
        others."""
        size = 0
        for at, item in enumerate(self.run[:limit]):
            size += len(item.body)
            if size > ROUND_BYTES and at:
                limit = at
                break
        run, self.run = self.run[:limit], self.run[limit:]
        self._storing += run
        self.size -= sum(map(weight, run))
        return run

    def pass_on(self, item: Fragment) -> None:
        """Record that the next fragment, a whole message, is being stored by the fast path."""
        self._storing.append(item)
        self.sequence = item.sequence + 1
        self.highest_seen = max(self.highest_seen, item.sequence)

    def stored(self, count: int) -> None:
        """Remove the oldest `count` of the fragments being stored, which are durable or dropped."""
        del self._storing[:count]

    def put_back(self, run: list[Fragment]) -> None:
        """Put back the run that was dequeued last and could not be stored (DSP-8)."""
        del self._storing[len(self._storing) - len(run) :]
        self.run[:0] = run
        self.size += sum(map(weight, run))

    def drop_run(self, sequence: int, fragment: int) -> list[Fragment]:
        """Drop and return all waiting fragments; expect `sequence` and `fragment` next."""
        dropped = self.run + [item for item, _ in self._early.values()]
        self.run.clear()
        self._early.clear()
        self.size = self.early_size = 0
        self.sequence, self.fragment = sequence, fragment
        self._drop_counts()
        return dropped

    def purge_early(self, tick: int) -> list[Fragment]:
        """Drop and return the fragments that have been early for one full tick (DSP-9)."""
        old = [key for key, (_, since) in self._early.items() if since < tick - 1]
        dropped = [self._early.pop(key)[0] for key in old]
        size = sum(map(weight, dropped))
        self.size -= size
        self.early_size -= size
        self._drop_counts()
        return dropped

    def ranges(self) -> tuple[tuple[int, int, int, int], ...]:
        """Return the ranges that are held and not stored yet, for an acknowledgement (DLP-16)."""
        found: list[tuple[int, int, int, int]] = []
        ends = [part for part in (self._storing, self.run) if part]
        if ends:  # one range: the fragments being stored are followed by the run
            first, last = ends[0][0], ends[-1][-1]
            found.append((first.sequence, first.fragment, last.sequence, last.fragment))
        before: Fragment | None = None  # an early fragment never follows the run directly
        for key in sorted(self._early):
            item, previous = self._early[key][0], before
            before = item
            if previous is not None and _follows(previous, item):
                found[-1] = (*found[-1][:2], *key)
            elif len(found) == MAX_RANGES:
                break
            else:
                found.append((*key, *key))
        return tuple(found)

    def _drop_counts(self) -> None:
        """Keep the fragment counts only of messages that are stored or buffered in part."""
        begun = {sequence for sequence, _ in self._early}
        if self.fragment:
            begun.add(self.sequence)
        self._counts = {one: count for one, count in self._counts.items() if one in begun}

    def _append_next(self, item: Fragment) -> None:
        self.run.append(item)
        self.highest_seen = max(self.highest_seen, item.sequence)
        if item.fragment + 1 < item.fragments:
            self.fragment = item.fragment + 1
            self._counts[item.sequence] = item.fragments
        else:
            self.sequence, self.fragment = item.sequence + 1, 0
            self._counts.pop(item.sequence, None)


def _follows(last: Fragment, item: Fragment) -> bool:
    """Return whether a fragment is the direct successor of another."""
    if item.sequence == last.sequence:
        return item.fragment == last.fragment + 1
    whole = last.fragment + 1 == last.fragments
    return whole and item.sequence == last.sequence + 1 and item.fragment == 0
