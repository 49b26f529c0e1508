"""How far provider batches are, in one line."""

from __future__ import annotations

import time

from penstock_ledger import BatchSum, BatchTrouble
from penstock_ledger.provider_batch import BatchState
from penstock_producer.reporting.batches import batch_troubles, batches_line, batches_of


def test_batches_that_look_alike_are_counted_together() -> None:
    """Ends that left documents to other batches are named, and what the provider counts is shown
    where it does."""
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
        "batches: 2 in_progress (1,200 of 4,000 answered), 1 in_progress (the provider does not "
        "say how many of 50 are answered), 4 settled, 4 settled (expired), 1 settled (failed), 1 "
        "packed (waits: the account is full)"
    )


def test_what_batches_wait_for_is_said() -> None:
    """A worker that leads them, a provider that cancels them, and until when a cancelled job waits
    for that."""
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


def trouble(
    name: str, *, call: str = "upload", times: int = 12, again_at: float = 1_090.0
) -> BatchTrouble:
    return BatchTrouble(
        call, name, "HTTP 500: out\nof \x1b[31morder", 500, 1_000.0, times, again_at
    )


def test_a_trouble_is_a_sentence_with_its_times() -> None:
    """What is tried, what came, since when, how often, and when it is tried again; foreign words
    are escaped."""
    waits = BatchSum(
        BatchState.PACKED,
        None,
        3,
        30,
        None,
        None,
        None,
        3,
        "p",
        ((2, trouble("server_error")), (1, trouble("timeout", times=1, again_at=1_000.0))),
    )
    first, second = batch_troubles([waits], now=1_050.0)
    since, again = (time.strftime("%H:%M:%S", time.localtime(at)) for at in (1_000.0, 1_090.0))
    assert first.startswith(
        "2 batches wait for provider p: server_error at the upload (HTTP 500, 12 times in a row, "
        "since "
    )
    assert f"since {since})" in first
    assert first.endswith(f"it is tried again at {again}")
    assert "\n" not in first
    assert "\x1b" not in first
    assert second.startswith(
        "a batch waits for provider p: timeout at the upload (HTTP 500, once, since "
    )
    assert second.endswith("it is due to be tried again")


def test_missing_answers_are_named_as_such() -> None:
    """A person learns that they may still come, or that they were paid for and never came."""
    names = {
        "batch_missing": "does not know the batch",
        "answers_missing": "may come",
        "answers_short": "is read again",
    }
    for name, words in names.items():
        waits = BatchSum(
            BatchState.ENDED,
            "completed",
            1,
            30,
            30,
            0,
            None,
            1,
            "p",
            ((1, trouble(name, call="answers")),),
        )
        [sentence] = batch_troubles([waits])
        assert words in sentence
    lost = BatchSum(BatchState.SETTLED, "completed", 1, 30, 30, 0, None, 0, "p", (), 12, 340_000)
    unknown = lost._replace(unread_microusd=None)
    assert batches_line([lost]).endswith(
        "; 12 answers (up to $0.3400) were paid for and could not be read"
    )
    assert batches_line([lost, unknown]).endswith(
        "; 24 answers (their cost is unknown) were paid for and could not be read"
    )


def test_only_the_first_kinds_of_trouble_are_shown() -> None:
    """The others are counted; programs get all of them."""
    kinds = tuple((1, trouble(f"kind_{number}")) for number in range(5))
    sums = [BatchSum(BatchState.PACKED, None, 5, 30, None, None, None, 5, "p", kinds)]
    *shown, more = batch_troubles(sums)
    assert (len(shown), more) == (3, "and 2 more kinds of trouble with batches")
    [row] = batches_of(sums)
    assert [one["name"] for one in row["troubles"]] == [f"kind_{number}" for number in range(5)]
    assert row["troubles"][0]["batches"] == 1
