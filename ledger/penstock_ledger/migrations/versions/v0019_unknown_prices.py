"""Say of how many answers no price is known, where releases before did not.

Of these a cost of 0 could mean either, so that a model whose price is 0 was shown as unknown.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"

SUMS = ("tallies", "lane_tallies", "paid_beside", "batch_remainders", "spending")


def upgrade() -> None:
    """Mark sums of jobs that have outcomes of such a release, where all of it cost nothing."""
    for table in SUMS:
        op.execute(
            f"UPDATE {table} SET unpriced = calls WHERE unpriced = 0 AND cost_microusd = 0 "  # noqa: S608
            "AND prompt_tokens + completion_tokens > 0 AND EXISTS (SELECT 1 FROM outcomes "
            f"WHERE outcomes.job_id = {table}.job_id AND outcomes.unpriced IS NULL)"
        )


def downgrade() -> None:
    """Leave what is known: it harms no release before."""
