"""The closing screen of a job in which nothing succeeded."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.connect import Books
from penstock_cli.main import command_line
from penstock_cli.show.report import Report, build
from penstock_cli.watching.all_alike import advice
from penstock_ledger import DeadLetter, ItemKey, Result
from penstock_ledger.model import Job, JobState
from penstock_producer import Producer

SPEC = {"model": "m", "prompt": "{text}"}


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Producer, Job]:
    """A job of three documents without outcomes, in a database that commands find."""
    url = f"sqlite:///{tmp_path}/p.db"
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id": "{name}", "text": "x"}}\n' for name in "abc"))
    producer = Producer(database_url=url)
    producer._database.migrate()
    job_id = producer.submit(tmp_path / "in.jsonl", SPEC, job_key="tickets").job_id
    return producer, producer._jobs.get(job_id)


def died(job: Job, doc_id: str, reason: str = "not_found", said: str = "HTTP 404: no such route") -> DeadLetter:
    return DeadLetter(ItemKey(job.job_id, 1, doc_id), reason, 1, 1, said, 404, b"{}", None)


def report(producer: Producer, job: Job) -> Report:
    return build(job, producer._outcomes.counts(job.job_id), stats={})


def test_a_wrong_address_is_told_at_the_end_of_a_small_job(ended: tuple[Producer, Job]) -> None:
    """Where every answer was 404 the end says so, what to check, and how to send all again (D9)."""
    producer, job = ended
    producer._outcomes.settle([], [died(job, doc_id) for doc_id in "abc"])
    told = CliRunner().invoke(command_line(), ["report", "tickets"]).output
    assert "all 3 documents failed alike (404, not_found): HTTP 404: no such route" in told
    assert "check --base-url of provider default, the endpoint and the model\n" in told
    assert "send them again:  penstock dlq replay tickets\n" in told


def test_status_of_an_ended_job_says_so_too(ended: tuple[Producer, Job]) -> None:
    """Who looks at a fleet's job with `status` reads why nothing came of it, and the next command (D9)."""
    producer, job = ended
    producer._outcomes.settle([], [died(job, doc_id) for doc_id in "abc"])
    producer._jobs.set_state(job.job_id, JobState.COMPLETED, expect={JobState.RUNNING})
    told = CliRunner().invoke(command_line(), ["status", "tickets"]).output
    assert "all 3 documents failed alike (404, not_found)" in told
    assert "check --base-url of provider default" in told
    assert "list them:  penstock dlq list tickets\n" in told


def test_the_run_names_its_address_and_its_command(ended: tuple[Producer, Job]) -> None:
    """`run` knows the address that it asked, and the command that goes on (D9)."""
    producer, job = ended
    producer._outcomes.settle([], [died(job, doc_id) for doc_id in "abc"])
    ledger = Books(producer._database, None, None)
    told = advice(ledger, job, report(producer, job), url="http://h/v2", again="penstock run in.jsonl")
    assert "(providers.default.base_url is http://h/v2)" in told[1]
    assert told[2].endswith("penstock dlq replay tickets")
    assert told[3].endswith("corrected:  penstock run in.jsonl")


@pytest.mark.parametrize("other", ["a result", "another reason"])
def test_several_fates_have_no_common_cause(ended: tuple[Producer, Job], other: str) -> None:
    """A 404 beside a success or beside another failure is the document's own (D9)."""
    producer, job = ended
    key = ItemKey(job.job_id, 1, "c")
    results = [Result(key, 200, b"{}", "r", "m", "stop", 1, 1, 0, 1, 1, 1)] if other == "a result" else []
    letters = [] if results else [died(job, "c", "content_filter")]
    producer._outcomes.settle(results, [died(job, "a"), died(job, "b"), *letters])
    assert advice(Books(producer._database, None, None), job, report(producer, job)) == []


def test_another_common_cause_is_quoted(ended: tuple[Producer, Job]) -> None:
    """A hook that fails every document is named on the screen, in its own words."""
    producer, job = ended
    letters = [died(job, doc_id, "hook_failed", "mine:f: ValueError: no column") for doc_id in "abc"]
    producer._outcomes.settle([], letters)
    told = advice(Books(producer._database, None, None), job, report(producer, job))
    assert told == ["all 3 documents failed alike (404, hook_failed): mine:f: ValueError: no column"]
