"""Conversation timers, retained messages, and dialogs that the broker ends by itself.

Revision:   0005_dialogs
Follows:    0004_objects
"""

import sqlalchemy as sa
from alembic import op

revision = "0005_dialogs"
down_revision = "0004_objects"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the two tables, and the columns of queues and endpoints."""
    op.add_column("service_queues", sa.Column("retention_max_rows", sa.Integer()))
    op.add_column("service_queues", sa.Column("retention_max_bytes", sa.Integer()))
    op.add_column("service_queues", sa.Column("retention_policy", sa.String()))
    op.add_column("conversation_endpoints", sa.Column("error_queue", sa.String()))
    op.create_index(
        "endpoints_unsettled",
        "conversation_endpoints",
        ["endpoint_key"],
        sqlite_where=sa.text("state = 'CD' AND first_acked = 0"),
    )
    op.create_table(
        "retained_messages",
        sa.Column("queuing_order", sa.Integer(), nullable=False),
        sa.Column("queue_key", sa.Integer(), nullable=False),
        sa.Column("endpoint_key", sa.Integer()),
        sa.Column("handle", sa.LargeBinary(), nullable=False),
        sa.Column("conversation_id", sa.LargeBinary(), nullable=False),
        sa.Column("group_id", sa.LargeBinary(), nullable=False),
        sa.Column("service", sa.String(), nullable=False),
        sa.Column("contract", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("message_type", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("enqueued_at", sa.Integer(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("queuing_order"),
    )
    op.create_index("retained_messages_browse", "retained_messages", ["queue_key", "queuing_order"])
    op.create_index("retained_messages_of", "retained_messages", ["endpoint_key", "queuing_order"])
    op.create_table(
        "conversation_timers",
        sa.Column("endpoint_key", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("due_at", sa.Integer(), nullable=False),
        sa.Column("is_held", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("endpoint_key", "name"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "conversation_timers_due",
        "conversation_timers",
        ["due_at"],
        sqlite_where=sa.text("is_held = 0"),
    )
