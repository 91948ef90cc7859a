"""Services of the broker itself, made when they are needed first (EVT-3, BCN-3).

Reads:  nothing.      Calls: nothing.
Never:  changes one that is there.
"""

from typing import Final

from sqlalchemy import bindparam, insert

from brokerd.storage.engine import Connection
from brokerd.storage.statements import sql
from brokerd.storage.tables import queues, services

_QUEUE: Final = {
    "is_enqueue_enabled": 1,
    "is_receive_enabled": 1,
    "max_readers": 0,
    "is_activation_enabled": 0,
}


def put(connection: Connection, *, service: str, queue: str) -> None:
    """Make a service and its queue, which nobody is shown."""
    for table, values in (
        (queues, {"name": queue, **_QUEUE}),
        (services, {"name": service, "queue": queue}),
    ):
        made = insert(table).values({name: bindparam(name) for name in values})
        connection.execute(sql(made.prefix_with("OR IGNORE")), tuple(values.values()))
