"""Report: the results of seeds as text."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.engine.simulation.world import Result


def report(result: Result, *, one: bool = True) -> str:
    """Return the report of one seed; empty for a clean one of many, unless it has a trace."""
    lines = list(result.trace)
    if result.problems:
        lines.append(f"seed {result.seed} FAILED after {result.seconds:.1f} virtual s:")
        lines += [f"  {line}" for text in result.problems for line in text.splitlines()]
        lines.append(f"  repeat: {repeat(result)}")
        if result.artefacts:
            lines.append(f"  history, stores and trace: {result.artefacts}")
    if one:
        lines.append(f"seed {result.seed}: digest {result.digest}, {result.seconds:.1f} virtual s")
    return "\n".join(lines)


def repeat(result: Result) -> str:
    """Return the command that runs the seed of a result again."""
    command = f"python -m tests.engine.simulation --seed {result.seed} --trace"
    return command if result.fast_paths else f"{command} --no-fast-paths"


def total(results: Iterable[Result]) -> Counter[str]:
    """Return the sums of the counts of many runs."""
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
    return counts


def sums(results: Sequence[Result]) -> str:
    """Return the summed counts and the failed seeds of many runs, as text."""
    hours = sum(result.seconds for result in results) / 3600
    failed = [str(result.seed) for result in results if result.problems]
    lines = [f"{name:45} {count:9}" for name, count in sorted(total(results).items())]
    lines.append(f"{len(results)} seeds, {hours:.2f} virtual hours, {len(failed)} failed")
    if failed:
        lines.append(f"failed: {' '.join(failed)}")
    return "\n".join(lines)
