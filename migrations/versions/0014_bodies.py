"""Bodies in pieces: those of large messages and of incomplete ones.

Revision:   0014_bodies
Follows:    0013_mirrors
"""

from hashlib import blake2b

import sqlalchemy as sa
from alembic import op

revision = "0014_bodies"
down_revision = "0013_mirrors"
branch_labels = None
depends_on = None

_ARRIVING = 1


def upgrade() -> None:
    """Create the tables, and copy the fragments of incomplete messages into them (DLP-11)."""
    op.create_table(
        "bodies",
        sa.Column("body_key", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("body_key"),
    )
    op.create_index("bodies_owner", "bodies", ["owner", "number"], unique=True)
    op.create_table(
        "body_pieces",
        sa.Column("body_key", sa.Integer(), nullable=False),
        sa.Column("piece", sa.Integer(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("body_key", "piece"),
        sqlite_with_rowid=False,
    )
    _bring_over(op.get_bind())
    op.drop_table("message_fragments")


def _bring_over(connection: sa.Connection) -> None:
    """Copy the fragments one at a time, because together they may not fit in memory."""
    found = connection.execute(
        sa.text(
            "SELECT endpoint_key, fragment FROM message_fragments"
            " ORDER BY endpoint_key, sequence, fragment"
        )
    ).all()
    keys: dict[int, int] = {}
    for endpoint, fragment in found:
        which = {"endpoint": endpoint, "fragment": fragment}
        data = connection.execute(
            sa.text(
                "SELECT body FROM message_fragments"
                " WHERE endpoint_key = :endpoint AND fragment = :fragment"
            ),
            which,
        ).scalar_one()
        if endpoint not in keys:
            keys[endpoint] = len(keys) + 1
            connection.execute(
                sa.text("INSERT INTO bodies VALUES (:key, :owner, :endpoint, 0)"),
                {"key": keys[endpoint], "owner": _ARRIVING, "endpoint": endpoint},
            )
        key = keys[endpoint]
        hashed = blake2b(b"%d.%d." % (key, fragment), digest_size=16)
        hashed.update(data)
        connection.execute(
            sa.text("INSERT INTO body_pieces VALUES (:key, :fragment, :hash, :data)"),
            {"key": key, "fragment": fragment, "hash": hashed.digest(), "data": data},
        )
