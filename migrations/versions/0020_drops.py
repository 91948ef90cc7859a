"""Very many unread messages of a dialog that ends are noted, and deleted later.

Revision:   0020_drops
Follows:    0019_known_brokers
"""

import sqlalchemy as sa
from alembic import op

revision = "0020_drops"
down_revision = "0019_known_brokers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table of notes, which is empty: so far such messages went with the end itself."""
    op.create_table(
        "queue_drops",
        sa.Column("endpoint_key", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("endpoint_key"),
    )
