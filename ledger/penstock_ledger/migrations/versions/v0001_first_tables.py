"""The first tables, and the two views that readers of other tools look at."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

RESULTS_VIEW = """
CREATE VIEW results AS
SELECT job_id, generation, doc_id, status_code, request_id, model, finish_reason, prompt_tokens, completion_tokens,
       cost_microusd, latency_ms, attempts, calls, created_at, body
FROM outcomes WHERE kind = 'result' AND superseded_by IS NULL
"""

DEAD_LETTERS_VIEW = """
CREATE VIEW dead_letters AS
SELECT job_id, generation, doc_id, reason, attempts, calls, last_error, status_code, line, prompt_tokens,
       completion_tokens, cost_microusd, latency_ms, created_at, request, body AS response
FROM outcomes WHERE kind = 'dead' AND superseded_by IS NULL
"""


def upgrade() -> None:
    _create_jobs()
    _create_feeds()
    _create_outcomes()
    _create_tallies()
    _create_spool()
    _create_outbox_and_meta()
    op.execute(RESULTS_VIEW)
    op.execute(DEAD_LETTERS_VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW dead_letters")
    op.execute("DROP VIEW results")
    for table in ("meta", "outbox", "spool", "tallies", "outcomes", "feeds", "jobs"):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", ID, primary_key=True),
        sa.Column("job_key", ID, nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("total", sa.BigInteger),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.UniqueConstraint("job_key", name="jobs_job_key"),
    )
    op.create_index("jobs_created", "jobs", ["created_at", "job_id"])
    op.create_index("jobs_state", "jobs", ["state"])


def _create_feeds() -> None:
    op.create_table(
        "feeds",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("cursor", sa.Text, nullable=False),
        sa.Column("exhausted", sa.Boolean, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("lease_until", sa.Double),
        sa.Column("selection", sa.Text, nullable=False),
        sa.Column("overrides", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "generation", name="feeds_pkey"),
    )


def _create_outcomes() -> None:
    op.create_table(
        "outcomes",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("doc_id", ID, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("superseded_by", sa.Integer),
        sa.Column("reason", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger),
        sa.Column("completion_tokens", sa.BigInteger),
        sa.Column("cost_microusd", sa.BigInteger, nullable=False),
        sa.Column("latency_ms", sa.BigInteger, nullable=False),
        sa.Column("status_code", sa.Integer),
        sa.Column("request_id", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("finish_reason", sa.Text),
        sa.Column("last_error", sa.Text),
        sa.Column("line", sa.BigInteger),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("request", sa.LargeBinary),
        sa.Column("body", sa.LargeBinary),
        sa.PrimaryKeyConstraint("job_id", "generation", "doc_id", name="outcomes_pkey"),
    )
    _partial_index("outcomes_dead", "outcomes", ["job_id", "generation", "doc_id"], "kind = 'dead'")
    _partial_index(
        "outcomes_superseded",
        "outcomes",
        ["job_id", "superseded_by", "doc_id"],
        "superseded_by IS NOT NULL",
    )


def _create_tallies() -> None:
    figures = (
        "number",
        "after_retry",
        "calls",
        "prompt_tokens",
        "completion_tokens",
        "cost_microusd",
    )
    op.create_table(
        "tallies",
        sa.Column("job_id", ID, nullable=False),
        sa.Column("shard", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in figures),
        sa.PrimaryKeyConstraint("job_id", "shard", "kind", "reason", name="tallies_pkey"),
    )


def _create_spool() -> None:
    op.create_table(
        "spool",
        sa.Column("seq", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("doc_id", ID, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("fed", sa.Boolean, nullable=False),
        sa.UniqueConstraint("job_id", "doc_id", name="spool_doc"),
    )
    _partial_index("spool_unfed", "spool", ["job_id", "seq"], "NOT fed", sqlite="fed = 0")


def _create_outbox_and_meta() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", SERIAL, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("job_id", ID, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("sent_at", sa.Double),
    )
    _partial_index("outbox_pending", "outbox", ["id"], "sent_at IS NULL")
    op.create_table(
        "meta",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def _partial_index(
    name: str, table: str, columns: list[str], where: str, *, sqlite: str | None = None
) -> None:
    op.create_index(
        name,
        table,
        columns,
        postgresql_where=sa.text(where),
        sqlite_where=sa.text(sqlite if sqlite else where),
    )
