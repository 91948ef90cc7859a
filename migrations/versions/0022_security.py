"""Security: principals, certificates, grants, audit, bindings, keys of dialogs, limits of queues.

Revision:   0022_security
Follows:    0021_initiators
"""

import sqlalchemy as sa
from alembic import op

revision = "0022_security"
down_revision = "0021_initiators"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, empty, and the limits of queues, none of which is set."""
    op.create_table(
        "principals",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("instance_id", sa.LargeBinary()),
        sa.Column("addresses", sa.String(), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "certificates",
        sa.Column("certificate_id", sa.LargeBinary(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("principal", sa.String()),
        sa.Column("encoded", sa.LargeBinary(), nullable=False),
        sa.Column("not_before", sa.Integer(), nullable=False),
        sa.Column("not_after", sa.Integer(), nullable=False),
        sa.Column("private_key", sa.LargeBinary()),
        sa.Column("is_active", sa.Integer(), nullable=False),
        sa.Column("installed_at", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("certificate_id"),
        sa.ForeignKeyConstraint(["principal"], ["principals.name"], ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "grants",
        sa.Column("permission", sa.String(), nullable=False),
        sa.Column("securable", sa.String(), nullable=False),
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("granted_at", sa.Integer(), nullable=False),
        sa.Column("granted_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("permission", "securable", "principal"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "audit",
        sa.Column("audit_key", sa.Integer(), nullable=False),
        sa.Column("at", sa.Integer(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("audit_key"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "remote_service_bindings",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("service_name", sa.String(), nullable=False),
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("is_anonymous", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
    op.add_column("conversation_endpoints", sa.Column("security", sa.LargeBinary()))
    op.add_column("service_queues", sa.Column("max_messages", sa.Integer()))
    op.add_column("service_queues", sa.Column("max_bytes", sa.Integer()))
    op.create_table(
        "idle_dialogs",
        sa.Column("endpoint_key", sa.Integer(), nullable=False),
        sa.Column("sent", sa.Integer(), nullable=False),
        sa.Column("received", sa.Integer(), nullable=False),
        sa.Column("since", sa.Integer(), nullable=False),
        sa.Column("announced_at", sa.Integer()),
        sa.PrimaryKeyConstraint("endpoint_key"),
        sa.ForeignKeyConstraint(
            ["endpoint_key"], ["conversation_endpoints.endpoint_key"], ondelete="CASCADE"
        ),
    )
    op.create_index(
        "idle_dialogs_announced",
        "idle_dialogs",
        ["announced_at"],
        sqlite_where=sa.text("announced_at IS NOT NULL"),
    )
    op.create_table(
        "dialog_owners",
        sa.Column("endpoint_key", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("endpoint_key"),
        sa.ForeignKeyConstraint(
            ["endpoint_key"], ["conversation_endpoints.endpoint_key"], ondelete="CASCADE"
        ),
    )
    op.create_index("dialog_owners_owner", "dialog_owners", ["owner"])
