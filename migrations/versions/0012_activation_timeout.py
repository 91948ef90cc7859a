"""Time after which an activation notification without effect is repeated.

Revision:   0012_activation_timeout
Follows:    0011_activation
"""

import sqlalchemy as sa
from alembic import op

revision = "0012_activation_timeout"
down_revision = "0011_activation"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; existing subscriptions have the default."""
    op.add_column("event_notifications", sa.Column("activation_timeout", sa.Integer()))
