"""Schemas of message types, more options of queues, and priorities.

Revision:   0004_objects
Follows:    0003_receive
"""

import sqlalchemy as sa
from alembic import op

revision = "0004_objects"
down_revision = "0003_receive"
branch_labels = None
depends_on = None


def _option(name: str, default: int) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text(str(default)))


def upgrade() -> None:
    """Add the columns and the table of priorities."""
    op.add_column("store", _option("honor_priority", 0))
    op.add_column("service_message_types", sa.Column("schema", sa.String()))
    op.add_column("service_message_types", sa.Column("require_body", sa.Integer()))
    op.add_column("service_message_types", _option("validate_on_send", 0))
    op.add_column("service_queues", sa.Column("run_as", sa.String()))
    op.add_column("service_queues", _option("is_retention_enabled", 0))
    op.add_column("service_queues", _option("is_poison_message_handling_enabled", 1))
    op.create_table(
        "conversation_priorities",
        sa.Column("priority_key", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("contract", sa.String()),
        sa.Column("local_service", sa.String()),
        sa.Column("remote_service", sa.String()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("priority_key"),
        sa.UniqueConstraint("name"),
        sa.ForeignKeyConstraint(["contract"], ["service_contracts.name"]),
        sa.ForeignKeyConstraint(["local_service"], ["services.name"]),
        sqlite_autoincrement=True,
    )
