"""Confirmations: the waiters of a flush are called once it is durable, in the order of joining.

Reads:  the flush that has been written.      Calls: the waiters, and the calls they add.
Never:  calls a waiter of a flush whose COMMIT has not returned (REL-1, REL-4).
Fails:  an exception of a waiter is a fault of the store: the waiters after it are never called.
"""

import asyncio
from collections.abc import Callable

from brokerd.errors import StoreFault
from brokerd.ids import ClientId
from brokerd.storage.flush import Flush
from brokerd.storage.rows.tokens import Tokens
from brokerd.storage.sqlite_errors import as_fault


class Confirmations:
    """The calls that follow a written flush: waiters, then `behind`, then `soon`."""

    __slots__ = ("_behind", "_fail", "_loop", "_settling", "_soon", "_tokens")

    def __init__(self, *, tokens: Tokens, fail: Callable[[StoreFault], None]) -> None:
        """Create the confirmations of a store.

        `fail`: stops the store for good.
        """
        self._loop = asyncio.get_running_loop()
        self._tokens = tokens
        self._fail = fail
        self._behind: list[Callable[[], None]] | None = None
        self._soon: list[Callable[[], None]] | None = None
        """Calls of `soon`; this and `_behind` are lists only while a flush is being confirmed."""
        self._settling: dict[ClientId, list[asyncio.Future[None]]] = {}

    def behind(self, call: Callable[[], None]) -> None:
        """Call `call` after the flush that is being confirmed; immediately if none is.

        So `call` can choose among everything that became durable with the flush.
        """
        if self._behind is None:
            call()
        else:
            self._behind.append(call)

    def soon(self, call: Callable[[], None]) -> None:
        """Call `call` on the loop's next turn, or after the flush that is being confirmed.

        In the latter case the calls of `behind` come first, then those of `soon`, latest first.
        A turn of the loop can be long: it handles all data that the sockets have received.
        """
        if self._soon is None:
            self._loop.call_soon(call)
        else:
            self._soon.append(call)

    def settling(self, client: ClientId) -> "asyncio.Future[None]":
        """Return a future that is done when no token of the client is being written."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._settling.setdefault(client, []).append(future)
        return future

    def confirm(self, flush: Flush) -> None:
        """Call the waiters of a flush that is durable now, then the calls they have added."""
        soon: list[Callable[[], None]] = []
        self._soon = soon
        try:
            self._notify_waiters(flush)
        except BaseException as error:
            # The waiters after the one that failed would never be called.
            self._fail(as_fault(error, doing="confirming a flush", known=False))
            raise
        finally:
            self._soon = None
            # Latest first: a client that was given a message can continue while other clients are
            # notified.
            for call in reversed(soon):
                self._call(call)

    def _notify_waiters(self, flush: Flush) -> None:
        for settled in self._tokens.durable(flush.tokens):
            for future in self._settling.pop(settled, ()):
                if not future.done():
                    future.set_result(None)
        self._behind = []
        for done in flush.done:
            done()
        calls, self._behind = self._behind, None
        for call in calls:
            call()

    def _call(self, call: Callable[[], None]) -> None:
        """Call as the loop would: an exception goes to its handler and stops no other call."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # reported to the loop's handler
            self._loop.call_exception_handler({"message": f"{call!r} failed", "exception": error})
