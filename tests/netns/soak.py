"""The long variant: `make soak-netns` (CYCLES=20 SEED=1), with a forwarder between the two.

Exit status 0: the checker finds nothing; 1: it does, or something did not come to its end; 77: no
network namespaces here.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.netns.faults import survive
from tests.netns.lab import lab, why_not

SKIPPED = 77


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak-netns", description=__doc__.partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--direct", action="store_true", help="without the forwarder")
    parser.add_argument("--dir", type=Path, help="where files go; a new directory if left out")
    options = parser.parse_args()
    if reason := why_not():
        sys.stdout.write(f"skipped: {reason}\n")
        return SKIPPED
    folder = options.dir or Path(tempfile.mkdtemp(prefix="brokerd-netns-"))
    say = lambda text: (sys.stdout.write(f"{text}\n"), sys.stdout.flush())  # noqa: E731
    say(f"seed {options.seed}, files in {folder}")
    with (
        lab(folder, ["east", "west"], through="" if options.direct else "middle") as made,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(survive(made, seed=options.seed, cycles=options.cycles, say=say))
    for violation in found:
        say(violation.show())
    say("violated" if found else "clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
