"""`brokerd bench dialogs`: dialogs of one message each, begun, answered by an end, and gone.

Reads: the daemon's memory and the size of its stores.   Calls: `bench`, the SDK.
Never: reuses a dialog; that is what `bench local` measures.

Each dialog is one transaction that begins it, sends and ends. The other side receives message and
EndDialog and ends too, many dialogs in one transaction. At most `options.cap` are open at a time,
so that memory says what dialogs leave behind, not what waits.
"""

import asyncio
from time import perf_counter

from brokerd.admin.bench import OBJECTS, Daemon, Options, Say, bench_directory, describe_settings
from brokerd.client.session import Session, connect

_TOLD_EVERY = 5.0
_READERS = 4
_GROUPS = 32
"""Groups that one transaction of a reader takes at most."""
_WARM = 2_000
"""Dialogs before anything is measured: memory has its usual size then."""
_MESSAGES_OF_ONE = 2
"""What the other side receives of each dialog: the message and EndDialog."""


async def dialogs(options: Options, say: Say) -> dict[str, object]:
    """Begin, send, end, `options.messages` times; what they cost and what they leave."""
    with bench_directory(options) as directory:
        daemon = Daemon(directory, "dialogs", port=0, objects=OBJECTS)
        await daemon.start()
        try:
            return await _measure(daemon, options, say)
        finally:
            await daemon.stop()


async def _measure(daemon: Daemon, options: Options, say: Say) -> dict[str, object]:
    await _run(daemon, _WARM, options, None)
    await daemon.quiet()
    before = daemon.memory, daemon.store_size
    say(f"{options.messages} dialogs of one message each")
    began = perf_counter()
    await _run(daemon, options.messages, options, say)
    seconds = perf_counter() - began
    await daemon.shrunk(before[1])
    await daemon.quiet()
    after = daemon.memory, daemon.store_size
    async with await connect(daemon.address, broker="main") as session:
        left = len(await session.view("conversation_endpoints"))
    return {
        "benchmark": "dialogs",
        "settings": describe_settings(options),
        "dialogs": options.messages,
        "rate": round(options.messages / seconds, 1),
        "endpoints_left": left,
        "memory_before": before[0],
        "memory_after": after[0],
        "store_before": before[1],
        "store_after": after[1],
        "store_ratio": round(after[1] / before[1], 2),
    }


async def _run(daemon: Daemon, count: int, options: Options, say: Say | None) -> None:
    async with (
        await connect(daemon.address, broker="main") as sender,
        await connect(daemon.address, broker="main") as receiver,
    ):
        room = asyncio.Semaphore(options.cap)
        await asyncio.gather(
            _begin(sender, count, options, room), _answer(receiver, count, room, say)
        )


async def _begin(session: Session, count: int, options: Options, room: asyncio.Semaphore) -> None:
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


async def _answer(session: Session, count: int, room: asyncio.Semaphore, say: Say | None) -> None:
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
                    if len(batch) == _MESSAGES_OF_ONE:
                        await tx.end(batch[0].handle)
                        ended += 1
            done += ended
            for _ in range(ended):
                room.release()
            if say is not None and perf_counter() - told > _TOLD_EVERY:
                told = perf_counter()
                say(f"  {done} done")

    await asyncio.gather(*(read() for _ in range(_READERS)))
