"""Batches at providers, and the documents that such a batch left without an outcome.

Older processes do not read them, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "provider_batches",
        sa.Column("tag", names, primary_key=True),
        sa.Column("job_id", names, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cursor_before", sa.Text()),
        sa.Column("cursor_behind", sa.Text()),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("may_cost_microusd", sa.BigInteger(), nullable=False),
        sa.Column("file_id", sa.Text()),
        sa.Column("remote_id", sa.Text()),
        sa.Column("status", sa.Text()),
        sa.Column("succeeded", sa.BigInteger()),
        sa.Column("failed", sa.BigInteger()),
        sa.Column("why", sa.Text()),
        sa.Column("packed_at", sa.Double(), nullable=False),
        sa.Column("uploading_at", sa.Double()),
        sa.Column("uploaded_at", sa.Double()),
        sa.Column("creating_at", sa.Double()),
        sa.Column("created_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("collected_at", sa.Double()),
        sa.Column("settled_at", sa.Double()),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", sa.Double()),
    )
    op.create_index("provider_batches_state", "provider_batches", ["state"])
    op.create_index("provider_batches_job", "provider_batches", ["job_id", "packed_at"])
    op.create_table(
        "batch_remainders",
        sa.Column("job_id", names, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("doc_id", names, nullable=False),
        sa.Column("position", sa.Text(), nullable=False),
        sa.Column("tag", names),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_microusd", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "generation", "doc_id", name="batch_remainders_pkey"),
    )
    op.create_index("batch_remainders_tag", "batch_remainders", ["tag"])


def downgrade() -> None:
    op.drop_table("batch_remainders")
    op.drop_table("provider_batches")
