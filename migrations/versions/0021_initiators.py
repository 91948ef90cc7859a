"""Removal of closed initiator endpoints.

Revision:   0021_initiators
Follows:    0020_drops
"""

from alembic import op

revision = "0021_initiators"
down_revision = "0020_drops"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let the purge remove closed initiators at once.

    An initiator that ended after its target is to be removed at once (DLG-T17), but was kept until
    its lifetime had expired.
    """
    op.execute(
        "UPDATE conversation_endpoints SET purge_at = 0 WHERE is_initiator = 1 AND state = 'CD'"
    )
