"""The lane that a job has now, each change of it, and what was paid besides outcomes.

Older processes read none of it, and go on: those of a job that has changed its lane work on in its
first one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("jobs", sa.Column("lane", sa.Text()))
    op.add_column(
        "jobs", sa.Column("moves", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )
    op.create_table(
        "lane_moves",
        sa.Column("job_id", names, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("before", sa.Text()),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("figures", sa.Text(), nullable=False),
        sa.Column("left_at", sa.Double()),
        sa.PrimaryKeyConstraint("job_id", "number", name="lane_moves_pkey"),
    )
    op.add_column("provider_batches", sa.Column("handed_at", sa.Double()))
    op.create_table(
        "paid_beside",
        sa.Column("job_id", names, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("doc_id", names, nullable=False),
        sa.Column("answer", names, nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_microusd", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(
            "job_id", "generation", "doc_id", "answer", name="paid_beside_pkey"
        ),
    )


def downgrade() -> None:
    op.drop_table("paid_beside")
    op.drop_column("provider_batches", "handed_at")
    op.drop_table("lane_moves")
    op.drop_column("jobs", "moves")
    op.drop_column("jobs", "lane")
