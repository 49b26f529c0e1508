"""The reason of a pause is data, and so is what a person accepted after a stop-loss.

Processes of the release before write `reason` alone, and go on: see `penstock_ledger/reasons.py` for
how that is noticed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("pause", sa.Text()))
    op.add_column("jobs", sa.Column("stop_accepted", sa.Text()))


def downgrade() -> None:
    op.drop_column("jobs", "stop_accepted")
    op.drop_column("jobs", "pause")
