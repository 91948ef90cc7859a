"""Options of a store, and its counters.

Reads: nothing.      Calls: nothing.      Never: checks a value; the settings do.
"""

from datetime import timedelta

import msgspec


class StoreOptions(msgspec.Struct, frozen=True):
    """Limits of the commit pipeline."""

    flush_transactions: int = 4096
    """Most changesets in one flush."""
    flush_bytes: int = 16 * 1024 * 1024
    """Most bytes of bodies in one flush, unless one changeset alone has more."""
    lazy: timedelta = timedelta(milliseconds=100)
    """Longest time that changesets which are not urgent wait for an urgent one."""
    shelf_messages: int = 50_000
    """Number of messages after which a shelf is full, as many as a window holds; 0 = no shelf is
    used."""
    shelf_bytes: int = 32 * 1024 * 1024
    """Bytes of bodies after which a shelf is full."""
    noted_removals: int = 16_384
    """Number of received messages that may stay in the file to be deleted together; 0 = none."""
    unread_at_once: int = 4096
    """Most unread messages of ended dialogs, outside windows, that are deleted by one flush, or by
    one step of the sweep after it."""
    full_retry: timedelta = timedelta(milliseconds=250)
    """Time before a write that found no room on the disk is tried again."""
    checkpoint_pages: int = 4000
    """Number of pages in the log after which it is folded into the file."""
    checkpoint_pieces: int = 1024 * 1024
    """Bytes of pieces in the log after which it is folded. Ordinary pages are rewritten again and
    again, so a delay saves work; pieces are written once, so a delay only makes the fold longer,
    and flushes wait for it."""


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
        """Ticks that found received messages to delete, and began to delete them (PER-19)."""
        self.dropped = 0
        """Unread messages that were deleted after the end of their dialogs."""
