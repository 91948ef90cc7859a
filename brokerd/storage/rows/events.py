"""Event notifications, their dialogs, undelivered events: statements and row mapping (EVT).

Reads:  event_notifications, event_dialogs, undelivered_events.      Calls: `system_objects`.
Never:  decides which services to notify. The row of a dialog in `event_dialogs` outlives its
        notification.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson
from sqlalchemy import bindparam, delete, insert, select

from brokerd.ids import BrokerId, Handle, NotificationKey
from brokerd.model import (
    EVENT_QUEUE,
    EVENT_SERVICE,
    EventNotification,
    Scope,
)
from brokerd.storage.changes import EventChanges, EventRow
from brokerd.storage.connections import Connection
from brokerd.storage.readers import Reader
from brokerd.storage.rows import system_objects
from brokerd.storage.statements import Deletes, Inserts, Script, sql
from brokerd.storage.tables import (
    event_dialogs,
    event_notifications,
    undelivered_events,
)

_DIALOGS: Final = select(event_dialogs)
_UNDELIVERED: Final = select(undelivered_events).order_by(undelivered_events.c.event_key)
_insert_dialogs = Inserts(event_dialogs)
_delete_dialogs = Deletes(event_dialogs.c.handle)
_insert_events = Inserts(undelivered_events)
_delete_events = Deletes(undelivered_events.c.event_key)
_delete_events_of = Deletes(undelivered_events.c.notification_key)


def put(connection: Connection, notification: EventNotification) -> None:
    """Create a notification with a new key; it replaces a notification of the same name.

    The system service that sends events is created with the first notification (EVT-3).
    """
    system_objects.put(connection, service=EVENT_SERVICE, queue=EVENT_QUEUE)
    connection.execute(_delete_notification, (notification.name,))
    row: dict[str, object] = {
        "name": notification.name,
        "scope": notification.scope.value,
        "queue": notification.queue,
        "events": orjson.dumps(sorted(notification.events)).decode(),
        "to_service": notification.service,
        "broker_id": notification.broker_id,
        "fan_in": notification.fan_in,
        "activation_timeout": notification.activation_timeout,
    }
    made = insert(event_notifications).values({name: bindparam(name) for name in row})
    connection.execute(sql(made), tuple(row.values()))


_delete_notification: Final = sql(
    delete(event_notifications).where(event_notifications.c.name == bindparam("name"))
)


def notification(row: Sequence[Any]) -> EventNotification:
    """Return the notification of a row."""
    key, name, scope, queue, events, service, broker_id, fan_in, timeout = row
    return EventNotification(
        name=name,
        events=frozenset(orjson.loads(events)),
        service=service,
        broker_id=None if broker_id is None else BrokerId(broker_id),
        scope=Scope(scope),
        queue=queue,
        fan_in=bool(fan_in),
        activation_timeout=timeout,
        key=NotificationKey(key),
    )


def write(script: Script, changes: EventChanges) -> None:
    """Add to the script a changeset's changes of event dialogs and kept events."""
    _delete_dialogs.add(script, changes.closed)
    _insert_dialogs.add(script, changes.opened)
    _insert_events.add(script, changes.kept)
    _delete_events.add(script, changes.delivered)
    _delete_events_of.add(script, changes.forgotten)


class StoredEvents:
    """The stored dialogs and undelivered events of event notifications."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def dialogs(self) -> dict[Handle, NotificationKey]:
        """Return the dialogs that are open for event notifications (EVT-4), by handle."""
        rows = await self._reader.rows(_DIALOGS)
        return {Handle(handle): NotificationKey(key) for handle, key in rows}

    async def undelivered(self) -> list[EventRow]:
        """Return events not yet delivered to their subscribers, in their order (PBT-15)."""
        return [EventRow(*row) for row in await self._reader.rows(_UNDELIVERED)]
