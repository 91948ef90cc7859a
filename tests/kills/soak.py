"""The long variant: `make soak-kill` (KILLS=25 SEED=1) of readers, daemon and activator.

Exit status 0: every order was answered once and in order, and the ceilings held; 1: not so.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.kills.readers import place, survive


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak-kill", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before a kill, at most")
    parser.add_argument("--dir", type=Path, help="where files go; a new directory if left out")
    options = parser.parse_args()
    folder = options.dir or Path(tempfile.mkdtemp(prefix="brokerd-kill-"))
    say = lambda text: (sys.stdout.write(f"{text}\n"), sys.stdout.flush())  # noqa: E731
    say(f"seed {options.seed}, files in {folder}")
    with place(folder) as made:
        found = uvloop.run(
            survive(made, seed=options.seed, kills=options.kills, pause=options.pause, say=say)
        )
    for problem in found:
        say(problem)
    say("violated" if found else "clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
