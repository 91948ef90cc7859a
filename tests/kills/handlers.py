"""What the readers of a killed daemon do: one answer an order, by state of the same commit.

An answer says how many orders its group had and a running hash of them, so that one order lost,
taken twice or out of turn shows in everything that comes after it. A reader holds a lock for as
long as its process lives: the ceiling is judged by the system, not by who counts readers.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from brokerd.client.session import connect

INSIDE: Final = 3
OUTSIDE: Final = 2
"""Readers that the daemon, and programs that the activator may have at a time."""
_held: list[int] = []


def below_the_ceiling(where: str, most: int) -> None:
    """Take one of so many places until this process ends."""
    _held.extend(_places(where, most))


@contextmanager
def at_work(where: str, most: int) -> Iterator[None]:
    """Take one of so many places meanwhile."""
    taken = _places(where, most)
    try:
        yield
    finally:
        for one in taken:
            os.close(one)


def _places(where: str, most: int) -> list[int]:
    """A place that is free now and is held while it is open; where there is none, leave a mark."""
    folder = Path(os.environ["TMPDIR"]) / "ceiling" / where  # a name that a reader does see
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(most):
        place = os.open(folder / str(number), os.O_RDWR | os.O_CREAT)
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return [place]
        os.close(place)
    (folder / f"exceeded-{os.getpid()}").touch()
    return []


def next_state(state: bytes | None, body: bytes) -> bytes:
    """The number of orders and their running hash, after one more."""
    number, _, digest = (state or b"0:").partition(b":")
    hashed = hashlib.sha256(digest + b"|" + body).hexdigest().encode()
    return b"%d:%s" % (int(number) + 1, hashed)


async def work(session: Any, queue: str) -> None:
    """Answer orders until there are none for a moment."""
    while True:
        async with session.transaction() as tx:
            messages = await tx.receive(queue, 3, wait=0.4)
            for one in messages:
                if one.body is None:
                    continue
                state = next_state(await tx.state(one.group_id), one.body)
                await tx.set_state(one.group_id, state)
                await tx.send(one.handle, one.body + b" " + state, "Answer")
            await asyncio.sleep(0.002)
        if not messages:
            return


async def inside(session: Any) -> None:
    """Of a queue with activation of its own."""
    below_the_ceiling("inside", INSIDE)
    await work(session, "work_q")


async def in_daemon(session: Any) -> None:
    """Of a queue whose readers run in the daemon."""
    await hold(session, "daemon")


async def in_process(session: Any) -> None:
    """Of one whose readers are processes."""
    await hold(session, "process")


async def hold(session: Any, home: str) -> None:
    """Receive, and end what was received once the gate is open, until there is nothing."""
    gate = Path(os.environ["TMPDIR"]) / "gate"
    with at_work(home, INSIDE):
        messages = True
        while messages:
            async with session.transaction() as tx:
                messages = await tx.receive(f"{home}_q", 1, wait=0.4)
                while not gate.exists():  # noqa: ASYNC110  # it is opened by another process
                    await asyncio.sleep(0.02)
                for one in messages:
                    await tx.end(one.handle, 1, home)


async def outside() -> None:
    """A program that an activator starts."""
    below_the_ceiling("outside", OUTSIDE)
    async with connect(None, broker="main", wait=5, retry=5) as session:
        await work(session, "depot_q")


if __name__ == "__main__":
    asyncio.run(outside())
