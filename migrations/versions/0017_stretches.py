"""Indexes of the backlog, by stretches of queuing orders and then by conversation.

Revision:   0017_stretches
Follows:    0016_xxh3
"""

import sqlalchemy as sa
from alembic import op

revision = "0017_stretches"
down_revision = "0016_xxh3"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rebuild the index; create another, for the few messages that precede all others (RCV-9)."""
    op.drop_index("queue_messages_of", "queue_messages")
    op.create_index(
        "queue_messages_of",
        "queue_messages",
        [sa.text("queuing_order >> 14"), "endpoint_key", "sequence"],
        sqlite_where=sa.text("paged = 1"),
    )
    op.create_index(
        "queue_messages_ahead",
        "queue_messages",
        ["endpoint_key", "sequence"],
        sqlite_where=sa.text("paged = 1 AND sequence < 0"),
    )
