"""Removal notes: received messages whose rows are deleted later.

Revision:   0002
Follows:    0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of notes."""
    op.create_table(
        "queue_removals",
        sa.Column("removal_key", sa.Integer(), nullable=False),
        sa.Column("orders", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("removal_key"),
    )
