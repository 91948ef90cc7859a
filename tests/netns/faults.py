"""Faults: what befalls the wires and the daemons of a lab, from a seed, while they work."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from random import Random

from brokerd.client.session import Session
from brokerd.testing.check import Violation
from tests.netns.lab import Lab, Node
from tests.netns.workload import Workload
from tests.trust import carry, drop_old, pair_again, renew

STUCK_AFTER = 120.0
"""Seconds without any answer, with all wires whole, after which something is stuck."""
HEALS_BEFORE_NEXT = 0.75
"""How often one fault is over before the next one comes."""
Say = Callable[[str], object]


async def one_way(node: Node, rng: Random) -> str:
    """What it sends, or what is sent to it, does not arrive."""
    direction = rng.choice((node.mute, node.deafen))
    direction()
    await asyncio.sleep(rng.uniform(0.3, 3.0))
    node.heal()
    return f"{node.name} was cut one way"


async def black_hole(node: Node, rng: Random) -> str:
    """Nothing arrives, nobody is told."""
    node.mute()
    node.deafen()
    await asyncio.sleep(rng.uniform(0.3, 3.0))
    node.heal()
    return f"{node.name} was in a black hole"


async def flapping(node: Node, rng: Random) -> str:
    """The wire goes in and out."""
    times = rng.randint(2, 6)
    for _ in range(times):
        node.unplug()
        await asyncio.sleep(rng.uniform(0.02, 0.3))
        node.heal()
        await asyncio.sleep(rng.uniform(0.02, 0.3))
    return f"{node.name} was unplugged {times} times"


async def kill(node: Node, rng: Random) -> str:
    """kill -9, and a start on what it left."""
    node.kill()
    await asyncio.sleep(rng.uniform(0.0, 0.5))
    node.start()
    return f"{node.name} was killed"


async def rotate(node: Node, rng: Random) -> str:
    """New certificates are made, sent, used, and the old ones removed."""
    lab = node.lab
    far = [one for one in lab.nodes.values() if one is not node and one not in node.neighbours]
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(await lab.connect(node))
        others = [await stack.enter_async_context(await lab.connect(one)) for one in far]
        await renew(at)
        for other in others:
            await carry(at, other, node.name)
        near = {f"peer:{one.name}" for one in node.neighbours}
        while any(near & one.lacking.keys() for one in await at.admin.own_certificates(wait=1.0)):
            pass
        await at.admin.switch_certificates(anyway=True)
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        await drop_old(at)
        for other in others:
            await carry(at, other, node.name)
    return f"{node.name} has other certificates"


async def revoke(node: Node, rng: Random) -> str:
    """A neighbour is revoked: nothing of it arrives before it is paired again."""
    neighbour = rng.choice(node.neighbours)
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(await node.lab.connect(node))
        other = await stack.enter_async_context(await node.lab.connect(neighbour))
        principal = f"peer:{neighbour.name}"
        await at.admin.revoke_principal(principal)
        shares = node.services if neighbour.services else ()
        before = await arrived(at)
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        after = await arrived(at)
        if len(node.neighbours) == 1:
            assert before == after, f"{after - before} arrived of {neighbour.name}, now revoked"
        rows = await at.view("connections", where={"principal_name": principal})
        assert not [row for row in rows if row["login_state_desc"] == "ONLINE"]
        await pair_again(
            at,
            other,
            address=node.place,
            joining_address=neighbour.place,
            shares=shares,
        )
    return f"{neighbour.name} was revoked by {node.name}, and paired again"


async def arrived(at: Session) -> int:
    """Return the fragments that have come over the network."""
    (row,) = await at.view("transport_counters")
    return int(row["fragment_receives_total"])


FAULTS: tuple[Callable[[Node, Random], Coroutine[None, None, str]], ...] = (
    one_way,
    black_hole,
    flapping,
    kill,
    rotate,
    revoke,
)


async def _progress(
    lab: Lab, workload: Workload, running: asyncio.Future[None], where: str
) -> None:
    """Something is answered again, whatever happened before."""
    moving = asyncio.ensure_future(workload.progress())
    done, _ = await asyncio.wait(
        {moving, running}, timeout=STUCK_AFTER, return_when=asyncio.FIRST_COMPLETED
    )
    moving.cancel()
    if running in done:
        running.result()
    _alive(lab)
    assert done, f"{where}: nothing is answered any more; {workload.left()}"


def _alive(lab: Lab) -> None:
    for one in lab.nodes.values():
        assert not one.died, f"{one.name} has died; see {lab.folder}"


async def survive(lab: Lab, *, seed: int, cycles: int, say: Say) -> list[Violation]:
    """Every fault once a cycle, each at some daemon; then heal, and all has to come to its end."""
    rng = Random(seed)
    await lab.introduce()
    workload = Workload(lab, rng)
    running = asyncio.ensure_future(workload.run())
    try:
        for cycle in range(cycles):
            for fault in rng.sample(FAULTS, len(FAULTS)):
                if rng.random() < HEALS_BEFORE_NEXT:
                    await _progress(lab, workload, running, f"seed {seed}, cycle {cycle + 1}")
                await asyncio.sleep(rng.uniform(0.1, 0.5))
                node = rng.choice(list(lab.nodes.values()))
                told = await fault(node, rng)
                say(f"cycle {cycle + 1}: {told}; {workload.answered} answers so far")
                _alive(lab)
        workload.finish()
        while not running.done():
            await _progress(lab, workload, running, f"seed {seed}, at the end")
        running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    workload.history.write(lab.folder / "history.jsonl")
    say(f"{workload.counts['messages sent']} messages, {workload.answered} answers")
    return workload.judge()
