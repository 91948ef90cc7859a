"""`brokerd bench dialogs`: dialogs of one message each, begun, answered by an end, and gone.

Reads: the memory of the daemons and of itself, the size of the stores.   Calls: daemons, the SDK.
Never: reuses a dialog; that is what `bench local` measures.

Each dialog is one transaction that begins it, sends and ends. The other side receives message and
EndDialog and ends too, many dialogs in one transaction. At most `options.cap` are open at a time,
so that memory says what dialogs leave behind, not what waits. With `options.peer` the two sides
are in two daemons, where the target's endpoint is kept for the replay guard and then has to go.
"""

import asyncio
import os
from time import perf_counter

from brokerd.bench.daemons import OBJECTS, Daemon, free_ports, memory_of, route
from brokerd.bench.measuring import Options, Say, bench_directory, describe_settings
from brokerd.client.session import Session, connect
from brokerd.clock import SystemClock
from brokerd.model import END_DIALOG

_TOLD_EVERY = 5.0
_READERS = 4
_GROUPS = 32
"""Groups that one transaction of a reader takes at most."""
WARM = 2_000
"""Dialogs before anything is measured: memory has its usual size then."""
_SAMPLES = 10
"""How often on the way memory is looked at."""
_GONE_LIMIT = 300.0
"""Seconds that the last closed endpoints have at most to go."""


class DialogsOptions(Options, frozen=True, kw_only=True):
    """How many dialogs, and where their two sides are."""

    messages: int = 100_000
    """One for each dialog."""
    outstanding: int = 100
    """Begun at a time."""
    cap: int = 1600
    """Open at a time."""
    size: int = 256
    peer: bool = False
    """With the two sides in daemons of their own."""
    replay_guard: float = 1.0
    """Seconds that a closed target endpoint is kept (DLP-55)."""


async def dialogs(options: DialogsOptions, say: Say) -> dict[str, object]:
    """Begin, send, end, `options.messages` times; what they cost and what they leave."""
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
        await asyncio.gather(*(one.start() for one in daemons))
        try:
            return await _measure(daemons, options, say)
        finally:
            await asyncio.gather(*(one.stop() for one in daemons))


async def _measure(daemons: list[Daemon], options: DialogsOptions, say: Say) -> dict[str, object]:
    await _run(daemons, WARM, options, None)
    await _gone(daemons, say)
    for one in daemons:
        await one.quiet()
    before = [(one.memory, one.store_size, one.processor_seconds) for one in daemons]
    own, samples = memory_of(os.getpid()), _Samples(daemons, options.messages)
    say(f"{options.messages} dialogs of one message each")
    began = perf_counter()
    await _run(daemons, options.messages, options, say, samples)
    seconds = perf_counter() - began
    spent = [one.processor_seconds - was[2] for one, was in zip(daemons, before, strict=True)]
    left = await _gone(daemons, say)
    for one, was in zip(daemons, before, strict=True):
        await one.shrunk(was[1])
        await one.quiet()
    after = [(one.memory, one.store_size) for one in daemons]
    return {
        "benchmark": "dialogs",
        "settings": describe_settings(options),
        "dialogs": options.messages,
        "rate": round(options.messages / seconds, 1),
        "endpoints_left": left,
        "gone_after_seconds": round(perf_counter() - began - seconds, 1),
        "store_ratio": round(max(a[1] / b[1] for a, b in zip(after, before, strict=True)), 2),
        "daemons": {
            one.name: {
                "processor_us_per_dialog": round(used / options.messages * 1e6, 1),
                "memory_before": b[0],
                "memory_on_the_way": samples.of(at),
                "memory_after": a[0],
                "store_before": b[1],
                "store_after": a[1],
            }
            for at, (one, used, b, a) in enumerate(zip(daemons, spent, before, after, strict=True))
        },
        "bench_memory_before": own,
        "bench_memory_after": memory_of(os.getpid()),
    }


class _Samples:
    """Memory of the daemons, each time another tenth of the dialogs is done."""

    def __init__(self, daemons: list[Daemon], count: int) -> None:
        self._daemons = daemons
        self._step = max(1, count // _SAMPLES)
        self._taken: list[list[int]] = []

    def look(self, done: int) -> None:
        """So many are done."""
        while len(self._taken) < done // self._step:
            self._taken.append([one.memory for one in self._daemons])

    def of(self, at: int) -> list[int]:
        """Those of one daemon."""
        return [one[at] for one in self._taken]


async def _gone(daemons: list[Daemon], say: Say) -> int:
    """Wait until no endpoint is left, or for as long as that may take; how many are."""
    clock = SystemClock()
    deadline, told = clock.monotonic() + _GONE_LIMIT, 0.0
    while True:
        left = 0
        for one in daemons:
            async with await connect(one.address, broker="main") as session:
                left += (await session.view_page("conversation_endpoints", limit=1)).rows != []
        if not left or clock.monotonic() > deadline:
            return await _left(daemons) if left else 0
        if clock.monotonic() - told > _TOLD_EVERY:
            told = clock.monotonic()
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
) -> None:
    async with (
        await connect(daemons[0].address, broker="main") as sender,
        await connect(daemons[-1].address, broker="main") as receiver,
    ):
        room = asyncio.Semaphore(options.cap)
        await asyncio.gather(
            _begin(sender, count, options, room), _answer(receiver, count, room, say, samples)
        )


async def _begin(
    session: Session, count: int, options: DialogsOptions, room: asyncio.Semaphore
) -> None:
    body, left = bytes(options.size), count

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await room.acquire()
            async with session.transaction() as tx:
                handle = await tx.begin_dialog("bench_source", "bench_sink", "bench/v1")
                await tx.send(handle, body, "Item")
                await tx.end(handle)

    await asyncio.gather(*(some() for _ in range(options.outstanding)))


async def _answer(
    session: Session,
    count: int,
    room: asyncio.Semaphore,
    say: Say | None,
    samples: _Samples | None,
) -> None:
    """End each dialog when its EndDialog is here; over a network its message may come before."""
    done, told = 0, perf_counter()

    async def read() -> None:
        nonlocal done, told
        while done < count:
            ended = 0
            async with session.transaction() as tx:
                batches = [await tx.receive("bench_q", wait=0.2)]
                if batches[0]:
                    asked = (tx.receive("bench_q") for _ in range(_GROUPS - 1))
                    batches += await asyncio.gather(*asked)
                for batch in batches:
                    for message in batch:
                        if message.message_type == END_DIALOG:
                            await tx.end(message.handle)
                            ended += 1
            done += ended
            if samples is not None:
                samples.look(done)
            for _ in range(ended):
                room.release()
            if say is not None and perf_counter() - told > _TOLD_EVERY:
                told = perf_counter()
                say(f"  {done} done")

    await asyncio.gather(*(read() for _ in range(_READERS)))
