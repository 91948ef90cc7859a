"""XXH3-64 as the hash of bodies; older versions would take such a hash for damage.

Revision:   0016_xxh3
Follows:    0015_last_message
"""

revision = "0016_xxh3"
down_revision = "0015_last_message"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing: the length of a stored hash tells its kind (REL-6)."""
