"""One statement: most flushes reach the server as a single statement, fence and commit included.

Reads:  nothing.      Calls: nothing.
Never:  joins statements whose order matters.

Each exchange with the server is a turn of a busy event loop, and on a network a round trip. A
transaction of six statements takes eight; as one statement, which is a transaction by itself, it
takes one. Its parts all see the store as it was before the flush, and run in no particular order.
So they may only add rows, or find them by their keys, and no two of them may touch the same row.
"""

import re
from typing import Final

from brokerd.storage.postgresql.storable import storable_rows
from brokerd.storage.postgresql.texts import column_type, many_rows
from brokerd.storage.statements import Part, Script

MOST: Final = 256
"""Most rows of a part: from here on, copying them into the table is worth the further exchanges."""
_DISJOINT: Final = "transmission_queue"
"""The table of which a flush may add and delete rows at once: what a flush adds is acknowledged
after it."""
_ABOUT: Final = re.compile(r"(INSERT INTO|UPDATE|DELETE FROM) (\w+)")


def at_once(script: Script) -> tuple[str, list[object]] | None:
    """Return a fenced script as one statement with its values; None = its order may matter.

    The statement divides by zero if the fence does not hold.
    """
    if not script.is_fenced:
        return None
    fence, *parts = script.parts
    touched: set[tuple[str, str]] = set()
    texts: list[str] = []
    values: list[object] = list(fence.rows[0])
    for part in parts:
        about = _ABOUT.match(part.text)
        if about is None or "SELECT " in part.text or len(part.rows) >= MOST:
            return None
        verb, table = about.groups()
        same = {one for one in touched if one[1] == table}
        if same and (table != _DISJOINT or (verb, table) in same):
            return None
        touched.add((verb, table))
        joined = _joined(part)
        if joined is None:
            return None
        text, of_part = joined
        texts.append(f", part{len(texts)}_ AS ({text})")
        values += of_part
    fence_of = f"WITH fence_ AS ({fence.text} RETURNING 1){''.join(texts)}"
    return f"{fence_of} SELECT 1 / count(*) FROM fence_", values  # noqa: S608  # all ours


def _joined(part: Part) -> tuple[str, list[object]] | None:
    """Return a part as one statement with its values; None = it needs several."""
    if len(part.rows) == 1:
        return part.text, list(part.rows[0])
    if part.texts is None:
        return None
    types = tuple(column_type(column) for column in part.texts.columns)
    columns = zip(*storable_rows(part.rows), strict=True)
    return many_rows(part.text, types), [list(column) for column in columns]
