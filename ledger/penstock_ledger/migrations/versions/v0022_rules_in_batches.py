"""Keep which documents go on to a better model, and by which step a batch is asked.

A batch worker of the release before meets no such job: its submits are refused there.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

COLUMNS = (
    ("batch_remainders", "escalations"),
    ("provider_batches", "step"),
    ("paid_beside", "escalations"),
)


def upgrade() -> None:
    for table, name in COLUMNS:
        op.add_column(
            table, sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text("0"))
        )


def downgrade() -> None:
    for table, name in COLUMNS:
        op.drop_column(table, name)
