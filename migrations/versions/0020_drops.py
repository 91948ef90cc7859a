"""Drop notes: ended dialogs with very many unread messages, which are deleted later.

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
    """Create the table of notes, empty: until now, the end of a dialog deleted such messages."""
    op.create_table(
        "queue_drops",
        sa.Column("endpoint_key", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("endpoint_key"),
    )
