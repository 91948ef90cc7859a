"""What all benchmarks share: how they are asked for, what they say of themselves, their directory.

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
from brokerd.storage.engine import SQLITE_VERSION

MOST_BODY: Final = 16 * 1024 * 1024
"""Bytes of a body that a daemon takes (`dialog.max_message`)."""
MOST_CLIENTS: Final = 999
"""Connections of one side, or of one kind: a daemon takes one more, with which it is looked at."""
WARM_UP = 1.0
"""Seconds at the start that are not counted."""

Say = Callable[[str], None]
Measure = Callable[[Say], Coroutine[None, None, dict[str, object]]]
"""A benchmark with its options: where to say how far it is, to its result."""


class BenchFailed(Refusal):
    """A benchmark could not be run to its end."""

    code = "bench_failed"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What each benchmark can be told; its own options come on top."""

    directory: Path | None = None
    """Where stores are made; None = where the system has temporary files."""


class LoadOptions(Options, frozen=True, kw_only=True):
    """What load processes do, for as long as is counted."""

    seconds: float = 5.0
    clients: int = 8
    outstanding: int = 100
    """Sends of a client that are under way."""
    dialogs: int = 64
    """Of each client."""
    size: int = 256
    batch: int = 100
    """Messages in one transaction, for receiving."""
    processes: int = 1
    """Load processes for each side."""


def describe_settings(options: Options) -> dict[str, object]:
    """What a result says about how it was made."""
    own = msgspec.structs.asdict(options)
    del own["directory"]
    if isinstance(options, LoadOptions):
        own["warm_up"] = WARM_UP
    return {
        **own,
        "durability": "each confirmation after an fsync (WAL, synchronous=FULL)",
        "python": platform.python_version(),
        "interpreter": sys.base_prefix,  # two of one version may be built differently
        "sqlite": SQLITE_VERSION,
        "flushes": "compiled" if library.IS_BUILT else "python",
        "processors": os.cpu_count(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
    }


@contextlib.contextmanager
def bench_directory(options: Options) -> Iterator[Path]:
    """A directory that is gone afterwards."""
    made = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
