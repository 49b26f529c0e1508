"""Shards: parts of a job's source, each with a cursor and a lease of its own.

Older processes do not read them. One that leads the feed of such a job reads its whole source: what
others have fed or finished is dropped by the ledger, as after a restart.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "shards",
        sa.Column("job_id", names, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("starts_at", sa.Text(), nullable=False),
        sa.Column("ends_at", sa.Text()),
        sa.Column("cursor", sa.Text(), nullable=False),
        sa.Column("exhausted", sa.Boolean(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", sa.Double()),
        sa.PrimaryKeyConstraint("job_id", "generation", "shard", name="shards_pkey"),
    )


def downgrade() -> None:
    op.drop_table("shards")
