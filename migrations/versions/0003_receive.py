"""Ageing interval of queues, after which waiting messages rise by one level (PBT-16).

Revision:   0003_receive
Follows:    0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003_receive"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the option, which is not set for existing queues."""
    op.add_column("service_queues", sa.Column("receive_ageing", sa.Integer(), nullable=True))
