"""Disks that are full or slow, as a daemon sees them."""

from collections.abc import Callable

from brokerd.config.settings import StoreSettings
from brokerd.storage.writers import soon


class Platter:
    """A disk that answers, or keeps what it was given until it is let go."""

    def __init__(self) -> None:
        self._kept: list[Callable[[], None]] | None = None

    def __call__(self, function: Callable[[], None]) -> None:
        if self._kept is None:
            soon(function)
        else:
            self._kept.append(function)

    def hold(self) -> None:
        self._kept = []

    def let_go(self) -> None:
        kept, self._kept = self._kept or [], None
        for function in kept:
            soon(function)


MIB = 1024 * 1024


SMALL = StoreSettings(min_free=4 * MIB, reserve=6 * MIB)


class SaidDisk:
    """A disk that has what a test says."""

    def __init__(self) -> None:
        self.left = 1000 * MIB
        self.held = 0

    def free(self) -> int:
        return self.left - self.held

    def reserve(self, size: int) -> bool:
        if not self.held and self.left >= size:
            self.held = size
        return bool(self.held)

    def release(self) -> bool:
        held, self.held = self.held, 0
        return bool(held)
