"""Jobs that start themselves: schedules, and what came of each planned time.

Older processes do not read them, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    names = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "schedules",
        sa.Column("schedule_id", names, primary_key=True),
        sa.Column("name", names, nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("catch_up", sa.Text(), nullable=False),
        sa.Column("overlap", sa.Boolean(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("retry_at", sa.Double()),
        sa.Column("waits_for", sa.Text()),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", sa.Double()),
        sa.UniqueConstraint("name", name="schedules_name"),
    )
    op.create_table(
        "firings",
        sa.Column("schedule_id", names, nullable=False),
        sa.Column("planned_at", sa.Double(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("started_job", names),
        sa.Column("reason", sa.Text()),
        sa.Column("noted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("schedule_id", "planned_at", name="firings_pkey"),
    )


def downgrade() -> None:
    op.drop_table("firings")
    op.drop_table("schedules")
