"""Payload of an event: one JSON object, whose first fields are the same for every event. PURE.

Reads:  facts.      Calls: nothing.      Never: contains a message body or a key (MON-10).
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from brokerd.clock import Instant, show_instant
from brokerd.events.subscription import Event, Owed
from brokerd.ids import ID_SIZE, BrokerId, show

_LEFT_OUT: Final = frozenset({"exc_info", "event", "broker", "queue", "repeated"})


def make_event(
    name: str,
    *,
    instance: str,
    broker: str,
    broker_id: BrokerId | None,
    queue: str | None,
    at: Instant,
    facts: Mapping[str, object],
) -> Event:
    """Return an event with its payload.

    The payload has `event`, `posted_at`, `instance`, `broker`, `broker_id`, then `queue` if the
    event is about a queue, then `facts`, the fields of the event (ACT-38)."""
    fields: dict[str, object] = {
        "event": name,
        "posted_at": show_instant(at),
        "instance": instance,
        "broker": broker,
        "broker_id": None if broker_id is None else show(broker_id),
    }
    if queue is not None:
        fields["queue"] = queue
    fields |= {key: fact for key, fact in facts.items() if key not in _LEFT_OUT}
    body = orjson.dumps(fields, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    return Event(name, broker, queue, _subject(fields), body)


def owed_again(key: int, body: bytes) -> Owed | None:
    """Return the event of a body that was sent, but perhaps not delivered, to send it again.

    Return None if the body is not that of an event. `key`: the key of the new row."""
    try:
        fields: Any = orjson.loads(body)
        return Owed(key, str(fields["event"]), _subject(fields), body)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _subject(fields: Mapping[str, object]) -> str:
    return f"{fields.get('broker')}/{fields.get('queue', '')}"


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return show(value) if len(value) == ID_SIZE else value.hex()
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return str(value)
