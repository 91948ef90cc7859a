"""Statements of the brokers that an instance has, which are in `msdb` (MAN-16).

Reads:  the table `known_brokers`.      Calls: nothing.
Never:  looks whether a broker's file is there.
"""

from sqlalchemy import delete, select

from brokerd.ids import BrokerId
from brokerd.storage.engine import Connection, transaction
from brokerd.storage.statements import Inserts, Script, sql
from brokerd.storage.tables import known_brokers

Known = dict[str, BrokerId]
"""Names to identifiers."""

_load = sql(select(known_brokers.c.name, known_brokers.c.broker_id))
_remember = Inserts(known_brokers, replace=True)
_forget = sql(delete(known_brokers).where(known_brokers.c.name == ""))
_has_table = "SELECT 1 FROM sqlite_schema WHERE name = ?"


def load(connection: Connection) -> Known:
    """All of them; none where the store is of a version that kept none."""
    if connection.execute(_has_table, (known_brokers.name,)).fetchone() is None:
        return {}
    return {name: BrokerId(found) for name, found in connection.execute(_load)}


def remember(connection: Connection, name: str, broker_id: BrokerId) -> None:
    """The instance has this broker, under this identifier."""
    script = Script()
    _remember.add(script, [(name, broker_id)])
    with transaction(connection):
        script.run(connection)


def forget(connection: Connection, name: str) -> None:
    """The instance has it no more."""
    with transaction(connection):
        connection.execute(_forget, (name,))
