"""`/v1/batches` by OpenAI's own clients, unmodified, against a real door and a real fleet."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from batch_door import ENDS, BatchDoor, as_jsonl, batch_door, chat, read
from doors import asked
from fleet import Fleet, until
from metrics_page import read as page_of
from metrics_page import value as value_of


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchDoor]:
    with Fleet(tmp_path_factory.mktemp("batches")) as fleet:
        fleet.provider.start("--latency-ms", "20", "--latency-sigma", "0")
        fleet.control()
        fleet.ready(fleet.worker(64))
        with batch_door(fleet) as doors, fleet.explained():
            yield doors


@pytest.fixture
def client(doors: BatchDoor) -> Iterator[openai.OpenAI]:
    doors.fleet.provider.tell(latency_ms=20, poison_rate=0)
    with doors.client() as client:
        yield client


def test_a_batch_of_500_is_answered_and_its_counts_only_grow(
    doors: BatchDoor, client: openai.OpenAI
) -> None:
    """Created, validated, answered: the counts are live and never go back, and the file has a line
    for each request."""
    batch = doors.create(client, (chat(n) for n in range(500)), metadata={"customer": "c1"})
    assert (batch.status, batch.object, batch.metadata) == (
        "validating",
        "batch",
        {"customer": "c1"},
    )
    assert batch.id.startswith("batch_")
    ended = doors.wait(client, batch.id)
    assert ended.status == "completed", ended
    seen = [one.request_counts for one in doors.seen[batch.id]]
    done = [one.completed for one in seen if one is not None]
    assert done == sorted(done)
    assert len(set(done)) > 2
    lines = read(client, ended.output_file_id)
    assert {one["custom_id"] for one in lines} == {f"doc-{n}" for n in range(500)}
    assert len(lines) == 500
    assert ended.error_file_id is None


def test_ids_keep_the_prefixes_that_clients_know(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Parity 1: batches, files and lines have OpenAI's prefixes, and ids of ordinary length."""
    ended = doors.wait(client, doors.create(client, [chat(0)]).id)
    lines = read(client, ended.output_file_id)
    for name, prefix in (
        (ended.id, "batch_"),
        (ended.output_file_id, "file-"),
        (lines[0]["id"], "batch_req_"),
    ):
        assert name is not None
        assert name.startswith(prefix)
        assert len(name) < 64


def test_what_batches_do_not_take_is_refused(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Parity 2: a file of another purpose is refused at once; streams, ids used twice, other urls
    and other models fail it."""
    other = client.files.create(file=("in.jsonl", as_jsonl([chat(0)])), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(
            input_file_id=other.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert refused.value.param == "input_file_id"
    bad = [
        chat(0),
        chat(1, stream=True),
        chat(0),
        {**chat(2), "url": "/v1/embeddings"},
        chat(3, model="other"),
    ]
    failed = doors.wait(client, doors.create(client, bad).id)
    assert faults(failed) == [
        (2, "streaming_unsupported", "body.stream"),
        (3, "duplicate_custom_id", "custom_id"),
        (4, "url_mismatch", "url"),
        (5, "model_mismatch", "body.model"),
    ]


def test_faults_of_a_file_fail_its_batch_and_not_the_call(
    doors: BatchDoor, client: openai.OpenAI
) -> None:
    """Parity 3: code, line, message and param of each faulty line; an empty file, too many lines
    and no file likewise."""
    lines = [chat(0), b"{", {"custom_id": "a"}, b"[1]"]
    failed = doors.wait(client, doors.create(client, lines).id)
    assert failed.status == "failed"
    assert failed.failed_at is not None
    assert faults(failed) == [
        (2, "invalid_json_line", None),
        (3, "missing_required_parameter", "method"),
        (4, "invalid_json_line", None),
    ]
    assert (failed.output_file_id, failed.error_file_id) == (None, None)
    empty = doors.wait(client, doors.create(client, [b""]).id)
    assert faults(empty) == [(None, "empty_file", None)]
    many = doors.wait(client, doors.create(client, [b"{"] * 150).id)
    assert len(faults(many)) == 101
    assert faults(many)[-1][1] == "too_many_errors"
    made = client.batches.create(
        input_file_id="file-" + "x" * 27, endpoint="/v1/chat/completions", completion_window="24h"
    )
    lost = doors.wait(client, made.id)
    assert faults(lost) == [(None, "invalid_request", "input_file_id")]


def test_counts_add_up_before_the_files_are_written(
    doors: BatchDoor, client: openai.OpenAI
) -> None:
    """Parity 4: the total is there once the file is validated; completed and failed are all of it
    from `finalizing` on."""
    doors.fleet.provider.tell(poison_rate=0.2, latency_ms=150)
    batch = doors.create(client, (chat(n, "count") for n in range(300)))
    doors.wait(client, batch.id)
    for one in doors.seen[batch.id]:
        counts = one.request_counts
        assert counts is not None
        if one.status != "validating":
            assert counts.total == 300
        if one.status in ENDS | {"finalizing"}:
            assert counts.completed + counts.failed == 300
    failed = [
        one.request_counts.failed for one in doors.seen[batch.id] if one.request_counts is not None
    ]
    assert failed == sorted(failed)
    assert 0 < failed[-1] < 300


def test_a_side_without_lines_has_no_file(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Parity 5: all good, all bad, and some of both: null ids in the place of empty files, and
    every line in one of two."""
    good = doors.wait(client, doors.create(client, [chat(0)]).id)
    assert (good.output_file_id is None, good.error_file_id is None) == (False, True)
    page = page_of(asked(f"{doors.url}/metrics").body.decode())
    assert value_of(page, "penstock_door_batch_steps_total", state="validating", result="done") >= 1
    doors.fleet.provider.tell(poison_rate=1)
    bad = doors.wait(client, doors.create(client, [chat(n, "poison") for n in range(3)]).id)
    assert (bad.status, bad.output_file_id, len(read(client, bad.error_file_id))) == (
        "completed",
        None,
        3,
    )


def test_a_refused_request_shows_the_status_that_it_got(
    doors: BatchDoor, client: openai.OpenAI
) -> None:
    """Parity 6: a provider's 400 is a response with `error` null in the error file."""
    doors.fleet.provider.tell(poison_rate=1)
    ended = doors.wait(client, doors.create(client, [chat(0, "refused")]).id)
    (line,) = read(client, ended.error_file_id)
    assert (line["error"], line["response"]["status_code"]) == (None, 400)
    assert line["response"]["body"]["error"]["message"]


def test_a_cancelled_batch_keeps_what_it_has(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Parity 7: cancelling, then cancelled; each request has a line, those that were not begun the
    code batch_cancelled."""
    doors.fleet.provider.tell(latency_ms=400)
    batch = doors.create(client, (chat(n, "cancel") for n in range(600)))
    until_some(doors, client, batch.id)
    asked = client.batches.cancel(batch.id)
    assert (asked.status, asked.cancelling_at is not None) == ("cancelling", True)
    ended = doors.wait(client, batch.id)
    assert (ended.status, ended.cancelled_at is not None) == ("cancelled", True)
    done, left = read(client, ended.output_file_id), read(client, ended.error_file_id)
    assert {one["error"]["code"] for one in left} == {"batch_cancelled"}
    assert len(done) > 0
    assert {one["custom_id"] for one in done + left} == {f"cancel-{n}" for n in range(600)}
    assert len(done) + len(left) == 600
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_an_expired_batch_keeps_what_it_has(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Parity 7 and 9: a window is kept; what was not done has the code batch_expired, and all else
    its answer."""
    doors.fleet.provider.tell(latency_ms=900)
    batch = doors.create(client, (chat(n, "expire") for n in range(600)), completion_window="3s")
    assert (batch.completion_window, batch.expires_at) == ("3s", batch.created_at + 3)
    ended = doors.wait(client, batch.id)
    assert (ended.status, ended.expired_at is not None) == ("expired", True)
    done, left = read(client, ended.output_file_id), read(client, ended.error_file_id)
    assert {one["error"]["code"] for one in left} == {"batch_expired"}
    assert "completion window expired" in left[0]["error"]["message"]
    assert len(done) > 0
    assert {one["custom_id"] for one in done + left} == {f"expire-{n}" for n in range(600)}
    counts = ended.request_counts
    assert counts is not None
    assert (counts.completed, counts.failed) == (len(done), len(left))
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'expired'"):
        client.batches.cancel(batch.id)


def test_outputs_are_files_of_their_creator(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Parity 8: the output is listed with its purpose, and can be read from any byte on."""
    ended = doors.wait(client, doors.create(client, [chat(n) for n in range(3)]).id)
    listed = {file.id: file for file in client.files.list(purpose="batch_output")}
    assert ended.output_file_id in listed
    whole = client.files.content(ended.output_file_id).content
    part = client.files.content(ended.output_file_id, extra_headers={"Range": "bytes=10-"})
    assert (part.response.status_code, part.content) == (206, whole[10:])
    assert listed[ended.output_file_id].filename == f"{ended.id}_output.jsonl"


@pytest.mark.parametrize("window", ["", "soon", "0s", "31d", "-1h", "1", "24h "])
def test_windows_that_are_not_kept_are_refused(
    doors: BatchDoor, client: openai.OpenAI, window: str
) -> None:
    """Parity 9: no window is accepted and then ignored."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(
            input_file_id="file-" + "x" * 27,
            endpoint="/v1/embeddings",
            completion_window=window,  # type: ignore[arg-type]  # what others accept
        )
    assert refused.value.param == "completion_window"


def test_usage_and_model_are_on_the_batch(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Parity 11: tokens are those that the answers say, without that a client reads them."""
    ended = doors.wait(client, doors.create(client, [chat(n) for n in range(5)]).id)
    used = [one["response"]["body"]["usage"] for one in read(client, ended.output_file_id)]
    assert ended.usage is not None
    assert ended.model == "sim"
    assert ended.usage.input_tokens == sum(one["prompt_tokens"] for one in used) > 0
    assert ended.usage.output_tokens == sum(one["completion_tokens"] for one in used) > 0
    assert ended.usage.total_tokens == ended.usage.input_tokens + ended.usage.output_tokens


def test_metadata_comes_back_and_lists_go_page_by_page(
    doors: BatchDoor, client: openai.OpenAI
) -> None:
    """Parity 12: what was given is shown, within 16, 64 and 512; pages have first_id, last_id and
    has_more."""
    given = {f"{'k' * 60}{n}": "v" * 512 for n in range(16)}
    made = [doors.create(client, [chat(0)], metadata=given).id for _ in range(3)]
    assert client.batches.retrieve(made[0]).metadata == given
    first = client.batches.list(limit=2)
    assert [one.id for one in first.data] == [made[2], made[1]]
    raw = first.to_dict()
    assert (raw["first_id"], raw["last_id"], raw["has_more"]) == (made[2], made[1], True)
    assert made[0] in [one.id for one in client.batches.list(limit=2, after=made[1]).data]
    assert set(made) <= {one.id for one in client.batches.list(limit=2)}
    for bad in (
        {"k" * 65: "v"},
        {"k": "v" * 513},
        {str(n): "" for n in range(17)},
        {"k": 1},
        {"penstock.other": "1"},
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            doors.create(client, [chat(0)], metadata=bad)
        assert refused.value.param is not None
        assert refused.value.param.startswith("metadata")


def test_what_is_not_there_or_not_known_is_refused(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Unknown ids are 404, also where they are paths; endpoints, fields and pages that there are
    not are 400."""
    for name in ("batch_" + "x" * 27, "../../etc/passwd", "batch_%2e%2e", "x"):
        for ask in (client.batches.retrieve, client.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(name)
    with pytest.raises(
        openai.BadRequestError, match="supported values are '/v1/chat/completions'"
    ) as refused:
        doors.create(client, [chat(0)], endpoint="/v1/images/generations")
    assert (refused.value.param, refused.value.code) == ("endpoint", "invalid_value")
    with pytest.raises(openai.BadRequestError, match="unknown parameter"):
        doors.create(client, [chat(0)], extra_body={"api_base": "http://169.254.169.254/"})
    pages: list[dict[str, Any]] = [{"limit": 0}, {"limit": 101}, {"after": "batch_" + "x" * 27}]
    for page in pages:
        with pytest.raises(openai.BadRequestError):
            client.batches.list(**page)


def test_the_same_idempotency_key_is_the_same_batch(
    doors: BatchDoor, client: openai.OpenAI
) -> None:
    """A create that is repeated finds the batch of the first; with another body it is refused."""
    file = client.files.create(file=("in.jsonl", as_jsonl([chat(0)])), purpose="batch")

    def create(window: str) -> str:
        return client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window=window,  # type: ignore[arg-type]  # ours
            extra_headers={"Idempotency-Key": "one"},
        ).id

    assert create("24h") == create("24h")
    with pytest.raises(openai.UnprocessableEntityError):
        create("1h")


def test_answers_can_be_read_before_the_end(doors: BatchDoor, client: openai.OpenAI) -> None:
    """With ?partial=true there are the lines so far, and X-Incomplete says so; without it they are
    refused."""
    doors.fleet.provider.tell(latency_ms=400)
    batch = doors.create(client, (chat(n, "partial") for n in range(400)))
    until_some(doors, client, batch.id)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{doors.url}/v1/batches/{batch.id}/output")
    assert refused.value.code == 409
    with urllib.request.urlopen(f"{doors.url}/v1/batches/{batch.id}/output?partial=true") as answer:
        assert answer.headers["x-incomplete"] == "true"
        assert 0 < len(answer.read().splitlines()) < 400
    client.batches.cancel(batch.id)


def test_metadata_may_ask_for_a_priority_a_lane_and_a_budget(
    doors: BatchDoor, client: openai.OpenAI
) -> None:
    """They become options of the batch's job, and what a job cannot have is refused at once, under
    its name."""
    asked = {"penstock.priority": "low", "penstock.lane": "api", "penstock.tier": "flex"}
    batch = doors.create(client, [chat(0)], metadata=asked)
    ended = doors.wait(client, batch.id)
    assert ended.status == "completed"
    spec = doors.fleet.producer.status(batch.id).job.spec
    assert (spec["priority"], spec["lane"], spec["tier"]) == ("low", "api", "flex")
    for name, value in (
        ("priority", "first"),
        ("lane", "gpu2"),
        ("tier", "slow"),
        ("budget_usd", "much"),
        ("budget_usd", "5"),
    ):
        # the last one: no price is known here
        with pytest.raises(openai.BadRequestError) as refused:
            doors.create(client, [chat(0)], metadata={f"penstock.{name}": value})
        assert refused.value.param == f"metadata.penstock.{name}"


def test_the_asynchronous_client_gets_the_same(doors: BatchDoor, client: openai.OpenAI) -> None:
    """Upload, create, wait and read with AsyncOpenAI; embeddings, too."""

    async def run() -> tuple[str, int]:
        async with openai.AsyncOpenAI(
            base_url=f"{doors.url}/v1", api_key="none", max_retries=0
        ) as remote:
            lines = [
                {
                    "custom_id": f"e-{n}",
                    "method": "POST",
                    "url": "/v1/embeddings",
                    "body": {"model": "sim", "input": f"text {n}"},
                }
                for n in range(4)
            ]
            file = await remote.files.create(file=("in.jsonl", as_jsonl(lines)), purpose="batch")
            batch = await remote.batches.create(
                input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
            )
            while batch.status not in ENDS:
                await asyncio.sleep(0.05)
                batch = await remote.batches.retrieve(batch.id)
            assert batch.output_file_id is not None
            content = await remote.files.content(batch.output_file_id)
            return batch.status, len(content.text.splitlines())

    assert asyncio.run(run()) == ("completed", 4)


def faults(batch: object) -> list[tuple[int | None, str | None, str | None]]:
    errors = batch.errors  # type: ignore[attr-defined]  # a Batch
    return [(one.line, one.code, one.param) for one in errors.data]


def until_some(doors: BatchDoor, client: openai.OpenAI, batch_id: str) -> None:
    def some() -> bool:
        counts = doors.look(client, batch_id).request_counts
        return counts is not None and 0 < counts.completed < counts.total

    until(some, 30, "some are answered")
