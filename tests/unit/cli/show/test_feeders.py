"""What `penstock status` and a dry run say of the feeders of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_ledger.model import Feed, FeedKind, Job, JobState
from penstock_producer import JobSpec
from penstock_producer.reporting.words import feeders_line, feeders_of

SHARDS = [
    (Feed("job_1", 1, FeedKind.SOURCE, {}, exhausted, 1, shard=number), owner)
    for number, (owner, exhausted) in enumerate(
        [("a-1", True), ("a-1", False), ("b-2\x1b[31m", False), (None, False)], 1
    )
]


def job(total: int | None = 5_000_000, state: JobState = JobState.RUNNING, **spec: object) -> Job:
    stored = JobSpec(**{"prompt": "{text}", "model": "m", **spec}).to_json()  # type: ignore[arg-type]  # of several types
    return Job("job_1", "night", stored, {"kind": "file"}, "d", state, None, 1, total, 0.0, None)


def test_status_says_how_many_why_and_how_far() -> None:
    """Parts at their end, and which process leads how many of the others; escape sequences stay
    text."""
    told = feeders_line(job(), SHARDS, one_machine=False)
    assert told.startswith(
        "read by 4 feeders (one for each 1,000,000 documents, or GiB of requests, and at most 4): "
        "1 at their end; "
    )
    assert "a-1 leads 1" in told
    assert "\x1b" not in told
    assert feeders_of(SHARDS) == {"number": 4, "at_their_end": 1}
    assert "(as the job says)" in feeders_line(job(feeders=4), SHARDS, one_machine=True)
    assert "budget" in feeders_line(job(budget_usd=2.0), SHARDS, one_machine=False)


def test_one_feeder_is_explained_where_a_person_may_ask() -> None:
    """A large job that is not split says why; small ones, open ones and those that are over say
    nothing."""
    assert "SQLite" in feeders_line(job(), [], one_machine=True)
    assert "prefix order" in feeders_line(job(lane="gpu"), [], one_machine=False)
    for quiet in (job(total=1_000), job(total=None), job(state=JobState.COMPLETED)):
        assert feeders_line(quiet, [], one_machine=True) == ""
    assert feeders_of([]) is None


def test_a_dry_run_says_how_many_feeders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is spent, where the job asks for several."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    Path("in.jsonl").write_text("".join(f'{{"id":"d{n}","text":"t"}}\n' for n in range(9)))
    run = [
        "run",
        "in.jsonl",
        "--out",
        "out",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--model",
        "m",
        "--prompt",
        "{text}",
        "--dry-run",
    ]
    assert (
        "read by 3 feeders: as the job says"
        in CliRunner().invoke(command_line(), [*run, "--feeders", "3"]).output
    )
    assert "feeder" not in CliRunner().invoke(command_line(), run).output
