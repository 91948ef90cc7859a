"""Event notifications, and the built-in objects that they need.

Revision:   0006_events
Follows:    0005_dialogs
"""

import sqlalchemy as sa
from alembic import op

revision = "0006_events"
down_revision = "0005_dialogs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, and the message type and contract, now built in (OBJ-31)."""
    op.create_table(
        "event_notifications",
        sa.Column("notification_key", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("queue", sa.String(), nullable=True),
        sa.Column("events", sa.String(), nullable=False),
        sa.Column("to_service", sa.String(), nullable=False),
        sa.Column("broker_id", sa.LargeBinary(), nullable=True),
        sa.Column("fan_in", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["queue"], ["service_queues.name"]),
        sa.PrimaryKeyConstraint("notification_key"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "event_dialogs",
        sa.Column("handle", sa.LargeBinary(), nullable=False),
        sa.Column("notification_key", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("handle"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "undelivered_events",
        sa.Column("event_key", sa.Integer(), nullable=False),
        sa.Column("notification_key", sa.Integer(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("event_key"),
    )
    # `FROM store` inserts nothing into a file without a broker, as tests of the schema make one.
    op.execute(
        "INSERT INTO service_message_types (name, validation)"
        " SELECT 'urn:brokerd:EventNotification', 'well_formed_json' FROM store"
    )
    op.execute(
        "INSERT INTO service_contracts (name) SELECT 'urn:brokerd:PostEventNotification' FROM store"
    )
    op.execute(
        "INSERT INTO service_contract_message_usages (contract, message_type, sent_by)"
        " SELECT 'urn:brokerd:PostEventNotification', 'urn:brokerd:EventNotification',"
        " 'initiator' FROM store"
    )
