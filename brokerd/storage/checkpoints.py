"""Checkpoints: the log is folded into the file when it has grown long.

Reads:  the size of each flush that was written.      Calls: the writer, between two flushes.
Never:  delays a confirmation; the flushes after it wait until the fold has returned.
Fails:  a full disk loses nothing, as the log still has everything; any other error stops the store.
"""

from collections.abc import Callable

from brokerd.errors import StoreFault
from brokerd.storage.options import Metrics, StoreOptions
from brokerd.storage.sqlite_errors import as_fault, is_full
from brokerd.storage.writers import Writer, fold


class Checkpoints:
    """The growth of the log since it was last folded; starts a fold when the log is long."""

    __slots__ = ("_fail", "_metrics", "_no_room", "_options", "_pages", "_piece_bytes", "_writer")

    def __init__(
        self,
        *,
        writer: Writer,
        options: StoreOptions,
        metrics: Metrics,
        no_room: Callable[[], None],
        fail: Callable[[StoreFault], None],
    ) -> None:
        """Create the count.

        `no_room`: called when the disk was full. `fail`: stops the store for good.
        """
        self._writer = writer
        self._options = options
        self._metrics = metrics
        self._no_room = no_room
        self._fail = fail
        self._pages = self._piece_bytes = 0

    def log_has_grown(self, pages: int, piece_bytes: int) -> None:
        """Count the pages that a write has added to the log; request a fold if the log is long."""
        options = self._options
        self._pages += pages
        self._piece_bytes += piece_bytes
        if (
            self._pages >= options.checkpoint_pages
            or self._piece_bytes >= options.checkpoint_pieces
        ):
            self._pages = self._piece_bytes = 0
            self._writer.submit(fold, self._folded)

    def _folded(self, left: int | None, error: BaseException | None) -> None:
        if is_full(error):
            self._no_room()
            return
        if error is not None or left is None:
            error = error or AssertionError()
            self._fail(as_fault(error, doing="a checkpoint of the store", known=False))
            return
        self._metrics.checkpoints += 1
        self._pages += left
