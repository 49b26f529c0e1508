"""Keep by which rule runs of a schedule are compared, and how each compares with the run before.

A control process of the release before starts jobs as it did and compares nothing: its runs are
compared once one of this release looks.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    for table in ("schedules", "firings"):
        op.add_column(table, sa.Column("drift", sa.Text()))


def downgrade() -> None:
    for table in ("schedules", "firings"):
        op.drop_column(table, "drift")
