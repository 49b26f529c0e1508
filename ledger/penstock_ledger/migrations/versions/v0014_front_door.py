"""The HTTP doors keep keys, files, batches, calls, webhooks, costs of purged jobs.

The tenant of a job, by which they search; and the endpoint of an outcome, where its document named
another one than its job.

Processes of the release before write jobs without the column, and go on: such a job is the
operator's until its row is filled in.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

NAMES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("tenant", NAMES))
    op.create_index("jobs_tenant", "jobs", ["tenant", "created_at", "job_id"])
    field = (
        "json_extract(spec, '$.tenant')"
        if op.get_bind().dialect.name == "sqlite"
        else "spec::json ->> 'tenant'"
    )
    op.execute(f"""UPDATE jobs SET tenant = {field} WHERE spec LIKE '%"tenant":"%'""")  # noqa: S608  # one of two constants
    op.add_column("outcomes", sa.Column("endpoint", sa.Text()))
    _keys_and_files()
    _batches_and_calls()
    _webhooks()


def _keys_and_files() -> None:
    op.create_table(
        "api_keys",
        sa.Column("key_id", NAMES, primary_key=True),
        sa.Column("tenant", NAMES),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("made_by", NAMES),
        sa.Column("counted_as", NAMES),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("last_used_at", sa.Double()),
        sa.UniqueConstraint("digest", name="api_keys_digest"),
    )
    op.create_table(
        "purged_costs",
        sa.Column("tenant", NAMES, nullable=False),
        sa.Column("month", NAMES, nullable=False),
        sa.Column("cost_microusd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "month", name="purged_costs_pkey"),
    )
    op.create_table(
        "door_files",
        sa.Column("file_id", NAMES, primary_key=True),
        sa.Column("tenant", NAMES),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("deleted_at", sa.Double()),
        sa.Column("job_id", NAMES),
        sa.Column("lines", sa.BigInteger()),
    )
    op.create_index("door_files_created", "door_files", ["tenant", "created_at", "file_id"])
    op.create_index("door_files_expires", "door_files", ["expires_at"])
    op.create_index("door_files_deleted", "door_files", ["deleted_at"])
    op.create_index("door_files_job", "door_files", ["job_id"])


def _batches_and_calls() -> None:
    op.create_table(
        "door_batches",
        sa.Column("batch_id", NAMES, primary_key=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tenant", NAMES),
        sa.Column("job_id", NAMES),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("input_file_id", NAMES),
        sa.Column("window_s", sa.Double(), nullable=False),
        sa.Column("output_expires_s", sa.Double()),
        sa.Column("metadata", sa.Text()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("errors", sa.Text()),
        sa.Column("counts", sa.Text()),
        sa.Column("usage", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("output_file_id", NAMES),
        sa.Column("error_file_id", NAMES),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("in_progress_at", sa.Double()),
        sa.Column("finalizing_at", sa.Double()),
        sa.Column("completed_at", sa.Double()),
        sa.Column("failed_at", sa.Double()),
        sa.Column("expired_at", sa.Double()),
        sa.Column("cancelling_at", sa.Double()),
        sa.Column("cancelled_at", sa.Double()),
        sa.Column("expires_at", sa.Double()),
        sa.Column("fence", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", sa.Double()),
    )
    op.create_index(
        "door_batches_created", "door_batches", ["tenant", "kind", "created_at", "batch_id"]
    )
    op.create_index("door_batches_state", "door_batches", ["state"])
    op.create_table(
        "door_calls",
        sa.Column("tenant", NAMES, nullable=False),
        sa.Column("idem_key", NAMES, nullable=False),
        sa.Column("request_digest", sa.Text(), nullable=False),
        sa.Column("job_id", NAMES),
        sa.Column("doc_id", NAMES),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("status_code", sa.Integer()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "idem_key", name="door_calls_pkey"),
    )
    op.create_index("door_calls_expires", "door_calls", ["expires_at"])


def _webhooks() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("endpoint_id", NAMES, primary_key=True),
        sa.Column("tenant", NAMES),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("old_secret", sa.Text()),
        sa.Column("old_until", sa.Double()),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("failing_since", sa.Double()),
        sa.Column("disabled_at", sa.Double()),
        sa.Column("why", sa.Text()),
    )
    op.create_index(
        "webhook_endpoints_created", "webhook_endpoints", ["tenant", "created_at", "endpoint_id"]
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("event_id", NAMES, nullable=False),
        sa.Column("endpoint_id", NAMES, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double()),
        sa.Column("delivered_at", sa.Double()),
        sa.Column("gave_up_at", sa.Double()),
        sa.Column("last_error", sa.Text()),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", sa.Double()),
        sa.PrimaryKeyConstraint("event_id", "endpoint_id", name="webhook_deliveries_pkey"),
    )
    op.create_index("webhook_deliveries_next", "webhook_deliveries", ["next_at"])
    op.create_index(
        "webhook_deliveries_endpoint", "webhook_deliveries", ["endpoint_id", "created_at"]
    )


def downgrade() -> None:
    for table in (
        "webhook_deliveries",
        "webhook_endpoints",
        "door_calls",
        "door_batches",
        "door_files",
        "purged_costs",
        "api_keys",
    ):
        op.drop_table(table)
    op.drop_index("jobs_tenant", "jobs")
    op.drop_column("outcomes", "endpoint")
    op.drop_column("jobs", "tenant")
