"""The keys of the rows that a job reads from a table in a database.

Older processes do not read them, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "source_keys",
        sa.Column("job_id", names, nullable=False),
        sa.Column("page", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "page", name="source_keys_pkey"),
    )


def downgrade() -> None:
    op.drop_table("source_keys")
