"""Headers: which messages have them; those of older versions have none.

Revision:   0023_headers
Follows:    0022_security
"""

import sqlalchemy as sa
from alembic import op

revision = "0023_headers"
down_revision = "0022_security"
branch_labels = None
depends_on = None

_TABLES = ("queue_messages", *(f"shelf_{number}" for number in range(2, 18)), "retained_messages")


def upgrade() -> None:
    """Add the flags of messages, 0 in the rows that are there."""
    for table in _TABLES:
        flags = sa.Column("flags", sa.Integer(), nullable=False, server_default=sa.text("0"))
        op.add_column(table, flags)
