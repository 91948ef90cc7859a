"""Removal of the application state of conversation groups that have ended.

Revision:   0008_ended_groups
Follows:    0007_admin
"""

from alembic import op

revision = "0008_ended_groups"
down_revision = "0007_admin"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Delete states that outlived their groups: they now go with the last endpoint (GRP-2)."""
    op.execute(
        "DELETE FROM group_states WHERE NOT EXISTS (SELECT 1 FROM conversation_endpoints"
        " WHERE conversation_endpoints.group_id = group_states.group_id"
        " AND conversation_endpoints.state <> 'CD')"
    )
