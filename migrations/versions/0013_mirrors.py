"""The second address of a route to a mirrored broker.

Revision:   0013_mirrors
Follows:    0012_activation_timeout
"""

import sqlalchemy as sa
from alembic import op

revision = "0013_mirrors"
down_revision = "0012_activation_timeout"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; existing routes have one address (RTE-50)."""
    mirror = sa.Column("mirror", sa.String(), nullable=False, server_default=sa.text("''"))
    op.add_column("routes", mirror)
