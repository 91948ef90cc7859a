"""Exchange: the requests of one transaction, collected or written, and its first failure (SDK-18).

As long as the program needs no answer, verbs are only collected: the commit sends them as one
`transact`, which survives a lost connection. The transaction becomes interactive at the first
verb with an answer, at the first savepoint, or when its verbs exceed one frame: the collected
verbs are written first, and then each verb as it comes. The first error of any verb is the
failure of the transaction, and surfaces at the next verb with an answer, or at the commit.

Reads:  answers.     Calls: client.link.
Never:  writes after a failure or the end, or commits if a cancelled receive consumed messages.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from types import CodeType
from typing import Any, Final

from brokerd.client.call_sites import Site, call_site, note
from brokerd.client.link import Link
from brokerd.client.recording import Recording
from brokerd.client.requests import Pending
from brokerd.errors import BrokerError, NoSuchTx, TransactionAborted
from brokerd.protocol.client_frames import FRAME_LIMIT
from brokerd.protocol.client_verbs import MAX_VERBS

_OVERHEAD: Final = 256
"""A generous estimate of the bytes of a verb in addition to its texts and bodies."""


class Exchange:
    """The requests of one transaction."""

    # Class attributes, not assignments in `__init__`, since each small commit makes a transaction.
    _size = 0
    _tx: int | None = None
    """Number of the transaction on the link; None while verbs are only collected."""
    _latest: Pending | None = None
    _last_savepoint = 0
    late: Sequence[asyncio.Future[object]] = ()
    """Answers to cancelled receives, which may have consumed messages (CLP-41)."""
    is_open = True
    has_effect = False
    """Whether a commit would change anything in the broker."""
    failure: BrokerError | None = None

    def __init__(self, link: Link, recording: Recording) -> None:
        self._link = link
        self._recording = recording
        self._verbs: list[tuple[str, tuple[object, ...]]] = []
        self._sites: list[Site] = []
        # Of the collected verbs, so that a failed commit can name the line of the program.
        self.on_behalf_of: CodeType | None = None
        """The code of the handler whose result is being sent; None = the program calls itself."""

    # Verbs.

    def collect(self, verb: str, args: tuple[object, ...], size: int) -> bool:
        """Keep a verb for the commit; False = it does not fit, or earlier verbs were written.

        This is not a coroutine, because the most common transaction consists of calls to this
        method and its commit.

        Raises:
            NoSuchTx: the transaction is over.
            BrokerError: the failure.
        """
        if not self.is_open or self.failure is not None:
            self.check_open()
        self.has_effect = True
        if self._tx is not None:
            return False
        self._size += size + _OVERHEAD
        if self._size > FRAME_LIMIT or len(self._verbs) >= MAX_VERBS:
            return False
        self._verbs.append((verb, args))
        self._sites.append(call_site(verb, self.on_behalf_of))
        return True

    async def write(self, verb: str, args: tuple[object, ...]) -> None:
        """Write a verb that `collect` has refused, without waiting for the answer.

        Raises:
            ConnectionLost: the session is over.
        """
        if self._tx is None:
            await self._interact()
        await self._wait_for_room()
        self._request(verb, args)

    async def ask(self, verb: str, args: tuple[object, ...]) -> object:
        """Write a verb, and return its answer.

        Raises:
            NoSuchTx: the transaction is over.
            BrokerError: the failure, or an error common to all requests; see `Session`.
        """
        self.check_open()
        if self._tx is None:
            await self._interact()
        await self._wait_for_room()
        pending = self._request(verb, args)
        try:
            return await asyncio.shield(pending.future)
        except asyncio.CancelledError:
            if verb == "receive":
                self.late = [*self.late, pending.future]
            if verb in ("receive", "get_group"):
                self._link.cancel(pending)
            raise
        except (NoSuchTx, TransactionAborted) as error:
            raise (self.failure or error) from None

    def explain(self, error: BrokerError) -> None:
        """Add the lines of the program that called the collected verbs to an error of the commit.

        Raises: nothing.
        """
        if text := note(self._sites):
            error.add_note(text)

    def check_open(self) -> None:
        """Check that the transaction accepts further verbs.

        Raises:
            NoSuchTx: the transaction is over.
            BrokerError: the failure.
        """
        if not self.is_open:
            raise NoSuchTx("this transaction is over")
        if self.failure is not None:
            raise self.failure

    # Savepoints.

    async def set_savepoint(self) -> int:
        """Set a savepoint and return its number.

        Raises:
            NoSuchTx: the transaction is over.
            BrokerError: the failure, or an error common to all requests; see `Session`.
        """
        self._last_savepoint += 1
        number = self._last_savepoint
        self._recording.event("savepoint", savepoint=number)
        await self.ask("savepoint", (number,))
        return number

    async def settle_savepoint(self) -> None:
        """Wait for the answers to all requests so far.

        Raises:
            NoSuchTx: the transaction is over.
            BrokerError: the failure.
        """
        if self._latest is not None:
            await asyncio.wait([self._latest.future])
        self.check_open()

    async def roll_back_to(self, number: int) -> None:
        """Undo everything since a savepoint, the failure included.

        Raises: nothing.
        """
        if not self.is_open or self._tx is None:
            return
        self._recording.event("rollback_to", savepoint=number)
        await self._wait_for_room()
        pending = self._request("rollback_to", (number,))
        try:
            await asyncio.shield(pending.future)
        except BrokerError as error:  # the whole transaction is lost: keep the error
            self._fail(error)
        else:
            self._recording.event("rollback_to", kind="ok", savepoint=number)
            self.failure = None
            self.late = [one for one in self.late if not one.done()]

    # The end.

    def note_effect(self) -> None:
        """Note that a verb with an answer has changed something, so that a commit is needed.

        Raises: nothing.
        """
        self.has_effect = True

    def close(self) -> None:
        """End a transaction whose only verb was written without the exchange.

        Raises: nothing.
        """
        self.is_open = False

    async def took_messages_unseen(self) -> bool:
        """Return whether a cancelled receive consumed messages unseen by the program (CLP-41).

        Raises: nothing.
        """
        for answer in self.late:
            try:
                taken = await answer
            except BrokerError as error:
                self._fail(error)
            else:
                if taken:
                    return True
        return False

    def commit(self, not_counted: Sequence[str]) -> "asyncio.Future[Any]":
        """Write the commit, and return its future.

        `not_counted`: codes of errors after which the rollback does not count for the queue.

        Raises: nothing.
        """
        self.is_open = False
        self._recording.event("commit", kind="invoke")
        if self._tx is None:
            return self._recording.watched(self._link.transact(self._verbs))
        return self._recording.watched(self._link.commit(self._tx, not_counted))

    def roll_back(self, options: dict[str, object]) -> None:
        """Undo everything; verbs that were only collected need no request.

        Raises: nothing.
        """
        self.is_open = False
        self._verbs.clear()
        self._recording.event("rollback", kind="ok")
        if self._tx is not None:
            self._link.rollback(self._tx, options)

    # Requests.

    async def _interact(self) -> None:
        """Make the transaction interactive, and write the verbs collected so far."""
        self._tx, begun = await self._link.begin()
        begun.future.add_done_callback(partial(self._answered, Site("begin", None, 0)))
        verbs, self._verbs = self._verbs, []
        sites, self._sites = self._sites, []
        for (verb, args), site in zip(verbs, sites, strict=True):
            await self._wait_for_room()
            self._request(verb, args, site)

    async def _wait_for_room(self) -> None:
        """Wait until the link may have one more unanswered request (CLP-30)."""
        if self._tx is not None and not self._link.may_write:
            await self._link.room_in_tx(self._tx)

    def _request(self, verb: str, args: tuple[object, ...], site: Site | None = None) -> Pending:
        assert self._tx is not None, "only an interactive transaction writes requests"
        pending = self._latest = self._link.in_tx(self._tx, verb, args)
        answered = partial(self._answered, site or call_site(verb, self.on_behalf_of))
        if pending.future.done():  # refused by the link: note the failure before a commit
            answered(pending.future)
        else:
            pending.future.add_done_callback(answered)
        return pending

    def _answered(self, site: Site, future: "asyncio.Future[object]") -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, BrokerError):
            if self.failure is None and (text := note([site])):
                error.add_note(text)
            self._fail(error)

    def _fail(self, error: BrokerError) -> None:
        if self.failure is None:
            self.failure = error
