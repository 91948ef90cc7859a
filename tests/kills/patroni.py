"""Failovers by Patroni under load: it decides which of two servers is the primary, not the harness.

The load and the judge are those of `failovers`. Commits wait for the standby (`synchronous_mode`),
except while there is none: then Patroni promotes nobody, so that nothing confirmed can be lost.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

from tests.kills.failovers import WITHIN, Fault, Found, Pair, command, survive
from tests.kills.readers import Say
from tests.postgresql.patroni import Cluster, Node, missing
from tests.postgresql.servers import Servers


class PatroniPair(Pair):
    """Two daemons on the two servers of a cluster."""

    def __init__(self, folder: Path, servers: Servers, stack: AsyncExitStack) -> None:
        super().__init__(folder, servers, stack)
        self.cluster = Cluster(servers)

    async def start(self) -> None:
        await asyncio.to_thread(self.cluster.start)
        for _ in range(2):
            await self.start_daemon(self.cluster.url)
        await self.settled()

    def _ask(self, sql: str) -> list[tuple[str | None, ...]]:
        leader = self.cluster.leader()
        if leader is None:
            raise OSError("no server leads")
        return leader.query(sql)

    def leader(self) -> Node:
        leader = self.cluster.leader()
        assert leader is not None, "the cluster is whole"
        return leader

    async def until_it_leads(self, node: Node) -> None:
        """Return once Patroni has made a node the leader.

        Raises:
            TimeoutError: that takes too long.
        """
        async with asyncio.timeout(WITHIN):
            while not await asyncio.to_thread(node.is_leader):  # noqa: ASYNC110  # others decide
                await asyncio.sleep(0.05)

    async def whole(self) -> None:
        """Return once commits wait for the other node again."""
        await asyncio.to_thread(self.cluster.wait_until_whole)


async def kill_leader(pair: Pair, _rng: Random) -> None:
    """A machine loses its power; the other goes on alone; it comes back."""
    assert isinstance(pair, PatroniPair)
    leader = await asyncio.to_thread(pair.leader)
    leader.kill()
    await pair.until_it_leads(pair.cluster.other(leader))
    await pair.timed.until(5)
    leader.start()
    await pair.whole()


async def pause_leader(pair: Pair, rng: Random) -> None:
    """A machine stands still until another one leads, and wakes as a primary, for a moment."""
    assert isinstance(pair, PatroniPair)
    leader = await asyncio.to_thread(pair.leader)
    leader.pause()
    await pair.until_it_leads(pair.cluster.other(leader))
    await asyncio.sleep(rng.uniform(0.0, 2.0))
    leader.resume()
    await pair.whole()


async def switch_over(pair: Pair, _rng: Random) -> None:
    """An administrator has the other server lead."""
    assert isinstance(pair, PatroniPair)
    leader = await asyncio.to_thread(pair.leader)
    other = pair.cluster.other(leader)
    await asyncio.to_thread(leader.switch_over, other)
    await pair.until_it_leads(other)
    await pair.whole()


FAULTS: Final[tuple[Fault, ...]] = (kill_leader, pause_leader, switch_over)


async def play(
    folder: Path, *, seed: int, failovers: int, say: Say, faults: tuple[Fault, ...] = FAULTS
) -> Found:
    """Run a cluster, daemons and load in a folder, and leave only files behind."""
    with Servers() as servers:
        async with AsyncExitStack() as stack:
            pair = PatroniPair(folder, servers, stack)
            stack.callback(pair.cluster.close)
            await pair.start()
            return await survive(pair, seed=seed, failovers=failovers, say=say, faults=faults)


def main() -> int:
    """Run `make soak-patroni`. Exit status 0: nothing was lost or doubled, in order; 1: not so."""
    if absent := missing():
        sys.stdout.write(
            f"not installed here: {', '.join(absent)} (apt-get install patroni etcd-server)\n"
        )
        return 1
    return command("patroni", __doc__, play)


if __name__ == "__main__":
    sys.exit(main())
