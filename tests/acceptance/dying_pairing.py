"""The command `brokerd`, whose daemon is killed between the two commits of a pairing (SEC-61)."""

import os
import signal
import sys
from typing import Any

from brokerd.admin.pairing.introductions import Introductions
from brokerd.cli.main import main


async def _die(*_args: Any, **_options: Any) -> Any:
    """End the process as kill -9 does, instead of making routes and bindings."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Introductions._make_objects = _die  # type: ignore[method-assign]
    sys.exit(main())
