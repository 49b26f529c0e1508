"""Lists of jobs in a state read those alone, newest first, however many others there are.

Older processes look by the state alone, which the wider index has first."""

from __future__ import annotations

from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.drop_index("jobs_state", "jobs")
    op.create_index("jobs_state", "jobs", ["state", "created_at", "job_id"])


def downgrade() -> None:
    op.drop_index("jobs_state", "jobs")
    op.create_index("jobs_state", "jobs", ["state"])
