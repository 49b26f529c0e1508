"""Outcomes have their lane, and sums by it. Older processes write them without one, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("outcomes", sa.Column("lane", sa.Text()))
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "lane_tallies",
        sa.Column("job_id", names, nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("lane", names, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("dead", sa.BigInteger(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_microusd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "shard", "lane", name="lane_tallies_pkey"),
    )


def downgrade() -> None:
    op.drop_table("lane_tallies")
    op.drop_column("outcomes", "lane")
