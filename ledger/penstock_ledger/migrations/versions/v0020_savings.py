"""Keep what answers saved or cost beyond ordinary ones, by cause, beside each job's account.

A row of `savings` is the sum of one cause of a job in one lane: how many answers, how many tokens
of them, and how much less they cost than they would have without it, which is below 0 for what cost
more. Causes are data: another one needs no column and no migration. A worker books it by adding
a ``Saving`` of its own name to what ``ModelPrices.saved`` returns of an answer; it is added in the
transaction that first writes the answer's row, see ``stores/savings.py``.

Processes of the release before go on beside it and book nothing. Of their answers it is not known,
which entries of `meta` say that name no savings (``MadeWith.notes_savings``).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

NAMES = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "savings",
        sa.Column("job_id", NAMES, nullable=False),
        sa.Column("cause", NAMES, nullable=False),
        sa.Column("lane", NAMES, nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("answers", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("saved_microusd", sa.BigInteger(), nullable=False),
        sa.Column("unpriced", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "cause", "lane", "shard", name="savings_pkey"),
    )


def downgrade() -> None:
    op.drop_table("savings")
