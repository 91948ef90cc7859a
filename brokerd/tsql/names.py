"""Names of Service Broker, and what has their place here: system names, views, functions. PURE.

Reads:  nothing.      Calls: model.
Never:  names a view of ours that does not exist: a test compares.
"""

from typing import Final

from msgspec import Struct

from brokerd import model


class View(Struct, frozen=True):
    """The counterpart of a catalog view."""

    ours: str
    """Name of the view here; empty = there is none."""
    note: str = ""


VIEWS: Final[dict[str, View]] = {
    "conversation_endpoints": View("conversation_endpoints"),
    "conversation_groups": View("conversation_groups"),
    "conversation_priorities": View("conversation_priorities"),
    "dm_broker_activated_tasks": View("activated_tasks"),
    "dm_broker_connections": View("connections"),
    "dm_broker_forwarded_messages": View("forwarded_messages"),
    "dm_broker_queue_monitors": View("queue_monitors"),
    "event_notification_event_types": View("", "docs/how-to/event-notifications.md lists events"),
    "event_notifications": View("event_notifications"),
    "message_type_xml_schema_collection_usages": View(
        "service_message_types", "the schema is part of the message type"
    ),
    "remote_service_bindings": View("remote_service_bindings"),
    "routes": View("routes", "the routes of msdb are in instance_routes"),
    "server_event_notifications": View("event_notifications", "scope is instance there"),
    "service_broker_endpoints": View("endpoint"),
    "service_contract_message_usages": View("service_contract_message_usages"),
    "service_contract_usages": View("service_contract_usages"),
    "service_contracts": View("service_contracts"),
    "service_message_types": View("service_message_types"),
    "service_queue_usages": View("services", "service_queue_id names the queue"),
    "service_queues": View("service_queues"),
    "services": View("services"),
    "transmission_queue": View("transmission_queue"),
}
"""Catalog views and dynamic management views of Service Broker, without `sys.`."""

COLUMNS: Final = {
    "is_broker_enabled": View("brokers", "sys.databases has this column for each database"),
    "service_broker_guid": View("brokers", "sys.databases has this column for each database"),
    "is_honor_broker_priority_on": View("brokers", "the option is honor_priority"),
}
"""Columns of `sys.databases` about the broker."""

FUNCTIONS: Final = {
    "get_transmission_status": "session.transmission_status(handle), or brokerd dialog status",
}
"""Functions about the broker."""

_SCHEMAS: Final = ("http://schemas.microsoft.com/SQL/", "https://schemas.microsoft.com/SQL/")
_SYSTEM: Final = {
    "ServiceBroker/EndDialog": model.END_DIALOG,
    "ServiceBroker/Error": model.ERROR,
    "ServiceBroker/DialogTimer": model.DIALOG_TIMER,
    "Notifications/EventNotification": model.EVENT_NOTIFICATION,
    "Notifications/PostEventNotification": model.POST_EVENT_NOTIFICATION,
    "ServiceBroker/BrokerConfigurationNotice": model.CONFIGURATION_NOTICE,
    "ServiceBroker/BrokerConfigurationNotice/MissingRoute": model.MISSING_ROUTE,
    "ServiceBroker/BrokerConfigurationNotice/FailedRoute": model.FAILED_ROUTE,
    "ServiceBroker/BrokerConfigurationNotice/MissingRemoteServiceBinding": model.MISSING_BINDING,
    "ServiceBroker/BrokerConfigurationNotice/FailedRemoteServiceBinding": model.FAILED_BINDING,
}
"""Names that Service Broker itself uses, and ours (OBJ-31)."""


def ours(name: str) -> str:
    """Return the name here: our own for a system name, any other unchanged (IMP-11)."""
    for schema in _SCHEMAS:
        if name.startswith(schema):
            return _SYSTEM.get(name.removeprefix(schema), name)
    return name


def is_known(name: str) -> bool:
    """Return whether a script says the name: not a variable, and without an unknown macro."""
    return not name.startswith("@") and "$(" not in name


def shown(parts: tuple[str, ...]) -> str:
    """Return the name of a queue or procedure as it is declared here: without `dbo` (IMP-12)."""
    schema = parts[-2] if len(parts) > 1 else ""
    return parts[-1] if schema.lower() in ("", "dbo") else f"{schema}.{parts[-1]}"


def database_of(parts: tuple[str, ...]) -> str:
    """Return the database of a name with three parts; empty = it has fewer."""
    return parts[-3] if len(parts) > 2 else ""  # noqa: PLR2004
