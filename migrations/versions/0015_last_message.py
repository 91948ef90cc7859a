"""The identity of the message that an endpoint received last.

Revision:   0015_last_message
Follows:    0014_bodies
"""

import sqlalchemy as sa
from alembic import op

revision = "0015_last_message"
down_revision = "0014_bodies"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the identity is unknown for existing endpoints (REL-15)."""
    op.add_column("endpoint_progress", sa.Column("last_message", sa.LargeBinary()))
