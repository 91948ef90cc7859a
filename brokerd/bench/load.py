"""A load process of `brokerd bench`, with clients of its own, which starts and stops on order.

Reads: one JSON line on standard input.      Calls: the SDK, as any program would.
Never: shares anything with the daemon it measures; prints one JSON line at the end.
Times are those of the machine's monotonic clock, which all processes share.
"""

import asyncio
import gc
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

import msgspec
import uvloop

from brokerd.bench import play
from brokerd.bench.opening import numbered, open_dialogs, send_beforehand
from brokerd.bench.stamps import sent_at, stamped
from brokerd.bench.tally import Counters, Outcome, Tally, Times
from brokerd.client.session import Session, connect
from brokerd.clock import Clock, SystemClock
from brokerd.errors import BrokerError, Busy
from brokerd.protocol.client_verbs import MAX_GROUPS

FAILED: Final = "failed "
"""The beginning of the line with an error, which is printed in place of the expected line."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one load process."""

    role: str
    """The role: send, echo, pace, call or play on one side; receive, listen, take or answer on the
    other."""
    address: str
    clients: int
    dialogs: int = 64
    """Number of dialogs of each client."""
    more_dialogs: int = 0
    """Number of clients that have one dialog more."""
    outstanding: int = 100
    size: int = 256
    batch: int = 100
    """For receiving: most messages in one transaction."""
    transactions: int = 1
    """For receive: number of a client's transactions under way."""
    from_service: str = "bench_source"
    to_service: str = "bench_sink"
    queue: str = "bench_q"
    queues: int = 1
    """For send and take: number of queues; several have numbered names, like their services."""
    reply_queue: str = "bench_source_q"
    """The queue from which callers receive the replies."""
    rate: float = 0.0
    """For pace: number of sends per second of each client."""
    expect: int = 0
    """Number of messages for all receivers together; 0 = receive until the time is over."""
    cap: int = 0
    """Most messages sent and not yet received, over all load processes; 0 = no limit."""
    counters: str = ""
    """File in which load processes count sent and received messages, for `cap`."""
    slot: int = 0
    """The place of this process in the file `counters`."""
    schedule: str = ""
    """For play: the file with the schedule (`schedule.Schedule`)."""
    speed: float = 1.0
    """For play: the speed, in multiples of the recorded one; 0 = without waiting."""
    patience: float = 0.0
    """For take: seconds without a message after which no more messages are expected."""
    primed: int = 0
    """For send: number of messages that each client sends beforehand, on its dialogs in turn."""
    more_primed: int = 0
    """For send: number of clients that send one message more beforehand."""


async def run(load: Load, clock: Clock) -> Outcome:
    """Connect, print `ready`, read the times, work, and return the counts."""
    loop = asyncio.get_running_loop()
    sessions = [await connect(load.address, broker="main", wait=10) for _ in range(load.clients)]
    begin = await _prepared(sessions, load)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    line = await loop.run_in_executor(None, sys.stdin.readline)
    if not line:
        os._exit(1)  # the parent process is gone
    # likewise: nothing else comes on standard input
    loop.add_reader(sys.stdin.fileno(), os._exit, 1)
    times = msgspec.json.decode(line, type=Times)
    tally = Tally(times, clock, Counters(load.counters, load.slot))
    gc.collect()
    gc.freeze()
    await clock.sleep_until(times.start)
    spent = time.process_time()
    await asyncio.gather(*begin(tally))
    spent = time.process_time() - spent
    for session in sessions:
        await session.close()
    return tally.outcome(spent)


async def _prepared(
    sessions: list[Session], load: Load
) -> Callable[[Tally], list[Coroutine[None, None, None]]]:
    """Return the function that makes the work of all sessions from a tally."""
    if load.role == "play":
        player = play.Player(sessions, load.schedule, load.speed, load.outstanding)
        await player.open(load.from_service, load.to_service)
        return player.works
    if load.role == "take":
        return lambda tally: [
            play.receive_all(
                one,
                tally,
                queues=_in_turn(load, at),
                batch=load.batch,
                expect=load.expect,
                patience=load.patience,
            )
            for at, one in enumerate(sessions)
        ]
    work = _WORK[load.role]
    handles = await asyncio.gather(*(opened(one, load, at) for at, one in enumerate(sessions)))
    return lambda tally: [
        work(one, load, own, tally) for one, own in zip(sessions, handles, strict=True)
    ]


def _in_turn(load: Load, at: int) -> deque[str]:
    """Return the queues in turn, beginning with a different queue for each client."""
    queues = deque(numbered(load.queue, load.queues))
    queues.rotate(-at * load.queues // load.clients)
    return queues


async def opened(session: Session, load: Load, at: int) -> list[bytes]:
    """Begin the dialogs of one client; all clients together take the services in turn."""
    if load.role in {"receive", "listen", "answer"}:
        return []
    services = numbered(load.to_service, load.queues)
    first = at * load.dialogs + min(at, load.more_dialogs)
    count = load.dialogs + (at < load.more_dialogs)
    handles = await open_dialogs(session, count, load.from_service, services, first=first)
    primed = load.primed + (at < load.more_primed)
    await send_beforehand(session, handles, primed, stamped(0.0, load.size))
    return handles


async def _send(session: Session, load: Load, handles: list[bytes], tally: Tally) -> None:
    """Keep `outstanding` sends under way, each confirmed on its own, dialogs in turn."""
    clock, stop = tally.clock, tally.times.stop
    turn, waiting = deque(handles), 0
    loop = asyncio.get_running_loop()
    room: asyncio.Future[None] | None = None
    broken: BaseException | None = None

    def confirmed(began: float, future: asyncio.Future[None]) -> None:
        nonlocal waiting, broken
        waiting -= 1
        broken = broken or future.exception()
        if not broken:
            tally.add(1, began)
        if room is not None and not room.done():
            room.set_result(None)

    while not broken:
        began = clock.monotonic()
        if began >= stop:
            break
        room_left = load.cap - tally.counters.under_way if load.cap else load.outstanding
        if room_left <= 0:
            # `cap` counts the messages of all processes, so no confirmation of this process shows
            # when there is room again; only the shared file does.
            await clock.sleep_until(began + 0.001)
            continue
        while waiting < load.outstanding and room_left > 0:
            room_left -= 1
            tally.counters.sent(1)
            began = clock.monotonic()
            future = session.submit_send(turn[0], stamped(began, load.size), "Item")
            turn.rotate(-1)
            waiting += 1
            future.add_done_callback(partial(confirmed, began))
        room = loop.create_future()
        await room
    while waiting and not broken:
        room = loop.create_future()
        await room
    if broken:
        raise broken


async def _receive(session: Session, load: Load, _handles: list[bytes], tally: Tally) -> None:
    """Receive and commit in transactions, several at a time."""
    lanes = range(load.transactions)
    await asyncio.gather(*(_receive_in_turn(session, load, tally) for _ in lanes))


async def _receive_in_turn(session: Session, load: Load, tally: Tally) -> None:
    """Receive in transactions of up to `batch` messages, of as many groups as needed."""
    clock = tally.clock
    while clock.monotonic() < tally.times.stop:
        async with session.transaction() as tx:
            messages = await tx.receive(
                load.queue, load.batch, wait=0.2, groups=min(load.batch, MAX_GROUPS)
            )
        if messages:
            tally.counters.received(len(messages))
            tally.add(len(messages), sent_at(messages[0].body))
        if load.expect and tally.total >= load.expect:
            return


async def _echo(session: Session, load: Load, handles: list[bytes], tally: Tally) -> None:
    """Send messages one at a time, and wait until each is confirmed."""
    turn = deque(handles)
    while (began := tally.clock.monotonic()) < tally.times.stop:
        await session.send(turn[0], stamped(began, load.size), "Item")
        turn.rotate(-1)
        tally.add(1, began)


async def _pace(session: Session, load: Load, handles: list[bytes], tally: Tally) -> None:
    """Send at a rate, however long confirmations take; measure each send from when it was due."""
    clock, began = tally.clock, tally.clock.monotonic()
    try:
        await _send_when_due(session, load, handles, tally)
    except Busy as error:  # more and more sends are waiting
        reached = tally.total / max(0.001, clock.monotonic() - began)
        raise Busy(
            f"{load.rate:g} messages a second were asked for, {reached:.0f} a second were sent: "
            f"{error.message}",
            hint="ask for less: a lower --rate, or a longer --every",
        ) from None


async def _send_when_due(session: Session, load: Load, handles: list[bytes], tally: Tally) -> None:
    turn, due = deque(handles), tally.clock.monotonic()
    under_way: deque[tuple[float, asyncio.Future[None]]] = deque()

    def confirmed() -> None:
        was_due, future = under_way.popleft()
        future.result()
        tally.add(1, was_due)

    while max(due, tally.clock.monotonic()) < tally.times.stop:
        await tally.clock.sleep_until(due)
        under_way.append((due, session.submit_send(turn[0], stamped(due, load.size), "Item")))
        turn.rotate(-1)
        due += 1 / load.rate
        while under_way and under_way[0][1].done():
            confirmed()
    while under_way:
        await asyncio.wait({under_way[0][1]})
        confirmed()


async def _listen(session: Session, load: Load, _handles: list[bytes], tally: Tally) -> None:
    """Receive and commit messages; measure each from its own time of sending."""
    while tally.clock.monotonic() < tally.times.stop:
        async with session.transaction() as tx:
            messages = await tx.receive(load.queue, load.batch, wait=0.2)
        for message in messages:
            tally.add(1, sent_at(message.body))


async def _call(session: Session, load: Load, handles: list[bytes], tally: Tally) -> None:
    """Run one caller for each dialog, which sends a request and waits for its committed reply."""

    async def caller(handle: bytes) -> None:
        while (began := tally.clock.monotonic()) < tally.times.stop:
            await session.send(handle, stamped(began, load.size), "Item")
            while not await session.receive(
                load.reply_queue, conversation=handle, wait=0.2, autocommit=True
            ):
                if tally.clock.monotonic() >= tally.times.stop:
                    return
            tally.add(1, began)

    await asyncio.gather(*(caller(handle) for handle in handles))


async def _answer(session: Session, load: Load, _handles: list[bytes], tally: Tally) -> None:
    """Receive requests of many groups and send their replies, all in one transaction."""
    while tally.clock.monotonic() < tally.times.stop:
        async with session.transaction() as tx:
            messages = await tx.receive(
                load.queue, load.batch, wait=0.2, groups=min(load.batch, MAX_GROUPS)
            )
            for message in messages:
                await tx.send(message.handle, message.body or b"", "Item")
        for message in messages:
            tally.add(1, sent_at(message.body))


_WORK = {
    "send": _send,
    "receive": _receive,
    "echo": _echo,
    "pace": _pace,
    "listen": _listen,
    "call": _call,
    "answer": _answer,
}


def main() -> None:
    """Run a load process."""
    load = msgspec.json.decode(sys.stdin.readline(), type=Load)
    clock = SystemClock()
    try:
        outcome = uvloop.run(run(load, clock))
    except BrokerError as error:
        why = msgspec.json.encode((error.message, error.hint)).decode()
        sys.stdout.write(f"{FAILED}{why}\n")
        sys.exit(1)
    sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")


if __name__ == "__main__":
    main()
