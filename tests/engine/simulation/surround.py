"""Surround: the parts that all nodes of a simulated run share.

Reads:  the plan.      Calls: the virtual loop.
"""

from collections import Counter
from contextvars import copy_context
from random import Random

from brokerd.testing.loop import VirtualLoop
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams, chance
from brokerd.testing.trace import Trace
from tests.engine.simulation.plan import Plan
from tests.engine.simulation.recording import Recording


class Surround:
    """The parts that all nodes and clients of a run share."""

    def __init__(
        self,
        *,
        loop: VirtualLoop,
        streams: Streams,
        plan: Plan,
        network: SimNetwork,
        trace: Trace,
        counts: Counter[str],
        recording: Recording,
    ) -> None:
        self.loop = loop
        self.streams = streams
        self.plan = plan
        self.network = network
        self.trace = trace
        self.counts = counts
        self.recording = recording
        self.clocks_leap = chance(streams.stream("leaps"), 0.5)
        """Whether clocks leap by days and are set back, rather than jump by seconds.

        Nothing may follow such a leap (REL-24), so the times of timers can still be checked."""
        self.broker_id = ""
        """Id of west's broker, for routes that name it."""
        self.context = copy_context()
        """The context of the world: a task started in it belongs to no node that may crash."""

    def happens(self, name: str, rng: Random) -> bool:
        """Draw whether a failpoint in `POINTS` triggers, and count it (HK-6)."""
        rate = self.plan.features.points.get(name)
        if rate is None or not chance(rng, rate):
            return False
        self.counts[f"point: {name}"] += 1
        return True

    async def rest(self, seconds: float) -> None:
        """Let virtual time pass."""
        done = self.loop.create_future()
        self.loop.call_later(seconds, done.set_result, None, context=self.context)
        await done
