"""Runs: one seed or many, each on stores of its own in a directory that is thrown away.

Reads:  nothing but the seed.      Calls: the virtual loop, `World`.
Never:  lets one run see what another left.
"""

import gc
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from brokerd.ids import BootId, SeededIds
from brokerd.instance import Instance, Surroundings
from brokerd.storage.engine import Inline
from brokerd.testing import left
from brokerd.testing import loop as virtual
from brokerd.testing.clock import SimClock
from brokerd.testing.loop import VirtualLoop
from brokerd.testing.network import SimNetwork
from brokerd.testing.rng import Streams
from brokerd.testing.simulation import objects
from brokerd.testing.simulation.nodes import UTC_START, CountingLog
from brokerd.testing.simulation.plan import Plan, draw
from brokerd.testing.simulation.world import KEPT_STEPS, Result, World
from brokerd.testing.trace import Trace

MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a place without a disk, if there is one
LIMIT: Final = 3_000.0
"""Virtual seconds, besides the nights, after which a run is stuck."""
TURNS: Final = 10_000
"""Turns of the loop at one moment after which it spins."""


class Simulator:
    """Runs seeds; keeps filled stores to begin from, as making them costs more than a run."""

    def __init__(self, directory: Path, artefacts: Path | None = None) -> None:
        """`artefacts`: where a seed that fails leaves its history, stores and trace."""
        self._directory = directory
        self._artefacts = artefacts

    def run(self, seed: int, *, traced: bool = False) -> Result:
        """Run one seed; whatever it raises is a problem of the result."""
        plan = draw(Streams(seed))
        place = self._directory / f"run-{seed}"
        self._prepare(plan, place)
        worlds: list[World] = []

        async def main(loop: VirtualLoop, streams: Streams) -> float:
            worlds.append(World(loop, streams, plan, place))
            await worlds[0].run()
            return loop.time()

        problems: list[str] = []
        seconds = 0.0
        gc_was_on = gc.isenabled()
        gc.disable()  # what a killed boot left is collected at moments that no seed decides
        try:
            seconds = virtual.run(
                main,
                seed=seed,
                limit=LIMIT + sum(night.seconds for night in plan.nights),
                shuffle=plan.shuffle,
                max_idle_turns=TURNS,
            )
        except Exception as error:  # noqa: BLE001  # whatever it is, the seed has failed
            problems += _told(error)
        finally:
            if gc_was_on:
                gc.enable()
            for world in worlds:
                for node in world.nodes.values():
                    left.run_now(node.machine.scrap())
        world = worlds[0]
        problems = world.problems + problems
        kept = self._keep(seed, world, problems, place) if problems else ""
        shutil.rmtree(place)
        return Result(
            seed=seed,
            problems=tuple(problems),
            digest=world.trace.digest(),
            seconds=seconds,
            counts=dict(world.counts),
            trace=tuple(world.trace.show(KEPT_STEPS).splitlines()) if traced else (),
            artefacts=kept,
        )

    def _keep(self, seed: int, world: World, problems: list[str], place: Path) -> str:
        """Leave what a failed seed did where people find it (HK-8)."""
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

    def _prepare(self, plan: Plan, place: Path) -> None:
        kind = f"{'-'.join(plan.instances)}-{plan.activated}"
        template = self._directory / kind
        if not template.exists():
            for node in plan.instances:
                _make_template(node, template, plan)
        shutil.copytree(template, place)


def _make_template(node: str, directory: Path, plan: Plan) -> None:
    """Start an instance once and stop it again: it leaves stores with the declared objects."""

    async def main(loop: VirtualLoop, streams: Streams) -> None:
        ids = SeededIds(streams.of(f"ids {node}"))
        trace = Trace(loop.time)
        instance = Instance(
            objects.settings(node, directory / node, plan),
            Surroundings(
                clock=SimClock(loop, utc_start=UTC_START),
                ids=ids,
                rng=streams.of("rng"),
                network=SimNetwork(loop, streams.of("network")).for_node(node),
                executor=Inline(),
                log=CountingLog(node, trace, Counter()),
                boot_id=BootId(ids.fresh()),
            ),
        )
        await instance.start(objects.declared(node, plan.instances, activated=plan.activated))
        await instance.stop(timedelta(0))

    virtual.run(main, seed=0)


@contextmanager
def simulator(artefacts: Path | None = None) -> Iterator[Simulator]:
    """A simulator with a directory of its own, in memory if possible."""
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="brokerd-sim-", dir=place) as directory:
        yield Simulator(Path(directory), artefacts)


def _told(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for one in error.exceptions for text in _told(one)]
    return [f"{type(error).__name__}: {error}"]
