"""Initiators' sides of dialogs that are over are removed.

Revision:   0021_initiators
Follows:    0020_drops
"""

from alembic import op

revision = "0021_initiators"
down_revision = "0020_drops"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let the purge have closed initiators: one that ended after its target was kept until its
    lifetime was over, although it goes at once (DLG-T17)."""
    op.execute(
        "UPDATE conversation_endpoints SET purge_at = 0 WHERE is_initiator = 1 AND state = 'CD'"
    )
