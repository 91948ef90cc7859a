"""System objects: the broker's own services, created when first needed (EVT-3, BCN-3).

Reads:  nothing.      Calls: nothing.
Never:  changes an object that exists.
"""

from typing import Final

from sqlalchemy import bindparam
from sqlalchemy.dialects.sqlite import insert

from brokerd.storage.connections import Connection
from brokerd.storage.statements import sql
from brokerd.storage.tables import queues, services

_QUEUE: Final = {
    "is_enqueue_enabled": 1,
    "is_receive_enabled": 1,
    "max_readers": 0,
    "is_activation_enabled": 0,
}


def put(connection: Connection, *, service: str, queue: str) -> None:
    """Create a service and its queue, both hidden, unless they exist."""
    for table, values in (
        (queues, {"name": queue, **_QUEUE}),
        (services, {"name": service, "queue": queue}),
    ):
        made = insert(table).values({name: bindparam(name) for name in values})
        connection.execute(sql(made.on_conflict_do_nothing()), tuple(values.values()))
