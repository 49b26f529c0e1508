"""The files that a schedule over a watched folder has taken.

Older processes do not read them, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "taken_files",
        sa.Column("schedule_id", names, nullable=False),
        sa.Column("file", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", "file", name="taken_files_pkey"),
    )


def downgrade() -> None:
    op.drop_table("taken_files")
