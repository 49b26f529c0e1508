"""What jobs have spent that no visible outcome says, kept when dead letters are replayed, batches are lost and jobs purged; and
how many answers no price is known of.

Processes of the release before go on beside it: what they settle is in the tallies, which the account adds up with this table. A
replay of theirs lacks its row here until a newer process sees the job, see ``stores/account.py``.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

NAMES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
COUNTED = ("tallies", "lane_tallies", "paid_beside", "batch_remainders")


def upgrade() -> None:
    op.create_table(
        "spending",
        sa.Column("job_id", NAMES, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", NAMES, nullable=False),
        sa.Column("lane", NAMES, nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("tenant", NAMES),
        sa.Column("accepted_at", sa.Double(), nullable=False),
        sa.Column("documents", sa.BigInteger(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_microusd", sa.BigInteger(), nullable=False),
        sa.Column("unpriced", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "generation", "kind", "lane", "shard", name="spending_pkey"),
    )
    op.create_index("spending_accepted", "spending", ["tenant", "accepted_at"])
    op.add_column("outcomes", sa.Column("unpriced", sa.Integer()))
    for table in COUNTED:
        op.add_column(table, sa.Column("unpriced", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    _keep_replayed()


def _keep_replayed() -> None:
    """What dead letters cost that were replayed before: their rows are still there."""
    op.execute(
        "INSERT INTO spending SELECT outcomes.job_id, superseded_by, 'superseded', coalesce(outcomes.lane, ''), 0, jobs.tenant,"
        " jobs.created_at, count(*), sum(calls), coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0),"
        " sum(cost_microusd), 0 FROM outcomes JOIN jobs ON jobs.job_id = outcomes.job_id WHERE superseded_by IS NOT NULL"
        " GROUP BY outcomes.job_id, superseded_by, coalesce(outcomes.lane, ''), jobs.tenant, jobs.created_at"
    )


def downgrade() -> None:
    for table in (*COUNTED, "outcomes"):
        op.drop_column(table, "unpriced")
    op.drop_table("spending")
