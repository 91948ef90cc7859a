"""Whole: the runs of `make sim`, and the least they must achieve (reliability section 8).

The seeds kept because they once failed come first, then a batch; some of all these run again under
another PYTHONHASHSEED and must give equal traces (HK-1).
Calls: `many`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path

import msgspec

from tests.engine.simulation import many
from tests.engine.simulation.report import report, sums, total
from tests.engine.simulation.sometimes import never
from tests.engine.simulation.world import Result

Say = Callable[[str], None]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a batch, and the least that it must achieve."""

    first: int = 1000
    seeds: int = 2000
    hours: float = 300.0
    """Least number of virtual hours."""
    crashes: int = 20_000
    """Least number of crashes of instances."""
    again_every: int = 40
    """One seed in this many runs again under another hash seed."""


def run_whole(
    batch: Batch,
    kept: Iterable[int],
    *,
    processes: int,
    artefacts: Path,
    fast_paths: bool,
    say: Say,
) -> bool:
    """Run the kept seeds and the batch, and report the results; return whether all is well."""
    began = time.perf_counter()
    seeds = [*kept, *range(batch.first, batch.first + batch.seeds)]
    running = many.run_many(seeds, processes=processes, artefacts=artefacts, fast_paths=fast_paths)
    results = list(_reported(running, say))
    say(sums(results))
    wrong = [f"{sum(bool(one.problems) for one in results)} seeds failed"] * any(
        one.problems for one in results
    )
    wrong += shortfalls(batch, results)
    again = [one for place, one in enumerate(results) if place % batch.again_every == 0]
    wrong += _differing(again, processes, fast_paths=fast_paths)
    say(f"{len(again)} of them ran again under another PYTHONHASHSEED")
    say(f"{time.perf_counter() - began:.0f} s in {processes} processes")
    for text in wrong:
        say(f"WRONG: {text}")
    return not wrong


def shortfalls(batch: Batch, results: Iterable[Result]) -> list[str]:
    """Return what a batch has not achieved, one sentence each."""
    found = list(results)
    counts, hours = total(found), sum(one.seconds for one in found) / 3600
    wrong = [f"never seen: {name}" for name in never(counts)]
    if hours < batch.hours:
        wrong.append(f"{hours:.0f} virtual hours are fewer than {batch.hours:.0f}")
    if counts["crashes"] < batch.crashes:
        wrong.append(f"{counts['crashes']} crashes are fewer than {batch.crashes}")
    return wrong


def soak(
    first: int,
    *,
    processes: int,
    artefacts: Path,
    fast_paths: bool,
    say: Say,
    every: int = 500,
) -> None:
    """Run seed after seed until interrupted; report sums after each `every` seeds."""
    began, results, failed = time.perf_counter(), list[Result](), 0
    running = many.run_many(
        count(first), processes=processes, artefacts=artefacts, fast_paths=fast_paths
    )
    for result in _reported(running, say):
        failed += bool(result.problems)
        results.append(result)
        if len(results) % every == 0:
            hours = sum(one.seconds for one in results) / 3600
            say(
                f"up to seed {result.seed}: {len(results)} seeds, {failed} failed,"
                f" {hours:.0f} virtual hours, {time.perf_counter() - began:.0f} s"
            )


def _reported(results: Iterable[Result], say: Say) -> Iterator[Result]:
    for result in results:
        say(report(result, one=False))
        yield result


def _differing(before: list[Result], processes: int, *, fast_paths: bool) -> list[str]:
    """Run seeds under another hash seed; return those with another digest, one sentence each."""
    digests = {one.seed: one.digest for one in before}
    again = many.run_many(digests, processes=processes, hash_seed=4711, fast_paths=fast_paths)
    return [
        f"seed {one.seed} does something else under another PYTHONHASHSEED"
        for one in again
        if one.digest != digests[one.seed]
    ]
