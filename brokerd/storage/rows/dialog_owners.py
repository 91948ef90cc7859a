"""Dialog owners: the user or peer that began each dialog, where their number is limited (REL-45).

Reads:  conversation_endpoints; reads and writes dialog_owners.
Calls:  the writer, in jobs of one transaction each, and the reader it is given.
Never:  has a row of a dialog that is gone: the row goes with its endpoint (REL-36).
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import bindparam, func, select

from brokerd.ids import EndpointKey
from brokerd.protocol.transitions import State
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.readers import Reader
from brokerd.storage.tables import conversation_endpoints as endpoints
from brokerd.storage.tables import dialog_owners as owners

Owned = tuple[EndpointKey, str]
"""A dialog endpoint and its owner."""

_NOTE: Final = (
    "INSERT INTO dialog_owners (endpoint_key, owner) SELECT ?, ?"
    " WHERE EXISTS (SELECT 1 FROM conversation_endpoints WHERE endpoint_key = ?)"
    " ON CONFLICT DO NOTHING"
)
_COUNT: Final = (
    select(func.count())
    .select_from(owners.join(endpoints, endpoints.c.endpoint_key == owners.c.endpoint_key))
    .where(owners.c.owner == bindparam("owner"), endpoints.c.state != State.CLOSED.value)
)


def note(connection: Connection, owned: Sequence[Owned]) -> None:
    """Write the owners of dialogs; a dialog that has no row by now is over already."""
    with transaction(connection):
        connection.executemany(_NOTE, [(key, owner, key) for key, owner in owned])


async def count(reader: Reader, owner: str) -> int:
    """Return the number of dialogs of an owner that are not closed."""
    ((found,),) = await reader.rows(_COUNT, {"owner": owner})
    return int(found)
