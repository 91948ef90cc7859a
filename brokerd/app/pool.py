"""DialogPool: one-way sends on reused dialogs, by key (PBT-22).

A stream is one dialog from its first message to the end-of-stream marker. The target, which has
handled all messages before the marker, ends first; then the pool ends its own side.
Reads:  messages on its own dialogs, which share a conversation group per service.
Calls:  the verbs of a session.
Never:  sends after the marker of a stream. Locks are taken in one order: the keys, sorted, then the
        group; a transaction needs only one group.
Fails:  a stream that the other side ends or fails is replaced, and its end is reported.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from brokerd.app.contract import END_OF_STREAM, Contract
from brokerd.app.dialog import QueueOf
from brokerd.app.nearby import why_waiting
from brokerd.client.connection import until
from brokerd.client.messages import Message
from brokerd.client.session import Session
from brokerd.client.transaction import Transaction
from brokerd.clock import Clock
from brokerd.errors import (
    BrokerError,
    ConnectionLost,
    ConversationNotFound,
    GroupNotFound,
    InvalidArgument,
    InvalidState,
    ReceiveTimeout,
    RemoteError,
    TransactionAborted,
)
from brokerd.ids import GroupId, Handle, IdSource
from brokerd.protocol.headers import Headers

CLOSE_WITHIN: Final = 30.0
"""Seconds that `close` gives the other sides to end."""

LOOK_EVERY: Final = 5.0
"""Seconds without a message before a check for streams that another reader has ended."""
_AT_ONCE: Final = 1000

Refused = Callable[["Stream", BrokerError], None]
"""A function that is called on the loop with a failed stream and the reason."""
Key = tuple[str, str, str, str]
"""(from service, to service, contract, partition)."""


class PoolOptions(msgspec.Struct, frozen=True):
    """Limits at which a new stream replaces an old one."""

    age: timedelta = timedelta(minutes=10)
    """Time since the first message of the stream."""
    messages: int = 10_000
    """Number of messages sent on the stream."""
    lifetime: timedelta = timedelta(days=1)
    """Lifetime of a dialog whose contract has none; it ends dialogs left open by dead programs."""


class Stream:
    """One dialog of the pool."""

    def __init__(self, key: Key, contract: Contract, born: float) -> None:
        self.key = key
        self.contract = contract
        self.born = born
        self.handle: Handle | None = None
        self.sent = 0
        self.is_ending = False
        """Whether the marker has been sent, or is about to be: no message may follow."""
        self.over: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        """Done when the target has ended: None if it has handled all messages, else its error."""


class Receipt:
    """The result of `post`: the message is durable in this broker, and can be followed."""

    def __init__(self, pool: "DialogPool", stream: Stream, number: int) -> None:
        self._pool = pool
        self.stream = stream
        self.number = number
        """Position of the message in the stream, from 0."""

    @property
    def handle(self) -> Handle:
        """Handle of the dialog that the message was sent on."""
        assert self.stream.handle is not None, "a receipt is made after the commit"
        return self.stream.handle

    async def processed(self, timeout: float | timedelta | None = None) -> None:  # noqa: ASYNC109
        """Wait until the target has committed its handling of the message.

        This ends the stream; the next message of the key begins a new one. `timeout`: seconds, or a
        timedelta; None = wait without a limit.

        Raises:
            RemoteError: the target or its broker refused the message.
            ReceiveTimeout: the target has not handled the message within `timeout`.
            BrokerError: an error common to all requests.
        """
        await self._pool.finish(self.stream)
        await self._pool.ended(self.stream, timeout)


class DialogPool:
    """A pool with a stream for each key; leaving its `async with` block ends all streams."""

    def __init__(
        self,
        session: Session,
        *,
        queue_of: QueueOf,
        clock: Clock,
        ids: IdSource,
        options: PoolOptions | None = None,
        on_refused: Refused | None = None,
    ) -> None:
        self._session = session
        self._queue_of = queue_of
        self._clock = clock
        self._ids = ids
        self._options = options or PoolOptions()
        self._on_refused = on_refused
        self._streams: dict[Key, Stream] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._by_handle: dict[bytes, Stream] = {}
        self._groups: dict[str, GroupId] = {}
        self._collectors: dict[str, asyncio.Task[None]] = {}
        self.refused: list[tuple[Stream, BrokerError]] = []
        """The latest 1,000 streams that failed, with the reasons, for use without `on_refused`."""

    async def __aenter__(self) -> Self:
        """Return the pool; no dialog is begun yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the streams, and wait for the other sides unless the block failed.

        Raises:
            BrokerError: an error that `close` names.
        """
        await self.close(CLOSE_WITHIN if error is None else 0.0)

    # Sending.

    async def send(
        self,
        from_service: str,
        to_service: str,
        contract: Contract,
        value: object,
        *,
        partition: str = "",
        headers: Headers | None = None,
    ) -> Receipt:
        """Send one message in the order of its partition; durable when this returns.

        Raises:
            BrokerError: an error that `send_many` names.
        """
        many = [(partition, value)]
        (receipt,) = await self.send_many(from_service, to_service, contract, many, headers=headers)
        return receipt

    async def send_many(
        self,
        from_service: str,
        to_service: str,
        contract: Contract,
        values: Iterable[tuple[str, object]],
        *,
        headers: Headers | None = None,
    ) -> list[Receipt]:
        """Send several values in one commit, each with its partition: all or none.

        Return a receipt for each value. `headers`: those of each message (SND-26).

        Raises:
            NotInContract: the contract has no message type for a value.
            InvalidArgument: the contract has no message type that ends a stream.
            BrokerError: an error that `begin_dialog` or `send` names.
        """
        if not contract.streams:
            raise InvalidArgument(
                f"contract {contract.name} has no message type {END_OF_STREAM}",
                hint="post under a contract made with brokerd.Contract(...)",
            )
        items = [((from_service, to_service, contract.name, part), value) for part, value in values]
        keys = {key for key, _ in items}
        async with self._locked(keys):
            while True:
                known = [self._streams[key] for key in sorted(keys) if key in self._streams]
                try:
                    return await self._send(contract, items, headers)
                except (InvalidState, ConversationNotFound):
                    if not known:
                        raise  # on new dialogs: a new stream would fail, too
                    for stream in known:
                        await self._end_stream(stream)

    async def _send(
        self, contract: Contract, items: list[tuple[Key, object]], headers: Headers | None
    ) -> list[Receipt]:
        receipts: list[Receipt] = []
        streams: dict[Key, Stream] = {}
        full: list[Stream] = []
        async with self._session.transaction() as tx:
            for key, value in items:
                stream = streams.get(key) or self._stream(key, contract)
                streams[key] = stream
                message_type, body = contract.write(value)
                if stream.handle is None:
                    stream.handle = await self._begin(tx, stream)
                await tx.send(stream.handle, body, message_type, headers=headers)
                receipts.append(Receipt(self, stream, stream.sent + _count(receipts, stream)))
            for stream in streams.values():
                if self._is_full(stream, _count(receipts, stream)):
                    await self._send_marker(tx, stream)
                    full.append(stream)
        for key, stream in streams.items():
            stream.sent += _count(receipts, stream)
            self._taken_up(key, stream)
        for stream in full:
            self._marked(stream)
        return receipts

    async def _begin(self, tx: Transaction, stream: Stream) -> Handle:
        from_service, to_service, contract, _ = stream.key
        lifetime = stream.contract.lifetime
        if lifetime is None:
            lifetime = self._options.lifetime
        group = self._groups.setdefault(from_service, GroupId(self._ids.fresh()))
        return await tx.begin_dialog(
            from_service, to_service, contract, lifetime, related_group=group
        )

    def _stream(self, key: Key, contract: Contract) -> Stream:
        known = self._streams.get(key)
        if known is not None and not known.is_ending:
            return known
        return Stream(key, contract, self._clock.monotonic())

    def _is_full(self, stream: Stream, more: int) -> bool:
        age = self._clock.monotonic() - stream.born
        return (
            stream.sent + more >= self._options.messages or age >= self._options.age.total_seconds()
        )

    def _taken_up(self, key: Key, stream: Stream) -> None:
        """Register the new dialog of a stream, so that its messages are collected."""
        assert stream.handle is not None, "it was given one in the transaction"
        if stream.handle not in self._by_handle and not stream.over.done():
            self._streams[key] = stream
            self._by_handle[stream.handle] = stream
        service = key[0]
        if service not in self._collectors:
            task = asyncio.get_running_loop().create_task(self._collect(service))
            self._collectors[service] = task

    @asynccontextmanager
    async def _locked(self, keys: set[Key]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for key in sorted(keys):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield

    # Ending.

    async def finish(self, stream: Stream) -> None:
        """Send the marker that ends a stream, once; no message follows it.

        Raises:
            BrokerError: an error common to all requests.
        """
        async with self._locked({stream.key}):
            await self._end_stream(stream)

    async def ended(self, stream: Stream, timeout: float | timedelta | None) -> None:  # noqa: ASYNC109
        """Wait until the target has ended the stream; `timeout`: seconds, None = without a limit.

        Raises:
            RemoteError: the target or its broker ended the stream with an error.
            ReceiveTimeout: the target has not ended the stream within `timeout`.
        """
        if not await self._within(timeout, stream.over):
            service, why = stream.key[1], ""
            if stream.handle is not None:
                why, _ = await why_waiting(self._session, stream.handle, service)
            raise ReceiveTimeout(f"{service} has not handled it in time{why}")
        error = stream.over.result()
        if error is not None:
            raise error

    async def close(self, within: float | timedelta = CLOSE_WITHIN) -> bool:
        """End all streams; return whether all other sides have ended `within` the time given.

        `within`: seconds, or a timedelta. Ends that come later stay on the queue of the service,
        and the next reader of that queue handles them.

        Raises:
            BrokerError: an error common to all requests.
        """
        try:
            for stream in list(self._streams.values()):
                await self.finish(stream)
            ends = [stream.over for stream in self._by_handle.values()]
            return not ends or await self._within(within, asyncio.gather(*ends))
        finally:
            tasks = list(self._collectors.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _within(self, limit: float | timedelta | None, wanted: "asyncio.Future[Any]") -> bool:
        """Wait for the future, at most `limit`; return whether it was done in time."""
        if limit is None:
            await asyncio.shield(wanted)
            return True
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
        await until(self._clock, self._clock.monotonic() + seconds, wanted)
        return wanted.done()

    async def _end_stream(self, stream: Stream) -> None:
        """End a stream; the caller holds the lock of its key."""
        if stream.is_ending:
            return
        try:
            async with self._session.transaction() as tx:
                await self._send_marker(tx, stream)
        except (InvalidState, ConversationNotFound):
            pass  # the stream is over already; its End or Error has the reason
        self._marked(stream)

    async def _send_marker(self, tx: Transaction, stream: Stream) -> None:
        assert stream.handle is not None, "an empty stream has no dialog"
        await tx.send(stream.handle, message_type=END_OF_STREAM)

    def _marked(self, stream: Stream) -> None:
        stream.is_ending = True
        if self._streams.get(stream.key) is stream:
            del self._streams[stream.key]

    # Messages that come back.

    async def _collect(self, service: str) -> None:
        """Receive the messages that come back on the streams of a service, until none is open."""
        failure: BrokerError = ConnectionLost("the pool was closed")
        try:
            queue = await self._queue_of(service)
            while self._streams_of(service):
                group = self._groups[service]
                if not await self._collect_once(queue, group=group, wait=LOOK_EVERY):
                    await self._look_for_ended(queue, service)
        except BrokerError as error:
            failure = error
        finally:
            del self._collectors[service]
            for stream in self._streams_of(service):
                self._over(stream, failure)

    async def _collect_once(self, queue: str, **selector: Any) -> bool:  # noqa: ANN401
        """Receive messages in one transaction; return whether any came."""
        tx = self._session.transaction()
        try:
            found = await tx.receive(queue, _AT_ONCE, **selector)
            over = [message for message in found if message.is_end or message.is_error]
            for message in over:
                await tx.end(message.handle)
            await tx.commit()
        except TransactionAborted:
            return True
        except GroupNotFound:
            return False
        finally:
            tx.rollback(counts=False)
        for message in over:
            stream = self._by_handle.get(message.handle)
            if stream is not None:
                self._over(stream, _error_of(message, stream))
        return bool(found)

    async def _look_for_ended(self, queue: str, service: str) -> None:
        """Find the streams that another reader of the queue has ended, and mark them as over."""
        for stream in self._streams_of(service):
            try:
                await self._collect_once(queue, conversation=stream.handle)
            except ConversationNotFound:
                self._over(stream, None)

    def _streams_of(self, service: str) -> list[Stream]:
        return [stream for stream in self._by_handle.values() if stream.key[0] == service]

    def _over(self, stream: Stream, error: BrokerError | None) -> None:
        self._by_handle.pop(stream.handle or b"", None)
        self._marked(stream)
        if error is not None:
            self.refused.append((stream, error))
            del self.refused[:-1000]
            if self._on_refused is not None:
                self._on_refused(stream, error)
        if not stream.over.done():
            stream.over.set_result(error)


def _error_of(message: Message, stream: Stream) -> RemoteError | None:
    """Return why the stream failed, or None; an end before the marker is a failure, too."""
    if message.is_error:
        return message.error
    return None if stream.is_ending else RemoteError(0, "the target ended before the stream did")


def _count(receipts: list[Receipt], stream: Stream) -> int:
    return sum(receipt.stream is stream for receipt in receipts)
