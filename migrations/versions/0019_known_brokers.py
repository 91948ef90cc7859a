"""Table of the brokers of an instance, so that it notices if a broker's file is gone.

Revision:   0019_known_brokers
Follows:    0018_shelves
"""

import sqlalchemy as sa
from alembic import op

revision = "0019_known_brokers"
down_revision = "0018_shelves"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, empty: the next start adds the brokers that it finds (MAN-16)."""
    op.create_table(
        "known_brokers",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("broker_id", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
