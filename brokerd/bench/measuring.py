"""The options, settings and directories that all benchmarks have.

Reads: nothing.      Calls: nothing.      Never: asserts a speed.
"""

import contextlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Final

import msgspec

from brokerd.errors import Refusal
from brokerd.storage.compiled import library
from brokerd.storage.connections import SQLITE_VERSION

MOST_BODY: Final = 16 * 1024 * 1024
"""Largest body in bytes that a daemon accepts (`dialog.max_message`)."""
MOST_CLIENTS: Final = 999
"""Most connections of one side, or of one kind; the benchmark itself needs one more."""
WARM_UP = 1.0
"""Seconds at the start that are not counted."""

_IN_FILES: Final = "each confirmation after an fsync (WAL, synchronous=FULL)"
_IN_POSTGRESQL: Final = (
    "each confirmation after a COMMIT that the PostgreSQL server has made durable"
)

Say = Callable[[str], None]
Measure = Callable[[Say], Coroutine[None, None, dict[str, object]]]
"""A benchmark with its options: a function of the progress callback that returns the result."""


class BenchFailed(Refusal):
    """A benchmark could not be run to its end."""

    code = "bench_failed"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every benchmark; each adds its own."""

    directory: Path | None = None
    """Directory in which stores are made; None = the system's directory of temporary files."""


class LoadOptions(Options, frozen=True, kw_only=True):
    """The work of the load processes during the counted time."""

    seconds: float = 5.0
    clients: int = 8
    outstanding: int = 100
    """Number of a client's sends under way."""
    dialogs: int = 64
    """Number of dialogs of each client."""
    size: int = 256
    batch: int = 100
    """Most messages in one transaction, for receiving."""
    processes: int = 1
    """Number of load processes for each side."""


def describe_settings(options: Options) -> dict[str, object]:
    """Return the settings of a result: the options and the system that it was measured with."""
    own = msgspec.structs.asdict(options)
    del own["directory"]
    if isinstance(options, LoadOptions):
        own["warm_up"] = WARM_UP
    return {
        **own,
        "durability": _IN_POSTGRESQL if _is_on_server(options) else _IN_FILES,
        "python": platform.python_version(),
        "interpreter": sys.base_prefix,  # two interpreters of one version may be built differently
        "sqlite": SQLITE_VERSION,
        "flushes": "compiled" if library.IS_BUILT else "python",
        "processors": os.cpu_count(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
    }


def _is_on_server(options: Options) -> bool:
    """Return whether the daemons have their stores on a server: by an option, or the setting that
    they inherit from the environment."""
    return bool(getattr(options, "url", "") or os.environ.get("BROKERD_STORE__URL"))


@contextlib.contextmanager
def bench_directory(options: Options) -> Iterator[Path]:
    """Make a directory that is removed after the block."""
    made = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
