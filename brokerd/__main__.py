"""`python -m brokerd` and the installed command: hands over to the command line."""

import sys

from brokerd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
