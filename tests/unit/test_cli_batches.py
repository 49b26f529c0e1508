"""How far provider batches are, in one line."""

from __future__ import annotations

from penstock_ledger import BatchSum
from penstock_ledger.provider_batch import BatchState
from penstock_producer.reporting.batches import batches_line


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


def test_what_batches_wait_for_is_said() -> None:
    """A worker that leads them, a provider that cancels them, and until when a cancelled job waits for that."""
    asked = "its job has ended; the provider was asked to cancel it"
    sums = [
        BatchSum(BatchState.CREATED, "cancelling", 2, 40, 10, 0, asked, 2, "p"),
        BatchSum(BatchState.PACKED, None, 3, 10, None, None, None, 1, "q"),
        BatchSum(BatchState.SETTLED, "completed", 3, 900, 900, 0, None, 0, "q"),
    ]
    line = batches_line(sums, is_cancelled=True)
    assert f"2 cancelling (10 of 40 answered; {asked})" in line
    assert "no worker leads 2 of them, which wait for one with the settings of provider q" in line
    assert "after 15 min 00 s at the latest" in line
    assert "at the latest" not in batches_line(sums[2:], is_cancelled=True)


def test_a_job_without_batches_says_so() -> None:
    """Before the first one is packed."""
    assert batches_line([]) == "batches: none yet"
