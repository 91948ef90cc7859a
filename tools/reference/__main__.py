"""Write the reference pages, or with --check say which are not fresh."""

import argparse
import sys
from collections.abc import Sequence

from tools.reference.pages import DIRECTORY, stale, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if --check found a page that is not fresh."""
    parser = argparse.ArgumentParser(prog="reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if one is stale")
    if parser.parse_args(arguments).check:
        found = stale()
        for name in found:
            print(
                f"reference: {DIRECTORY / name} is not fresh; run `make reference`", file=sys.stderr
            )
        return 1 if found else 0
    for name in write():
        print(f"reference: wrote {DIRECTORY / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
