"""Seeded randomness: one stream per purpose, so that a new draw changes no other stream (HK-1).

Calls:  hashlib, random.
Never:  depends on PYTHONHASHSEED, on the order in which purposes are first named, or on time.
"""

from hashlib import blake2b
from random import Random


class Streams:
    """All random streams of one seeded run."""

    def __init__(self, seed: int, *, path: str = "") -> None:
        self.seed = seed
        self._path = path
        self._made: dict[str, Random] = {}

    def stream(self, purpose: str) -> Random:
        """Return the stream of a purpose; a further call for this purpose returns the same one."""
        made = self._made.get(purpose)
        if made is None:
            made = self._made[purpose] = Random(self._number(purpose))  # noqa: S311  # a simulation
        return made

    def child(self, name: str) -> "Streams":
        """Return separate streams for a part of the run, such as a node.

        For example: `child("east").stream("ids")`."""
        return Streams(self.seed, path=f"{self._path}{name}/")

    def _number(self, purpose: str) -> int:
        text = f"{self.seed}:{self._path}{purpose}"
        return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")


def chance(rng: Random, probability: float) -> bool:
    """Draw whether an event with this probability happens."""
    return rng.random() < probability
