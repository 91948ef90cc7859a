"""Stretches: messages beyond a queue's window, found by conversation (design D4).

Reads:  nothing; this module makes SQL text.      Calls: nothing.
Never:  reads messages of another conversation, or more messages than requested.

In an index by conversation, each message of a flush is written to a different page, and the sweep
that deletes the message writes that page again. So the index begins with a stretch of queuing
orders. All new messages lie in the newest stretch, deleted ones in the oldest, and each stretch has
some eighty pages. The cost lies in reads of a conversation: a few seeks for each stretch in use;
ten million messages lie in 600 stretches.
"""

from typing import Final

from brokerd.storage.shelves import PLACES, SHELVES
from brokerd.storage.tables import AHEAD, PAGED, STRETCH, messages_at

_BITS: Final = STRETCH.rpartition(" ")[2]
STRETCH_ORDERS: Final = 1 << int(_BITS)
"""Number of queuing orders in a stretch."""
_LOWEST: Final = f"ORDER BY {STRETCH} LIMIT 1"


def table_at(place: int) -> str:
    """Return the name of the table with the messages of a place."""
    return messages_at[place].name


EVERYWHERE: Final = " UNION ALL ".join(
    f"SELECT * FROM {table}"  # noqa: S608
    for table in map(table_at, PLACES)
)
"""Query for all messages of all places, for readers that scan whole tables."""


def found_at(place: int) -> str:
    """Return the condition of the messages at a place that are found by index.

    The text must equal, word for word, the condition in the index."""
    return "TRUE" if place in SHELVES else PAGED


def among(place: int, after: str = "-1", before: str | None = None) -> str:
    """Return SQL that, combined with a condition on the endpoint, finds its messages by index.

    `after`, `before`: SQL for queuing orders between which the messages are known to lie.
    """
    most = "" if before is None else f" AND {STRETCH} <= {before} >> {_BITS}"
    find = _find(place)
    return (
        f"{found_at(place)} AND {STRETCH} IN (WITH RECURSIVE stretches (stretch) AS"  # noqa: S608
        f" (SELECT ({find} >= {after} >> {_BITS}{most} {_LOWEST})"
        f" UNION ALL SELECT ({find} > stretch{most} {_LOWEST})"
        " FROM stretches WHERE stretch IS NOT NULL)"
        " SELECT stretch FROM stretches WHERE stretch IS NOT NULL)"
    )


def _find(place: int) -> str:
    return f"SELECT {STRETCH} FROM {table_at(place)} WHERE {found_at(place)} AND {STRETCH}"  # noqa: S608


BEFORE_ALL: Final = (-1, -(1 << 62))
"""A queuing order and sequence before those of every message."""
# Sequences and queuing orders of one conversation rise together. The exception is the few sequences
# below 0, of messages that come before all others however late they arrive (RCV-9): these are found
# separately, and none is on a shelf. Each part stops at the limit, and the second part reads no
# stretch after the one with the last row.
_OF: Final = "endpoint_key = :key"
_LATER: Final = f"{_OF} AND sequence > max(:after_sequence, -1)"
_FIRST: Final = (
    "SELECT queuing_order FROM (SELECT queuing_order"  # noqa: S608
    f" FROM queue_messages INDEXED BY queue_messages_ahead WHERE {AHEAD} AND {_OF}"
    " AND (sequence, queuing_order) > (:after_sequence, :after_order)"
    " ORDER BY sequence, queuing_order LIMIT :limit) AS ahead UNION ALL "
)


def first_of(place: int) -> str:
    """Return SQL for the first `limit` messages of an endpoint after a given one, by sequence.

    The result may exceed `limit` if some messages come before all others (RCV-9). `least`: queuing
    order of the given message, or -1.
    """
    table, found, find = table_at(place), found_at(place), _find(place)
    return (
        f"{'' if place in SHELVES else _FIRST}SELECT queuing_order FROM (SELECT queuing_order"  # noqa: S608
        f" FROM {table} INDEXED BY {table}_of WHERE {found} AND {_LATER}"
        f" AND {STRETCH} IN (WITH RECURSIVE stretches (stretch, wanted) AS"
        f" (SELECT ({find} >= :least >> {_BITS} {_LOWEST}), :limit"
        f" UNION ALL SELECT ({find} > stretch {_LOWEST}), wanted - (SELECT count(*) FROM"
        f" (SELECT 1 FROM {table} INDEXED BY {table}_of WHERE {found}"
        f" AND {STRETCH} = stretch AND {_LATER} LIMIT :limit) AS some_)"
        " FROM stretches WHERE stretch IS NOT NULL AND wanted > 0)"
        " SELECT stretch FROM stretches WHERE stretch IS NOT NULL AND wanted > 0)"
        f" ORDER BY {STRETCH}, endpoint_key, sequence, queuing_order LIMIT :limit) AS later"
    )
