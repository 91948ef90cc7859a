"""Runner: runs one reader from start to end, in the daemon or in its own process (ACT-20).

Reads:  the activation of the reader's queue.
Calls:  handlers.load_handler, `connect` for its session, processes.start.
Never:  decides when a reader starts or what its end means for the queue, or opens a transaction
        (ACT-22).
Fails:  only the reader fails; its `error` gives the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from brokerd.activation.handlers import Handler, HandlerError, ReaderSession, load_handler
from brokerd.activation.monitored_queue import Reader
from brokerd.activation.processes import start
from brokerd.activation.spares import Spares
from brokerd.activation.view_rows import Counts
from brokerd.broker.poison import Undone
from brokerd.client.outcomes import Park, Retry
from brokerd.clock import SECOND
from brokerd.errors import HandlerLeftTransactionOpen
from brokerd.model import Host

Connect = Callable[[str], Awaitable[ReaderSession]]
"""Function that opens a session with the named broker; leaving the session closes it."""
Output = Callable[..., None]
"""Function of (reader, line=...) or (reader, dropped_bytes=...) that gets the output of a child."""
_LATE: Final = 100
_GONE: Final = (
    "its process, or its connection, was gone in the middle of a transaction; fix: see how it "
    "ended (broker.activation, aborted), and commit before the handler returns"
)


class Runner:
    """The runner of an instance, which runs readers and finds them by their sessions."""

    def __init__(
        self,
        *,
        connect: Connect,
        address: str,
        tokens: Callable[[], bytes],
        output: Output,
        counts: Counts,
    ) -> None:
        """Create the runner.

        `address`: address of the daemon for child processes. `tokens`: draws the token by which the
        daemon recognises a child."""
        self._counts = counts
        self._connect = connect
        self._tokens = tokens
        self._output = output
        self.spares = Spares(
            address=address,
            tokens=tokens,
            output=lambda reader, line: output(reader, line=line),
        )
        self._known: dict[bytes, Reader] = {}
        self._late: dict[bytes, Reader] = {}
        """Ended readers whose connections may still be open, by the ids of their sessions."""

    def find(self, known_as: bytes) -> Reader | None:
        """Return the running reader of a session; None = the client is not a running reader."""
        return self._known.get(known_as)

    async def run(self, reader: Reader) -> None:
        """Run one handler until it ends.

        Its error, other than a cancellation, is kept in `reader.error`."""
        queue = reader.queue
        structlog.contextvars.bind_contextvars(
            broker=queue.broker, queue=queue.name, reader=reader.number
        )
        try:
            if queue.activation.host is Host.PROCESS:
                await self._in_process(reader)
                return
            handler = load_handler(queue.activation.handler, queue.name)
            async with await self._connect(queue.broker) as session:
                session.drain_wait = queue.activation.drain_wait / SECOND
                reader.session_id = session.client_id
                self._invoke(reader, session.client_id)
                await _handle(reader, handler, session)
        except HandlerError as error:
            reader.error = error.with_cure
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:  # noqa: BLE001  # per reader
            reader.error = reader.error or _text_of(error)

    def forget(self, reader: Reader) -> None:
        """Remove a reader that has ended.

        A child is kept for a while, because its connection may end after its process."""
        self._known.pop(reader.known_as, None)
        if reader.child is not None:
            self._late[reader.known_as] = reader
            while len(self._late) > _LATE:
                del self._late[next(iter(self._late))]

    def evaluate_rollback(self, known_as: bytes, how: Undone) -> Undone | None:
        """Return what a rollback of a client means for poison, if it is a reader (PBT-10, PSN-16).

        The end of a reader's session in the middle of a transaction counts like a rollback by the
        handler, unless the reader was asked to end. None = the rollback does not count."""
        reader = self._known.get(known_as) or self._late.get(known_as)
        if reader is None:
            return how
        if reader.stopped:
            return None
        if reader.error and not how.counts:  # cancelled after its deadline (ACT-51)
            return msgspec.structs.replace(how, counts=True, error=reader.error)
        if how.disconnect:
            reader.cut = True
            left = HandlerLeftTransactionOpen().with_cure if reader.child is None else _GONE
            error = reader.error or left
            return msgspec.structs.replace(how, disconnect=False, error=error)
        return how

    def _invoke(self, reader: Reader, known_as: bytes) -> None:
        self._counts.invoked += 1
        reader.known_as, reader.invoked = known_as, True
        self._known[known_as] = reader

    async def _in_process(self, reader: Reader) -> None:
        """Run a child, or a waiting spare, until it ends; keep its error in `reader.error`."""
        spare = self.spares.claim(reader.queue)
        if spare is not None:
            reader.child = running = spare.running
            self._invoke(reader, spare.token)  # first: its receives have to find the reader
            spare.begin(reader)
            ending = spare.ending
        else:
            token = self._tokens()
            child = self.spares.child_of(reader.queue, token)
            try:
                running = await start(child, lambda line: self._output(reader, line=line))
            except (OSError, LookupError) as error:
                reader.error = f"it cannot be started: {error}"
                return
            reader.child = running
            self._invoke(reader, token)
            ending = asyncio.ensure_future(running.ended())
        if reader.stopped:  # asked to end while it was being started
            running.terminate()
        outcome = await _outcome(ending)
        if not outcome and reader.cut:
            outcome = HandlerLeftTransactionOpen().with_cure
        reader.error = reader.error or outcome
        if running.dropped:
            self._output(reader, dropped_bytes=running.dropped)
        if not reader.error:
            self.spares.worked(reader.queue)


async def _outcome(ending: "asyncio.Future[str]") -> str:
    """Return why a process failed, or "". If cancelled, kill the process, then raise."""
    try:
        return await asyncio.shield(ending)
    except asyncio.CancelledError:
        ending.cancel()
        await asyncio.wait({ending})
        raise


async def _handle(reader: Reader, handler: Handler, session: ReaderSession) -> None:
    """Run the handler, and record its error before its session ends (PSN-16)."""
    try:
        await handler(session)
    except (Retry, Park):
        pass  # the SDK has rolled back as the handler requested
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:
        reader.error, reader.raised = _text_of(error), error
        raise
    if session.open_transactions:
        reader.error = HandlerLeftTransactionOpen().with_cure


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
