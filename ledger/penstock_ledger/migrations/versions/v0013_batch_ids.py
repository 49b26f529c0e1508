"""The ids of open provider batches, and how many documents the next batch of a remainder may have.

Older processes write none of these, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "provider_batch_ids",
        sa.Column("tag", names, primary_key=True),
        sa.Column("job_id", names, nullable=False),
        sa.Column("ids", sa.LargeBinary(), nullable=False),
    )
    op.create_index("provider_batch_ids_job", "provider_batch_ids", ["job_id"])
    op.add_column("batch_remainders", sa.Column("most", sa.Integer()))


def downgrade() -> None:
    op.drop_column("batch_remainders", "most")
    op.drop_table("provider_batch_ids")
