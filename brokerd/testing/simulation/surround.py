"""Surround: what all nodes of a simulated run share.

Reads:  the plan.      Calls: the virtual loop.
"""

from collections import Counter
from contextvars import copy_context
from random import Random

from brokerd.testing.loop import VirtualLoop
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams, chance
from brokerd.testing.simulation.plan import Plan
from brokerd.testing.simulation.recording import Recording
from brokerd.testing.trace import Trace


class Surround:
    """What all nodes of a run share."""

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
        self.clocks_leap = chance(streams.of("leaps"), 0.5)
        """Whether clocks that jump do so by days, and come back: time is judged then, as none of it
        may be followed (REL-24). Else they are set by seconds."""
        self.broker_id = ""
        """That of the broker of west, for routes that name it."""
        self.context = copy_context()
        """That of the world: what is started in it no crash kills."""

    def happens(self, name: str, rng: Random) -> bool:
        """Whether what may happen at a place does, this time it is passed (HK-6)."""
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
