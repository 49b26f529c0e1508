"""A provider batch has its trouble, the time since answers are missing, and what was lost.

Lost is what was paid for and not read. Older processes write none of these, and go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

TEXTS = "trouble", "missing"
NUMBERS = "answers_read", "unread", "unread_microusd"


def upgrade() -> None:
    for name in TEXTS:
        op.add_column("provider_batches", sa.Column(name, sa.Text()))
    for name in NUMBERS:
        op.add_column("provider_batches", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    for name in reversed(TEXTS + NUMBERS):
        op.drop_column("provider_batches", name)
