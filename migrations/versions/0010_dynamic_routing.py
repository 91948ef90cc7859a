"""Built-in objects with which a broker asks a dynamic routing service for routes.

Revision:   0010_dynamic_routing
Follows:    0009_poison
"""

from alembic import op

revision = "0010_dynamic_routing"
down_revision = "0009_poison"
branch_labels = None
depends_on = None

# `FROM store` inserts nothing into a file without a broker, as tests of the schema make one.
_STATEMENTS = (
    "INSERT INTO service_contracts (name)"
    " SELECT 'urn:brokerd:BrokerConfigurationNotice' FROM store",
    "WITH made (name) AS (VALUES ('urn:brokerd:MissingRoute'), ('urn:brokerd:FailedRoute'),"
    " ('urn:brokerd:MissingRemoteServiceBinding'), ('urn:brokerd:FailedRemoteServiceBinding'))"
    " INSERT INTO service_message_types (name, validation)"
    " SELECT made.name, 'none' FROM store, made",
    "INSERT INTO service_contract_message_usages (contract, message_type, sent_by)"
    " SELECT 'urn:brokerd:BrokerConfigurationNotice', name, 'initiator'"
    " FROM service_message_types WHERE name IN ('urn:brokerd:MissingRoute',"
    " 'urn:brokerd:FailedRoute', 'urn:brokerd:MissingRemoteServiceBinding',"
    " 'urn:brokerd:FailedRemoteServiceBinding')",
    # The asking service and its queue are created with the first route to the routing service,
    # which may exist already.
    "INSERT INTO service_queues (name, is_enqueue_enabled, is_receive_enabled, max_readers,"
    " is_activation_enabled) SELECT 'urn:brokerd:DynamicRoutingQueue', 1, 1, 0, 0 FROM routes"
    " WHERE service_name = 'SQL/ServiceBroker/BrokerConfiguration' LIMIT 1",
    "INSERT INTO services (name, queue)"
    " SELECT 'urn:brokerd:DynamicRoutingClient', name FROM service_queues"
    " WHERE name = 'urn:brokerd:DynamicRoutingQueue'",
)


def upgrade() -> None:
    """Create the message types and the contract, which are now built in (BCN-1)."""
    for statement in _STATEMENTS:
        op.execute(statement)
