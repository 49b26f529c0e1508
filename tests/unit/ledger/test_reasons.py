"""Why a job was stopped: a sentence for each code, data through JSON, and rows of before."""

from __future__ import annotations

import json

import orjson
import pytest

from penstock_ledger import BatchFailure
from penstock_ledger.model import Job, JobState
from penstock_ledger.reasons import (
    By,
    Code,
    Reason,
    StopCode,
    by_hand,
    explain,
    read_reason,
    stored_reason,
    without_secrets,
)
from penstock_ledger.texts import SetOption
from penstock_producer.prices import (
    is_budget_spent,
    spent_budget,
    spent_tenant_budget,
)
from penstock_producer.reporting.pauses import advice_for, pause_steps

SHARE = {"generation": 1, "bad": 97, "of": 100, "failing": 0.97, "usd_per_doc": 0.002}
SAID = {"detail": "what was reported"}

TABLE = [
    (by_hand("Ana asks the provider"), "Ana asks the provider"),
    (
        spent_budget(budget_usd=5.0, spent_usd=4.0, left=1, mean_usd=1.5),
        "budget_exhausted: 4.00 USD of 5 are spent; the document left costs about 1.50 USD more",
    ),
    (
        spent_tenant_budget(
            "shop", "2026-11", budget_usd=5.0, spent_usd=5.0, left=None, mean_usd=1
        ),
        "tenant_budget_exhausted: 5.00 USD of the 5.0 that tenant 'shop' may spend on jobs of "
        "2026-11 are spent. This job counts in 2026-11 until it ends; new jobs have the next "
        "month's budget, from 2026-12-01 (UTC). The job goes on by itself once the newest key of "
        "the tenant names a larger budget",
    ),
    (
        Reason(Code.DEADLINE_EXCEEDED, By.CONTROL, {"deadline_s": 60.0}),
        "deadline_exceeded: the job is older than its deadline of 60 s",
    ),
    (
        Reason(Code.DEADLINE_EXCEEDED, By.CONTROL, {"window_s": 86_400}),
        "deadline_exceeded: the batch is older than its window of 86400 s",
    ),
    (
        Reason(Code.DISK_FULL, By.CONTROL, {"place": "/data", "free_bytes": 1_500_000}),
        "disk_full: the disk of /data has 1.5 MB left",
    ),
    (
        Reason(
            Code.BATCH_STUCK,
            By.LANE,
            {
                "batch": "b1",
                "provider": "p",
                "documents": 7,
                "status": "in_progress",
                "hours": 49.6,
            },
        ),
        "batch_stuck: provider batch b1 at p with 7 documents is still in_progress after 50 hours "
        "(batch.stuck_after_s); look at it there. Resume the job to take its documents back: the "
        "batch is cancelled, what it has answered is kept, and the rest goes into another one",
    ),
    (Reason(Code.BATCH_REFUSED, By.LANE, SAID), "batch_refused: what was reported"),
    (Reason(Code.PROVIDER_HELD, By.PROVIDER, SAID), "what was reported"),
    (Reason(Code.ANSWERS_ALIKE, By.PROVIDER, SAID | {"fix": "look"}), "what was reported; look"),
    (Reason(Code.FORMAT_REFUSED, By.PROVIDER, SAID), "what was reported"),
    (Reason(Code.MODEL_UNCLEAR, By.CONTROL, SAID), "what was reported"),
    (Reason(Code.FOREIGN_QUEUE, By.CONTROL, SAID), "what was reported"),
    (Reason(Code.JOB_CANNOT_RUN, By.CONTROL, SAID), "what was reported"),
    (Reason(Code.RESULTS_NOT_WRITTEN, By.CONTROL, SAID), "results_not_written: what was reported"),
    (Reason(Code.TOO_MANY_OUTCOMES, By.CONTROL, SAID), "too_many_outcomes: what was reported"),
    (Reason(Code.TOO_FEW_OUTCOMES, By.CONTROL, SAID), "too_few_outcomes: what was reported"),
    (Reason(Code.UNKNOWN, By.CONTROL, {"words": "of before"}), "of before"),
    (
        Reason(StopCode.DEAD, By.STOP_LOSS, SHARE | {"bound": 50.0}),
        "97 of the latest 100 documents are dead letters (stop_at_dead is 50%)",
    ),
    (
        Reason(StopCode.MISSED, By.STOP_LOSS, SHARE | {"bound": 50.0}),
        "97 of the first answers to the latest 100 documents were paid for and refused "
        "(stop_at_dead is 50%)",
    ),
    (
        Reason(StopCode.COST, By.STOP_LOSS, {"usd_per_doc": 0.5, "bound_usd": 0.1, "of": 9}),
        "the latest 9 documents cost 0.5 USD each (stop_at_usd_per_doc is 0.1)",
    ),
    # failures of calls and of sources are codes by their own names
    (
        Reason("out_of_credit", By.PROVIDER, SAID | {"fix": "add credit, then resume"}),
        "out_of_credit: what was reported; add credit, then resume",
    ),
    (
        Reason("rate_limited", By.PROVIDER, {"wait_s": 1_200.4, "max_wait_s": 900.0}),
        "rate_limited: the provider asks to wait 1200 s, longer than max_retry_after_s=900; the "
        "job goes on by itself when that is over",
    ),
    (Reason("source_changed", By.SOURCE, SAID), "source_changed: what was reported"),
]
EVERY_CODE = sorted({*Code, *StopCode})


@pytest.mark.parametrize(("reason", "sentence"), TABLE)
def test_each_code_has_its_sentence_and_comes_back_from_its_row(
    reason: Reason, sentence: str
) -> None:
    """Data is read as it was written, beside the sentence that readers of before get."""
    assert explain(reason) == sentence
    assert read_reason(stored_reason(reason), sentence) == reason


def test_the_table_above_has_every_code() -> None:
    """A code without a sentence would be shown as a bare word."""
    assert {reason.code for reason, _ in TABLE} >= set(EVERY_CODE)


def test_what_came_on_top_is_said_behind_the_reason() -> None:
    """The code stays that of why it was cancelled."""
    late = Reason(
        Code.DEADLINE_EXCEEDED, By.CONTROL, {"deadline_s": 60.0, "also": "the file is gone"}
    )
    assert explain(late).endswith("deadline of 60 s; the file is gone")


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("params", [{}, {"new": 1}, {"examples": 7}, {"left": "x", "hours": "y"}])
def test_parameters_of_another_release_fail_nothing(code: str, params: dict[str, object]) -> None:
    """The code is shown where its sentence cannot be made; advice is left out."""
    reason = Reason(code, By.CONTROL, params)
    assert explain(reason)
    read = read_reason(stored_reason(reason), explain(reason))
    assert read is not None
    assert read.code == code
    advice_for(read)
    job = Job("j1", "j", {}, {}, "", JobState.PAUSED, "", 1, 10, 0.0, None, why=read)
    assert pause_steps(job, "")


def test_a_code_and_an_actor_of_a_release_to_come_keep_its_words() -> None:
    """While an upgrade rolls, its processes write what this one cannot explain."""
    row = {"code": "moon", "by": "tide", "params": {"phase": 3}, "reason": "the moon is full"}
    read = read_reason(json.dumps(row), "the moon is full")
    assert read is not None
    assert (read.code, read.by, explain(read)) == ("moon", By.CONTROL, "the moon is full")
    assert read.params["phase"] == 3


OLD = [
    ("batch_refused: the provider has refused 8 batches", "batch_refused", By.LANE),
    ("batch_stuck: provider batch b1 is still in_progress", "batch_stuck", By.LANE),
    (
        "deadline_exceeded: the job is older than its deadline of 60 s",
        "deadline_exceeded",
        By.CONTROL,
    ),
    ("disk_full: the disk of the server has 1.0 MB left", "disk_full", By.CONTROL),
    ("rate_limited: the provider asks to wait 1200 s", "rate_limited", By.PROVIDER),
    ("daily_limit: the provider asks to wait 9000 s", "daily_limit", By.PROVIDER),
    ("slow_down: the provider asks to wait 1200 s", "slow_down", By.PROVIDER),
    ("unauthorized: 401; check the API key", "unauthorized", By.PROVIDER),
    ("source_unavailable: the server is away", "source_unavailable", By.SOURCE),
    ("source_changed: it has 3 bytes more", "source_changed", By.SOURCE),
    ("results_not_written: no room", "results_not_written", By.CONTROL),
    ("paused by Ana: batch_stuck, she says", "unknown", By.CONTROL),
    ("batch_stuck", "unknown", By.CONTROL),
    ("warning: a look at it", "unknown", By.CONTROL),
]


@pytest.mark.parametrize(("sentence", "code", "by"), OLD)
def test_a_row_of_before_is_recognised_once(sentence: str, code: str, by: By) -> None:
    """Its reason is a sentence alone; it is shown as it stands, and acted upon by its code."""
    read = read_reason(None, sentence)
    assert read is not None
    assert (read.code, read.by, explain(read)) == (code, by, sentence)


def test_a_spent_budget_of_before_goes_on_with_what_it_proposed() -> None:
    """The command that stood at the end of the sentence is advice now."""
    said = "budget_exhausted: 12.40 USD of 12.5 are spent; the 3,100 documents left cost about 4.00"
    read = read_reason(None, f"{said} USD more: penstock resume reviews --budget-usd 19")
    assert read is not None
    assert is_budget_spent(read)
    assert (read.number("budget_usd"), explain(read)) == (12.5, f"{said} USD more")
    (advice,) = advice_for(read)
    assert advice.action == SetOption("budget_usd", 19.0)


def test_a_tenants_budget_of_before_is_compared_with_the_new_one() -> None:
    """Without it the job would wait for ever."""
    said = (
        "tenant_budget_exhausted: 4.90 USD of the 5.0 that tenant 'shop' may spend on jobs of 2026"
    )
    read = read_reason(None, f"{said}: penstock keys create NAME --tenant shop --budget-usd 5.8")
    assert read is not None
    assert read.code == Code.TENANT_BUDGET_EXHAUSTED
    assert (read.number("budget_usd"), read.number("enough_usd")) == (5.0, 5.8)
    assert explain(read) == said


@pytest.mark.parametrize(
    "sentence",
    [
        "budget_exhausted: much USD of 5 are spent",
        "budget_exhausted: nan USD of 5 are spent",
        "budget_exhausted: 5 USD of -1 are spent",
        "tenant_budget_exhausted: 5 USD of the lot that tenant 'x' may",
    ],
)
def test_a_sentence_without_figures_is_no_budget(sentence: str) -> None:
    """It waits for a person."""
    read = read_reason(None, sentence)
    assert read is not None
    assert read.code == "unknown"


@pytest.mark.parametrize("code", [*EVERY_CODE, "rate_limited", "source_unavailable"])
def test_a_persons_words_are_a_note(code: str) -> None:
    """Whatever they begin with: the row says who has paused the job."""
    note = f"{code}: paused by Ana while we ask the provider"
    read = read_reason(stored_reason(by_hand(note)), note)
    assert read == by_hand(note)
    assert read is not None
    assert explain(read) == note


def test_a_process_of_before_that_pauses_the_job_again_is_believed() -> None:
    """It writes the sentence alone, and what stands beside it is over."""
    read = read_reason(stored_reason(by_hand("a look")), "batch_stuck: it hangs")
    assert read is not None
    assert read.by is By.LANE
    assert read_reason(stored_reason(by_hand("a look")), None) is None


def test_secrets_and_odd_characters_stay_out_of_a_row() -> None:
    """Also out of the JSON, and both agree afterwards."""
    odd = by_hand("the key sk-abcdefghijklmnopqrstuvwx \0 \ud83d")
    kept = without_secrets(odd)
    assert "sk-abc" not in stored_reason(kept)
    assert "\0" not in explain(kept)
    assert orjson.loads(stored_reason(kept))["reason"] == explain(kept)
    assert read_reason(stored_reason(kept), explain(kept)) == kept


@pytest.mark.parametrize(
    "failure",
    [BatchFailure("batch_lost"), BatchFailure("batch_refused", "a: b"), BatchFailure("moon", "\0")],
)
def test_why_a_batch_gave_no_answers_comes_back_from_its_row(failure: BatchFailure) -> None:
    """Also a name that this release does not know; its sentence is for the release before."""
    columns = failure.columns()
    assert columns["why"].startswith(failure.name)
    assert BatchFailure.read(columns["failure"], columns["why"]) == failure


@pytest.mark.parametrize(
    ("why", "failure"),
    [
        ("batch_stuck: it should have ended", BatchFailure("batch_stuck", "it should have ended")),
        ("batch_expired", BatchFailure("batch_expired")),
        ("token_limit_exceeded: wait", None),
        ("its job has ended or left the lane", None),
        (None, None),
    ],
)
def test_a_batch_of_a_release_before_is_recognised_once(
    why: str | None, failure: BatchFailure | None
) -> None:
    """Alone, beside what is over, and beside what cannot be read."""
    for stored in (None, BatchFailure("batch_lost").columns()["failure"], "{", "[]", "7"):
        assert BatchFailure.read(stored, why) == failure
