"""Send window of one dialog endpoint: unacknowledged messages and retransmission (DLP-26 to 32).

Reads: its arguments.        Calls: fragments, backoff.
Never: reads a clock, touches a store or a socket; times are monotonic seconds passed to it.

PURE, though an object: it does no I/O (design, The code). It holds the messages in memory, oldest
first, and returns acknowledged ones so that their rows can be deleted. All of its state may be
lost: after a restart, everything not acknowledged counts as never sent.
"""

from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

import msgspec

from brokerd.protocol import fragments
from brokerd.protocol.backoff import RETRY_FIRST, RETRY_MAX, retransmit_delay


class Sendable(Protocol):
    """The part of a message in the transmission queue that the window needs."""

    @property
    def sequence(self) -> int:
        """Sequence number of the message."""
        ...

    @property
    def fragment_size(self) -> int:
        """Bytes of body in each fragment but the last."""
        ...

    @property
    def body(self) -> bytes | None:
        """The body; None if the message has none."""
        ...


M = TypeVar("M", bound=Sendable)


class WindowLimits(msgspec.Struct, frozen=True):
    """Limits on outstanding fragments (DLP-31), and the retransmission delays (DLP-26)."""

    window_fragments: int = 256
    window_bytes: int = 4 * 1024 * 1024
    retry_first: timedelta = RETRY_FIRST
    retry_max: timedelta = RETRY_MAX


class _Slot(Generic[M]):
    __slots__ = ("acked", "count", "message", "sent", "size")

    def __init__(self, message: M) -> None:
        self.message = message
        self.size = len(message.body or b"")
        self.count = fragments.count(self.size, message.fragment_size)
        self.sent = 0  # fragments that have left at least once
        self.acked = 0  # leading fragments that the peer has stored


class SendWindow(Generic[M]):
    """The outgoing messages of one dialog endpoint that are in memory."""

    __slots__ = (
        "_again",
        "_bytes",
        "_gap",
        "_largest",
        "_limits",
        "_out",
        "_slots",
        "_unsent",
        "attempts",
        "due",
    )

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._slots: deque[_Slot[M]] = deque()
        self._unsent = 0  # index of the first slot with fragments that never left
        self._out = 0  # fragments outstanding
        self._bytes = 0
        self._again: list[tuple[int, int]] = []  # (sequence, fragment) to send again
        self._gap = (-1, 0)  # gaps below this place were already filled (DLP-30)
        self._largest = 0
        self.attempts = 0
        """Number of retransmissions since the acknowledged prefix last advanced."""
        self.due: float | None = None
        """Time at which the timer expires (monotonic); None = nothing outstanding, or offline."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def limits(self) -> WindowLimits:
        """Limits of this window."""
        return self._limits

    def acked(self, sequence: int) -> int:
        """Return how many fragments of a message, from the first on, the peer has stored."""
        slot = self._slot(sequence)
        return slot.acked if slot is not None else 0

    @property
    def unsent(self) -> int:
        """Number of messages in memory with fragments that were never sent."""
        return len(self._slots) - self._unsent

    @property
    def outstanding(self) -> int:
        """Number of fragments sent and not acknowledged."""
        return self._out

    @property
    def largest_fragment(self) -> int:
        """Largest number of body bytes in a fragment of this dialog so far."""
        return self._largest

    @property
    def first_unsent(self) -> M | None:
        """The oldest message in memory with fragments never sent; None = all were sent."""
        return self._slots[self._unsent].message if self._unsent < len(self._slots) else None

    @property
    def oldest(self) -> M:
        """The oldest message in memory; there must be one."""
        return self._slots[0].message

    @property
    def settled(self) -> int:
        """The sequence up to which, inclusive, everything in memory is acknowledged."""
        return self._slots[0].message.sequence - 1 if self._slots else _NONE_HELD

    @property
    def base_sequence(self) -> int | None:
        """Oldest sequence in memory; None if memory holds no message."""
        return self._slots[0].message.sequence if self._slots else None

    def held(self) -> tuple[int, int, int, int]:
        """Return the numbers of unacknowledged fragments and bytes, then of the unsent ones."""
        fragments_, size, unsent, unsent_size = 0, 0, 0, 0
        for slot in self._slots:
            fragments_ += slot.count - slot.acked
            cut = slot.message.fragment_size
            size += max(0, slot.size - slot.acked * cut)
            unsent += slot.count - slot.sent
            unsent_size += max(0, slot.size - slot.sent * cut)
        return fragments_, size, unsent, unsent_size

    def add(self, message: M) -> None:
        """Append a message; its sequence must follow that of the last one."""
        slot = _Slot(message)
        self._largest = max(self._largest, min(slot.size, message.fragment_size))
        self._slots.append(slot)

    def messages(self) -> list[M]:
        """Return the messages in memory, oldest first."""
        return [slot.message for slot in self._slots]

    def attempted(self) -> list[tuple[M, bool]]:
        """Return the messages in memory, oldest first, each with whether a part of it was sent."""
        return [(slot.message, slot.sent > 0) for slot in self._slots]

    def clear(self) -> list[M]:
        """Drop and return all messages, because the dialog sends nothing more."""
        held = [slot.message for slot in self._slots]
        self._slots.clear()
        self._again.clear()
        self._unsent = self._out = self._bytes = 0
        self.due = None
        return held

    def has_work(self) -> bool:
        """Return whether `next_fragment` may return a fragment.

        Fragments queued again may have been acknowledged since; `next_fragment` skips those."""
        if self._again:
            return True
        return (
            self._unsent < len(self._slots)
            and self._out < self._limits.window_fragments
            and self._bytes < self._limits.window_bytes
        )

    def next_fragment(self, now: float) -> tuple[M, int, int] | None:
        """Return the next fragment to send: message, fragment number, fragment count.

        None means that nothing may be sent now. The fragment counts as sent; the timer is armed by
        the oldest outstanding one (DLP-27)."""
        while self._again:
            sequence, fragment = self._again.pop(0)
            slot = self._slot(sequence)
            if slot is not None and fragment >= slot.acked:
                self._arm(now)
                return slot.message, fragment, slot.count
        if not self.has_work():
            return None
        slot = self._slots[self._unsent]
        fragment = slot.sent
        slot.sent += 1
        self._out += 1
        self._bytes += min(slot.message.fragment_size, slot.size)
        if slot.sent == slot.count:
            self._unsent += 1
        self._arm(now)
        return slot.message, fragment, slot.count

    def acknowledge(
        self,
        sequence: int,
        fragment: int,
        highest_seen: int,
        held: Iterable[tuple[int, int, int, int]],
        now: float,
    ) -> list[M]:
        """Apply an ack of everything up to (sequence, fragment); return the settled messages.

        `held`: ranges beyond that point that the peer has in memory, as (first sequence, first
        fragment, last sequence, last fragment). Fragments that these ranges
        show to be missing are sent again, once (DLP-30)."""
        # Whole messages first, then the acknowledged prefix of the next one. The timer restarts
        # only if the prefix advanced (DLP-27): a repeated ack must not delay a retransmission.
        done: list[M] = []
        advanced = False
        slots = self._slots
        while slots and (
            slots[0].message.sequence < sequence
            or (slots[0].message.sequence == sequence and slots[0].count <= fragment + 1)
        ):
            slot = slots.popleft()
            self._settle(slot, slot.count)
            self._unsent -= 1 if self._unsent else 0
            done.append(slot.message)
            advanced = True
        if slots and slots[0].message.sequence == sequence and fragment + 1 > slots[0].acked:
            self._settle(slots[0], fragment + 1)
            advanced = True
        if advanced:
            self.attempts = 0
            self.due = None
            if self._out:
                self._arm(now)
        ranges = list(held)
        if ranges or highest_seen > sequence:
            self._fill_gap(ranges, highest_seen)
        return done

    def expire(self, now: float, held: Iterable[tuple[int, int, int, int]] = ()) -> int:
        """Queue the outstanding fragments again after a time-out, oldest first (DLP-27).

        Fragments in the ranges `held` are left out this time. Return the number queued."""
        self.attempts += 1
        self.due = None
        self._requeue(list(held))
        if self._out:
            self._arm(now)
        return len(self._again)

    def lost(self) -> None:
        """Queue the outstanding fragments of a lost connection, to go first (DLP-28, DLP-29)."""
        self.due = None
        self._requeue([])

    def _requeue(self, held: list[tuple[int, int, int, int]]) -> None:
        self._again.clear()
        for slot in self._slots:
            if not slot.sent:
                break
            sequence = slot.message.sequence
            for fragment in range(slot.acked, slot.sent):
                if not _within(sequence, fragment, held):
                    self._again.append((sequence, fragment))

    def _fill_gap(self, held: list[tuple[int, int, int, int]], highest_seen: int) -> None:
        top = max(((last, fragment) for _, _, last, fragment in held), default=(highest_seen, 0))
        queued = set(self._again)
        for slot in self._slots:
            sequence = slot.message.sequence
            if sequence > top[0] or not slot.sent:
                break
            for fragment in range(slot.acked, slot.sent):
                one = (sequence, fragment)
                if self._gap <= one < top and not _within(*one, held) and one not in queued:
                    self._again.append(one)
        self._gap = max(self._gap, top)

    def _settle(self, slot: _Slot[M], acked: int) -> None:
        gone = min(acked, slot.sent) - slot.acked
        if gone > 0:
            self._out -= gone
            self._bytes -= gone * min(slot.message.fragment_size, slot.size)
        slot.acked = acked
        slot.sent = max(slot.sent, acked)  # acknowledged before this side restarted

    def _slot(self, sequence: int) -> _Slot[M] | None:
        if not self._slots:
            return None
        index = sequence - self._slots[0].message.sequence
        return self._slots[index] if 0 <= index < len(self._slots) else None

    def _arm(self, now: float) -> None:
        if self.due is None:
            wait = retransmit_delay(
                self.attempts, first=self._limits.retry_first, most=self._limits.retry_max
            )
            self.due = now + wait.total_seconds()


_NONE_HELD = 2**63
"""Number above every sequence: if memory is empty, everything sent so far is acknowledged."""


def _within(sequence: int, fragment: int, held: list[tuple[int, int, int, int]]) -> bool:
    return any((a, b) <= (sequence, fragment) <= (c, d) for a, b, c, d in held)
