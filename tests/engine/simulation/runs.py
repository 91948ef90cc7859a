"""Runs: one seed or many, each on stores as good as new, in a temporary directory.

Reads:  nothing but the seed.      Calls: the virtual loop, `World`, `Stores`.
Never:  lets one run see what another left.
"""

import fcntl
import gc
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from brokerd.testing import loop as virtual
from brokerd.testing.handles import unawaited
from brokerd.testing.loop import VirtualLoop
from brokerd.testing.rng import Streams
from tests.engine.simulation.plan import draw
from tests.engine.simulation.stores import Stores
from tests.engine.simulation.world import KEPT_STEPS, Result, World

MEMORY: Final = Path("/dev/shm")  # a place without a disk, if there is one
PREFIX: Final = "brokerd-sim-"
"""Prefix of the names of these directories."""
_IN_USE: Final = "in-use"
"""The file in such a directory that is locked as long as the directory is used."""
LIMIT: Final = 3_000.0
"""Virtual seconds, besides the nights, after which a run counts as stuck."""
TURNS: Final = 10_000
"""Turns of the loop at one moment after which a run counts as spinning."""
CALLBACKS: Final = 100_000
"""Callbacks within a virtual second that count as a livelock; the busiest seeds run 2,000."""


class Simulator:
    """A runner of seeds that keeps filled stores, as making them takes longer than a run."""

    def __init__(
        self, directory: Path, artefacts: Path | None = None, *, fast_paths: bool = True
    ) -> None:
        """`artefacts`: the directory for the history, stores and trace of a failed seed."""
        self._stores = Stores(directory)
        self._artefacts = artefacts
        self._fast_paths = fast_paths

    def close(self) -> None:
        """Close the connections kept for the next seed."""
        self._stores.close()

    def run(self, seed: int, *, traced: bool = False) -> Result:
        """Run one seed; an exception of the run is a problem of the result."""
        gc_was_on = gc.isenabled()
        gc.disable()  # the remains of a killed boot would be collected at undetermined moments
        try:
            return self._run(seed, traced=traced)
        finally:
            with unawaited():
                gc.collect(0)  # all of the run is young: nothing was collected meanwhile
            if gc_was_on:
                gc.enable()

    def _run(self, seed: int, *, traced: bool) -> Result:
        plan = msgspec.structs.replace(draw(Streams(seed)), fast_paths=self._fast_paths)
        place, kept = self._stores.lend(seed, plan)
        worlds: list[World] = []

        async def main(loop: VirtualLoop, streams: Streams) -> float:
            worlds.append(World(loop, streams, plan, place, kept))
            await worlds[0].run()
            return loop.time()

        problems: list[str] = []
        seconds = 0.0
        try:
            seconds = virtual.run(
                main,
                seed=seed,
                limit=LIMIT + sum(night.seconds for night in plan.nights),
                shuffle=plan.shuffle,
                max_idle_turns=TURNS,
                max_callbacks=CALLBACKS,
            )
        except Exception as error:  # noqa: BLE001  # whatever it is, the seed has failed
            problems += _describe(error)
        world = worlds[0]
        for node in world.nodes.values():
            kept |= node.machine.give_back()
        problems = world.problems + problems
        artefacts = ""
        if problems:
            self._stores.close_all(kept)
            artefacts = self._keep(seed, world, problems, place)
            self._stores.scrap(place)
        else:
            self._stores.give_back(place, kept)
        return Result(
            seed=seed,
            problems=tuple(problems),
            digest=world.trace.digest(),
            seconds=seconds,
            counts=dict(world.counts),
            trace=tuple(world.trace.show(KEPT_STEPS).splitlines()) if traced else (),
            artefacts=artefacts,
            fast_paths=plan.fast_paths,
        )

    def _keep(self, seed: int, world: World, problems: list[str], place: Path) -> str:
        """Save the history, stores, trace and plan of a failed seed; return the folder (HK-8)."""
        if self._artefacts is None:
            return ""
        folder = self._artefacts / f"seed-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(place, folder / "stores")
        world.history.write(folder / "history.jsonl")
        (folder / "problems.txt").write_text("\n".join(problems) + "\n")
        (folder / "trace.txt").write_text(world.trace.show(KEPT_STEPS) + "\n")
        (folder / "plan.json").write_bytes(msgspec.json.format(msgspec.json.encode(world.plan)))
        return str(folder)


@contextmanager
def simulator(
    artefacts: Path | None = None, *, memory: Path = MEMORY, fast_paths: bool = True
) -> Iterator[Simulator]:
    """Provide a simulator with a directory of its own, in memory if possible."""
    place = memory if memory.is_dir() else Path(tempfile.gettempdir())
    _remove_stale(place)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place) as directory, _held(Path(directory)):
        made = Simulator(Path(directory), artefacts, fast_paths=fast_paths)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Lock the directory as in use, until the end of the process at the latest."""
    with (directory / _IN_USE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_stale(place: Path) -> None:
    """Remove the directories of killed processes, which take memory."""
    for mark in place.glob(f"{PREFIX}*/{_IN_USE}"):
        with suppress(OSError), mark.open("r+") as file:  # it may vanish, or be in use
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(mark.parent, ignore_errors=True)


def _describe(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for one in error.exceptions for text in _describe(one)]
    return [f"{type(error).__name__}: {error}"]
