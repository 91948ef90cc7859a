"""Queue status: columns about poison messages, and why a queue is on or off (PSN-14, PBT-1). PURE.

Reads:  a row as a map.      Calls: nothing.      Never: touches the store; `catalog.py` does.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from brokerd.clock import Instant
from brokerd.model import Poison, PoisonMode, Queue, QueueStatus

_FIELDS = ("mode", "threshold", "disconnects", "backoff_first", "backoff_max")


class _Detail(msgspec.Struct, frozen=True, omit_defaults=True):
    conversation_id: str = ""
    message_id: str = ""
    error: str = ""
    rollbacks: int = 0


def poison_values(queue: Queue) -> dict[str, object]:
    """Return the columns, in the order of the table; defaults are NULL."""
    status, usual = queue.status, Poison()
    values: dict[str, object] = {}
    for name in _FIELDS:
        value = getattr(queue.poison, name)
        values[f"poison_{name}"] = None if value == getattr(usual, name) else value
    values["status_reason"] = None if status is None else status.reason
    values["status_changed_at"] = None if status is None else status.changed_at
    values["status_changed_by"] = None if status is None else status.changed_by
    values["status_detail"] = None if status is None else _written(status)
    return values


def poison_of(row: Mapping[str, Any]) -> Poison:
    """Return how the queue of a row handles poison messages."""
    given = {name: row[f"poison_{name}"] for name in _FIELDS if row[f"poison_{name}"] is not None}
    if "mode" in given:
        given["mode"] = PoisonMode(given["mode"])
    return Poison(**given)


def status_of(row: Mapping[str, Any]) -> QueueStatus | None:
    """Return why the queue is on or off; None = it was never switched."""
    if row["status_reason"] is None:
        return None
    detail = msgspec.json.decode(row["status_detail"] or "{}", type=_Detail)
    return QueueStatus(
        reason=row["status_reason"],
        changed_at=Instant(row["status_changed_at"]),
        changed_by=row["status_changed_by"] or "",
        conversation_id=bytes.fromhex(detail.conversation_id),
        message_id=bytes.fromhex(detail.message_id),
        error=detail.error,
        rollbacks=detail.rollbacks,
    )


def _written(status: QueueStatus) -> str:
    detail = _Detail(
        conversation_id=status.conversation_id.hex(),
        message_id=status.message_id.hex(),
        error=status.error,
        rollbacks=status.rollbacks,
    )
    return msgspec.json.encode(detail).decode()
