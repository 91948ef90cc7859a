"""Entry point: runs seeds from the command line; exit status 0 if all are clean, else 1."""

import sys

from tests.engine.simulation.command import main

sys.exit(main())
