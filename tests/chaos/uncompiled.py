"""The command `brokerd`, as it is where no compiler was there at set-up."""

import sys

sys.modules["brokerd.storage.compiled._compiled"] = None  # type: ignore[assignment]  # as the import system has one that is missing

if __name__ == "__main__":
    from brokerd.cli.main import main  # what it imports looks for the compiled part

    sys.exit(main())
