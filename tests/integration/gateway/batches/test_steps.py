"""The steps of a batch, ended at every write that they make: done again, they come to the same.

The fleet is played."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_door import as_jsonl, chat
from doors import door_settings
from sqlalchemy import update

from penstock_gateway.backend import Backend
from penstock_gateway.batches.anthropic import result_lines
from penstock_gateway.batches.finish import error_lines, never_begun
from penstock_gateway.batches.lines import Details
from penstock_gateway.batches.routes import created
from penstock_gateway.batches.specs import AskedBatch
from penstock_gateway.batches.steps import Steps
from penstock_gateway.callers.caller import OPERATOR
from penstock_gateway.files.store import FileStore, FileWriting
from penstock_gateway.refused import Refused
from penstock_gateway.settings import BatchFields
from penstock_ledger import (
    EVERYONE,
    BatchesAsked,
    Database,
    DoorBatch,
    DoorBatchState,
    DoorBatchStore,
    JobStore,
    LeasedBatch,
    NewDoorBatch,
    NewEndpoint,
    OutcomeStore,
    WebhookStore,
    Whose,
)
from penstock_ledger.model import Counts, DeadLetter, ItemKey, Job, JobState, Result
from penstock_ledger.reasons import by_hand
from penstock_ledger.sql.tables import door_batches
from penstock_producer.job.provider_facts import ProviderFacts
from penstock_producer.prices import ModelPrices

LINES = 6
ANSWER = b'{"id":"x","usage":{"prompt_tokens":3,"completion_tokens":2}}'


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """Ends the process that writes for the ``at``-th time, before that write: what stands behind
    the one before is done."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = database.write
        self.at = self.writes = 0
        self._at_work = False  # whether a door is, whose writes are counted
        monkeypatch.setattr(database, "write", self.write)
        # a process that is killed tidies nothing up
        monkeypatch.setattr(FileWriting, "discard", lambda _: None)

    def arm(self, at: int) -> None:
        self.at, self.writes = at, 0

    def step(self, backend: Backend, leased: LeasedBatch) -> bool:
        """One step of a door; False where it was its last."""
        self._at_work = True
        try:
            Steps(backend, threading.Event()).step(leased)
        except Killed:
            return False
        finally:
            self._at_work = False
        return True

    def write(self, work: Callable[[Any], Any], *, named: bool = False) -> Any:
        if not self._at_work:
            return self._write(work, named=named)
        self.writes += 1
        if self.writes == self.at:
            raise Killed
        return self._write(work, named=named)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    made = Backend(door_settings(tmp_path))
    yield made
    made.producer.close()
    made.database.close()


@pytest.fixture
def store(either: Database) -> DoorBatchStore:
    return DoorBatchStore(either)


def new_batch(backend: Backend, name: str, window_s: float = 3600.0) -> DoorBatch:
    lines = as_jsonl(chat(n) for n in range(LINES)).splitlines(keepends=True)
    file = FileStore(backend.settings, backend.database).create_from(
        lines, tenant="t1", filename="in.jsonl", purpose="batch"
    )
    assert file is not None
    new = NewDoorBatch(name, "openai", "t1", "/v1/chat/completions", file.file_id, window_s)
    return DoorBatchStore(backend.database).add(new)[0]


def one_round(backend: Backend, mortal: Mortal) -> None:
    store = DoorBatchStore(backend.database)
    for due in store.due(10):
        leased = store.lease(due, "door", 0.0)
        assert leased is not None
        mortal.step(backend, leased)


def test_tenants_take_turns_however_many_batches_one_has(store: DoorBatchStore) -> None:
    """A tenant's first batch waits for one of another's, not for all that were created before it; a
    step under way counts."""
    for name, tenant in (
        ("a1", "a"),
        ("a2", "a"),
        ("a3", "a"),
        ("b1", "b"),
        ("b2", "b"),
        ("o1", None),
    ):
        store.add(NewDoorBatch(name, "openai", tenant, "/v1/chat/completions", "file-1", 3600.0))
    assert store.due(10) == ["a1", "b1", "o1", "a2", "b2", "a3"]
    assert store.lease("a1", "door", 60.0) is not None
    assert store.due(10) == ["b1", "o1", "a2", "b2", "a3"]
    assert store.lease("b1", "door", 60.0) is not None
    assert store.due(2) == ["o1", "a2"]


def steps_until(
    backend: Backend, batch_id: str, fleet: Callable[[Job], None], mortal: Mortal
) -> DoorBatch:
    """Bring a batch to its end, in processes that may be killed; ``fleet`` plays what becomes of
    its job."""
    for _ in range(50):
        one_round(backend, mortal)
        batch = DoorBatchStore(backend.database).get(batch_id)
        assert batch is not None
        if batch.state.final:
            return batch
        if batch.job_id is not None:
            fleet(JobStore(backend.database).get(batch.job_id))
    raise AssertionError("the batch has not ended")


def settle(backend: Backend, job: Job, answered: int, end: JobState) -> None:
    keys = [ItemKey(job.job_id, 1, f"doc-{n}") for n in range(LINES)]
    results = [
        Result(key, 200, ANSWER, None, "sim", "stop", 3, 2, 0, 5, 1, 1) for key in keys[:answered]
    ]
    letters = [
        DeadLetter(key, "cancelled", 0, 0, "written off", None, b"{}", None)
        for key in keys[answered:]
    ]
    OutcomeStore(backend.database).settle(results, letters)
    JobStore(backend.database).set_state(job.job_id, end, why=job.why, expect=list(JobState))


def played(backend: Backend, *, completes: bool) -> Callable[[Job], None]:
    def fleet(job: Job) -> None:
        if job.state is JobState.CANCELLING:
            settle(backend, job, 2, JobState.CANCELLED)
        elif completes and job.state is JobState.RUNNING:
            settle(backend, job, LINES, JobState.COMPLETED)

    return fleet


@pytest.mark.parametrize("way", ["completed", "cancelled", "expired"])
def test_a_door_that_is_killed_at_any_write_goes_on(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """One job, one file of each kind, every line once, one event, whichever write of a step was the
    last of its process."""
    mortal = Mortal(backend.database, monkeypatch)
    store, files = DoorBatchStore(backend.database), FileStore(backend.settings, backend.database)
    fleet = played(backend, completes=way == "completed")
    hooks = WebhookStore(backend.database)
    hooks.add(NewEndpoint("we_1", "t1", "https://example.com/", "whsec_eA", [f"batch.{way}"]))
    for at in range(1, 40):
        batch_id = f"batch_{way}{at:02}"
        new_batch(backend, batch_id, 0.001 if way == "expired" else 3600.0)
        mortal.arm(at)
        while way == "cancelled" and store.get(batch_id).state is DoorBatchState.VALIDATING:  # type: ignore[union-attr]
            one_round(backend, mortal)
        if way == "cancelled":
            store.cancel(batch_id)
        batch = steps_until(backend, batch_id, fleet, mortal)
        if mortal.writes < at:
            assert at > 5
            return
        jobs = [job for job in JobStore(backend.database).list() if job.job_key == batch_id]
        assert (batch.state, len(jobs)) == (way, 1)
        assert [one.type for one in hooks.deliveries("we_1", 100)] == [f"batch.{way}"] * at
        written = [file for file in page_of(files) if file.filename.startswith(batch_id)]
        assert {file.file_id for file in written} == {batch.output_file_id, batch.error_file_id} - {
            None
        }
        lines = [
            json.loads(one)
            for file in written
            for one in Path(files.place(file)).read_bytes().splitlines()
        ]
        assert sorted(one["custom_id"] for one in lines) == sorted(f"doc-{n}" for n in range(LINES))
        assert len({one["id"] for one in lines}) == LINES
        done = LINES if way == "completed" else 2
        assert (batch.counts["succeeded"], batch.counts["total"]) == (done, LINES)
        assert batch.usage is not None
        assert batch.usage["total_tokens"] == 5 * done
    raise AssertionError("a batch has no end of writes")


def page_of(files: FileStore) -> Any:
    page = files.rows.page(EVERYONE, limit=1_000)
    assert page is not None
    return page.files


def read(backend: Backend, file_id: str | None) -> list[dict[str, Any]]:
    files = FileStore(backend.settings, backend.database)
    return [
        json.loads(line)
        for found in page_of(files)
        if found.file_id == file_id
        for line in Path(files.place(found)).read_bytes().splitlines()
    ]


def fails(backend: Backend) -> Callable[[Job], None]:
    """Two documents are answered and one has died when the job fails as a whole."""

    def fleet(job: Job) -> None:
        keys = [ItemKey(job.job_id, 1, f"doc-{n}") for n in range(3)]
        results = [
            Result(key, 200, ANSWER, None, "sim", "stop", 3, 2, 0, 5, 1, 1) for key in keys[:2]
        ]
        letter = DeadLetter(keys[2], "http_400", 1, 1, "no", 400, b"{}", b"{}")
        OutcomeStore(backend.database).settle(results, [letter])
        JobStore(backend.database).set_state(
            job.job_id, JobState.FAILED, why=by_hand("it changed"), expect=list(JobState)
        )

    return fleet


def test_a_job_that_failed_as_a_whole_leaves_a_line_for_each_request(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those without an outcome are in the error file with job_failed; the route /errors and the
    counts say the same."""
    new_batch(backend, "batch_failed")
    batch = steps_until(
        backend, "batch_failed", fails(backend), Mortal(backend.database, monkeypatch)
    )
    assert batch.state == "failed"
    assert batch.errors == [
        {"code": "job_failed", "line": None, "message": "it changed", "param": None}
    ]
    lines = read(backend, batch.error_file_id)
    assert [one["custom_id"] for one in read(backend, batch.output_file_id)] == ["doc-0", "doc-1"]
    assert [one["custom_id"] for one in lines] == [f"doc-{n}" for n in range(2, LINES)]
    assert [one["error"] and one["error"]["code"] for one in lines] == [None, *["job_failed"] * 3]
    assert {one["error"]["message"] for one in lines[1:]} == {"it changed"}
    assert (batch.counts["succeeded"], batch.counts["errored"], batch.counts["total"]) == (
        2,
        4,
        LINES,
    )
    job = JobStore(backend.database).get("batch_failed")
    assert [json.loads(one) for one in error_lines(backend, batch, job)] == lines
    assert [json.loads(one)["result"]["type"] for one in result_lines(backend, batch)] == [
        "succeeded",
        "succeeded",
        *["errored"] * 4,
    ]


def test_a_failed_batch_whose_file_cannot_be_read_says_so(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends once its window is over, with the lines that there are, and tells which are left
    out."""
    made = new_batch(backend, "batch_gone", 3600.0)
    play = fails(backend)

    def fleet(job: Job) -> None:
        play(job)
        (Path(backend.settings.gateway.files) / f"{made.input_file_id}.jsonl").unlink()
        over = update(door_batches).values(expires_at=1.0)
        backend.database.write(lambda connection: connection.execute(over))

    batch = steps_until(backend, "batch_gone", fleet, Mortal(backend.database, monkeypatch))
    assert [one["code"] for one in batch.errors or ()] == ["job_failed", "input_file_unreadable"]
    assert [one["custom_id"] for one in read(backend, batch.error_file_id)] == ["doc-2"]


def with_prices(backend: Backend, **batches: Any) -> Backend:
    """A price of the model `sim` alone is known."""
    provider = ProviderFacts(prices={"sim": ModelPrices(input=1.0, output=2.0)})
    gateway = backend.settings.gateway.model_copy(update={"batches": BatchFields(**batches)})
    return Backend(
        backend.settings.model_copy(update={"providers": {"default": provider}, "gateway": gateway})
    )


def test_budget_and_price_of_a_batch_are_those_of_its_one_model(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has the model that all lines name, so that its budget holds; a model without a price
    is refused at once, and several models have none."""
    priced = with_prices(backend, models="any")
    files, budget = FileStore(priced.settings, priced.database), {"penstock.budget_usd": "5"}
    mortal, asked = Mortal(priced.database, monkeypatch), []
    for names in (["sim", "sim"], ["sim", "other"], ["other"]):
        lines = as_jsonl(chat(n, model=name) for n, name in enumerate(names)).splitlines(
            keepends=True
        )
        file = files.create_from(lines, tenant=None, filename="in.jsonl", purpose="batch")
        assert file is not None
        asked.append(AskedBatch(file.file_id, "/v1/chat/completions", 3600.0, budget, None))
    batch, _, _ = created(priced, asked[0], OPERATOR, None)
    one_round(priced, mortal)
    job = JobStore(priced.database).get(batch.batch_id)
    assert (job.spec["model"], job.spec["budget_usd"]) == ("sim", 5.0)
    found = DoorBatchStore(priced.database).get(batch.batch_id)
    assert found is not None
    assert found.model == "sim"
    several, _, _ = created(priced, asked[1], OPERATOR, None)
    one_round(priced, mortal)
    ended = DoorBatchStore(priced.database).get(several.batch_id)
    assert ended is not None
    assert (ended.state, ended.model) == ("failed", None)
    assert "no price of provider 'default' is known" in (ended.errors or [{}])[0]["message"]
    with pytest.raises(Refused, match="no price of model 'other'") as refused:
        created(priced, asked[2], OPERATOR, None)
    assert (refused.value.status, refused.value.param) == (400, "metadata.penstock.budget_usd")
    priced.producer.close()
    priced.database.close()


def test_a_batch_that_is_cancelled_before_it_is_a_job_names_every_request(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error file has a line for each, with batch_cancelled, and no job is made of it."""
    new_batch(backend, "batch_early")
    DoorBatchStore(backend.database).cancel("batch_early")
    batch = steps_until(
        backend, "batch_early", lambda job: None, Mortal(backend.database, monkeypatch)
    )
    assert (batch.state, batch.job_id, batch.counts["total"]) == ("cancelled", None, LINES)
    file = FileStore(backend.settings, backend.database)
    found = next(one for one in page_of(file) if one.file_id == batch.error_file_id)
    written = Path(file.place(found)).read_bytes()
    lines = [json.loads(one) for one in written.splitlines()]
    assert [one["error"]["code"] for one in lines] == ["batch_cancelled"] * LINES
    again = [json.loads(one) for one in never_begun(backend, batch)]
    assert [one["custom_id"] for one in again] == [one["custom_id"] for one in lines], (
        "the route /errors says the same"
    )


def test_a_process_that_has_lost_its_lease_writes_nothing(store: DoorBatchStore) -> None:
    """Its fence is an old one then; and a batch that its caller has cancelled meanwhile is not
    moved on."""
    store.add(NewDoorBatch("batch_a", "openai", None, "/v1/embeddings", "file-x", 3600.0))
    first = store.lease("batch_a", "one", 0.0)
    second = store.lease("batch_a", "two", 60.0)
    assert first is not None
    assert second is not None
    assert store.lease("batch_a", "three", 60.0) is None
    assert store.due(10) == []
    assert store.move(first, DoorBatchState.FAILED) is None
    assert not store.renew(first, 60.0)
    assert store.renew(second, 60.0)
    cancelled = store.cancel("batch_a")
    assert cancelled is not None
    assert cancelled.state == "cancelling"
    assert store.move(second, DoorBatchState.IN_PROGRESS, job_id="job_x") is None
    store.release(second)
    assert store.due(10) == ["batch_a"]


def test_pages_of_batches_are_of_one_tenant(store: DoorBatchStore) -> None:
    """Newest first, after and before an id; one of another tenant is not there."""
    for n in range(4):
        tenant = "b" if n == 2 else "a"
        store.add(NewDoorBatch(f"batch_{n}", "openai", tenant, "/v1/embeddings", "file-x", 3600.0))
    theirs = Whose("a")
    first = store.page(BatchesAsked("openai", 2, theirs))
    assert first is not None
    assert ([one.batch_id for one in first.batches], first.has_more) == (
        ["batch_3", "batch_1"],
        True,
    )
    rest = store.page(BatchesAsked("openai", 2, theirs, after="batch_1"))
    assert rest is not None
    assert ([one.batch_id for one in rest.batches], rest.has_more) == (["batch_0"], False)
    newer = store.page(BatchesAsked("openai", 1, theirs, before="batch_0"))
    assert newer is not None
    assert ([one.batch_id for one in newer.batches], newer.has_more) == (["batch_1"], True)
    assert store.page(BatchesAsked("openai", 2, theirs, after="batch_2")) is None
    everyone = store.page(BatchesAsked("openai", 9, EVERYONE))
    assert everyone is not None
    assert len(everyone.batches) == 4


def test_one_malformed_answer_takes_nothing_from_the_spend_of_the_others() -> None:
    """Parity 10: tokens that were paid for are the ledger's; cached and reasoning tokens are added
    up where they can be read."""
    details = Details()
    good = b'{"usage":{"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":7}}}'
    responses = b'{"usage":{"input_tokens_details":{"cached_tokens":1},"output_tokens_details":{"reasoning_tokens":2}}}'
    odd = (
        b"<html>",
        b"{",
        b'{"usage":7}',
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":"x"}}}',
        b"[]",
    )
    for body in (good, *odd, responses):
        details.add(body)
    counts = Counts(
        succeeded=7,
        succeeded_after_retry=0,
        dead=0,
        dead_by_reason={},
        calls=7,
        prompt_tokens=50,
        completion_tokens=20,
        cost_microusd=0,
    )
    assert details.usage(counts) == {
        "input_tokens": 50,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 9},
        "total_tokens": 70,
    }
