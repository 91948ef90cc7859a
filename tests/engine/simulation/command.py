"""The command: one seed with its trace, many with their sums, or all that `make sim` runs (HK-8).

python -m tests.engine.simulation --seed 7 [--trace]
python -m tests.engine.simulation --seeds 0-499 [--processes 2]
python -m tests.engine.simulation --whole tests/simulation/seeds.txt
python -m tests.engine.simulation --soak 100000

A seed that fails leaves its history, its stores and its trace in a folder of `--artefacts`.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.engine.simulation import many, whole
from tests.engine.simulation.report import report, sums
from tests.engine.simulation.runs import simulator
from tests.engine.simulation.world import Result

ARTEFACTS: Final = Path("build/simulation")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds of the arguments and print the results; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.serve:
        with suppress(KeyboardInterrupt):
            many.serve(sys.stdin, sys.stdout, options.artefacts, fast_paths=options.fast_paths)
        return 0
    if options.whole is not None:
        batch = whole.Batch()
        well = whole.run_whole(
            batch,
            kept_seeds(options.whole),
            processes=options.processes,
            artefacts=options.artefacts,
            fast_paths=options.fast_paths,
            say=say,
        )
        return 0 if well else 1
    if options.soak is not None:
        with suppress(KeyboardInterrupt):
            whole.soak(
                options.soak,
                processes=options.processes,
                artefacts=options.artefacts,
                fast_paths=options.fast_paths,
                say=say,
            )
        return 0
    return _one(options) if options.seed is not None else _several(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tests.engine.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run one seed and tell all about it")
    which.add_argument("--seeds", type=_range, help="run many, first-last")
    which.add_argument(
        "--whole", type=Path, metavar="KEPT", help="run what `make sim` does, and the kept seeds"
    )
    which.add_argument("--soak", type=int, metavar="FIRST", help="run until stopped")
    which.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help="show what happened, step by step")
    parser.add_argument("--stop", action="store_true", help="stop at the first that fails")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="how many run at once"
    )
    parser.add_argument(
        "--artefacts", type=Path, default=ARTEFACTS, help="where failed seeds leave what they did"
    )
    parser.add_argument(
        "--no-fast-paths",
        dest="fast_paths",
        action="store_false",
        help="every message takes the general path",
    )
    return parser


def _one(options: argparse.Namespace) -> int:
    with simulator(options.artefacts, fast_paths=options.fast_paths) as simulated:
        result = simulated.run(options.seed, traced=options.trace)
    say(report(result))
    if options.trace:
        say(sums([result]))
    return 1 if result.problems else 0


def _several(options: argparse.Namespace) -> int:
    began, results = time.perf_counter(), list[Result]()
    for result in many.run_many(
        options.seeds,
        processes=options.processes,
        artefacts=options.artefacts,
        fast_paths=options.fast_paths,
    ):
        results.append(result)
        say(report(result, one=False))
        if options.stop and result.problems:
            break
    say(sums(results))
    say(f"{60 * len(results) / (time.perf_counter() - began):.0f} seeds a minute")
    return 1 if any(result.problems for result in results) else 0


def kept_seeds(path: Path) -> Iterable[int]:
    """Return the seeds of a file that has a number and a reason in each line."""
    return [int(found) for found in re.findall(r"^(\d+)", path.read_text(), re.MULTILINE)]


def say(text: str) -> None:
    """Print a text, unless it is empty."""
    if text:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
