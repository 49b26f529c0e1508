"""A paused job goes on by itself at a time. Older processes do not read the column, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("resume_at", sa.Double()))


def downgrade() -> None:
    op.drop_column("jobs", "resume_at")
