"""Links: the current behaviour of one direction between two simulated nodes (HK-4)."""

from random import Random

import msgspec

from brokerd.testing.mangler import Mangler


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of one direction of a link. Times are in seconds, sizes in bytes.

    `refuse`, `silent` and `half_open` are drawn at each connect, with the probabilities of the
    direction from the connecting side.
    """

    latency: float = 0.0005
    jitter: float = 0.0
    """Largest random addition to the delay of a piece; pieces keep their order."""
    chunk: tuple[int, int] | None = None
    """Smallest and largest size of a piece; None = no limit."""
    stall: float = 0.0
    """Probability that a piece, with all pieces behind it, is held back for `stall_for`."""
    stall_for: tuple[float, float] = (0.1, 5.0)
    reset_every: float = 0.0
    """Mean number of bytes between two resets, which may occur at any byte; 0 = no resets."""
    refuse: float = 0.0
    """Probability that a connect is refused."""
    silent: float = 0.0
    """Probability that a connection is accepted, but then neither read nor answered."""
    half_open: float = 0.0
    """Probability that a connection stops carrying bytes in both directions, without an error."""
    half_open_after: float = 30.0
    """Mean age at which a half-open connection stops."""
    window: int = 256 * 1024
    """Number of bytes that the network and the reader's machine hold before the writer's buffer
    fills."""
    give_up: float = 900.0
    """Time after which a writer whose bytes do not arrive loses the connection (ETIMEDOUT)."""
    survive_cut: float = 0.5
    """Probability that a connection continues after a cut is healed; otherwise it is reset."""


class Link:
    """One direction of the link between two nodes."""

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
