"""Replay: the steps that a failing machine has printed, played again.

    python -m tests.model.replay FILE…    # what a soak has written, or the lines of the steps alone

A seed gives the same machines only with the same sources, because Hypothesis takes some of what it
draws from the constants in them. So after a mend the seed shows nothing; the steps do.
"""

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.model.machine import Machine
from tests.model.soak import say

_FIRST, _LAST = "state.", "state.teardown()"


def steps_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The steps of the machine that a text shows: their names and arguments."""
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith(_FIRST)), len(lines))
    last = lines.index(_LAST, first) if _LAST in lines[first:] else len(lines)
    found = []
    for one in ast.parse("\n".join(lines[first:last])).body:
        assert isinstance(one, ast.Expr), ast.unparse(one)
        call = one.value
        assert isinstance(call, ast.Call), ast.unparse(one)
        assert isinstance(call.func, ast.Attribute), ast.unparse(one)
        given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        found.append((call.func.attr, given))
    return found


def replay(text: str) -> None:
    """Play them; raises what they show."""
    machine = Machine()
    try:
        for name, given in steps_in(text):
            getattr(machine, name)(**given)
    finally:
        machine.teardown()


def main(argv: Sequence[str]) -> int:
    """Replay each file."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.replay", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--no-fast-paths", action="store_true", help="every message takes the general path"
    )
    given = parser.parse_args(argv)
    Machine.fast_paths = not given.no_fast_paths
    for file in given.files:
        text = file.read_text()
        replay(text)
        say(f"{file}: {len(steps_in(text))} steps: clean")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
