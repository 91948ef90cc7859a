"""Arrivals of one dialog: what waits to be stored, in order, and what came too early. PURE.

Reads: what it is given.      Calls: nothing.
Never: decides what happens to a dialog; it only puts fragments in order (DLP-35, DSP-1).
Nothing here is durable or acknowledged, so all of it can be dropped at any time (DSP-14).
"""

from brokerd.protocol.frames import Fragment

MAX_RANGES = 16
"""Ranges an acknowledgement block carries (DLP-16)."""


ROUND_BYTES = 512 * 1024
"""Bytes of bodies that one dialog stores in one flush, unless one fragment alone has more."""
FRAGMENT_COST = 2048
"""Bytes of memory that a fragment takes here beside its body."""


def weight(item: Fragment) -> int:
    """Bytes of memory that a fragment takes here."""
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
        """The next fragment expected, behind what waits in `run`."""
        self.highest_seen = sequence - 1
        self.run: list[Fragment] = []
        """Consecutive fragments that wait to be stored."""
        self._early: dict[tuple[int, int], tuple[Fragment, int]] = {}
        self._storing: list[Fragment] = []
        self._counts: dict[int, int] = {}
        # How many fragments each message has of which some, and not all, have come.
        self.size = 0
        """Bytes of memory held."""
        self.early_size = 0
        """Of them, those of fragments that wait for a gap to close."""
        self.tick = 0
        """The tick at which it last had something new."""

    @property
    def busy(self) -> bool:
        """Whether something of it is being stored (DSP-3)."""
        return bool(self._storing)

    @property
    def nothing_waits(self) -> bool:
        """Whether the next fragment could be stored at once, behind what is being stored."""
        return not self.run and not self._early

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held or under way."""
        return not self.run and not self._early and not self.busy

    @property
    def early(self) -> int:
        """Fragments that wait for a gap to close."""
        return len(self._early)

    @property
    def early_extent(self) -> tuple[int, int, int] | None:
        """First and last sequence of them, and the last one's fragment."""
        if not self._early:
            return None
        last, fragment = max(self._early)
        return min(self._early)[0], last, fragment

    def catch_up(self, sequence: int) -> None:
        """Messages before this one came another way, straight from a sender here (SND-14).

        They do so only while nothing of the dialog is under way, so nothing is held."""
        if self.sequence < sequence and self.is_empty:
            self.sequence, self.fragment = sequence, 0
            self._counts.clear()
            self.highest_seen = max(self.highest_seen, sequence - 1)

    def place(self, item: Fragment) -> int:
        """Where a fragment belongs: below 0 = here already, 0 = next, above = early."""
        if item.sequence != self.sequence:
            return item.sequence - self.sequence
        return item.fragment - self.fragment

    def agrees(self, item: Fragment) -> bool:
        """Whether it names as many fragments as those of its message that came before (DLP-13)."""
        return self._counts.get(item.sequence, item.fragments) == item.fragments

    def append(self, item: Fragment) -> None:
        """Take the next fragment, and what it makes consecutive."""
        self._take(item)
        self.size += weight(item)
        while self._early:
            following = self._early.pop((self.sequence, self.fragment), None)
            if following is None:
                break
            self.early_size -= weight(following[0])
            self._take(following[0])

    def keep_early(self, item: Fragment, tick: int) -> bool:
        """Hold a fragment that came too early; False if it is held already."""
        key = (item.sequence, item.fragment)
        if key in self._early:
            return False
        self._early[key] = (item, tick)
        self._counts[item.sequence] = item.fragments
        self.size += weight(item)
        self.early_size += weight(item)
        self.highest_seen = max(self.highest_seen, item.sequence)
        return True

    def take_run(self, limit: int) -> list[Fragment]:
        """Remove up to `limit` consecutive fragments, which are being stored from now on.

        Of large ones fewer: one dialog must not make a flush long for all others."""
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
        """The next fragment, a whole message, is being stored without having waited here."""
        self._storing.append(item)
        self.sequence = item.sequence + 1
        self.highest_seen = max(self.highest_seen, item.sequence)

    def stored(self, count: int) -> None:
        """The oldest so many of what was being stored are durable, or not wanted."""
        del self._storing[:count]

    def put_back(self, run: list[Fragment]) -> None:
        """The run that was taken last could not be stored: it waits again (DSP-8)."""
        del self._storing[len(self._storing) - len(run) :]
        self.run[:0] = run
        self.size += sum(map(weight, run))

    def drop_run(self, sequence: int, fragment: int) -> list[Fragment]:
        """Forget what waits, all of it; what was dropped is expected again."""
        dropped = self.run + [item for item, _ in self._early.values()]
        self.run.clear()
        self._early.clear()
        self.size = self.early_size = 0
        self.sequence, self.fragment = sequence, fragment
        self._forget_counts()
        return dropped

    def purge_early(self, tick: int) -> list[Fragment]:
        """Drop what has been early for one full tick (DSP-9)."""
        old = [key for key, (_, since) in self._early.items() if since < tick - 1]
        dropped = [self._early.pop(key)[0] for key in old]
        size = sum(map(weight, dropped))
        self.size -= size
        self.early_size -= size
        self._forget_counts()
        return dropped

    def ranges(self) -> tuple[tuple[int, int, int, int], ...]:
        """What is held and not stored yet, as an acknowledgement says it (DLP-16)."""
        found: list[tuple[int, int, int, int]] = []
        ends = [part for part in (self._storing, self.run) if part]
        if ends:  # one run: what is being stored, then what waits behind it
            first, last = ends[0][0], ends[-1][-1]
            found.append((first.sequence, first.fragment, last.sequence, last.fragment))
        before: Fragment | None = None  # the first early one never follows the run
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

    def _forget_counts(self) -> None:
        """Keep those of messages of which something is stored or held."""
        begun = {sequence for sequence, _ in self._early}
        if self.fragment:
            begun.add(self.sequence)
        self._counts = {one: count for one, count in self._counts.items() if one in begun}

    def _take(self, item: Fragment) -> None:
        self.run.append(item)
        self.highest_seen = max(self.highest_seen, item.sequence)
        if item.fragment + 1 < item.fragments:
            self.fragment = item.fragment + 1
            self._counts[item.sequence] = item.fragments
        else:
            self.sequence, self.fragment = item.sequence + 1, 0
            self._counts.pop(item.sequence, None)


def _follows(last: Fragment, item: Fragment) -> bool:
    """Whether a fragment comes right behind another."""
    if item.sequence == last.sequence:
        return item.fragment == last.fragment + 1
    whole = last.fragment + 1 == last.fragments
    return whole and item.sequence == last.sequence + 1 and item.fragment == 0
