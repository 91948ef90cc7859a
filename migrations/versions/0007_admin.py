"""Administrative data of a broker, and the instant since which an endpoint is in its state.

Revision:   0007_admin
Follows:    0006_events
"""

import sqlalchemy as sa
from alembic import op

revision = "0007_admin"
down_revision = "0006_events"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; existing endpoints count as having been in their state since they began."""
    op.add_column("store", sa.Column("host", sa.LargeBinary()))
    op.add_column("store", sa.Column("disabled_reason", sa.String()))
    op.add_column("store", sa.Column("unfinished", sa.String()))
    op.add_column("store", sa.Column("former_ids", sa.LargeBinary()))
    op.add_column(
        "conversation_endpoints",
        sa.Column("state_since", sa.Integer(), nullable=False, server_default=sa.text("0")),
    )
    op.execute("UPDATE conversation_endpoints SET state_since = began_at")
