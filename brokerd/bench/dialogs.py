"""`brokerd bench dialogs`: dialogs of one message each, begun, ended by both sides, and removed.

Reads: the memory of the daemons and of itself, the size of the stores.   Calls: daemons, the SDK.
Never: reuses a dialog, except for the messages that the dialogs are compared with.

Each dialog is begun, used and ended by one transaction, which the SDK sends as one request. The far
side receives message and EndDialog and ends too, many dialogs in one transaction. At most `_OPEN`
dialogs are open at a time, so that memory shows the remains of dialogs, not waiting dialogs. With
`options.peer` the two sides are in two daemons, where the target's endpoint is kept for the replay
guard and must then be removed.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Sequence
from time import perf_counter

from brokerd.bench.daemons import OBJECTS, Daemon, free_ports, memory_of, route, running
from brokerd.bench.measuring import Options, Say, bench_directory, describe_settings
from brokerd.bench.opening import open_dialogs
from brokerd.client.messages import Message
from brokerd.client.session import Session, connect
from brokerd.client.transaction import Transaction
from brokerd.clock import SystemClock
from brokerd.model import END_DIALOG
from brokerd.units import counted

_REPORT_EVERY = 5.0
_CLIENTS = 8
_DIALOGS = 64
"""Number of dialogs that stay open, for the messages that the dialogs are compared with."""
_MESSAGES, _GROUPS = 200, 100
"""Most messages and most groups of one transaction of a reader."""
WARM = 2_000
"""Number of dialogs before the measurement, after which memory has its usual size."""
_OPEN = 1600
"""Most dialogs that are open at a time."""
_SAMPLES = 10
"""Number of times that memory is read during the measurement."""
_GONE_LIMIT = 300.0
"""The longest wait, in seconds, for the removal of the last closed endpoints."""


class DialogsOptions(Options, frozen=True, kw_only=True):
    """The number of dialogs, and the places of their two sides."""

    dialogs: int = 100_000
    """Number of dialogs of one message each."""
    outstanding: int = 100
    """Number of dialogs that each client begins at a time."""
    readers: int = 8
    """Number of the receiver's transactions under way."""
    size: int = 256
    peer: bool = False
    """Whether the two sides are in daemons of their own."""
    replay_guard: float = 1.0
    """Seconds for which a closed target endpoint is kept (DLP-55)."""


async def dialogs(options: DialogsOptions, say: Say) -> dict[str, object]:
    """Begin, use and end `options.dialogs` dialogs; measure the cost and the remains."""
    with bench_directory(options) as directory:
        guard = options.replay_guard
        if options.peer:
            east, west = free_ports(2)
            daemons = [
                Daemon(
                    directory, name, port=own, objects=OBJECTS + route(service, other),
                    replay_guard=guard,
                )
                for name, own, service, other in (
                    ("east", east, "bench_sink", west),
                    ("west", west, "bench_source", east),
                )
            ]  # fmt: skip
        else:
            daemons = [Daemon(directory, "dialogs", port=0, objects=OBJECTS, replay_guard=guard)]
        async with running(*daemons):
            return await _measure(daemons, options, say)


async def _measure(daemons: list[Daemon], options: DialogsOptions, say: Say) -> dict[str, object]:
    say(f"{counted(options.dialogs, 'message')} on open dialogs, to compare with")
    messages = await _messages(daemons, options)
    await _run(daemons, WARM, options, None)
    await _gone(daemons, say)
    for one in daemons:
        await one.quiet()
    before = [(one.memory, await one.store_bytes(), one.processor_seconds) for one in daemons]
    own, samples = memory_of(os.getpid()), _Samples(daemons, options.dialogs)
    say(f"{counted(options.dialogs, 'dialog')} of one message each")
    began = perf_counter()
    await _run(daemons, options.dialogs, options, say, samples)
    seconds = perf_counter() - began
    spent = [one.processor_seconds - was[2] for one, was in zip(daemons, before, strict=True)]
    left = await _gone(daemons, say)
    gone = perf_counter() - began - seconds
    for one, was in zip(daemons, before, strict=True):
        await one.shrunk(was[1])
        await one.quiet()
    after = [(one.memory, await one.store_bytes()) for one in daemons]
    rate = round(options.dialogs / seconds, 1)
    return {
        "benchmark": "dialogs",
        "settings": describe_settings(options),
        "dialogs": options.dialogs,
        "rate": rate,
        "messages": messages,
        "part_of_the_message_rate": round(rate / messages["rate"], 3),
        "cost_in_messages": round(
            sum(spent) / options.dialogs * 1e6 / messages["processor_us_per_message"], 2
        ),
        "endpoints_left": left,
        "gone_after_seconds": round(gone, 1),
        "store_ratio": round(max(a[1] / b[1] for a, b in zip(after, before, strict=True)), 2),
        "daemons": {
            one.name: {
                "processor_us_per_dialog": round(used / options.dialogs * 1e6, 1),
                "memory_before_bytes": b[0],
                "memory_on_the_way_bytes": samples.of_daemon(at),
                "memory_after_bytes": a[0],
                "store_before_bytes": b[1],
                "store_after_bytes": a[1],
            }
            for at, (one, used, b, a) in enumerate(zip(daemons, spent, before, after, strict=True))
        },
        "bench_memory_before_bytes": own,
        "bench_memory_after_bytes": memory_of(os.getpid()),
    }


async def _messages(daemons: list[Daemon], options: DialogsOptions) -> dict[str, float]:
    """Measure the same number of messages by the same clients, on dialogs that stay open."""
    async with await connect(daemons[0].address, broker="main") as session:
        handles = await open_dialogs(session, _DIALOGS, "bench_source", ["bench_sink"])
        await _run(daemons, WARM, options, None, handles=handles)
        spent = sum(one.processor_seconds for one in daemons)
        began = perf_counter()
        await _run(daemons, options.dialogs, options, None, handles=handles)
        seconds = perf_counter() - began
        spent = sum(one.processor_seconds for one in daemons) - spent
        async with session.transaction() as tx:
            for handle in handles:
                await tx.end(handle)
        await _end_all(daemons[-1], len(handles))
    return {
        "rate": round(options.dialogs / seconds, 1),
        "processor_us_per_message": round(spent / options.dialogs * 1e6, 1),
    }


async def _end_all(daemon: Daemon, count: int) -> None:
    """End the far sides of `count` dialogs whose near sides have ended."""
    async with await connect(daemon.address, broker="main") as session:
        while count:
            async with session.transaction() as tx:
                messages = await tx.receive("bench_q", _MESSAGES, wait=0.2, groups=_GROUPS)
                count -= await _end_ended(tx, messages)


async def _end_ended(tx: Transaction, messages: Sequence[Message]) -> int:
    """End the dialogs that their far sides have ended; return their number."""
    ended = [one.handle for one in messages if one.message_type == END_DIALOG]
    if ended:
        await tx.end(ended)
    return len(ended)


class _Samples:
    """Memory of the daemons, each time another tenth of the dialogs is done."""

    def __init__(self, daemons: list[Daemon], count: int) -> None:
        self._daemons = daemons
        self._step = max(1, count // _SAMPLES)
        self._taken: list[list[int]] = []

    def sample(self, done: int) -> None:
        """Take a sample for each further tenth, now that `done` dialogs are done."""
        while len(self._taken) < done // self._step:
            self._taken.append([one.memory for one in self._daemons])

    def of_daemon(self, at: int) -> list[int]:
        """Return the samples of one daemon, by its number."""
        return [one[at] for one in self._taken]


async def _gone(daemons: list[Daemon], say: Say) -> int:
    """Wait until no endpoint is left, at most `_GONE_LIMIT` seconds; return the number left."""
    clock = SystemClock()
    deadline, reported_at = clock.monotonic() + _GONE_LIMIT, 0.0
    while True:
        left = 0
        for one in daemons:
            async with await connect(one.address, broker="main") as session:
                left += (await session.view_page("conversation_endpoints", limit=1)).rows != []
        if not left or clock.monotonic() > deadline:
            return await _left(daemons) if left else 0
        if clock.monotonic() - reported_at > _REPORT_EVERY:
            reported_at = clock.monotonic()
            say("  waiting for closed endpoints to go")
        await clock.sleep_until(clock.monotonic() + 0.5)


async def _left(daemons: list[Daemon]) -> int:
    count = 0
    for one in daemons:
        async with await connect(one.address, broker="main") as session:
            count += len(await session.view("conversation_endpoints"))
    return count


async def _run(
    daemons: list[Daemon],
    count: int,
    options: DialogsOptions,
    say: Say | None,
    samples: _Samples | None = None,
    *,
    handles: Sequence[bytes] = (),
) -> None:
    """Run `count` dialogs of one message; with `handles`, `count` messages on these dialogs."""
    async with contextlib.AsyncExitStack() as stack:
        senders = [
            await stack.enter_async_context(await connect(daemons[0].address, broker="main"))
            for _ in range(_CLIENTS)
        ]
        receiver = await stack.enter_async_context(
            await connect(daemons[-1].address, broker="main")
        )
        room = _Room(_OPEN)
        work = _Work(count, bytes(options.size), room, deque(handles))
        await asyncio.gather(
            *(work.send(one) for one in senders for _ in range(options.outstanding)),
            _answer(receiver, count, room, say, samples, readers=options.readers, ends=not handles),
        )


class _Room:
    """The number of dialogs that may still be opened.

    A semaphore is not used, because it walks past all woken waiters at each release.
    """

    def __init__(self, free: int) -> None:
        self._free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a free place, and occupy it."""
        while self._free <= 0:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            await place
        self._free -= 1

    def give(self, count: int) -> None:
        """Give back `count` places."""
        self._free += count
        for _ in range(min(count, len(self._waiting))):
            self._waiting.popleft().set_result(None)


class _Work:
    """The dialogs or messages not sent yet."""

    def __init__(self, count: int, body: bytes, room: _Room, handles: deque[bytes]) -> None:
        self._left = count
        self._body = body
        self._room = room
        self._handles = handles

    async def send(self, session: Session) -> None:
        """Send dialogs or messages one after the other, each durable before the next."""
        while self._left > 0:
            self._left -= 1
            await self._room.acquire()
            if self._handles:
                handle = self._handles[0]
                self._handles.rotate(-1)
                await session.send(handle, self._body, "Item")
            else:
                async with session.transaction() as tx:
                    handle = await tx.begin_dialog("bench_source", "bench_sink", "bench/v1")
                    await tx.send(handle, self._body, "Item")
                    await tx.end(handle)


async def _answer(
    session: Session,
    count: int,
    room: _Room,
    say: Say | None,
    samples: _Samples | None,
    *,
    readers: int,
    ends: bool,
) -> None:
    """Receive messages; with `ends`, end each dialog whose EndDialog has arrived.

    Count these dialogs; without `ends`, count the messages. Over a network a message may arrive
    before the EndDialog of its dialog.
    """
    done, reported_at = 0, perf_counter()

    async def read() -> None:
        nonlocal done, reported_at
        while done < count:
            async with session.transaction() as tx:
                messages = await tx.receive("bench_q", _MESSAGES, wait=0.2, groups=_GROUPS)
                count_now = await _end_ended(tx, messages) if ends else len(messages)
            done += count_now
            if samples is not None:
                samples.sample(done)
            room.give(count_now)
            if say is not None and perf_counter() - reported_at > _REPORT_EVERY:
                reported_at = perf_counter()
                say(f"  {done} done")

    await asyncio.gather(*(read() for _ in range(readers)))
