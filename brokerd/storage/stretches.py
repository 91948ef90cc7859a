"""Stretches: messages beyond a queue's window, found by conversation (design D4).

Reads:  nothing; these are texts of statements.      Calls: nothing.
Never:  looks at messages of another conversation, or at more of one than is asked for.

An index by conversation is written all over: each message of a flush goes to a page of its own, and
the sweep that deletes it comes to that page again. So the index has a stretch of queuing orders
first. What is new all lies in the newest stretch, what is deleted in the oldest, and each of them
is some eighty pages. Who looks for a conversation pays for it, with a few seeks for each stretch
that is there: ten million messages lie in 600.
"""

from typing import Final

from brokerd.storage.tables import AHEAD, PAGED, STRETCH

_BITS: Final = STRETCH.rpartition(" ")[2]
_FIND: Final = f"SELECT {STRETCH} FROM queue_messages WHERE {PAGED} AND {STRETCH}"  # noqa: S608
_LOWEST: Final = f"ORDER BY {STRETCH} LIMIT 1"


def among(after: str = "-1", before: str | None = None) -> str:
    """The condition with which messages of an endpoint are found by index, besides the endpoint.

    `after`, `before`: SQL for queuing orders between which they are known to lie."""
    most = "" if before is None else f" AND {STRETCH} <= {before} >> {_BITS}"
    return (
        f"{PAGED} AND {STRETCH} IN (WITH RECURSIVE stretches (stretch) AS"  # noqa: S608
        f" (SELECT ({_FIND} >= {after} >> {_BITS}{most} {_LOWEST})"
        f" UNION ALL SELECT ({_FIND} > stretch{most} {_LOWEST})"
        " FROM stretches WHERE stretch IS NOT NULL)"
        " SELECT stretch FROM stretches WHERE stretch IS NOT NULL)"
    )


# Numbers and orders of one conversation rise together, save for the few numbers below 0, which are
# of messages that come before all others however late they are (RCV-9): they are found apart. Each
# part stops at the limit, and the second looks into no stretch behind that with the last row.
_OF: Final = "endpoint_key = :key"
_LATER: Final = f"{_OF} AND sequence > max(:after_sequence, -1)"
FIRST_OF: Final = (
    "SELECT queuing_order FROM (SELECT queuing_order"  # noqa: S608
    f" FROM queue_messages INDEXED BY queue_messages_ahead WHERE {AHEAD} AND {_OF}"
    " AND (sequence, queuing_order) > (:after_sequence, :after_order)"
    " ORDER BY sequence, queuing_order LIMIT :limit)"
    " UNION ALL SELECT queuing_order FROM (SELECT queuing_order"
    f" FROM queue_messages INDEXED BY queue_messages_of WHERE {PAGED} AND {_LATER}"
    f" AND {STRETCH} IN (WITH RECURSIVE stretches (stretch, wanted) AS"
    f" (SELECT ({_FIND} >= :least >> {_BITS} {_LOWEST}), :limit"
    f" UNION ALL SELECT ({_FIND} > stretch {_LOWEST}), wanted - (SELECT count(*) FROM"
    f" (SELECT 1 FROM queue_messages INDEXED BY queue_messages_of WHERE {PAGED}"
    f" AND {STRETCH} = stretch AND {_LATER} LIMIT :limit))"
    " FROM stretches WHERE stretch IS NOT NULL AND wanted > 0)"
    " SELECT stretch FROM stretches WHERE stretch IS NOT NULL AND wanted > 0)"
    f" ORDER BY {STRETCH}, endpoint_key, sequence, queuing_order LIMIT :limit)"
)
"""The first so many messages of an endpoint behind a place, by sequence; some more if there are
messages that come before all others. `least`: queuing order of the place, or -1."""
