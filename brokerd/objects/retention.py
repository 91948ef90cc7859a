"""The section `[queue.retention_limit]` of a file of objects (PBT-24). PURE.

Reads:  decoded TOML.      Calls:  config.toml_file.      Never:  looks anything up in a store.
"""

from collections.abc import Mapping

from brokerd.config.toml_file import Problems, unknown_keys
from brokerd.model import Queue, RetentionLimit, RetentionPolicy

_KEYS = ("max_rows", "max_bytes", "policy", "archive")
_POLICIES = [policy.value for policy in RetentionPolicy]


def read_limit(at: str, table: object, problems: Problems) -> RetentionLimit:
    """Return the retention limit that a section declares; add what is wrong to `problems`."""
    if table is None:
        return RetentionLimit()
    if not isinstance(table, dict):
        problems.add(at, "is a section: write [queue.retention_limit] below the queue")
        return RetentionLimit()
    unknown_keys(table, _KEYS, under=at, problems=problems)
    rows, size = (_number(at, table, key, problems) for key in ("max_rows", "max_bytes"))
    policy, archive = table.get("policy", RetentionPolicy.ERROR.value), table.get("archive", "")
    if policy not in _POLICIES:
        problems.add(f"{at}.policy", f"is one of {', '.join(_POLICIES)}")
        policy = RetentionPolicy.ERROR.value
    archives = policy == RetentionPolicy.ARCHIVE
    if not isinstance(archive, str) or bool(archive) != archives:
        problems.add(f"{at}.archive", "names a queue, with policy archive and no other")
        archive = ""
    if not rows and not size:
        problems.add(at, "give max_rows or max_bytes, above 0")
    return RetentionLimit(rows, size, RetentionPolicy(policy), archive)


def check_archives(queues: Mapping[str, Queue]) -> list[str]:
    """Return the names of archives that are not another queue of the file."""
    return [
        queue.retention_limit.archive
        for name, queue in queues.items()
        if queue.retention_limit.archive
        and (queue.retention_limit.archive == name or queue.retention_limit.archive not in queues)
    ]


def _number(at: str, table: Mapping[str, object], key: str, problems: Problems) -> int:
    value = table.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        problems.add(f"{at}.{key}", "a number of 0 or more; 0 is no limit")
        return 0
    return value
