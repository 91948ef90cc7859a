"""Poison message handling of queues, the reason of their status, and groups that are set aside.

Revision:   0009_poison
Follows:    0008_ended_groups
"""

import sqlalchemy as sa
from alembic import op

revision = "0009_poison"
down_revision = "0008_ended_groups"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the table of groups; existing queues behave as before."""
    for name, kind in (
        ("poison_mode", sa.String()),
        ("poison_threshold", sa.Integer()),
        ("poison_disconnects", sa.Integer()),
        ("poison_backoff_first", sa.Integer()),
        ("poison_backoff_max", sa.Integer()),
        ("status_reason", sa.String()),
        ("status_changed_at", sa.Integer()),
        ("status_changed_by", sa.String()),
        ("status_detail", sa.String()),
    ):
        op.add_column("service_queues", sa.Column(name, kind))
    op.create_table(
        "held_groups",
        sa.Column("group_id", sa.LargeBinary(), primary_key=True),
        sa.Column("queue_key", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("disconnects", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.Integer()),
        sa.Column("parked_at", sa.Integer()),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("error", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.LargeBinary(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sqlite_with_rowid=False,
    )
