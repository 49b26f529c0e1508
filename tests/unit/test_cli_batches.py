"""How far provider batches are, in one line."""

from __future__ import annotations

from penstock_cli.show.batches import batches_line
from penstock_ledger import BatchSum
from penstock_ledger.provider_batch import BatchState


def test_batches_that_look_alike_are_counted_together() -> None:
    """Ends that left documents to other batches are named, and what the provider counts is shown where it does."""
    sums = [
        BatchSum(BatchState.CREATED, "in_progress", 2, 4_000, 1_200, 0, None),
        BatchSum(BatchState.CREATED, "in_progress", 1, 50, None, None, None),
        BatchSum(BatchState.SETTLED, "completed", 3, 900, 900, 0, None),
        BatchSum(BatchState.SETTLED, "ended", 1, 300, 300, 0, None),
        BatchSum(BatchState.SETTLED, "expired", 4, 800, 400, 0, "batch_expired"),
        BatchSum(BatchState.SETTLED, "BATCH_STATE_FAILED", 1, 5, 0, 0, None),
        BatchSum(BatchState.PACKED, None, 1, 10, None, None, "the account\nis full"),
    ]
    assert batches_line(sums) == (
        "batches: 2 in_progress (1,200 of 4,000 answered), "
        "1 in_progress (the provider does not say how many of 50 are answered), 4 settled, 4 settled (expired), "
        "1 settled (failed), 1 packed (waits: the account is full)"
    )


def test_a_job_without_batches_says_so() -> None:
    """Before the first one is packed."""
    assert batches_line([]) == "batches: none yet"
