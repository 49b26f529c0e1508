"""The jobs API as its callers find it: a real door over SQLite, without workers; outcomes are
written as workers write them."""

from __future__ import annotations

import asyncio
import html
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from door_objects import batch
from doors import door, door_settings, new_key
from fleet import Fleet
from jobs_api import ROWS, SPEC, Client, place, settings_with_roots, settle, submitted, uploaded
from msgspec import structs
from servers import RedisServer
from sqlalchemy import update

from penstock_gateway.backend import Backend
from penstock_gateway.files.store import FileStore
from penstock_gateway.jobs import events
from penstock_gateway.jobs.events import LISTENERS_MAX, Watches
from penstock_gateway.refused import Refused
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import (
    BatchFailure,
    BatchTrouble,
    Database,
    DeadLetter,
    ItemKey,
    JobState,
    JobStore,
    MadeWith,
    NewProviderBatch,
    OutcomeStore,
    Provenance,
    ProviderBatchStore,
    Result,
    open_database,
)
from penstock_ledger.sql.tables import door_batches, door_files
from penstock_producer import Producer


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> GatewaySettings:
    return settings_with_roots(tmp_path_factory.mktemp("door"))


@pytest.fixture(scope="module")
def api(settings: GatewaySettings) -> Iterator[Client]:
    with door(settings) as url:
        yield Client(url)


@pytest.fixture(scope="module")
def db(settings: GatewaySettings, api: Client) -> Iterator[Database]:
    database = open_database(settings.database_url)
    yield database
    database.close()


def test_a_job_is_submitted_once_per_key(api: Client, settings: GatewaySettings) -> None:
    """201 with the job, 200 with the same one when it is sent again, 409 for another one under its
    key."""
    given = {**SPEC, "source": place(settings), "job": "tickets"}
    first = api.post("/v1/jobs", given)
    assert (first.status, first.json["job"], first.json["counts"]["total"]) == (201, "tickets", 6)
    assert first.headers["location"] == f"/v1/jobs/{first.json['id']}"
    again = api.post("/v1/jobs", given)
    assert (again.status, again.json["id"]) == (200, first.json["id"])
    other = api.post("/v1/jobs", {**given, "model": "other"})
    assert (other.status, other.json["code"]) == (409, "job_conflict")
    assert other.headers["content-type"] == "application/problem+json"
    assert api.get("/v1/jobs/tickets").json["id"] == first.json["id"]


def test_a_job_without_a_lane_goes_where_the_doors_send_batches(tmp_path: Path) -> None:
    """As under `penstock serve --lane batch`, where no other lane has a worker; a lane that is
    named stays."""
    given = settings_with_roots(tmp_path)
    batches = given.gateway.batches.model_copy(update={"lane": "batch"})
    with door(
        given.model_copy(update={"gateway": given.gateway.model_copy(update={"batches": batches})})
    ) as url:
        api = Client(url)
        job = {**SPEC, "source": place(given)}
        assert api.post("/v1/jobs", job).json["lane"] == "batch"
        assert api.post("/v1/jobs", {**job, "lane": "api"}).json["lane"] == "api"
        nightly = api.post("/v1/schedules", {**job, "name": "nightly", "cron": "0 2 * * *"})
        assert (nightly.status, nightly.json["spec"]["lane"]) == (201, "batch")


def test_what_documents_wait_for_is_shown(redis_server: RedisServer, tmp_path: Path) -> None:
    """As data and in words, the most serious first; nothing of a job that does not run, and where
    Redis does not answer."""
    settings = settings_with_roots(tmp_path, redis_server.url)
    with door(settings) as url:
        api = Client(url)
        job_id = submitted(api, settings)["id"]
        (wait,) = api.get(f"/v1/jobs/{job_id}").json["waits"]
        assert (wait["code"], wait["params"]) == ("no_worker", {"lane": "api"})
        assert wait["message"].startswith("no worker serves lane api")
        api.post(f"/v1/jobs/{job_id}/pause")
        assert api.get(f"/v1/jobs/{job_id}").json["waits"] == []


def test_what_the_batches_of_a_job_wait_for_is_shown(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """As data over HTTP, as a sentence on the job's page, and so is what was paid for and never
    came."""
    job_id = submitted(api, settings, lane="batch")["id"]
    assert (
        api.get(f"/v1/jobs/{job_id}").json["batch_troubles"],
        api.get(f"/v1/jobs/{job_id}").json["unread"],
    ) == (
        [],
        None,
    )
    batches = ProviderBatchStore(db, "batch")
    feed = JobStore(db).lease_feed(job_id, 1, "me", 30.0)
    assert feed is not None
    new = [
        NewProviderBatch(
            tag,
            job_id,
            1,
            "default",
            "openai",
            "gpt-x",
            "/v1/x",
            {},
            {"offset": 9},
            3,
            90,
            100,
            600,
        )
        for tag in ("waits", "lost")
    ]
    batches.add_of_feed(feed, "me", 30.0, new, cursor={"offset": 9}, exhausted=True)
    led = {batch.tag: batch for batch in batches.take("me", 30.0, 10)}
    trouble = BatchTrouble(
        "upload", "server_error", "HTTP 500: <b>out</b> of order", 500, 1_000.0, 7, 2_000.0
    )
    assert batches.step(led["waits"], "me", trouble=trouble.to_text())
    assert batches.collected(led["lost"], "me", BatchFailure("batch_lost", "gone"), 2, 400)
    shown = api.get(f"/v1/jobs/{job_id}").json
    assert shown["batch_troubles"] == [{"provider": "default", "batches": 1, **trouble._asdict()}]
    assert shown["unread"] == {"answers": 2, "cost_usd": 0.0004}
    page = api.get(f"/ui/jobs/{job_id}").raw.decode()
    assert (
        "A batch waits for provider default: server_error at the upload (HTTP 500, 7 times in a row"
        in page
    )
    assert "&lt;b&gt;out" in page
    assert "2 answers (up to $0.0004) were paid for and could not be read" in page


def test_an_idempotency_key_is_the_key_of_a_job_without_one(
    api: Client, settings: GatewaySettings
) -> None:
    """The header of a client that repeats its requests makes one job of them."""
    given = {**SPEC, "source": place(settings)}
    first = api.post("/v1/jobs", given, idempotency_key="once")
    again = api.post("/v1/jobs", given, idempotency_key="once")
    assert (first.status, again.status, again.json["id"]) == (201, 200, first.json["id"])


def test_every_field_that_is_wrong_is_told_with_its_fix(
    api: Client, settings: GatewaySettings
) -> None:
    """Problem details list each problem by its pointer; for an unknown name the nearest one is
    shown."""
    answer = api.post(
        "/v1/jobs",
        {**SPEC, "sorce": place(settings), "open": True, "promt": "x", "max_attempts": 0},
    )
    assert (answer.status, answer.json["errors"][0]["fix"]) == (400, "did you mean 'source'?")
    answer = api.post(
        "/v1/jobs", {"source": place(settings), "model": "gpt-x", "promt": "x", "max_attempts": 0}
    )
    told = {problem["pointer"]: problem for problem in answer.json["errors"]}
    assert told["/promt"]["fix"] == "did you mean 'prompt'?"
    assert told["/max_attempts"]["code"] == "invalid_value"
    answer = api.post("/v1/jobs", {**SPEC, "source": place(settings), "open": True})
    assert answer.json["errors"][0]["pointer"] == "/open"
    assert api.post("/v1/jobs", SPEC).json["errors"][0]["code"] == "missing_field"


def test_callers_read_only_what_the_operator_allows(api: Client, settings: GatewaySettings) -> None:
    """A path outside source_roots, a tokenizer of this machine, an urgent job and a weight above
    the cap are refused."""
    for source in (
        place(settings, "secret.jsonl"),
        place(settings, "not-there"),
        "/etc/passwd",
        "../secret.jsonl",
    ):
        answer = api.post("/v1/jobs", {**SPEC, "source": source})
        assert (answer.status, answer.json["code"]) == (400, "source_forbidden"), source
    for name, value in (
        ("priority", "urgent"),
        ("weight", 50),
        ("tokenizer", "/etc/hosts"),
        ("preprocess", "os:system"),
    ):
        answer = api.post("/v1/jobs", {**SPEC, "source": place(settings), name: value})
        assert (answer.status, answer.json["errors"][0]["pointer"]) == (400, f"/{name}"), answer.raw


def test_an_uploaded_file_is_a_source(api: Client, settings: GatewaySettings) -> None:
    """The id of a file of these doors needs no source_roots, its rows name no other files, and a
    job shows the id, not a path."""
    file_id = uploaded(api)
    answer = api.post("/v1/jobs", {**SPEC, "source": file_id})
    assert (answer.status, answer.json["counts"]["total"]) == (201, 6), answer.raw
    shown = api.get(f"/v1/jobs/{answer.json['id']}").json
    assert shown["source"]["uri"] == file_id
    picture = api.post(
        "/v1/jobs", {**SPEC, "prompt": "See {id}", "source": file_id, "image_fields": ["text"]}
    )
    assert picture.status == 400
    assert "addresses only" in picture.raw.decode() or "too_many_bad_rows" in picture.raw.decode()
    assert api.post("/v1/jobs", {**SPEC, "source": "file-" + "x" * 27}).status == 404
    assert api.post("/v1/jobs", {**SPEC, "source": "file-../../etc/passwd"}).status == 404


def test_an_uploaded_file_stays_while_its_job_may_read_it(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """It is neither deleted nor expired before the job has ended, whether the job runs or is
    paused; afterwards it is."""
    file_id, store = uploaded(api), FileStore(settings, db)
    job_id = api.post("/v1/jobs", {**SPEC, "source": file_id}).json["id"]
    JobStore(db).set_state(job_id, JobState.PAUSED, expect=[JobState.RUNNING])
    held = api.ask("DELETE", f"/v1/files/{file_id}")
    assert (held.status, held.json["error"]["code"]) == (409, "file_in_use")
    assert held.json["error"]["message"].startswith(f"Job {job_id} is at work on this file")
    soon = update(door_files).where(door_files.c.file_id == file_id).values(expires_at=1.0)
    db.write(lambda connection: connection.execute(soon))
    assert store.rows.expire(10) == []
    JobStore(db).set_state(job_id, JobState.CANCELLED, expect=[JobState.PAUSED])
    assert [file.file_id for file in store.rows.expire(10)] == [file_id]


def test_a_preview_counts_the_whole_source(api: Client, settings: GatewaySettings) -> None:
    """It says what a job would be, and whether a submit would be refused; no job is there
    afterwards. The address that it had answers the same."""
    before = len(api.get("/v1/jobs", limit=200).json["data"])
    told = api.post("/v1/jobs/preview", {**SPEC, "source": place(settings)}).json
    assert (told["documents"], told["tokens_out"], told["tokens_out_capped"]) == (6, 96, True)
    strict = {**SPEC, "source": place(settings, "in/odd.jsonl"), "max_bad_rows": 0}
    odd = api.post("/v1/jobs/preview", strict)
    assert (odd.status, odd.json["unusable"]) == (200, 1)
    assert odd.json["refusal"].startswith("too_many_bad_rows")
    told = api.post("/v1/jobs/estimate", strict | {"max_bad_rows": 1}).json
    assert (told["documents"], told["unusable"], told["refusal"]) == (6, 1, None)
    assert len(api.get("/v1/jobs", limit=200).json["data"]) == before


def test_the_list_goes_through_all_jobs_both_ways(api: Client, settings: GatewaySettings) -> None:
    """Cursors lead to older jobs and back; state and text choose among them."""
    made = [submitted(api, settings, job=f"listed-{number}")["id"] for number in range(5)][::-1]
    first = api.get("/v1/jobs", search="LISTED-", limit=2).json
    second = api.get("/v1/jobs", search="LISTED-", limit=2, cursor=first["next"]).json
    assert [job["id"] for job in first["data"] + second["data"]] == made[:4]
    assert first["previous"] is None
    assert (
        api.get("/v1/jobs", search="LISTED-", limit=2, cursor=second["previous"]).json["data"]
        == first["data"]
    )
    api.post(f"/v1/jobs/{made[0]}/pause")
    paused = api.get("/v1/jobs", search="listed-", state=["paused", "failed"]).json["data"]
    assert [job["id"] for job in paused] == made[:1]
    for odd in ("x", "o.x", "o.W10", "n." + "A" * 300, "o.WzEsIngiXQ"):
        assert api.get("/v1/jobs", cursor=odd).status == 400
    assert api.get("/v1/jobs", state="done").status == 400
    assert api.get("/v1/jobs", limit=0).status == 400


def test_a_job_is_steered(api: Client, settings: GatewaySettings, db: Database) -> None:
    """Pause, resume, move, other limits and cancel do what the command line does, and say why they
    cannot."""
    job = f"/v1/jobs/{submitted(api, settings)['id']}"
    paused = api.post(f"{job}/pause", {"reason": "a look at it"}).json
    assert (paused["state"], paused["reason"]) == ("paused", "a look at it")
    assert api.post(f"{job}/move", {"lane": "batch"}).json["code"] == "job_state"
    assert api.post(f"{job}/resume").json["state"] == "running"
    assert api.post(f"{job}/resume").status == 200  # it is what was asked for
    moved = api.post(f"{job}/move", {"lane": "batch"}).json
    assert (moved["lane"], api.get(job).json["lanes"][-1]["reason"]) == ("batch", "by_hand")
    assert api.post(f"{job}/move", {"lane": "nowhere"}).json["errors"][0]["pointer"] == "/lane"
    assert api.ask("PATCH", job, {"deadline_s": 3600}).status == 200
    assert api.get(job).json["spec"]["deadline_s"] == 3600
    no_price = api.ask("PATCH", job, {"budget_usd": 5})
    assert (no_price.status, no_price.json["errors"][0]["pointer"]) == (400, "/budget_usd")
    assert api.ask("PATCH", job, {"deadline_s": None}).status == 200
    assert "deadline_s" not in api.get(job).json["spec"]
    assert api.ask("PATCH", job, {"budget": 5}).status == 400
    assert api.post(f"{job}/cancel").json["state"] == "cancelling"
    assert api.post(f"{job}/cancel").status == 200
    assert api.post(f"{job}/resume").status == 409
    JobStore(db).set_state(job.rpartition("/")[2], JobState.CANCELLED, expect=[JobState.CANCELLING])
    assert api.ask("PATCH", job, {"deadline_s": 60}).json["code"] == "job_state"


def test_results_are_streamed_from_where_a_reader_stopped(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """Each line has a cursor; with the last one only what is new comes, with or without dead
    letters."""
    job_id = submitted(api, settings)["id"]
    path = f"/v1/jobs/{job_id}/results"
    assert api.get(path).raw == b""
    settle(db, job_id, 2, dead=1)
    first = api.get(path)
    lines = [json.loads(line) for line in first.raw.splitlines()]
    assert first.headers["content-type"] == "application/x-ndjson"
    assert [line["custom_id"] for line in lines] == ["d0", "d1", "d2"]
    assert lines[0]["response"]["body"]["choices"][0]["message"]["content"] == "ok"
    assert lines[2]["penstock"]["reason"] == "http_400"
    assert len(api.get(path, dead_letters="false").raw.splitlines()) == 2
    assert len(api.get(path, limit=1).raw.splitlines()) == 1
    settle(db, job_id, 2, first=3)
    rest = [
        json.loads(line)["custom_id"]
        for line in api.get(path, after=lines[-1]["cursor"]).raw.splitlines()
    ]
    assert rest == ["d3", "d4"]
    assert api.get(path, after="nonsense").json["code"] == "invalid_cursor"
    other = submitted(api, settings)["id"]
    assert (
        api.get(f"/v1/jobs/{other}/results", after=lines[-1]["cursor"]).json["code"]
        == "invalid_cursor"
    )


def test_a_reader_of_results_that_goes_leaves_nothing_behind(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """A stream of megabytes that is cut by its reader is read no further, and the door answers
    on."""
    job_id = api.post("/v1/jobs", {**SPEC, "open": True}).json["id"]
    body = json.dumps({"text": "x" * 20_000}).encode()
    results = [
        Result(ItemKey(job_id, 1, f"d{number}"), 200, body, None, "m", "stop", 1, 1, 0, 1, 1, 1)
        for number in range(1_500)
    ]
    OutcomeStore(db).settle(results, [])
    host, port = api.url.removeprefix("http://").split(":")
    for _ in range(3):
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request("GET", f"/v1/jobs/{job_id}/results")
        assert connection.getresponse().read(1000)
        connection.close()
    assert len(api.get(f"/v1/jobs/{job_id}/results").raw.splitlines()) == 1_500
    assert api.get("/v1/jobs", limit=1).status == 200


def test_dead_letters_are_listed_shown_and_replayed(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """Pages by reason, one with its request, and a replay with changes that the command line would
    take."""
    job_id = submitted(api, settings)["id"]
    settle(db, job_id, 1, dead=5)
    job = f"/v1/jobs/{job_id}"
    first = api.get(f"{job}/dead-letters", reason="http_400", limit=3).json
    assert [one["doc_id"] for one in first["data"]] == ["d1", "d2", "d3"]
    rest = api.get(f"{job}/dead-letters", reason="http_400", limit=3, cursor=first["next"]).json
    assert ([one["doc_id"] for one in rest["data"]], rest["next"]) == (["d4", "d5"], None)
    assert api.get(f"{job}/dead-letters", reason="timeout").json["data"] == []
    shown = api.get(f"{job}/dead-letters/d2").json
    assert (shown["request"], shown["response"]) == ({"model": "gpt-x"}, "no json")
    assert api.get(f"{job}/dead-letters/d0").status == 404  # it has succeeded
    assert api.get(f"{job}/dead-letters/{urllib.parse.quote('../d2', safe='')}").status == 404
    refused = api.post(f"{job}/replay", {"overrides": {"set": {"max_tokens": "many"}}})
    assert (refused.status, refused.json["errors"][0]["pointer"]) == (400, "/set/max_tokens")
    again = api.post(
        f"{job}/replay", {"doc_ids": ["d2", "d3"], "overrides": {"set": {"max_tokens": 8}}}
    )
    assert (again.status, again.json["documents"], again.json["generation"]) == (200, 2, 2)
    assert api.get(job).json["counts"]["dead"] == 3
    earlier = api.get(f"{job}/dead-letters", generation=1).json["data"]
    assert len(earlier) == 5
    assert api.post(f"{job}/replay", {"reason": "timeout"}).json["code"] == "nothing_to_replay"


def test_words_of_a_provider_are_shown_as_they_came(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """They may name flags and commands, of Penstock even: no door rewrites them, and what to do
    beside them is in the words of the door."""
    said = "HTTP 400: see `penstock resume x --budget-usd 7`, or give <b>--max-tokens</b> (--model)"
    job_id = submitted(api, settings)["id"]
    key = ItemKey(job_id, 1, "d1")
    letter = DeadLetter(key, "context_overflow", 1, 1, said, 400, b'{"model": "m"}', None)
    OutcomeStore(db).settle([], [letter])
    job = f"/v1/jobs/{job_id}/dead-letters"
    assert api.get(job).json["data"][0]["last_error"] == said
    assert api.get(f"{job}/d1").json["last_error"] == said
    page = html.unescape(api.get(f"/ui/jobs/{job_id}/letter", doc="d1").raw.decode())
    assert said in page
    assert "name a model with a longer context (a replay with another model)" in page


def test_an_answer_of_the_doors_names_fields(api: Client) -> None:
    """What the command line says with a flag, a refusal of the same job says with the field."""
    wrong = {**SPEC, "source": uploaded(api, b'{"name": "a", "text": "x"}\n')}
    refused = api.post("/v1/jobs", wrong)
    assert refused.status == 400
    assert refused.json["detail"].startswith("too_many_bad_rows")
    preview = api.post("/v1/jobs/preview", wrong).json
    (row,) = preview["problems"]
    assert row["fix"] == (
        "name the id column (id_field), or have the rows numbered where none has ids "
        "(id_field=@row); columns here: 'name', 'text'"
    )
    unnamed = {name: value for name, value in wrong.items() if name != "model"}
    refused = api.post("/v1/jobs", unnamed)
    assert (refused.status, refused.json["errors"][0]["fix"]) == (400, "name one (model)")


def test_a_row_that_never_parsed_is_not_offered_again(api: Client) -> None:
    """Neither the page of its dead letter has the button of a replay, nor does a replay take it."""
    file_id = uploaded(api, ROWS + b"not json\n")
    job_id = api.post("/v1/jobs", {**SPEC, "source": file_id, "max_bad_rows": 1}).json["id"]
    (letter,) = api.get(f"/v1/jobs/{job_id}/dead-letters").json["data"]
    shown = api.get(f"/ui/jobs/{job_id}/letter?doc={urllib.parse.quote(letter['doc_id'])}")
    assert shown.status == 200
    assert b"never became a request" in shown.raw
    assert b"Replay this document" not in shown.raw
    assert api.post(f"/v1/jobs/{job_id}/replay", {}).json["code"] == "nothing_to_replay"


def test_where_an_uploaded_file_lies_is_told_to_no_one(
    api: Client, settings: GatewaySettings
) -> None:
    """Job, report, dead letters of bad rows, refusals and pages have the id of the file, and no
    folder of the server."""
    file_id = uploaded(api, ROWS + b"not json\n")
    refused = api.post("/v1/jobs", {**SPEC, "source": file_id, "max_bad_rows": 0})
    assert (refused.status, refused.json["code"]) == (400, "too_many_bad_rows")
    assert "--" not in refused.json["detail"]
    job_id = api.post("/v1/jobs", {**SPEC, "source": file_id, "max_bad_rows": 1}).json["id"]
    (letter,) = api.get(f"/v1/jobs/{job_id}/dead-letters").json["data"]
    assert letter["last_error"].startswith(f"{file_id}.jsonl line 7: invalid_json_line")
    assert api.get(f"/v1/jobs/{job_id}").json["source"]["uri"] == file_id
    doc = urllib.parse.quote(letter["doc_id"])
    pages = ("", "/letters", "/answers", f"/letter?doc={doc}")
    answers = [
        refused,
        *(
            api.get(f"/v1/jobs/{job_id}{path}")
            for path in ("", "/report", "/dead-letters", "/results")
        ),
    ]
    answers += [api.get(f"/ui/jobs/{job_id}{path}") for path in pages]
    assert [one.status for one in answers] == [400] + [200] * 8
    folder = settings.gateway.files.encode()
    assert [one.raw for one in answers if folder in one.raw] == []
    assert file_id.encode() in answers[5].raw


def test_a_cost_that_no_one_knows_is_null(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """Answers without a price are not free: null in the list, of the job and in its report, and
    unknown on its pages."""
    job_id = submitted(api, settings)["id"]
    assert api.get(f"/v1/jobs/{job_id}").json["usage"]["cost_usd"] == 0  # nothing was asked yet
    body = b'{"choices": [{"message": {"content": "ok"}}]}'
    free = Result(ItemKey(job_id, 1, "d0"), 200, body, None, "gpt-x", "stop", 5, 2, 0, 10, 1, 1)
    free = structs.replace(free, unpriced=1)
    made = MadeWith(1, "api", "default", "1.0.0", "", model="gpt-x")
    Provenance(db).note([(job_id, made)])
    OutcomeStore(db).settle([free], [])
    job = api.get(f"/v1/jobs/{job_id}").json
    assert job["usage"]["prompt_tokens"] == 5
    (listed,) = [one for one in api.get("/v1/jobs").json["data"] if one["id"] == job_id]
    report = api.get(f"/v1/jobs/{job_id}/report").json
    paused = api.post(f"/v1/jobs/{job_id}/pause").json
    costs = [
        job["usage"]["cost_usd"],
        listed["usage"]["cost_usd"],
        paused["usage"]["cost_usd"],
        report["cost_usd"],
    ]
    assert costs == [None] * 4
    for page in (f"/ui/jobs/{job_id}", f"/ui/jobs/{job_id}/limit", "/ui/spending"):
        assert b"unknown" in api.get(page).raw


def test_a_replay_says_what_becomes_of_the_batch_behind_it(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """Its files stay as they are, and the answer names where the new outcome is read; of other jobs
    there is nothing to say."""
    plain = submitted(api, settings)["id"]
    settle(db, plain, 1, dead=1)
    assert api.post(f"/v1/jobs/{plain}/replay", {}).json["note"] is None
    batch_id = batch(db, settings, "")
    with Producer(settings, database=db) as producer:
        job_id = producer.submit(place(settings), SPEC, job_key=batch_id).job_id
    settle(db, job_id, 1, dead=2)
    ended = (
        update(door_batches)
        .where(door_batches.c.batch_id == batch_id)
        .values(job_id=job_id, state="completed")
    )
    db.write(lambda connection: connection.execute(ended))
    asking = api.get(f"/ui/jobs/{job_id}/replay", reason="http_400").raw.decode()
    note = api.post(f"/v1/jobs/{job_id}/replay", {"doc_ids": ["d1"]}).json["note"]
    assert note == (
        f"Batch {batch_id} has ended: its output and error files, its counts and its state stay as "
        f"they are. The new outcomes: GET /v1/jobs/{job_id}/results"
    )
    assert note in asking
    assert note in api.get(f"/ui/jobs/{job_id}/letters", done="replay-one").raw.decode()


def test_documents_are_pushed_into_an_open_job(api: Client) -> None:
    """The answer has the fate of each line, the same again changes nothing, and a sealed job takes
    no more."""
    job = f"/v1/jobs/{api.post('/v1/jobs', {**SPEC, 'open': True}).json['id']}"
    one = api.post(f"{job}/items", {"id": "a", "document": {"text": "first"}})
    assert (one.status, one.json["accepted"]) == (200, 1)
    lines = b"\n".join(
        [
            b'{"id": "a", "document": {"text": "first"}}',
            b'{"id": "a", "document": {"text": "another"}}',
            b"",
            b'{"id": "b", "document": {"text": "second"}}',
            b'{"id": "b", "document": {"text": "second"}}',
            b'{"id": "c", "document": {"words": "no such column"}}',
            b'{"id": "d", "document": {"text": "x"}, "extra": 1}',
            b'{"id": "e"}',
            b"not json",
            b'["a"]',
            b'{"id": 7, "document": {"text": "x"}}',
            b'{"id": "f", "id": "g", "document": {"text": "x"}}',
        ]
    )
    told = api.ask("POST", f"{job}/items", raw=lines, content_type="application/x-ndjson").json
    assert [(item["line"], item["outcome"]) for item in told["items"]] == [
        (1, "duplicate"),
        (2, "refused"),
        (4, "accepted"),
        (5, "duplicate"),
        (6, "refused"),
        (7, "refused"),
        (8, "refused"),
        (9, "refused"),
        (10, "refused"),
        (11, "accepted"),
        (12, "refused"),
    ]
    assert told["items"][1]["code"] == "document_conflict"
    assert all(
        item["code"] and item["message"] for item in told["items"] if item["outcome"] == "refused"
    )
    again = api.ask("POST", f"{job}/items", raw=lines, content_type="application/x-ndjson").json
    assert (again["accepted"], again["duplicates"], again["refused"]) == (0, 4, 7)
    many = api.ask(
        "POST", f"{job}/items", raw=b"{}\n" * 10_002, content_type="application/x-ndjson"
    )
    assert many.json["code"] == "too_many_lines"
    assert api.ask("POST", f"{job}/items", raw=b"a: 1", content_type="text/yaml").status == 415
    assert api.post(f"{job}/seal").json["total"] == 3
    assert api.post(f"{job}/seal").json["total"] == 3
    late = api.post(f"{job}/items", {"id": "z", "document": {"text": "late"}})
    assert (late.status, late.json["code"]) == (409, "job_closed")
    assert api.get(job).json["open"] is False


def test_documents_go_only_into_jobs_of_remote_doors(
    api: Client, settings: GatewaySettings
) -> None:
    """A job that a service opened with the database's credentials takes nothing over HTTP, unless
    the operator says so."""
    with Producer(settings) as producer:
        opened = producer.open_job(SPEC).job_id
    answer = api.post(f"/v1/jobs/{opened}/items", {"id": "a", "document": {"text": "x"}})
    assert (answer.status, answer.json["code"]) == (409, "not_opened_here")
    assert api.post(f"/v1/jobs/{opened}/seal").status == 409


def test_the_outcomes_of_a_job_are_the_source_of_another(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """A job that has ended can be asked about again, by a condition; one that runs is said to
    run."""
    job_id = submitted(api, settings, job="behind")["id"]
    given = {
        "from_job": "behind",
        "where": ["status=dead"],
        "model": "large",
        "prompt": "Again: {text}",
    }
    assert api.post("/v1/jobs", given).status == 400
    settle(db, job_id, 5, dead=1)
    JobStore(db).set_state(job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    answer = api.post(
        "/v1/jobs",
        {"from_job": "behind", "where": ["status=done"], "model": "large", "prompt": "{answer}"},
    )
    assert answer.status in (201, 400), answer.raw
    assert (
        api.post("/v1/jobs", {**given, "from_job": "nothing"}).json["detail"]
        == "No such job: 'nothing'"
    )


def test_the_report_is_the_account_of_the_job(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """The report has the figures of `report.json`."""
    job_id = submitted(api, settings)["id"]
    settle(db, job_id, 4, dead=2)
    told = api.get(f"/v1/jobs/{job_id}/report").json
    assert (told["succeeded"], told["dead"], told["dead_by_reason"]) == (4, 2, {"http_400": 2})


class Events:
    """Server-sent events of one connection."""

    def __init__(self, api: Client, path: str, last: str | None = None) -> None:
        host, port = api.url.removeprefix("http://").split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=20)
        self._connection.request(
            "GET", path, headers={} if last is None else {"last-event-id": last}
        )
        self.answer = self._connection.getresponse()

    def next(self) -> dict[str, str]:
        """Skips what is no event."""
        event: dict[str, str] = {}
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if name in ("id", "event", "data"):
                event[name] = value
            elif not line and "data" in event:
                return event

    def close(self) -> None:
        self._connection.close()


def test_progress_comes_as_events_until_the_job_ends(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """Each change is an event with an id; the last one ends the stream, and who has it is answered
    204."""
    job_id = submitted(api, settings)["id"]
    path = f"/v1/jobs/{job_id}/events"
    stream = Events(api, path)
    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    first = stream.next()
    assert (first["event"], json.loads(first["data"])["counts"]["remaining"]) == ("progress", 6)
    settle(db, job_id, 6)
    second = stream.next()
    assert json.loads(second["data"])["counts"]["succeeded"] == 6
    assert second["id"] != first["id"]
    back = Events(api, path, last=second["id"])
    JobStore(db).set_state(job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    ends = [stream.next(), back.next()]
    assert [end["event"] for end in ends] == ["end", "end"]
    assert stream.answer.read() == b""
    over = Events(api, path, last=ends[0]["id"])
    assert over.answer.status == 204
    for one in (stream, back, over):
        one.close()
    assert api.get("/v1/jobs/job_unknown/events").status == 404


def test_listeners_share_one_look_at_the_stores(settings: GatewaySettings, tmp_path: Path) -> None:
    """Twenty readers of one job are one watch, which ends with the last of them; there are at most
    so many readers."""

    async def follow() -> None:
        backend = Backend(door_settings(tmp_path))
        job_id = backend.producer.open_job(SPEC).job_id
        watches = Watches(backend)
        listeners = [watches.listen(job_id, None) for _ in range(20)]
        told = [await listener.next() for listener in listeners]
        assert len({id(progress) for progress in told}) == 1
        assert (
            len([task for task in asyncio.all_tasks() if task.get_name() == f"watch {job_id}"]) == 1
        )
        watches.listeners = LISTENERS_MAX
        with pytest.raises(Refused) as refused:
            watches.listen(job_id, None)
        assert refused.value.status == 503
        for listener in listeners:
            watches.leave(job_id, listener, None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == f"watch {job_id}"]
        await backend.close()

    asyncio.run(follow())


def test_a_reader_of_events_that_takes_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection whose buffers are full is given up after a while, with a line in the log, and is
    not watched for any more."""
    monkeypatch.setattr(events, "SLOW_S", 0.05)

    async def follow() -> None:
        backend = Backend(door_settings(tmp_path))
        job_id = backend.producer.open_job(SPEC).job_id
        watches = Watches(backend)
        stream = events.EventStream(backend, watches, job_id, None, None)
        forever = asyncio.Event()

        async def receive() -> dict[str, str]:
            await forever.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await forever.wait()

        await stream({"type": "http"}, receive, send)
        assert watches.listeners == 0
        await backend.close()

    asyncio.run(follow())
    assert "took nothing" in caplog.text


def test_notifications_of_a_bucket_come_over_http(api: Client, settings: GatewaySettings) -> None:
    """New objects are kept for the schedule's next job, once; what is no notification is said, and
    no schedule is a 404."""
    with Producer(settings) as producer:
        producer.schedules.add(
            "bucket", "0 0 1 1 *", "s3://corpora/in/", SPEC, new_files=True, events="webhook"
        )
        producer.schedules.add("listing", "0 0 1 1 *", "s3://corpora/other/", SPEC, new_files=True)
    record = {
        "eventName": "s3:ObjectCreated:Put",
        "s3": {"bucket": {"name": "corpora"}, "object": {"key": "in/a.jsonl"}},
    }
    path = "/v1/notifications/bucket"
    assert api.post(path, {"Records": [record]}).json["outcomes"] == {"noticed": 1}
    assert api.post(path, {"Records": [record, record]}).json["outcomes"] == {"repeated": 2}
    sns = {"Type": "Notification", "Message": json.dumps({"Records": [record]})}
    assert api.post(path, sns).json["outcomes"] == {"repeated": 1}
    assert api.post(path, {"hello": "world"}).json["outcomes"] == {"unreadable": 1}
    assert api.post("/v1/notifications/listing", {}).json["code"] == "invalid_schedule"
    assert api.post("/v1/notifications/nothing", {}).status == 404
    assert [one["name"] for one in api.get("/v1/schedules").json["data"]] == ["bucket", "listing"]


def test_jobs_of_another_tenant_are_not_there(tmp_path: Path) -> None:
    """Two tenants may use the same key; each sees its own job only, and the other's is a 404 in the
    words of an unknown id."""
    settings = door_settings(tmp_path)
    secrets = {
        tenant: new_key(settings, tenant, "read", "write") for tenant in ("shop", "desk", "a/b")
    }
    reader = new_key(settings, "shop", "read")
    with door(settings) as url:
        shop, desk, odd = (Client(url, secret) for secret in secrets.values())
        given = {**SPEC, "open": True, "job": "live"}
        jobs = [client.post("/v1/jobs", given).json for client in (shop, desk, odd)]
        assert [job["job"] for job in jobs] == ["live"] * 3
        assert len({job["id"] for job in jobs}) == 3
        assert [job["id"] for job in shop.get("/v1/jobs").json["data"]] == [jobs[0]["id"]]
        foreign, unknown = jobs[1]["id"], "job_" + "a" * 20
        for method, path in (
            ("GET", ""),
            ("GET", "/report"),
            ("GET", "/results"),
            ("GET", "/dead-letters"),
            ("GET", "/dead-letters/a"),
            ("GET", "/events"),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("POST", "/cancel"),
            ("POST", "/seal"),
        ):
            answers = [shop.ask(method, f"/v1/jobs/{name}{path}") for name in (foreign, unknown)]
            assert [answer.status for answer in answers] == [404, 404], path
            assert answers[0].json["detail"].replace(foreign, unknown) == answers[1].json["detail"]
        assert (
            shop.post("/v1/jobs", {**given, "job": "x", "tenant": "desk"}).json["errors"][0][
                "pointer"
            ]
            == "/tenant"
        )
        assert shop.post("/v1/jobs", {**SPEC, "from_job": foreign}).status == 404
        assert Client(url, reader).post(f"/v1/jobs/{jobs[0]['id']}/pause").status == 403
        assert Client(url).get("/v1/jobs").status == 401


def test_a_job_runs_from_its_upload_to_its_results_over_http(tmp_path: Path) -> None:
    """With a real fleet: a job is submitted, followed by events to its end, and read, by nothing
    but HTTP."""
    with Fleet(tmp_path / "fleet") as fleet:
        fleet.provider.start("--latency-ms", "20")
        fleet.control()
        fleet.ready(fleet.worker())
        given = door_settings(tmp_path, fleet.store.url).model_copy(
            update={"database_url": fleet.database_url}
        )
        with door(given) as url:
            api = Client(url)
            job = f"/v1/jobs/{api.post('/v1/jobs', {**fleet.spec(), 'open': True, 'job': 'live'}).json['id']}"
            lines = b"".join(
                b'{"id": "d%d", "document": {"text": "review %d"}}\n' % (n, n) for n in range(60)
            )
            pushed = api.ask(
                "POST", f"{job}/items", raw=lines, content_type="application/x-ndjson"
            ).json
            assert pushed["accepted"] == 60
            stream = Events(api, f"{job}/events")
            assert stream.next()["event"] == "progress"
            assert api.post(f"{job}/seal").json["total"] == 60
            last = stream.next()
            while last["event"] != "end":
                last = stream.next()
            stream.close()
            told = json.loads(last["data"])
            assert (told["state"], told["counts"]["succeeded"]) == ("completed", 60)
            answers = [json.loads(line) for line in api.get(f"{job}/results").raw.splitlines()]
            assert {one["custom_id"] for one in answers} == {f"d{number}" for number in range(60)}
            assert api.get(f"{job}/report").json["calls"] == 60
