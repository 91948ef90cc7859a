"""Batches: what all batches of seeds have seen together, whichever processes ran them (HK-7).

The batches of one run of the suite share a folder. The last to be done finds the others there and
has the sums; so nobody waits for anybody, and one process or ten make no difference.
"""

import fcntl
from pathlib import Path

import msgspec

from tests.engine.simulation.world import Result


class Batches:
    """The results of so many batches, gathered in a folder."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._count = count
        folder.mkdir(exist_ok=True)

    def done(self, batch: int, results: list[Result]) -> list[Result]:
        """Add a batch that is done. The last one gets the results of all, the others nothing."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (self._folder / f"{batch}.json").write_bytes(msgspec.json.encode(results))
            files = sorted(self._folder.glob("*.json"))
            if len(files) < self._count:
                return []
            return [one for file in files for one in _read(file)]


def _read(file: Path) -> list[Result]:
    return msgspec.json.decode(file.read_bytes(), type=list[Result])
