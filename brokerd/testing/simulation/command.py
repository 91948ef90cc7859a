"""The command: one seed with its trace, or many with their sums (HK-8).

python -m brokerd.testing.simulation --seed 7 [--trace]
python -m brokerd.testing.simulation --seeds 0-499
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from brokerd.testing.simulation.runs import simulator
from brokerd.testing.simulation.world import Result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for, and say what came of it."""
    parser = argparse.ArgumentParser(prog="brokerd.testing.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed and tell all about it")
    which.add_argument("--seeds", help="run many, first-last")
    parser.add_argument("--trace", action="store_true", help="show what happened, step by step")
    parser.add_argument("--stop", action="store_true", help="stop at the first that fails")
    options = parser.parse_args(arguments)
    seeds = _range(options.seeds) if options.seeds else range(options.seed, options.seed + 1)
    began, results = time.perf_counter(), []
    with simulator() as simulated:
        for seed in seeds:
            result = simulated.run(seed, traced=options.trace)
            results.append(result)
            say(report(result, one=options.seed is not None))
            if options.stop and result.problems:
                break
    if options.seed is None or options.trace:
        say(sums(results, time.perf_counter() - began))
    return 1 if any(result.problems for result in results) else 0


def report(result: Result, *, one: bool = True) -> str:
    """What to say about one seed; nothing about a clean one of many."""
    lines = list(result.trace)
    if result.problems:
        lines.append(f"seed {result.seed} FAILED after {result.seconds:.1f} virtual s:")
        lines += [f"  {line}" for text in result.problems for line in text.splitlines()]
        lines.append(f"  repeat: {repeat(result.seed)}")
    if one:
        lines.append(f"seed {result.seed}: digest {result.digest}, {result.seconds:.1f} virtual s")
    return "\n".join(lines)


def repeat(seed: int) -> str:
    """The command that runs a seed again."""
    return f"python -m brokerd.testing.simulation --seed {seed} --trace"


def total(results: Iterable[Result]) -> Counter[str]:
    """The counts of many runs."""
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
    return counts


def sums(results: Sequence[Result], seconds: float | None = None) -> str:
    """What many runs have seen, as text."""
    hours = sum(result.seconds for result in results) / 3600
    failed = [str(result.seed) for result in results if result.problems]
    lines = [f"{name:45} {count:9}" for name, count in sorted(total(results).items())]
    lines.append(f"{len(results)} seeds, {hours:.2f} virtual hours, {len(failed)} failed")
    if failed:
        lines.append(f"failed: {' '.join(failed)}")
    if seconds:
        lines.append(f"{60 * len(results) / seconds:.0f} seeds a minute")
    return "\n".join(lines)


def say(text: str) -> None:
    """Print, unless there is nothing to say."""
    if text:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
