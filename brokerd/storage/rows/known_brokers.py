"""Known brokers: the brokers of an instance, kept in `msdb`; statements (MAN-16).

Reads:  the table `known_brokers`.      Calls: nothing.
Never:  checks whether a broker's file exists.
"""

from sqlalchemy import delete, select

from brokerd.ids import BrokerId
from brokerd.storage.connections import Connection, transaction
from brokerd.storage.statements import Inserts, Script, sql
from brokerd.storage.tables import known_brokers

Known = dict[str, BrokerId]
"""Identifiers of brokers by name."""

_load = sql(select(known_brokers.c.name, known_brokers.c.broker_id))
_remember = Inserts(known_brokers, replace=True)
_forget = sql(delete(known_brokers).where(known_brokers.c.name == ""))
_has_table = "SELECT 1 FROM sqlite_schema WHERE name = ?"


def load(connection: Connection) -> Known:
    """Return all known brokers; empty if the store is of a version that did not record them."""
    if connection.execute(_has_table, (known_brokers.name,)).fetchone() is None:
        return {}
    return {name: BrokerId(found) for name, found in connection.execute(_load)}


def remember(connection: Connection, name: str, broker_id: BrokerId) -> None:
    """Record that the instance has the broker `name`, with this identifier."""
    script = Script()
    _remember.add(script, [(name, broker_id)])
    with transaction(connection):
        script.run(connection)


def forget(connection: Connection, name: str) -> None:
    """Record that the instance no longer has the broker `name`."""
    with transaction(connection):
        connection.execute(_forget, (name,))
