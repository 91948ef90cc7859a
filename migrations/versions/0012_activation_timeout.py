"""After how long a notification of activation that nobody heeds is followed by another.

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
    """Add the column; subscriptions that there are have the usual one."""
    op.add_column("event_notifications", sa.Column("activation_timeout", sa.Integer()))
