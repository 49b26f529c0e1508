"""What is read and forgotten of jobs over HTTP: dead letters as lines, reports in every form, and
purging."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet
import pytest
from doors import door
from jobs_api import SPEC, Client, place, settings_with_roots, settle, submitted, uploaded
from sqlalchemy import insert, select, update

from penstock_gateway.middleware import new_id
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import (
    Database,
    DeadLetter,
    FeedKind,
    ItemKey,
    JobState,
    JobStore,
    NewJob,
    NewProviderBatch,
    OutcomeStore,
    ProviderBatchStore,
    Result,
    open_database,
)
from penstock_ledger.reasons import by_hand
from penstock_ledger.sql.tables import door_batches, door_files
from penstock_producer.tables import arrow
from penstock_producer.tables.reading import Reading
from penstock_producer.tables.with_source import write_table

BODY = {"model": "gpt-x", "messages": [{"role": "user", "content": "Summarise: it has not come"}]}


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


def ended(api: Client, settings: GatewaySettings, db: Database, **more: object) -> str:
    """A job whose four documents of six have succeeded, and whose two others are dead."""
    job_id = str(submitted(api, settings, **more)["id"])
    settle(db, job_id, 4, dead=2, request=json.dumps(BODY).encode())
    JobStore(db).set_state(job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    return job_id


def test_dead_letters_are_lines_that_go_on_where_a_reader_stopped(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """As `errors.jsonl` has them, by reason, a part of them, and from the cursor of the last line
    on."""
    path = f"/v1/jobs/{ended(api, settings, db)}/dead-letter-lines"
    whole = api.get(path)
    lines = [json.loads(line) for line in whole.raw.splitlines()]
    assert whole.headers["content-type"] == "application/x-ndjson"
    assert [line["custom_id"] for line in lines] == ["d4", "d5"]
    assert (lines[0]["response"]["status_code"], lines[0]["penstock"]["reason"]) == (
        400,
        "http_400",
    )
    first = json.loads(api.get(path, limit=1).raw)
    assert first == lines[0]
    assert [
        json.loads(line) for line in api.get(path, after=first["cursor"]).raw.splitlines()
    ] == lines[1:]
    assert api.get(path, reason="timeout").raw == b""
    assert api.get(path, after="nonsense").json["code"] == "invalid_cursor"
    assert api.get(path, form="csv").status == 400


def test_no_answer_of_a_provider_ends_a_stream(api: Client, db: Database) -> None:
    """One nested too deep for JSON to be written is text in its letter and no error body in a line;
    and no line names the folder of uploads."""
    job_id = api.post("/v1/jobs", {**SPEC, "source": uploaded(api)}).json["id"]
    uri = JobStore(db).get(job_id).source["uri"]
    deep = b'{"error": %b}' % (b"[" * 300 + b"]" * 300)
    error = f"{uri} line 1: refused"
    OutcomeStore(db).settle(
        [], [DeadLetter(ItemKey(job_id, 1, "d0"), "http_400", 1, 1, error, 400, b"{}", deep)]
    )
    for path in ("results", "dead-letter-lines"):
        answer = api.get(f"/v1/jobs/{job_id}/{path}")
        assert (answer.status, answer.raw.count(b"\n")) == (200, 1), answer.raw
        told = json.loads(answer.raw)["response"]["body"]["error"]["message"]
        assert (
            told == error.replace(uri, api.get(f"/v1/jobs/{job_id}").json["source"]["uri"]) != error
        )
    assert api.get(f"/v1/jobs/{job_id}/dead-letters/d0").json["response"] == deep.decode()


def test_dead_letters_as_requests_are_submitted_again(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """Lines that were never a request are left out; what is uploaded of the others is a job of the
    same requests."""
    job_id = ended(api, settings, db)
    never = DeadLetter(
        ItemKey(job_id, 1, "line-9"), "invalid_json_line", 1, 0, "no JSON", None, b"", None, 9
    )
    OutcomeStore(db).settle([], [never])
    answer = api.get(f"/v1/jobs/{job_id}/dead-letter-lines", form="requests")
    lines = [json.loads(line) for line in answer.raw.splitlines()]
    assert [(line["custom_id"], line["url"], line["body"]) for line in lines] == [
        (name, "/v1/chat/completions", BODY) for name in ("d4", "d5")
    ]
    rest = api.get(
        f"/v1/jobs/{job_id}/dead-letter-lines", form="requests", after=lines[0]["cursor"]
    )
    assert [json.loads(line) for line in rest.raw.splitlines()] == lines[1:]
    again = api.post("/v1/jobs", {"source": uploaded(api, answer.raw.replace(b"gpt-x", b"gpt-y"))})
    assert (again.status, again.json["counts"]["total"]) == (201, 2), again.raw


@pytest.mark.parametrize(
    ("asked", "accept", "kind", "begin"),
    [
        (None, "", "application/json", b"{"),
        (None, "image/png", "application/json", b"{"),
        (None, "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "text/html", b"<!doctype html>"),
        (None, "text/html;q=0.4, text/markdown;q=0.5", "text/markdown", b"# Report of job"),
        ("text", "text/html", "text/plain", b"66.7 % succeeded"),
    ],
)
def test_a_report_comes_in_the_form_that_is_asked_for(
    api: Client,
    settings: GatewaySettings,
    db: Database,
    asked: str | None,
    accept: str,
    kind: str,
    begin: bytes,
) -> None:
    """By ?format=, else by Accept, else JSON. A page runs nothing, whatever it holds."""
    path = f"/v1/jobs/{ended(api, settings, db)}/report"
    answer = api.ask("GET", path if asked is None else f"{path}?format={asked}", accept=accept)
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
    assert answer.raw.startswith(begin), answer.raw[:80]
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert api.get(path, format="pdf").status == 400


def test_a_job_that_has_ended_is_purged(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """Its outcomes and the files of its answers go, what its caller uploaded stays, and its key is
    free again."""
    file_id = uploaded(api)
    job_id = str(
        api.post(
            "/v1/jobs", {"source": file_id, "prompt": "{text}", "model": "m", "job": "old"}
        ).json["id"]
    )
    running = api.ask("DELETE", "/v1/jobs/old")
    assert (running.status, running.json["code"]) == (409, "job_state")
    settle(db, job_id, 4, dead=2)
    JobStore(db).set_state(job_id, JobState.COMPLETED, expect=[JobState.RUNNING])
    answers = new_id("file")
    row = {
        "file_id": answers,
        "filename": "a.jsonl",
        "purpose": "batch_output",
        "bytes": 3,
        "sha256": "0" * 64,
        "place": answers,
        "created_at": 1.0,
        "job_id": job_id,
    }
    db.write(lambda connection: connection.execute(insert(door_files).values(row)))
    purged = api.ask("DELETE", "/v1/jobs/old")
    assert (purged.status, purged.json["id"], purged.json["outcomes"]) == (200, job_id, 6)
    assert (
        api.ask("DELETE", "/v1/jobs/old").status
        == api.get(f"/v1/jobs/{job_id}/results").status
        == 404
    )
    assert api.get(f"/v1/files/{file_id}").status == 200
    assert api.get(f"/v1/files/{answers}").status == 404
    assert (
        api.post(
            "/v1/jobs", {"source": file_id, "prompt": "{text}", "model": "n", "job": "old"}
        ).status
        == 201
    )


def test_what_is_still_needed_is_not_purged(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """A job whose outcomes another one reads, or a batch is written from, or that has batches at a
    provider, stays."""
    job_id = ended(api, settings, db)
    given = {"from_job": job_id, "where": ["status=dead"], "model": "large"}
    reader = api.post("/v1/jobs", given).json["id"]
    needed = api.ask("DELETE", f"/v1/jobs/{job_id}")
    assert (needed.status, needed.json["code"], reader in needed.json["detail"]) == (
        409,
        "job_needed",
        True,
    )
    JobStore(db).set_state(reader, JobState.CANCELLED, expect=[JobState.RUNNING])
    batch = {
        "batch_id": new_id("batch"),
        "kind": "openai",
        "endpoint": "/v1/x",
        "window_s": 60.0,
        "state": "completed",
        "job_id": job_id,
        "input_file_id": "file-x",
        "counts": "{}",
        "created_at": 1.0,
        "expires_at": 9e9,
        "fence": 0,
        "owner": "a test",
        "lease_until": 9e9,
    }
    db.write(lambda connection: connection.execute(insert(door_batches).values(batch)))
    mine = update(door_batches).where(door_batches.c.batch_id == batch["batch_id"])
    db.write(lambda connection: connection.execute(mine.values(state="finalizing")))
    assert str(batch["batch_id"]) in api.ask("DELETE", f"/v1/jobs/{job_id}").json["detail"]
    db.write(lambda connection: connection.execute(mine.values(state="completed")))
    assert api.ask("DELETE", f"/v1/jobs/{job_id}").status == 200
    kept = select(door_batches.c.batch_id).where(door_batches.c.job_id == job_id)
    assert db.read(lambda connection: connection.execute(kept).scalar()) == batch["batch_id"]


ODD: Final = (
    "plain",
    'say "hi", then\r\nleave',
    "=HYPERLINK(1)",
    "-1+1",
    "",
    "snow \u2603",
    "nul \x01",
)


def odd_results(db: Database, job_id: str) -> None:
    """A result for each odd text, and a dead letter."""
    bodies = [json.dumps({"choices": [{"message": {"content": text}}]}).encode() for text in ODD]
    keys = [ItemKey(job_id, 1, f"d,{number}") for number in range(len(ODD))]
    results = [
        Result(key, 200, body, None, "m", "stop", 1, 1, 0, 1, 1, 1)
        for key, body in zip(keys, bodies, strict=True)
    ]
    letter = DeadLetter(ItemKey(job_id, 1, "dead"), "bad_request", 1, 1, "no", 400, b"{}", b"no")
    OutcomeStore(db).settle(results, [letter])


@pytest.mark.parametrize("escape", [False, True])
def test_results_as_csv_are_those_of_the_command_line(
    api: Client, db: Database, tmp_path: Path, escape: bool
) -> None:
    """The same bytes, odd texts and formulas included, with the job's key as the file's name."""
    made = api.post("/v1/jobs", {**SPEC, "open": True, "job": f"csv {escape}"}).json
    odd_results(db, made["id"])
    answer = api.get(
        f"/v1/jobs/{made['id']}/results",
        form="csv",
        **({"escape_formulas": "true"} if escape else {}),
    )
    assert (answer.status, answer.headers["content-type"]) == (
        200,
        "text/csv; charset=utf-8; header=present",
    )
    assert (
        answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''csv%20{escape}.csv"
    )
    assert answer.headers["x-penstock-job-state"] == "running"
    job = JobStore(db).get(made["id"])
    write_table(Reading(db, job), tmp_path, "all.csv", "csv", escape_formulas=escape)
    assert answer.raw == (tmp_path / "all.csv").read_bytes()
    assert (b"'=HYPERLINK" in answer.raw) == escape
    assert len(list(csv.reader(io.StringIO(answer.raw.decode(), newline="")))) == len(ODD) + 2


def test_no_form_of_results_has_the_place_of_an_uploaded_file(api: Client, db: Database) -> None:
    """Its id stands for it in what a dead letter says."""
    file = uploaded(api)
    made = api.post("/v1/jobs", {**SPEC, "source": file}).json
    place_of_file = str(JobStore(db).get(made["id"]).source["uri"])
    letter = DeadLetter(
        ItemKey(made["id"], 1, "dead"),
        "bad_row",
        0,
        0,
        f"{place_of_file}, line 3: no",
        None,
        b"",
        b"",
    )
    OutcomeStore(db).settle([], [letter])
    for form in ("jsonl", "rows", "csv"):
        answer = api.get(f"/v1/jobs/{made['id']}/results", form=form).raw.decode()
        assert place_of_file not in answer
        assert f"{file}, line 3: no" in answer


def test_results_as_parquet_are_those_of_the_command_line(
    api: Client, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same table, of several row groups; of a job without an outcome an empty one."""
    monkeypatch.setattr(arrow, "BATCH_ROWS", 3)
    made = api.post("/v1/jobs", {**SPEC, "open": True}).json
    path = f"/v1/jobs/{made['id']}/results"
    empty = pyarrow.parquet.read_table(io.BytesIO(api.get(path, form="parquet").raw))
    odd_results(db, made["id"])
    answer = api.get(path, form="parquet")
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    found = pyarrow.parquet.ParquetFile(io.BytesIO(answer.raw))
    assert (found.num_row_groups, found.metadata.num_rows, empty.num_rows) == (3, len(ODD) + 1, 0)
    write_table(Reading(db, JobStore(db).get(made["id"])), tmp_path, "all.parquet", "parquet")
    assert found.read().equals(pyarrow.parquet.read_table(tmp_path / "all.parquet"))
    assert empty.schema.equals(found.schema_arrow)


def test_results_as_rows_are_those_of_the_table_with_cursors(api: Client, db: Database) -> None:
    """Each line has the columns of the table, typed, odd texts included; from a cursor on only what
    is new comes."""
    made = api.post("/v1/jobs", {**SPEC, "open": True}).json
    path = f"/v1/jobs/{made['id']}/results"
    odd_results(db, made["id"])
    lines = api.get(path, form="rows").raw.splitlines()
    reading = Reading(db, JobStore(db).get(made["id"]))
    names = [column.name for column in reading.table.columns]
    rows = [json.loads(line) for line in lines]
    cursors = [row.pop("cursor") for row in rows]
    assert rows == [dict(zip(names, row, strict=True)) for row in reading]
    after = api.get(path, form="rows", after=cursors[2], limit=2).raw.splitlines()
    assert after == lines[3:5]


def test_what_a_table_has_not_is_refused(
    api: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cursors and limits are of lines, formulas of CSV; without pyarrow the answer says what to
    install."""
    path = f"/v1/jobs/{api.post('/v1/jobs', {**SPEC, 'open': True}).json['id']}/results"
    for query in ({"limit": 1}, {"after": "x"}, {"dead_letters": "false"}):
        refused = api.get(path, form="csv", **query)
        assert (refused.status, refused.json["param"]) == (400, "form")
    assert api.get(path, form="parquet", escape_formulas="true").json["param"] == "escape_formulas"
    assert api.get(path, form="xls").status == 400
    assert api.get("/v1/jobs/job_none/results", form="csv").status == 404
    monkeypatch.setattr("penstock_producer.tables.arrow.util.find_spec", lambda name: None)
    missing = api.get(path, form="parquet")
    assert (missing.status, missing.json["code"]) == (501, "form_unavailable")
    assert "pip install 'penstock[parquet]'" in missing.json["detail"]


def test_a_job_with_batches_at_a_provider_is_purged_on_request_only(
    api: Client, db: Database
) -> None:
    """They would run on and be paid for; leave_batches=true forgets them all the same."""
    jobs = JobStore(db)
    jobs.create(
        NewJob(
            "job_" + "b" * 20, "b", {"lane": "batch"}, {"kind": "file"}, "b", 10, FeedKind.SOURCE
        )
    )
    feed = jobs.lease_feed("job_" + "b" * 20, 1, "w", 30.0)
    assert feed is not None
    batch = NewProviderBatch(
        "t", feed.job_id, 1, "openai-eu", "openai", "m", "/v1/x", {}, {}, 3, 90, 100, 0
    )
    ProviderBatchStore(db).add_of_feed(
        feed, "w", 30.0, [batch], cursor={}, exhausted=True, ids={"t": b"x"}
    )
    jobs.set_state(
        feed.job_id, JobState.FAILED, why=by_hand("its source changed"), expect={JobState.RUNNING}
    )
    refused = api.ask("DELETE", f"/v1/jobs/{feed.job_id}")
    assert (refused.status, refused.json["code"]) == (409, "open_batches")
    assert api.ask("DELETE", f"/v1/jobs/{feed.job_id}?leave_batches=true").status == 200


def test_a_sample_is_a_job_of_its_own_that_says_what_all_cost(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """Drawn documents are a file and a job; what they took is what all would take, in an interval.

    The same again is that job."""
    given = {
        **SPEC,
        "source": place(settings),
        "sample": 3,
        "job": "small",
        "id_field": "id",
        "system": "Be brief.",
    }
    made = api.post("/v1/jobs", given)
    assert (made.status, made.json["counts"]["total"]) == (201, 3), made.raw
    files = len(api.get("/v1/files").json["data"])
    again = api.post("/v1/jobs", given)
    assert (again.status, again.json["id"]) == (200, made.json["id"])
    assert len(api.get("/v1/files").json["data"]) == files
    path = f"/v1/jobs/{made.json['id']}/extrapolation"
    before = api.get(path).json
    assert (before["documents"], before["sampled"], before["tokens_in"]) == (6, 0, None)
    file_id = api.get("/v1/jobs/small").json["source"]["uri"]
    lines = [json.loads(line) for line in api.get(f"/v1/files/{file_id}/content").raw.splitlines()]
    assert [line["body"]["messages"][0]["content"] for line in lines] == ["Be brief."] * 3
    for line in lines:
        settle(db, made.json["id"], 1, first=int(line["custom_id"].removeprefix("d")))
    said = api.get(path).json
    assert (said["sampled"], said["dead"], said["confidence"], said["tokens_in"]["middle"]) == (
        3,
        0,
        0.9,
        30.0,
    )
    assert said["tokens_out"] == {"low": 12.0, "middle": 12.0, "high": 12.0}
    assert said["cost_usd"]["middle"] == pytest.approx(6 * 3e-6)
    whole = api.post("/v1/jobs", {**given, "job": "larger", "sample": 10_000})
    assert whole.json["counts"]["total"] == 6
    other = submitted(api, settings)["id"]
    assert api.get(f"/v1/jobs/{other}/extrapolation").json["code"] == "not_a_sample"
    for more, pointer in (
        ({"source": None, "open": True}, "/sample"),
        ({"sample": 0}, None),
        ({"sample": 10_001}, None),
    ):
        refused = api.post("/v1/jobs", given | {"job": "odd"} | more)
        assert refused.status == 400, refused.raw
        assert pointer is None or refused.json["errors"][0]["pointer"] == pointer


def test_a_preview_shows_requests_and_what_is_wrong(
    api: Client, settings: GatewaySettings, db: Database
) -> None:
    """The first requests as they would be sent, each bad row with its fix and no path of this
    machine; nothing is accepted."""
    before = len(api.get("/v1/jobs", limit=200).json["data"])
    odd = {**SPEC, "source": place(settings, "in/odd.jsonl")}
    shown = api.post("/v1/jobs/preview?requests=2", odd).json
    assert (shown["rows"], shown["whole"], len(shown["requests"])) == (7, True, 2)
    assert shown["requests"][0]["body"]["messages"][0]["content"] == "Summarise: document 0"
    assert (shown["requests"][0]["tokens_out"], shown["requests"][0]["tokens_out_capped"]) == (
        16,
        True,
    )
    assert [(row["line"], row["code"]) for row in shown["problems"]] == [(7, "invalid_json_line")]
    twice = api.post(
        "/v1/jobs/preview", {**SPEC, "source": uploaded(api, b'{"id": 1, "text": "a"}\n' * 2)}
    )
    assert [row["code"] for row in twice.json["problems"]] == ["duplicate_custom_id"]
    assert settings.gateway.files.encode() not in twice.raw
    job_id = ended(api, settings, db)
    over = api.post(
        "/v1/jobs/preview", {"from_job": job_id, "where": ["status=dead"], "model": "large"}
    ).json
    assert [one["body"]["model"] for one in over["requests"]] == ["large", "large"]
    assert len(api.get("/v1/jobs", limit=200).json["data"]) == before + 1
    secret = api.post("/v1/jobs/preview", {**SPEC, "source": place(settings, "secret.jsonl")})
    assert secret.json["code"] == "source_forbidden"
    assert (
        api.post("/v1/jobs/preview", {**SPEC, "open": True}).json["errors"][0]["pointer"]
        == "/source"
    )


def test_a_table_over_http_has_the_columns_of_its_source(api: Client, db: Database) -> None:
    """Of an uploaded file, in its order; a column that it does not have is refused by name."""
    rows = b'{"ticket": 7, "text": "late", "note": "x"}\n{"ticket": 3, "text": "lost"}\n'
    file = uploaded(api, rows)
    made = api.post("/v1/jobs", {**SPEC, "source": file, "id_field": "ticket"}).json
    outcomes = OutcomeStore(db)
    for doc in ("3", "7"):
        body = b'{"choices": [{"message": {"content": "an answer"}}]}'
        key = ItemKey(made["id"], 1, doc)
        outcomes.settle([Result(key, 200, body, None, "m", "stop", 1, 1, 0, 1, 1, 1)], [])
    path = f"/v1/jobs/{made['id']}/results"
    lines = api.get(path, form="csv").raw.decode().splitlines()
    assert lines[0].startswith("ticket,text,note,status,finish_reason,answer,")
    assert [line[:26] for line in lines[1:]] == [
        "7,late,x,succeeded,stop,an",
        "3,lost,,succeeded,stop,an ",
    ]
    some = api.get(path, form="csv", keep_columns="note").raw.decode()
    assert some.startswith("ticket,note,status,")
    refused = api.get(path, form="csv", keep_columns="nope")
    assert (refused.status, "nope" in refused.raw.decode()) == (400, True)
    done = api.get(path, form="csv", order="done").raw.decode().splitlines()
    assert [line.split(",")[0] for line in done] == ["id", "3", "7"]
    odd = api.get(path, form="csv", order="done", keep_columns="note")
    assert (odd.status, odd.json["param"]) == (400, "keep_columns")
