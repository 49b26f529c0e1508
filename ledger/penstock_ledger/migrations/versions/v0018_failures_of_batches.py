"""A provider batch without answers has its failure as data beside the sentence.

Processes of the release before write `why` alone, and go on: see `penstock_ledger/old_reasons.py`
for how that is read.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("provider_batches", sa.Column("failure", sa.Text()))


def downgrade() -> None:
    op.drop_column("provider_batches", "failure")
