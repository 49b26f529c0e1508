"""Hooks in a real fleet: what the provider sees, what is stored, and what becomes of items that a
hook refuses."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
from fleet import Fleet

from penstock_ledger.model import JobState

HOOKS = """
from penstock_workers.hooks import Invalid

def before(item):
    if item.doc_id == "doc-1":
        raise ValueError("doc-1 has no text")
    item.body["model"] = "sim-changed"
    return item

async def after(item, response):
    if item.doc_id == "doc-2":
        return Invalid("no good")
    return {**response, "seen": item.body["model"]}
"""
ENDING = """
import os

def before(item):
    if item.doc_id == "doc-1":
        os._exit(1)
    return item

def after(item, response):
    if item.doc_id == "doc-2":
        os._exit(1)
    return response
"""
HALVES = r"""
import json
from penstock_workers.hooks import Invalid

HALF = json.loads('"half \\ud83d of it"')

def before(item):
    if item.doc_id == "doc-1":
        raise ValueError(HALF)
    return item

def after(item, response):
    return {**response, "said": HALF} if item.doc_id == "doc-3" else Invalid(HALF, retry=False)
"""
DOCUMENTS = 6
TIME_S = 60.0


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    (tmp_path / "hooks").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hooks"), prepend=os.pathsep)
    return Fleet(tmp_path / "fleet")


def test_hooks_change_refuse_and_fail_and_a_missing_one_pauses_the_job(
    fleet: Fleet, tmp_path: Path
) -> None:
    """A missing module pauses the job with the reason; after the fix and `resume` every document
    has its one outcome.

    An answer that a hook refuses, and its retry, stay in the books with their tokens (C1).
    """
    with fleet:
        fleet.provider.start()
        fleet.ready(fleet.worker(control=True, hook_modules='["fleet_hooks"]'))
        job = fleet.submit(
            DOCUMENTS,
            preprocess="fleet_hooks:before",
            postprocess="fleet_hooks:after",
            max_attempts=2,
        )
        fleet.wait_for(job, JobState.PAUSED, TIME_S)
        reason = fleet.producer.status(job.job_id).job.reason or ""
        assert "hook_missing: fleet_hooks:" in reason
        assert "No module named 'fleet_hooks'" in reason
        assert fleet.provider_calls() == 0
        (tmp_path / "hooks" / "fleet_hooks.py").write_text(HOOKS)
        fleet.wait_for_quiet(job)  # what was under way may pause the job once more
        assert fleet.producer.resume(job.job_id)
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        account = fleet.account(job, DOCUMENTS)
        assert account.dead == {"doc-1": "hook_failed", "doc-2": "invalid_result"}
        assert account.calls == {f"doc-{number}": 1 for number in (0, 3, 4, 5)} | {"doc-2": 2}
        bodies = [orjson.loads(result.body) for result in fleet.producer.results(job.job_id)]
        assert {(body["model"], body["seen"]) for body in bodies} == {
            ("sim-changed", "sim-changed")
        }
        letters = {letter.key.doc_id: letter for letter in fleet.producer.dead_letters(job.job_id)}
        assert "fleet_hooks:before: ValueError: doc-1 has no text" in (
            letters["doc-1"].last_error or ""
        )
        assert (letters["doc-2"].last_error, letters["doc-2"].attempts) == (
            "fleet_hooks:after: no good",
            2,
        )
        answered = sum(result.prompt_tokens or 0 for result in fleet.producer.results(job.job_id))
        paid = answered + sum(letter.prompt_tokens or 0 for letter in letters.values())
        assert (
            letters["doc-2"].prompt_tokens
            == 2 * (paid - (letters["doc-2"].prompt_tokens or 0)) / 4
            > 0
        )
        assert (
            fleet.producer.status(job.job_id).counts.prompt_tokens
            == fleet.counters(job)["prompt_tokens"]
            == paid
        )
        # as it came: a replay goes through the hook again
        assert orjson.loads(letters["doc-2"].request)["model"] == "sim"


def test_hooks_that_end_their_process_are_dead_letters_and_paid_once(
    fleet: Fleet, tmp_path: Path
) -> None:
    """`os._exit` in preprocess or postprocess costs its own document; no worker dies and nothing is
    paid twice (A1, B7)."""
    with fleet:
        (tmp_path / "hooks" / "ending_hooks.py").write_text(ENDING)
        fleet.provider.start()
        worker = fleet.worker(control=True, hook_modules='["ending_hooks"]')
        fleet.ready(worker)
        job = fleet.submit(40, preprocess="ending_hooks:before", postprocess="ending_hooks:after")
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        account = fleet.account(job, 40)
        assert account.dead == {"doc-1": "worker_crashed", "doc-2": "worker_crashed"}
        assert (account.calls["doc-1"], account.calls["doc-2"], account.extra_calls) == (0, 1, 0)
        assert worker.alive
        words = {
            letter.key.doc_id: letter.last_error or ""
            for letter in fleet.producer.dead_letters(job.job_id)
        }
        assert "ending_hooks:before: its process died" in words["doc-1"]
        assert "ending_hooks:after: its process died" in words["doc-2"]


def test_half_an_emoji_in_what_a_hook_raises_or_returns_ends_its_document(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Before, such a call never ended, and neither did its job.

    The texts are stored with U+FFFD in its place (A1)."""
    with fleet:
        (tmp_path / "hooks" / "half_hooks.py").write_text(HALVES)
        fleet.provider.start()
        fleet.ready(fleet.worker(control=True, hook_modules='["half_hooks"]'))
        job = fleet.submit(4, preprocess="half_hooks:before", postprocess="half_hooks:after")
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        letters = {letter.key.doc_id: letter for letter in fleet.producer.dead_letters(job.job_id)}
        reasons = {doc: letter.reason for doc, letter in letters.items()}
        assert reasons == {
            "doc-0": "invalid_result",
            "doc-1": "hook_failed",
            "doc-2": "invalid_result",
        }
        assert "ValueError: half \ufffd of it" in letters["doc-1"].last_error
        assert letters["doc-2"].last_error == "half_hooks:after: half \ufffd of it"
        (result,) = fleet.producer.results(job.job_id)
        assert result.json()["said"] == "half \ufffd of it"


def test_a_schema_is_checked_apart_and_one_that_cannot_be_used_pauses_before_a_call(
    fleet: Fleet,
) -> None:
    """A pattern that takes for ever costs its answers, not the worker; a schema that cannot be used
    costs no call (B3, B20)."""
    with fleet:
        fleet.provider.start()
        worker = fleet.worker(control=True)
        fleet.ready(worker)
        endless = fleet.submit(3, key="endless", response_schema={"$ref": "#"})
        fleet.wait_for(endless, JobState.PAUSED, TIME_S)
        assert "schema_unusable" in (fleet.producer.status(endless.job_id).job.reason or "")
        assert fleet.provider_calls() == 0
        # so the provider answers in prose
        unsent = {"response_schema": {"type": "object"}, "response_format": "none"}
        job = fleet.submit(DOCUMENTS, key="checked", max_attempts=1, **unsent)
        fleet.wait_for(job, JobState.COMPLETED, TIME_S)
        letters = list(fleet.producer.dead_letters(job.job_id))
        assert {letter.reason for letter in letters} == {"schema_mismatch"}
        assert worker.alive
