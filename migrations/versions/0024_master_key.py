"""Master key: which one encrypts the keys of dialogs in this store (SEC-71).

Revision:   0024_master_key
Follows:    0023_headers
"""

import sqlalchemy as sa
from alembic import op

revision = "0024_master_key"
down_revision = "0023_headers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; NULL = unknown, the present key is noted when the store is opened."""
    op.add_column("store", sa.Column("master_key", sa.LargeBinary()))
