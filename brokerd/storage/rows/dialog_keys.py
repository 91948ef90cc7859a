"""Dialog keys: encrypts stored keys of dialogs anew after a change of the master key (SEC-71).

Reads:  conversation_endpoints.      Calls: the function that encrypts, which it is given.
Never:  sees a key in clear.
"""

from collections.abc import Callable
from typing import Final

from brokerd.storage.connections import Connection, transaction

Renewed = Callable[[bytes, bytes, bool], bytes | None]
"""Function that returns wrapped keys as the present master key wraps them; None = they are.

Its arguments: the wrapped keys, the conversation id, and whether the endpoint is the initiator."""

_READ: Final = (
    "SELECT endpoint_key, security, conversation_id, is_initiator FROM conversation_endpoints"
    " WHERE endpoint_key > ? AND security IS NOT NULL ORDER BY endpoint_key LIMIT ?"
)
_ANY: Final = "SELECT 1 FROM conversation_endpoints WHERE security IS NOT NULL LIMIT 1"
_WRITE: Final = "UPDATE conversation_endpoints SET security = ? WHERE endpoint_key = ?"


def has_keys(connection: Connection) -> bool:
    """Return whether any dialog in the store has keys."""
    return connection.execute(_ANY).fetchone() is not None


def renew_some(connection: Connection, renewed: Renewed, *, after: int, most: int) -> int | None:
    """Encrypt the keys of some endpoints anew, in one transaction.

    `after`: key of the last endpoint of the call before. `most`: number of endpoints. Return the
    key of the last endpoint; None = there are no more."""
    with transaction(connection):
        rows = connection.execute(_READ, (after, most)).fetchall()
        changed = [
            (new, key)
            for key, wrapped, conversation_id, is_initiator in rows
            if (new := renewed(wrapped, conversation_id, bool(is_initiator))) is not None
        ]
        connection.executemany(_WRITE, changed)
    return rows[-1][0] if len(rows) == most else None
