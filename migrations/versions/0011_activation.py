"""Activation options of queues: where and how their readers run.

Revision:   0011_activation
Follows:    0010_dynamic_routing
"""

import sqlalchemy as sa
from alembic import op

revision = "0011_activation"
down_revision = "0010_dynamic_routing"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; existing readers run in the daemon."""
    op.add_column("service_queues", sa.Column("activation_options", sa.String()))
