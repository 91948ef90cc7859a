"""Whether the help of a benchmark explains the keys of its result."""

import re
from collections.abc import Iterator

import msgspec

from brokerd.cli.bench_keys import KEYS

_NAMED = {"counters", "daemons", "modules_us", "points", "processor_us_per_message", "stages_us"}
"""What lies below these has names of its own: of daemons, modules, stages, points."""


def unexplained(command: str, result: object) -> set[str]:
    """Keys that the help of a command does not name."""
    text = " ".join(key for key, _ in KEYS[command]) + " p50 p95 p99 p999 most"
    explained = {"benchmark", "settings", *re.findall(r"\w+", text)}
    return set(_keys(msgspec.to_builtins(result))) - explained


def _keys(value: object, *, named: bool = False) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _keys(one)
    if not isinstance(value, dict):
        return
    for key, one in value.items():
        if not named:
            yield str(key)
        if key != "settings":
            yield from _keys(one, named=key in _NAMED and not named)
