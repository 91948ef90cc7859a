"""Shelves for the backlog of queues: tables that are emptied as a whole.

Revision:   0018_shelves
Follows:    0017_stretches
"""

import sqlalchemy as sa
from alembic import op

revision = "0018_shelves"
down_revision = "0017_stretches"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the shelves, empty: messages already in a backlog stay where they are."""
    for number in range(2, 18):
        name = f"shelf_{number}"
        op.create_table(
            name,
            sa.Column("queuing_order", sa.Integer(), nullable=False),
            sa.Column("queue_key", sa.Integer(), nullable=False),
            sa.Column("endpoint_key", sa.Integer(), nullable=False),
            sa.Column("sequence", sa.Integer(), nullable=False),
            sa.Column("message_type", sa.String(), nullable=False),
            sa.Column("priority", sa.Integer(), nullable=False),
            sa.Column("paged", sa.Integer(), nullable=False),
            sa.Column("enqueued_at", sa.Integer(), nullable=False),
            sa.Column("message_id", sa.LargeBinary(), nullable=False),
            sa.Column("body_hash", sa.LargeBinary(), nullable=True),
            sa.Column("body", sa.LargeBinary(), nullable=True),
            sa.PrimaryKeyConstraint("queuing_order"),
        )
        op.create_index(f"{name}_paged", name, ["queue_key", "priority", "queuing_order"])
        op.create_index(
            f"{name}_of", name, [sa.text("queuing_order >> 14"), "endpoint_key", "sequence"]
        )
