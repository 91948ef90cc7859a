"""Options of a store, and its counters.

Reads: nothing.      Calls: nothing.      Never: checks a value; the settings do.
"""

from datetime import timedelta

import msgspec


class StoreOptions(msgspec.Struct, frozen=True):
    """Limits of the commit pipeline."""

    flush_transactions: int = 4096
    """Changesets in one flush at most."""
    flush_bytes: int = 16 * 1024 * 1024
    """Bytes of bodies in one flush, unless one changeset alone has more."""
    lazy: timedelta = timedelta(milliseconds=100)
    """How long changesets that are not urgent wait for an urgent one."""
    shelf_messages: int = 50_000
    """Messages after which a shelf is full, as many as a window holds; 0 = no shelf is used."""
    shelf_bytes: int = 32 * 1024 * 1024
    """Bytes of bodies after which a shelf is full."""
    noted_removals: int = 16_384
    """Received messages that may stay in the file until they are deleted together; 0 = none."""
    unread_at_once: int = 4096
    """Unread messages of ended dialogs, outside windows, that a flush deletes at most, or a
    step of the sweep after it."""
    full_retry: timedelta = timedelta(milliseconds=250)
    """Wait before a write that found no room on the disk is tried again."""
    checkpoint_pages: int = 4000
    """Pages in the log after which it is folded into the file."""
    checkpoint_pieces: int = 1024 * 1024
    """Bytes of pieces in the log after which it is folded. Ordinary pages are rewritten again and
    again, so waiting pays; pieces are written once, so waiting only makes the fold longer, and
    flushes wait for it."""


class Metrics:
    """Counters since the store was opened."""

    __slots__ = (
        "changesets",
        "checkpoints",
        "clean_ups",
        "dropped",
        "flushes",
        "microseconds",
        "rows",
    )

    def __init__(self) -> None:
        self.microseconds = 0
        """Time spent writing."""
        self.flushes = 0
        self.changesets = 0
        self.rows = 0
        self.checkpoints = 0
        self.clean_ups = 0
        """Ticks that found received messages to delete and began to (PER-19)."""
        self.dropped = 0
        """Unread messages that were deleted after the end of their dialogs."""
