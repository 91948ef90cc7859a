"""Links: the current behaviour of one direction between two simulated nodes (HK-4)."""

from random import Random

import msgspec

from brokerd.testing.mangler import Mangler


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of one direction of a link. Times in seconds, sizes in bytes.

    `refuse`, `silent` and `half_open` are drawn at each connect, by the conditions of the direction
    from the side that connects.
    """

    latency: float = 0.0005
    jitter: float = 0.0
    """Most that is added at random to the delay of a piece; order is kept."""
    chunk: tuple[int, int] | None = None
    """Smallest and largest piece; None puts no limit on pieces."""
    stall: float = 0.0
    """Probability that a piece, and everything behind it, is held back for `stall_for`."""
    stall_for: tuple[float, float] = (0.1, 5.0)
    reset_every: float = 0.0
    """Mean number of bytes between resets, at any byte; 0 never resets."""
    refuse: float = 0.0
    """Probability that a connect is refused."""
    silent: float = 0.0
    """Probability that a connection is accepted and then never read nor answered."""
    half_open: float = 0.0
    """Probability that a connection stops carrying bytes in both directions, without an error."""
    half_open_after: float = 30.0
    """Mean age at which such a connection stops."""
    window: int = 256 * 1024
    """Bytes that the network and the reader's machine hold before the writer's buffer fills."""
    give_up: float = 900.0
    """A writer whose bytes do not arrive loses the connection after this long (ETIMEDOUT)."""
    survive_cut: float = 0.5
    """Probability that a connection continues after a cut is healed; else it is reset."""


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
        """Draw the travel time of one piece, in seconds."""
        found = self.conditions
        return found.latency + (found.jitter * rng.random() if found.jitter else 0.0)
