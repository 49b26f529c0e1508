"""Keep what jobs have spent that no visible outcome says.

That is through replays, lost batches and purges; answers of which no price is known are counted.

Processes of the release before go on beside it: what they settle is in the tallies, which the
account adds up with this table. A replay of theirs lacks its row here until a newer process sees
the job, see ``stores/account.py``.
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
        sa.PrimaryKeyConstraint(
            "job_id", "generation", "kind", "lane", "shard", name="spending_pkey"
        ),
    )
    op.create_index("spending_accepted", "spending", ["tenant", "accepted_at"])
    op.add_column("outcomes", sa.Column("unpriced", sa.Integer()))
    for table in COUNTED:
        op.add_column(
            table,
            sa.Column("unpriced", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        )
    _keep_replayed()
    _show_known_costs()


def _show_known_costs() -> None:
    """Make the views that readers of other tools use.

    What no price is known of has no cost there.
    """
    _make_views(
        "CASE WHEN unpriced > 0 OR (unpriced IS NULL AND calls > 0 AND cost_microusd = 0)"
        " THEN NULL ELSE cost_microusd END AS cost_microusd"
    )


def _make_views(cost: str) -> None:
    common = f"prompt_tokens, completion_tokens, {cost}, latency_ms"
    for view in ("results", "dead_letters"):
        op.execute(f"DROP VIEW {view}")
    op.execute(
        "CREATE VIEW results AS SELECT job_id, generation, doc_id, status_code, request_id, "  # noqa: S608
        "model, finish_reason,"
        f" {common}, attempts, calls, created_at, body FROM outcomes WHERE kind = 'result' AND "
        "superseded_by IS NULL"
    )
    op.execute(
        "CREATE VIEW dead_letters AS SELECT job_id, generation, doc_id, reason, attempts, calls, "  # noqa: S608
        "last_error, status_code,"
        f" line, {common}, created_at, request, body AS response FROM outcomes"
        " WHERE kind = 'dead' AND superseded_by IS NULL"
    )


def _keep_replayed() -> None:
    """Keep what dead letters cost that were replayed before: their rows are still there."""
    op.execute(
        "INSERT INTO spending SELECT outcomes.job_id, superseded_by, 'superseded', "
        "coalesce(outcomes.lane, ''), 0, jobs.tenant,"
        " jobs.created_at, count(*), sum(calls), coalesce(sum(prompt_tokens), 0), "
        "coalesce(sum(completion_tokens), 0),"
        " sum(cost_microusd), 0 FROM outcomes JOIN jobs ON jobs.job_id = outcomes.job_id WHERE "
        "superseded_by IS NOT NULL"
        " GROUP BY outcomes.job_id, superseded_by, coalesce(outcomes.lane, ''), jobs.tenant, "
        "jobs.created_at"
    )


def downgrade() -> None:
    _make_views("cost_microusd")
    for table in (*COUNTED, "outcomes"):
        op.drop_column(table, "unpriced")
    op.drop_table("spending")
