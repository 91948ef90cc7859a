"""The keys `poison_...` of a queue in a file of objects (PSN-14, PSN-15, PBT-3, PBT-10). PURE.

Reads:  decoded TOML.      Calls:  keys, units.      Never:  looks anything up in a store.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from brokerd.config.toml_file import Problems
from brokerd.model import Poison, PoisonMode, Queue
from brokerd.objects.keys import read_duration, read_number
from brokerd.units import show_duration

KEYS: Final = (
    "poison_mode",
    "poison_threshold",
    "poison_disconnects",
    "poison_backoff",
    "poison_backoff_max",
)
_MODES: Final = [mode.value for mode in PoisonMode]
_MOST: Final = 1_000_000


def read_poison(at: str, table: Mapping[str, object], problems: Problems) -> Poison:
    """Return the poison settings of a queue; add errors to `problems`."""
    usual = Poison()
    mode = table.get("poison_mode", usual.mode.value)
    if mode not in _MODES:
        problems.add(f"{at}.poison_mode", f"is one of {', '.join(_MODES)} (PSN-15)")
        mode = usual.mode.value
    first = _backoff(at, table, "poison_backoff", usual.backoff_first, problems)
    most = _backoff(at, table, "poison_backoff_max", usual.backoff_max, problems)
    if first > most:
        problems.add(f"{at}.poison_backoff", "is not above poison_backoff_max (PBT-3)")
    return Poison(
        mode=PoisonMode(mode),
        threshold=_rollbacks(at, table, "poison_threshold", usual.threshold, problems),
        disconnects=_rollbacks(at, table, "poison_disconnects", usual.disconnects, problems),
        backoff_first=first,
        backoff_max=most,
    )


def describe_poison(queue: Queue) -> dict[str, Any]:
    """Return the keys that declare the poison settings of a queue, without default values."""
    poison, usual = queue.poison, Poison()
    made: dict[str, Any] = {}
    if poison.mode is not usual.mode:
        made["poison_mode"] = poison.mode.value
    if poison.threshold:
        made["poison_threshold"] = poison.threshold
    if poison.disconnects != usual.disconnects:
        made["poison_disconnects"] = poison.disconnects
    for key, value, default in (
        ("poison_backoff", poison.backoff_first, usual.backoff_first),
        ("poison_backoff_max", poison.backoff_max, usual.backoff_max),
    ):
        if value != default:
            made[key] = show_duration(timedelta(microseconds=value))
    return made


def poison_words(queue: Queue) -> str:
    """Return the poison settings of a queue in words, for the sentence about a change."""
    poison = queue.poison
    if not queue.poison_handling:
        return "off"
    said = describe_poison(queue)
    said.pop("poison_mode", None)
    how = f"{poison.mode.value} after {poison.limit} rollbacks"
    rest = ", ".join(f"{key} {value}" for key, value in said.items() if key != "poison_threshold")
    return f"{how}, {rest}" if rest else how


def _rollbacks(
    at: str, table: Mapping[str, object], key: str, usual: int, problems: Problems
) -> int:
    value = table.get(key)
    if value is None:  # 0, the usual threshold, may not be written
        return usual
    return read_number(
        value,
        partial(problems.add, f"{at}.{key}"),
        least=1,
        most=_MOST,
        usual=usual,
        problem=f"a number from 1 to {_MOST} (PSN-14)",
    )


def _backoff(at: str, table: Mapping[str, object], key: str, usual: int, problems: Problems) -> int:
    value = read_duration(
        table.get(key),
        partial(problems.add, f"{at}.{key}"),
        least=timedelta(milliseconds=1),
        rule="PBT-3",
    )
    return usual if value is None else value
