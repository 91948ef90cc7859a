"""Hashes of bodies are XXH3-64, which older versions would take for damage.

Revision:   0016_xxh3
Follows:    0015_last_message
"""

revision = "0016_xxh3"
down_revision = "0015_last_message"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: a hash that is there says by its length which one it is (REL-6)."""
