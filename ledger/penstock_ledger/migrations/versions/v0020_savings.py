"""Keep what answers saved, which requests of batches serve equal ones, and tiers that were chosen.

What was saved, or was paid beyond ordinary prices, stands by cause beside each job's account. A row
of `savings` is the sum of one cause of a job in one lane: how many answers, how many tokens
of them, and how much less they cost than they would have without it, which is below 0 for what cost
more. Causes are data: another one needs no column and no migration. A worker books it by adding
a ``Saving`` of its own name to what ``ModelPrices.saved`` returns of an answer; it is added in the
transaction that first writes the answer's row, see ``stores/account.py``.

Processes of the release before go on beside it and book nothing. Of their answers it is not known,
which entries of `meta` say that name no savings (``MadeWith.notes_savings``).

A row of `batch_requests` is a request that a provider batch of a job has, by its digest; one of
`batch_remainders` with `same_as` waits for the answer to it. A batch worker of the release before
packs those as any others, which costs a call for each.

``jobs.tier`` is the service tier that control has chosen for a job. A worker of the release before
asks in the one of its spec.
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
    op.create_table(
        "batch_requests",
        sa.Column("job_id", NAMES, nullable=False),
        sa.Column("digest", NAMES, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("doc_id", NAMES, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "digest", name="batch_requests_pkey"),
    )
    op.add_column("batch_remainders", sa.Column("same_as", NAMES))
    op.add_column("jobs", sa.Column("tier", sa.Text()))


def downgrade() -> None:
    op.drop_column("jobs", "tier")
    op.drop_column("batch_remainders", "same_as")
    op.drop_table("batch_requests")
    op.drop_table("savings")
