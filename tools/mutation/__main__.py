"""`python -m tools.mutation MODULE… --tests PATH…`: prints the mutants that no test notices.

Exit:   0 if every mutant is noticed, or is listed as equivalent; 1 if one survives; 2 if the tests
        fail on the sound module.
"""

import argparse
import random
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tools.mutation.operators import Mutant, mutants
from tools.mutation.trials import SURVIVED, UNTESTED, Copy, Trial, Trials, UnsoundTests

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path("tests/equivalent_mutants.toml")
"""Mutants that behave as the module does, each with the reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the module's header for the exit status."""
    options = _options(arguments)
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="brokerd-mutation-") as place:
        copy = Copy(ROOT, Path(place))
        for module in options.modules:
            try:
                survivors += _module(copy, module, options)
            except UnsoundTests as failure:
                sys.stderr.write(f"{module}: the tests fail without a mutant:\n{failure}\n")
                return 2
    return int(survivors > 0)


def _module(copy: Copy, module: Path, options: argparse.Namespace) -> int:
    """Try the mutants of one module; return how many survive."""
    source = (ROOT / module).read_text(encoding="utf-8")
    every = mutants(source)
    known = _equivalent(module)
    chosen = _sample([one for one in every if one.name not in known], options)
    _say(f"{module}: {len(every)} mutants, of which {len(known)} are equivalent; learning")
    trials = Trials(copy, module, options.tests, options.jobs)
    found: list[Trial] = []
    for mutant in chosen:
        found.append(trials.try_out(mutant))
        if found[-1].outcome in {SURVIVED, UNTESTED}:
            _say(_shown(module, found[-1]))
    copy.replace(module, source)
    counts = Counter(one.outcome for one in found)
    alive = counts[SURVIVED] + counts[UNTESTED]
    _say(f"{module}: {len(found) - alive} of {len(found)} noticed ({_share(found, alive)})")
    return alive


def _sample(every: Sequence[Mutant], options: argparse.Namespace) -> list[Mutant]:
    if options.lines:
        first, _, last = options.lines.partition("-")
        span = range(int(first), int(last or first) + 1)
        every = [one for one in every if one.line in span]
    if not options.sample or options.sample >= len(every):
        return list(every)
    chosen = random.Random(options.seed).sample(every, options.sample)  # noqa: S311  # no secret
    return sorted(chosen, key=lambda one: one.line)


def _equivalent(module: Path) -> Mapping[str, str]:
    """Return the reasons why mutants of a module are equivalent, by their names."""
    path = ROOT / EQUIVALENT
    said = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known: Mapping[str, str] = said.get(str(module), {})
    return known


def _shown(module: Path, trial: Trial) -> str:
    mutant = trial.mutant
    how = trial.outcome if trial.outcome == UNTESTED else f"survived {trial.tests} tests"
    return f"  {module}:{mutant.line}: {mutant.kind}, {how}\n      {mutant.name}"


def _share(found: Iterable[Trial], alive: int) -> str:
    count = len(list(found))
    return f"{(count - alive) / count:.0%}" if count else "none tried"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("modules", nargs="+", type=Path, help="such as brokerd/broker/queues.py")
    parser.add_argument("--tests", nargs="+", required=True, help="files or folders of tests")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each module")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--lines", default="", help="only mutants of these lines, such as 40-80")
    parser.add_argument("--jobs", type=int, default=2, help="processes that learn the tests")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
