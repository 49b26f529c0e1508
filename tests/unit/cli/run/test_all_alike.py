"""The closing screen of a job in which nothing succeeded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.connect import Books
from penstock_cli.main import command_line
from penstock_cli.run.all_alike import FIRST, advice, so_far
from penstock_cli.run.watch import Watch
from penstock_ledger import DeadLetter, ItemKey, Result
from penstock_ledger.model import Job, JobState
from penstock_producer import Producer
from penstock_producer.reporting.account import Report, build

SPEC = {"model": "m", "prompt": "{text}"}


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Producer, Job]:
    """A job of three documents without outcomes, in a database that commands find."""
    url = f"sqlite:///{tmp_path}/p.db"
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"id": "{name}", "text": "x"}}\n' for name in "abc")
    )
    producer = Producer(database_url=url)
    producer._database.migrate()
    job_id = producer.submit(tmp_path / "in.jsonl", SPEC, job_key="tickets").job_id
    return producer, producer._jobs.get(job_id)


def died(
    job: Job, doc_id: str, reason: str = "not_found", said: str = "HTTP 404: no such route"
) -> DeadLetter:
    return DeadLetter(ItemKey(job.job_id, 1, doc_id), reason, 1, 1, said, 404, b"{}", None)


def report(producer: Producer, job: Job) -> Report:
    return build(job, producer._outcomes.counts(job.job_id), stats={})


def test_a_wrong_address_is_told_at_the_end_of_a_small_job(ended: tuple[Producer, Job]) -> None:
    """Where every answer was 404 the end says so, what to check, and how to send all again (D9)."""
    producer, job = ended
    producer._outcomes.settle([], [died(job, doc_id) for doc_id in "abc"])
    told = CliRunner().invoke(command_line(), ["report", "tickets"]).output
    assert "all 3 documents failed alike (404, not_found): HTTP 404: no such route" in told
    assert "check --base-url (providers.default.base_url), the endpoint and the model\n" in told
    assert "send them again:  penstock dlq replay tickets\n" in told


def test_status_of_an_ended_job_says_so_too(ended: tuple[Producer, Job]) -> None:
    """Who looks at a fleet's job with `status` reads why nothing came of it, and the next command
    (D9)."""
    producer, job = ended
    producer._outcomes.settle([], [died(job, doc_id) for doc_id in "abc"])
    producer._jobs.set_state(job.job_id, JobState.COMPLETED, expect={JobState.RUNNING})
    told = CliRunner().invoke(command_line(), ["status", "tickets"]).output
    assert "all 3 documents failed alike (404, not_found)" in told
    assert "check --base-url (providers.default.base_url)" in told
    assert "list them:  penstock dlq list tickets\n" in told


def test_the_run_names_its_address_and_its_command(ended: tuple[Producer, Job]) -> None:
    """`run` knows the address that it asked, and the command that goes on (D9)."""
    producer, job = ended
    producer._outcomes.settle([], [died(job, doc_id) for doc_id in "abc"])
    ledger = Books(producer._database, None, None)
    told = advice(
        ledger, job, report(producer, job), url="http://h/v2", again="penstock run in.jsonl"
    )
    assert "--base-url (providers.default.base_url) (now http://h/v2)" in told[1]
    assert told[2].endswith("penstock dlq replay tickets")
    assert told[3].endswith("corrected:  penstock run in.jsonl")


@pytest.mark.parametrize("other", ["a result", "another reason"])
def test_several_fates_have_no_common_cause(ended: tuple[Producer, Job], other: str) -> None:
    """A 404 beside a success or beside another failure is the document's own (D9)."""
    producer, job = ended
    key = ItemKey(job.job_id, 1, "c")
    results = (
        [Result(key, 200, b"{}", "r", "m", "stop", 1, 1, 0, 1, 1, 1)] if other == "a result" else []
    )
    letters = [] if results else [died(job, "c", "content_filter")]
    producer._outcomes.settle(results, [died(job, "a"), died(job, "b"), *letters])
    assert advice(Books(producer._database, None, None), job, report(producer, job)) == []


def test_another_common_cause_is_quoted(ended: tuple[Producer, Job]) -> None:
    """A hook that fails every document is named on the screen, in its own words."""
    producer, job = ended
    letters = [
        died(job, doc_id, "hook_failed", "mine:f: ValueError: no column") for doc_id in "abc"
    ]
    producer._outcomes.settle([], letters)
    told = advice(Books(producer._database, None, None), job, report(producer, job))
    assert told == [
        "all 3 documents failed alike (404, hook_failed): mine:f: ValueError: no column",
        "correct the job's hook, restart the workers, then send them again by `penstock dlq replay`",
    ]


SCHEMA = {"type": "object", "required": ["label"]}
NO_FORMAT = (
    "HTTP 400: Invalid parameter: 'response_format' of type 'json_schema' is not supported with "
    "this model."
)


@pytest.mark.parametrize(
    ("reason", "said", "spec", "fix"),
    [
        (
            "schema_mismatch",
            "no JSON",
            {"response_format": "none"},
            "nothing tells the model which JSON is wanted",
        ),
        ("schema_mismatch", "no label", {}, "does not keep to the schema in its requests"),
        (
            "schema_mismatch",
            "no label",
            {"response_format": "json_object"},
            "any JSON object was asked for",
        ),
        ("bad_request", NO_FORMAT, {}, "with --response-format json_object or none"),
        ("bad_request", "HTTP 400: no such voice", {}, "correct what the provider names"),
        ("context_overflow", "HTTP 400: too long", {}, "--truncate"),
    ],
)
def test_a_common_cause_is_told_with_its_fix(
    ended: tuple[Producer, Job], reason: str, said: str, spec: dict[str, str], fix: str
) -> None:
    """A person who has nothing but failures reads one sentence on what to change, by what the job
    asked for."""
    producer, job = ended
    job = producer.submit("in.jsonl", SPEC | {"response_schema": SCHEMA} | spec, job_key="other")
    producer._outcomes.settle([], [died(job, doc_id, reason, said) for doc_id in "abc"])
    ledger = Books(producer._database, None, None)
    assert fix in advice(ledger, job, report(producer, job))[1]
    found = json.loads(CliRunner().invoke(command_line(), ["report", "other", "--json"]).output)
    assert fix in found["advice"][1]


def test_the_screen_says_early_that_all_fail_alike(ended: tuple[Producer, Job]) -> None:
    """After the first ten documents, while the job runs; not after fewer, and not once a document
    has succeeded."""
    producer, job = ended
    ledger = Books(producer._database, None, None)
    watch = Watch(ledger, job)
    letters = [
        died(job, f"d{number}", "answer_cut", "finish_reason length") for number in range(FIRST)
    ]
    producer._outcomes.settle([], letters[1:])
    assert so_far(ledger, job, producer._outcomes.counts(job.job_id)) is None
    producer._outcomes.settle([], letters[:1])
    (told,) = watch.look().reasons
    assert told.startswith(
        "the first 10 documents all failed alike (404, answer_cut): finish_reason length; answers "
        "end"
    )
    assert "--param max_tokens=" in told
    producer._outcomes.settle(
        [Result(ItemKey(job.job_id, 1, "a"), 200, b"{}", "r", "m", "stop", 1, 1, 0, 1, 1, 1)], []
    )
    assert so_far(ledger, job, producer._outcomes.counts(job.job_id)) is None


def test_rows_that_were_refused_are_no_failures_of_the_job(ended: tuple[Producer, Job]) -> None:
    """Bad rows are said as the source is read."""
    producer, job = ended
    producer._outcomes.settle(
        [], [died(job, f"d{number}", "missing_field", "no text") for number in range(FIRST)]
    )
    assert (
        so_far(Books(producer._database, None, None), job, producer._outcomes.counts(job.job_id))
        is None
    )
