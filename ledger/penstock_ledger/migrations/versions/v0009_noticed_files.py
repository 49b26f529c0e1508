"""Files that notifications of a bucket have named, until a job of their schedule takes them.

Older processes list, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "noticed_files",
        sa.Column("schedule_id", names, nullable=False),
        sa.Column("file", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("noticed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", "file", name="noticed_files_pkey"),
    )


def downgrade() -> None:
    op.drop_table("noticed_files")
