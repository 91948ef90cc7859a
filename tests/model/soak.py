"""Soak: many more machines than the suite runs, in batches that can each be repeated.

`make soak-model` calls it. Each batch has its own seed; one that fails shows the program, the
steps, and the command that repeats it.
"""

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Machine

STEPS = 60
BATCH = 200


def play(first: int, machines: int, *, shrinks: bool = True, of: type[Machine] = Machine) -> None:
    """Play so many machines, all drawn from one seed; one that fails is made short if wanted."""

    class Batch(of):  # type: ignore[misc, valid-type]
        """Of its own, because the seed is kept at the class."""

    with rare_collections():
        run_state_machine_as_test(
            seed(first)(Batch),
            settings=settings(
                max_examples=machines,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
                print_blob=True,
                database=None,
            ),
        )


@contextmanager
def rare_collections() -> Iterator[None]:
    """A machine is a heap of cycles that lives for a fifth of a second: look for garbage seldom,
    and never at what was there before. That is a fifth of the time."""
    before = gc.get_threshold()
    gc.collect()  # what is left of a batch before this one would be kept with what was there
    gc.freeze()
    gc.set_threshold(200_000, 5, 5)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def say(line: str) -> None:
    """Tell how far it is, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Play batch after batch."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.soak", description=__doc__)
    parser.add_argument("--machines", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first batch")
    parser.add_argument("--batch", type=int, default=BATCH, help="machines a seed")
    parser.add_argument("--as-found", action="store_true", help="do not make a failing one short")
    parser.add_argument("--keep-going", action="store_true", help="go on behind a failing batch")
    parser.add_argument(
        "--no-fast-paths", action="store_true", help="every message takes the general path"
    )
    given = parser.parse_args(argv)
    Machine.fast_paths = not given.no_fast_paths
    began = time.perf_counter()
    done, number = 0, given.seed
    failed: list[int] = []
    while done < given.machines:
        size = min(given.batch, given.machines - done)
        try:
            play(number, size, shrinks=not given.as_found)
        except KeyboardInterrupt:
            say(f"stopped; {done} machines of {STEPS} steps, {len(failed)} batches failed")
            return 130
        except BaseException:
            again = f"--seed {number} --machines {size} --batch {given.batch}"
            again += " --no-fast-paths" if given.no_fast_paths else ""
            say(f"FAILED; again with: python -m tests.model.soak {again}")
            if not given.keep_going:
                raise
            failed.append(number)
            say(traceback.format_exc())
        done += size
        spent = time.perf_counter() - began
        say(f"seed {number}: {done} of {given.machines} machines, {spent:.0f} s")
        number += 1
    if failed:
        say(f"{done} machines of {STEPS} steps; batches that failed: {failed}")
        return 1
    say(f"{done} machines of {STEPS} steps: clean")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
