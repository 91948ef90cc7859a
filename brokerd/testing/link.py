"""Links: how one direction between two simulated nodes behaves at the moment (HK-4)."""

from random import Random

import msgspec

from brokerd.testing.mangler import Mangler


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """How one direction of a link behaves. Times in seconds, sizes in bytes.

    `refuse`, `silent` and `half_open` are drawn at a connect, from the side that connects.
    """

    latency: float = 0.0005
    jitter: float = 0.0
    """Up to so much is added to each piece; order is kept."""
    chunk: tuple[int, int] | None = None
    """Smallest and largest piece; None delivers what is there."""
    stall: float = 0.0
    """Probability that a piece, and all behind it, is held up."""
    stall_for: tuple[float, float] = (0.1, 5.0)
    reset_every: float = 0.0
    """Mean number of bytes between resets, at any byte; 0 never resets."""
    refuse: float = 0.0
    """Probability that a connect is refused."""
    silent: float = 0.0
    """Probability that a connection is accepted and then never read nor answered."""
    half_open: float = 0.0
    """Probability that a connection stops carrying bytes, both ways, without a word."""
    half_open_after: float = 30.0
    """Mean age at which such a connection stops."""
    window: int = 256 * 1024
    """What the network and the reader's machine hold before the writer's buffer fills."""
    give_up: float = 900.0
    """A writer whose bytes do not arrive loses the connection after this long (ETIMEDOUT)."""
    survive_cut: float = 0.5
    """Probability that a connection goes on after a cut is healed; else it is reset."""


class Link:
    """One direction between two nodes."""

    def __init__(self, from_node: str, to_node: str, conditions: Conditions) -> None:
        self.from_node = from_node
        self.to_node = to_node
        self.conditions = conditions
        self.mangler: Mangler | None = None
        self.is_cut = False
        self.stalled_until = 0.0

    def delay(self, rng: Random) -> float:
        """Draw how long one piece travels."""
        found = self.conditions
        return found.latency + (found.jitter * rng.random() if found.jitter else 0.0)
