"""Jobs over the outcomes of other jobs, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from envelopes import decode_envelope
from servers import RedisServer, as_bytes
from typer.testing import CliRunner

from penstock_cli.main import command_line
from penstock_ledger import (
    Database,
    DeadLetter,
    ItemKey,
    Job,
    JobConflict,
    JobState,
    JobStore,
    Meta,
    OutcomeStore,
    RedisLedger,
    Result,
    open_database,
    purge_job,
)
from penstock_producer import (
    Producer,
    ProducerSettings,
    SourceChanged,
    SourceError,
    SourceUnavailable,
    SpecError,
    TooManyBadRows,
)
from penstock_producer.errors import BadReference
from penstock_producer.rows import Document
from penstock_producer.sources.of_feed import open_feed_source
from penstock_workers.control.loop import Control
from penstock_workers.settings import WorkerSettings

FIRST = {"prompt": "Rate: {text}", "model": "small", "params": {"max_tokens": 5}}
CHECK = {"prompt": 'Is {answer} right? {label|default:"none"}', "model": "judge"}
AGAIN = {"model": "large"}


class Pipeline:
    """A first job that has ended: two answers, a document that was too long, and a row that never
    was a request."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.producer = Producer(ProducerSettings(), database=db)
        self.jobs, self.outcomes = JobStore(db), OutcomeStore(db)
        path = folder / "first.jsonl"
        path.write_text(
            "".join(json.dumps({"id": name, "text": f"text {name}"}) + "\n" for name in "abcd")
        )
        self.first = self.producer.submit(path, FIRST, job_key="first")

    def end(self) -> None:
        results = [
            self.result("a", '{"score": 0.9, "label": "good"}'),
            self.result("b", '{"score": 0.2}'),
        ]
        self.outcomes.settle(
            results, [self.letter("c", "context_overflow"), self.letter("d", "missing_field", b"")]
        )
        self.jobs.set_state(self.first.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])

    def result(self, doc_id: str, answer: str, generation: int = 1) -> Result:
        body = orjson.dumps({"choices": [{"message": {"content": answer}}]})
        key = ItemKey(self.first.job_id, generation, doc_id)
        return Result(key, 200, body, None, "small", "stop", 10, 5, 300, 1, 1, 1)

    def letter(self, doc_id: str, reason: str, request: bytes | None = None) -> DeadLetter:
        sent = {
            "model": "small",
            "messages": [{"role": "user", "content": f"Rate: text {doc_id}"}],
            "max_tokens": 5,
        }
        body = orjson.dumps(sent) if request is None else request
        return DeadLetter(
            ItemKey(self.first.job_id, 1, doc_id), reason, 1, 1, "it was too long", 400, body, None
        )

    def over(self, spec: dict[str, Any], *where: str, key: str | None = None) -> Job:
        return self.producer.submit_from("first", spec, where=where, job_key=key)

    def documents(self, job: Job, cursor: dict[str, Any] | None = None) -> list[Document]:
        rows = open_feed_source(self.db, job.job_id, 1).documents(cursor or {})
        return [row for row in rows if isinstance(row, Document)]


@pytest.fixture(params=["sqlite", "postgresql"])
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pipeline]:
    url = (
        f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "sqlite"
        else request.getfixturevalue("migrated_url")
    )
    database = open_database(url)
    database.migrate()
    made = Pipeline(database, tmp_path)
    made.end()
    yield made
    database.close()


def contents(documents: list[Document]) -> dict[str, str]:
    """The text that each document asks about."""
    return {one.doc_id: orjson.loads(one.body)["messages"][-1]["content"] for one in documents}


def test_what_died_is_sent_again_with_another_model(pipeline: Pipeline) -> None:
    """Without a prompt the stored request goes out as it was, with this job's model and parameters
    in it."""
    job = pipeline.over({"model": "large", "params": {"temperature": 0}}, "reason=context_overflow")
    (document,) = pipeline.documents(job)
    assert document.doc_id == "c"
    assert orjson.loads(document.body) == {
        "model": "large",
        "temperature": 0,
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "Rate: text c"}],
    }
    assert job.total == 1


def test_answers_are_asked_about(pipeline: Pipeline) -> None:
    """With a prompt the answer and its fields are columns; a condition on a field chooses those
    that score low."""
    assert contents(pipeline.documents(pipeline.over(CHECK, "status=done"))) == {
        "a": 'Is {"score": 0.9, "label": "good"} right? good',
        "b": 'Is {"score": 0.2} right? none',
    }
    assert list(contents(pipeline.documents(pipeline.over(CHECK, "score<0.5")))) == ["b"]


def test_the_text_that_was_sent_is_a_column_of_what_died(pipeline: Pipeline) -> None:
    """A dead letter keeps its request, so another prompt can hold its text, its reason and its
    error."""
    job = pipeline.over(
        {"prompt": "{reason}: {prompt}", "model": "large"}, "reason=context_overflow"
    )
    assert contents(pipeline.documents(job)) == {"c": "context_overflow: Rate: text c"}


def test_where_it_comes_from_is_kept(pipeline: Pipeline) -> None:
    """The job, its generation and the conditions stand in the second job; the same submit is the
    same job, another is not."""
    job = pipeline.over(AGAIN, "reason=context_overflow", key="second")
    assert {
        name: job.source[name] for name in ("kind", "job_id", "job_key", "generation", "where")
    } == {
        "kind": "job",
        "job_id": pipeline.first.job_id,
        "job_key": "first",
        "generation": 1,
        "where": ["reason=context_overflow"],
    }
    assert pipeline.over(AGAIN, "reason=context_overflow", key="second").job_id == job.job_id
    with pytest.raises(JobConflict):
        pipeline.over(AGAIN, "status=dead and reason=context_overflow", key="second")


def test_a_replay_of_the_first_job_changes_nothing(pipeline: Pipeline) -> None:
    """What the first job's generation left is read, before and after its dead letters are tried
    again and succeed."""
    job = pipeline.over(AGAIN, "reason=context_overflow")
    before = pipeline.documents(job)
    pipeline.producer.replay("first", reason="context_overflow")
    assert pipeline.documents(job) == before
    pipeline.outcomes.settle([pipeline.result("c", '{"score": 0.1}', generation=2)], [])
    assert pipeline.documents(job) == before
    pipeline.jobs.set_state(pipeline.first.job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    later = pipeline.over(CHECK, "score<0.5")
    assert list(contents(pipeline.documents(later))) == ["b", "c"]
    assert later.source["generation"] == 2


def test_reading_goes_on_after_any_document(pipeline: Pipeline) -> None:
    """A cursor continues after its document, and a position gives the same document again."""
    job = pipeline.over({"prompt": "{id} {status}", "model": "m"})
    documents = pipeline.documents(job)
    assert [one.doc_id for one in documents] == ["a", "b", "c", "d"]
    source = open_feed_source(pipeline.db, job.job_id, 1)
    for nth, document in enumerate(documents):
        assert pipeline.documents(job, document.cursor) == documents[nth + 1 :]
        assert source.fetch(document.position) == document


@pytest.mark.parametrize("position", ["", "a", "1:zzz", "9:a", "x:a"])
def test_a_wrong_position_is_refused(pipeline: Pipeline, position: str) -> None:
    """A message that names no outcome of the first job is the message's fault."""
    job = pipeline.over({"prompt": "{id}", "model": "m"})
    with pytest.raises(BadReference):
        open_feed_source(pipeline.db, job.job_id, 1).fetch(position)


def test_an_outcome_that_was_not_chosen_cannot_be_fetched(pipeline: Pipeline) -> None:
    """A message cannot make a document of what the conditions leave out."""
    job = pipeline.over(AGAIN, "reason=context_overflow")
    with pytest.raises(BadReference, match="no document of this job"):
        open_feed_source(pipeline.db, job.job_id, 1).fetch("1:a")


def test_what_has_no_request_is_refused_with_its_fix(pipeline: Pipeline) -> None:
    """Results keep none, and a row that never parsed had none: more than max_bad_rows of them
    refuse the submit."""
    with pytest.raises(TooManyBadRows, match=r"no_request.*where=status=dead"):
        pipeline.over(AGAIN, "status=done")
    accepted = pipeline.over({**AGAIN, "max_bad_rows": 1}, "status=dead")
    assert accepted.total == 2
    (letter,) = pipeline.producer.dead_letters(accepted.job_id)
    assert (letter.key.doc_id, letter.reason) == ("d", "missing_field")


def test_what_cannot_be_read_is_refused(pipeline: Pipeline) -> None:
    """Conditions that nothing satisfies or that are none, a job that has not ended, and another
    endpoint."""
    with pytest.raises(SourceError, match="no outcome of job first satisfies 'score>7'"):
        pipeline.over(CHECK, "score>7")
    with pytest.raises(SpecError, match="/where"):
        pipeline.over(CHECK, "score")
    with pytest.raises(SpecError, match=r"/v1/chat/completions, or a prompt"):
        pipeline.over({**AGAIN, "endpoint": "/v1/responses"}, "status=dead")
    pipeline.producer.replay("first", reason="context_overflow")
    with pytest.raises(SourceUnavailable, match="is running"):
        pipeline.over(CHECK, "status=done")


def test_a_purge_of_the_first_job_is_noticed(pipeline: Pipeline) -> None:
    """The second job does not end early as if there were no more: it says that what it reads is
    gone."""
    job = pipeline.over(CHECK, "status=done")
    purge_job(pipeline.db, pipeline.first.job_id)
    with pytest.raises(SourceChanged, match="job first, whose outcomes are read, was purged"):
        pipeline.documents(job)


def test_the_control_loop_feeds_it(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As typed: a second pass over the failures of the first reaches the queue, and status says
    what it reads."""
    settings = WorkerSettings(
        redis_url=redis_server.url, database_url=f"sqlite:///{tmp_path}/ledger.db"
    )
    monkeypatch.setenv("PENSTOCK_REDIS_URL", settings.redis_url)
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("COLUMNS", "250")
    database = open_database(settings.database_url)
    database.migrate()
    Pipeline(database, tmp_path).end()
    typed = [
        "submit",
        "--from-job",
        "first",
        "--where",
        "reason=context_overflow",
        "--model",
        "large",
        "--job",
        "second",
    ]
    answer = CliRunner().invoke(command_line(), typed)
    assert answer.exit_code == 0, answer.output
    hot = RedisLedger(redis_server.client(), Meta(database).epoch())
    Control(settings, database, hot, owner="test").tick()
    raws = redis_server.client().lrange("penstock.api", 0, -1)
    assert [decode_envelope(as_bytes(raw)).message.key.doc_id for raw in raws] == ["c"]
    shown = CliRunner().invoke(command_line(), ["status", "second"]).output
    assert (
        "over the outcomes of job first, up to generation 1, where reason=context_overflow" in shown
    )
    told = json.loads(CliRunner().invoke(command_line(), ["status", "second", "--json"]).output)
    assert told["from_job"]["where"] == ["reason=context_overflow"]
    for words in (
        ["submit"],
        ["submit", "x.jsonl", "--from-job", "first"],
        ["submit", "x.jsonl", "--where", "a=1"],
    ):
        assert "give a SOURCE, or --from-job JOB" in str(
            CliRunner().invoke(command_line(), words).exception
        )
    database.close()
